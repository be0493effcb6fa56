"""``specdec bench peers`` and ``transformers``: plain greedy decoding beside other engines, same weights, same threads, in turns."""

import json
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from specdec_fn.cli import options as o
from specdec_fn.cli.bench import figures
from specdec_fn.cli.bench.llama import Python
from specdec_fn.cli.bench.turns import Contest, Decode
from specdec_fn.cli.bench.variants import Dtype
from specdec_fn.cli.status import Status, wide_console

__all__ = ["Folder", "file_for", "peers", "transformers"]

PROMPT = "Write a story about a lighthouse keeper who finds a letter in a bottle."
GATED = "smollm2-135m"  # the figures are of this model
OURS, TRANSFORMERS, LLAMA = "specdec_fn", "transformers", "llama.cpp"
FASTER = (  # precision, beside whom, at least so many times as fast
    ("float32", TRANSFORMERS, 1.45),
    ("bfloat16", TRANSFORMERS, 2.6),
    ("float32", LLAMA, 0.95),
    ("bfloat16", LLAMA, 1.15),
    ("4-bit", LLAMA, 1.2),
)

Repeats = Annotated[int, typer.Option("--repeats", min=1, help="Runs of each, in turns.")]
Folder = Annotated[str | None, typer.Option("--gguf-folder", help="Where F32 and BF16 files for llama.cpp are kept, not made anew each time.")]


class Found(NamedTuple):
    """What came of one precision: ours, the file that llama.cpp had, and the times."""

    ours: str
    file: str | None
    contest: Contest

    @property
    def peers(self) -> list[str]:
        """Who was there beside us."""
        return [name for name in self.contest.ms if name != OURS]


def peers(
    model: o.ModelName = GATED,
    variants: Annotated[str, typer.Option("--variants", help="Precisions to compare, of float32, bfloat16, int8, int4, q8_0, q4_0, q4_1, file.")] = (
        "float32,bfloat16,file"
    ),
    max_tokens: o.MaxTokens = 128,
    repeats: Repeats = 5,
    llama_python: Python = None,
    gguf_folder: Folder = None,
    json_: o.Json = False,
) -> int:
    """Plain greedy decoding against transformers (floats) and llama.cpp (F32, BF16, or the file itself); exits 1 if a figure is missed."""
    from specdec_fn.cli.bench.llama import missing
    from specdec_fn.cli.bench.variants import listed

    names, absent = listed("--variants", variants), missing(llama_python)
    with ExitStack() as stack:
        folder = Path(gguf_folder if gguf_folder is not None else stack.enter_context(tempfile.TemporaryDirectory()))
        found = [_one(model, name, max_tokens, repeats, None if absent else _Llamas(llama_python, folder)) for name in names]
    return _tell(model, found, max_tokens, repeats, absent, json_)


def transformers(
    model: o.ModelName = GATED, dtype: Dtype = "float32", max_tokens: o.MaxTokens = 128, repeats: Repeats = 5, json_: o.Json = False
) -> int:
    """Milliseconds a token of plain greedy decoding here and in transformers, and their ratio; exits 1 if a figure is missed."""
    from specdec_fn.cli.bench.variants import named

    return _tell(model, [_one(model, named(dtype), max_tokens, repeats, None)], max_tokens, repeats, None, json_)


class _Llamas(NamedTuple):
    """Where workers and their files come from."""

    python: str | None
    folder: Path


def _one(model: str, name: str, count: int, repeats: int, llamas: _Llamas | None) -> Found:
    """All decoders of one precision, in turns."""
    import torch

    from specdec_fn.cli.bench.llama import Llama
    from specdec_fn.cli.bench.theirs import decoder, llama_of
    from specdec_fn.cli.bench.turns import contest, ours
    from specdec_fn.cli.bench.variants import FLOATS, load_variant
    from specdec_fn.sampling import SamplingParams

    target, tokenizer = load_variant(model, name)
    ids = tokenizer.chat([{"role": "user", "content": PROMPT}])
    if len(ids) + count > target.config.context:
        raise ValueError(f"--max-tokens is {count}; expected at most {target.config.context - len(ids)}, which the model's context leaves")
    settings: dict[str, Any] = {"tokenizer": tokenizer, "sampling": SamplingParams(0.0), "max_tokens": count, "ignore_eos": True}
    decoders: dict[str, Decode] = {OURS: ours(target, ids, **settings)}
    path = None
    with ExitStack() as stack:
        if name in FLOATS:
            decoders[TRANSFORMERS] = decoder(llama_of(target), ids, count)
        if llamas is not None:
            path = file_for(model, name, llamas.folder)
            worker = stack.enter_context(Llama(llamas.python, path, threads=torch.get_num_threads(), context=len(ids) + count))
            decoders[LLAMA] = worker.decoder(ids, count)
        with Status(f"decoding in turns, {name}"):
            return Found(name, None if path is None else path.name, contest(decoders, repeats))


def file_for(model: str, name: str, folder: Path) -> Path:
    """The file for llama.cpp: the same numbers for floats, else the model's own, whose few bits ours are held against."""
    from specdec_fn.cli.bench.gguf_files import file_of, rewritten

    source = file_of(model)
    kind = {"float32": "F32", "bfloat16": "BF16"}.get(name)
    if kind is None:
        return source
    with Status(f"writing {kind} for llama.cpp"):
        return rewritten(source, folder, kind)


def _figures(found: list[Found]) -> list[figures.Figure]:
    held = []
    for one in found:
        for name, peer, limit in FASTER:
            if peer in one.peers and name == ("4-bit" if one.ours in ("file", "int4", "q4_0", "q4_1") else one.ours):
                held.append(figures.at_least(f"{one.ours}: times as fast as {peer}", one.contest.median(peer, OURS), limit))
    return held


def _tell(model: str, found: list[Found], count: int, repeats: int, absent: str | None, as_json: bool) -> int:
    import torch

    from specdec_fn.cli.bench.passes import load_average

    held = _figures(found) if model == GATED else []
    if as_json:
        facts = {"threads": torch.get_num_threads(), "load": load_average(), "max_tokens": count, "left_out": absent}
        print(json.dumps(facts | {"variants": [_told(one) for one in found], "figures": figures.as_rows(held)}))
        return figures.code(held)
    title = f"plain greedy decoding, {count} tokens without the prefill, {torch.get_num_threads()} threads, {repeats} runs in turns"
    wide_console().print(_table(title, found))
    print("\n".join([*([absent] if absent else []), *figures.lines(held)]))
    return figures.code(held)


def _told(one: Found) -> dict[str, Any]:
    by_name = one.contest
    return {
        "variant": one.ours,
        "llama_file": one.file,
        "ms": by_name.ms,
        "ratios": {peer: by_name.ratios(peer, OURS) for peer in one.peers},
        "same_tokens": {peer: by_name.same(peer, OURS) for peer in one.peers},
    }


def _table(title: str, found: list[Found]) -> Any:
    from rich.table import Table

    from specdec_fn.cli.bench.paired import spread

    table = Table(title=title)
    for column in ("weights", "engine", "milliseconds a token", "we are times as fast", "same tokens"):
        table.add_column(column)
    for one in found:
        table.add_row(one.ours, OURS, spread(one.contest.ms[OURS]), "", "")
        for peer in one.peers:
            label = f"{peer}, {one.file}" if peer == LLAMA else peer
            same = str(one.contest.same(peer, OURS))
            table.add_row("", label, spread(one.contest.ms[peer]), spread(one.contest.ratios(peer, OURS)), same)
    return table
