"""Where a long run stands, as a value, and the JSON file that keeps it.

A state belongs to one program and one set of rows: counts of two programs together would be evidence about neither. So the file says which
program made it (a digest of the sources and the versions of what they compute with), and is refused by any other.
"""

import hashlib
import json
import math
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from specdec_proofs.claim import Claim
from specdec_proofs.deep_rows import BATCH, Row, law
from specdec_proofs.eprocess import Evidence, start

__all__ = ["State", "Track", "begin", "fingerprint", "from_json", "lengthened", "load", "save", "to_json"]

FORMAT = "specdec prove --deep"
VERSION = 1
POINTS = 400  # of a path; a longer one keeps every second


class Track(NamedTuple):
    """One row of a run: its evidence so far, and (passes, log E) after each round, thinned where there are many."""

    row: Row
    evidence: Evidence
    path: tuple[tuple[int, float], ...]


class State(NamedTuple):
    """A long run.

    Attributes:
        program: fingerprint of the code that made it.
        rounds: batches drawn of every row.
        tracks: one a row.
        p_values: of the repetitions of the fixed-size test.
        claims: those with fixed sizes, settled before the rounds began; they need not be settled again.
        seconds: wall time of all rounds.
    """

    program: str
    rounds: int
    tracks: tuple[Track, ...]
    p_values: tuple[float, ...]
    claims: tuple[Claim, ...]
    seconds: float


def begin(rows: tuple[Row, ...], program: str = "") -> State:
    """A run that has drawn nothing.

    >>> begin((Row("token", "reference chain"),)).tracks[0].path
    ((0, 0.0),)
    """
    laws = {name: law(name) for name in dict.fromkeys(row.world for row in rows)}
    return State(program, 0, tuple(Track(row, start(laws[row.world]), ((0, 0.0),)) for row in rows), (), (), 0.0)


def fingerprint() -> str:
    """Digest of the sources whose behaviour a run measures, and of the versions they run with.

    >>> fingerprint() == fingerprint()
    True
    """
    import scipy
    import torch

    import specdec_fn
    import specdec_kernels
    import specdec_proofs

    digest = hashlib.sha256(f"{torch.__version__} {np.__version__} {scipy.__version__}".encode())
    for package in (specdec_fn, specdec_kernels, specdec_proofs):
        folder = Path(str(package.__file__)).parent
        for path in sorted(folder.rglob("*.py")):
            place = path.relative_to(folder).as_posix()
            if not place.startswith("cli/"):  # how a run is shown does not change what it counts
                digest.update(f"{folder.name}/{place}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def to_json(state: State) -> dict[str, Any]:
    """A state as plain values; an infinite E is null.

    >>> to_json(begin((Row("greedy", "softmax at temperature 0"),), "abc"))["rows"][0]["path"]
    [[0, 0.0]]
    """
    rows = [
        {
            "verifier": track.row.verifier,
            "world": track.row.world,
            "counts": track.evidence.counts.tolist(),
            "highest": _finite(track.evidence.highest),
            "path": [[n, _finite(value)] for n, value in track.path],
        }
        for track in state.tracks
    ]
    claims = [{**claim._asdict(), "figure": _finite(claim.figure)} for claim in state.claims]
    head = {"format": FORMAT, "version": VERSION, "program": state.program, "batch": BATCH, "rounds": state.rounds, "seconds": state.seconds}
    return {**head, "rows": rows, "p_values": list(state.p_values), "claims": claims}


def from_json(value: Any, rows: tuple[Row, ...], program: str) -> State:
    """The state that ``to_json`` made, if it is whole and belongs to this program and these rows.

    Raises:
        ValueError: it is no such state, of another version, program or set of rows, or its counts do not add up.

    >>> from_json({"format": "other"}, (), "abc")
    Traceback (most recent call last):
    ...
    ValueError: it has format 'other'; expected a state of specdec prove --deep
    """
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        found = f"format {value.get('format')!r}" if isinstance(value, dict) else f"{value!r:.40}"
        raise ValueError(f"it has {found}; expected a state of {FORMAT}")
    if (value.get("version"), value.get("batch")) != (VERSION, BATCH):
        found = f"version {value.get('version')!r} with batches of {value.get('batch')!r}"
        raise ValueError(f"it is of {found}; expected version {VERSION} with batches of {BATCH}")
    if value.get("program") != program:
        raise ValueError(f"it was made by program {value.get('program')!r}; this one is {program!r}, and counts of two programs do not add up")
    try:
        made = tuple(Row(row["verifier"], row["world"]) for row in value["rows"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"its rows cannot be read ({type(error).__name__}: {error})") from None
    if made != rows:
        odd = sorted(set(map(str, made)) ^ set(map(str, rows)))
        raise ValueError(f"it has {len(made)} rows; expected these {len(rows)}" + (f", and they differ in {', '.join(odd)}" if odd else ""))
    try:
        return _read(value, rows, program)
    except (ArithmeticError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"its contents are damaged ({type(error).__name__}: {error})") from None


def load(path: Path, rows: tuple[Row, ...], program: str) -> State:
    """Reads a state file.

    Raises:
        OSError: it cannot be read.
        ValueError: as ``from_json``, with the file's name.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(begin((), "abc"), Path(folder, "s.json"))
    ...     load(Path(folder, "s.json"), (), "abc").rounds
    0
    """
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        raise ValueError(f"{str(path)!r} is no JSON; expected a state of {FORMAT}") from None
    try:
        return from_json(value, rows, program)
    except ValueError as error:
        raise ValueError(f"{str(path)!r} cannot be resumed: {error}") from None


def save(state: State, path: Path) -> None:
    """Writes a state file in one step: whoever reads it, or dies meanwhile, has the old one whole or the new one.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(begin((), "abc"), Path(folder, "s.json"))
    ...     [found.name for found in Path(folder).iterdir()]
    ['s.json']
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(beside, "w", encoding="utf-8") as file:
            json.dump(to_json(state), file, allow_nan=False)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def lengthened(path: tuple[tuple[int, float], ...], n: int, value: float) -> tuple[tuple[int, float], ...]:
    """A path with one more point; of more than ``POINTS``, every second stays, the first and the last among them.

    >>> lengthened(((0, 0.0),), 100, -1.5)
    ((0, 0.0), (100, -1.5))
    """
    longer = (*path, (n, value))
    return longer if len(longer) <= POINTS else (*longer[:-1:2], longer[-1])


def _read(value: dict[str, Any], rows: tuple[Row, ...], program: str) -> State:
    rounds = _whole(value["rounds"], "rounds")
    laws = {row.world: law(row.world) for row in rows}
    tracks = []
    for row, kept in zip(rows, value["rows"], strict=True):
        counts = np.array([_whole(count, "a count") for count in kept["counts"]], np.int64)
        if counts.shape != laws[row.world].shape or counts.sum() != rounds * BATCH:
            raise ValueError(f"{row}: {counts.sum()} counts in {len(counts)} cells after {rounds} rounds")
        path = tuple((_whole(n, "passes"), _number(score)) for n, score in kept["path"])
        tracks.append(Track(row, Evidence(counts, _number(kept["highest"])), path))
    p_values = tuple(float(p) for p in value["p_values"])
    if not all(0 <= p <= 1 for p in p_values):
        raise ValueError("a p-value lies outside [0, 1]")
    claims = tuple(Claim(**{**claim, "figure": math.nan if claim["figure"] is None else float(claim["figure"])}) for claim in value["claims"])
    return State(program, rounds, tuple(tracks), p_values, claims, float(value["seconds"]))


def _whole(value: Any, what: str) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{what} is {value!r}; expected a whole number of 0 or more")
    return value


def _number(value: Any) -> float:
    return math.inf if value is None else float(value)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
