"""The chapter's arithmetic against ways to get the same numbers that share no formula with it: sums, roots, and a queue played through."""

import itertools
import math
import random
from collections.abc import Sequence

import pytest
from scipy import optimize
from torch.utils._pytree import tree_leaves as leaves

from specdec_fn.cost import chapter, curve, machines, queue, roofline, shapes, yields
from specdec_fn.cost.chapter import Figure, holds
from specdec_fn.cost.curve import Curve
from specdec_fn.models import toy
from specdec_fn.random import key


def summed(a: float, k: int) -> float:
    """1 + a + ... + a^K, term by term."""
    total, power = 0.0, 1.0
    for _ in range(k + 1):
        total, power = total + power, power * a
    return total


def test_every_figure_of_the_chapter_is_as_stated() -> None:
    wrong = [(figure.section, figure.name, figure.value, figure.stated) for figure in chapter.figures() if not holds(figure)]
    assert wrong == []
    assert len(chapter.figures()) >= 141


@pytest.mark.parametrize("place", range(0, 141, 5))
def test_a_figure_that_is_off_is_seen(place: int) -> None:
    """Each is doubled, or has an element too many."""
    figure = chapter.figures()[place]
    value = (*figure.value, "x") if isinstance(figure.value, tuple) else 2 * figure.value + 1  # type: ignore[arg-type]
    assert not holds(figure._replace(value=value)) or figure.stated == "inf"


def test_what_holds() -> None:
    assert holds(Figure("", "", 3.1988, "3.19", 0.01))
    assert not holds(Figure("", "", 3.2001, "3.19", 0.01))
    assert not holds(Figure("", "", 3.1988, "3.19"))
    assert holds(Figure("", "", 1.65e-6, "1.7e-6"))
    assert not holds(Figure("", "", 1.6e-6, "1.7e-6"))
    assert holds(Figure("", "", math.inf, "inf"))
    assert not holds(Figure("", "", 1e9, "inf"))
    assert not holds(Figure("", "", math.inf, "761.2"))
    assert not holds(Figure("", "", (5,), (5, 6)))
    assert not holds(Figure("", "", math.nan, "1"))


@pytest.mark.parametrize("a", [0.0, 0.3, 0.7, 0.95, 1.0])
def test_tokens_of_a_pass_are_the_sum(a: float) -> None:
    for k in range(20):
        assert yields.tokens_per_pass(a, k) == pytest.approx(summed(a, k), rel=1e-12)


def test_the_tie_is_a_set_and_a_charge_for_rows_breaks_it() -> None:
    gains = [summed(0.7, k) / (1 + 0.05 * k) for k in range(20)]
    assert gains.index(max(gains)) == 6
    assert yields.best(0.7, 0.05).ks == (5, 6)
    assert yields.best(0.7, 0.05, tie=1e-9).ks == (6,)
    assert yields.best(0.7, 0.05, 14e9 / 312e12 / 7e-3).ks == (5,)
    assert yields.best(0.0, 0.05).ks == (0,)


def test_the_acceptance_that_is_needed_is_the_root() -> None:
    root = optimize.brentq(lambda a: summed(a, 4) / 1.2 - 1.573, 0.01, 0.99)
    assert yields.needed(1.573, 4, 0.05) == pytest.approx(root, abs=1e-9)
    assert math.isnan(yields.needed(6.0, 4, 0.0))


def test_the_wait_is_that_of_a_queue_played_through() -> None:
    """Lindley's recursion over arrivals of a Poisson process."""
    numbers, waiting, total, count = random.Random(3), 0.0, 0.0, 200_000
    for _ in range(count):
        total += waiting
        waiting = max(waiting + 0.1168 - numbers.expovariate(4), 0.0)
    assert queue.latency(4, 0.1168) == pytest.approx(0.1168 + total / count, rel=0.02)
    assert queue.latency(4, 0.25) == math.inf


@pytest.mark.parametrize(("rate", "wanted"), [(4.0, 0.21), (1.0, 3.0), (100.0, 0.001)])
def test_the_service_time_for_a_latency_has_that_latency(rate: float, wanted: float) -> None:
    assert queue.latency(rate, queue.served_within(rate, wanted)) == pytest.approx(wanted)


def test_any_one_cure_makes_the_service_stable() -> None:
    found = {(one.batch, one.graphs, one.speculate): one for one in queue.options(queue.Load())}
    assert len(found) == 8
    assert [marks for marks, one in found.items() if math.isinf(one.latency)] == [(False, False, False)]
    assert queue.order(queue.Load(acceptance=0.4))[0] == "batch"


def test_the_weights_of_a_shape_are_those_of_the_model() -> None:
    model = toy.llama(key(0))
    norms = sum(part.numel() for part in leaves(model.params) if part is not None and part.dim() == 1)
    looked_up = 0 if model.config.tied else model.params.embedding.numel()
    assert shapes.of(model.config).weights == sum(part.numel() for part in leaves(model.params) if part is not None) - norms - looked_up


def test_a_pass_by_hand() -> None:
    machine = machines.Machine("small", 100.0, (("float32", 1000.0), ("bfloat16", 4000.0)))
    shape = shapes.Shape(50, 2, 1, 4, heads=3)
    one = roofline.of_pass(machine, shape, dtype="float32", batch=2, rows=3, context=5)
    key_values = 2 * 5 * (2 * 2 * 1 * 4) * 4
    attention = 2 * 2 * (3 * 4) * 5 * 2  # scores and weighted values, 2 FLOP each, over 2 layers
    assert (one.bytes, one.flop) == (50 * 4 + key_values, 6 * (100 + attention))
    assert (one.memory, one.compute) == (one.bytes / 100, one.flop / 1000)
    assert (one.least, one.most, one.bound) == (max(one.memory, one.compute), one.memory + one.compute, "memory")
    assert roofline.of_pass(machine, shape, dtype="q4_0").bytes == 50 * 4.5 / 8
    assert roofline.of_pass(machine, shape, dtype="q4_0").compute == 100 / 4000
    assert roofline.tokens_per_second(one, 2, 1.5, draft=1.0) == (3 / (one.most + 1), 3 / (one.least + 1))


@pytest.mark.parametrize(("batch", "context"), [(1, 0), (8, 100), (32, 2048)])
def test_free_rows_are_those_before_products_take_longer(batch: int, context: int) -> None:
    machine = machines.known("H100")
    free = roofline.free_rows(machine, shapes.SEVEN_B, batch=batch, context=context)
    one = roofline.of_pass(machine, shapes.SEVEN_B, batch=batch, context=context)
    a_row = one.compute / one.rows
    assert free * a_row <= one.memory < (free + 1) * a_row


REFUSED: Sequence[tuple[object, str]] = (
    (lambda: machines.known("B200"), "the machine is 'B200'; expected one of A100, H100, H200, or this"),
    (lambda: machines.bits("float3"), "the dtype is 'float3'; expected one of float32"),
    (lambda: machines.flops(machines.Machine("odd", 1.0, (("int4", 1.0),)), "float32"), "machine 'odd' states FLOP/s for int4"),
    (lambda: yields.tokens_per_pass(1.1, 2), "acceptance is 1.1"),
    (lambda: yields.tokens_per_pass(0.5, -1), "k is -1"),
    (lambda: yields.speed_up(0.5, 1, -0.1), "received cost -0.1"),
    (lambda: yields.best(0.5, 0.1, most=-1), "most is -1"),
    (lambda: yields.mixture([], 1), "acceptances is empty"),
    (lambda: queue.latency(-1, 1), "a rate of -1"),
    (lambda: queue.served_within(0, 1), "a rate of 0"),
    (lambda: roofline.of_pass(machines.known("A100"), shapes.SEVEN_B, rows=0), "rows is 0; expected 1 or more"),
    (lambda: roofline.of_pass(machines.known("A100"), shapes.SEVEN_B, context=-1), "context is -1; expected 0 or more"),
    (lambda: Curve(()), "seconds are"),
    (lambda: Curve((1.0, 0.0)), "seconds are"),
    (lambda: Curve((1.0,), -1.0), "draft is -1.0"),
    (lambda: Curve((math.nan,)), "seconds are"),
    (lambda: curve.seconds(Curve((1.0,)), 0), "rows is 0"),
    (lambda: curve.rates(Curve((1.0,)), 1.5, 2), "acceptance is 1.5"),
    (lambda: curve.rates(Curve((1.0,)), (), 2), "acceptance is ()"),
    (lambda: curve.best_k(Curve((1.0,)), 0.5, -1), "most is -1"),
    (lambda: curve.interpolated({1: 1.0}, 3), "the measured rows are [1]"),
    (lambda: curve.from_json([1, 2]), "the curve is [1, 2]"),
    (lambda: curve.from_json({"seconds": ["x"]}), "the curve is"),
    (lambda: curve.from_json({"curve": None}), "the curve is"),
)


@pytest.mark.parametrize(("refused", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_bad_input_is_refused_in_one_sentence(refused: object, words: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (the words are looked at below)
        refused()  # type: ignore[operator]
    assert words in str(caught.value)
    assert "expected" in str(caught.value)
    assert "\n" not in str(caught.value)


# Curves


def test_the_best_k_is_that_of_every_k_played_out() -> None:
    """Expected tokens by enumerating which drafted token is the first that is rejected."""
    times, by_place = (1.0, 1.1, 1.3, 2.4, 2.5, 2.6), (0.9, 0.5, 0.8)
    kept = [by_place[min(place, 2)] for place in range(9)]
    expected = []
    for k in range(9):
        tokens = sum(math.prod(kept[:count]) * (1 - kept[count] if count < k else 1.0) * (count + 1) for count in range(k + 1))
        time = times[k] if k < 6 else 2.6 + (2.6 - 1.0) / 5 * (k - 5)
        expected.append(tokens / (time + 0.1 * k))
    found = curve.rates(Curve(times, draft=0.1), by_place, 8)
    assert found == pytest.approx(expected)
    assert curve.best_k(Curve(times, draft=0.1), by_place, 8) == expected.index(max(expected))


def test_a_flat_curve_drafts_all_and_a_steep_one_nothing() -> None:
    flat, steep = Curve((1.0,) * 9), Curve(tuple(1.0 + row for row in range(9)))
    assert curve.best_k(flat, 0.1, 8) == 8
    assert curve.best_k(steep, 0.9, 8) == 0
    assert curve.best_k(flat, 0.0, 8) == 0


@pytest.mark.parametrize("times", [[3.0, 1.0, 2.0], [1.0, 5.0, 4.0, 3.0, 9.0, 8.0], [1.0], [2.0, 2.0], [5.0, 4.0, 3.0]])
def test_smoothed_times_are_the_nearest_that_never_fall(times: list[float]) -> None:
    """Against the minimum over every way to cut the times into pools of equal value."""
    count = len(times)
    best = (math.inf, ())
    for cuts in itertools.product((False, True), repeat=count - 1):
        edges = [0, *(place + 1 for place, cut in enumerate(cuts) if cut), count]
        means = [sum(times[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
        if means == sorted(means):
            line = tuple(mean for mean, (a, b) in zip(means, itertools.pairwise(edges), strict=True) for _ in range(a, b))
            best = min(best, (sum((one - other) ** 2 for one, other in zip(times, line, strict=True)), line))
    assert curve.smoothed(times) == pytest.approx(best[1])


def test_weights_move_the_mean_of_a_pool() -> None:
    assert curve.smoothed([3.0, 1.0], [1.0, 3.0]) == (1.5, 1.5)


def test_between_measured_rows_times_lie_on_lines() -> None:
    assert curve.interpolated({1: 1.0, 2: 3.0, 5: 6.0, 6: 5.0, 9: 0.1}, 6) == pytest.approx((1.0, 3.0, 3 + 2.5 / 3, 3 + 5 / 3, 5.5, 5.5))


def test_past_the_last_row_the_slope_goes_on() -> None:
    assert curve.seconds(Curve((1.0, 1.0, 4.0)), 7) == pytest.approx(4.0 + 4 * 1.5)
    assert curve.seconds(Curve((2.0,)), 3) == 6.0
    assert curve.seconds(Curve((3.0, 2.0)), 9) == 2.0


def test_a_curve_comes_back_from_json() -> None:
    one = Curve((0.1, 0.1 + 2**-55, 1 / 3), draft=1e-3)
    assert curve.from_json(curve.to_json(one)) == one
    assert curve.from_json({"tokens": [], "curve": curve.to_json(one)}) == one
