"""The page's files: what they may load, how their colours contrast, and that every field has a name."""

import re
from html.parser import HTMLParser
from importlib import resources

import pytest

from specdec_fn.serve import page

FILES = {address: content.decode() for address, (content, _) in page.files().items()}
HTML, CSS = FILES["/"], FILES["/page.css"]
SCRIPTS = {address: text for address, text in FILES.items() if address.endswith(".js")}

# Colours that meet, as (in front, behind). WCAG 2 AA asks 4.5 of text (SC 1.4.3), and 3 of what has to be seen of controls and pictures (SC 1.4.11).
KINDS = ("accepted", "recovered", "bonus")
TEXT = (
    *((front, behind) for front in ("ink", "muted", "accent") for behind in ("paper", "card")),
    ("accent-ink", "accent"),
    *((front, "accent-soft") for front in ("ink", "accent", "rejected", "unread")),
    *((front, behind) for front in ("ink", "muted") for behind in (*KINDS, "plain")),
    ("rejected", "card"),
    ("unread", "card"),
    ("alert", "alert-soft"),
)
MARKS = (
    *((f"{kind}-mark", behind) for kind in KINDS for behind in (kind, "card")),
    ("accepted-mark", "plain"),
    ("edge", "card"),
    ("edge", "paper"),
    ("edge", "plain"),
    ("accent", "plain"),
    ("alert", "card"),
)


def colours(scheme: str) -> dict[str, str]:
    """The variables of a scheme; the dark one takes from the light one what it does not set."""
    light, dark = (dict(re.findall(r"--([\w-]+):\s*(#[0-9a-f]+);", block)) for block in re.findall(r":root \{(.*?)\}", CSS, re.S))
    return light if scheme == "light" else light | dark


def ratio(front: str, behind: str) -> float:
    """WCAG's contrast of two colours."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    low, high = sorted((luminance(front), luminance(behind)))
    return (high + 0.05) / (low + 0.05)


def test_the_ratio_is_that_of_the_standard() -> None:
    assert ratio("#000000", "#ffffff") == pytest.approx(21)
    assert ratio("#767676", "#ffffff") == pytest.approx(4.54, abs=0.005)  # the lightest grey that passes on white, as the standard's texts say


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_that_meet_contrast(scheme: str) -> None:
    known = colours(scheme)
    asked = [(pair, 4.5) for pair in TEXT] + [(pair, 3) for pair in MARKS]
    found = [(f"{front} on {behind}", round(ratio(known[front], known[behind]), 2), least) for (front, behind), least in asked]
    assert not [(pair, contrast) for pair, contrast, least in found if contrast < least]


def test_every_colour_is_a_variable_and_the_dark_scheme_has_its_own() -> None:
    light, dark = (set(re.findall(r"--([\w-]+):", block)) for block in re.findall(r":root \{(.*?)\}", CSS, re.S))
    assert light == dark
    rest = re.sub(r":root \{.*?\}", "", CSS, flags=re.S)
    assert not re.findall(r"#[0-9a-fA-F]{3,8}\b(?=[^{}]*[;}])|rgba?\(|hsla?\(|oklch\(", re.sub(r"[^{}]*\{", "{", rest))
    assert set(re.findall(r"var\(--([\w-]+)\)", rest)) == light


def test_kinds_differ_in_more_than_colour() -> None:
    lines = {kind: re.search(rf"^\.{kind} \{{.*?text-decoration: underline (\w+)", CSS, re.M) for kind in KINDS}
    assert {kind: found and found[1] for kind, found in lines.items()} == {"accepted": "solid", "recovered": "wavy", "bonus": "double"}
    assert "text-decoration" not in next(line for line in CSS.splitlines() if line.startswith(".plain"))


def test_motion_can_be_turned_off() -> None:
    assert re.search(r"@media \(prefers-reduced-motion: reduce\) \{\s*\* \{ animation: none !important; transition: none !important; \}", CSS)


def test_nothing_is_loaded_from_elsewhere() -> None:
    for address, text in FILES.items():
        outside = set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+", re.sub(r"(?m)^\s*//.*|\s// .*", "", text)))
        assert outside <= {"http://www.w3.org"}, address  # the name of a format, which nobody fetches
    assert not re.search(r"@import|url\(", CSS)


def test_the_policy_allows_this_server_only() -> None:
    rules = dict(rule.strip().split(" ", 1) for rule in page.HEADERS["content-security-policy"].split(";"))
    assert rules["default-src"] == "'self'"
    assert rules["frame-ancestors"] == rules["base-uri"] == rules["form-action"] == "'none'"
    assert not {name for name, value in rules.items() if value not in ("'self'", "'none'")}
    assert page.HEADERS["x-content-type-options"] == "nosniff"
    assert page.HEADERS["referrer-policy"] == "no-referrer"


def test_no_text_becomes_code() -> None:
    ways = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|setTimeout\(['\"`]|javascript:"
    for address, text in SCRIPTS.items():
        assert not re.search(ways, text), address


class Elements(HTMLParser):
    """The elements of a page, with what encloses them."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None], tuple[str, ...]]] = []
        self._open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs), tuple(self._open)))
        if tag not in ("meta", "link", "input", "img", "path"):
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag != "path":
            assert self._open.pop() == tag, f"</{tag}>"


@pytest.fixture(scope="module")
def elements() -> list[tuple[str, dict[str, str | None], tuple[str, ...]]]:
    parser = Elements()
    parser.feed(HTML)
    return parser.found


def test_no_script_or_style_stands_in_the_page(elements: list[tuple[str, dict[str, str | None], tuple[str, ...]]]) -> None:
    for tag, attributes, _ in elements:
        assert tag != "style"
        assert tag != "script" or attributes.get("src")
        assert not [name for name in attributes if name == "style" or name.startswith("on")]
    assert not re.search(r"<script[^>]*>\s*[^<\s]", HTML)


def test_every_field_has_a_label_and_every_id_is_one(elements: list[tuple[str, dict[str, str | None], tuple[str, ...]]]) -> None:
    ids = [attributes["id"] for _, attributes, _ in elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    labels = {attributes["for"] for tag, attributes, _ in elements if tag == "label" and "for" in attributes}
    assert labels <= set(ids)
    fields = [one for one in elements if one[0] in ("input", "select", "textarea")]
    assert len(fields) > 10
    for _, attributes, around in fields:
        assert attributes.get("id") in labels or "label" in around, attributes
    for name in ("aria-labelledby", "aria-describedby"):
        assert {attributes[name] for _, attributes, _ in elements if name in attributes} <= set(ids)
    assert set(re.findall(r"find\('(\w+)'\)", "".join(SCRIPTS.values()))) <= set(ids)


def test_every_file_is_served_and_every_name_is_a_file(elements: list[tuple[str, dict[str, str | None], tuple[str, ...]]]) -> None:
    folder = resources.files("specdec_fn.serve").joinpath("page")
    names = {entry.name for entry in folder.iterdir()}
    assert {address.removeprefix("/") or "index.html" for address in FILES} == names
    loaded = {attributes.get("href") or attributes.get("src") for tag, attributes, _ in elements if tag in ("link", "script", "img")}
    imported = {name for text in SCRIPTS.values() for name in re.findall(r"from '\./([\w.]+)'", text)}
    assert {f"/{name}" for name in loaded | imported} == set(FILES) - {"/"}
    kinds = {address: kind for address, (_, kind) in page.files().items()}
    assert all(kinds[address] == "text/javascript; charset=utf-8" for address in SCRIPTS)  # modules are refused under another type


def test_the_page_is_small() -> None:
    assert sum(len(text.encode()) for text in FILES.values()) < 64 << 10
