"""The options that commands share, and the values made from them."""

from collections.abc import Callable
from typing import Annotated, Any

import typer

from specdec_fn.cli.status import Status

__all__ = [
    "AllowedIds",
    "BadWords",
    "DraftModel",
    "FrequencyPenalty",
    "Invariant",
    "Json",
    "K",
    "LogitBias",
    "Lossy",
    "MaxTokens",
    "MinP",
    "MinTokens",
    "ModelName",
    "NamedProposer",
    "PresencePenalty",
    "ProposerName",
    "RepetitionPenalty",
    "Seed",
    "Stop",
    "Temperature",
    "TopK",
    "TopP",
    "TypicalP",
    "VerifierName",
    "load_draft",
    "load_model",
    "proposer_name",
    "proposer_of",
    "sampling_of",
    "verifier_of",
]

ModelName = Annotated[str, typer.Option("--model", help="An embedded name, a GGUF file, or a folder of safetensors.")]
ProposerName = Annotated[
    str,
    typer.Option(
        "--proposer",
        help="Who drafts: ngram, ngram_tree (for verifiers of trees), suffix, early_exit, quantized, draft_model (with --draft-model), or none; "
        "some joined by + ask each in turn, as ngram+quantized.",
    ),
]
NamedProposer = Annotated[
    str,
    typer.Option("--proposer", help="Who drafts: ngram, suffix, early_exit, quantized, or none; some joined by + ask each in turn."),
]
DraftModel = Annotated[
    str | None,
    typer.Option("--draft-model", help="A second model that drafts, named as --model is; its tokens must be the model's. Implies draft_model."),
]
VerifierName = Annotated[
    str,
    typer.Option(
        "--verifier",
        help="The rule that keeps or repairs drafts: token, block, coupled, multi_draft, multi_draft_without_replacement, k_seq, tree, traversal; "
        "greedy (temperature 0); with --lossy also typical, lenient.",
    ),
]
Lossy = Annotated[bool, typer.Option("--lossy", help="Allow a verifier that does not keep the target's law; its bias is known exactly.")]
K = Annotated[int, typer.Option("--k", help="Most drafted tokens of a pass.")]
Seed = Annotated[int, typer.Option("--seed", help="Seed of the request.")]
MaxTokens = Annotated[int, typer.Option("--max-tokens", help="Most tokens to emit.")]
Stop = Annotated[list[str] | None, typer.Option("--stop", help="A string that ends the text; may be given several times.")]
Invariant = Annotated[
    bool, typer.Option("--invariant", help="Logits whose bits do not depend on the rows of a pass (slower only without the C kernels).")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Temperature = Annotated[float, typer.Option("--temperature", help="0 takes the likeliest token.")]
TopK = Annotated[int, typer.Option("--top-k", help="Keep the k likeliest tokens; 0 keeps all.")]
TopP = Annotated[float, typer.Option("--top-p", help="Keep the likeliest tokens up to this mass.")]
MinP = Annotated[float, typer.Option("--min-p", help="Drop tokens less likely than this share of the likeliest.")]
TypicalP = Annotated[float, typer.Option("--typical-p", help="Keep the most typical tokens up to this mass.")]
RepetitionPenalty = Annotated[float, typer.Option("--repetition-penalty", help="Divide the logits of seen tokens; 1 is off.")]
PresencePenalty = Annotated[float, typer.Option("--presence-penalty", help="Subtract from the logits of emitted tokens.")]
FrequencyPenalty = Annotated[float, typer.Option("--frequency-penalty", help="Subtract for each time a token was emitted.")]
LogitBias = Annotated[list[str] | None, typer.Option("--logit-bias", help="ID=BIAS added to a logit; may be given several times.")]
BadWords = Annotated[list[str] | None, typer.Option("--bad-words", help="Ids of a forbidden word, as 5 or 5,7; may be given several times.")]
AllowedIds = Annotated[str | None, typer.Option("--allowed-ids", help="The only ids that may be emitted, as 5,7,9.")]
MinTokens = Annotated[int, typer.Option("--min-tokens", help="Forbid ends until this many tokens are there.")]


def sampling_of(
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    typical_p: float,
    repetition_penalty: float,
    presence_penalty: float,
    frequency_penalty: float,
    logit_bias: list[str] | None,
    bad_words: list[str] | None,
    allowed_ids: str | None,
    min_tokens: int,
) -> Any:
    """The ``SamplingParams`` of the options; ValueError says which option does not parse."""
    from specdec_fn.sampling import SamplingParams

    return SamplingParams(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        typical_p=typical_p,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        logit_bias=tuple(_parse("--logit-bias", item, "ID=BIAS", _pair) for item in logit_bias or ()),
        bad_words=tuple(_parse("--bad-words", item, "ids such as 5,7", _ids) for item in bad_words or ()),
        allowed_ids=None if allowed_ids is None else _parse("--allowed-ids", allowed_ids, "ids such as 5,7", _ids),
        min_tokens=min_tokens,
    )


def verifier_of(name: str, lossy: bool) -> Any:
    """The verifier of a name: the value itself where ``--lossy`` says that its bias is accepted, else the name for the doors to judge."""
    from specdec_fn.speculate import verifiers

    rule = verifiers.all.get(name)
    if lossy and rule is not None:
        return rule
    if rule is not None and not rule.lossless:
        raise ValueError(f"--verifier is {name!r}, which does not keep the target's law; expected a lossless one, or --lossy as well")
    return name


def proposer_name(name: Any, draft: str | None) -> str:
    """The proposer's name, checked; "draft_model" where a model is given and the name does not say how to use it. ValueError names what is known."""
    from specdec_fn.speculate import proposers

    if name != "none":
        parts = tuple(name.split("+")) if isinstance(name, str) else ()
        if "adaptive" in parts:
            hint = "the name of that one, with --k auto"
            raise ValueError(f"proposer is {name!r:.80}, and adaptive wraps another proposer and needs a measured curve; expected {hint}")
        if not parts or not set(parts) <= {*proposers.names, "draft_model"}:
            known = f"{', '.join(proposers.names)}, draft_model (with --draft-model), or some of them joined by +, or none"
            raise ValueError(f"proposer is {name!r:.80}; expected one of {known}")
        if draft is None and "draft_model" in parts:
            raise ValueError(f"--proposer is {name!r} without a model to draft with; expected --draft-model as well")
        return name if draft is None or "draft_model" in parts else "draft_model"
    return "none" if draft is None else "draft_model"


def proposer_of(name: str, draft: Any, target: Any, sampling: Any) -> Any:
    """The proposer of a checked name: the name itself for the doors to judge, unless a second model drafts."""
    from specdec_fn.speculate import proposers

    if draft is None or name == "none":
        return None if name == "none" else name
    return proposers.named(name, target, sampling, made={"draft_model": draft})


def load_draft(name: str | None, tokenizer: Any) -> Any:
    """Loads a model to draft with, or None for none; ValueError where its tokens are not the target's."""
    from specdec_fn.text import vocabulary

    if name is None:
        return None
    model, own = load_model(name)
    vocabulary.check_same(tokenizer, own)
    return model


def load_model(name: str) -> tuple[Any, Any]:
    """Loads a model, with a line of progress on a terminal."""
    from specdec_fn.load import load

    with Status(f"loading {name}"):
        return load(name)


def _parse(option: str, text: str, expected: str, parse: Callable[[str], Any]) -> Any:
    try:
        return parse(text)
    except ValueError:
        raise ValueError(f"{option} is {text!r}; expected {expected}") from None


def _pair(text: str) -> tuple[int, float]:
    token, _, bias = text.partition("=")
    return int(token), float(bias)


def _ids(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))
