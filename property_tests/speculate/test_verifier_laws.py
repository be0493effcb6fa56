"""The law of every verifier, measured exactly on the smallest worlds that show everything, and held against the same rule in fractions.

Quick and sharp, for mutation testing (docs/mutation.md): what is emitted must have the law of the rule itself, not only one that completes to
the target's, so a mutant that loses acceptance is seen as well as one that loses exactness.
"""

import functools
import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import torch

from specdec_fn.random import Key, bits, fold_in, key, uniform
from specdec_fn.speculate import Draft, Race, Tape, race, tape, verifiers
from specdec_fn.speculate.follow import follow
from specdec_fn.speculate.verifiers import k_seq as k_seq_room
from specdec_proofs import enumerate as rational
from specdec_proofs import lossy, siblings
from specdec_proofs.block_rule import block
from specdec_proofs.enumerate import Emitted, total_variation
from specdec_proofs.integrate import measure, measure_tree
from specdec_proofs.race_grid import chain_faults, expected_race_law, race_law
from specdec_proofs.tree_rules import top_down, traversal
from specdec_proofs.worlds import World, cold, declared_one_hot, greedy_draft, independent, mixed_tables, normalised, softmax, stopping, toy

GATES = ((torch.float64, 1e-14), (torch.float32, 1e-6))
CHAINS: tuple[tuple[str, Callable[[World], Emitted]], ...] = (
    ("greedy", rational.greedy),
    ("token", rational.token),
    ("tree", rational.token),
    ("multi_draft", rational.token),
    ("multi_draft_without_replacement", rational.token),
    ("k_seq", rational.token),
    ("block", block),
    ("traversal", block),
    ("typical", lossy.typical),
    ("lenient", lossy.lenient),
)
TREES: tuple[tuple[str, Callable[..., Emitted], bool], ...] = (
    ("tree", top_down, False),
    ("multi_draft", top_down, True),
    ("multi_draft_without_replacement", top_down, False),
    ("traversal", traversal, False),
    ("k_seq", functools.partial(top_down, rule=siblings.k_seq), True),
)


def decide_of(name: str) -> Callable[..., Any]:
    """The lossy rules are built anew, as nothing of them outlives the call that built it."""
    return {"typical": verifiers.lossy.typical, "lenient": verifiers.lossy.lenient}.get(name, lambda: verifiers[name])().decide


def chains() -> tuple[World, ...]:
    """Zeros, one-hot rows, ties, equal rows, disjoint supports; lengths 0 to 2; declared one-hot; rows that differ at every prefix."""
    return (
        mixed_tables(1, 3, 2),
        mixed_tables(8, 3, 2),
        stopping(softmax(1, 3, 2), 3),
        declared_one_hot(mixed_tables(2, 3, 2)),
        stopping(greedy_draft(softmax(2, 3, 2)), 0),
        toy()._replace(stop=lambda prefix: True),
        cold(toy()),
        softmax(3, 3, 0),
    )


@pytest.mark.parametrize(("name", "algorithm"), CHAINS, ids=[name for name, _ in CHAINS])
def test_on_chains_the_emitted_law_is_that_of_the_rule(name: str, algorithm: Callable[[World], Emitted]) -> None:
    for world in chains():
        found = measure(decide_of(name), world, probes=4)
        assert found.violations == ()
        assert total_variation(found.emitted, algorithm(world)) <= 1e-14
        assert found.impossible == 0
        if verifiers[name].lossless and name != "greedy":
            assert found.tv <= 1e-14
    assert total_variation(measure(decide_of(name), softmax(4, 3, 2), torch.float32, probes=4).emitted, algorithm(softmax(4, 3, 2))) <= 1e-6


def trees() -> tuple[tuple[World, int], ...]:
    """Depth 1 with three siblings, zeros that exhaust a law, depth 2 with two, one-hot siblings that repeat, branches that end early."""
    return (
        (softmax(2, 2, 2), 2),
        (softmax(3, 3, 2)._replace(stop=lambda prefix: prefix in ((0,), (1,))), 2),
        (softmax(1, 4, 1), 3),
        (mixed_tables(5, 4, 1, zeros=0.5), 3),
        (mixed_tables(0, 2, 2), 2),
        (declared_one_hot(mixed_tables(2, 3, 1)), 2),
        (declared_one_hot(softmax(3, 3, 2))._replace(stop=lambda prefix: prefix in ((0,), (2,))), 2),
    )


@pytest.mark.parametrize(("name", "algorithm", "replacement"), TREES, ids=[name for name, _, _ in TREES])
def test_on_trees_the_emitted_law_is_that_of_the_rule(name: str, algorithm: Callable[..., Emitted], replacement: bool) -> None:
    """The shipped scale of k-SEQ is the least one within 2**-20, so there acceptance may differ by as much, and exactness not at all."""
    for world, branches in trees() if name != "k_seq" else trees()[2:]:  # the first two are slow there
        found = measure_tree(decide_of(name), world, branches, replacement=replacement, probes=4)
        assert found.violations == ()
        assert (found.impossible, found.tv <= 1e-14) == (0, True)
        wanted = algorithm(world, [branches] * world.k, replacement=replacement)
        assert total_variation(found.emitted, wanted) <= (1e-5 if name == "k_seq" else 1e-14)
    world = softmax(5, 3, 1)
    found = measure_tree(decide_of(name), world, 2, torch.float32, replacement=replacement, probes=4)
    assert total_variation(found.emitted, algorithm(world, [2], replacement=replacement)) <= (1e-5 if name == "k_seq" else 1e-6)


@pytest.mark.parametrize("name", ["tree", "traversal"])
def test_the_order_of_the_nodes_is_no_part_of_the_law(name: str) -> None:
    world = softmax(6, 2, 2)
    found = measure_tree(decide_of(name), world, 2, replacement=False, breadth_first=True, probes=4)
    wanted = (top_down if name == "tree" else traversal)(world, [2, 2], replacement=False)
    assert total_variation(found.emitted, wanted) <= 1e-14


def test_the_scale_of_k_seq_is_the_least_that_is_exact() -> None:
    for seed in range(4):
        world = softmax(seed, 4, 1)
        p, q = world.target(()), world.draft(())
        rows = [torch.tensor([float(x) for x in law], dtype=torch.float64) for law in (p, q)]
        for tries in (1, 2, 3):
            least = float(siblings.k_seq_division(p, q, tries))
            for most in (tries, 5):
                found = float(k_seq_room.scale(*rows, torch.tensor(tries), most))
                assert least - 2.0**-20 <= found <= least + tries * 2.0**-19
    assert float(k_seq_room.scale(*rows, torch.tensor(0), 2)) == 1.0


@pytest.mark.parametrize(("dtype", "gate"), GATES)
def test_coupled_names_the_winner_of_every_race_on_the_grid(dtype: torch.dtype, gate: float) -> None:
    decide = verifiers["coupled"].decide
    for weights in ([1, 2, 3], [1, 0, 2], [2, 2, 1], [0, 1, 0]):
        p = normalised(weights)
        counts = race_law(decide, p, drafted=(2,), bits=3, dtype=dtype)
        assert sum(abs(a - b) for a, b in zip(counts, expected_race_law(p, 3), strict=True)) <= (2 if dtype is torch.float32 else 0), gate
    assert chain_faults(decide, toy(2), bits=2) == (0, 9 * 64)


def test_coupled_reads_the_noise_of_a_nodes_depth() -> None:
    """Rows of noise that each favour one token, and two siblings whose children must both read row 2."""
    noise = torch.full((5, 3), 9.0, dtype=torch.float64)
    for row, token in enumerate((1, 2, 0, 1, 1)):
        noise[row, token] = 1e-6
    laws = torch.full((5, 3), 1 / 3, dtype=torch.float64)
    for first in (0, 1):
        draft = Draft(torch.tensor([first, 1 - first, 2, 2]), None, torch.tensor(4), torch.tensor([-1, -1, 0, 1]))
        verdict = verifiers["coupled"].decide(Race(noise), laws, draft)
        assert verdict.tokens.tolist() == [1, 2, 0, -1, -1]
        assert verdict.path.tolist() == ([1, 3, -1, -1] if first == 0 else [0, 2, -1, -1])


def test_the_noise_of_a_race_is_the_logarithm_of_64_bits() -> None:
    """Against integers: the words of a few keys and positions, and words at both ends, where a word has few bits or its upper one set."""

    def wanted(word: int) -> float:
        u = (Fraction(word % 2**64) + Fraction(1, 2)) / 2**64
        return -math.log1p(-float(u)) if u < Fraction(1, 2) else -math.log(float(1 - u))

    for seed, position, vocab in ((5, 7, 4), (5, 8, 4), (6, 7, 1000)):
        words = bits(fold_in(fold_in(key(seed), tape.RACE), position), (vocab,), width=64).tolist()
        made = race.noise(key(seed), position, vocab)
        assert made.tolist() == pytest.approx([wanted(word) for word in words], rel=1e-12, abs=0)
        assert made.equal(race.exponential(torch.tensor(words)))
        assert made.dtype == torch.float64
        assert race.noise(key(seed), position, vocab, torch.float32).equal(made.float())
    edge = torch.tensor([0, 1, 2**31 + 1, 2**32, 2**33 + 5, 2**62, -(2**63), -(2**40)])
    assert race.exponential(edge).tolist() == pytest.approx([wanted(word) for word in edge.tolist()], rel=1e-6, abs=0)
    assert race.exponential(edge)[:6].tolist() == pytest.approx([wanted(word) for word in edge.tolist()[:6]], rel=1e-15, abs=0)


def test_a_race_is_won_by_the_only_token_there_is_even_against_infinite_noise() -> None:
    """64 bits of ones are a uniform that rounds to 1 and noise that is infinite; a law on one token gives it all the same."""
    for wait in (0.0, 1.0, math.inf):
        noise = torch.tensor([0.5, wait, 0.25], dtype=torch.float64)
        assert int(race.winner(noise, torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64))) == 1


@pytest.mark.parametrize("name", sorted(verifiers))
def test_a_vocabulary_of_one_token_is_emitted_as_often_as_it_was_drafted(name: str) -> None:
    """Padding stands for no id that need exist."""
    for k, length in ((0, 0), (3, 0), (3, 2), (3, 3)):
        for soft in (False, True):
            laws = torch.ones(k + 1, 1, dtype=torch.float64)
            tokens = torch.where(torch.arange(k) < length, 0, -1)
            draft = Draft(tokens, laws[:k] if soft else None, torch.tensor(length))
            noise = Race(laws) if name == "coupled" else Tape(0.5 * laws[:k, 0], laws.new_tensor(0.5))
            verdict = decide_of(name)(noise, laws, draft)
            assert verdict.tokens.tolist() == [0] * (length + 1) + [-1] * (k - length)


@pytest.mark.parametrize("name", sorted(verifiers))
def test_padding_is_not_taken_even_where_it_holds_what_the_target_wants(name: str) -> None:
    """Every row is one-hot on token 1, and every node holds it: what counts is the length alone, in a chain and below a node."""
    laws = torch.tensor([[0.0, 1.0]] * 4, dtype=torch.float64)
    for length in range(4):
        for parents in (None, torch.tensor([-1, 0, 1]))[: 1 + verifiers[name].trees]:
            for soft in (False, True):
                draft = Draft(torch.ones(3, dtype=torch.int64), laws[:3] if soft else None, torch.tensor(length), parents)
                noise = Race(laws * 0 + 1) if name == "coupled" else Tape(laws[:3, 0], laws[0, 0])
                verdict = decide_of(name)(noise, laws, draft)
                assert verdict.tokens.tolist() == [1] * (length + 1) + [-1] * (3 - length)


@pytest.mark.parametrize("name", [name for name, rule in verifiers.items() if rule.trees])
def test_the_parents_of_padding_may_be_anything(name: str) -> None:
    """Past the length stand parents that are no nodes; what is decided about the two siblings before them is the same."""
    laws = torch.tensor([[0.5, 0.5], [0.25, 0.75], [1.0, 0.0], [math.nan] * 2, [math.nan] * 2], dtype=torch.float64)
    probs = torch.tensor([[0.75, 0.25], [0.75, 0.25], [math.nan] * 2, [math.nan] * 2], dtype=torch.float64)
    for u, soft in itertools.product([i / 32 for i in range(32)], (False, True)):
        noise = Race(torch.ones(5, 2, dtype=torch.float64)) if name == "coupled" else Tape(laws.new_full((4,), u), laws.new_tensor(0.5))
        told = []
        for padding in ([-1, -1], [2, 99], [-7, -2], [3, 4], [0, 1]):
            parents = torch.tensor([-1, -1, *padding])
            told.append(decide_of(name)(noise, laws, Draft(torch.tensor([0, 1, -1, -1]), probs if soft else None, torch.tensor(2), parents)))
        for other in told[1:]:
            assert all(a.equal(b) for a, b in zip(told[0], other, strict=True))


@pytest.mark.parametrize("name", sorted(verifiers))
def test_a_token_that_neither_law_holds_is_never_accepted(name: str) -> None:
    """Drafted at q = p = 0, against the contract: the pass ends there, at u = 0 and at every other; what follows it saves nothing."""
    p = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [1.0, 0.0, 0.0]], dtype=torch.float64)
    q = torch.tensor([[0.25, 0.75, 0.0], [0.25, 0.5, 0.25]], dtype=torch.float64)
    for u in (0.0, 0.5, 0.999):
        for tokens, most in (([2, 1], 0), ([1, 0], 1)):
            noise = Race(torch.ones(3, 3, dtype=torch.float64)) if name == "coupled" else Tape(q.new_full((2,), u), q.new_tensor(u))
            for probs in (q.scatter(1, torch.tensor([[2], [0]]), 0), None):
                verdict = decide_of(name)(noise, p, Draft(torch.tensor(tokens), probs, torch.tensor(2)))
                assert int(verdict.accepted) <= most
                assert 0 <= int(verdict.tokens[int(verdict.accepted)]) < 3
        sure = torch.tensor([[1.0, 0.0, 0.0]] * 3, dtype=torch.float64)  # p = q: nothing is left to repair with, so p itself is
        for probs in (sure[:2], None):
            verdict = decide_of(name)(noise, sure, Draft(torch.tensor([2, 0]), probs, torch.tensor(2)))
            assert verdict.tokens.tolist() == [0, -1, -1]


def test_following_is_a_walk_down_the_tree() -> None:
    """Against a walk written here: every tree of three nodes over two tokens, every length, every choice of the target, -1 among them."""
    all_choices = list(itertools.product((-1, 0, 1), repeat=4))
    for parents, tokens, length in itertools.product(itertools.product((-1,), (-1, 0), (-1, 0, 1)), itertools.product((0, 1), repeat=3), (2, 3)):
        wanted, paths = [], []
        for choices in all_choices:
            node, path, emitted = -1, [], [choices[0]]
            for i in range(length):
                if parents[i] == node and tokens[i] == emitted[-1]:
                    node = i
                    path.append(i)
                    emitted.append(choices[i + 1])
            wanted.append(emitted + [-1] * (4 - len(emitted)))
            paths.append(path + [-1] * (3 - len(path)))
        draft = Draft(torch.tensor(tokens), None, torch.tensor(length), torch.tensor(parents))
        for shape in (draft, draft._replace(parents=None))[: 1 + (parents == (-1, 0, 1))]:
            verdict = torch.func.vmap(follow, in_dims=(0, None))(torch.tensor(all_choices), shape)
            assert (verdict.tokens.tolist(), verdict.path.tolist()) == (wanted, paths)


@pytest.mark.parametrize("name", sorted(verifiers))
def test_behind_a_row_that_is_no_law_nothing_is_tried(name: str) -> None:
    """The middle row is zeros: what comes out is what the draft cut off there gives, and -1 where that row must decide."""
    p = torch.tensor([[0.5, 0.5], [0.0, 0.0], [0.25, 0.75]], dtype=torch.float64)
    q = torch.tensor([[0.75, 0.25], [0.5, 0.5]], dtype=torch.float64)
    for tokens, u, soft in itertools.product(((0, 1), (1, 0)), (0.0, 0.3, 0.6, 0.7, 0.999), (False, True)):
        noise = Race(p * 0 + 1) if name == "coupled" else Tape(q.new_full((2,), u), q.new_tensor(0.5))
        draft = Draft(torch.tensor(tokens), q if soft else None, torch.tensor(2))
        whole, cut = (decide_of(name)(noise, p, draft._replace(length=torch.tensor(length))) for length in (2, 1))
        assert all(a.equal(b) for a, b in zip(whole, cut, strict=True))
        assert int(whole.tokens[int(whole.accepted)]) >= 0 or int(whole.accepted) == 1
        first = decide_of(name)(noise, p[[1, 0, 2]], draft)  # the first row is zeros, those below it are laws
        assert (first.tokens.tolist(), first.path.tolist()) == ([-1, -1, -1], [-1, -1])


def test_tapes_stand_at_their_addresses() -> None:
    """Two independent roads: the address by hand. Without a position a pass starts at 0; the numbers are float64 unless asked."""
    for position in (0, 3):
        made = tape.tape(key(2), 4, 9, position=position)
        assert made.accept.equal(uniform(fold_in(fold_in(key(2), 1), position), (4,), torch.float64))
        assert made.final.equal(uniform(fold_in(fold_in(key(2), 2), position), (), torch.float64))
        raced = race.tape(key(2), 3, 9, position=position)
        assert raced.noise.equal(torch.stack([race.noise(key(2), position + i, 9) for i in range(4)]))
    assert tape.tape(key(2), 4, 9).final.equal(tape.tape(key(2), 4, 9, position=0).final)
    assert race.tape(key(2), 1, 9).noise.equal(race.tape(key(2), 1, 9, position=0).noise)
    assert (tape.DRAFT, tape.ACCEPT, tape.FINAL, tape.RACE) == (0, 1, 2, 3)
    for dtype in (torch.float64, torch.float32):
        for rule in verifiers.values():
            assert all(part.dtype == dtype for part in rule.tape(key(1), 2, 3, position=1, dtype=dtype))
            assert all(part.dtype == torch.float64 for part in rule.tape(key(1), 2, 3))
        still = verifiers["greedy"].tape(key(1), 2, 3, dtype=dtype)
        assert (still.accept.tolist(), still.final.tolist()) == ([0, 0], 0)


@pytest.mark.parametrize("name", sorted(verifiers))
def test_every_tensor_a_rule_makes_lies_where_its_arguments_lie(name: str) -> None:
    """On the meta device, which refuses to mix with a CPU tensor: a rule that forgot the device would do so only on a GPU otherwise."""

    def made(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device="meta")

    real = functools.partial(made, dtype=torch.float64)
    for k in (0, 3):
        for soft in (False, True):
            for branching in (False, True)[: 1 + verifiers[name].trees]:
                draft = Draft(made(k), real(k, 4) if soft else None, made(), made(k) if branching else None)
                noise = Race(real(k + 1, 4)) if name == "coupled" else Tape(real(k), real())
                verdict = decide_of(name)(noise, real(k + 1, 4), draft)
                assert [tuple(part.shape) for part in verdict] == [(k + 1,), (), (), (k,)]
                assert all(part.device.type == "meta" for part in verdict)
                assert all(part.dtype == torch.int64 for part in verdict)
    if name != "greedy":  # its tape is never read
        drawn = torch.func.vmap(lambda words, base: verifiers[name].tape(Key(words), 3, 4, position=base))(made(1, 2), made(1))
        assert all(part.device.type == "meta" for part in drawn)


def test_lossy_rules_have_the_law_their_thresholds_say() -> None:
    """Other thresholds than the default, and the ends of their ranges; the bias in fractions is that of the rooms of proofs."""
    world = independent([6, 3, 1], [2, 3, 5], 2)
    p, q = world.target(()), world.draft(())
    rows = [torch.tensor([float(x) for x in law], dtype=torch.float64) for law in (p, q)]
    for epsilon, delta in ((0.09, 0.3), (0.25, 1.0), (1.0, 0.5), (1.0, 1.0), (0.2, 0.9)):
        rule = verifiers.lossy.typical(epsilon, delta)
        assert total_variation(measure(rule.decide, world, probes=4).emitted, lossy.typical(world, epsilon, delta)) <= 1e-14
        law = lossy.typical_law(p, q, lossy.typical_set(p, epsilon, delta))
        assert (rule.bias(*rows) + rows[0]).tolist() == pytest.approx([float(x) for x in law], abs=1e-15)
        assert f"p > min({epsilon:g}, {delta:g} exp(-entropy))" in rule.law
    for lenience in (0.8, 0.5, 1.0):
        rule = verifiers.lossy.lenient(lenience)
        exact = Fraction(lenience)
        assert total_variation(measure(rule.decide, world, probes=4).emitted, lossy.lenient(world, exact)) <= 1e-14
        law = lossy.lenient_law(p, q, exact)
        assert (rule.bias(*rows) + rows[0]).tolist() == pytest.approx([float(x) for x in law], abs=1e-15)
        assert f"min(1, p / ({lenience:g} q))" in rule.law
    level = independent([2, 1, 1], [1, 1, 2])  # p = epsilon exactly, which does not pass
    rule = verifiers.lossy.typical(0.25, 1.0)
    assert total_variation(measure(rule.decide, level, probes=4).emitted, lossy.typical(level, 0.25, 1.0)) <= 1e-14
    for build, name in ((verifiers.lossy.typical, "typical"), (verifiers.lossy.lenient, "lenient")):
        rule = build()
        draft = Draft(torch.tensor([1, 0]), None, torch.tensor(2))
        laws = rows[0].expand(3, 3)
        noise = rule.tape(key(4), 2, 3, position=6)
        assert noise.final.equal(tape.tape(key(4), 2, 3, position=6).final)
        told = rule.verify(key(4), laws, draft, position=6)
        assert all(a.equal(b) for a, b in zip(told, rule.decide(noise, laws, draft), strict=True))
        assert (rule.name, rule.lossless, rule.trees, rule.law) == (name, False, False, verifiers[name].law)
    for build, wrong in (
        (verifiers.lossy.typical, (0.0, 0.3)),
        (verifiers.lossy.typical, (1.1, 0.3)),
        (verifiers.lossy.typical, (0.3, 0.0)),
        (verifiers.lossy.typical, (0.3, 1.1)),
        (verifiers.lossy.lenient, (0.0,)),
        (verifiers.lossy.lenient, (1.1,)),
    ):
        with pytest.raises(ValueError, match=r"^received .*; expected"):
            build(*wrong)
