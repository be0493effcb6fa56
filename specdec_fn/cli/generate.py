"""``specdec generate``: text from a prompt, with or without speculation; or results for a whole file of prompts."""

import json
import sys
from typing import Annotated, Any

import typer

from specdec_fn.cli import choice
from specdec_fn.cli import options as o

__all__ = ["as_json", "generate", "summary"]


Prompt = Annotated[str | None, typer.Argument(help="The text to continue; - reads it from standard input.")]
Input = Annotated[str | None, typer.Option("--input", help="A file of prompts, one JSON object a line, instead of one prompt; - is standard input.")]
Output = Annotated[str | None, typer.Option("--output", help="Where the results of --input go; - is standard output, which cannot be continued.")]
Batch = Annotated[int | None, typer.Option("--batch", min=1, help="With --input: prompts that run at once.  [default: 16]")]
Pages = Annotated[
    int | None,
    typer.Option(
        "--pages",
        min=1,
        help="With --input: pages of the cache of keys and values; unless given, enough for the whole batch to fill the model's context, "
        "but at most 1 GiB.",
    ),
]
PageSize = Annotated[int | None, typer.Option("--page-size", min=1, help="With --input: tokens of a page.  [default: 16]")]
Chunk = Annotated[int | None, typer.Option("--chunk", min=1, help="With --input: most prompt tokens that one pass computes.  [default: 256]")]
Logprobs = Annotated[bool, typer.Option("--logprobs", help="With --input: also write the log-probability of every token.")]


def generate(
    prompt: Prompt = None,
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
    input_: Input = None,
    output: Output = None,
    batch: Batch = None,
    pages: Pages = None,
    page_size: PageSize = None,
    chunk: Chunk = None,
    logprobs: Logprobs = False,
    json_: o.Json = False,
) -> int:
    """Generate text from a prompt; on a terminal, colours tell accepted, recovered and bonus tokens apart.

    With --input and --output, run a file of prompts together. A line of the input is a JSON object: "prompt" (text or ids) or "messages"
    (role and content, through the chat template), an "id" if you like, and any of the options below that decide tokens, by their names
    ("max_tokens": 20). Each result is a line of the output as soon as it is there: id, index (the input's line, from 0), text, tokens,
    finish_reason, stats and seed; what the engine refuses has an error instead, and the command exits with 1.

    Killed at any moment and started again with the same command, it goes on: results that are there stay and are not computed again. A file
    beside the output, OUTPUT.run.json, keeps what the run was begun with. A line's seed depends on --seed and its index alone. With
    --invariant its text is the same to the last bit however the run was cut and whatever the batch; without, logits may differ in their last
    bits with the prompts that share a pass, so the text of a prompt may, though never its law.
    """
    _check_mode(prompt, input_, output, {"--batch": batch, "--pages": pages, "--page-size": page_size, "--chunk": chunk, "--logprobs": logprobs})
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
    if input_ is not None and output is not None:
        from specdec_fn.cli.offline import Defaults, Shape, offline

        defaults = Defaults(
            model=model,
            chat=chat,
            proposer=o.proposer_name(proposer, draft_model),
            draft_model=draft_model,
            verifier=verifier,
            lossy=lossy,
            k=choice.whole(asked, "--input"),
            seed=seed,
            max_tokens=max_tokens,
            stop=tuple(stop or ()),
            ignore_eos=ignore_eos,
            invariant=invariant,
            logprobs=logprobs,
            sampling=sampling,
        )
        return offline(input_, output, Shape(batch, pages, page_size, chunk), defaults, json_)
    from rich.console import Console

    from specdec_fn.cli.colour import Painter
    from specdec_fn.doors import generate as door

    text = sys.stdin.read() if prompt is None or prompt == "-" else prompt
    rule, drafts = o.verifier_of(verifier, lossy), o.proposer_name(proposer, draft_model)
    target, tokenizer = o.load_model(model)
    guess = o.proposer_of(drafts, o.load_draft(draft_model, tokenizer), target, sampling)
    chosen = choice.choose(asked, target, guess, sampling, rule, invariant=invariant)
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
            proposer=chosen.proposer,
            verifier=rule,
            k=chosen.k,
            max_tokens=max_tokens,
            stop=stop or (),
            ignore_eos=ignore_eos,
            invariant=invariant,
            on_piece=show,
        )
    except KeyboardInterrupt:
        interrupted = True
    if json_:
        print(json.dumps({"model": model, "seed": seed, "prompt": text, **as_json(done, pieces), **chosen.as_json()}))
    else:
        print()
        print(f"seed {seed} · {summary(done) if done else 'interrupted'}", file=sys.stderr)
    return 130 if interrupted else 0


def _check_mode(prompt: str | None, input_: str | None, output: str | None, of_files: dict[str, Any]) -> None:
    """One prompt, or two files."""
    given = [name for name, value in {"--input": input_, "--output": output}.items() if value is not None]
    if prompt is not None and given:
        raise ValueError(f"the prompt is {prompt[:40]!r} and {given[0]} is given too; expected a prompt, or --input and --output")
    if len(given) == 1:
        raise ValueError(f"{given[0]} is given alone; expected both --input and --output")
    if prompt is None and not given:
        raise ValueError("there is no 'prompt'; expected one, or --input and --output for a file of prompts")
    extra = [name for name, value in of_files.items() if value]
    if extra and not given:
        raise ValueError(f"{extra[0]} is given with a single prompt; expected it together with --input and --output")


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
