"""``specdec demo``: the main job. A real model writes real text plainly and speculatively, and the exactness of the rule is computed."""

import io
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from specdec_fn.cli import options as o
from specdec_fn.cli.status import Status

__all__ = ["demo"]


class Scene(NamedTuple):
    """One prompt of the demo: its title, the user's message, and the temperature it is answered at."""

    title: str
    text: str
    temperature: float


QUOTED = """Repeat the following text exactly, word for word:

The lighthouse stands on a cliff above the harbour. Every evening the keeper climbs the stairs, trims the lamp and writes the weather into a \
book. In forty years he has not missed an evening, not even when the sea took the lower path and the boats stayed in the harbour \
for a week."""

SCENES = (
    Scene("a prompt that quotes", QUOTED, 0.0),
    Scene("a prompt of prose", "Describe the sounds of a rainy day in an old house.", 0.8),
)


def demo(
    model: o.ModelName = "smollm2-135m",
    k: o.K = 10,
    seed: o.Seed = 0,
    max_tokens: o.MaxTokens = 160,
    svg: Annotated[Path | None, typer.Option("--svg", help="Also write what is shown as a picture.")] = None,
    json_: o.Json = False,
) -> int:
    """Answer a quoting prompt and a prose prompt, plainly and then speculatively, with their figures."""
    from rich.console import CONSOLE_SVG_FORMAT, Console

    from specdec_kernels import native

    if svg is not None and not svg.parent.is_dir():
        raise ValueError(f"--svg is {str(svg)!r}; expected a file in a folder that exists")
    target, tokenizer = o.load_model(model)
    with Status("compiling the C kernels, which is done once"):  # what is timed must not change in the middle
        native.wait()
    stage = Stage(Console(quiet=json_), Console(record=True, width=110, file=io.StringIO(), force_terminal=True, color_system="truecolor"))
    results = [_play(stage, target, tokenizer, scene, k, seed, max_tokens) for scene in SCENES]
    exact = _exactness(stage)
    if json_:
        print(json.dumps({"model": model, "k": k, "seed": seed, "scenes": results, "exact_tv": exact}))
    if svg is not None:
        frame = re.sub(r"@font-face \{\{.*?\}\}\n", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)  # no font is fetched from anywhere
        stage.picture.save_svg(str(svg), title="specdec demo", code_format=frame)
    return 0


class Stage(NamedTuple):
    """Where the demo is shown: live, and on a recording console from which the picture is made."""

    live: Any
    picture: Any

    def print(self, *items: Any, **style: Any) -> None:
        """Prints on both."""
        for console in self:
            console.print(*items, **style)


def _play(stage: Stage, target: Any, tokenizer: Any, scene: Scene, k: int, seed: int, max_tokens: int) -> dict[str, Any]:
    from rich.rule import Rule

    from specdec_fn.cli.bench.paired import decode_seconds
    from specdec_fn.cli.colour import Painter, legend
    from specdec_fn.doors import generate
    from specdec_fn.sampling import SamplingParams

    ids = tokenizer.chat([{"role": "user", "content": scene.text}])
    settings = {"tokenizer": tokenizer, "sampling": SamplingParams(scene.temperature), "seed": seed, "max_tokens": max_tokens}

    def run(title: str, **speculation: Any) -> Any:
        stage.print(f"\n[bold]{title}[/bold]")
        painter = Painter(stage.live, tokenizer, ids)
        done = generate(target, ids, **settings, **speculation, on_piece=painter.show)
        stage.live.print()
        stage.picture.print(painter.whole)
        return done

    stage.print(Rule(f"{scene.title}, temperature {scene.temperature:g}, seed {seed}"))
    stage.print(scene.text, style="dim", highlight=False, markup=False)
    plain = run("plain")
    fast = run(f"speculative: n-gram drafts, K = {k}", proposer="ngram", k=k)
    stage.print(legend())
    ms = [1e3 * decode_seconds(done) / len(done.tokens) for done in (plain, fast)]
    stats = fast.stats
    stage.print(_figures(stats, ms))
    if scene.temperature == 0:
        stage.print(f"the same tokens as plain decoding: {fast.tokens == plain.tokens}")
    return {"title": scene.title, "plain_ms": ms[0], "speculative_ms": ms[1], "speed_up": ms[0] / ms[1], "stats": stats._asdict() | {"seconds": None}}


def _figures(stats: Any, ms: list[float]) -> str:
    places = "  ".join(f"{place}: {kept}/{seen}" for place, (seen, kept) in enumerate(stats.per_position, start=1) if seen)
    lines = {
        "tokens a pass": f"{stats.tokens_per_pass:.2f}  ({stats.emitted} tokens in {stats.passes} passes)",
        "accepted": f"{stats.acceptance_rate:.0%}  ({stats.accepted} of {stats.proposed} proposed)",
        "by position": places or "nothing was proposed",
        "speed-up": f"{ms[0] / ms[1]:.2f}  ({ms[0]:.1f} ms a token plain, {ms[1]:.1f} ms speculative)",
    }
    return "\n".join(f"{name:15}{line}" for name, line in lines.items())


def _exactness(stage: Stage) -> dict[str, float]:
    """The exact total variation between the law of the verifier that has just decided all these tokens and the target's law."""
    import torch
    from rich.rule import Rule

    from specdec_fn.speculate import verifiers
    from specdec_proofs.integrate import measure
    from specdec_proofs.worlds import softmax

    stage.print(Rule("is it exact?"))
    decide = verifiers.all["token"].decide
    found = {str(dtype).removeprefix("torch."): float(measure(decide, softmax(0), dtype).tv) for dtype in (torch.float64, torch.float32)}
    for name, distance in found.items():
        stage.print(f"total variation between the emitted law and p, computed from the shipped code ({name}): [bold]{distance:.1e}[/bold]")
    stage.print(f"every claim and every mutant: {_command()} prove --quick", style="dim")
    return found


def _command() -> str:
    """How this program is called here: by its name where that is found, else by where it lies."""
    return "specdec" if shutil.which("specdec") else sys.argv[0]
