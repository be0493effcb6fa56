"""The lanes of those that decode, found as soon as their tokens are known, so that the next plan need not look at each of them again.

They follow from the running requests alone: ``commit`` works them out while it has each request in hand, ``schedule`` uses them, and whatever
changes who runs in between drops them.
"""

from collections.abc import Sequence
from typing import NamedTuple

from specdec_fn.kv.table import pages_for
from specdec_fn.schedule.request import Entry, Lane

__all__ = ["Ahead", "ahead"]

_new = tuple.__new__  # a named tuple from its fields in order, in half the time of its own constructor


class Ahead(NamedTuple):
    """What the next pass has for the running requests, whatever its prompt rows.

    Attributes:
        lanes: of each running request; None where it has several rows to compute.
        several: places of the latter.
        short: place and number of missing pages, where a table does not reach to the end of its lane.
    """

    lanes: tuple[Lane | None, ...]
    several: tuple[int, ...]
    short: tuple[tuple[int, int], ...]


def ahead(running: Sequence[Entry], page_size: int) -> Ahead:
    """Looks at each running request; a lane is what ``lane(entry, budget)`` gives for any budget.

    >>> from specdec_fn.kv.prefix import root
    >>> from specdec_fn.kv.table import Table
    >>> entry = Entry(7, 0, 0, (5, 6, 7), 3, 9, 4, b"", Table((1,), 2), root(b""), 0, -1, 0)
    >>> ahead([entry, entry._replace(table=Table((1,), 0))], 4)
    Ahead(lanes=(Lane(id=7, epoch=0, start=2, stop=3, k=4), None), several=(1,), short=((0, 1),))
    """
    lanes: list[Lane | None] = []
    several: list[int] = []
    short: list[tuple[int, int]] = []
    # This runs for each request in each pass, so what ``drafts`` and ``lane`` say is written out.
    for id, _, _, tokens, _, limit, k, _, (held, start), _, epoch, _, _ in running:
        stop = len(tokens)
        if stop - start != 1:
            several.append(len(lanes))
            lanes.append(None)
            continue
        if k >= limit - stop:
            k = max(0, limit - stop - 1)
        if stop + k > len(held) * page_size:
            short.append((len(lanes), pages_for(stop + k, page_size=page_size) - len(held)))
        lanes.append(_new(Lane, (id, epoch, start, stop, k)))
    return Ahead(tuple(lanes), tuple(several), tuple(short))
