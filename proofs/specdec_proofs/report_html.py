"""The report as one HTML file that needs nothing else: claims, laws, paths of evidence, and what the tests could have seen.

``gather`` measures what the plots show (some seconds, fixed keys), ``page`` turns claims and exhibits into text. Writing it is the caller's.
"""

import platform
from collections.abc import Callable, Sequence
from importlib import metadata, resources
from typing import Any, NamedTuple

import numpy as np

from specdec_proofs import plots, sampled
from specdec_proofs.claim import Claim, one_thread
from specdec_proofs.deep_rows import SEED, Row, law, rows
from specdec_proofs.deep_state import State, Track
from specdec_proofs.eprocess import threshold
from specdec_proofs.families import corrected, families
from specdec_proofs.mutants import Mutant, catalogue
from specdec_proofs.power import ALPHA
from specdec_proofs.sequential import crossing, walk

__all__ = ["Exhibit", "Facts", "facts", "gather", "page"]

SHOWN = ("reference chain", "tables with zeros")  # worlds whose laws have few enough cells to be drawn as bars
WALKED = 6  # batches of each row that is walked for the plots, where no long run has its own
FAULTS = ("residual of the previous", "goes on after a rejection", "ensemble")  # mutants whose paths are drawn, by a part of the name


class Facts(NamedTuple):
    """What a report says about its run.

    Attributes:
        level: of the claims.
        when: date and time, as text; the caller has the clock.
        seconds: wall time.
        complete: False where the run was interrupted.
        versions: (name, version) of what computed it.
        seeds: (what they are for, the seed).
    """

    level: str
    when: str
    seconds: float
    complete: bool
    versions: tuple[tuple[str, str], ...]
    seeds: tuple[tuple[str, int], ...]


class Exhibit(NamedTuple):
    """A picture: a heading, the SVG, and a caption."""

    title: str
    svg: str
    caption: str


def facts(level: str, when: str, seconds: float, complete: bool = True) -> Facts:
    """Facts with the versions and seeds of this installation.

    >>> [name for name, _ in facts("quick", "2026-01-01", 1.0).versions]
    ['specdec_fn', 'torch', 'numpy', 'scipy', 'Python', 'system']
    """
    versions = [(name, metadata.version(name)) for name in ("specdec_fn", "torch", "numpy", "scipy")]
    versions += [("Python", platform.python_version()), ("system", f"{platform.system()} {platform.machine()}")]
    return Facts(level, when, seconds, complete, tuple(versions), (("fixed sizes", sampled.SEED), ("sequential", SEED)))


def gather(state: State | None = None, said: Callable[[str], None] | None = None) -> list[Exhibit]:
    """The pictures: laws against p, paths of E, what the tests see.

    Args:
        state: a long run, whose own counts and paths are shown; without one, some rows are walked here.
        said: called with what is being done.

    >>> import inspect
    >>> list(inspect.signature(gather).parameters)
    ['state', 'said']
    """
    if said:
        said("drawing the plots")
    with one_thread():
        tracks = state.tracks if state is not None and state.rounds else tuple(walk(row, WALKED) for row in _chosen())
        wrong = [(mutant, number) for number, mutant in enumerate(catalogue()) if any(part in mutant.name for part in FAULTS)]
        limit = threshold(ALPHA, len(tracks) if state is not None and state.rounds else len(rows()))
        shown = [track for name in SHOWN for track in tracks if track.row.world == name][:1]
        other = [track for track in tracks if track.row.world == SHOWN[1]][-1:]
        found = [_law(f"law-{i}", track) for i, track in enumerate((*shown, *other))]
        found += [_fault(mutant) for mutant, _ in wrong if FAULTS[0] in mutant.name]
        walks = [plots.Path(str(track.row), track.path) for track in tracks if len(track.evidence.counts) > 1]
        walks += [plots.Path(mutant.name, crossing(mutant, number, limit=limit, first=100).path, True) for mutant, number in wrong]
        return [*found, _paths(walks, limit), _power(tracks, limit)]


def page(claims: Sequence[Claim], about: Facts, exhibits: Sequence[Exhibit] = ()) -> str:
    """The report as HTML; every text in it is escaped, the pictures are those of ``plots``.

    >>> text = page([Claim("a < b", 0.0, "== 0", True, "", 0.5)], facts("quick", "2026-01-01", 1.0))
    >>> "a &lt; b" in text, "<script" in text
    (True, False)
    """
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    from specdec_proofs.claims import ROOMS

    titles = {room.name: room.title for room in ROOMS} | {"deep": "The long run: evidence gathered for as long as it went on"}
    values = dict(zip(map(id, claims), corrected(claims), strict=True))
    counted, groups = families(claims), []
    for family in counted:
        own = [(claim, values[id(claim)]) for claim in claims if claim.family == family.name]
        groups.append({"family": family, "title": titles.get(family.name, family.name), "rows": own, "seconds": sum(c.seconds for c, _ in own)})
    made = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    made.filters.update(figure=_figure, duration=_duration)
    source = resources.files("specdec_proofs").joinpath("report.html.j2").read_text("utf-8")
    return made.from_string(source).render(
        about=about,
        claims=claims,
        failed=[claim for claim in claims if not claim.passed],
        groups=groups,
        tests=sum(family.tests for family in counted),
        across=min((family.across for family in counted if family.across is not None), default=None),
        mutants=sum(claim.name.startswith(("mutant", "e-process: passes until")) for claim in claims),
        exhibits=[exhibit._replace(svg=Markup(exhibit.svg)) for exhibit in exhibits],
        alpha=ALPHA,
    )


def _chosen() -> list[Row]:
    """The rows that are walked for the plots: one world for every verifier that it takes, and the second world of ``SHOWN``."""
    found = rows()
    return [row for row in found if row.world == SHOWN[0]] + [row for row in found if row.world == SHOWN[1]][-1:]


def _law(name: str, track: Track) -> Exhibit:
    p, n = law(track.row.world), int(track.evidence.counts.sum())
    title = f"Verifier {track.row.verifier}, as shipped, on the world “{track.row.world}”"
    words = f"Bars of the target's law over sequences of tokens, and what {n:,} passes gave; the measured points lie on the tops of the bars."
    caption = (
        "Each bar is a sequence of tokens; its height is the probability that the target alone would give it. The points are how often it came out "
        "of speculative decoding. Below: how far each point is off, in standard errors; within the grey band nearly all should lie."
    )
    return Exhibit(title, plots.law_against_p(name, title, track.evidence.counts, p, words), caption)


def _fault(mutant: Mutant) -> Exhibit:
    from specdec_fn import random
    from specdec_proofs.enumerate import joint
    from specdec_proofs.sample import cells, histogram, sample

    world = mutant.world()
    p = cells(world, joint(world), mutant.length)
    drawn = sample(mutant.decide(), world, random.fold_in(random.key(SEED), 2**31), 100_000, tape=mutant.tape(), draft_rows=mutant.draft_rows)
    title = f"The same picture of a copy that was broken on purpose: {mutant.name}"
    words = "The same bars; many measured points lie far above or below them, tens of standard errors off."
    caption = (
        "A check that cannot fail shows nothing, so every check is also tried on broken copies. The first token of this one follows its law exactly."
    )
    return Exhibit(title, plots.law_against_p("law-wrong", title, histogram(drawn.tokens, world.vocab, mutant.length), p, words), caption)


def _paths(walks: Sequence[plots.Path], limit: float) -> Exhibit:
    title = "Evidence against each rule, while it was being gathered"
    right = sum(not one.wrong for one in walks)
    words = f"{right} paths of shipped code stay below the threshold; those of {len(walks) - right} broken copies rise through it."
    caption = (
        "E is how much better some other law explains the counts than the target's law does. For a lossless rule the chance that E ever exceeds "
        f"the threshold, at any of the times it is looked at and for any of the rules, is at most {ALPHA:g}. A broken rule's E grows exponentially."
    )
    return Exhibit(title, plots.paths("paths", title, walks, limit, words), caption)


def _power(tracks: Sequence[Track], limit: float) -> Exhibit:
    tests = [(int((law(track.row.world) > 0).sum()) - 1, int(track.evidence.counts.sum())) for track in tracks]
    tests = sorted({(df, n) for df, n in tests if df > 0})
    title = "What these tests can see: total variation against the number of passes"
    most = max((n for _, n in tests), default=0)
    words = f"Falling curves: a hundred times the passes show a tenth of the deviation. The longest test here has {most:,} passes."
    caption = (
        "Samples cannot show that a deviation is 0, only that it is small: a rule whose law is off by more than the curve is rejected with "
        "probability .999, in whichever direction it is off. More cells, that is degrees of freedom, need more passes. What lies below these "
        "curves is the business of the exact laws, which need no samples."
    )
    return Exhibit(title, plots.detectable("power", title, tests, limit, words), caption)


def _figure(value: Any) -> str:
    """A number as the tables show it; what could not be had as words.

    >>> _figure(1.23456e-7), _figure(None), _figure(float("nan"))
    ('1.235e-07', '', 'none')
    """
    if value is None:
        return ""
    return "none" if np.isnan(value) else f"{value:.4g}"


def _duration(seconds: float) -> str:
    """Seconds as people say them.

    >>> _duration(31.24), _duration(754), _duration(9000)
    ('31.2 s', '12 min 34 s', '2 h 30 min')
    """
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
