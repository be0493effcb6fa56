"""Reports: families and their correction, tables and JSON, and a page that stands alone, says what failed and escapes what it is told."""

import io
import json
import math
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from rich.console import Console

from specdec_proofs import plots, report, report_html
from specdec_proofs.claim import Claim
from specdec_proofs.deep_rows import Row
from specdec_proofs.deep_state import State, Track, begin
from specdec_proofs.eprocess import Evidence
from specdec_proofs.families import corrected, families, words

VOID = frozenset({"meta", "input", "br", "link"})
P = np.array([0.5, 0.3, 0.15, 0.05])


def claim(name: str, p: float | None = None, family: str = "sampled", passed: bool = True) -> Claim:
    return Claim(name, 0.5 if p is None else p, "p > 1e-06", passed, "N [3]", 0.1, family, p)


SOME = [claim("exact law", family="exact"), claim("a", 0.01), claim("b", 0.4), claim("c", 1e-9, passed=False), claim("d", 0.03, "other")]


class Page(HTMLParser):
    """Reads a page: whether its elements close, its ids, what it refers to, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append((tag, found))
        self.ids += [value for key, value in attrs if key == "id" and value]
        self.links += [value for key, value in attrs if key in ("href", "src", "xlink:href") and value]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.words += data


# Families


def test_families_are_corrected_inside_and_across() -> None:
    """By hand: 3 tests of one family, 1 of the other; the smallest of each is then corrected for two families."""
    assert corrected(SOME) == [None, pytest.approx(0.02), pytest.approx(0.4), pytest.approx(3e-9), pytest.approx(0.03)]
    exact, sampled, other = families(SOME)
    assert (exact.name, exact.claims, exact.tests, exact.p_value, exact.across) == ("exact", 1, 0, None, None)
    assert (sampled.claims, sampled.failed, sampled.tests) == (3, 1, 3)
    assert sampled.p_value == pytest.approx(3e-9)
    assert sampled.across == pytest.approx(6e-9)
    assert other.across == pytest.approx(0.03)
    assert sampled.rejected == ("c",)
    assert "beyond chance: c" in words(sampled)
    assert words(exact) == "exact: 1 claims, none failed"


def test_one_small_p_value_of_many_is_not_beyond_chance() -> None:
    many = [claim(str(i), 0.5) for i in range(99)] + [claim("small", 5e-8, passed=True)]
    assert families(many)[0].rejected == ()
    assert families([claim("small", 5e-8)])[0].rejected == ("small",)


# Table and JSON


def test_table() -> None:
    console = Console(width=120, color_system=None, file=io.StringIO())
    console.print(report.table([Claim("holds", 1.5e-16, "<= 1e-14", True, "N [3]", 0.1), Claim("does not", 0.2, "== 0", False, "", 1.0)]))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for said in ("1.5e-16", "passed", "FAILED", "N [3]", "2 claims, 1 failed"):
        assert said in text
    assert report.lines(SOME)[-1] == "FAILED: c"
    assert len(report.lines(SOME)) == 4


def test_json() -> None:
    rows = report.as_json([*SOME, claim("none")._replace(figure=math.nan), claim("all")._replace(figure=math.inf)])
    assert json.loads(json.dumps(rows, allow_nan=False)) == rows
    plain = {"name": "a", "figure": 0.01, "gate": "p > 1e-06", "passed": True, "detail": "N [3]", "seconds": 0.1}
    assert rows[1] == {**plain, "family": "sampled", "p_value": 0.01, "p_corrected": pytest.approx(0.02)}
    assert [row["figure"] for row in rows[-2:]] == [None, None]


# Plots


def values(svg: str, kind: str) -> list[list[float]]:
    """Coordinates of the paths in a group of a picture."""
    return [[float(x) for x in re.findall(r"-?\d+\.?\d*", path)] for path in re.findall(rf'{kind}.*?<path d="([^"]*)"', svg, re.S)]


def test_bars_stand_at_p() -> None:
    """Heights of the bars in the picture are proportional to p, likeliest first."""
    svg = plots.law_against_p("x", "T", [50, 300, 150, 500], P[[3, 1, 2, 0]], "W")
    heights = [max(at[1::2]) - min(at[1::2]) for at in values(svg, 'id="x-patch_') if len(at) >= 8][2:6]
    assert np.array(heights) / heights[0] == pytest.approx(P / P[0], rel=1e-4)
    assert "measured, N = 1,000" in svg


def test_pictures_are_alike_for_the_same_data_and_take_the_colours_of_the_page() -> None:
    walks = [plots.Path("token", [(0, 0.0), (1000, -2.0)]), plots.Path("a < b", [(0, 0.0), (500, 40.0), (900, math.inf)], True)]
    for draw in (
        lambda: plots.law_against_p("one", "A <title>", [50, 30, 15, 5], P, "W & W"),
        lambda: plots.paths("one", "A <title>", walks, 14.0, "W & W"),
        lambda: plots.detectable("one", "A <title>", [(3, 1000), (26, 10**6)], 14.0, "W & W"),
    ):
        svg = draw()
        assert svg == draw()
        assert "A &lt;title&gt;" in svg
        assert "W &amp; W" in svg
        assert 'role="img"' in svg
        assert "var(--ink)" in svg
        assert not re.search(r"#0[1-6]0[1-6]0[1-6]", svg)
        assert "<style" not in svg
        page = Page(svg)
        assert page.open == []
        assert all(name.startswith("one-") for name in page.ids)
        assert len(set(page.ids)) == len(page.ids)
        assert {link.removeprefix("#") for link in page.links} <= set(page.ids)
        assert set(re.findall(r"url\(#([^)]*)\)", svg)) <= set(page.ids)
    assert "a &lt; b" in plots.paths("one", "T", walks, 14.0, "W")


# The page


def facts(complete: bool = True) -> report_html.Facts:
    return report_html.facts("quick", "2026-01-02 03:04 UTC", 754.0, complete)


def test_a_page_stands_alone() -> None:
    picture = plots.law_against_p("law", "T", [50, 30, 15, 5], P, "W")
    text = report_html.page(SOME, facts(), [report_html.Exhibit("A picture", picture, "caption <b>")])
    page = Page(text)
    assert page.open == []
    assert len(set(page.ids)) == len(page.ids)
    assert all(link.startswith("#") for link in page.links)
    assert not re.search(r"<script|https?://(?!www\.w3\.org/)|@import|url\((?!#)", text)
    assert "caption &lt;b&gt;" in text
    assert "prefers-color-scheme: dark" in text
    tags = [tag for tag, _ in page.tags]
    assert tags.count("h1") == 1
    assert tags.count("table") == tags.count("caption") == 3
    assert {found["scope"] for tag, found in page.tags if tag == "th"} == {"col", "row"}
    assert ("html", {"lang": "en"}) in page.tags


def test_a_page_says_what_failed() -> None:
    text = Page(report_html.page(SOME, facts())).words
    for said in ("No: 1 of 5 claims failed", "What failed", "12 min 34 s", "smallest p 3e-09", "6e-09 over all families", "20240"):
        assert said in text
    good = report_html.page(SOME[:3], facts())
    assert "All 3 claims hold" in good
    assert "What failed" not in good
    assert "No claim failed." in good


def test_a_page_does_not_praise_what_was_not_done() -> None:
    assert "Interrupted: 3 claims checked so far" in report_html.page(SOME[:3], facts(complete=False))
    nothing = report_html.page([], facts())
    assert "Nothing was checked" in nothing
    assert "claims hold" not in nothing
    assert "No: 1 of 5" in report_html.page(SOME, facts(complete=False))


def test_what_claims_say_is_escaped() -> None:
    text = report_html.page([claim("<script>alert(1)</script>")._replace(detail='"><img src=x>', passed=False, figure=math.nan)], facts())
    assert "<script" not in text
    assert "<img" not in text
    assert "&lt;script&gt;alert(1)" in text
    assert "found none, expected" in text


def ran() -> State:
    """A long run as it might be after one round, its counts made up."""
    rows = (Row("token", "reference chain"), Row("token", "tables with zeros"), Row("greedy", "softmax at temperature 0"))
    state = begin(rows)
    tracks = []
    for track in state.tracks:
        from specdec_proofs.deep_rows import law

        counts = np.random.default_rng(1).multinomial(50_000, law(track.row.world))
        tracks.append(Track(track.row, Evidence(counts, 0.0), ((0, 0.0), (50_000, -1.0))))
    return state._replace(rounds=1, tracks=tuple(tracks))


def test_the_pictures_of_a_long_run_are_of_its_own_counts() -> None:
    said: list[str] = []
    found = report_html.gather(ran(), said.append)
    assert said
    assert [exhibit.svg.startswith("<svg") for exhibit in found] == [True] * len(found)
    assert "N = 50,000" in found[0].svg
    assert "Verifier token" in found[0].title
    assert any("broken on purpose" in exhibit.title for exhibit in found)
    page = Page(report_html.page(SOME, facts(), found))
    assert len(set(page.ids)) == len(page.ids)
    assert page.open == []
