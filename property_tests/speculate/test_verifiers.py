"""The edge cases of verification, one small input each; the laws themselves are proved in specdec_proofs."""

import math
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import TypeCheckError
from torch.utils._pytree import tree_map

from specdec_fn.random import key, split
from specdec_fn.speculate import Draft, Race, Tape, Verdict, batched, residual, verifiers
from specdec_fn.speculate.draft import chain, first
from specdec_fn.speculate.recover import without

DTYPES = [torch.float32, torch.float64]
LOSSLESS = [name for name, rule in verifiers.items() if rule.lossless]
TREES = [name for name in LOSSLESS if verifiers[name].trees]


def tape(accept, final, dtype=torch.float64):
    return Tape(torch.tensor(accept, dtype=dtype), torch.tensor(final, dtype=dtype))


def rows(*laws, dtype=torch.float64):
    return torch.tensor(laws, dtype=dtype)


def noise_of(name, accept, final, laws):
    """The tape of a rule, one or a batch; the race of ``coupled`` is level, so that the likeliest token wins."""
    return Race(torch.ones_like(laws)) if name == "coupled" else tape(accept, final, laws.dtype)


def decide(name, accept, final, laws, draft) -> list[int]:
    verdict = verifiers[name].decide(noise_of(name, accept, final, laws), laws, draft)
    check_shape(verdict, draft)
    return verdict.tokens[: int(verdict.emitted)].tolist()


def check_shape(verdict: Verdict, draft: Draft):
    k, accepted = draft.tokens.shape[0], int(verdict.accepted)
    assert verdict.tokens.shape == (k + 1,)
    assert int(verdict.emitted) == accepted + 1
    path = verdict.path[:accepted].tolist()
    parents = range(-1, k) if draft.parents is None else draft.parents.tolist()
    assert [parents[node] for node in path] == [-1, *path][:accepted]  # from the context down
    assert (verdict.path[accepted:] == -1).all()
    assert verdict.tokens[:accepted].tolist() == draft.tokens[path].tolist()
    assert (verdict.tokens[accepted + 1 :] == -1).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_p_equal_to_q_accepts_at_the_largest_uniform(dtype):
    p = rows([0.1, 0.2, 0.7], [0.3, 0.3, 0.4], dtype=dtype)
    largest = 1 - 2.0 ** (-53 if dtype is torch.float64 else -24)
    for token in range(3):
        assert decide("token", [largest], 0.0, p, Draft(torch.tensor([token]), p[:1], torch.tensor(1)))[0] == token


@pytest.mark.parametrize("soft", [True, False])
def test_p_of_zero_rejects_even_at_u_zero(soft):
    p = rows([0.0, 1.0], [0.5, 0.5])
    draft = Draft(torch.tensor([0]), rows([0.5, 0.5]) if soft else None, torch.tensor(1))
    assert decide("token", [0.0], 0.0, p, draft) == [1]


def test_disjoint_supports_reject_and_give_p():
    p, q = rows([0.0, 0.0, 0.25, 0.75], [1.0, 0.0, 0.0, 0.0]), rows([0.5, 0.5, 0.0, 0.0])
    for u, expected in ((0.0, 2), (0.2499, 2), (0.25, 3), (0.9999, 3)):
        assert decide("token", [0.0], u, p, Draft(torch.tensor([1]), q, torch.tensor(1))) == [expected]
    assert residual(p[0], q[0]).equal(p[0])


def test_one_hot_p_ignores_the_randomness():
    p = rows([0.0, 1.0, 0.0], [0.0, 0.0, 1.0])
    for u in (0.0, 0.5, 1 - 2.0**-53):
        assert decide("token", [u], u, p, chain([1], 1)) == [1, 2]
        assert decide("token", [u], u, p, chain([2], 1)) == [1]


def test_a_token_drafted_at_q_of_zero_is_accepted_only_where_p_is_positive():
    p, q = rows([0.5, 0.5, 0.0], [1.0, 0.0, 0.0]), rows([1.0, 0.0, 0.0])
    assert decide("token", [0.99], 0.0, p, Draft(torch.tensor([1]), q, torch.tensor(1)))[0] == 1
    assert decide("token", [0.0], 0.0, p, Draft(torch.tensor([2]), q, torch.tensor(1)))[0] != 2


@pytest.mark.parametrize("name", LOSSLESS)
def test_no_draft_is_plain_sampling(name):
    p = rows([0.25, 0.75])
    assert decide(name, [], 0.9, p, chain([], 0)) == [1]
    padded = torch.cat([p, p.new_zeros(3, 2)])
    assert decide(name, [0.0] * 3, 0.9, padded, chain([], 3)) == [1]


@pytest.mark.parametrize("name", LOSSLESS)
def test_padding_is_never_emitted_whatever_it_holds(name):
    """D12: 3 valid drafts of 5 give at most 4 tokens, and neither -1 nor the padded laws are read."""
    laws = torch.full((6, 3), math.nan, dtype=torch.float64)
    laws[:4] = rows([0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0])
    for padding in (-1, 0, 7):
        draft = Draft(torch.tensor([1, 0, 1, padding, padding]), None, torch.tensor(3))
        assert decide(name, [0.0] * 5, 0.5, laws, draft) == [1, 0, 1, 2]


@pytest.mark.parametrize("name", LOSSLESS)
def test_a_row_of_zeros_gives_no_token_and_spares_its_neighbours(name):
    """D13: what distribution makes of a NaN row is zeros; no id comes of it, least of all one past the vocabulary."""
    dead, alive = rows([0.0] * 5, [0.0, 0.0, 1.0, 0.0, 0.0]), rows([0.0, 1.0, 0.0, 0.0, 0.0], [0.0] * 5)
    assert decide(name, [0.0], 0.5, dead, chain([2], 1)) == [-1]
    assert decide(name, [0.0], 0.5, alive, chain([1], 1)) == [1, -1]
    laws = torch.stack([dead, alive])
    noise = noise_of(name, [[0.0], [0.0]], [0.5, 0.5], laws)
    both = batched(verifiers[name].decide)(noise, laws, Draft(torch.tensor([[2], [1]]), None, torch.tensor([1, 1])))
    assert both.tokens.tolist() == [[-1, -1], [1, -1]]


LAWS = st.lists(st.integers(0, 5), min_size=4, max_size=4).filter(any)


@given(law=LAWS, kind=st.sampled_from(DTYPES))
def test_residual_of_p_and_p_is_a_law_inside_p(law, kind):
    """D6: never NaN, never outside the support."""
    p = torch.tensor(law, dtype=kind) / sum(law)
    found = residual(p, p)
    assert abs(float(found.sum()) - 1) < 1e-6
    assert ((found > 0) <= (p > 0)).all()


@given(p=LAWS, q=LAWS)
def test_residual_is_the_formula(p, q):
    target, drafted = torch.tensor(p, dtype=torch.float64) / sum(p), torch.tensor(q, dtype=torch.float64) / sum(q)
    excess = [max(a - b, 0.0) for a, b in zip(target.tolist(), drafted.tolist(), strict=True)]
    expected = [value / sum(excess) for value in excess] if sum(excess) > 0 else target.tolist()
    assert residual(target, drafted).tolist() == pytest.approx(expected, abs=1e-12)


@given(p=LAWS, token=st.integers(0, 3))
def test_without_is_the_residual_of_a_one_hot_law(p, token):
    target = torch.tensor(p, dtype=torch.float64) / sum(p)
    one_hot = torch.nn.functional.one_hot(torch.tensor(token), 4).to(torch.float64)
    assert torch.allclose(without(target, torch.tensor(token)), residual(target, one_hot), atol=1e-15)


def test_p_equal_to_q_accepts_ten_thousand_times():
    """D6: the residual is never met."""
    p = torch.softmax(torch.randn(4, 50, generator=torch.Generator().manual_seed(0), dtype=torch.float64), -1)
    keys = split(key(1), 10_000)
    tokens = torch.randint(0, 50, (10_000, 3), generator=torch.Generator().manual_seed(2))
    tapes = torch.func.vmap(lambda k: verifiers["token"].tape(k, 3, 50, position=4))(keys)
    draft = Draft(tokens, p[:3].expand(10_000, 3, 50), torch.full((10_000,), 3))
    verdict = batched(verifiers["token"].decide)(tapes, p.expand(10_000, 4, 50), draft)
    assert (verdict.accepted == 3).all()
    assert ((verdict.tokens >= 0) & (verdict.tokens < 50)).all()


@given(seed=st.integers(0, 1000), k=st.integers(0, 4), length=st.integers(0, 4), soft=st.booleans(), name=st.sampled_from(sorted(verifiers)))
def test_batched_equals_one_by_one(seed, k, length, soft, name):
    gen = torch.Generator().manual_seed(seed)
    laws = torch.softmax(3 * torch.randn(5, k + 1, 6, generator=gen, dtype=torch.float64), -1)
    draft = Draft(
        torch.randint(0, 6, (5, k), generator=gen),
        torch.softmax(torch.randn(5, k, 6, generator=gen, dtype=torch.float64), -1) if soft else None,
        torch.full((5,), min(length, k)),
        torch.stack([torch.randint(-1, i, (5,), generator=gen) for i in range(k)], 1) if k and verifiers[name].trees else None,
    )
    tapes = torch.func.vmap(lambda k_: verifiers[name].tape(k_, k, 6, position=seed))(split(key(seed), 5))
    together = batched(verifiers[name].decide)(tapes, laws, draft)
    for i in range(5):
        one, noise = tree_map(lambda leaf, i=i: None if leaf is None else leaf[i], (draft, tapes))
        alone = verifiers[name].decide(noise, laws[i], one)
        check_shape(alone, one)
        for a, b in zip(alone, together, strict=True):
            assert a.equal(b[i])


@given(seed=st.integers(-(2**63), 2**63 - 1), position=st.integers(0, 2**32 - 1))
def test_verify_is_decide_on_the_tape_of_its_key(seed, position):
    p = rows([0.2, 0.3, 0.5], [0.1, 0.8, 0.1], [0.6, 0.2, 0.2])
    draft = Draft(torch.tensor([2, 1]), rows([0.3, 0.3, 0.4], [0.5, 0.4, 0.1]), torch.tensor(2))
    rule = verifiers["token"]
    told = rule.verify(key(seed), p, draft, position=position)
    assert all(a.equal(b) for a, b in zip(told, rule.decide(rule.tape(key(seed), 2, 3, position=position), p, draft), strict=True))


def test_tapes_of_other_passes_are_other_tapes():
    """Every address of (base, lane, role) is used once: 60 passes of 4 give 300 distinct numbers."""
    numbers = [float(u) for base in range(60) for part in verifiers["token"].tape(key(3), 4, 10, position=base) for u in part.flatten()]
    assert len(set(numbers)) == len(numbers) == 300


def test_a_shorter_pass_reads_the_same_numbers():
    long, short = (verifiers["token"].tape(key(3), k, 10, position=7) for k in (5, 2))
    assert long.accept[:2].equal(short.accept)
    assert long.final.equal(short.final)


def test_float32_tapes_stay_below_one():
    made = verifiers["token"].tape(key(3), 20, 10, dtype=torch.float32)
    assert made.accept.dtype == made.final.dtype == torch.float32


def test_first_cuts_tokens_laws_and_length():
    cut = first(chain([4, 5, 6], 5, torch.eye(3)), 2)
    assert (cut.tokens.tolist(), cut.probs.tolist(), int(cut.length)) == ([4, 5], torch.eye(3)[:2].tolist(), 2)


@pytest.mark.parametrize("name", LOSSLESS)
@pytest.mark.parametrize(
    ("laws", "draft", "words"),
    [
        (torch.eye(3), chain([0], 1), r"\[3, 3\] and draft.tokens \[1\]; expected \[K \+ 1, V\]"),
        (torch.eye(2), chain([2], 1), r"draft.tokens\[0\] is 2; expected an id in \[0, 2\)"),
        (torch.eye(2), Draft(torch.tensor([0]), None, torch.tensor(2)), "draft.length is 2; expected 0 to 1"),
        (torch.eye(2), Draft(torch.tensor([0]), torch.ones(1, 3), torch.tensor(1)), r"draft.probs has shape \[1, 3\]; expected \[1, 2\]"),
        (torch.eye(2), Draft(torch.tensor([0]), torch.ones(1, 2), torch.tensor(1)), r"draft.probs\[0\] sums to 2.0"),
        (torch.eye(2), Draft(torch.tensor([0]), None, torch.tensor(1), torch.tensor([0])), r"draft.parents\[0\] is 0; expected an earlier node"),
        (torch.eye(2), Draft(torch.tensor([0]), torch.eye(2)[1:], torch.tensor(1)), r"draft.tokens\[0\] is 0, of probability 0 in draft.probs\[0\]"),
        (torch.eye(2), Draft(torch.tensor([0]), None, torch.tensor(1), torch.tensor([-1, 0])), r"draft.parents has shape \[2\]; expected \[1\]"),
        (torch.tensor([[math.nan, 1.0], [0.0, 1.0]]), chain([0], 1), r"target_probs\[0\] sums to nan"),
        (torch.tensor([[1.0, 0.0], [-0.5, 1.5]]), chain([0], 1), r"target_probs\[1\] sums to 1.0 with least entry -0.5"),
    ],
)
def test_verify_refuses_what_it_cannot_work_on(name, laws, draft, words):
    with pytest.raises(ValueError, match=words):
        verifiers[name].verify(key(0), laws, draft)


@pytest.mark.parametrize("name", LOSSLESS)
def test_verify_refuses_integers_for_laws(name):
    """The sentence is ours, or the shape checker's where that runs."""
    with pytest.raises((ValueError, TypeCheckError), match=r"torch.int64|target_probs"):
        verifiers[name].verify(key(0), torch.eye(2).long(), chain([0], 1))


def test_the_registry_is_a_read_only_mapping():
    assert dict(verifiers)["token"] is verifiers["token"]
    assert all(name == rule.name and rule.law and isinstance(rule.lossless, bool) for name, rule in verifiers.items())
    with pytest.raises(KeyError, match="no verifier is called 'blok'; the known ones are greedy, token"):
        verifiers["blok"]
    with pytest.raises(TypeError):
        verifiers["mine"] = verifiers["token"]


@pytest.mark.parametrize("name", sorted(verifiers))
def test_a_tree_is_refused_by_the_rules_of_chains_only(name):
    siblings = Draft(torch.tensor([0, 1]), None, torch.tensor(2), torch.tensor([-1, -1]))
    laws = torch.eye(3, dtype=torch.float64)[:, :2] + rows([0.0, 0.0], [0.0, 0.0], [0.0, 1.0])
    if verifiers[name].trees:
        check_shape(verifiers[name].verify(key(0), laws, siblings), siblings)
    else:
        with pytest.raises(ValueError, match=r"draft.parents\[1\] is -1; expected 0, a chain, since this verifier knows no trees"):
            verifiers[name].verify(key(0), laws, siblings)


@pytest.mark.parametrize("name", LOSSLESS)
@given(seed=st.integers(0, 500), soft=st.booleans())
def test_at_temperature_zero_every_rule_gives_the_greedy_ids(name, seed, soft):
    """One-hot rows of p: what is emitted is the argmax along the path, whatever was drafted and however it branches."""
    gen = torch.Generator().manual_seed(seed)
    k, vocab = 5, 4
    best = torch.randint(0, vocab, (k + 1,), generator=gen)
    laws = torch.nn.functional.one_hot(best, vocab).to(torch.float64)
    parents = torch.stack([torch.randint(-1, i, (), generator=gen) for i in range(k)]) if verifiers[name].trees else None
    tokens = torch.randint(0, vocab, (k,), generator=gen)
    probs = torch.softmax(torch.randn(k, vocab, generator=gen, dtype=torch.float64), -1) if soft else None
    draft = Draft(tokens, probs, torch.tensor(k), parents)
    verdict = verifiers[name].verify(key(seed), laws, draft)
    check_shape(verdict, draft)
    at = [0, *(verdict.path[: int(verdict.accepted)] + 1).tolist()]
    assert verdict.tokens[: int(verdict.emitted)].tolist() == best[at].tolist()


@pytest.mark.parametrize("name", [name for name in TREES if name not in ("coupled", "greedy", "traversal", "k_seq")])
@given(seed=st.integers(0, 300))
def test_on_a_chain_top_down_rules_are_token_verification(name, seed):
    gen = torch.Generator().manual_seed(seed)
    laws, probs = (torch.softmax(2 * torch.randn(n, 5, generator=gen, dtype=torch.float64), -1) for n in (4, 3))
    draft = Draft(torch.randint(0, 5, (3,), generator=gen), probs, torch.tensor(3))
    told, wanted = (verifiers[rule].verify(key(seed), laws, draft) for rule in (name, "token"))
    assert all(a.equal(b) for a, b in zip(told, wanted, strict=True))


@given(seed=st.integers(0, 300), soft=st.booleans())
def test_on_a_chain_traversal_is_block_verification(seed, soft):
    gen = torch.Generator().manual_seed(seed)
    laws, probs = (torch.softmax(2 * torch.randn(n, 5, generator=gen, dtype=torch.float64), -1) for n in (5, 4))
    draft = Draft(torch.randint(0, 5, (4,), generator=gen), probs if soft else None, torch.tensor(4))
    told, wanted = (verifiers[rule].verify(key(seed), laws, draft) for rule in ("traversal", "block"))
    assert all(a.equal(b) for a, b in zip(told, wanted, strict=True))


@given(seed=st.integers(0, 300))
def test_with_one_drafted_token_block_is_token_verification(seed):
    gen = torch.Generator().manual_seed(seed)
    laws, probs = (torch.softmax(2 * torch.randn(n, 5, generator=gen, dtype=torch.float64), -1) for n in (2, 1))
    draft = Draft(torch.randint(0, 5, (1,), generator=gen), probs, torch.tensor(1))
    told, wanted = (verifiers[rule].verify(key(seed), laws, draft) for rule in ("block", "token"))
    assert all(a.equal(b) for a, b in zip(told, wanted, strict=True))


def test_block_keeps_a_draft_whose_end_makes_good_for_its_beginning():
    """The smallest case of arXiv 2403.10444: p = (1/3, 2/3), q reversed; after 0, 1 the weight is back at 1, and nothing can reject."""
    p, q = rows([1 / 3, 2 / 3]).expand(3, 2), rows([2 / 3, 1 / 3]).expand(2, 2)
    draft = Draft(torch.tensor([0, 1]), q, torch.tensor(2))
    assert decide("block", [0.999, 0.999], 0.0, p, draft) == [0, 1, 0]
    assert decide("token", [0.999, 0.999], 0.0, p, draft) == [1]


@pytest.mark.parametrize("name", sorted(verifiers))
def test_a_draft_of_the_targets_own_law_is_never_repaired(name):
    """p = q on every row: all of a chain is kept, by every rule that divides q out (and by the lossy ones)."""
    if name in ("coupled", "greedy", "typical"):  # they look at the target's choice or its likelihood, not at q
        return
    p = torch.softmax(torch.randn(5, 7, generator=torch.Generator().manual_seed(3), dtype=torch.float64), -1)
    for seed in range(200):
        draft = Draft(torch.randint(0, 7, (4,), generator=torch.Generator().manual_seed(seed)), p[:4], torch.tensor(4))
        assert int(verifiers[name].verify(key(seed), p, draft).accepted) == 4


@given(seed=st.integers(0, 300))
def test_what_coupled_emits_knows_nothing_of_the_draft(seed):
    """The row's own race decides: every draft, every length and every tree gives a beginning of one sequence."""
    gen = torch.Generator().manual_seed(seed)
    table = torch.softmax(2 * torch.randn(7, 6, generator=gen, dtype=torch.float64), -1)  # a bigram target: row 6 starts
    rule = verifiers["coupled"]

    def emitted(tokens, parents):
        laws = torch.stack([table[6], *(table[token] for token in tokens)])
        draft = Draft(torch.tensor(tokens, dtype=torch.int64), None, torch.tensor(len(tokens)), parents)
        verdict = rule.verify(key(seed), laws, draft, position=11)
        return verdict.tokens[: int(verdict.emitted)].tolist()

    alone = []
    for place in range(5):
        law = table[alone[-1] if alone else 6]
        alone += rule.verify(key(seed), law[None], chain([], 0), position=11 + place).tokens.tolist()
    for k in (1, 2, 4):
        for tokens in (alone[:k], torch.randint(0, 6, (k,), generator=gen).tolist()):
            told = emitted(tokens, None)
            assert told == alone[: len(told)]
    parents = torch.tensor([-1, -1, 0, 1, 3])
    told = emitted([0, alone[0], 2, alone[1], alone[2]], parents)
    assert told == alone[: len(told)]


def test_lossy_rules_state_their_bias_and_their_thresholds():
    """The bias is the law of the first token minus p: summed over drafted tokens and both outcomes of the acceptance, in closed form."""
    p, q = rows([0.6, 0.3, 0.1])[0], rows([0.2, 0.3, 0.5])[0]
    kept = rows([0.2, 0.3, 0.1 / 0.8])[0]
    lenient = kept + (1 - kept.sum()) * rows([1.0, 0.0, 0.0])[0] - p
    assert torch.allclose(verifiers["lenient"].bias(p, q), lenient, atol=1e-15)
    entropy = -(p * p.log()).sum()
    stays = p > min(0.09, 0.3 * math.exp(-entropy))
    typical = q * stays + q[~stays].sum() * p - p
    assert torch.allclose(verifiers["typical"].bias(p, q), typical, atol=1e-15)
    assert all(verifiers[name].bias is None for name in LOSSLESS)
    for build, setting in (
        (verifiers.lossy.typical, {"epsilon": 0.0}),
        (verifiers.lossy.typical, {"delta": math.nan}),
        (verifiers.lossy.lenient, {"lenience": 1.5}),
    ):
        with pytest.raises(ValueError, match=str(next(iter(setting.values())))):
            build(**setting)


@pytest.mark.parametrize("name", ["typical", "lenient"])
def test_the_bias_is_what_the_rule_does(name):
    """The share of a fine grid of the uniform on which decide accepts, and the exact repair."""
    p, q = rows([0.55, 0.05, 0.25, 0.15])[0], rows([0.1, 0.45, 0.2, 0.25])[0]
    grid = (torch.arange(2000, dtype=torch.float64) + 0.5) / 2000
    first_token, rule = torch.zeros(4, dtype=torch.float64), verifiers[name]
    for token in range(4):
        draft = Draft(torch.full((2000, 1), token), q.expand(2000, 1, 4), torch.ones(2000, dtype=torch.int64))
        share = batched(rule.decide)(Tape(grid[:, None], grid * 0), p.expand(2000, 2, 4), draft).accepted.to(torch.float64).mean()
        repair = p if name == "typical" else residual(p, q)
        first_token += q[token] * (share * torch.nn.functional.one_hot(torch.tensor(token), 4) + (1 - share) * repair)
    assert torch.allclose(first_token - p, rule.bias(p, q), atol=1e-3)


def test_a_float32_softmax_over_a_large_vocabulary_is_a_law():
    """Its sum is off 1 by more than 1e-6, though each entry is as right as it can be."""
    laws = torch.softmax(3 * torch.randn(3, 151_936, generator=torch.Generator().manual_seed(0)), -1)
    assert int(verifiers["token"].verify(key(0), laws, chain([5, 7], 2)).emitted) >= 1
    with pytest.raises(ValueError, match=r"target_probs\[1\] sums to"):
        verifiers["token"].verify(key(0), laws * torch.tensor([[1.0], [1.001], [1.0]]), chain([5, 7], 2))


@pytest.mark.parametrize("name", ["tree", "multi_draft", "multi_draft_without_replacement", "k_seq"])
def test_a_refused_sibling_is_taken_out_before_the_next_is_tried(name):
    """D8: p = (.5, .3, .2), siblings 1 then 2: 1 with .3, else 2 with 2/7, else 0, so that each comes out with its own probability."""
    laws = rows([0.5, 0.3, 0.2], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0])
    siblings = Draft(torch.tensor([1, 2]), None, torch.tensor(2), torch.tensor([-1, -1]))
    for numbers, expected in (([0.29, 0.9], 1), ([0.31, 0.28], 2), ([0.31, 0.29], 0)):  # 2/7 = .2857
        assert decide(name, numbers, 0.999, laws, siblings)[0] == expected


def test_noise_at_its_ends_makes_no_nan_win_and_nothing_impossible():
    """D14: noise of 0 or infinity, on tokens that may come and on tokens that may not."""
    p, rule = rows([0.0, 1.0, 0.0]), verifiers["coupled"]
    for noise in ([0.0, 0.5, 1.0], [0.0, 0.0, 0.0], [0.0, math.inf, 0.5], [math.inf] * 3):
        assert rule.decide(Race(rows(noise)), p, chain([], 0)).tokens.tolist() == [1]
    both = rows([0.5, 0.5, 0.0])
    assert rule.decide(Race(rows([math.inf, math.inf, 0.0])), both, chain([], 0)).tokens.tolist() == [0]
    drawn = rule.tape(key(3), 1, 4096, position=9).noise
    assert ((drawn > 0) & (drawn < math.inf)).all()


@pytest.mark.parametrize("dtype", DTYPES)
@given(seed=st.integers(0, 200))
def test_three_rejected_siblings_leave_a_token_to_emit(dtype, seed):
    """Where the residual and what is left of q are nearly one law, rounding decides whether anything is in excess; some token comes all the same."""
    gen = torch.Generator().manual_seed(seed)
    q = torch.softmax(torch.randn(4, generator=gen, dtype=torch.float64), -1)
    order = torch.randperm(4, generator=gen)[:3]
    p = q.clone()
    p[order[0]] *= 0.5
    p = p / p.sum()
    laws, drafted = p.to(dtype).expand(4, 4), q.to(dtype).expand(3, 4)
    for name in ("tree", "traversal", "multi_draft_without_replacement"):
        draft = Draft(order, drafted, torch.tensor(3), torch.full((3,), -1))
        told = decide(name, [1 - 2.0**-24] * 3, 0.5, laws / laws.sum(-1, keepdim=True), draft)
        assert told[0] >= 0


@pytest.mark.parametrize("name", sorted(verifiers))
def test_doors_say_what_kind_of_argument_they_expect(name):
    laws, rule = rows([0.5, 0.5], [0.5, 0.5]), verifiers[name]
    good = chain([1], 1)
    for arguments, kind, words in (
        ((key(0), laws, good._replace(tokens=good.tokens.int())), TypeError, "draft.tokens has dtype torch.int32; expected int64"),
        ((key(0), laws.half(), good), ValueError, "target_probs has dtype torch.float16; expected float32 or float64"),
        ((key(0), laws.float(), chain([1], 1, laws[:1])), ValueError, "draft.probs has dtype torch.float64 and target_probs torch.float32"),
        ((split(key(0)), laws, good), TypeError, "keys of shape"),
        ((3, laws, good), TypeError, "the key is 3; expected one key"),
        ((key(0), None, good), TypeError, "expected a tensor of target laws"),
        ((key(0), laws, tuple(good)), TypeError, "expected a tensor of target laws .* and a Draft"),
    ):
        with pytest.raises((kind, TypeCheckError)) as refusal:
            rule.verify(*arguments)
        assert refusal.type is TypeCheckError or re.search(words, str(refusal.value))
    for position in (2.5, "a", torch.tensor([1, 2]), True):
        with pytest.raises((TypeError, TypeCheckError)):
            rule.verify(key(0), laws, good, position=position)
