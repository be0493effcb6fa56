"""Streaming text equals decoding all at once, for any ids in any chunking, and keeps what it holds bounded."""

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models

from specdec_fn.text import Tokenizer, detokenizer

SIZE = 49152
BYTES_FROM = 17  # ids 17 to 251 of the embedded model are single bytes; it has no others, so 21 bytes cannot be written
SINGLE = st.integers(BYTES_FROM, 251)
MISSING = {0x04, 0x06, 0x13, 0x14, 0x16, 0x1D, 0xC0, 0xC1, 0xF1, 0xF2, *range(0xF5, 0x100)}
WRITABLE = st.characters(exclude_categories=["Cs"], exclude_characters="\ufffd").filter(lambda char: MISSING.isdisjoint(char.encode()))
ids_lists = st.lists(st.one_of(SINGLE, SINGLE, st.integers(0, SIZE - 1), st.integers(0, 16)), max_size=40)
chunk_sizes = st.lists(st.integers(0, 5), min_size=1, max_size=10)


def chunks(ids, sizes):
    """Cuts ids into pieces whose sizes repeat; a last piece takes the rest."""
    out, at = [], 0
    for size in itertools.islice(itertools.cycle(sizes), 2 * len(ids) + 2):
        out.append(ids[at : at + size])
        at += size
    return [*out, ids[at:]]


def stream(tokenizer, pieces, *, prompt=(), skip_special=True):
    state, out = detokenizer.init(tokenizer, prompt, skip_special=skip_special), []
    for piece in pieces:
        state, text = detokenizer.feed(state, piece)
        out.append(text)
    return out, detokenizer.finish(state)


def whole(tokenizer, pieces, **options):
    out, end = stream(tokenizer, pieces, **options)
    return "".join(out) + end


@pytest.fixture(scope="session", params=["bytes", "five fields"])
def either(request, smollm):
    """The embedded model's tokenizer, with its table of bytes and with nothing but the five fields of the contract."""
    return smollm if request.param == "bytes" else Tokenizer(smollm.encode, smollm.decode, smollm.chat, smollm.eos_ids, smollm.size)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_characters_split_over_tokens_are_not_lost(either, size):
    """T1."""
    ids = [33085, 246, 181, 130, 251, 183, 240, 129]
    out, end = stream(either, chunks(ids, [size]))
    assert "".join(out) == "한국어"
    assert "\ufffd" not in "".join(out)
    assert end == ""


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        ([2899], " leading"),  # T2
        ([12420, 982, 216, 2853], "don't  stop"),  # T2
        ([333, 1673], "    ."),  # T4
        ([537, 3297, 827, 5728], "one , two !"),  # T4
    ],
)
def test_spaces_stay_where_they_are(either, ids, text):
    """T2, T4."""
    assert either.decode(ids) == text
    for size in (1, 2, 3):
        assert whole(either, chunks(ids, [size])) == text


@given(data=st.data())
def test_an_invalid_byte_order_does_not_break_the_stream(either, data):
    """T3: bytes 99 82 first, then anything."""
    ids = [38887, *data.draw(st.lists(st.integers(0, SIZE - 1), min_size=50, max_size=50))]
    assert either.decode([38887]) == "\ufffd\ufffd"
    assert whole(either, [[i] for i in ids]) == either.decode(ids)


@pytest.mark.parametrize("size", [1, 2, 3, 6])
def test_special_tokens_are_skipped_or_kept_in_any_chunking(either, size):
    """T5."""
    ids = [1, 4093, 198, 26843, 2, 198]
    assert whole(either, chunks(ids, [size])) == "user\nHi\n"
    assert whole(either, chunks(ids, [size]), skip_special=False) == "<|im_start|>user\nHi<|im_end|>\n"


@given(ids=ids_lists, sizes=chunk_sizes, skip_special=st.booleans())
@example(ids=[BYTES_FROM + 130] * 60, sizes=[1], skip_special=True)
def test_any_ids_in_any_chunking_give_the_decoded_text(either, ids, sizes, skip_special):
    """T1, T3, T5."""
    out, end = stream(either, chunks(ids, sizes), skip_special=skip_special)
    text = either.decode(ids, skip_special=skip_special)
    assert "".join(out) + end == text
    # All that may be held at the end is one U+FFFD with byte knowledge, and a few of them without.
    assert set(end) <= {"\ufffd"}
    assert len(end) <= (1 if either.token_bytes else 60)


@given(text=st.text(WRITABLE, max_size=30), sizes=chunk_sizes)
def test_no_mark_of_loss_ever_shows_for_whole_text(either, text, sizes):
    """T1."""
    ids = either.encode(text)
    out, end = stream(either, chunks(ids, sizes))
    assert not any("\ufffd" in delta for delta in out)
    assert ("".join(out), end) == (text, "")


@given(ids=ids_lists, skip_special=st.booleans())
def test_every_delta_is_out_as_soon_as_it_is_certain(smollm, ids, skip_special):
    """After each id the text out is all of the decoded text, less one U+FFFD exactly when a byte to come could still repair it."""
    state, so_far = detokenizer.init(smollm, skip_special=skip_special), ""
    for n, i in enumerate(ids, 1):
        state, delta = detokenizer.feed(state, [i])
        so_far += delta
        raw = b"".join(smollm.token_bytes(j, skip_special=skip_special) for j in ids[:n])
        now = raw.decode("utf-8", "replace")
        # The last character can be repaired if some bytes to come make another single character of it.
        repairs = [(raw + bytes([second]) + b"\x80" * more).decode("utf-8", "replace") for second in (0x80, 0x90, 0xA0) for more in range(3)]
        open_end = any(len(text) == len(now) and text[-1:] not in ("", "\ufffd") for text in repairs)
        assert so_far == (now[:-1] if open_end else now)


@given(prompt=ids_lists, ids=ids_lists, sizes=chunk_sizes)
def test_a_stream_continues_its_prompt(smollm, prompt, ids, sizes):
    """What prompt and stream give together is the text of both; a character begun in the prompt is given whole by the stream."""
    held = detokenizer.finish(detokenizer.init(smollm, prompt))
    before = smollm.decode(prompt)
    assert before.endswith(held)
    text = before[: len(before) - len(held)] + whole(smollm, chunks(ids, sizes), prompt=prompt)
    assert text == smollm.decode([*prompt, *ids])


def test_a_stream_continues_a_prompt_inside_a_character(either):
    ids = [33085, 246, 181, 130, 251, 183, 240, 129]
    for n in range(len(ids)):
        before = either.decode(ids[:n]).rstrip("\ufffd")
        assert before + whole(either, [[i] for i in ids[n:]], prompt=ids[:n]) == "한국어"


@given(ids=ids_lists)
def test_what_is_kept_is_bounded_and_the_old_state_stays_good(either, ids):
    states = [detokenizer.init(either)]
    for i in ids + [BYTES_FROM + 130] * 40:
        states.append(detokenizer.feed(states[-1], [i])[0])
    assert all(len(state.tail) <= 16 for state in states)
    middle = states[len(ids)]
    assert detokenizer.feed(middle, [BYTES_FROM + 130])[0] == states[len(ids) + 1]


@pytest.mark.parametrize("junk", [b"\x80", b"\xff", b"\xc3", b"\xf0\x9f", b"\xe2\x82\x28", b"\xf0\x9f\x98"])
@pytest.mark.parametrize("length", range(14, 24))
def test_a_character_after_long_junk_is_whole(junk, length):
    """T3: without byte knowledge the window has overflowed by then, at every possible place."""
    tokenizer = Tokenizer(None, lambda ids, skip_special=True: bytes(ids).decode("utf-8", "replace"), None, (), 256)
    raw = (junk * length)[:length] + "😀é€a".encode() + junk * 20 + "😀".encode()
    assert whole(tokenizer, [[byte] for byte in raw]) == raw.decode("utf-8", "replace")


def test_an_id_without_a_token_is_refused(either):
    with pytest.raises(ValueError, match="received 49152, expected ids from 0 to 49151"):
        detokenizer.feed(detokenizer.init(either), [49152])
    with pytest.raises(ValueError, match="received -1"):
        detokenizer.init(either, [-1])


# Decoders that are not a matter of bytes: their text depends on which token is first, or takes text back while a character is incomplete.

WORDS = ["<unk>", "▁", "▁the", "▁cat", "s", "##s", "é", "▁▁", *[f"<0x{byte:02X}>" for byte in range(256)]]


def library(decoder):
    made = Library(models.BPE({word: i for i, word in enumerate(WORDS)}, [], unk_token="<unk>"))
    if decoder is not None:
        made.decoder = decoder
    return Tokenizer(None, lambda ids, skip_special=True: made.decode(ids, skip_special_tokens=skip_special), None, (), len(WORDS))


FIRST_MATTERS = {
    "metaspace": decoders.Metaspace(),
    "metaspace, never": decoders.Metaspace(prepend_scheme="never"),
    "word piece": decoders.WordPiece(),
    "none": None,
    "strip": decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]),
    "strip two": decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 2, 0)]),
}


@pytest.mark.parametrize("name", FIRST_MATTERS)
@given(ids=st.lists(st.integers(0, 7), max_size=30), sizes=chunk_sizes)
def test_decoders_that_treat_the_first_token_apart(name, ids, sizes):
    tokenizer = library(FIRST_MATTERS[name])
    assert whole(tokenizer, chunks(ids, sizes)) == tokenizer.decode(ids)


@pytest.mark.parametrize("name", FIRST_MATTERS)
@given(prompt=st.lists(st.integers(2, 6), min_size=1, max_size=30), ids=st.lists(st.integers(0, 7), max_size=10))
def test_a_space_after_the_prompt_is_kept(name, prompt, ids):
    """T2."""
    tokenizer = library(FIRST_MATTERS[name])
    assert tokenizer.decode(prompt) + whole(tokenizer, [[i] for i in ids], prompt=prompt) == tokenizer.decode(prompt + ids)


LLAMA = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])


@given(
    text=st.text(st.one_of(st.sampled_from("s é"), st.characters(exclude_categories=["Cs"], exclude_characters="▁\ufffd")), max_size=30),
    sizes=chunk_sizes,
)
def test_byte_fallback_of_the_library_streams_whole_text(text, sizes):
    """T1: runs of byte tokens are all U+FFFD in this decoder as long as the last character is incomplete; none of it may show."""
    tokenizer, number = library(LLAMA), {word: i for i, word in enumerate(WORDS)}
    ids = []
    for char in text:
        ids += [number["▁"]] if char == " " else [number[char]] if char in number else [number[f"<0x{byte:02X}>"] for byte in char.encode()]
    out, end = stream(tokenizer, chunks(ids, sizes))
    assert "".join(out) + end == text.removeprefix(" ")
    assert "\ufffd" not in "".join(out)
