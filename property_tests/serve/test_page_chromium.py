"""The page in a browser: it shows what the server said, by pointer, finger and keyboard, on any screen, without one word in the console."""

import json
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from specdec_fn import SamplingParams

from .browser import POOR, browsing, fill, opened, send
from .house import House, alone, house

PROMPT = "abc abc abc abc ab"
ASKED = {"temperature": 0.3, "seed": 5, "max_tokens": 100, "k": 4, "proposer": "ngram", "verifier": "token"}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsing() as found:
        yield found


@pytest.fixture(scope="module")
def served() -> Iterator[House]:
    with house() as made:
        yield made


@pytest.fixture(scope="module")
def answered(browser: Browser, served: House) -> Iterator[Page]:
    """A page with an answer, for tests that only look at it."""
    with opened(browser, served.url) as page:
        send(page, PROMPT, **ASKED)
        yield page


@pytest.fixture(scope="module")
def passes(served: House) -> list[dict[str, Any]]:
    """The same answer by the official client: the explained passes."""
    speculation = {name: ASKED[name] for name in ("proposer", "verifier", "k")} | {"explain": True}
    sampling = {name: ASKED[name] for name in ("temperature", "seed", "max_tokens")}
    stream = served.client.completions.create(model="toy", prompt=PROMPT, stream=True, extra_body={"speculation": speculation}, **sampling)
    return [choice.model_extra["speculation"] for chunk in stream for choice in chunk.choices if "speculation" in (choice.model_extra or {})]


def emitted(passes: list[dict[str, Any]]) -> list[tuple[dict[str, Any], str]]:
    """Its tokens, each with its text."""
    found = []
    for one in passes:
        nodes = [node for node in one["proposed"] if node["kind"] == "accepted"] + ([one["final"]] if one["final"] else [])
        found += list(zip(nodes, one["pieces"], strict=True))
    return found


def oracle() -> Any:
    how = {name: ASKED[name] for name in ("seed", "max_tokens", "proposer", "verifier", "k")}
    return alone(PROMPT, sampling=SamplingParams(ASKED["temperature"]), **how)


def test_the_tokens_are_the_text_and_have_their_kinds(answered: Page, passes: list[dict[str, Any]]) -> None:
    tokens = answered.locator("#output .t[data-i]")
    texts = tokens.all_text_contents()
    assert "".join(answered.locator("#output .t").all_text_contents()) == "".join(texts) == oracle().text
    kinds = [kind.split()[1] for kind in tokens.evaluate_all("all => all.map(el => el.className)")]
    assert list(zip(kinds, texts, strict=True)) == [(node["kind"], piece) for node, piece in emitted(passes)]
    assert set(kinds) == {"accepted", "recovered", "bonus", "plain"}


def test_every_token_can_be_pointed_at(answered: Page) -> None:
    texts = answered.locator("#output .t[data-i]").all_text_contents()
    assert "\n" in texts, "the answer has no token that is a line break"
    sizes = answered.locator("#output .t[data-i]").evaluate_all("all => all.map(el => el.getBoundingClientRect().width)")
    assert min(sizes) > 2


def test_kinds_can_be_told_apart_without_colours(answered: Page) -> None:
    lines = answered.locator("#output .t[data-i]").evaluate_all(
        "all => Object.fromEntries(all.map(el => [el.classList[1], getComputedStyle(el)]).map(([kind, of]) => "
        "[kind, of.textDecorationStyle + ' ' + of.textDecorationLine]))"
    )
    assert len(set(lines.values())) == len(lines) == 4
    for kind in ("accepted", "recovered", "bonus", "plain"):
        expect(answered.get_by_role("list", name="Legend").get_by_text(kind, exact=True)).to_be_visible()


def test_the_strip_counts_what_came(answered: Page) -> None:
    stats = oracle().stats
    assert answered.locator("#per_pass").text_content() == f"{stats.emitted / stats.passes:.2f}"
    assert answered.locator("#acceptance").text_content() == f"{100 * stats.accepted / stats.proposed:.0f} %"
    assert answered.locator("#count").text_content() == str(stats.emitted)
    assert answered.locator("#passes").text_content() == str(stats.passes)
    titles = answered.locator("#positions li").evaluate_all("all => all.map(el => el.title)")
    assert titles == [f"position {i}: {kept} of {seen} passes accepted it" for i, (seen, kept) in enumerate(stats.per_position, 1)]
    shown = answered.locator("#sparkbars").get_attribute("d")
    assert shown is not None
    assert shown.count("M") == min(100, stats.passes)


@pytest.mark.parametrize("kind", ["accepted", "recovered"])
def test_pointing_at_a_token_shows_p_and_q(answered: Page, passes: list[dict[str, Any]], kind: str) -> None:
    index, (node, _) = next((i, one) for i, one in enumerate(emitted(passes)) if one[0]["kind"] == kind and i)
    answered.locator(f"#output .t[data-i='{index}']").hover()
    card = answered.locator("#card")
    expect(card.locator(".what b")).to_have_text(kind)
    values = card.locator("data").evaluate_all("all => all.map(el => Number(el.value))")
    assert values == [node[name] for name in ("p", "q") if node[name] is not None]
    assert card.locator(".law").count() == (2 if kind == "accepted" else 1)
    pass_of = next(one for one in passes if any(node is other for other in (*one["proposed"], one["final"])))
    assert card.locator("tbody tr").count() == len(pass_of["proposed"]) + (pass_of["final"] is not None)
    if kind == "accepted":
        assert f"{node['u']:.4f}" in card.locator(".why").inner_text() or node["u"] < 5e-4
    else:
        lost = next(other for other in pass_of["proposed"] if other["kind"] == "rejected")
        sign = card.get_by_role("img").get_attribute("aria-label") or ""
        assert "≥ bound" in sign
        assert lost["u"] >= lost["bound"]
    answered.mouse.move(5, 5)
    expect(card).to_be_hidden()


def test_rejected_drafts_are_there_on_demand(answered: Page, passes: list[dict[str, Any]]) -> None:
    kinds = [node["kind"] for one in passes for node in one["proposed"] if node["kind"] != "accepted"]
    drafts = answered.locator("#output .draft")
    assert drafts.evaluate_all("all => all.map(el => el.classList[1])") == kinds
    assert not drafts.first.is_visible()
    box = answered.get_by_label("Rejected drafts")
    box.check()
    expect(drafts.first).to_be_visible()
    box.uncheck()
    expect(drafts.first).to_be_hidden()


def test_a_keyboard_is_enough(browser: Browser, served: House, passes: list[dict[str, Any]]) -> None:
    tokens = emitted(passes)

    def focused(page: Page) -> str:
        return page.evaluate("() => document.activeElement.id || document.activeElement.dataset.i || document.activeElement.value || ''")

    def tab_to(page: Page, goal: str) -> None:
        for _ in range(60):
            if focused(page) == goal:
                return
            page.keyboard.press("Tab")
        raise AssertionError(f"the Tab key does not come to {goal}")

    with opened(browser, served.url) as page:
        expect(page.locator("#proposer option").first).to_be_attached()
        tab_to(page, "completion")
        page.keyboard.press("ArrowLeft")
        assert focused(page) == "chat"
        page.keyboard.press("ArrowRight")
        for name in ("prompt", "k", "temperature", "seed", "max_tokens"):
            tab_to(page, name)
            page.keyboard.press("Control+A")
            page.keyboard.type(str({"prompt": PROMPT, **ASKED}[name]))
        page.keyboard.press("Control+Enter")
        expect(page.get_by_role("status")).to_contain_text("Finished")
        tab_to(page, "0")
        card = page.locator("#card")
        for keys, at in ((["ArrowRight"] * 3, 3), (["ArrowLeft"], 2), (["End"], len(tokens) - 1), (["Home"], 0)):
            for one in keys:
                page.keyboard.press(one)
            assert focused(page) == str(at)
            expect(card.locator(".what b")).to_have_text(tokens[at][0]["kind"])
            assert card.locator("data").first.evaluate("el => Number(el.value)") == tokens[at][0]["p"]
        described = page.evaluate("() => document.activeElement.getAttribute('aria-describedby')")
        assert described == "card"
        page.keyboard.press("Escape")
        expect(card).to_be_hidden()
        page.keyboard.press("Enter")
        expect(card).to_be_visible()
        assert page.locator("#output [tabindex]").count() == 1  # one stop of the Tab key, however long the answer


def test_arrows_go_to_the_line_above_and_below(answered: Page) -> None:
    answered.set_viewport_size({"width": 700, "height": 800})
    rows = "all => all.map(el => Math.round(el.getClientRects()[0].top))"
    tops = answered.locator("#output .t[data-i]").evaluate_all(rows)
    assert len(set(tops)) > 1, "the answer has one line only"
    answered.locator("#output .t[data-i='0']").focus()
    answered.keyboard.press("ArrowDown")
    at = int(answered.evaluate("() => document.activeElement.dataset.i"))
    assert tops[at] > tops[0]
    answered.keyboard.press("ArrowUp")
    assert tops[int(answered.evaluate("() => document.activeElement.dataset.i"))] == tops[0]
    answered.set_viewport_size({"width": 1280, "height": 900})


# A server that says one token and then nothing for ever, until the request is given up.
SILENT = """
const real = window.fetch;
window.fetch = (path, init) => {
  if (!String(path).includes('completions')) return real(path, init);
  const node = { token: 5, text: 'so', kind: 'plain', p: 0.5, q: null, u: 0.25, bound: null, noise: null, parent: -1 };
  const chunk = { seed: 3, choices: [{ index: 0, text: 'so', speculation: { base: 4, proposed: [], final: node, pieces: ['so'] } }] };
  const body = new ReadableStream({
    start(control) {
      control.enqueue(new TextEncoder().encode(`data: ${JSON.stringify(chunk)}\\n\\n`));
      init.signal.addEventListener('abort', () => { window.aborted = true; control.error(init.signal.reason); });
    },
  });
  return Promise.resolve(new Response(body, { headers: { 'content-type': 'text/event-stream' } }));
};
"""


@pytest.mark.parametrize("way", ["Escape", "Stop"])
def test_a_stream_can_be_stopped(browser: Browser, served: House, way: str) -> None:
    with opened(browser, served.url, script=SILENT) as page:
        fill(page, PROMPT)
        stop = page.get_by_role("button", name="Stop")
        assert stop.is_disabled()
        page.get_by_role("button", name="Send").click()
        expect(page.locator("#output .t")).to_have_text("so")
        expect(page.get_by_role("status")).to_have_text("Generating …")
        assert page.get_by_role("button", name="Send").is_disabled()
        stop.click() if way == "Stop" else page.keyboard.press("Escape")
        expect(page.get_by_role("status")).to_contain_text("Stopped: 1 tokens")
        assert page.evaluate("() => window.aborted") is True
        expect(page.locator("#output .t")).to_have_text("so")
        expect(stop).to_be_disabled()


CUT = """async ([text, whole]) => {
  const { events } = await import('/stream.js');
  const bytes = new TextEncoder().encode(text), found = [];
  for (let at = 0; at <= bytes.length; at += 1) {
    const parser = events();
    const some = [...parser.feed(bytes.slice(0, at)), ...parser.feed(bytes.slice(at))];
    if (JSON.stringify(some) !== JSON.stringify(whole)) found.push([at, some]);
  }
  const parser = events(), single = [...bytes].flatMap((byte) => parser.feed(new Uint8Array([byte])));
  if (JSON.stringify(single) !== JSON.stringify(whole)) found.push(['bytes', single]);
  return found;
}"""


def test_events_may_be_cut_anywhere(answered: Page) -> None:
    stream = 'data: {"a":"한 é 😀"}\n\n: a comment\n\ndata: one\r\ndata: two\r\n\r\ndata:three\n\nevent: x\ndata: [DONE]\n\ndata: not ended'
    assert answered.evaluate(CUT, [stream, ['{"a":"한 é 😀"}', "one\ntwo", "three", "[DONE]"]]) == []


PLACED = """async (chunks) => {
  const { tokenView } = await import('/tokens.js');
  const box = document.createElement('div'), card = document.createElement('aside'), states = [];
  let removed = 0;
  card.id = 'other';
  document.body.append(box, card);
  const view = tokenView(box, card);
  new MutationObserver((all) => all.forEach((one) => { removed += one.removedNodes.length; })).observe(box, { childList: true, subtree: true });
  const node = (text, kind) => ({ token: 1, text, kind, p: 0.5, q: 1, u: 0.1, bound: 0.5, noise: null, parent: -1 });
  const frame = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  for (const [text, pieces] of chunks) {
    const proposed = pieces && pieces.slice(0, -1).map((one) => node(one, 'accepted'));
    const told = pieces && { base: 0, proposed, final: node(pieces.at(-1), 'bonus'), pieces };
    view.add(text, told);
    if (chunks.length < 10) { await frame(); states.push([...box.querySelectorAll('.t')].map((el) => el.textContent)); }
  }
  await frame();
  view.end();
  states.push([...box.querySelectorAll('.t')].map((el) => el.textContent));
  await frame();
  const result = { states, text: view.text, removed, lines: box.children.length };
  box.remove(); card.remove();
  return result;
}"""


def test_text_that_is_held_back_is_not_shown(answered: Page) -> None:
    held = answered.evaluate(PLACED, [["al", ["al"]], ["pha ", ["pha b", "eta"]], ["beta ", [" ", "x"]], ["x", None]])
    assert held["states"][:3] == [["al"], ["al", "pha "], ["al", "pha b", "eta", " "]]
    assert held["states"][-1] == ["al", "pha b", "eta", " ", "x"]
    cut = answered.evaluate(PLACED, [["al", ["al"]], ["pha ", ["pha b", "eta ga", "mma"]]])
    assert cut["text"] == "alpha "
    assert cut["states"][-1] == ["al", "pha ", "", ""]  # tokens of the stop have their places, and no text
    whole = answered.evaluate(PLACED, [["", ["", ""]], ["한", ["한"]], [" and more", None]])
    assert whole["states"][-1] == ["", "", "한 and more"]


def test_thousands_of_tokens_are_only_ever_appended(answered: Page) -> None:
    many = [["a line", [" a" if i % 7 else "a\n", "b"]] for i in range(2000)]
    many = [["".join(pieces), pieces] for _, pieces in many]
    result = answered.evaluate(PLACED, many)
    assert result["text"] == "".join(text for text, _ in many)
    assert len(result["states"][-1]) == 4000
    assert result["removed"] == 0
    assert result["lines"] > 200


def test_numbers_never_round_to_what_they_are_not(answered: Page) -> None:
    shown = answered.evaluate(
        "async (all) => { const { number } = await import('/card.js'); return all.map(number); }", [None, 0, 1, 0.25, 1e-5, 0.99997]
    )
    assert shown == ["–", "0", "1", "0.2500", "1.0e-5", "1 − 3.0e-5"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_every_word_contrasts_and_fits_on_any_screen(browser: Browser, served: House, scheme: Any, width: int) -> None:
    with opened(browser, served.url, color_scheme=scheme, viewport={"width": width, "height": 740}, has_touch=width < 500) as page:
        send(page, PROMPT, **ASKED)
        page.get_by_label("Rejected drafts").check()
        if width < 500:
            page.locator("#output .recovered[data-i]").first.tap()
        else:
            page.locator("#output .recovered[data-i]").first.hover()
        expect(page.locator("#card")).to_be_visible()
        dark = page.evaluate("() => getComputedStyle(document.documentElement).backgroundColor")
        assert (sum(map(int, dark[4:-1].split(","))) < 150) == (scheme == "dark")
        seen, poor = page.evaluate(POOR)
        assert seen > 60
        assert poor == []
        assert page.evaluate("() => document.documentElement.scrollWidth") <= width
        box = page.locator("#card").bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
        if width < 500:  # what was tapped is not under the card
            token = page.locator("#output .now").bounding_box()
            assert token is not None
            assert token["y"] + token["height"] <= box["y"] + 1


def test_a_key_is_asked_for_when_the_server_wants_one(browser: Browser) -> None:
    with house(keys=("right",)) as keyed, opened(browser, keyed.url, expected="401 (Unauthorized)") as page:
        field = page.get_by_label("API key")
        expect(page.get_by_role("alert")).to_contain_text("key")
        expect(field).to_be_focused()
        field.fill("wrong")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_contain_text("not one of this server's")
        field.fill("right")
        page.keyboard.press("Tab")
        expect(page.locator("#model")).to_contain_text("toy")
        send(page, PROMPT, **ASKED)
        assert page.locator("#output .t[data-i]").count() > 10
        assert page.evaluate("() => Object.keys(localStorage).length + Object.keys(sessionStorage).length") == 0


def test_no_key_is_asked_for_otherwise(answered: Page) -> None:
    expect(answered.get_by_label("API key")).to_be_hidden()
    assert answered.get_by_role("alert").text_content() == ""


def test_what_the_server_refuses_is_said_beside_the_field(browser: Browser, served: House) -> None:
    with opened(browser, served.url, expected="400 (Bad Request)") as page:
        fill(page, PROMPT, **{**ASKED, "top_p": 1, "max_tokens": 5000})
        page.get_by_role("button", name="Send").click()
        expect(page.get_by_role("alert")).to_contain_text("max_tokens is 5000")
        expect(page.locator("#max_tokens")).to_have_attribute("aria-invalid", "true")
        page.locator("#max_tokens").fill("5")
        page.keyboard.press("Control+Enter")
        expect(page.get_by_role("status")).to_contain_text("Finished")
        assert page.get_by_role("alert").text_content() == ""
        assert page.locator("[aria-invalid]").count() == 0


def test_chat_and_the_drawn_seed_and_the_copied_text(browser: Browser, served: House) -> None:
    with opened(browser, served.url, permissions=["clipboard-read", "clipboard-write"]) as page:
        expect(page.locator("#proposer option").first).to_be_attached()
        page.get_by_text("Chat", exact=True).click()
        page.get_by_label("Prompt", exact=True).fill("ab")
        page.locator("#max_tokens").fill("20")
        for _ in range(2):
            page.get_by_role("button", name="Send").click()
            expect(page.get_by_role("status")).to_contain_text("Finished")
            texts = page.locator("#output .t").all_text_contents()
            page.get_by_role("button", name="seed").click()
        seed = page.locator("#seed").input_value()
        assert seed.isdecimal()
        answer = served.client.chat.completions.create(
            model="toy", messages=[{"role": "user", "content": "ab"}], seed=int(seed), max_tokens=20, temperature=0.7
        )
        assert "".join(texts) == answer.choices[0].message.content
        page.get_by_label("Rejected drafts").check()
        page.get_by_role("button", name="Copy text").click()
        expect(page.get_by_role("button", name="Copied")).to_be_visible()
        assert page.evaluate("() => navigator.clipboard.readText()") == "".join(texts)


def test_the_request_can_be_copied_as_curl(browser: Browser, served: House) -> None:
    with opened(browser, served.url, permissions=["clipboard-read", "clipboard-write"]) as page:
        fill(page, "it's\n한", **ASKED, stop="a b\n\\n\\n")
        page.get_by_role("button", name="Copy as curl").click()
        expect(page.get_by_role("button", name="Copied")).to_be_visible()
        words = shlex.split(page.evaluate("() => navigator.clipboard.readText()").replace("\\\n", " "))
        assert words[:3] == ["curl", "-N", f"{served.url}/v1/completions"]
        body = json.loads(words[words.index("-d") + 1])
        assert body["prompt"] == "it's\n한"
        assert body["stop"] == ["a b", "\n\n"]
        assert (body["temperature"], body["seed"], body["max_tokens"]) == (0.3, 5, 100)
        assert body["speculation"] == {"proposer": "ngram", "verifier": "token", "k": 4, "explain": True}
        assert body["stream"] is True
