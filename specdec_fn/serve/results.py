"""Answers that can be read again: by their ids, by whom they belong to, and for as long as there is room."""

from typing import Any, NamedTuple

__all__ = ["Result", "Results", "as_object"]

BYTES = 1 << 26  # of answers that are kept; one that would take an eighth of them is not


class Result(NamedTuple):
    """How a request ended.

    Attributes:
        id: the request's.
        owner: whose it is.
        created: seconds since 1970.
        status: "finished", "failed" or "cancelled".
        body: JSON of the answer, or of the error; empty for none.
    """

    id: str
    owner: bytes
    created: int
    status: str
    body: bytes


class Results:
    """The last results. Where there is no room, whoever holds most lets go of their oldest: nobody can push out what belongs to others.

    Args:
        most: how many are kept, and at most ``BYTES`` of them.

    >>> results = Results(2)
    >>> for name in "abc":
    ...     results.keep(Result(name, b"owner", 0, "finished", b"{}"))
    >>> results.find("a", b"owner"), results.find("b", b"somebody else"), results.find("c", b"owner").status
    (None, None, 'finished')
    """

    def __init__(self, most: int) -> None:
        self._most, self._bytes = most, 0
        self._kept: dict[str, Result] = {}
        self._ids: dict[bytes, dict[str, None]] = {}  # of each owner, the oldest first
        self._sizes: dict[bytes, int] = {}  # bytes of each owner

    def keep(self, result: Result) -> None:
        """Keeps a result, unless its body is larger than an eighth of ``BYTES``, and lets go of others where there is no room."""
        size = len(result.body)
        if result.id in self._kept:
            self._drop(result.id)
        if size > BYTES // 8 or self._most < 1:
            return
        while len(self._kept) >= self._most:
            self._drop_oldest(max(self._ids, key=lambda owner: len(self._ids[owner])))
        while self._bytes + size > BYTES:
            self._drop_oldest(max(self._sizes, key=lambda owner: self._sizes[owner]))
        self._kept[result.id] = result
        self._ids.setdefault(result.owner, {})[result.id] = None
        self._sizes[result.owner] = self._sizes.get(result.owner, 0) + size
        self._bytes += size

    def find(self, id: str, owner: bytes) -> Result | None:
        """A result, for whom it belongs to."""
        found = self._kept.get(id)
        return found if found is not None and found.owner == owner else None

    def _drop_oldest(self, owner: bytes) -> None:
        self._drop(next(iter(self._ids[owner])))

    def _drop(self, id: str) -> None:
        old = self._kept.pop(id)
        self._bytes -= len(old.body)
        self._sizes[old.owner] -= len(old.body)
        del self._ids[old.owner][id]
        if not self._ids[old.owner]:
            del self._ids[old.owner], self._sizes[old.owner]


def as_object(id: str, created: int, status: str, answer: Any = None, error: Any = None) -> dict[str, Any]:
    """What is told of a request that is asked after.

    >>> as_object("a", 5, "running")["status"]
    'running'
    """
    return {"id": id, "object": "request", "created": created, "status": status, "answer": answer, "error": error}
