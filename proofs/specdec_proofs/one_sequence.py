"""One sequence a seed: in invariant mode neither the proposer, nor K, nor the neighbours in the batch change a token or a bit of a logit.

This is a claim about a real model and the whole of what is around it: the loop of one sequence, and the engine with its pages, chunks and prefix
cache for several. Plain decoding gives the reference: its tokens, and a digest of the logits after
each of their prefixes. Every case then generates under the same key, with drafts that are right, wrong, random, found in the text, or a tree; its
tokens must be the reference's, and wherever a pass computes the logits after a prefix of the reference, as one of many rows, among neighbours or
on a branch that is rejected later, they must have the reference's bits.
"""

import functools
import hashlib
import random
import zlib
from collections.abc import Callable, Iterator, Sequence
from types import MappingProxyType
from typing import NamedTuple

from specdec_fn import engine
from specdec_fn.engine.attention import INVARIANT
from specdec_fn.engine.commit import committed
from specdec_fn.engine.forward import forwarded
from specdec_fn.engine.generate import speculative
from specdec_fn.engine.law import Law
from specdec_fn.engine.law import law as target_law
from specdec_fn.engine.propose import proposed
from specdec_fn.engine.step import planned
from specdec_fn.engine.verify import verified
from specdec_fn.models import Model, invariant
from specdec_fn.random import key
from specdec_fn.sampling import SamplingParams
from specdec_fn.speculate import Proposer, proposers, verifiers
from specdec_fn.typing import Tensor
from specdec_proofs.claim import Figure, every_thread

__all__ = ["PROPOSERS", "Case", "Reference", "Seen", "cases", "claims", "compare", "reference"]

PROPOSERS = ("none", "ngram", "right", "wrong", "random", "ngram_tree")
PAGE = 16
Task = tuple[str, str, Callable[[], Figure]]
CONTROLS = MappingProxyType({"coupled": SamplingParams(), "greedy": SamplingParams(temperature=0)})


class Case(NamedTuple):
    """A way to generate what must come out the same: verifier, proposer, most drafted nodes, sequences that share a forward."""

    verifier: str
    proposer: str
    k: int
    batch: int


class Reference(NamedTuple):
    """What plain decoding gives for a prompt: its tokens, and for each the digest of the logits it was chosen from."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    digests: tuple[str, ...]


class Seen(NamedTuple):
    """What a case was compared on.

    Attributes:
        tokens: emitted tokens compared; ``other_tokens`` of them differ.
        rows: rows of logits compared; ``other_rows`` of them differ in some bit.
        passes: forwards of the sequences.
    """

    tokens: int
    other_tokens: int
    rows: int
    other_rows: int
    passes: int


def cases(ks: Sequence[int] = (1, 3, 5, 8), batches: Sequence[int] = (1, 4)) -> Iterator[Case]:
    """Every case: both verifiers whose tokens are fixed by the key, every proposer and K, alone and in company.

    >>> len(list(cases())), next(cases())
    (84, Case(verifier='coupled', proposer='none', k=0, batch=1))
    """
    for verifier in CONTROLS:
        for batch in batches:
            for proposer in PROPOSERS:
                for k in ks if proposer != "none" else (0,):
                    yield Case(verifier, proposer, k, batch)


def claims(model: Callable[[], Model], prompts: Callable[[], Sequence[Sequence[int]]], count: int, seed: int = 0) -> Iterator[Task]:
    """One claim for each case: name, gate, measurement. The model is asked for once, when the first claim is measured.

    Args:
        model, prompts: give the target and the ids of its prompts.
        count: tokens after each prompt.

    >>> import torch
    >>> from specdec_fn.models import toy
    >>> listed = list(claims(lambda: toy.bigram(torch.eye(3).roll(1, dims=1)), lambda: [[0], [1]], 5))
    >>> listed[0][0], listed[5][2]().passed
    ('one sequence: coupled, none, K=0, batch 1', True)
    """
    target, ids = functools.cache(model), functools.cache(prompts)

    @functools.cache
    def references(verifier: str) -> list[Reference]:
        return [reference(target(), prompt, count, verifier, seed) for prompt in ids()]

    def measured(case: Case) -> Callable[[], Figure]:
        def measurement() -> Figure:
            with every_thread():
                seen = compare(target(), references(case.verifier), case, seed)
            other = seen.other_tokens + seen.other_rows
            detail = f"{seen.tokens:,} tokens of {len(ids())} prompts in {seen.passes:,} passes; {seen.rows:,} rows of logits compared bit by bit"
            return Figure(float(other), other == 0, detail)

        return measurement

    for case in cases():
        yield f"one sequence: {case.verifier}, {case.proposer}, K={case.k}, batch {case.batch}", "tokens and logits that differ == 0", measured(case)


def reference(model: Model, prompt: Sequence[int], count: int, verifier: str, seed: int = 0) -> Reference:
    """Decodes a prompt one row a pass.

    >>> import torch
    >>> from specdec_fn.models import toy
    >>> reference(toy.bigram(torch.eye(3).roll(1, dims=1)), [0], 4, "greedy").tokens
    (1, 2, 0, 1)
    """
    rows: dict[int, str] = {}

    def note(place: int, generated: tuple[int, ...], row: Tensor) -> None:
        rows[len(generated)] = _digest(row)

    (tokens,), _ = _generate(model, [prompt], count, Case(verifier, "none", 0, 1), [_silent()], note, seed)
    return Reference(tuple(prompt), tuple(tokens), tuple(rows[place] for place in range(count)))


def compare(model: Model, references: Sequence[Reference], case: Case, seed: int = 0) -> Seen:
    """Generates in one way and counts what differs from plain decoding.

    Args:
        model: the target; its invariant form is used.
        references: of this model, the case's verifier and the seed; all of one length.

    >>> import torch
    >>> from specdec_fn.models import toy
    >>> model = toy.bigram(torch.softmax(torch.arange(9.0).reshape(3, 3).cos(), -1))
    >>> one = reference(model, [0], 6, "coupled")
    >>> compare(model, [one, one], Case("coupled", "right", 2, 2))
    Seen(tokens=12, other_tokens=0, rows=12, other_rows=0, passes=4)
    """
    tokens = other_tokens = rows = other_rows = passes = 0
    for first in range(0, len(references), case.batch):
        group = references[first : first + case.batch]

        def note(place: int, generated: tuple[int, ...], row: Tensor, group: Sequence[Reference] = group) -> None:
            nonlocal rows, other_rows
            known = group[place]
            if len(generated) < len(known.tokens) and generated == known.tokens[: len(generated)]:
                rows += 1
                other_rows += _digest(row) != known.digests[len(generated)]

        drafting = [_proposer(case.proposer, known, model.config.vocab_size) for known in group]
        found, count = _generate(model, [known.prompt for known in group], len(group[0].tokens), case, drafting, note, seed)
        passes += count
        for known, emitted in zip(group, found, strict=True):
            tokens += len(known.tokens)
            other_tokens += sum(a != b for a, b in zip(known.tokens, emitted, strict=True))
    return Seen(tokens, other_tokens, rows, other_rows, passes)


def _generate(
    model: Model,
    prompts: Sequence[Sequence[int]],
    count: int,
    case: Case,
    drafting: Sequence[Proposer],
    note: Callable[[int, tuple[int, ...], Tensor], None],
    seed: int,
) -> tuple[list[list[int]], int]:
    """Tokens of each prompt and the number of passes; every row of logits is noted with its place in the batch and its generated prefix."""
    seeds = [(seed << 32) + zlib.crc32(repr(list(prompt)).encode()) for prompt in prompts]
    if case.batch > 1:
        return _through_the_engine(model, prompts, count, case, drafting, note, seeds)
    (prompt,), (proposer,), emitted, passes = prompts, drafting, list[int](), 0
    law = _noted(target_law(CONTROLS[case.verifier], prompt), note)
    how = proposer, verifiers.all[case.verifier], case.k
    for one in speculative(invariant(model), key(seeds[0]), law, prompt, count, *how, attention=INVARIANT):
        emitted += one.tokens
        passes += 1
    return [emitted], passes


def _through_the_engine(
    model: Model,
    prompts: Sequence[Sequence[int]],
    count: int,
    case: Case,
    drafting: Sequence[Proposer],
    note: Callable[[int, tuple[int, ...], Tensor], None],
    seeds: Sequence[int],
) -> tuple[list[list[int]], int]:
    """The same with paged caches, chunks and a shared prefix, step by step, so that the logits can be looked at between forward and verdict."""
    pages = sum(-(-(len(prompt) + count) // PAGE) for prompt in prompts)
    config = engine.Config(PAGE, pages, case.batch, prefill_chunk=PAGE, verifier=case.verifier, k=case.k, invariant=True)
    state, passes = engine.init(model, config), 0
    for prompt, proposer, seed in zip(prompts, drafting, seeds, strict=True):
        request = engine.Request(prompt, count, CONTROLS[case.verifier], seed, proposer=proposer)
        state, _ = engine.submit(state, request)
    emitted: list[list[int]] = [[] for _ in prompts]
    while len(state.records):
        state, plan = planned(state)
        state, proposals = proposed(state, plan)
        state, logits = forwarded(model, state, proposals)
        for one, rows in zip(proposals, logits, strict=True):
            if one.draft is not None:
                passes += 1
                _note(note, one.lane.id, emitted[one.lane.id], one.draft.tokens.tolist(), one.draft.parents, rows)
        state, events = committed(state, verified(state, proposals, logits))
        for place, tokens, _, _ in events:
            emitted[place] += tokens
    return emitted, passes


def _noted(law: Law, note: Callable[[int, tuple[int, ...], Tensor], None]) -> Law:
    """The same law, with every row of logits shown to ``note`` at the prefix it belongs to."""

    def noted(logits: Tensor, generated: Sequence[int], drafted: Sequence[int], parents: Tensor | None = None) -> Tensor:
        _note(note, 0, generated, drafted, parents, logits)
        return law(logits, generated, drafted, parents)

    return noted


def _note(
    note: Callable[[int, tuple[int, ...], Tensor], None],
    place: int,
    generated: Sequence[int],
    drafted: Sequence[int],
    parents: Tensor | None,
    logits: Tensor,
) -> None:
    above = [node - 1 for node in range(len(drafted))] if parents is None else parents.tolist()
    lines: list[tuple[int, ...]] = [tuple(generated)]
    for token, parent in zip(drafted, above, strict=True):
        lines.append((*lines[parent + 1], token))
    for line, row in zip(lines, logits, strict=True):
        note(place, line, row)


def _digest(row: Tensor) -> str:
    return hashlib.blake2b(row.contiguous().numpy().tobytes(), digest_size=16).hexdigest()


def _silent() -> Proposer:
    return proposers.scripted.proposer(lambda context: [])


def _proposer(name: str, known: Reference, vocab: int) -> Proposer:
    """A proposer that knows what will come, or that it will not, or neither."""

    def coming(context: list[int]) -> list[int]:
        return list(known.tokens[len(context) - len(known.prompt) :])

    def guess(context: list[int]) -> list[int]:
        draw = random.Random(repr((len(context), context[-1])))
        return [token if draw.random() < 0.5 else draw.randrange(vocab) for token in coming(context)]

    scripts: dict[str, Callable[[list[int]], list[int]]] = {
        "none": lambda context: [],
        "right": coming,
        "wrong": lambda context: [(token + 1) % vocab for token in coming(context)],
        "random": guess,
    }
    if name in scripts:
        return proposers.scripted.proposer(scripts[name])
    return {"ngram": proposers.ngram.proposer, "ngram_tree": proposers.ngram_tree.proposer}[name]()
