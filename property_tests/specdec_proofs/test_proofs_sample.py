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
from specdec_proofs.integrate import tensors
from specdec_proofs.sample import PASSES, automaton, cells, histogram, sample
from specdec_proofs.worlds import World, chain_reference, declared_one_hot, drafts, mixed_tables, softmax, stopping, toy, wide

decide = verifiers.token.decide


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
