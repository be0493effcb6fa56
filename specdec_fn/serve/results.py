"""Answers that can be read again: by their ids, by whom they belong to, and for as long as there is room."""

from collections import OrderedDict
from typing import Any, NamedTuple

__all__ = ["Result", "Results", "as_object"]

BYTES = 1 << 26  # of answers that are kept


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
    """The last results.

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
        self._kept: OrderedDict[str, Result] = OrderedDict()

    def keep(self, result: Result) -> None:
        """Keeps a result, and lets go of the oldest where there is no room."""
        self._kept[result.id] = result
        self._bytes += len(result.body)
        while self._kept and (len(self._kept) > self._most or self._bytes > BYTES):
            _, old = self._kept.popitem(last=False)
            self._bytes -= len(old.body)

    def find(self, id: str, owner: bytes) -> Result | None:
        """A result, for whom it belongs to."""
        found = self._kept.get(id)
        return found if found is not None and found.owner == owner else None


def as_object(id: str, created: int, status: str, answer: Any = None, error: Any = None) -> dict[str, Any]:
    """What is told of a request that is asked after.

    >>> as_object("a", 5, "running")["status"]
    'running'
    """
    return {"id": id, "object": "request", "created": created, "status": status, "answer": answer, "error": error}
