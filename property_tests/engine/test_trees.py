"""A tree is checked in one forward: its rows are what plain decoding computes along each line, and what is kept is what was accepted."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_fn import SamplingParams, engine, generate
from specdec_fn.engine.attention import CAUSAL, INVARIANT
from specdec_fn.engine.generate import cached, speculative
from specdec_fn.engine.law import law
from specdec_fn.kv import branching, dense
from specdec_fn.models import Config, invariant, llama, logits
from specdec_fn.pytree import checking
from specdec_fn.random import key
from specdec_fn.speculate import Proposer, proposers, tree, verifiers

SMALL = Config("llama", vocab_size=24, context=96, width=16, layers=2, heads=4, kv_heads=2, head_dim=4, ffn=20, tied=True)
TREES = [name for name, rule in verifiers.items() if rule.trees]
GREEDY = SamplingParams(temperature=0)


def model(dtype=torch.float64):
    make = torch.Generator().manual_seed(3)
    shapes = llama.shapes(SMALL)
    return llama.model(
        SMALL, llama.assemble(SMALL, lambda name: (0.4 * torch.randn(shapes[name], generator=make) + 0.5 * ("norm" in name)).to(dtype))
    )


MODEL = model()
PARENTS = st.integers(1, 6).flatmap(lambda k: st.tuples(*[st.integers(-1, i - 1) for i in range(k)])).map(list)


def forest(candidates: int, coming: tuple[int, ...] = (), start: int = 0) -> Proposer:
    """Trees of guesses; if what is coming is known, one branch is right for two tokens, and it is not the first."""

    def propose(key, state, tokens, k, *, position):
        lines = [[(tokens[-1] * (c + 2) + i + c) % SMALL.vocab_size for i in range(3)] for c in range(candidates)]
        return state, tree.merge([lines[0], list(coming[len(tokens) - start :][:2]), *lines[1:]], k)

    return Proposer("forest", lambda prompt: (), propose)


@given(parents=PARENTS, seed=st.integers(0, 99))
@settings(max_examples=25, deadline=None)
def test_each_row_of_a_tree_is_a_row_of_its_own_line(parents, seed):
    gen = torch.Generator().manual_seed(seed)
    committed = torch.randint(0, 24, (6,), generator=gen)
    nodes = torch.randint(0, 24, (len(parents),), generator=gen)
    shape = torch.tensor(parents)
    for attend, tolerance in ((branching.attend, 1e-12), (branching.attend_invariant, 1e-12)):
        cache = dense.init(SMALL, 20, dtype=torch.float64)
        for tensor in (*cache.keys, *cache.values):
            tensor.fill_(float("nan"))
        cache = dense.advance(MODEL.apply(MODEL.params, committed[:5], torch.arange(5), cache, dense.attend)[1], 5)
        rows = torch.cat([committed[5:], nodes])
        path = [0, *(above + 1 for above in tree.ancestors(shape)[-1].nonzero().flatten().tolist())]
        with torch.inference_mode(), checking():
            out, cache = MODEL.apply(MODEL.params, rows, tree.positions(shape, 6), cache, attend(tree.mask(shape)))
            kept = branching.keep(cache, torch.tensor(path))
        for node, above in enumerate(tree.ancestors(shape)):
            alone = logits(MODEL, torch.cat([committed, nodes[above]]))[-1]
            assert torch.allclose(out[node + 1], alone, atol=tolerance), f"node {node} of {parents}"
        assert torch.allclose(out[0], logits(MODEL, committed)[-1], atol=tolerance)
        straight = dense.init(SMALL, 20, dtype=torch.float64)
        straight = MODEL.apply(MODEL.params, torch.cat([committed[:5], rows[path]]), torch.arange(5 + len(path)), straight, dense.attend)[1]
        assert kept.length == 5 + len(path)
        for a, b in zip((*kept.keys, *kept.values), (*straight.keys, *straight.values), strict=True):
            assert torch.allclose(a[: kept.length], b[: kept.length], atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(parents=PARENTS, seed=st.integers(0, 99))
@settings(max_examples=15, deadline=None)
def test_in_invariant_mode_a_branch_has_the_bits_of_its_line(dtype, parents, seed):
    same = invariant(model(dtype))
    gen = torch.Generator().manual_seed(seed)
    committed, nodes = torch.randint(0, 24, (4,), generator=gen), torch.randint(0, 24, (len(parents),), generator=gen)
    shape = torch.tensor(parents)

    def start():
        cache = dense.init(SMALL, 14, dtype=dtype)
        return dense.advance(same.apply(same.params, committed[:3], torch.arange(3), cache, dense.attend_invariant)[1], 3)

    with torch.inference_mode():
        attend = branching.attend_invariant(tree.mask(shape))
        out, _ = same.apply(same.params, torch.cat([committed[3:], nodes]), tree.positions(shape, 4), start(), attend)
        for node, above in enumerate(tree.ancestors(shape)):
            cache = start()
            for place, token in enumerate([committed[3], *nodes[above]]):
                row, cache = same.apply(same.params, token[None], torch.tensor([3 + place]), cache, dense.attend_invariant)
                cache = dense.advance(cache, 1)
            assert out[node + 1].equal(row[0]), f"node {node} of {parents}"


@pytest.mark.parametrize("name", TREES)
@pytest.mark.parametrize("attention", [CAUSAL, INVARIANT])
def test_greedy_ids_are_those_of_plain_decoding_whatever_branches(name, attention):
    prompt = [3, 1, 4, 1, 5]
    alone = list(cached(MODEL, key(0), law(GREEDY), prompt, 30))
    for k in (1, 4, 9):
        drafting = forest(4, tuple(alone), len(prompt))
        passes = list(speculative(MODEL, key(0), law(GREEDY), prompt, 30, drafting, verifiers[name], k, attention=attention))
        assert [token for one in passes for token in one.tokens] == alone
    assert any(one.kinds.count("accepted") == 2 for one in passes)


@pytest.mark.parametrize("name", TREES)
def test_penalties_see_the_line_of_each_node(name):
    """L8, on trees: what a node's row knows is the committed ids and its own ancestors, not its siblings."""
    controls = SamplingParams(temperature=0, presence_penalty=0.7, repetition_penalty=1.3)
    prompt = [3, 1, 4]
    alone = list(cached(MODEL, key(0), law(controls, prompt), prompt, 24))
    found = [t for one in speculative(MODEL, key(0), law(controls, prompt), prompt, 24, forest(5), verifiers[name], 8) for t in one.tokens]
    assert found == alone


def test_coupled_emits_one_sequence_alone_in_company_and_on_branches():
    rule, same, prompt = verifiers["coupled"], invariant(MODEL), [7, 7, 2]
    quiet = proposers.scripted.proposer(lambda context: [])
    parts = key(5), law(SamplingParams()), prompt, 25
    alone = [t for one in speculative(same, *parts, quiet, rule, 0, attention=INVARIANT) for t in one.tokens]
    for drafting in (quiet, forest(1), forest(4), proposers.ngram.proposer(), proposers.ngram_tree.proposer()):
        for k in (1, 3, 8):
            state = engine.init(MODEL, engine.Config(page_size=3, num_pages=20, prefill_chunk=2, verifier=rule, invariant=True))
            for seed, proposer, most in ((5, drafting, k), (6, forest(2), 5)):
                state, _ = engine.submit(state, engine.Request(prompt, 25, seed=seed, proposer=proposer, k=most))
            state, done = engine.run(MODEL, state)
            assert done[0].tokens == alone
            assert done[1].tokens != alone


def test_a_tree_under_a_rule_for_chains_is_refused_in_one_sentence():
    with pytest.raises(ValueError, match="expected 0, a chain, since this verifier knows no trees"):
        generate(MODEL, [1, 2, 3], proposer=forest(3), verifier="token", max_tokens=8)


@pytest.mark.parametrize("name", ["typical", "lenient"])
def test_a_lossy_rule_needs_more_than_its_name(name):
    with pytest.raises(ValueError, match=f"verifier '{name}' does not keep the target's law; expected a lossless one"):
        generate(MODEL, [1, 2, 3], proposer="ngram", verifier=name, max_tokens=8)
    assert len(generate(MODEL, [1, 2, 3], proposer="ngram", verifier=verifiers[name], max_tokens=8).tokens) == 8


@pytest.mark.parametrize("name", [name for name, rule in verifiers.items() if rule.lossless and name != "greedy"])
def test_every_lossless_rule_generates_with_the_named_proposers(name):
    for proposer in ("ngram", "ngram_tree") if verifiers[name].trees else ("ngram",):
        done = generate(MODEL, [1, 2, 3, 1, 2, 3, 1, 2], proposer=proposer, verifier=name, max_tokens=20, seed=4)
        assert len(done.tokens) == done.stats.emitted == 20
        assert done.stats.accepted <= done.stats.proposed


def test_kinds_and_counts_on_trees_are_by_depth():
    """What follows a leaf is a bonus, what follows a node with children is recovered; a place in the draft is a depth."""
    from specdec_fn.engine.generation import Stats, add_pass

    prompt = [3, 1, 4, 1, 5]
    alone = list(cached(MODEL, key(0), law(GREEDY), prompt, 12))
    drafting = forest(2, tuple(alone), len(prompt))
    passes = list(speculative(MODEL, key(0), law(GREEDY), prompt, 12, drafting, verifiers["greedy"], 7))
    assert passes[0].kinds == ["accepted", "accepted", "bonus"]
    assert passes[0].proposed == 7
    assert passes[0].depth == 3
    stats = Stats()
    for one in passes:
        stats = add_pass(stats, one)
    assert len(stats.per_position) == 3
    assert [kept for _, kept in stats.per_position][2] == 0
    assert sum(kept for _, kept in stats.per_position) == stats.accepted
    wrong = list(speculative(MODEL, key(0), law(GREEDY), prompt, 12, forest(2), verifiers["greedy"], 2))
    assert wrong[0].kinds == ["recovered"]
