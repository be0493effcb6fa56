"""Draft trees as values: what parents say about ancestors, depth, visibility and position, and how candidates become one tree."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specdec_fn.random import key
from specdec_fn.speculate import Draft, proposers, tree
from specdec_fn.speculate.draft import chain
from specdec_fn.speculate.verifiers.traversal import postorder

PARENTS = st.integers(0, 7).flatmap(lambda k: st.tuples(*[st.integers(-1, i - 1) for i in range(k)])).map(list)


def line(parents: list[int], node: int) -> list[int]:
    return [] if node < 0 else [*line(parents, parents[node]), node]


@given(parents=PARENTS)
def test_ancestors_depths_and_the_mask_follow_the_parents(parents):
    given_as = torch.tensor(parents, dtype=torch.int64)
    lines = [line(parents, node) for node in range(len(parents))]
    assert [row.nonzero().flatten().tolist() for row in tree.ancestors(given_as)] == lines
    assert tree.depths(given_as).tolist() == [len(one) for one in lines]
    assert tree.positions(given_as, 10).tolist() == [9, *(9 + len(one) for one in lines)]
    seen = tree.mask(given_as)
    assert seen[0].nonzero().flatten().tolist() == [0]
    assert [row.nonzero().flatten().tolist() for row in seen[1:]] == [[0, *(node + 1 for node in one)] for one in lines]


@given(parents=PARENTS, data=st.data())
def test_postorder_puts_children_before_their_parent_and_siblings_in_order(parents, data):
    """Against a recursive walk; nodes that do not count take their subtree with them."""
    k = len(parents)
    cut = data.draw(st.sets(st.integers(0, max(k - 1, 0))))
    valid = [not cut & set(line(parents, node)) for node in range(k)]

    def walk(node: int) -> list[int]:
        return [low for child in range(k) if parents[child] == node and valid[child] for low in walk(child)] + ([node] if node >= 0 else [])

    found = postorder(torch.tensor(parents, dtype=torch.int64), torch.tensor(valid, dtype=torch.bool)).tolist()
    assert [found[node] for node in walk(-1)] == list(range(sum(valid)))


def test_a_chain_is_a_tree_whose_nodes_follow_each_other():
    assert tree.parents_of(chain([4, 5, 6], 3)).tolist() == [-1, 0, 1]
    assert tree.mask(tree.parents_of(chain([4, 5], 2))).equal(torch.ones(3, 3, dtype=torch.bool).tril())


@given(chains=st.lists(st.lists(st.integers(0, 2), max_size=4), max_size=4), k=st.integers(0, 9))
def test_merged_candidates_share_their_beginnings_and_nothing_is_made_up(chains, k):
    merged = tree.merge(chains, k)
    count = int(merged.length)
    tokens, parents = merged.tokens[:count].tolist(), merged.parents[:count].tolist()
    paths = [tuple(tokens[node] for node in line(parents, node)) for node in range(count)]
    beginnings = {tuple(one[:n]) for one in chains for n in range(1, len(one) + 1)}
    assert len(set(paths)) == len(paths)  # each beginning once
    assert set(paths) <= beginnings
    assert count == min(k, len(beginnings))
    assert merged.tokens[count:].tolist() == merged.parents[count:].tolist() == [-1] * (k - count)
    assert merged.tokens.dtype == merged.parents.dtype == merged.length.dtype == torch.int64
    assert merged.probs is None


def test_what_follows_from_parents_lies_where_they_lie():
    """On the meta device, which mixes with no CPU tensor."""
    parents = torch.zeros(4, dtype=torch.int64, device="meta")
    drafted = Draft(parents, None, parents.sum())
    for made in (tree.ancestors(parents), tree.depths(parents), tree.mask(parents), tree.positions(parents, 3), tree.parents_of(drafted)):
        assert made.device.type == "meta"
    assert postorder(parents, parents == 0).device.type == "meta"


def test_merge_refuses_a_negative_size():
    with pytest.raises(ValueError, match="k is -1; expected 0 or more nodes"):
        tree.merge([[1]], -1)


def test_the_ngram_tree_drafts_what_followed_most_recent_first():
    drafting = proposers.ngram_tree.proposer(n_max=2, branches=2)
    text = [1, 2, 3, 9, 1, 2, 4, 9, 1, 2, 5, 9, 1, 2]
    draft = drafting.propose(key(0), drafting.init([]), text, 3, position=len(text))[1]
    assert draft.tokens.tolist() == [5, 4, 9]
    assert draft.parents.tolist() == [-1, -1, 0]
    nothing = drafting.propose(key(0), drafting.init([]), [1, 2, 3], 3, position=3)[1]
    assert int(nothing.length) == 0
    with pytest.raises(ValueError, match="branches is 0; expected at least 1"):
        proposers.ngram_tree.proposer(branches=0)


def test_a_draft_whose_parent_comes_after_its_child_is_refused():
    from specdec_fn.speculate.verifier import check_draft

    with pytest.raises(ValueError, match=r"draft.parents\[0\] is 1; expected an earlier node"):
        check_draft(Draft(torch.tensor([1, 2]), None, torch.tensor(2), torch.tensor([1, -1])), 5)
