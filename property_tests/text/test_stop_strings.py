"""Stop strings: what comes out is the text before the match that is complete first, however the text is cut into pieces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec_fn.text import stop


def run(strings, pieces):
    """Feeds pieces one by one; the text of each piece, whether there was a hit after each, and what was held at the end."""
    state, out, hits = stop.init(strings), [], []
    for piece in pieces:
        state, text, hit = stop.feed(state, piece)
        out.append(text)
        hits.append(hit)
    return out, hits, stop.finish(state), state


def cut(strings, text):
    """The rule, read off the whole text: go from left to right, stop where any string has just ended, take the longest such."""
    for end in range(len(text) + 1):
        ended = [string for string in strings if text[:end].endswith(string)]
        if ended:
            return text[: end - max(map(len, ended))], True
    return text, False


def test_a_stop_string_split_over_pieces_does_not_leak():
    """L13."""
    out, hits, held, state = run(["beta gamma"], ["al", "pha b", "eta ga", "mma de", "lta"])
    assert "".join(out) == "alpha "
    assert not any("b" in text for text in out)
    assert hits == [False, False, False, True, True]
    assert held == ""
    assert state.matched == "beta gamma"


def test_held_text_is_released_where_there_is_no_match():
    """L13."""
    out, hits, held, state = run(["beta gamma"], ["alpha bet"])
    assert (out, hits, held) == (["alpha "], [False], "bet")
    assert state.matched is None


def test_false_starts_are_released_as_soon_as_they_are_false():
    assert run(["aab"], ["a", "a", "a", "c"])[0] == ["", "", "a", "aac"]


@pytest.mark.parametrize(
    ("strings", "text", "left"),
    [
        (["cd", "ab"], "xabcd", "x"),  # the first that is complete, whatever the order of the list
        (["ab", "cd"], "xabcd", "x"),
        (["abcd", "bc"], "xabcd", "xa"),  # complete first, though it began later
        (["bc", "abc"], "xabc", "x"),  # complete at the same character: the longer
    ],
)
def test_which_of_two_wins(strings, text, left):
    for pieces in ([text], list(text)):
        out, hits, held, _ = run(strings, pieces)
        assert ("".join(out), hits[-1], held) == (left, True, "")


@given(st.text("ab", min_size=1, max_size=4), st.lists(st.text("ab", max_size=5), max_size=8))
def test_one_string_cuts_where_find_finds_it(string, pieces):
    whole = "".join(pieces)
    out, hits, held, _ = run([string], pieces)
    found = whole.find(string)
    assert "".join(out) + held == (whole if found < 0 else whole[:found])
    assert (bool(hits) and hits[-1]) == (found >= 0)


@given(st.lists(st.text("ab", min_size=1, max_size=5), max_size=4), st.lists(st.text("ab", max_size=6), max_size=8))
def test_several_strings_follow_the_rule_in_any_chunking(strings, pieces):
    whole = "".join(pieces)
    out, hits, held, state = run(strings, pieces)
    text, hit = cut(strings, whole)
    assert "".join(out) + held == text
    assert (bool(hits) and hits[-1]) == hit
    assert (state.matched in strings) == hit
    # A hit shows at the very piece that completes the string, and everything that no string can claim is out by then.
    for n in range(len(pieces)):
        so_far = "".join(pieces[: n + 1])
        assert hits[n] == cut(strings, so_far)[1]
        if not hits[n]:
            waiting = so_far[len("".join(out[: n + 1])) :]
            assert waiting == max((so_far[i:] for i in range(len(so_far)) if any(s.startswith(so_far[i:]) for s in strings)), key=len, default="")


@pytest.mark.parametrize(("strings", "error"), [([""], ValueError), (["a", ""], ValueError), ([1], TypeError), ([b"a"], TypeError)])
def test_bad_stop_strings_are_refused(strings, error):
    with pytest.raises(error, match="stop: received"):
        stop.init(strings)


def test_a_single_str_is_one_stop_string():
    assert stop.init("ab").strings == ("ab",)
