"""The n-gram matcher against a direct search, and the proposers built on drafts of tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec_fn.random import key
from specdec_fn.speculate import Proposer, proposers
from specdec_fn.speculate.proposers import ngram, paying, scripted

CASES = [  # known faults N1 to N7
    ([5, 6, 7, 8, 9, 10, 11, 7, 8], {"n_max": 2, "k": 3}, [9, 10, 11]),
    ([1, 2, 3], {"n_max": 2}, []),
    ([5], {"n_max": 2}, []),
    ([], {"n_max": 2}, []),
    ([1, 2, 3, 4, 9, 1, 2, 5, 6, 1, 2], {"n_max": 2, "k": 2}, [5, 6]),
    ([7, 7, 7], {"n_max": 2, "k": 3}, [7]),
    ([1, 2, 1], {"n_max": 1, "k": 5}, [2, 1]),
    ([1, 2, 3, 1, 2], {"n_max": 3, "k": 4}, [3, 1, 2]),
    ([1, 2, 9, 1, 2, 8, 8, 8][:5], {"n_max": 2, "k": 2}, [9, 1]),
    ([4, 1, 2, 3, 9, 9, 2, 3, 8, 1, 2, 3], {"n_max": 3, "k": 2}, [9, 9]),
    ([1, 2, 1], {"k": 0}, []),
]


@pytest.mark.parametrize(("tokens", "settings", "expected"), CASES)
def test_reported_cases(tokens, settings, expected):
    assert ngram.match(tokens, **settings) == expected


def direct(tokens, n_max, n_min, k):
    for n in range(n_max, n_min - 1, -1):
        for start in range(len(tokens) - n - 1, -1, -1):
            if tokens[start : start + n] == tokens[len(tokens) - n :]:
                return tokens[start + n : start + n + k]
    return []


@given(
    tokens=st.lists(st.sampled_from([0, 1, 255, 256, 65_536, 2**40]), max_size=30),
    n_min=st.integers(1, 3),
    extra=st.integers(0, 3),
    k=st.integers(0, 6),
)
def test_match_is_the_direct_search(tokens, n_min, extra, k):
    """N4: never more than k, never a token that is not there; ids whose bytes overlap other ids' do not fool it."""
    assert ngram.match(tokens, n_min + extra, n_min, k) == direct(tokens, n_min + extra, n_min, k)


@pytest.mark.parametrize(("n_max", "n_min", "k"), [(1, 2, 3), (3, 0, 3), (0, 0, 1), (3, 1, -1)])
def test_bad_settings(n_max, n_min, k):
    with pytest.raises(ValueError, match="expected"):
        ngram.match([1, 2, 1], n_max, n_min, k)


def propose(proposer: Proposer, tokens, k=3):
    return proposer.propose(key(0), proposer.init(tokens), tokens, k, position=len(tokens))[1]


@given(tokens=st.lists(st.integers(0, 3), min_size=1, max_size=20), k=st.integers(0, 5))
def test_the_proposer_drafts_the_match(tokens, k):
    """N6: nothing is kept between requests; the draft is a function of the committed tokens."""
    draft = propose(ngram.proposer(), tokens, k)
    assert draft.tokens[: int(draft.length)].tolist() == ngram.match(tokens, k=k)
    assert draft.tokens.shape == (k,)
    assert draft.probs is None


def test_scripted_passes_the_context_and_cuts_to_k():
    seen = []
    draft = propose(scripted.proposer(lambda context: seen.append(context) or [8, 9, 10, 11]), [5, 6], 2)
    assert seen == [[5, 6]]
    assert draft.tokens.tolist() == [8, 9]


@pytest.mark.parametrize("wrong", [7, None, ["a"], [1.5]])
def test_scripted_refuses_what_is_no_list_of_ids(wrong):
    with pytest.raises(TypeError, match="expected a list of ids"):
        propose(scripted.proposer(lambda context: wrong), [5])


def run(proposer, truth, passes, k=3):
    """Draft lengths when the committed tokens follow ``truth``, and every pass commits what it keeps and one more."""
    tokens, state, lengths = [1], proposer.init([1]), []
    for _ in range(passes):
        state, draft = proposer.propose(key(0), state, tokens, k, position=len(tokens))
        drafted = draft.tokens[: int(draft.length)].tolist()
        kept = 0
        while kept < len(drafted) and drafted[kept] == truth(len(tokens) + kept):
            kept += 1
        tokens = tokens + [truth(len(tokens) + i) for i in range(kept + 1)]
        lengths.append(len(drafted))
    return lengths


def test_paying_never_rests_while_drafts_are_kept():
    right = paying.proposer(scripted.proposer(lambda context: [len(context) % 7 + i for i in range(3)]))
    assert run(right, lambda place: place % 7, 3) == [2, 3, 3]
    always = paying.proposer(scripted.proposer(lambda context: [5] * 20))
    assert run(always, lambda place: 5, 50, k=12) == [2, 4, 8] + [12] * 47


@pytest.mark.parametrize(("period", "expected"), [(5, [2, 4, 2, 4, 2, 4]), (3, [2, 4, 2, 4, 2, 4]), (9, [2, 4, 8, 2, 4, 8])])
def test_paying_shortens_drafts_to_what_was_kept(period, expected):
    """The truth is 5 but for a 0 now and then; a draft that runs into it is followed by one no longer than what was kept, then by growth."""
    fives = paying.proposer(scripted.proposer(lambda context: [5] * 20))
    assert run(fives, lambda place: 0 if place % period == 0 else 5, 6, k=12) == expected


def test_paying_rests_ever_longer_on_wrong_drafts_and_wakes_again():
    truth = {"value": 0}
    wrong = paying.proposer(scripted.proposer(lambda context: [5, 5, 5]), longest_pause=8)
    lengths = run(wrong, lambda place: truth["value"], 100)
    pauses = [len(pause) for pause in "".join("x" if length else "." for length in lengths).split("x")]
    assert [pause for pause in pauses if pause][:6] == [1, 2, 4, 8, 8, 8]
    assert sum(map(bool, lengths)) < 20
    assert sum(map(bool, run(wrong, lambda place: 5 if place > 60 else 0, 100)[-20:])) == 20


@pytest.mark.parametrize("settings", [{"least": -1.0}, {"memory": 1.0}, {"longest_pause": 0}, {"shortest": 0}, {"start": float("nan")}])
def test_paying_refuses_bad_settings(settings):
    with pytest.raises(ValueError, match="expected"):
        paying.proposer(ngram.proposer(), **settings)


def test_names():
    assert proposers.named("ngram").name == "ngram"
    mine = ngram.proposer(2, 2)
    assert proposers.named(mine) is mine
    with pytest.raises(ValueError, match="'nonsense'; expected a Proposer or one of the names ngram"):
        proposers.named("nonsense")
