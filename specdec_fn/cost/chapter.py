"""Every figure of the book chapter from which this project started, on speculative decoding, and of its four challenges, recomputed.

They stand beside the digits that they are stated with.

The chapter's machine reads 2 TB/s and does 312 TFLOP/s, its model has 7 billion weights of 16 bits; a draft of K tokens is kept with
acceptance 0.7 a token and costs 0.05 of a pass a token. It cuts some numbers off instead of rounding them: those are held to 0.01.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

from specdec_fn.cost import queue, yields
from specdec_fn.cost.machines import Machine, ridge
from specdec_fn.cost.roofline import Pass, free_rows, of_pass, tokens_per_second
from specdec_fn.cost.shapes import SEVEN_B, key_value_bytes

__all__ = ["MACHINE", "Figure", "figures", "holds"]

MACHINE = Machine("chapter", 2e12, (("float16", 312e12),), 80e9)
ACCEPTANCE, COST = 0.7, 0.05
CUT = 0.01  # tolerance for numbers that the chapter cuts off


class Figure(NamedTuple):
    """One figure.

    Attributes:
        section: where it stands.
        name: what it is.
        value: recomputed: a number, or a tuple of numbers or words.
        stated: as the document has it: digits, or the tuple.
        tolerance: most distance from the stated number; 0 for what must be equal, and None for half a unit of its last digit.
    """

    section: str
    name: str
    value: float | tuple[int, ...] | tuple[str, ...]
    stated: str | tuple[int, ...] | tuple[str, ...]
    tolerance: float | None = None


def holds(figure: Figure) -> bool:
    """Whether a figure is what is stated.

    >>> holds(Figure("", "", 2.9412, "2.94")), holds(Figure("", "", 2.9412, "2.95")), holds(Figure("", "", (5, 6), (5, 6)))
    (True, False, True)
    """
    if isinstance(figure.value, tuple) or isinstance(figure.stated, tuple):
        return figure.value == figure.stated
    stated = float(figure.stated)
    if not math.isfinite(stated):
        return figure.value == stated
    digits, _, power = figure.stated.lower().partition("e")
    unit = 10.0 ** (int(power or 0) - len(digits.partition(".")[2]))
    return abs(figure.value - stated) <= (unit / 2 if figure.tolerance is None else figure.tolerance) * (1 + 1e-9)


def figures() -> tuple[Figure, ...]:
    """All of them, in the chapter's order.

    >>> all(holds(figure) for figure in figures())
    True
    """
    return (*_tokens(), *_best(), *_machine(), *_challenge_1(), *_challenge_2(), *_challenge_3(), *_challenge_4())


def _tokens() -> Iterator[Figure]:
    section = "tokens per pass, a = 0.7"
    stated = ["1", "1.7", "2.19", "2.533", "2.7731", "2.9412", "3.0588", "3.1412", "3.1988", "3.3010", "3.3256", "3.3333"]
    ks = (*range(9), 12, 16, math.inf)
    yield from (Figure(section, f"K = {k}", yields.tokens_per_pass(ACCEPTANCE, k), one) for k, one in zip(ks, stated, strict=True))
    at = {k: yields.tokens_per_pass(ACCEPTANCE, k) for k in (4, 8, 16)}
    yield Figure(section, "K = 8, cut off", at[8], "3.19", CUT)
    yield Figure(section, "K = 16, cut off", at[16], "3.32", CUT)
    yield Figure(section, "K = 8 over K = 4", at[8] - at[4], "0.4257")
    yield Figure(section, "K = 8 over K = 4, cut off", at[8] - at[4], "0.42", CUT)
    yield Figure(section, "half the text a = 0.9, half 0.5, K = 4", yields.mixture([0.9, 0.5], 4), "3.016")
    yield Figure(section, "constant a = 0.7, K = 4", at[4], "2.773")
    section = "over (1 + 0.05 K)"
    stated = ["1", "1.619", "1.9909", "2.2026", "2.3109", "2.352936", "2.352938", "2.3268", "2.2849", "2.0631", "1.8475"]
    yield from (Figure(section, f"K = {k}", yields.speed_up(ACCEPTANCE, k, COST), one) for k, one in zip(ks[:-1], stated, strict=True))
    yield Figure(section, "K = inf", yields.speed_up(ACCEPTANCE, math.inf, COST), "0")


def _best() -> Iterator[Figure]:
    section = "best K"
    ks, gains = (3, 4, 6, 8, 13, 21), ["1.63", "1.92", "2.35", "3.09", "4.67", "6.60"]
    for a, k, gain in zip((0.5, 0.6, ACCEPTANCE, 0.8, 0.9, 0.95), ks, gains, strict=True):
        found = yields.best(a, COST)
        yield Figure(section, f"a = {a}, c = 0.05", found.ks, (5, 6) if k == 6 else (k,))
        yield Figure(section, f"gain at a = {a}, c = 0.05", found.gain, gain)
    yield Figure(section, "a = 0.7, c = 0.02", yields.best(ACCEPTANCE, 0.02).ks, (8,))
    yield Figure(section, "a = 0.7, c = 0.1", yields.best(ACCEPTANCE, 0.1).ks, (4,))


def _machine() -> Iterator[Figure]:
    section, one = "the machine", of_pass(MACHINE, SEVEN_B)
    five = of_pass(MACHINE, SEVEN_B, rows=5)
    yield Figure(section, "compute of a token, us", 1e6 * one.compute, "44.87")
    yield Figure(section, "reading the weights, ms", 1e3 * one.memory, "7.0")
    yield Figure(section, "idle at 1 row, %", 100 * (1 - one.compute / one.memory), "99.36")
    yield Figure(section, "idle at 5 rows, %", 100 * (1 - five.compute / five.memory), "96.79")
    yield Figure(section, "ridge, FLOP a byte", ridge(MACHINE, "float16"), "156")
    yield Figure(section, "sequences of 5 rows below the ridge", ridge(MACHINE, "float16") / 5, "31.2")


# batch, rows of a sequence, and what is stated: intensity, compute ms, time over the 7.0 ms of reading, bound
_CHALLENGE_1 = (
    (1, 5, "5", ".224", "1", "memory"),
    (1, 6, "6", ".269", "1", "memory"),
    (32, 1, "32", "1.436", "1", "memory"),
    (31, 5, "155", "6.955", "1", "memory"),
    (32, 5, "160", "7.179", "1.026", "compute"),
    (32, 6, "192", "8.615", "1.231", "compute"),
    (64, 5, "320", "14.36", "2.05", "compute"),
)


def _challenge_1() -> Iterator[Figure]:
    section = "challenge 1"
    for batch, rows, intensity, compute, over, bound in _CHALLENGE_1:
        one, where = of_pass(MACHINE, SEVEN_B, batch=batch, rows=rows), f"batch {batch}, {rows} rows each"
        yield Figure(section, f"{where}: FLOP a byte", one.intensity, intensity)
        yield Figure(section, f"{where}: compute, ms", 1e3 * one.compute, compute)
        yield Figure(section, f"{where}: over reading", one.least / one.memory, over)
        yield Figure(section, f"{where}: bound", (one.bound,), (bound,))
    free = free_rows(MACHINE, SEVEN_B)
    yield Figure(section, "free rows of a pass", free, "156")
    yield Figure(section, "batch 32: largest free K", free // 32 - 1, "3")
    yield Figure(section, "sequences of 5 rows that are free", free // 5, "31")
    for k, stated in ((0, "4571"), (3, "11579"), (4, "12360"), (5, "10924")):
        one = of_pass(MACHINE, SEVEN_B, batch=32, rows=k + 1)
        yield Figure(section, f"batch 32, K = {k}: tokens/s", tokens_per_second(one, 32, yields.tokens_per_pass(ACCEPTANCE, k))[1], stated)
    yield Figure(section, "keys and values of a token, MiB", key_value_bytes(SEVEN_B) / 2**20, "0.5")
    for context, memory, intensity in ((512, "11.3", "99"), (2048, "24.2", "46")):
        one = of_pass(MACHINE, SEVEN_B, batch=32, rows=5, context=context)
        yield Figure(section, f"batch 32, 5 rows, context {context}: memory, ms", 1e3 * one.memory, memory)
        yield Figure(section, f"batch 32, 5 rows, context {context}: FLOP a byte", one.intensity, intensity)
        yield Figure(section, f"batch 32, 5 rows, context {context}: bound", (one.bound,), ("memory",))


def _challenge_2() -> Iterator[Figure]:
    section, one = "challenge 2", of_pass(MACHINE, SEVEN_B)
    gain = {k: yields.speed_up(ACCEPTANCE, k, COST) for k in (5, 6)}
    yield Figure(section, "K = 6 over K = 5", gain[6] - gain[5], "1.7e-6")
    row = one.compute / one.memory  # each row's products charged on top of the reading
    for k, stated in ((5, "2.2941"), (6, "2.2853")):
        yield Figure(section, f"K = {k}, compute added", yields.speed_up(ACCEPTANCE, k, COST, row), stated)
    yield Figure(section, "best K, compute added", yields.best(ACCEPTANCE, COST, row).ks, (5,))


def _challenge_3() -> Iterator[Figure]:
    for a, stated in ((0.5, "1.61"), (ACCEPTANCE, "2.31"), (0.9, "3.41")):
        yield Figure("challenge 3", f"K = 4, c = 0.05, a = {a}", yields.speed_up(a, 4, COST), stated)


# batch, graphs, speculate, and what is stated: service ms and load with 2 ms of launches a pass, latency ms with 2 ms and with none
_CHALLENGE_4 = (
    (False, False, False, "270.0", "1.08", "inf", "761.2"),
    (False, True, False, "210.0", ".84", "761.2", "761.2"),
    (True, False, False, "270.0", None, "270.0", "210.0"),
    (False, False, True, "116.8", ".467", "168.1", "116.8"),
    (True, True, False, "210.0", None, "210.0", "210.0"),
    (False, True, True, "90.9", ".363", "116.8", "116.8"),
    (True, False, True, "116.8", None, "116.8", "90.9"),
    (True, True, True, "90.9", None, "90.9", "90.9"),
)


def _challenge_4() -> Iterator[Figure]:
    section, load = "challenge 4", queue.Load()
    bare = load._replace(overhead=0.0)
    with_launches, without = queue.options(load), queue.options(bare)
    for batch, graphs, speculate, service, busy, two, none in _CHALLENGE_4:
        place = 4 * batch + 2 * graphs + speculate
        one, other = with_launches[place], without[place]
        where = " + ".join(name for name in ("batch", "graphs", "speculate") if getattr(one, name)) or "nothing"
        yield Figure(section, f"{where}: service, ms", 1e3 * one.service, service)
        if busy is not None:
            yield Figure(section, f"{where}: load", one.load, busy)
        yield Figure(section, f"{where}: latency, ms", 1e3 * one.latency, two)
        yield Figure(section, f"{where}: latency without launches, ms", 1e3 * other.latency, none)
    plain = queue.service(bare)
    yield Figure(section, "demand, tokens/s", load.rate * load.tokens, "120")
    yield Figure(section, "serial capacity, tokens/s", 1 / load.step, "142.9")
    yield Figure(section, "live requests with batching", load.rate * plain, ".84")
    yield from _paging(section)
    yield Figure(section, "order of the cures", queue.order(load), ("speculate", "batch", "launch overhead", "page"))
    gain = plain / queue.served_within(load.rate, plain)
    yield Figure(section, "speed-up at which speculation alone equals batching alone", gain, "1.573")
    yield Figure(section, "acceptance for that", yields.needed(gain, load.k, load.cost), ".484")
    yield Figure(section, "serial limit, requests/s", 1 / plain, "4.76")
    yield Figure(section, "serial limit with speculation, requests/s", 1 / queue.service(bare, speculate=True), "11.0")
    yield Figure(section, "limit of batch 32, requests/s", 32 / plain, "152")


def _paging(section: str) -> Iterator[Figure]:
    a_token, weights = key_value_bytes(SEVEN_B), _read().bytes
    free = MACHINE.memory - weights
    yield Figure(section, "keys and values of 230 tokens, GB", 230 * a_token / 1e9, ".12")
    yield Figure(section, "free memory, GB", free / 1e9, "66")
    yield Figure(section, "requests of 230 tokens that fit", free // (230 * a_token), "547")
    yield Figure(section, "padded to 2048 that fit", free // (2048 * a_token), "61")
    yield Figure(section, "padded to 2048 that fit in 40 GB", (40e9 - weights) // (2048 * a_token), "24")


def _read() -> Pass:
    return of_pass(MACHINE, SEVEN_B)
