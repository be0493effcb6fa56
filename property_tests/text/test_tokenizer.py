"""Tokenizers against fixed ids, against merges done by hand, and against the libraries that others use."""

import itertools
import json
import sys
import threading

import pytest
import regex
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Library
from transformers import PreTrainedTokenizerFast

from specdec_fn.text import detokenizer, pieces, splits, tokenizer

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN = LLAMA.replace("{1,3}", "")
WORDS = {
    "gpt-2": lambda text: regex.findall(GPT2, text),
    "default": lambda text: regex.findall(GPT2, text),
    "smollm": lambda text: [word for part in regex.findall(r"\p{N}|\P{N}+", text) for word in regex.findall(GPT2, part)],
    "llama-bpe": lambda text: regex.findall(LLAMA, text),
    "qwen2": lambda text: regex.findall(QWEN, text),
}

# U+001C to U+001F are white space to Python and to nobody else; ſ folds to s only in some engines.
plain_text = st.text(
    st.one_of(
        st.sampled_from("  \n\r\t'stredmlTS129٣½éß한😀.,!?<|>_-\u00a0\u3000"),
        st.characters(exclude_categories=["Cs", "Cn"], exclude_characters="\x1c\x1d\x1e\x1fſK"),
    ),
    max_size=40,
)


def alphabet():
    """GPT-2's 256 printable characters for bytes, by its definition."""
    shifted = iter(range(256, 512))
    return {b: chr(b) if chr(b) in "!\"#$%&'()*+,-./0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrstuvwxyz{|}~"
            or 0xA1 <= b <= 0xAC or b >= 0xAE else chr(next(shifted)) for b in range(256)}  # fmt: skip


BYTE = alphabet()


def spelled(text):
    return "".join(BYTE[b] for b in text.encode())


def merged(word, ranks):
    """Merges a word the slow way: always the adjacent pair of lowest rank, the leftmost of equals."""
    parts = list(word)
    while len(parts) > 1:
        rank, at = min((ranks.get((left, right), len(ranks)), n) for n, (left, right) in enumerate(itertools.pairwise(parts)))
        if rank == len(ranks):
            break
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts


# The embedded model.


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("The capital of France is", [504, 3575, 282, 4649, 314]),
        ("한국어", [33085, 246, 181, 130, 251, 183, 240, 129]),  # T1
        (" leading", [2899]),  # T2
        ("don't  stop", [12420, 982, 216, 2853]),  # T2
        ("    .", [333, 1673]),  # T4
        ("one , two !", [537, 3297, 827, 5728]),  # T4
        ("brutalist", [1612, 316, 272, 363]),  # F6
        ("12345 apples", [33, 34, 35, 36, 37, 13855]),  # F7
        (" the cat's 3.14", [260, 2644, 506, 216, 35, 30, 33, 36]),  # F7
        ("", []),
    ],
)
def test_ids_of_known_texts(smollm, text, ids):
    """F6, F7, T1, T2, T4."""
    assert smollm.encode(text) == ids
    assert smollm.encode(text, special=True) == ids
    assert smollm.decode(ids) == text


def test_control_texts_are_control_tokens_on_request_only(smollm):
    """F8, T5: no bos id in front either way, since the file says so."""
    text, ids = "<|im_start|>user\nHi<|im_end|>\n", [1, 4093, 198, 26843, 2, 198]
    assert smollm.encode(text, special=True) == ids
    plain = smollm.encode(text)
    assert min(plain) > 16
    assert smollm.decode(plain) == text
    assert smollm.decode(ids) == "user\nHi\n"
    assert smollm.decode(ids, skip_special=False) == text
    assert [smollm.decode([i]) for i in ids] == ["", "user", "\n", "Hi", "", "\n"]


def test_the_files_own_eos_and_size(smollm):
    """F9: the eos id is read."""
    assert smollm.eos_ids == (2,)
    assert smollm.size == 49152


@pytest.fixture(scope="session")
def numbers(metadata):
    return {token: i for i, token in enumerate(metadata["tokenizer.ggml.tokens"])}


@pytest.fixture(scope="session")
def ranks(metadata):
    return {tuple(merge.split(" ")): n for n, merge in enumerate(metadata["tokenizer.ggml.merges"])}


@given(text=plain_text)
@example("brutalist 12345  don't\n\n\n  '' ½٣ ")
def test_merges_go_by_rank_in_words_of_the_right_cut(smollm, numbers, ranks, text):
    """F6, F7: against merging by hand, with the words that the independent expression cuts."""
    parts = [part for word in WORDS["smollm"](text) for part in merged(spelled(word), ranks)]
    assert smollm.encode(text) == [numbers[part] for part in parts if part in numbers]  # the file lacks 21 of the 256 bytes


@given(ids=st.lists(st.integers(0, 49151), max_size=40), skip_special=st.booleans())
def test_decoding_agrees_with_the_library(smollm, metadata, ids, skip_special):
    """T3, T5: also in what becomes U+FFFD."""
    tokens = metadata["tokenizer.ggml.tokens"]
    kept = [tokens[i] for i in ids if not (skip_special and i <= 16)]
    assert smollm.decode(ids, skip_special=skip_special) == decoders.ByteLevel().decode(kept)


@pytest.mark.parametrize(
    ("ids", "error"), [([49152], ValueError), ([-1], ValueError), ([0, 10**9], ValueError), ([1.5], TypeError), (7, TypeError), (["a"], TypeError)]
)
def test_ids_that_are_none_are_refused(smollm, ids, error):
    with pytest.raises(error, match="ids: received"):
        smollm.decode(ids)


@pytest.mark.parametrize(("text", "error"), [(b"a", TypeError), (None, TypeError), ("a\ud800", ValueError)])
def test_text_that_is_none_is_refused(smollm, text, error):
    with pytest.raises(error, match="text: received"):
        smollm.encode(text)


def test_a_long_text_is_encoded_like_a_short_one(smollm):
    line, end = "The cat's 12 한국어\n", "end  <|im_end|>"
    assert smollm.encode(line * 500 + end) == smollm.encode(line) * 500 + smollm.encode(end)
    for text in ("a" * 9000 + "\ud800", b"a" * 9000):
        with pytest.raises((TypeError, ValueError), match=r"text: received (a lone surrogate in 'aaaaaaaa|bytes)"):
            smollm.encode(text)


def test_other_threads_run_while_a_long_text_is_encoded(smollm):
    """No thread is made to give way here, so the other one runs only if the encoding lets it."""
    go, ran, text = threading.Event(), [], "the cat sat on 12 mats. " * 4000
    other = threading.Thread(target=lambda: (go.wait(60), ran.append(True)), daemon=True)
    other.start()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    try:
        go.set()
        tries = next((n for n in range(50) if smollm.encode(text) and ran), None)
    finally:
        sys.setswitchinterval(interval)
    other.join(60)
    assert tries is not None


# Splits.


def test_every_known_split_is_tested():
    assert set(WORDS) == set(splits.SPLITS)


@pytest.mark.parametrize("pre", WORDS)
@given(text=plain_text)
@example("I'LL it's we'Ve 1234567 a1b22c333 foo.bar!!\n\n\n  x \r\n\t y   ")
def test_words_agree_with_an_independent_expression(pre, text):
    """F7."""
    normalizer, pre_tokenizer = splits.build(splits.SPLITS[pre])
    text = normalizer.normalize_str(text) if normalizer is not None else text
    assert [word for word, _ in pre_tokenizer.pre_tokenize_str(text)] == [spelled(word) for word in WORDS[pre](text)]


# GGUF metadata made by hand.


def toy(pre="gpt-2", more=(), types=(), **changes):
    tokens = [*BYTE.values(), "he", "ll", "hell", "hello", "<s>", "</s>", "PAD", "  ", "[unused1]", *more]
    kinds = [1] * 260 + [3, 3, 3, 4, 5, *types]
    merges = ["h e", "l l", "he ll"]
    described = {"model": "gpt2", "pre": pre, "tokens": tokens, "token_type": kinds, "merges": merges, "bos_token_id": 260, "eos_token_id": 261}
    return {f"tokenizer.ggml.{key}": value for key, value in (described | changes).items() if value is not None}


def names(made, text, **options):
    return [made.decode([i], skip_special=False) for i in made.encode(text, **options)]


def test_a_whole_word_is_taken_without_merges_in_llama_bpe_only():
    assert names(tokenizer.from_gguf(toy("gpt-2")), "hello") == ["hell", "o"]
    assert names(tokenizer.from_gguf(toy("llama-bpe")), "hello") == ["<s>", "hello"]


@pytest.mark.parametrize("pre", WORDS)
def test_plain_text_never_gives_a_control_id(pre):
    """F8: also where a control text is a whole word, which llama-bpe looks up as it is."""
    made = tokenizer.from_gguf(toy(pre, add_bos_token=False))
    for text in ("PAD", "<s>", "a</s>b", "PADPAD PAD"):
        assert not {260, 261, 262} & set(made.encode(text))
        assert made.decode(made.encode(text)) == text
    assert made.encode("PAD</s>", special=True) == [262, 261]


def test_user_defined_tokens_are_found_in_any_text_and_unused_ones_have_no_text():
    made = tokenizer.from_gguf(toy(add_bos_token=False))
    assert made.encode("a  b") == made.encode("a  b", special=True) == [made.encode("a")[0], 263, made.encode("b")[0]]
    assert made.decode([263]) == "  "
    assert made.size == 264  # the last id is unused
    assert tokenizer.from_gguf(toy(more=["x"], types=[1])).size == 266
    assert tokenizer.from_gguf(toy(more=["x"], types=[1])).decode([264], skip_special=False) == ""


def test_tokens_that_are_not_normal_are_the_text_they_are():
    made = tokenizer.from_gguf(toy(more=["<é>", "Ġé"], types=[3, 4]))
    assert made.decode([265, 266], skip_special=False) == "<é>Ġé"


@given(token=st.text(st.one_of(st.sampled_from(list(BYTE.values())), st.characters(max_codepoint=0x150)), max_size=6))
@example("é x")
def test_a_token_with_a_stranger_to_the_byte_alphabet_is_the_text_it_is(token):
    assert pieces.byte_level(token).decode("utf-8", "replace") == decoders.ByteLevel().decode([token])


def test_a_bos_id_opens_plain_text_if_the_metadata_say_so():
    """F8."""
    for pre in WORDS:
        for said, bos in ((True, [260]), (False, []), (None, [260] if pre == "llama-bpe" else [])):
            made = tokenizer.from_gguf(toy(pre, add_bos_token=said))
            assert made.encode("b") == [*bos, made.encode("b")[-1]]
            assert made.encode("<s>b", special=True) == [260, made.encode("b")[-1]]


def test_a_text_that_two_ids_have_is_encoded_as_the_first():
    made = tokenizer.from_gguf(toy(more=["he"], types=[1]))
    assert made.encode("he") == [256]
    assert made.decode([265]) == "he"


def test_all_ends_of_a_turn_are_eos():
    """F9."""
    assert tokenizer.from_gguf(toy(eot_token_id=262, eom_token_id=261)).eos_ids == (261, 262)
    assert tokenizer.from_gguf(toy(eos_token_id=None)).eos_ids == ()


def test_composed_characters_in_qwen2_only():
    made = tokenizer.from_gguf(toy("qwen2"))
    assert made.encode("e\u0301") == made.encode("é")
    plain = tokenizer.from_gguf(toy("gpt-2"))
    assert plain.encode("e\u0301") != plain.encode("é")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model": "llama"}, "tokenizer.ggml.model: received 'llama', expected one of gpt2"),
        ({"model": None}, "tokenizer.ggml.model: received None"),
        ({"pre": "tekken"}, "tokenizer.ggml.pre: received 'tekken', expected one of default, gpt-2, smollm, llama-bpe, qwen2"),
        ({"pre": None}, "tokenizer.ggml.pre: received None"),
        ({"tokens": None}, "tokenizer.ggml.tokens: received None"),
        ({"merges": None}, "tokenizer.ggml.merges: received None"),
        ({"merges": ["h e", "nonsense"]}, "tokenizer.ggml.merges: received merges that do not fit"),
        ({"merges": ["h z"]}, "tokenizer.ggml.merges: received merges that do not fit"),
        ({"token_type": [1, 1]}, "tokenizer.ggml.token_type: received 2 entries, expected one for each of 265"),
        ({"eos_token_id": 265}, "tokenizer.ggml.eos_token_id: received 265, expected an id from 0 to 264"),
        ({"eot_token_id": "</s>"}, "tokenizer.ggml.eot_token_id: received '</s>', expected an id from 0 to 264"),
        ({"bos_token_id": None, "add_bos_token": True}, "tokenizer.ggml.add_bos_token: received true, expected a bos_token_id"),
    ],
)
def test_metadata_that_do_not_fit_are_refused(changes, sentence):
    """F7 among others: an unknown pre-tokenizer is never guessed."""
    with pytest.raises(ValueError, match=regex.escape(sentence)):
        tokenizer.from_gguf(toy(**changes))


# tokenizer.json.


def byte_level_json(**changes):
    made = Library(models.BPE({token: n for n, token in enumerate([*BYTE.values(), "he", "ll", "hell"])}, [("h", "e"), ("l", "l"), ("he", "ll")]))
    made.normalizer = normalizers.NFC()
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<s>", "</s>", AddedToken("<|user|>", rstrip=True), AddedToken("<mask>", lstrip=True)])
    made.add_tokens([AddedToken("<tool>", normalized=False), AddedToken("ĠÂ", normalized=False)])
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 259)])
    return made


def metaspace_json(scheme):
    words = ["<unk>", "<s>", "</s>", *[f"<0x{b:02X}>" for b in range(256)], "▁", "t", "h", "e", "▁t", "he", "▁the"]
    made = Library(
        models.BPE(
            {word: n for n, word in enumerate(words)}, [("▁", "t"), ("h", "e"), ("▁t", "he")], unk_token="<unk>", byte_fallback=True, fuse_unk=True
        )
    )
    if scheme == "legacy":
        made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    made.decoder = decoders.Sequence(steps if scheme == "never" else [*steps, decoders.Strip(" ", 1, 0)])
    made.add_special_tokens([AddedToken(text, normalized=False) for text in ("<unk>", "<s>", "</s>")])
    return made


LIBRARIES = {"byte level": byte_level_json(), **{scheme: metaspace_json(scheme) for scheme in ("legacy", "always", "first", "never")}}
control_text = st.lists(
    st.one_of(plain_text, st.sampled_from(["<s>", "</s>", "<|user|>", "<mask>", "<tool>", "the", " the", "hell"])), max_size=6
).map("".join)


@pytest.mark.parametrize("name", LIBRARIES)
@given(text=control_text)
def test_encoding_agrees_with_transformers(name, text):
    """T2, F8: with control texts, and with them as plain text behind the bos id."""
    ours, theirs = tokenizer.from_json(LIBRARIES[name].to_str()), PreTrainedTokenizerFast(tokenizer_object=LIBRARIES[name])
    assert ours.encode(text, special=True) == theirs.encode(text, add_special_tokens=False)
    plain = ours.encode(text)
    assert plain == theirs.encode(text, add_special_tokens=True, split_special_tokens=True)
    specials = {i for i, token in LIBRARIES[name].get_added_tokens_decoder().items() if token.special} - {0}
    assert not specials & set(plain[1 if name == "byte level" else 0 :])


@pytest.mark.parametrize("name", LIBRARIES)
@given(text=control_text.filter(lambda text: "▁" not in text and "ĠÂ" not in text))
def test_decoding_of_whole_text_agrees_with_the_library(name, text):
    ours, ids = tokenizer.from_json(LIBRARIES[name].to_str()), LIBRARIES[name].encode(text, add_special_tokens=False).ids
    for skip_special in (True, False):
        assert ours.decode(ids, skip_special=skip_special) == LIBRARIES[name].decode(ids, skip_special_tokens=skip_special)


@pytest.mark.parametrize("name", LIBRARIES)
@given(data=st.data(), prompt=st.booleans())
def test_any_ids_stream_as_they_decode(name, data, prompt):
    """T1, T2, T3: byte fallback and a stripped start included."""
    ours = tokenizer.from_json(LIBRARIES[name].to_str())
    ids = data.draw(st.lists(st.integers(0, ours.size - 1), max_size=30))
    before = ours.encode("the") if prompt else []
    state, out = detokenizer.init(ours, before), ""
    for i in ids:
        state, text = detokenizer.feed(state, [i])
        out += text
    assert ours.decode(before) + out + detokenizer.finish(state) == ours.decode(before + ids)


@pytest.mark.parametrize("name", LIBRARIES)
@given(contents=st.lists(plain_text.map(lambda text: text + "<"), min_size=1, max_size=3))
def test_words_around_fixed_control_tokens_are_cut_as_the_library_cuts_them(name, contents):
    """F8: a message that ends in "<" is disguised in the chat, and so its control tokens are fixed; a space before the first word included."""
    template = "{% for m in messages %}the <s>{{ m.content }}</s>{% endfor %}"
    ours = tokenizer.from_json(LIBRARIES[name].to_str(), tokenizer_config={"chat_template": template})
    text = "".join(f"the <s>{content}</s>" for content in contents)
    assert ours.chat([{"role": "user", "content": content} for content in contents]) == LIBRARIES[name].encode(text, add_special_tokens=False).ids


def test_one_bad_byte_spares_the_good_characters_beside_it():
    ours = tokenizer.from_json(LIBRARIES["legacy"].to_str())
    ids = [3 + byte for byte in b"\xc3\xa9\xff"]
    assert ours.decode(ids) == "é\ufffd"
    assert LIBRARIES["legacy"].decode(ids) == "\ufffd\ufffd\ufffd"


def test_added_tokens_are_the_text_they_are():
    ours = tokenizer.from_json(LIBRARIES["byte level"].to_str())
    (added,) = ours.encode("ĠÂ", special=True)
    assert ours.decode([added]) == "ĠÂ"
    assert ours.size == added + 1


@pytest.mark.parametrize(
    ("generation", "about", "config", "eos"),
    [
        (None, None, None, ()),
        ({"eos_token_id": 3}, None, {"eos_token_id": 5}, (3,)),
        ({"eos_token_id": [4, 3]}, {"eos_token": "</s>"}, {"eos_token_id": 5}, (4, 3, 260)),
        (None, {"eos_token": {"content": "</s>"}}, {"eos_token_id": 5}, (260,)),
        (None, None, {"eos_token_id": [5, 6]}, (5, 6)),
        ({"eos_token_id": 50256}, {"eos_token": None}, {"eos_token_id": 7}, (7,)),
    ],
)
def test_eos_is_read_from_the_configs(generation, about, config, eos):
    """F9."""
    made = tokenizer.from_json(LIBRARIES["byte level"].to_str(), tokenizer_config=about, generation_config=generation, model_config=config)
    assert made.eos_ids == eos


def test_a_bos_id_as_the_configs_say():
    """F8."""
    text = LIBRARIES["byte level"].to_str()
    first = tokenizer.from_json(text).encode("h")
    assert first[0] == 259
    assert tokenizer.from_json(text, tokenizer_config={"add_bos_token": False}).encode("h") == first[1:]
    assert tokenizer.from_json(text, tokenizer_config={"add_bos_token": True, "bos_token": "</s>"}).encode("h") == [260, *first[1:]]
    with pytest.raises(ValueError, match="add_bos_token: received true with bos_token None"):
        tokenizer.from_json(text, tokenizer_config={"add_bos_token": True})


def test_stored_padding_and_truncation_are_not_obeyed():
    library = byte_level_json()
    library.enable_truncation(2)
    library.enable_padding(length=9)
    assert len(tokenizer.from_json(library.to_str()).encode("abcdef", special=True)) == 6


@pytest.mark.parametrize("text", ["", "{}", "[]", json.dumps({"model": {"type": "no such"}})])
def test_json_that_is_no_tokenizer_is_refused(text):
    with pytest.raises(ValueError, match=r"tokenizer\.json: received text that is no tokenizer"):
        tokenizer.from_json(text)
