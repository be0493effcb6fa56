"""``specdec roofline``: what a pass costs by its rows, on machines known by name or on this one, and every figure of the chapter."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specdec_fn.cli import options as o
from specdec_fn.cli.status import Status, wide_console

if TYPE_CHECKING:
    from specdec_fn.cli.rooflines import Setup

__all__ = ["roofline"]

SEVEN_B, EMBEDDED, THIS = "7b", "smollm2-135m", "this"
PICTURES = (".png", ".svg")
ACCEPTANCE = 0.7
MOST = 1024  # drafted tokens: far past every ridge


def roofline(
    machine: Annotated[
        str | None, typer.Option("--machine", help="A100, H100, H200, or this: measured. Without one, tables of the chapter (see above).")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", help="As in generate, or 7b, the chapter's model.  [default: 7b, and smollm2-135m on this machine]"),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option("--dtype", help="Of the weights: float32, bfloat16, int8, q4_0, ...  [default: bfloat16, and float32 on this machine]"),
    ] = None,
    batch: Annotated[int, typer.Option("--batch", help="Sequences of a pass.")] = 1,
    context: Annotated[int, typer.Option("--context", help="Committed tokens of each sequence, whose keys and values are read.")] = 256,
    k: Annotated[int, typer.Option("--k", help="Most drafted tokens to look at.")] = 16,
    acceptance: Annotated[
        float | None, typer.Option("--acceptance", help="Probability that a drafted token is kept, given those before it.  [default: 0.7]")
    ] = None,
    cost: Annotated[
        float | None, typer.Option("--cost", help="Time of a drafted token in plain passes.  [default: 0, and 0.05 in the chapter's tables]")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Every figure of the chapter beside its stated digits; exits with 1 if one is off.")] = False,
    json_: o.Json = False,
    plot: Annotated[Path | None, typer.Option("--plot", help="Draw time over rows, as .png or .svg; needs --machine.")] = None,
) -> int:
    """Compute what a pass should take by its bytes and its products, and where extra rows stop being free.

    The time of a pass lies between two bounds: reading and multiplying overlap in full, or not at all. On this machine it is measured as well:
    bandwidth by reading as many bytes as the model's weights, products by large matrices, and at batch 1 the model's own passes of 1 to 16 rows
    (those between the measured ones are interpolated).

    The chapter is the one of a book on inference engines from which this project started: a machine of 2 TB/s and 312 TFLOP/s, and a model of
    7 billion weights of 16 bits.
    """
    from specdec_fn.cli import rooflines as r
    from specdec_fn.cost import chapter

    if plot is not None:
        _check_plot(plot, machine)
    asked = acceptance is not None or cost is not None
    if check:
        if asked:
            raise ValueError("--check together with --acceptance or --cost; expected it alone, since the chapter's figures are of its own")
        figures = chapter.figures()
        wrong = [figure for figure in figures if not chapter.holds(figure)]
        if json_:
            print(json.dumps({"figures": [r.figure_json(one) for one in figures], "wrong": len(wrong)}))
        else:
            wide_console().print(r.checked(figures))
            print(f"{len(figures) - len(wrong)} of {len(figures)} figures are as stated")
        return 1 if wrong else 0
    if machine is None:
        if asked:
            return _yields(_or(acceptance, chapter.ACCEPTANCE), _or(cost, chapter.COST), k, json_)
        if json_:
            print(json.dumps({"figures": [r.figure_json(one) for one in chapter.figures()]}))
        else:
            for table in r.chapter_tables():
                wide_console().print(table)
        return 0
    return _shown(_setup(machine, model, dtype, batch, context, k, _or(acceptance, ACCEPTANCE), _or(cost, 0.0)), json_, plot)


def _or(given: float | None, default: float) -> float:
    return default if given is None else given


def _yields(acceptance: float, cost: float, k: int, json_: bool) -> int:
    """The chapter's first table and its best K, at another acceptance or cost."""
    from specdec_fn.cli import rooflines as r

    _check_k(k)
    if json_:
        print(json.dumps(r.yields_json(acceptance, cost, k)))
    else:
        wide_console().print(r.yields_table(acceptance, cost, range(k + 1)))
        print(r.yields_words(acceptance, cost, k))
    return 0


def _shown(setup: "Setup", json_: bool, plot: Path | None) -> int:
    from specdec_fn.cli import rooflines as r

    if json_:
        print(json.dumps(r.as_json(setup)))
    else:
        wide_console().print(r.table(setup))
        for line in r.words(setup):
            print(line)
    if plot is not None:
        from specdec_fn.cli.roofline_plot import draw

        draw(setup, plot)
    return 0


def _setup(machine: str, model: str | None, dtype: str | None, batch: int, context: int, k: int, acceptance: float, cost: float) -> "Setup":
    """Everything that the tables need; measured where the machine is this one."""
    from specdec_fn.cli.rooflines import Setup
    from specdec_fn.cost import machines, shapes, yields

    _check_k(k)
    yields.speed_up(acceptance, k, cost)
    here = machine == THIS
    name = model if model is not None else EMBEDDED if here else SEVEN_B
    kind = dtype if dtype is not None else "float32" if here else "bfloat16"
    machines.bits(kind)
    if not here:
        where, loaded = machines.known(machine), None if name == SEVEN_B else o.load_model(name)[0]
        shape = shapes.SEVEN_B if loaded is None else shapes.of(loaded.config)
        setup = Setup(where, name, shape, kind, batch, context, k, acceptance, cost, None)
        setup.rows(1)  # refuses what is out of range
        return setup
    return _measured(name, kind, batch, context, k, acceptance, cost)


def _check_k(k: int) -> None:
    if not 0 <= k <= MOST:
        raise ValueError(f"--k is {k}; expected 0 to {MOST}, a line of the table each")


def _measured(name: str, kind: str, batch: int, context: int, k: int, acceptance: float, cost: float) -> "Setup":
    from specdec_fn import measure
    from specdec_fn.cli.rooflines import Setup
    from specdec_fn.cost import machines, shapes

    if name == SEVEN_B:
        with Status("measuring the machine"):
            where = measure.machine(shapes.SEVEN_B.weights * machines.bits(kind) / 8)
        return Setup(where, name, shapes.SEVEN_B, kind, batch, context, k, acceptance, cost, None)
    target = _loaded(name, kind)
    shape = shapes.of(target.config)
    with Status("measuring the machine and the passes"):
        where = measure.machine(shape.weights * machines.bits(kind) / 8)
        curve = None if batch != 1 else measure.curve(target, rows=k + 1, context=max(context, 1), bare=True)
    return Setup(where, name, shape, kind, batch, context, k, acceptance, cost, curve)


def _loaded(name: str, kind: str) -> Any:
    from specdec_fn.load import load

    with Status(f"loading {name}"):
        return (load(name, dtype=kind) if kind in ("float32", "bfloat16", "float16") else load(name, quantize=kind))[0]


def _check_plot(path: Path, machine: str | None) -> None:
    from importlib.util import find_spec

    if machine is None:
        raise ValueError(f"--plot is {str(path)!r} without a machine; expected --machine as well")
    if path.suffix not in PICTURES:
        raise ValueError(f"--plot is {str(path)!r}; expected a name that ends in {' or '.join(PICTURES)}")
    if not path.parent.is_dir():
        raise ValueError(f"--plot is {str(path)!r}; expected a file in a folder that exists")
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ValueError(f"--plot is {str(path)!r}, which cannot be written; expected a file in a folder that may be written to")
    if find_spec("matplotlib") is None:
        raise ValueError("--plot draws with matplotlib, which is not installed; pip install -c constraints/pins.txt -e '.[plots]' brings it")
