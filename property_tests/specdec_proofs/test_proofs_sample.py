"""Sampling through keys: the numbers are those of the addresses, and the laws are those of the worlds."""

import numpy as np
import pytest
import torch

from specdec_fn import random
from specdec_fn.sampling import draw
from specdec_fn.speculate import Draft, verifiers
from specdec_fn.speculate.tape import DRAFT, address
from specdec_proofs import sample as room
from specdec_proofs.chi2 import pearson, uniformity
from specdec_proofs.enumerate import joint, token, token_acceptance
from specdec_proofs.integrate import tensors, tree_tensors
from specdec_proofs.sample import PASSES, automaton, cells, histogram, sample, sample_trees
from specdec_proofs.trees import Tree
from specdec_proofs.worlds import World, chain_reference, declared_one_hot, drafts, mixed_tables, softmax, stopping, toy, wide

decide = verifiers.token.decide
coupled = verifiers["coupled"]


@pytest.mark.parametrize("world", [softmax(0, 4, 2), stopping(toy(3)), declared_one_hot(chain_reference())], ids=lambda world: world.name)
def test_a_pass_is_what_decide_gives_at_its_address(world: World) -> None:
    """The vectorised passes equal one call of ``decide`` each, with draft and tape drawn at (key, role, base, lane)."""
    n = PASSES + 9
    drawn = sample(decide, world, random.key(3), n)
    requests = random.split(random.split(random.key(3))[0], 2)
    for i in (0, 1, PASSES - 1, PASSES, n - 1):
        key, base = requests[i // PASSES], i % PASSES
        noise = random.uniform(address(key, DRAFT, base), (world.k,))
        x: tuple[int, ...] = ()
        while len(x) < world.k and not world.stop(x):
            x += (int(draw(noise[len(x)], torch.tensor([float(p) for p in world.draft(x)], dtype=torch.float64))),)
        rows = tensors(world, [x], torch.float64)
        draft = Draft(rows.draft.tokens[0], None if rows.draft.probs is None else rows.draft.probs[0], rows.draft.length[0])
        verdict = decide(verifiers.token.tape(key, world.k, world.vocab, position=base), rows.target[0], draft)
        emitted = int(verdict.emitted)
        assert drawn.tokens[i, :emitted].tolist() == verdict.tokens[:emitted].tolist()
        assert int(drawn.accepted[i]) == int(verdict.accepted)
        assert int(drawn.proposed[i]) == len(x)
    assert len(set(drawn.proposed.tolist())) == len({len(x) for x, _ in drafts(world)})


def test_sizes_of_the_batches_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = sample(decide, softmax(1, 5, 3), random.key(1), 500)
    monkeypatch.setattr(room, "BYTES", 1 << 13)
    monkeypatch.setattr(room, "NUMBERS", 128)
    parts = sample(decide, softmax(1, 5, 3), random.key(1), 500)
    assert all(torch.equal(a, b) for a, b in zip(whole, parts, strict=True))


def test_sizes_of_the_batches_change_nothing_in_a_race_or_a_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    def both() -> list[torch.Tensor]:
        race = sample(coupled.decide, softmax(1, 5, 3), random.key(1), 500, tape=coupled.tape)
        return [*race, *sample_trees(verifiers["tree"].decide, mixed_tables(2, 3, 2), 2, random.key(1), 500, replacement=False)]

    whole = both()
    monkeypatch.setattr(room, "BYTES", 1 << 13)
    monkeypatch.setattr(room, "LEAVES", 1 << 12)
    assert all(torch.equal(a, b) for a, b in zip(whole, both(), strict=True))


def test_states_give_the_rows_of_their_prefixes() -> None:
    for world in (toy(3), chain_reference(), mixed_tables(2), wide(0, 5, 3)):
        tables = automaton(world)
        for x, _ in drafts(world):
            state = 0
            for i in range(len(x) + 1):
                assert tables.target[state].tolist() == [float(p) for p in world.target(x[:i])]
                assert tables.draft[state].tolist() == [float(p) for p in world.draft(x[:i])]
                state = int(tables.step[state, x[i]]) if i < len(x) else state
    assert len(automaton(wide(0, 5, 3)).target) == 6


def test_mean_acceptance_is_the_exact_one() -> None:
    n = 40_000
    drawn = sample(decide, toy(), random.key(0), n)
    assert float(drawn.accepted.double().mean()) == pytest.approx(float(token_acceptance(toy())), abs=5 * 1 / np.sqrt(n))
    assert sorted(drawn.proposed.unique().tolist()) == [2]


def test_emitted_lengths_follow_their_law() -> None:
    """L16, by sampling: lengths 1, 2, 3 in shares 1/4, 59/240, 121/240."""
    drawn = sample(decide, toy(), random.key(5), 24_000)
    assert pearson(torch.bincount(drawn.accepted, minlength=3).numpy(), [1 / 4, 59 / 240, 121 / 240]).p_value > 1e-6
    assert sum(token(toy()).values()) == 1


def test_p_values_of_independent_keys_are_uniform() -> None:
    world = chain_reference()
    p = cells(world, joint(world), 3)
    values = [pearson(histogram(sample(decide, world, key, 3000).tokens, 3, 3), p).p_value for key in random.split(random.key(11), 40)]
    assert uniformity(values).distance < uniformity(values).allowed
    assert min(values) > 1e-6


def test_float32_tapes() -> None:
    world = softmax(2, 4, 2)
    drawn = sample(decide, world, random.key(2), 20_000, torch.float32)
    assert pearson(histogram(drawn.tokens, 4, 3), cells(world, joint(world), 3)).p_value > 1e-6


def test_cells_and_histogram_agree_on_the_order() -> None:
    world = toy()
    tokens = torch.tensor([[2, 0, 1]] * 4 + [[1, 1, 1]])
    law = {(2, 0, 1): 4, (1, 1, 1): 1}
    for length in (1, 2, 3):
        assert histogram(tokens, 3, length).tolist() == cells(world, law, length).tolist()


@pytest.mark.parametrize("raced", [False, True])
def test_a_race_emits_the_target_s_own_sample(raced: bool) -> None:
    """Every pass emits the winners of its positions, no two passes read one position, and drafts of the same race agree more often."""
    world, n = softmax(0, 4, 2), PASSES + 3
    drawn = sample(coupled.decide, world, random.key(4), n, tape=coupled.tape, raced=raced)
    requests = random.split(random.split(random.key(4))[0], 2)
    for i in (0, 1, PASSES - 1, PASSES, n - 1):
        noise = coupled.tape(requests[i // PASSES], world.k, world.vocab, position=i % PASSES * (world.k + 1)).noise
        won: tuple[int, ...] = ()
        for row in noise[: int(drawn.accepted[i]) + 1]:
            won += (int((torch.tensor([float(p) for p in world.target(won)], dtype=torch.float64) / row).argmax()),)
        assert tuple(drawn.tokens[i, : len(won)].tolist()) == won


def test_acceptance_of_a_race_is_its_formula() -> None:
    """One position: sum_i 1 / sum_j max(p_j / p_i, q_j / q_i) with the drafter in the race, sum p q without."""
    world, n = softmax(0, 4, 1), 40_000
    p, q = ([float(x) for x in law(())] for law in (world.target, world.draft))
    together = sum(1 / sum(max(p[j] / p[i], q[j] / q[i]) for j in range(4)) for i in range(4))
    apart = sum(a * b for a, b in zip(p, q, strict=True))
    for raced, wanted in ((True, together), (False, apart)):
        drawn = sample(coupled.decide, world, random.key(8), n, tape=coupled.tape, raced=raced)
        assert float(drawn.accepted.double().mean()) == pytest.approx(wanted, abs=2.5 / np.sqrt(n))


@pytest.mark.parametrize("raced", [False, True])
def test_a_race_has_the_target_s_law(raced: bool) -> None:
    world = stopping(softmax(2, 4, 2))
    drawn = sample(coupled.decide, world, random.key(6), 20_000, tape=coupled.tape, raced=raced)
    assert pearson(histogram(drawn.tokens, 4, 3), cells(world, joint(world), 3)).p_value > 1e-6


@pytest.mark.parametrize("replacement", [False, True])
@pytest.mark.parametrize(
    "world", [softmax(0, 3, 2), stopping(softmax(1, 3, 2)), declared_one_hot(mixed_tables(5, 3, 2, zeros=0.5))], ids=lambda world: world.name
)
def test_a_tree_is_drawn_node_by_node_at_its_address(world: World, replacement: bool) -> None:
    n, branches = PASSES + 20, 2
    rule = verifiers["multi_draft" if replacement else "tree"]
    drawn = sample_trees(rule.decide, world, branches, random.key(3), n, replacement=replacement)
    requests = random.split(random.split(random.key(3))[0], 2)
    for i in range(0, n, 7):
        key, base = requests[i // PASSES], i % PASSES
        noise = random.uniform(address(key, DRAFT, base), (6,))
        tokens: list[int] = []
        parents: list[int] = []

        def grow(parent: int, head: tuple[int, ...], noise: torch.Tensor, tokens: list[int], parents: list[int]) -> None:
            weights = torch.tensor([float(p) for p in world.draft(head)], dtype=torch.float64)
            for _ in range(0 if len(head) == world.k or world.stop(head) else branches):
                if weights.sum() == 0:
                    return
                token, own = int(draw(noise[len(tokens)], weights)), len(tokens)
                tokens.append(token)
                parents.append(parent)
                weights[token] *= replacement
                grow(own, (*head, token), noise, tokens, parents)

        grow(-1, (), noise, tokens, parents)
        assert int(drawn.proposed[i]) == len(tokens)
        full = Tree((0,) * 6, (-1,) * 6)  # pads to six nodes
        rows = tree_tensors(world, [Tree(tuple(tokens), tuple(parents)), full], torch.float64)
        draft = Draft(*(None if field is None else field[0] for field in rows.draft))
        verdict = rule.decide(rule.tape(key, 6, world.vocab, position=base), rows.target[0], draft)
        emitted = int(verdict.emitted)
        assert drawn.tokens[i, :emitted].tolist() == verdict.tokens[:emitted].tolist()
        assert int(drawn.accepted[i]) == int(verdict.accepted)


@pytest.mark.parametrize(
    ("name", "replacement", "lossless"),
    [
        ("tree", False, True),
        ("traversal", False, True),
        ("multi_draft", True, True),
        ("k_seq", True, True),
        ("coupled", True, True),
        ("coupled", False, True),
        ("tree", True, False),
        ("multi_draft", False, False),
    ],
)
def test_trees_have_the_target_s_law_where_siblings_are_drawn_as_the_rule_wants(name: str, replacement: bool, lossless: bool) -> None:
    world = softmax(0, 3, 2)
    drawn = sample_trees(verifiers[name].decide, world, 2, random.key(1), 15_000, replacement=replacement, tape=verifiers[name].tape)
    assert (pearson(histogram(drawn.tokens, 3, 3), cells(world, joint(world), 3)).p_value > 1e-6) == lossless


def test_trees_of_no_branches_are_refused() -> None:
    with pytest.raises(ValueError, match="branches is 0"):
        sample_trees(verifiers["tree"].decide, toy(), 0, random.key(1), 1, replacement=True)
