"""The exact law of whole answers under speculation with a grammar: masks, laws and rules are the engine's own, and every probability is a count of
grid points of the uniforms, not an estimate. It is the law of plain decoding with the same grammar."""

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

import pytest
import torch

from specdec_fn import grammar as written
from specdec_fn.engine import Constraint, grammar
from specdec_fn.engine.law import Controls
from specdec_fn.engine.laws import Ask, laws
from specdec_fn.engine.running import Running, usable
from specdec_fn.sampling import SamplingParams
from specdec_fn.speculate import Draft, Tape, batched, verifiers
from specdec_fn.text import Tokenizer
from specdec_proofs import cells

PIECES = ("[", "]", "1", "2", ",", "12", "1]", "a", "")
VOCAB, END = len(PIECES), len(PIECES) - 1
LONGEST, K, SIZE = 5, 2, 1 << 53
Answers = dict[tuple[int, ...], float]


def tokenizer() -> Tokenizer:
    def encode(text: str, *, special: bool = False) -> list[int]:
        ids = []
        while text:
            ids.append(max((i for i in range(END) if text.startswith(PIECES[i])), key=lambda i: len(PIECES[i])))
            text = text[len(PIECES[ids[-1]]) :]
        return ids

    return Tokenizer(encode, lambda ids, skip_special=True: "".join(PIECES[i] for i in ids), list, (END,), VOCAB)  # type: ignore[arg-type]


KNOWN = written.vocabulary(tokenizer(), VOCAB)
GRAMMARS = {
    "schema": written.json_schema(KNOWN, {"type": "array", "items": {"enum": [1, 12, 2]}, "maxItems": 2}),
    "lark": written.lark(KNOWN, 'start: "1" rest | "2"\nrest: "2" rest | "a" |'),
}


def logits(prefix: tuple[int, ...]) -> torch.Tensor:
    """The model: any function of what is there."""
    seed = sum((token + 1) * 11**place for place, token in enumerate(prefix))
    return 1.5 * torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def proposal(prefix: tuple[int, ...]) -> dict[int, Fraction]:
    """The proposer's law, which knows nothing of the grammar: three ids, one of which may well be forbidden."""
    first = sum(prefix) % END
    return {first: Fraction(1, 2), (first + 2) % END: Fraction(1, 4), END: Fraction(1, 4)}


def row(prefix: tuple[int, ...]) -> torch.Tensor:
    made = torch.zeros(VOCAB, dtype=torch.float64)
    for token, mass in proposal(prefix).items():
        made[token] += float(mass)
    return made


def plain(rule: Constraint) -> Answers:
    """Token by token: softmax over what the grammar allows."""
    found: Answers = {}

    def grow(prefix: tuple[int, ...], state: Any, mass: float) -> None:
        if len(prefix) == LONGEST or (prefix and prefix[-1] == END):
            found[prefix] = mass
            return
        probs = logits(prefix).masked_fill(~rule.mask(state), -torch.inf).softmax(-1)
        for token, share in enumerate(probs.tolist()):
            if share:
                grow((*prefix, token), rule.advance(state, token), mass * share)

    grow((), rule.init, 1.0)
    return found


def drafts(prefix: tuple[int, ...], most: int, branching: bool) -> Iterator[tuple[Fraction, list[int], list[int] | None]]:
    """Every draft of a pass with its probability: a chain, or two siblings drawn without replacement."""
    if branching and most == 2:
        law = proposal(prefix)
        for first, second in itertools.permutations(law, 2):
            yield law[first] * law[second] / (1 - law[first]), [first, second], [-1, -1]
        return
    level: dict[tuple[int, ...], Fraction] = {(): Fraction(1)}
    for _ in range(most):
        level = {(*x, token): mass * share for x, mass in level.items() for token, share in proposal((*prefix, *x)).items()}
    for x, mass in level.items():
        yield mass, list(x), [-1, *range(len(x) - 1)][: len(x)] if branching else None


def heads(tokens: Sequence[int], parents: Sequence[int] | None) -> list[tuple[int, ...]]:
    """The drafted ids before each node, and behind the last ones: of row 0, then of every node's row."""
    rows: list[tuple[int, ...]] = [()]
    for node, token in enumerate(tokens):
        rows.append((*rows[(node - 1 if parents is None else parents[node]) + 1], token))
    return rows


def passes(rule: Constraint, name: str, prefix: tuple[int, ...], state: Any) -> list[tuple[Fraction, Draft, torch.Tensor]]:
    """What the engine hands its rule at a prefix, for every draft."""
    made = []
    run = Running(None, None, (0, *prefix), 1, LONGEST, None, verifiers[name], K, (), None, frozenset([END]))  # type: ignore[arg-type]
    for mass, tokens, parents in drafts(prefix, min(K, run.left - 1), verifiers[name].trees):
        before = heads(tokens, parents)
        probs = torch.stack(
            [row((*prefix, *before[(node - 1 if parents is None else parents[node]) + 1])) for node in range(len(tokens))] or [row(())]
        )
        hung = None if parents is None else torch.tensor(parents, dtype=torch.int64)
        draft = Draft(torch.tensor(tokens, dtype=torch.int64), probs[: len(tokens)], torch.tensor(len(tokens)), hung)
        draft = usable(run, draft, VOCAB)
        kept = draft.tokens.tolist()
        rows = torch.stack([logits((*prefix, *head)) for head in before[: len(kept) + 1]])
        allowed = grammar.allowed(rule, state, draft, VOCAB)
        made.append((mass, draft, laws([Ask(rows, Controls(SamplingParams(), (), (END,)), prefix, kept, draft.parents, allowed)])[0]))
    return made


def emitted(name: str, found: list[tuple[Fraction, Draft, torch.Tensor]]) -> dict[tuple[int, ...], float]:
    """The law of what a pass emits: each draft's own, by the volumes of the boxes of uniforms, mixed by the drafts' masses."""
    total: dict[tuple[int, ...], float] = defaultdict(float)
    decide = batched(verifiers[name].decide)
    for _, group in itertools.groupby(sorted(found, key=lambda one: len(one[1].tokens)), key=lambda one: len(one[1].tokens)):
        same = list(group)
        nodes = len(same[0][1].tokens)
        tables = torch.stack([probs for _, _, probs in same])
        fields = [None if parts[0] is None else torch.stack(parts) for parts in zip(*(draft for _, draft, _ in same), strict=True)]

        def outcome(job: Any, points: Any, nodes: int = nodes, tables: Any = tables, fields: Any = fields) -> Any:
            at, u = torch.from_numpy(job), torch.from_numpy(points).to(torch.float64) / SIZE
            tokens = decide(Tape(u[:, :nodes], u[:, nodes]), tables[at], Draft(*(None if field is None else field[at] for field in fields))).tokens
            return ((tokens + 1) * (VOCAB + 1) ** torch.arange(tokens.shape[1])).sum(1).numpy()

        boxes = cells.find(outcome, len(same), nodes + 1, SIZE, probes=4)
        assert boxes.violations == []
        for (mass, _, _), part in zip(same, boxes.boxes, strict=True):
            for label, points in cells.masses(part, SIZE).items():
                digits = [label // (VOCAB + 1) ** place % (VOCAB + 1) - 1 for place in range(nodes + 1)]
                total[tuple(token for token in digits if token >= 0)] += float(mass * Fraction(points, SIZE ** (nodes + 1)))
    return total


def speculative(rule: Constraint, name: str) -> Answers:
    """Pass after pass, from every prefix at which one can begin."""
    done: Answers = defaultdict(float)
    open_: dict[tuple[int, ...], float] = {(): 1.0}
    while open_:
        prefix = min(open_, key=len)
        mass = open_.pop(prefix)
        for tokens, share in emitted(name, passes(rule, name, prefix, grammar.advanced(rule, rule.init, list(prefix)))).items():
            kept = tokens[: tokens.index(END) + 1] if END in tokens else tokens
            whole = (*prefix, *kept)
            ended = len(whole) >= LONGEST or whole[-1:] == (END,)
            place = done if ended else open_
            place[whole] = place.get(whole, 0.0) + mass * share
    return done


def distance(one: Answers, other: Answers) -> float:
    return sum(abs(one.get(answer, 0.0) - other.get(answer, 0.0)) for answer in {*one, *other}) / 2


@pytest.mark.parametrize("name", ["token", "block", "tree"])
@pytest.mark.parametrize("kind", GRAMMARS)
def test_whole_answers_have_the_law_of_plain_decoding(kind: str, name: str) -> None:
    wanted, found = plain(GRAMMARS[kind]), speculative(GRAMMARS[kind], name)
    assert len(wanted) >= 9
    assert sum(wanted.values()) == pytest.approx(1, abs=1e-14)
    assert distance(wanted, found) < 1e-12


@pytest.mark.parametrize("name", ["token", "block", "tree"])
def test_masks_that_are_a_row_late_are_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same figure of an engine that masks every drafted row by the state before it."""
    right = grammar.allowed

    def late(*arguments: Any) -> torch.Tensor:
        masks = right(*arguments)
        return torch.cat([masks[:1], masks[:-1]])

    monkeypatch.setattr(grammar, "allowed", late)
    rule = GRAMMARS["schema"]
    # What was let through would fail in the grammar, which here goes on as if nothing were.
    lenient = rule._replace(advance=lambda state, token: rule.advance(state, token) if rule.mask(state)[token] else state)
    assert distance(plain(rule), speculative(lenient, name)) > 1e-3
