"""``specdec bench spec``: the questions of Spec-Bench by category, for each proposer, so that no single number stands for speculation."""

import json
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from specdec_fn.cli import options as o
from specdec_fn.cli.bench import figures
from specdec_fn.cli.bench.categories import PLAIN, Row
from specdec_fn.cli.bench.llama import Python
from specdec_fn.cli.bench.peers import Folder
from specdec_fn.cli.bench.questions import Kept, Question
from specdec_fn.cli.bench.turns import Contest, Decode
from specdec_fn.cli.bench.variants import Dtype, Quantize
from specdec_fn.cli.status import Status, wide_console
from specdec_fn.cost.curve import Curve

__all__ = ["spec"]

LEAST = 0.97  # times plain decoding, for those that choose K: the median of every category, and the time by counts and T(rows)
LONGEST = 17  # rows of a measured pass, unless K needs more
PEERS = ("transformers", "llama")


class Shape(NamedTuple):
    """What decides the records.

    Attributes:
        model, weights: the target, and its precision.
        entries: the proposers asked for.
        peers: other engines.
        k, peer_k, temperature, seed, max_tokens, repeats: of all questions.
    """

    model: str
    weights: str
    entries: list[str]
    peers: list[str]
    k: int
    peer_k: int
    temperature: float
    seed: int
    max_tokens: int
    repeats: int


def spec(
    prompts: Annotated[str, typer.Option("--prompts", help="A folder with Spec-Bench's questions.jsonl.")],
    model: o.ModelName = "smollm2-135m",
    dtype: Dtype = "float32",
    quantize: Quantize = "none",
    proposers: Annotated[
        str, typer.Option("--proposers", help="ngram, suffix, quantized, early_exit, A+B, draft:PATH; adaptive: before one chooses K.")
    ] = "ngram,suffix,adaptive:ngram,adaptive:suffix",
    k: o.K = 5,
    temperature: o.Temperature = 1.0,
    seed: o.Seed = 0,
    max_tokens: o.MaxTokens = 128,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Most questions of a category.")] = None,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Times each question is decoded each way, in turns.")] = 1,
    peers: Annotated[str, typer.Option("--peers", help="Other engines to run as well, of transformers,llama (temperature 0).")] = "none",
    peer_k: Annotated[int, typer.Option("--peer-k", min=1, help="Length of the other engines' prompt lookup.")] = 5,
    llama_python: Python = None,
    gguf_folder: Folder = None,
    resume: Annotated[str | None, typer.Option("--resume", help="A file of records; a run that was ended goes on from it.")] = None,
    json_: o.Json = False,
) -> int:
    """Speed-up, acceptance and entropy of p by category; exits 1 if one that chooses K falls below 0.97 times plain decoding."""
    import torch

    from specdec_fn.cli.bench.asked import entries
    from specdec_fn.cli.bench.categories import summary
    from specdec_fn.cli.bench.passes import load_average
    from specdec_fn.cli.bench.questions import limited, read
    from specdec_fn.cli.bench.variants import named

    chosen = limited(read(prompts), limit)
    shape = Shape(model, named(dtype, quantize), entries(proposers), _peers(peers, temperature), k, peer_k, temperature, seed, max_tokens, repeats)
    kept, curves, left_out, complete = _run(shape, chosen, resume, llama_python, gguf_folder)
    wanted = {question.number for question in chosen}
    rows = summary((record for record in kept if record["question_id"] in wanted), curves)
    held = _figures(rows)
    if json_:
        facts = {
            **shape._asdict(),
            "threads": torch.get_num_threads(),
            "load": load_average(),
            "left_out": left_out,
            "note": kept.note,
            "complete": complete,
        }
        print(json.dumps(facts | {"rows": [row._asdict() for row in rows], "figures": figures.as_rows(held)}))
        return figures.code(held) if complete else 130
    title = f"Spec-Bench, {shape.weights}, K = {k}, temperature {temperature:g}, at most {max_tokens} tokens, {torch.get_num_threads()} threads"
    wide_console().print(_table(title, rows))
    print("\n".join([*left_out, *figures.lines([one for one in held if not one.met])]))
    print(f"gates: {sum(one.met for one in held)} of {len(held)} passed" if held else "no gate: nobody chooses K")
    return figures.code(held) if complete else 130


def _peers(text: str, temperature: float) -> list[str]:
    names = [] if text == "none" else list(dict.fromkeys(part.strip() for part in text.split(",")))
    for name in names:
        if name not in PEERS:
            raise ValueError(f"--peers names {name!r}; expected {', '.join(PEERS)}, or none")
    if names and temperature:
        raise ValueError(f"--peers with --temperature {temperature:g}; expected temperature 0, at which all engines emit the same")
    return names


def _run(
    shape: Shape, chosen: list[Question], resume: str | None, python: str | None, folder: str | None
) -> tuple[Kept, dict[str, Curve], list[str], bool]:
    """Measures what is not in the file yet; gives all records, the curves, what was left out, and whether nobody interrupted it."""
    from specdec_fn.cli.bench import asked
    from specdec_fn.cli.bench.variants import load_variant
    from specdec_fn.cost import curve as cost
    from specdec_fn.sampling import SamplingParams

    target, tokenizer = load_variant(shape.model, shape.weights)
    sampling = SamplingParams(shape.temperature)
    who = {entry: asked.inner(entry, target, sampling, tokenizer) for entry in shape.entries}

    def note() -> dict[str, Any]:
        with Status("measuring passes"):
            measured = asked.curves(who, target, sampling, max(LONGEST, shape.k + 1))
        return {"curves": {entry: cost.to_json(one) for entry, one in measured.items()}}

    kept = Kept(resume, shape._asdict(), note)
    curves = {entry: cost.from_json(kept.note["curves"][entry]) for entry in who}
    with ExitStack() as stack:
        others = _Others(target, shape, python, folder, stack)
        left_out = [*others.left_out]
        todo = []
        for question in chosen:
            ids = tokenizer.chat([{"role": "user", "content": question.turns[0]}])
            if len(ids) + shape.max_tokens > target.config.context:
                left_out.append(f"question {question.number} has {len(ids)} tokens and does not fit into the context: left out")
            elif question.number not in kept:
                todo.append((question, ids))
        settings: dict[str, Any] = {"tokenizer": tokenizer, "sampling": sampling, "seed": shape.seed, "max_tokens": shape.max_tokens}
        complete = True
        try:
            _questions(target, todo, asked.wrapped(who, curves), others, kept, shape, settings)
        except KeyboardInterrupt:
            complete = False
    there = sum(question.number in kept for question in chosen)
    if not complete:
        print(f"specdec: interrupted after {there} of {len(chosen)} questions; this is what was found until then", file=sys.stderr)
        if not there:
            raise KeyboardInterrupt
    if not there:
        raise ValueError(f"none of the {len(chosen)} questions fits into the model's context of {target.config.context} tokens")
    return kept, curves, left_out, complete


def _questions(
    target: Any, todo: list[tuple[Question, list[int]]], who: dict[str, Any], others: "_Others", kept: Kept, shape: Shape, settings: dict[str, Any]
) -> None:
    """Decodes each question all ways in turns, and keeps a record of it."""
    from specdec_fn.cli.bench.serving import Watch
    from specdec_fn.cli.bench.turns import contest, ours

    start = time.monotonic()
    with Watch("questions") as status:
        for done, (question, ids) in enumerate(todo):
            left = f", {(time.monotonic() - start) / done * (len(todo) - done) / 60:.0f} minutes left" if done else ""
            status.say(f"question {done + 1} of {len(todo)} ({question.category}){left}")
            plain = ours(target, ids, **settings)
            decoders: dict[str, Decode] = {PLAIN: plain}
            decoders |= {entry: ours(target, ids, proposer=proposer, k=shape.k, **settings) for entry, proposer in who.items()}
            decoders |= others.decoders(ids, plain)
            kept.add(_record(question, target, ids, contest(decoders, shape.repeats, warm=not done), shape, settings))


def _record(question: Question, target: Any, ids: list[int], found: Contest, shape: Shape, settings: dict[str, Any]) -> dict[str, Any]:
    from specdec_fn.cli.bench.counted import by_rows
    from specdec_fn.cli.bench.entropy import entropies

    counts = {}
    for entry in shape.entries:
        stats = found.last[entry].stats
        assert stats is not None
        counts[entry] = {name: getattr(stats, name) for name in ("passes", "proposed", "accepted", "emitted")} | {"by_rows": by_rows(stats)}
    tokens = found.last[PLAIN].tokens
    return {
        "question_id": question.number,
        "category": question.category,
        "tokens": len(tokens),
        "ms": found.ms,
        "counts": counts,
        "entropy": entropies(target, ids, tokens, settings["sampling"])._asdict(),
    }


class _Others:
    """The other engines, plain and with their prompt lookup."""

    def __init__(self, target: Any, shape: Shape, python: str | None, folder: str | None, stack: ExitStack) -> None:
        import torch

        from specdec_fn.cli.bench.llama import Llama, missing
        from specdec_fn.cli.bench.peers import file_for
        from specdec_fn.cli.bench.theirs import llama_of

        self.left_out: list[str] = []
        self._theirs = llama_of(target) if "transformers" in shape.peers else None
        self._llamas: dict[str, Llama] = {}
        self._k = shape.peer_k
        absent = missing(python) if "llama" in shape.peers else None
        if absent is not None:
            self.left_out.append(absent)
        elif "llama" in shape.peers:
            path = file_for(shape.model, shape.weights, Path(folder if folder is not None else stack.enter_context(tempfile.TemporaryDirectory())))
            for name, lookup in (("llama.cpp", None), (f"llama.cpp lookup {shape.peer_k}", shape.peer_k)):
                worker = Llama(python, path, threads=torch.get_num_threads(), context=target.config.context, lookup=lookup)
                self._llamas[name] = stack.enter_context(worker)

    def decoders(self, ids: list[int], plain: Decode) -> dict[str, Decode]:
        """By name; each emits as many tokens as our plain decoding, which is run to know them only where somebody is there."""
        from specdec_fn.cli.bench.theirs import decoder

        if self._theirs is None and not self._llamas:
            return {}
        most = len(plain().tokens)
        made: dict[str, Decode] = {}
        if self._theirs is not None:
            made["transformers"] = decoder(self._theirs, ids, most)
            made[f"transformers lookup {self._k}"] = decoder(self._theirs, ids, most, lookup=self._k)
        return made | {name: worker.decoder(ids, most) for name, worker in self._llamas.items()}


def _figures(rows: list[Row]) -> list[figures.Figure]:
    from specdec_fn.cli.bench.asked import adapts

    held = []
    for row in rows:
        if adapts(row.who) and row.predicted is not None:
            held.append(figures.at_least(f"{row.category}, {row.who}: times as fast as plain decoding", row.ratio, LEAST))
            held.append(figures.at_least(f"{row.category}, {row.who}: the same by counts and T(rows)", row.predicted, LEAST))
    return held


def _table(title: str, rows: list[Row]) -> Any:
    from rich.table import Table

    table = Table(title=title)
    for column in ("category", "who", "n", "ms", "plain ms", "times plain (95 %)", "predicted", "tokens a pass", "accepted", "entropy", "of softmax"):
        table.add_column(column, justify="left" if column in ("category", "who") else "right")
    before = ""
    for row in rows:
        if row.category != before and before:
            table.add_section()
        counted = ("", "", "")
        if row.predicted is not None and row.tokens_per_pass is not None and row.acceptance_rate is not None:
            counted = (f"{row.predicted:.2f}", f"{row.tokens_per_pass:.2f}", f"{row.acceptance_rate:.0%}")
        times = f"{row.ratio:.2f} ({row.interval[0]:.2f} to {row.interval[1]:.2f})"
        cells = (str(row.questions), f"{row.ms:.1f}", f"{row.plain_ms:.1f}", times, *counted, f"{row.entropy:.2f}", f"{row.softmax:.2f}")
        table.add_row(row.category if row.category != before else "", row.who, *cells)
        before = row.category
    return table
