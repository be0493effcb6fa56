"""N8: a drafting model whose ids mean other texts is refused, with both sizes and the first token that differs."""

import pytest

from specdec_fn.text import Tokenizer, vocabulary


def made(tokens: list[bytes], *, bytewise: bool = True) -> Tokenizer:
    def decode(ids: list[int], *, skip_special: bool = True) -> str:
        return b"".join(tokens[i] for i in ids).decode("utf-8", "replace")

    def token_bytes(id: int, *, skip_special: bool = True) -> bytes:
        return b"" if skip_special and tokens[id].startswith(b"<") else tokens[id]

    return Tokenizer(list, decode, None, (), len(tokens), token_bytes if bytewise else None)


LONG = [b"<s>", b"a", b"\xc3", *(f"word{i}".encode() for i in range(2000))]


@pytest.mark.parametrize("draft", [LONG, LONG[:-40], [*LONG, b"<pad0>", b"<pad1>"]], ids=["same", "shorter", "padded"])
@pytest.mark.parametrize("bytewise", [True, False])
def test_one_may_go_on_where_the_other_ends(draft: list[bytes], bytewise: bool) -> None:
    vocabulary.check_same(made(LONG), made(draft, bytewise=bytewise))


@pytest.mark.parametrize(
    ("place", "other", "shown"),
    [
        (1, b"b", "'b' as token 1; expected 'a'"),
        (2, b"\xa9", r"b'\xa9' as token 2; expected b'\xc3'"),
        (0, b"<t>", "'<t>' as token 0; expected '<s>'"),
    ],
)
def test_the_first_difference_is_named_with_both_sizes(place: int, other: bytes, shown: str) -> None:
    """Bytes that are no text are told apart where both tokenizers give bytes, and so are control tokens."""
    draft = [*LONG[:place], other, *LONG[place + 1 : 900], b"another difference", *LONG[901:1500]]
    assert vocabulary.first_difference(made(LONG), made(draft)) == place
    with pytest.raises(ValueError, match=r"^the draft's vocabulary") as caught:
        vocabulary.check_same(made(LONG), made(draft))
    assert str(caught.value) == f"the draft's vocabulary of 1,500 tokens has {shown}, as in the target's of 2,003 tokens"


def test_only_tokenizers_are_compared() -> None:
    with pytest.raises(TypeError, match=r"^one of the tokenizers is None; expected a Tokenizer, such as load\(\.\.\.\)\[1\]$"):
        vocabulary.check_same(made(LONG), None)  # type: ignore[arg-type]
