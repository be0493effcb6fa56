"""Claims that hold exactly or not at all, about every rule but token verification: block, coupled, several drafts, trees.

For each first the algorithm, in fractions and from the mathematics alone, then the code that ships: by the volumes of the boxes of its tape, or,
for the race, by every point of a coarse grid of its noise.
"""

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import NamedTuple

import torch

from specdec_fn import random
from specdec_fn.speculate import Draft, race, verifiers
from specdec_proofs import block_rule, coupling, tree_rules
from specdec_proofs.bounds import efficiencies
from specdec_proofs.claim import Figure
from specdec_proofs.enumerate import Emitted, completed, joint, total_variation
from specdec_proofs.exact import GATES, name_of, small_worlds, within
from specdec_proofs.integrate import Measured, measure, measure_tree
from specdec_proofs.race_grid import chain_faults, expected_race_law, race_law
from specdec_proofs.siblings import k_seq as k_seq_rule
from specdec_proofs.worlds import (
    World,
    cold,
    declared_one_hot,
    greedy_draft,
    independent,
    mixed_tables,
    normalised,
    pair_reference,
    prefixes,
    softmax,
    stopping,
    toy,
)

__all__ = ["claims", "longer"]

TABLE = (  # arXiv 2403.10444: block efficiency on p = (1/3, 2/3), q reversed, K = 1..8
    ("token", (1.6667, 2.1111, 2.4074, 2.6049, 2.7366, 2.8244, 2.8829, 2.9220)),
    ("block", (1.6667, 2.2222, 2.6667, 3.0494, 3.3704, 3.6516, 3.8930, 4.1068)),
)
SLOW = "k_seq"  # it solves for its scale at every evaluation
LONGER = (SLOW, "multi_draft_without_replacement")  # the second is the rule of ``tree``, measured again under its own name
Task = tuple[str, str, Callable[[], Figure]]


class Branching(NamedTuple):
    """A verifier of trees: the rule on paper, and how siblings are drawn."""

    name: str
    algorithm: Callable[..., Emitted]
    replacement: bool


TREES = (
    Branching("tree", lambda world, branches: tree_rules.top_down(world, branches, replacement=False), False),
    Branching("traversal", lambda world, branches: tree_rules.traversal(world, branches, replacement=False), False),
    Branching("multi_draft_without_replacement", lambda world, branches: tree_rules.top_down(world, branches, replacement=False), False),
    Branching("multi_draft", lambda world, branches: tree_rules.top_down(world, branches, replacement=True), True),
    Branching("k_seq", lambda world, branches: tree_rules.top_down(world, branches, replacement=True, rule=k_seq_rule), True),
)


def claims() -> Iterator[Task]:
    """The claims, in reading order: name, gate, measurement.

    >>> next(claims())[:2]
    ('algorithm: law of block verification is p', 'TV == 0')
    """
    yield "algorithm: law of block verification is p", "TV == 0", _chains_on_paper(block_rule.block)
    yield "algorithm: law of coupled verification is p", "TV == 0", _chains_on_paper(coupling.coupled)
    for rule in TREES:
        yield f"algorithm: law of {rule.name} is p", "TV == 0", _trees_on_paper(rule)
    for name, wanted in TABLE:
        yield f"block efficiency of {name} on the toy, K = 1..8", "four decimals", _efficiency(name, wanted)
    worlds = {
        "soft q": softmax(0),
        "drafts declared one-hot": declared_one_hot(softmax(0)),
        "greedy drafts, one-hot": greedy_draft(softmax(0)),
        "drafts of varying length": stopping(softmax(0)),
    }
    for dtype, gate in GATES.items():
        for kind, world in worlds.items():
            yield f"code: block, joint TV, {name_of(dtype)}, V=6 K=3, {kind}", f"<= {gate:g}", _block(world, dtype, gate)
        yield f"code: block, joint TV, {name_of(dtype)}, zeros, one-hots, ties", f"<= {gate:g}", _block_tables(dtype, gate)
        for rule in TREES:
            if rule.name not in LONGER and dtype is torch.float64:
                yield _on_deep_trees(rule, dtype, gate)
            if rule.name != SLOW:
                yield _with_zeros(rule, dtype, gate)
    yield "code: every rule at temperature 0 is greedy", "TV == 0", _cold
    yield "code: every rule, mass on what p cannot produce", "== 0", _impossible
    for name in ("typical", "lenient"):
        yield f"code: {name}, first token's law against p plus its stated bias", "TV <= 1e-14, bias > 0", _biased(name)
    yield "code: traversal on chains is block", "TV == 0", _same_on_chains("traversal", "block")
    yield "code: tree on chains is token", "TV == 0", _same_on_chains("tree", "token")
    yield "code: coupled, points of the race won otherwise, V=3 B=4", "== 0", _race
    yield "code: coupled, verdicts that are not the winners of their rows", "== 0", _race_chains
    yield "keys: numbers of the race that occur twice, or stand on the tape", "== 0", _apart
    yield "keys: coupled tokens that differ from plain decoding", "== 0", _plain


def longer() -> Iterator[Task]:
    """The claims that take longer: name, gate, measurement.

    >>> next(longer())[:2]
    ('code: multi_draft_without_replacement, joint TV, float64, trees V=3 depth 2, 2 branches', '<= 1e-14')
    """
    for dtype, gate in GATES.items():
        yield from (_on_deep_trees(rule, dtype, gate) for rule in TREES if rule.name in LONGER or dtype is torch.float32)
        yield from (_with_zeros(rule, dtype, gate) for rule in TREES if rule.name == SLOW)


def _on_deep_trees(rule: Branching, dtype: torch.dtype, gate: float) -> Task:
    return f"code: {rule.name}, joint TV, {name_of(dtype)}, trees V=3 depth 2, 2 branches", f"<= {gate:g}", _tree(rule, dtype, gate)


def _with_zeros(rule: Branching, dtype: torch.dtype, gate: float) -> Task:
    return f"code: {rule.name}, joint TV, {name_of(dtype)}, trees with zeros, ties, one-hots", f"<= {gate:g}", _tree_tables(rule, dtype, gate)


def _chains_on_paper(algorithm: Callable[[World], Emitted]) -> Callable[[], Figure]:
    def measurement() -> Figure:
        worlds = small_worlds()
        worst = max(total_variation(completed(algorithm(world), world), joint(world)) for world in worlds)
        return Figure(float(worst), worst == 0, f"{len(worlds)} worlds, V <= 4, K <= 3, fractions, every sequence")

    return measurement


def _small_trees() -> list[World]:
    plain = [toy(), *(mixed_tables(seed, 3, 2) for seed in range(4))]
    return [*plain, *map(declared_one_hot, plain)]


def _trees_on_paper(rule: Branching) -> Callable[[], Figure]:
    def measurement() -> Figure:
        worlds = [(world, [2, 2]) for world in _small_trees()] + [(mixed_tables(seed, 4, 1), [3]) for seed in range(4)]
        worst = max(total_variation(completed(rule.algorithm(world, branches), world), joint(world)) for world, branches in worlds)
        return Figure(float(worst), worst == 0, f"{len(worlds)} worlds: depth 2 with 2 branches, depth 1 with 3; fractions")

    return measurement


def _efficiency(name: str, wanted: tuple[float, ...]) -> Callable[[], Figure]:
    def measurement() -> Figure:
        found = [float(getattr(one, name)) for one in efficiencies(range(1, len(wanted) + 1))]
        worst = max(abs(round(a, 4) - b) for a, b in zip(found, wanted, strict=True))
        return Figure(worst, worst < 1e-9, "emitted tokens a pass: " + " ".join(f"{value:.4f}" for value in found))

    return measurement


def _block(world: World, dtype: torch.dtype, gate: float) -> Callable[[], Figure]:
    return lambda: within(measure(verifiers.block.decide, world, dtype), gate)


def _block_tables(dtype: torch.dtype, gate: float) -> Callable[[], Figure]:
    def measurement() -> Figure:
        plain = [mixed_tables(seed) for seed in range(4)]
        return _worst([measure(verifiers.block.decide, world, dtype) for one in plain for world in (one, declared_one_hot(one), stopping(one))], gate)

    return measurement


def _tree(rule: Branching, dtype: torch.dtype, gate: float) -> Callable[[], Figure]:
    def measurement() -> Figure:
        found = measure_tree(verifiers.all[rule.name].decide, softmax(1, 3, 2), 2, dtype, replacement=rule.replacement, probes=16)
        return within(found, gate)

    return measurement


def _tree_tables(rule: Branching, dtype: torch.dtype, gate: float) -> Callable[[], Figure]:
    def measurement() -> Figure:
        decide = verifiers.all[rule.name].decide
        deep = [measure_tree(decide, world, 2, dtype, replacement=rule.replacement, probes=16) for world in _small_trees()[1:4]]
        one_hot = [measure_tree(decide, declared_one_hot(mixed_tables(7, 3, 2)), 2, dtype, replacement=rule.replacement, probes=16)]
        orders = [measure_tree(decide, mixed_tables(8, 3, 2), 2, dtype, replacement=rule.replacement, breadth_first=True, probes=16)]
        # In the last, what three rejections leave of p is what they leave of q: there the weights are all rounding.
        widest = [*(mixed_tables(seed, 4, 1) for seed in range(3)), independent([3, 3, 4], [9, 9, 22])]
        wide = [measure_tree(decide, world, 3, dtype, replacement=rule.replacement, probes=16) for world in widest]
        return _worst([*deep, *one_hot, *orders, *wide], gate)

    return measurement


def _worst(measured: list[Measured], gate: float) -> Figure:
    figure = within(max(measured, key=lambda one: one.tv), gate)
    sound = all(not one.violations and one.impossible == 0 for one in measured)
    return Figure(figure.value, figure.passed and sound, f"worst of {len(measured)} worlds")


def _cold() -> Figure:
    chains = [measure(verifiers.block.decide, cold(world), dtype) for world in (softmax(1, 4, 2), mixed_tables(2)) for dtype in GATES]
    trees = [
        measure_tree(verifiers.all[rule.name].decide, cold(world), 2, replacement=rule.replacement, probes=16)
        for rule in TREES
        for world in (softmax(1, 3, 1), mixed_tables(2, 3, 1), declared_one_hot(mixed_tables(2, 3, 2)))
    ]
    worst = max(one.tv for one in (*chains, *trees))
    sound = not any(one.violations for one in (*chains, *trees))
    return Figure(float(worst), worst == 0 and sound, f"{len(chains) + len(trees)} laws, one-hot target rows")


def _impossible() -> Figure:
    worlds = [mixed_tables(seed, 3, 2) for seed in range(6)]
    chains = [measure(verifiers.block.decide, world, torch.float32) for one in worlds for world in (one, declared_one_hot(one))]
    ones = [mixed_tables(seed, 4, 1) for seed in range(4)]
    trees = [
        measure_tree(verifiers.all[rule.name].decide, world, 2, torch.float32, replacement=rule.replacement, probes=16)
        for rule in TREES
        for world in ones
    ]
    worst = max(one.impossible for one in (*chains, *trees))
    sound = not any(one.violations for one in (*chains, *trees))
    return Figure(float(worst), worst == 0 and sound, f"{len(chains) + len(trees)} laws, float32; u = 0 is on the grid")


def _biased(name: str) -> Callable[[], Figure]:
    def measurement() -> Figure:
        world, rule = pair_reference(), verifiers.all[name]
        assert rule.bias is not None
        p, q = (torch.tensor([float(x) for x in law(())], dtype=torch.float64) for law in (world.target, world.draft))
        stated, found = rule.bias(p, q), [Fraction(0)] * world.vocab
        measured = measure(rule.decide, world)
        for sequence, mass in measured.emitted.items():
            found[sequence[0]] += mass
        off = sum(abs(float(mass) - a - b) for mass, a, b in zip(found, p.tolist(), stated.tolist(), strict=True)) / 2
        bias = float(stated.abs().sum() / 2)
        passed = off <= GATES[torch.float64] and bias > 0 and not measured.violations
        return Figure(off, passed, f"not lossless, as stated: TV {bias:.4f} on the reference pair, a function of p, q and the threshold")

    return measurement


def _same_on_chains(name: str, other: str) -> Callable[[], Figure]:
    def measurement() -> Figure:
        worlds = [softmax(4, 3, 3), mixed_tables(5), declared_one_hot(mixed_tables(6, 3, 2)), stopping(softmax(5, 3, 3))]
        laws = [[measure(verifiers.all[which].decide, world).emitted for which in (name, other)] for world in worlds]
        worst = max(total_variation(*pair) for pair in laws)
        return Figure(float(worst), worst == 0, f"{len(worlds)} worlds, emitted laws as coded in float64")

    return measurement


def _race() -> Figure:
    laws = [normalised(row) for row in ([1, 1, 1], [1, 2, 3], [5, 0, 2], [0, 0, 1], [9, 1, 1], [3, 3, 1], [1, 0, 0], [2, 7, 7])]
    off = points = 0
    for p in laws:
        wanted = expected_race_law(p)
        for dtype in GATES:
            for drafted in ((), (1, 2)):
                found = race_law(verifiers.coupled.decide, p, drafted=drafted, dtype=dtype)
                off += sum(abs(a - b) for a, b in zip(found, wanted, strict=True))
                points += sum(wanted)
    return Figure(float(off), off == 0, f"{points:,} points of {len(laws)} laws, both dtypes; winners by integer powers, lowest id on ties")


def _race_chains() -> Figure:
    found = [chain_faults(verifiers.coupled.decide, world) for world in (toy(1), toy(2), mixed_tables(1, 3, 2), mixed_tables(4, 3, 1))]
    faults, total = (sum(column) for column in zip(*found, strict=True))
    return Figure(float(faults), faults == 0, f"{total:,} verdicts, prefix-dependent rows, every draft of 1 or 2 tokens")


def _apart() -> Figure:
    key, k, vocab = random.key(9), 3, 50
    positions = [race.noise(key, position, vocab).tolist() for position in range(40)]
    tapes = [verifiers.token.tape(key, k, vocab, position=base) for base in range(40)]
    uniforms = [number for tape in tapes for number in (*tape.accept.tolist(), float(tape.final))]
    exponential = torch.tensor([number for row in positions for number in row], dtype=torch.float64)
    numbers = [*(-torch.expm1(-exponential)).tolist(), *uniforms]
    twice = len(numbers) - len({round(number * 2**48) for number in numbers})
    moved = sum(not torch.equal(race.tape(key, k, vocab, position=base).noise[1], race.noise(key, base + 1, vocab)) for base in range(40))
    return Figure(float(twice + moved), twice + moved == 0, f"{len(numbers):,} numbers of 40 positions and passes, and 40 rows read at both ends")


def _plain() -> Figure:
    """Verdicts of passes with soft, one-hot and branching drafts against the same positions decoded one at a time."""
    rule, world, n, k = verifiers.coupled.verifier, softmax(6, 5, 3), 80, 3
    table = {
        prefix: torch.tensor([float(x) for x in world.target(prefix)], dtype=torch.float64)
        for length in range(4)
        for prefix in prefixes(world, length)
    }
    keys = random.split(random.key(8), n)
    differ = 0
    for i in range(n):
        alone: tuple[int, ...] = ()
        for place in range(k + 1):
            alone += tuple(rule.verify(keys[i], table[alone][None], _drafted((), None), position=7 + place).tokens.tolist())
        guess = tuple(int(x) for x in torch.randint(0, 5, (k,), generator=torch.Generator().manual_seed(i)))
        for tokens, parents in ((guess, None), (alone[:k], None), ((guess[0], alone[0], alone[1]), [-1, -1, 1]), (alone[:1], None)):
            lines: list[tuple[int, ...]] = [()]
            for node, token in enumerate(tokens):
                lines.append((*lines[(node - 1 if parents is None else parents[node]) + 1], token))
            told = rule.verify(keys[i], torch.stack([table[line] for line in lines]), _drafted(tokens, parents), position=7)
            emitted = told.tokens[: int(told.emitted)].tolist()
            differ += emitted != list(alone[: len(emitted)])
    return Figure(float(differ), differ == 0, f"{4 * n} passes: wrong, right, branching and short drafts")


def _drafted(tokens: tuple[int, ...], parents: list[int] | None) -> Draft:
    shape = None if parents is None else torch.tensor(parents, dtype=torch.int64)
    return Draft(torch.tensor(tokens, dtype=torch.int64), None, torch.tensor(len(tokens)), shape)
