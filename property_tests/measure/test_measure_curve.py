"""What is measured, with a clock that is given: quartiles, turns, warm-up, and passes that leave nothing behind. No assertion is on real time."""

import itertools
from collections.abc import Callable

import pytest
import torch

from specdec_fn import measure
from specdec_fn.cost.curve import smoothed
from specdec_fn.engine.attention import INVARIANT
from specdec_fn.measure import Stopwatch
from specdec_fn.measure.curve import points
from specdec_fn.models import Model, invariant, toy
from specdec_fn.random import key
from specdec_fn.sampling import SamplingParams
from specdec_fn.speculate import verifiers
from specdec_fn.speculate.proposers import draft_model, ngram

MODEL = toy.llama(key(1))


def counted(model: Model, passes: list[int]) -> Model:
    """The model, noting the rows and the first position of each pass."""

    def apply(params: object, tokens: torch.Tensor, positions: torch.Tensor, *rest: object) -> object:
        passes.append(len(tokens))
        assert positions.tolist() == list(range(int(positions[0]), int(positions[0]) + len(tokens)))
        assert int(positions[0]) == 9, "every pass stands behind the same context"
        return model.apply(params, tokens, positions, *rest)

    return model._replace(apply=apply)


def fake(passes: list[int], seconds: Callable[[int, int], float]) -> Callable[[], float]:
    """A clock on which a pass of r rows takes ``seconds(r, how many passes came before)``."""
    state = {"now": 0.0, "seen": 0}

    def clock() -> float:
        for place in range(state["seen"], len(passes)):
            state["now"] += seconds(passes[place], place)
        state["seen"] = len(passes)
        return state["now"]

    return clock


def test_quick_passes_are_the_curve() -> None:
    """One pass in a while takes a hundred times as long, and so do all of the first round: the curve does not see it."""
    passes: list[int] = []
    shots = points(17)
    clock = fake(passes, lambda rows, place: (1.0 + 0.1 * rows) * (100.0 if place < len(shots) or place % 37 == 0 else 1.0))
    found = measure.curve(counted(MODEL, passes), rows=17, context=10, repetitions=5, seconds=1e9, clock=clock)
    assert found.seconds == pytest.approx([1.0 + 0.1 * rows for rows in range(1, 18)])
    assert found.draft == 0.0
    assert len(passes) == 6 * len(shots)
    rounds = [passes[start : start + len(shots)] for start in range(0, len(passes), len(shots))]
    assert all(sorted(one) == list(shots) for one in rounds)
    assert all(one == other[::-1] for one, other in itertools.pairwise(rounds)), "the order is turned round"


def test_a_curve_never_falls() -> None:
    passes: list[int] = []
    times = {1: 1.0, 2: 2.0, 3: 1.0, 4: 4.0}
    found = measure.curve(counted(MODEL, passes), rows=4, context=10, clock=fake(passes, lambda rows, place: times[rows]))
    assert found.seconds == pytest.approx(smoothed(list(times.values()))) == (1.0, 1.5, 1.5, 4.0)


def test_no_round_begins_after_its_time() -> None:
    passes: list[int] = []
    measure.curve(counted(MODEL, passes), rows=2, context=10, repetitions=50, seconds=10.0, clock=fake(passes, lambda rows, place: 2.0))
    assert len(passes) == 2 * 3  # the round that warms up, and two of 4 seconds each


def test_a_drafted_token_costs_a_pass_of_the_model_that_drafts_it() -> None:
    drafts: list[int] = []
    small = draft_model.proposer(counted(toy.llama(key(2)), drafts))
    found = measure.curve(MODEL, rows=2, context=10, repetitions=3, proposer=small, clock=fake(drafts, lambda rows, place: 0.25))
    assert found.draft == 0.25
    assert set(drafts) == {1}
    assert measure.curve(MODEL, rows=2, context=10, repetitions=1, proposer=ngram.proposer()).draft == 0.0


@pytest.mark.parametrize("bare", [False, True])
@pytest.mark.parametrize("context", [1, 256])
def test_every_kind_of_pass_is_measured(context: int, bare: bool) -> None:
    short = toy.llama(key(3), context=12)
    assert len(measure.curve(short, rows=40, context=context, repetitions=1, bare=bare).seconds) == 11
    settings = {"sampling": SamplingParams(0.7, top_k=5, repetition_penalty=1.2), "verifier": verifiers.all["block"]}
    assert len(measure.curve(invariant(short), rows=5, context=context, repetitions=1, bare=bare, attention=INVARIANT, **settings).seconds) == 5


@pytest.mark.parametrize(
    ("settings", "words"), [({"rows": 0}, "rows is 0"), ({"context": 0}, "context is 0"), ({"repetitions": 0}, "repetitions is 0")]
)
def test_bad_settings_are_refused(settings: dict[str, int], words: str) -> None:
    with pytest.raises(ValueError, match=f"{words}; expected 1 or more"):
        measure.curve(MODEL, **settings)
    with pytest.raises(ValueError, match="the model's context is 1"):
        measure.curve(toy.bigram(torch.eye(3), context=1))


def test_the_stopwatch_is_where_it_was() -> None:
    assert Stopwatch is measure.Stopwatch


def test_this_machine_has_a_ridge() -> None:
    found = measure.machine(4096.0, dtypes=("float32", "bfloat16"), repetitions=1)
    assert (found.name, [name for name, _ in found.compute]) == ("this", ["float32", "bfloat16"])
    assert found.bandwidth > 0
    assert all(rate > 0 for _, rate in found.compute)
