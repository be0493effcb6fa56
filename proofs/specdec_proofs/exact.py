"""Claims that hold exactly or not at all, about token verification and what surrounds every rule: no sampling in this room.

First the algorithm, in fractions. Then the code that ships, by the volumes of the boxes of its tape. Then the sampler, the keys, the greedy rule.
The other rules are in ``exact_rules``, what must be rejected in ``killed``.
"""

from collections.abc import Callable, Iterator
from fractions import Fraction

import numpy as np
import torch

from specdec_fn import random
from specdec_fn.sampling import draw
from specdec_fn.speculate import Draft, batched, verifiers
from specdec_fn.speculate.tape import DRAFT, address
from specdec_proofs.claim import Figure
from specdec_proofs.enumerate import (
    Emitted,
    completed,
    emitted_lengths,
    expected_emitted,
    greedy,
    is_lossless,
    joint,
    token,
    token_acceptance,
    total_variation,
)
from specdec_proofs.integrate import Measured, law, measure
from specdec_proofs.worlds import (
    Law,
    World,
    chain_reference,
    cold,
    declared_one_hot,
    greedy_draft,
    mixed_tables,
    normalised,
    softmax,
    stopping,
    toy,
)

__all__ = ["GATES", "because", "claims", "name_of", "small_worlds", "within"]

GATES = {torch.float64: 1e-14, torch.float32: 1e-6}  # measured 1e-16 and 1e-7; any fault that matters is far above
Task = tuple[str, str, Callable[[], Figure]]


def claims() -> Iterator[Task]:
    """The exact claims, in reading order: name, gate, measurement.

    >>> next(claims())[:2]
    ('algorithm: law of token verification is p', 'TV == 0')
    """
    yield "algorithm: law of token verification is p", "TV == 0", _algorithm
    yield "algorithm: mean accepted equals its formula", "difference == 0", _acceptance
    yield "algorithm and code: mean emitted on the toy", "== 541/240", _toy
    worlds = {
        "soft q": softmax(0),
        "drafts declared one-hot": declared_one_hot(softmax(0)),
        "greedy drafts, one-hot": greedy_draft(softmax(0)),
        "drafts of varying length": stopping(softmax(0)),
    }
    for dtype, gate in GATES.items():
        for kind, world in worlds.items():
            yield f"code: joint TV, {name_of(dtype)}, V=6 K=3, {kind}", f"<= {gate:g}", _shipped(world, dtype, gate)
        yield f"code: joint TV, {name_of(dtype)}, zeros, one-hots, ties", f"<= {gate:g}", _tables(dtype, gate)
    yield "code: mass on what p cannot produce", "== 0", _impossible
    yield "code: token at temperature 0 is greedy", "TV == 0", _cold
    yield "code: greedy rule, mass off the greedy sequence", "== 0", _greedy
    for dtype, gate in ((torch.float64, 1e-13), (torch.float32, 1e-5)):
        yield f"code: draw, worst row TV, {name_of(dtype)}, V=64", f"<= {gate:g}", _draw(dtype, gate)
    yield "keys: threefry known answers that differ", "== 0", _threefry
    yield "keys: keyed verdicts that differ from the injected tape", "== 0", _keyed
    yield "keys: numbers of a pass that occur twice", "== 0", _disjoint


def small_worlds() -> list[World]:
    """Rational worlds for the algorithm: every kind of proposer over tables with zeros, ties, one-hots and disjoint supports.

    >>> len(small_worlds())
    108
    """
    plain = [toy(), toy(3), chain_reference(), *(mixed_tables(seed, vocab, k) for seed in range(6) for vocab, k in ((3, 2), (4, 2), (3, 3), (4, 3)))]
    return [*plain, *map(declared_one_hot, plain), *map(greedy_draft, plain), *map(stopping, plain)]


def _algorithm() -> Figure:
    worlds = small_worlds()
    worst = max(total_variation(completed(token(world), world), joint(world)) for world in worlds)
    same = all(is_lossless(token(world), world) for world in worlds)
    return Figure(float(worst), same and worst == 0, f"{len(worlds)} worlds, V <= 4, K <= 3, fractions, every sequence compared with ==")


def _acceptance() -> Figure:
    worlds = [world for world in small_worlds() if world.soft and "varying" not in world.name]
    worst = max(abs(expected_emitted(token(world)) - 1 - token_acceptance(world)) for world in worlds)
    return Figure(float(worst), worst == 0, f"{len(worlds)} worlds")


def _toy() -> Figure:
    exact, wanted = token(toy()), {1: Fraction(1, 4), 2: Fraction(59, 240), 3: Fraction(121, 240)}
    measured = measure(verifiers.token.decide, toy())
    mean = expected_emitted(measured.emitted)
    passed = emitted_lengths(exact) == wanted and expected_emitted(exact) == Fraction(541, 240) and abs(mean - Fraction(541, 240)) < 1e-15
    return Figure(float(mean), passed and not measured.violations, "lengths {1: 1/4, 2: 59/240, 3: 121/240} in fractions; the code's mean to 1e-15")


def _shipped(world: World, dtype: torch.dtype, gate: float) -> Callable[[], Figure]:
    def measurement() -> Figure:
        return within(measure(verifiers.token.decide, world, dtype), gate)

    return measurement


def _tables(dtype: torch.dtype, gate: float) -> Callable[[], Figure]:
    def measurement() -> Figure:
        plain = [mixed_tables(seed) for seed in range(4)]
        worlds = [*plain, *map(declared_one_hot, plain), *map(stopping, plain)]
        measured = [measure(verifiers.token.decide, world, dtype) for world in worlds]
        worst = max(measured, key=lambda one: one.tv)
        figure = within(worst, gate)
        sound = all(not one.violations and one.impossible == 0 for one in measured)
        return Figure(figure.value, figure.passed and sound, f"worst of {len(worlds)} worlds, V=4 K=3")

    return measurement


def _impossible() -> Figure:
    plain = [mixed_tables(seed, 3, 2) for seed in range(6)]
    worlds = [world for one in plain for world in (one, declared_one_hot(one))]
    measured = [measure(verifiers.token.decide, world, torch.float32) for world in worlds]
    worst = max(one.impossible for one in measured)
    sound = not any(one.violations for one in measured)
    return Figure(float(worst), worst == 0 and sound, f"{len(measured)} laws, float32; u = 0 is on the grid, so acceptance must be strict")


def _cold() -> Figure:
    worlds = [cold(softmax(1, 4, 2)), cold(declared_one_hot(softmax(1, 4, 2))), cold(mixed_tables(2))]
    measured = [measure(verifiers.token.decide, world, dtype) for world in worlds for dtype in GATES]
    worst = max(one.tv for one in measured)
    return Figure(float(worst), worst == 0 and not any(one.violations for one in measured), f"{len(measured)} laws, one-hot target rows")


def _greedy() -> Figure:
    off, far, sound = Fraction(0), Fraction(0), True
    for world in (softmax(2, 5, 3), stopping(softmax(2, 5, 3)), mixed_tables(3), mixed_tables(4, 3, 2)):
        measured, wanted = measure(verifiers.greedy.decide, world), greedy(world)
        off = max(off, sum((mass for sequence, mass in measured.emitted.items() if sequence not in wanted), Fraction(0)))
        far = max(far, total_variation(measured.emitted, wanted))
        sound &= not measured.violations
    return Figure(float(off), off == 0 and far <= GATES[torch.float64] and sound, "4 worlds with ties, lowest id first, float64; stops where it must")


def _draw(dtype: torch.dtype, gate: float) -> Callable[[], Figure]:
    def measurement() -> Figure:
        logits = torch.from_numpy(np.random.default_rng(5).normal(size=(64, 64))) * torch.linspace(0.5, 6, 64)[:, None]
        rows = torch.softmax(logits.to(dtype), -1)
        rows[::4, ::3] = 0
        laws, violations, _ = law(rows, draw)
        worst, never = Fraction(0), True
        for found, row in zip(laws, rows.tolist(), strict=True):
            worst = max(worst, total_variation(_indexed(found), _indexed(normalised(row))))
            never &= not any(share for share, p in zip(found, row, strict=True) if p == 0)
        return Figure(float(worst), worst <= gate and never and not violations, f"{len(rows)} rows, a quarter with zeros; zeros never drawn: {never}")

    return measurement


def _threefry() -> Figure:
    from specdec_kernels.threefry import threefry2x32

    answers = {  # counter, key, output: the generator's published vectors
        (0x00000000, 0x00000000, 0x00000000, 0x00000000): (0x6B200159, 0x99BA4EFE),
        (0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF): (0x1CB996FC, 0xBB002BE7),
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344): (0xC4923A9C, 0x483DF7A0),
    }
    wrong = 0
    for (c0, c1, k0, k1), output in answers.items():
        wrong += tuple(int(word) for word in threefry2x32(*(torch.tensor(word) for word in (k0, k1, c0, c1)))) != output
    wrong += random.key_data(random.split(random.key(0))).tolist() != [[0x6B200159, 0x99BA4EFE], [0x375F238F, 0xCDDB151D]]
    wrong += random.bits(random.key(42), (4,)).tolist() != [0x7D1C13A2, 0xAE0730D9, 0x9DC3F9F9, 0x8F9EC1D7]
    wrong += random.key_data(random.fold_in(random.key(0), 7)).tolist() != [0xA1EF7A4D, 0x116EB6B3]
    return Figure(float(wrong), wrong == 0, "3 vectors of threefry2x32-20; split, bits and fold_in as jax.random gives them")


def _keyed() -> Figure:
    verifier, n, k, vocab, differ = verifiers.token.verifier, 200, 3, 6, 0
    rows = torch.softmax(torch.from_numpy(np.random.default_rng(6).normal(size=(n, 2 * k + 1, vocab))) * 2, -1)
    tokens = torch.from_numpy(np.random.default_rng(7).integers(0, vocab, (n, k)))
    drafts = Draft(tokens, rows[:, k + 1 :], torch.full((n,), k))
    keys = random.split(random.key(8), n)
    tapes = torch.func.vmap(lambda key: verifier.tape(key, k, vocab, position=9))(keys)
    lifted = batched(verifier.decide)(tapes, rows[:, : k + 1], drafts)
    for i in range(n):
        alone = verifier.verify(keys[i], rows[i, : k + 1], Draft(tokens[i], rows[i, k + 1 :], torch.tensor(k)), position=9)
        differ += any(not torch.equal(a, b[i]) for a, b in zip(alone, lifted, strict=True))
    return Figure(float(differ), differ == 0, f"{n} keys: verify one at a time, decide on the tape, all at once")


def _disjoint() -> Figure:
    key, k, vocab = random.key(9), 8, 50
    numbers: list[float] = []
    for base in range(40):
        tape = verifiers.token.tape(key, k, vocab, position=base)
        numbers += [*random.uniform(address(key, DRAFT, base), (k,)).tolist(), *tape.accept.tolist(), float(tape.final)]
    twice = len(numbers) - len(set(numbers))
    return Figure(float(twice), twice == 0, f"{len(numbers)} draft, accept and final numbers of 40 passes")


def within(measured: Measured, gate: float) -> Figure:
    """The figure of a measured law: its total variation, which must not exceed the gate.

    >>> within(measure(verifiers.token.decide, toy(1)), 1e-14).passed
    True
    """
    passed = measured.tv <= gate and not measured.violations and sum(measured.emitted.values()) == 1
    detail = f"{measured.evaluations:,} evaluations; mean emitted {float(expected_emitted(measured.emitted)):.4f}"
    return Figure(float(measured.tv), passed, because(measured, detail))


def because(measured: Measured, otherwise: str) -> str:
    """What contradicts a measurement, or else what there is to say of it.

    >>> because(measure(verifiers.token.decide, toy(1)), "measured")
    'measured'
    """
    return "; ".join(measured.violations) or otherwise


def _indexed(one: Law) -> Emitted:
    return {(token,): mass for token, mass in enumerate(one)}


def name_of(dtype: torch.dtype) -> str:
    """The dtype as people write it.

    >>> name_of(torch.float32)
    'float32'
    """
    return str(dtype).removeprefix("torch.")
