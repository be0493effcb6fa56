"""``specdec chat``: a conversation on the terminal, or one answer for each line of standard input."""

import json
import sys
from contextlib import suppress
from typing import Annotated, Any

import typer

from specdec_fn.cli import choice
from specdec_fn.cli import options as o

__all__ = ["chat"]


def chat(
    model: o.ModelName = "smollm2-135m",
    system: Annotated[str | None, typer.Option("--system", help="A system message to begin with.")] = None,
    proposer: o.ProposerName = "ngram",
    draft_model: o.DraftModel = None,
    verifier: o.VerifierName = "token",
    lossy: o.Lossy = False,
    k: choice.KOrAuto = "5",
    curve: choice.CurveFile = None,
    seed: o.Seed = 0,
    max_tokens: o.MaxTokens = 256,
    stop: o.Stop = None,
    temperature: o.Temperature = 0.7,
    top_k: o.TopK = 0,
    top_p: o.TopP = 0.95,
    min_p: o.MinP = 0.0,
    repetition_penalty: o.RepetitionPenalty = 1.0,
    json_: o.Json = False,
) -> int:
    """Talk to the model; an empty line is skipped, /quit or end of input leaves, Ctrl-C ends an answer."""
    from rich.console import Console

    from specdec_fn.cli.colour import Painter
    from specdec_fn.cli.generate import as_json, summary
    from specdec_fn.doors import generate as door

    sampling = o.sampling_of(temperature, top_k, top_p, min_p, 1.0, repetition_penalty, 0.0, 0.0, None, None, None, 0)
    asked = choice.setting(k, curve)
    rule, drafts = o.verifier_of(verifier, lossy), o.proposer_name(proposer, draft_model)
    target, tokenizer = o.load_model(model)
    guess = o.proposer_of(drafts, o.load_draft(draft_model, tokenizer), target, sampling)
    chosen = choice.choose(asked, target, guess, sampling, rule)
    console = Console()
    messages = [] if system is None else [{"role": "system", "content": system}]
    turn = 0
    while (said := _read()) not in (None, "/quit", "/exit"):
        if not said:
            continue
        messages.append({"role": "user", "content": said})
        ids = tokenizer.chat(messages)
        painter = Painter(console, tokenizer, ids)
        pieces: list[Any] = []

        def show(piece: Any, painter: Painter = painter, pieces: list[Any] = pieces) -> None:
            pieces.append(piece)
            if not json_:
                painter.show(piece)

        done = None
        with suppress(KeyboardInterrupt):  # the answer so far stands; the conversation goes on
            done = door(
                target,
                ids,
                tokenizer=tokenizer,
                seed=seed + turn,
                sampling=sampling,
                proposer=chosen.proposer,
                verifier=rule,
                k=chosen.k,
                max_tokens=max_tokens,
                stop=stop or (),
                on_piece=show,
            )
        answer = "".join(piece.text for piece in pieces)
        messages.append({"role": "assistant", "content": answer})
        if json_:
            print(json.dumps({"seed": seed + turn, **as_json(done, pieces), **chosen.as_json()}), flush=True)
        else:
            print(flush=True)
            print(f"seed {seed + turn} · {summary(done) if done else 'interrupted'}", file=sys.stderr)
        turn += 1
    return 0


def _read() -> str | None:
    """The next line that the user says, or None at the end."""
    if sys.stdin.isatty():
        try:
            return input("> ").strip()
        except EOFError:
            return None
    line = sys.stdin.readline()
    return line.strip() if line else None
