"""The trace as values and as a page: its figures are the generation's, its words are true, and nothing in it can leave the page."""

import html.parser
import json
import re
from itertools import pairwise
from typing import Any

import pytest
import torch

from specdec_fn import SamplingParams, generate
from specdec_fn.engine import Config, Request, init, step, submit
from specdec_fn.engine.event import Event
from specdec_fn.engine.job import settle
from specdec_fn.models import Model, toy
from specdec_fn.speculate import verifiers
from specdec_fn.speculate.explain import Why
from specdec_fn.text import Tokenizer
from specdec_fn.trace import Trace, as_json, page, record, traced
from specdec_fn.trace.words import RULES, because, digits, rule, spelled, visible

V = 300
PROMPT = [*b"<script>alert(1)</script> a\n\xe2\x82\xac b a\n\xe2\x82\xac", 260]
WARM = SamplingParams(0.9)
EVIL = {256: b"<script>alert(2)</script>", 257: b"</script><img src=//x.y>", 258: b"\xff\x00", 259: b'" onload="', 260: b"<end>"}


def bytewise() -> Tokenizer:
    """The bytes, and tokens whose text would do harm in a page."""

    def token_bytes(token: int, *, skip_special: bool = True) -> bytes:
        return b"" if skip_special and token == 260 else EVIL.get(token, bytes([token % 256]))

    def decode(ids: Any, *, skip_special: bool = True) -> str:
        return b"".join(token_bytes(token, skip_special=skip_special) for token in ids).decode(errors="replace")

    return Tokenizer(lambda text, *, special=False: list(text.encode()), decode, lambda messages: [1], (), V, token_bytes)


def follower() -> Model:
    """A target that mostly goes on as the prompt did, so that drafts from the prompt are kept at times."""
    seen = torch.full((V, V), 1e-6)
    for before, after in pairwise(PROMPT * 2):
        seen[before, after] += 1
        seen[before, [*b"a b", 10]] += 0.02
    return toy.bigram(seen / seen.sum(-1, keepdim=True), context=160)


SPELLS, MODEL = bytewise(), follower()


def events(
    name: str = "token", *, most: int = 24, seed: int = 5, proposer: str = "ngram", sampling: SamplingParams = WARM, k: int = 4
) -> list[Event]:
    job = settle(MODEL, PROMPT, SPELLS, seed, sampling, proposer, verifiers[name], k, most, (), (), False, False, None)
    return list(traced(job))


def named(name: str) -> tuple[SamplingParams, str]:
    return SamplingParams(temperature=0) if name == "greedy" else WARM, "ngram_tree" if verifiers[name].trees else "ngram"


class Reader(html.parser.HTMLParser):
    """What is in a page: its tags with their attributes, and the text outside scripts and styles."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "br", "img", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self.open):
            self.text += data


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    assert reader.open == []
    return reader


@pytest.mark.parametrize("name", list(verifiers))
def test_the_figures_are_the_generations(name: str) -> None:
    sampling, proposer = named(name)
    found = events(name, sampling=sampling, proposer=proposer)
    how: dict[str, Any] = {"sampling": sampling, "proposer": proposer, "verifier": verifiers[name]}
    done = generate(MODEL, PROMPT, tokenizer=SPELLS, seed=5, k=4, max_tokens=24, **how)
    assert found[-1].generation is not None
    assert found[-1].generation._replace(stats=done.stats) == done
    made = record(found, SPELLS, PROMPT, name)
    stats = done.stats
    assert (len(made.rows), made.proposed, made.accepted, made.emitted) == (stats.passes, stats.proposed, stats.accepted, stats.emitted)
    assert made.per_position == stats.per_position
    assert made.tokens_per_pass == stats.tokens_per_pass
    assert [token for row in made.rows for token in row.tokens] == done.tokens
    assert (made.text, made.finish_reason, made.rule) == (done.text, "length", RULES[name])
    base = len(PROMPT)
    for number, row in enumerate(made.rows, start=1):
        assert (row.number, row.base) == (number, base)
        base += len(row.tokens)
        said = [node for node in row.proposed if node.kind == "accepted"] + ([row.final] if row.final else [])
        assert [(node.token, node.kind) for node in said] == list(zip(row.tokens, row.kinds, strict=True))
        assert [node.depth for node in said] == list(range(1, len(said) + 1))


def test_what_stands_behind_an_end_is_not_told_as_emitted() -> None:
    circle = toy.bigram(torch.eye(4).roll(1, dims=1))  # 0 -> 1 -> 2 -> 3 -> 0: every draft is right
    job = settle(circle, [0, 1, 2, 3, 0], None, 0, SamplingParams(), "ngram_tree", "tree", 4, 9, [2], (), False, False, None)
    (row,) = record(traced(job), None, [0, 1, 2, 3, 0], "tree").rows
    assert (row.tokens, row.final) == ((1, 2), None)
    assert [node.kind for node in row.proposed] == ["accepted", "accepted", "unread", "unread"]


def test_an_engines_events_make_the_same_trace() -> None:
    state = init(MODEL, Config(invariant=True), SPELLS)
    state, _ = submit(state, Request(PROMPT, 24, sampling=WARM, seed=5, proposer="ngram", k=4, explain=True))
    found: list[Event] = []
    while len(state.records):
        state, some = step(MODEL, state)
        found += some
    job = settle(MODEL, PROMPT, SPELLS, 5, WARM, "ngram", "token", 4, 24, (), (), False, True, None)
    assert record(found, SPELLS, PROMPT, "token") == record(traced(job), SPELLS, PROMPT, "token")


def test_a_generation_that_is_called_off_is_told_as_far_as_it_came() -> None:
    found = events()
    made = record(found[:3], SPELLS, PROMPT, "token")
    assert (len(made.rows), made.finish_reason) == (3, "abort")
    assert record([], SPELLS, PROMPT, "token").rows == ()
    with pytest.raises(ValueError, match="has no reasons; expected those of a request with explain=True"):
        record([Event(0, [1], [-1.0], None)], SPELLS, PROMPT, "token")


@pytest.mark.parametrize(
    ("name", "why", "line"),
    [
        ("token", Why(1, "rejected", 0.41, 1.0, 0.83, 0.41, None, -1), "u = .830 ≥ p/q = .410"),
        ("token", Why(1, "accepted", 0.5, 0.25, 0.83, 1.0, None, -1), "u = .830 < min(1, p/q) = 1"),
        ("token", Why(1, "rejected", 0.5, 1.0, 0.50001, 0.5, None, -1), "u = .50001 ≥ p/q = .50000"),
        ("token", Why(1, "unread", 0.5, 1.0, None, None, None, 0), "not judged"),
        ("block", Why(1, "accepted", 0.5, 1.0, None, None, None, -1), "kept by a later node"),
        ("block", Why(1, "rejected", 0.5, 1.0, 0.75, 0.25, None, -1), "u = .750 ≥ h = .250"),
        ("typical", Why(1, "accepted", 0.5, 1.0, None, 0.09, None, -1), "p = .500 > threshold = .090"),
        ("typical", Why(1, "rejected", 0.01, 1.0, None, 0.09, None, -1), "p = .010 ≤ threshold = .090"),
        ("typical", Why(1, "recovered", 0.01, None, 0.25, None, None, -1), "drawn from p, u = .250"),
        ("token", Why(1, "recovered", 0.5, None, 0.25, None, None, -1), "drawn from the residual, u = .250"),
        ("token", Why(1, "bonus", 0.5, None, 0.25, None, None, -1), "drawn from p, u = .250"),
        ("coupled", Why(1, "accepted", 0.5, 1.0, None, None, 0.125, -1), "won its race, noise .125"),
        ("coupled", Why(1, "rejected", 0.5, 1.0, None, None, 0.125, -1), "another token won the race"),
        ("coupled", Why(1, "plain", 0.5, None, None, None, 0.125, -1), "won its race, noise .125"),
        ("greedy", Why(1, "rejected", 0.0, 1.0, None, None, None, -1), "not the target's first choice"),
        ("mine", Why(1, "rejected", 0.5, 1.0, 0.5, None, None, -1), "u = .500"),
    ],
)
def test_what_decided_is_said_in_a_line(name: str, why: Why, line: str) -> None:
    assert because(name, why) == line


def test_every_verifier_has_its_sentence() -> None:
    assert set(RULES) == set(verifiers)
    for name, sentence in RULES.items():
        assert rule(name) == sentence
        assert re.fullmatch(r"[^\n]+ \d{4}\)\.", sentence)
    assert "mine" in rule("mine")


@pytest.mark.parametrize(
    ("number", "shown"),
    [(0.0, "0"), (1.0, "1"), (0.5, ".500"), (0.99996, ".99996"), (1 - 2**-53, ".9999999999999999"), (4e-5, "4.0e-05"), (12.5, "12.500")],
)
def test_numbers_never_look_like_what_they_are_not(number: float, shown: str) -> None:
    assert digits(number) == shown


@pytest.mark.parametrize(
    ("token", "shown"),
    [(ord("\n"), "⏎"), (ord(" "), "␣"), (9, "⇥"), (7, "⟨07⟩"), (0xE2, "⟨E2⟩"), (258, "⟨FF⟩⟨00⟩"), (260, "<end>"), (V, f"⟨{V}⟩")],
)
def test_every_token_can_be_seen(token: int, shown: str) -> None:
    assert spelled(SPELLS, token) == shown


def test_white_space_can_be_seen() -> None:
    assert visible("a\u00a0\u200b\r") == "a⟨A0⟩⟨200B⟩⟨0D⟩"


def hostile() -> Trace:
    """A trace full of texts that would do harm."""
    circle = torch.zeros(V, V)
    line = [256, 257, 258, 259, 260, 10, 226, 130, 172, 256]
    for before, after in pairwise(line):
        circle[before, after] = 1
    circle += 1e-9
    job = settle(toy.bigram(circle / circle.sum(-1, keepdim=True), context=99), [*line, 257], SPELLS, 0, SamplingParams(), "ngram", "token", 3, 30,
                 (), (), False, False, None)  # fmt: skip
    about = {"model": "<b>bold</b>", "k": 0, "stop": ["</dd>"], "draft_model": None, "invariant": False}
    return record(traced(job), SPELLS, job.terms.prompt, "token", about)


def test_no_text_leaves_its_place_and_no_host_is_named() -> None:
    text = page(hostile())
    reader = read(text)
    assert [tag for tag, _ in reader.tags].count("script") == 1
    assert not {"img", "link", "iframe"} & {tag for tag, _ in reader.tags}
    assert all(not name.startswith("on") and name not in ("src", "integrity") for _, given in reader.tags for name in given)
    assert all((given.get("href") or "#").startswith("#") for _, given in reader.tags)
    assert not re.search(r"https?:|//[a-z]|url\(|@import", text.replace("//x.y", ""))
    for harmful in (b"<script>alert(2)</script>", b"</script><img src=//x.y>", b'" onload="'):
        assert visible(harmful.decode()) in reader.text
    assert "<b>bold</b>" in reader.text
    assert "default-src 'none'" in text
    assert "<end>" in [piece for row in hostile().rows for piece in row.pieces]
    assert "€" in reader.text  # three tokens, one character


def test_the_page_says_all_of_every_node() -> None:
    made = record(events(seed=1), SPELLS, PROMPT, "token", {"model": "toy", "seed": 1, "k": 4})
    assert {node.kind for row in made.rows for node in row.proposed} == {"accepted", "rejected", "unread"}
    reader = read(page(made))
    for row in made.rows:
        assert sum(given.get("id") == f"pass-{row.number}" for _, given in reader.tags) == 1
        for node in (*row.proposed, *([row.final] if row.final else [])):
            assert f"p {digits(node.p)}" in reader.text
            assert node.kind == "unread" or node.because in reader.text
    for shown in (f"{made.accepted} of {made.proposed}", f"{made.tokens_per_pass:.2f}", made.rule, "toy"):
        assert shown in reader.text
    for seen, kept in made.per_position:
        assert f"{kept} of {seen}" in reader.text
    signs = [given for tag, given in reader.tags if tag == "span" and given.get("class") == "sign"]
    nodes = made.proposed + sum(row.final is not None for row in made.rows)
    assert len(signs) == nodes + 6  # one beside every colour, and the legend


def test_the_table_can_be_read_by_ear() -> None:
    reader = read(page(record(events(), SPELLS, PROMPT, "token")))
    tags = reader.tags
    assert [given["lang"] for tag, given in tags if tag == "html"] == ["en"]
    assert sum(given.get("scope") == "col" for tag, given in tags if tag == "th") == 4
    rows = sum(given.get("scope") == "row" for tag, given in tags if tag == "th")
    assert rows == sum(tag == "tr" for tag, _ in tags) - 1 > 0
    assert {"caption", "main", "h1", "h2", "title"} <= {tag for tag, _ in tags}


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_colours_have_the_contrast_of_wcag_aa(scheme: int) -> None:
    style = page(record([], SPELLS, PROMPT, "token"))
    colours = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", re.findall(r":root \{(.*?)\}", style, re.DOTALL)[scheme]))
    kinds = ("accepted", "rejected", "recovered", "bonus", "plain")
    pairs = [(text, ground) for text in ("ink", "muted", *kinds) for ground in ("paper", "card", "bonus-soft")]
    pairs += [(kind, f"{kind}-soft") for kind in kinds] + [("muted", f"{kind}-soft") for kind in kinds] + [("ink", "plain-soft")]
    assert {pair: contrast(*(colours[name] for name in pair)) for pair in pairs if contrast(*(colours[name] for name in pair)) < 4.5} == {}


def test_a_trace_as_json_is_json_and_whole() -> None:
    made = record(events(), SPELLS, PROMPT, "token", {"seed": 5})
    told = json.loads(json.dumps(as_json(made), allow_nan=False))
    assert told["seed"] == 5
    assert told["tokens"] == [token for one in told["passes"] for token in one["tokens"]]
    assert told["stats"]["per_position"] == [list(pair) for pair in made.per_position]
    for one, row in zip(told["passes"], made.rows, strict=True):
        assert [node["u"] for node in one["proposed"]] == [node.u for node in row.proposed]
        assert (one["final"] or {}).get("p") == (row.final.p if row.final else None)


def test_without_a_tokenizer_ids_are_shown() -> None:
    job = settle(MODEL, PROMPT, None, 5, WARM, "ngram", "token", 4, 9, (), (), False, False, None)
    made = record(traced(job), None, PROMPT, "token")
    assert made.rows[0].pieces[0] == f"⟨{made.rows[0].tokens[0]}⟩"
    assert made.prompt.startswith("60 115 99")
    assert f"⟨{made.rows[0].tokens[0]}⟩" in page(made)
