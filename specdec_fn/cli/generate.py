"""``specdec generate``: text from a prompt, with or without speculation."""

import json
import sys
from typing import Annotated, Any

import typer

from specdec_fn.cli import options as o

__all__ = ["as_json", "generate", "summary"]


def generate(
    prompt: Annotated[str, typer.Argument(help="The text to continue; - reads it from standard input.")],
    model: o.ModelName = "smollm2-135m",
    chat: Annotated[bool, typer.Option("--chat", help="Take the prompt as a user's message, through the model's chat template.")] = False,
    proposer: o.ProposerName = "ngram",
    verifier: o.VerifierName = "token",
    lossy: o.Lossy = False,
    k: o.K = 5,
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
    json_: o.Json = False,
) -> int:
    """Generate text from a prompt; on a terminal, colours tell accepted, recovered and bonus tokens apart."""
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
    from rich.console import Console

    from specdec_fn.cli.colour import Painter
    from specdec_fn.doors import generate as door

    text = sys.stdin.read() if prompt == "-" else prompt
    rule = o.verifier_of(verifier, lossy)
    target, tokenizer = o.load_model(model)
    ids = tokenizer.chat([{"role": "user", "content": text}]) if chat else tokenizer.encode(text)
    painter = Painter(Console(), tokenizer, ids)
    pieces: list[Any] = []

    def show(piece: Any) -> None:
        pieces.append(piece)
        if not json_:
            painter.show(piece)

    interrupted, done = False, None
    try:
        done = door(
            target,
            ids,
            tokenizer=tokenizer,
            seed=seed,
            sampling=sampling,
            proposer=None if proposer == "none" else proposer,
            verifier=rule,
            k=k,
            max_tokens=max_tokens,
            stop=stop or (),
            ignore_eos=ignore_eos,
            invariant=invariant,
            on_piece=show,
        )
    except KeyboardInterrupt:
        interrupted = True
    if json_:
        print(json.dumps({"model": model, "seed": seed, "prompt": text, **as_json(done, pieces)}))
    else:
        print()
        print(f"seed {seed} · {summary(done) if done else 'interrupted'}", file=sys.stderr)
    return 130 if interrupted else 0


def as_json(done: Any, pieces: list[Any]) -> dict[str, Any]:
    """A generation, or what there is of an interrupted one, as JSON values."""
    kinds = [kind for piece in pieces for kind in piece.kinds]
    if done is None:
        tokens = [token for piece in pieces for token in piece.tokens]
        return {"tokens": tokens, "kinds": kinds, "text": "".join(piece.text for piece in pieces), "finish_reason": "abort"}
    stats = {**done.stats._asdict(), "seconds": dict(done.stats.seconds)}
    return {**done._asdict(), "kinds": kinds, "stats": stats}


def summary(done: Any) -> str:
    """One line of counts."""
    stats = done.stats
    seconds = sum(stats.seconds.values())
    parts = [f"{stats.emitted} tokens in {stats.passes} passes ({stats.tokens_per_pass:.2f} a pass)"]
    if stats.proposed:
        parts.append(f"accepted {stats.accepted} of {stats.proposed} proposed ({stats.acceptance_rate:.0%})")
    parts.append(f"{seconds:.2f} s, {1e3 * seconds / max(stats.emitted, 1):.1f} ms a token")
    return " · ".join([*parts, f"finish {done.finish_reason}"])
