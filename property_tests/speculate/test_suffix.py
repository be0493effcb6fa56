"""The suffix proposer against a search that tries every suffix and every place, and its state as a value."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec_fn import generate
from specdec_fn.models import toy
from specdec_fn.random import key
from specdec_fn.sampling import SamplingParams
from specdec_fn.speculate import proposers
from specdec_fn.speculate.proposers import suffix

TEXTS = st.integers(1, 4).flatmap(lambda size: st.lists(st.integers(0, size - 1), max_size=40))


def sought(text: Sequence[int]) -> tuple[int, list[int]]:
    """Every suffix, longest first, at every place before the end."""
    for length in range(len(text) - 1, 0, -1):
        ends = [end for end in range(length, len(text)) if text[end - length : end] == text[len(text) - length :]]
        if ends:
            return length, ends
    return 0, []


def expected(text: Sequence[int], k: int, least: float = 0.0) -> list[int]:
    """One token at a time: each place tells what follows it, in the text as it has grown, if it agreed with the draft so far."""
    line, (length, ends) = list(text), sought(text)
    drafted: list[int] = []
    while length and len(drafted) < k:
        agreeing = [end for end in ends if line[end : end + len(drafted)] == drafted]
        following = [line[end + len(drafted)] for end in agreeing]
        ranked = sorted(range(len(agreeing)), key=lambda i: (following.count(following[i]), agreeing[i]))
        best = following[ranked[-1]]
        if following.count(best) / len(ends) < least - 1e-12:
            break
        drafted.append(best)
        line.append(best)
    return drafted


def drafts(text: Sequence[int], k: int, state: suffix.Automaton | None = None, **settings: float) -> tuple[suffix.Automaton, list[int]]:
    one = suffix.proposer(**settings)
    state, draft = one.propose(key(0), one.init([]) if state is None else state, text, k, position=len(text))
    assert draft.probs is None
    return state, draft.tokens[: int(draft.length)].tolist()


@given(TEXTS)
def test_the_match_is_the_longest_suffix_that_ends_earlier(text: list[int]) -> None:
    assert suffix.match(suffix.extend(suffix.Automaton(), text)) == sought(text)


def test_the_match_holds_on_many_longer_texts() -> None:
    """States that were copied and moved in the tree of links show in texts of some length only."""
    numbers = random.Random(0)
    for size in (1, 2, 3, 5) * 100:
        text = [numbers.randrange(size) for _ in range(numbers.randrange(40))]
        assert suffix.match(suffix.extend(suffix.Automaton(), text)) == sought(text), text


@given(TEXTS, st.integers(0, 6), st.sampled_from([0.0, 0.3, 0.5, 0.75, 1.0]))
def test_the_draft_is_what_followed_most_often_and_most_recently(text: list[int], k: int, least: float) -> None:
    assert drafts(text, k, least=least)[1] == expected(text, k, least)


@pytest.mark.parametrize(
    ("text", "k", "draft"),
    [
        ([7, 7, 7], 3, [7, 7, 7]),  # N4: it does not match itself; text that repeats goes on repeating
        ([1, 2, 1], 2, [2, 1]),
        ([1, 2, 3, 1, 2], 4, [3, 1, 2, 3]),
        ([5, 1, 2, 8, 5, 1, 3, 9, 5, 1, 2, 7, 5, 1], 1, [2]),  # most often
        ([5, 1, 2, 9, 5, 1, 3, 8, 5, 1], 1, [3]),  # a tie: most recently
        ([1, 2, 3], 4, []),
        ([], 4, []),
        ([4], 4, []),
    ],
)
def test_cases_worked_by_hand(text: list[int], k: int, draft: list[int]) -> None:
    assert drafts(text, k)[1] == draft


def test_a_match_that_is_too_short_drafts_nothing() -> None:
    assert [drafts([1, 2, 9, 1, 2], 1, shortest=shortest)[1] for shortest in (1, 2, 3)] == [[9], [9], []]


@given(TEXTS, st.lists(st.integers(1, 7), max_size=8))
def test_a_state_that_grew_in_pieces_drafts_as_one_made_at_once(text: list[int], pieces: list[int]) -> None:
    state, end = suffix.proposer().init(text), 0
    for piece in pieces:
        end = min(end + piece, len(text))
        state, draft = drafts(text[:end], 4, state)
        assert draft == drafts(text[:end], 4)[1]


@given(TEXTS, TEXTS, TEXTS)
def test_a_state_may_be_used_again(text: list[int], one: list[int], other: list[int]) -> None:
    """A fork and a replay: what was read after a state leaves it as it was."""
    state = drafts(text, 3)[0]
    first = drafts([*text, *one], 5, state)[1]
    assert drafts([*text, *other], 5, state)[1] == expected([*text, *other], 5)
    assert drafts([*text, *one], 5, state)[1] == first == expected([*text, *one], 5)


@given(TEXTS, TEXTS)
def test_a_shorter_text_is_read_anew(text: list[int], other: list[int]) -> None:
    """N6: a state that has read more than there is belongs to something else."""
    state = drafts([*text, *other, 1], 3)[0]
    assert drafts(text, 4, state)[1] == expected(text, 4)


@given(TEXTS)
def test_the_automaton_is_small(text: list[int]) -> None:
    """At most 2n - 1 states and 3n - 4 transitions (Blumer et al. 1985), so reading is O(1) amortised a token."""
    states = suffix.extend(suffix.Automaton(), text).nodes
    if len(text) > 2:
        assert len(states) <= 2 * len(text)
        assert sum(len(states[number].edges) for number in range(len(states))) <= 3 * len(text) - 3


def test_settings_out_of_range_are_refused() -> None:
    for settings in ({"shortest": 0}, {"least": 1.5}, {"least": -0.1}):
        with pytest.raises(ValueError, match="expected at least 1 token, and a share in"):
            suffix.proposer(**settings)
    with pytest.raises(ValueError, match="k is -1; expected 0 or more"):
        drafts([1, 2], -1)


@given(st.integers(0, 10**6), st.lists(st.integers(0, 31), min_size=1, max_size=8), st.integers(0, 6))
def test_tokens_do_not_depend_on_the_drafts(seed: int, prompt: list[int], k: int) -> None:
    target, greedy = toy.llama(key(seed % 7), layers=1), SamplingParams(temperature=0)
    plain = generate(target, prompt, sampling=greedy, max_tokens=12)
    for proposer in (suffix.proposer(), "suffix", "suffix+ngram"):
        assert generate(target, prompt, sampling=greedy, max_tokens=12, proposer=proposer, k=k).tokens == plain.tokens


def test_by_name_it_rests_where_it_does_not_pay() -> None:
    named = proposers.named("suffix")
    state, lengths, text = named.init([]), [], [1, 2, 1]
    for step in range(8):
        state, draft = named.propose(key(0), state, text, 2, position=len(text))
        text, lengths = [*text, 1 + (step * 7 + 3) % 5], [*lengths, int(draft.length)]
    assert 0 in lengths
    assert lengths[0] == 2
