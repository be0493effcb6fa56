"""``specdec trace``: one generation as a page, every pass a row that says why its tokens are what they are."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from specdec_fn.cli import choice
from specdec_fn.cli import options as o

__all__ = ["trace"]

Prompt = Annotated[str, typer.Argument(help="The text to continue; - reads it from standard input.")]
Output = Annotated[
    str | None, typer.Option("--output", help="Where the page goes; - is standard output.  [default: trace.html; with --json no page]")
]
JsonPasses = Annotated[bool, typer.Option("--json", help="Print the passes as one JSON object.")]
PLACE = "trace.html"


def trace(
    prompt: Prompt,
    model: o.ModelName = "smollm2-135m",
    chat: Annotated[bool, typer.Option("--chat", help="Take the prompt as a user's message, through the model's chat template.")] = False,
    proposer: o.ProposerName = "ngram",
    draft_model: o.DraftModel = None,
    verifier: o.VerifierName = "token",
    lossy: o.Lossy = False,
    k: choice.KOrAuto = "5",
    curve: choice.CurveFile = None,
    seed: o.Seed = 0,
    max_tokens: o.MaxTokens = 128,
    stop: o.Stop = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on past the model's own end.")] = False,
    invariant: o.Invariant = False,
    temperature: o.Temperature = 1.0,
    top_k: o.TopK = 0,
    top_p: o.TopP = 1.0,
    min_p: o.MinP = 0.0,
    typical_p: o.TypicalP = 1.0,
    repetition_penalty: o.RepetitionPenalty = 1.0,
    presence_penalty: o.PresencePenalty = 0.0,
    frequency_penalty: o.FrequencyPenalty = 0.0,
    logit_bias: o.LogitBias = None,
    bad_words: o.BadWords = None,
    allowed_ids: o.AllowedIds = None,
    min_tokens: o.MinTokens = 0,
    output: Output = None,
    json_: JsonPasses = False,
) -> int:
    """Generate as "generate" does, and write a page that shows why.

    Every pass is a row: what was proposed, accepted, rejected, recovered, with p, q and the uniform that decided. The tokens are those of
    "generate" with the same options. The page is one file that needs nothing else and opens in any browser.
    """
    sampling = o.sampling_of(
        temperature,
        top_k,
        top_p,
        min_p,
        typical_p,
        repetition_penalty,
        presence_penalty,
        frequency_penalty,
        logit_bias,
        bad_words,
        allowed_ids,
        min_tokens,
    )
    asked = choice.setting(k, curve)
    place = output or (None if json_ else PLACE)
    _check_place(place, json_)
    from specdec_fn.engine.job import settle
    from specdec_fn.trace import as_json, page, record, traced

    text = sys.stdin.read() if prompt == "-" else prompt
    rule, drafts = o.verifier_of(verifier, lossy), o.proposer_name(proposer, draft_model)
    target, tokenizer = o.load_model(model)
    guess = o.proposer_of(drafts, o.load_draft(draft_model, tokenizer), target, sampling)
    chosen = choice.choose(asked, target, guess, sampling, rule, invariant=invariant)
    ids = tokenizer.chat([{"role": "user", "content": text}]) if chat else tokenizer.encode(text)
    how = sampling, chosen.proposer, rule, chosen.k, max_tokens, (), stop or (), ignore_eos, invariant, None
    job = settle(target, ids, tokenizer, seed, *how)
    about = {
        "model": model,
        "proposer": drafts,
        "draft_model": draft_model,
        "verifier": verifier,
        "k": chosen.k,
        "seed": seed,
        "sampling": _controls(sampling),
        "stop": list(stop or ()),
        "max_tokens": max_tokens,
        "invariant": invariant,
    }
    events: list[Any] = []
    interrupted = False
    try:
        events.extend(traced(job))
    except KeyboardInterrupt:
        interrupted = True
    made = record(events, tokenizer, ids, verifier, about)
    if place == "-":
        sys.stdout.write(page(made))
    elif place is not None:
        _write(Path(place), page(made))
    if json_:
        print(json.dumps({**as_json(made), **chosen.as_json()}, allow_nan=False))
    else:
        print(_summary(made, place, seed), file=sys.stderr if place == "-" else sys.stdout)
    return 130 if interrupted else 0


def _controls(sampling: Any) -> dict[str, Any]:
    """The temperature, and whatever else is not as it is by default."""
    from dataclasses import asdict

    from specdec_fn.sampling import SamplingParams

    plain = asdict(SamplingParams())
    return {name: value for name, value in asdict(sampling).items() if name == "temperature" or value != plain[name]}


def _check_place(place: str | None, json_: bool) -> None:
    """Refuses, before anything is computed, a place where no page can go."""
    if place is None:
        return
    if place == "-":
        if json_:
            raise ValueError("--output is '-' with --json; expected a file for the page, since the JSON goes to standard output")
        return
    path = Path(place)
    if path.is_dir():
        raise ValueError(f"--output is {place!r}, a folder; expected a file")
    if not path.parent.is_dir():
        raise ValueError(f"--output is {place!r}; expected a file in a folder that is there")


def _write(path: Path, text: str) -> None:
    """The whole page or what was there before."""
    beside = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _summary(made: Any, place: str | None, seed: int) -> str:
    kept = f"accepted {made.accepted} of {made.proposed} proposed ({made.accepted / made.proposed:.0%})" if made.proposed else "nothing proposed"
    where = "the page is on standard output" if place == "-" else f"the page is {place}"
    first = f"{made.emitted} tokens in {len(made.rows)} passes ({made.tokens_per_pass:.2f} a pass) · {kept} · finish {made.finish_reason}"
    return f"{first}\nseed {seed} · {where}"
