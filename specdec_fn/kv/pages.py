"""Which pages of the key-value pool are free, and how many hold each of the others: a value, with no tensor in it.

A page is a number. Pages never handed out are only counted, and only held pages stand in a map, so no cost depends on the size of the pool.
"""

from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from rpds import HashTrieMap, List

__all__ = ["PagePool", "alloc", "free_count", "init", "references", "release", "retain"]


class PagePool(NamedTuple):
    """The books of a pool of pages; every page is in exactly one of: virgin, free, held.

    Attributes:
        num_pages: pages in all; their ids are 0 to num_pages - 1.
        virgin: the lowest id that was never handed out; so were none above it.
        free: ids that were given back, the next to hand out first.
        freed: how many those are.
        held: references of each held page, at least 1.
    """

    num_pages: int
    virgin: int
    free: "List[int]"
    freed: int
    held: "HashTrieMap[int, int]"


def init(num_pages: int) -> PagePool:
    """Makes a pool in which every page is free.

    Args:
        num_pages: pages in all, at least 1.

    Raises:
        ValueError: num_pages is below 1.
        TypeError: num_pages is not a whole number.

    >>> free_count(init(8))
    8
    """
    if not isinstance(num_pages, int):
        raise TypeError(f"num_pages is {num_pages!r}; expected a whole number of pages")
    if num_pages < 1:
        raise ValueError(f"num_pages is {num_pages}; expected at least 1 page")
    return PagePool(num_pages, 0, List(), 0, HashTrieMap())


def alloc(pool: PagePool, n: int) -> tuple[PagePool, tuple[int, ...] | None]:
    """Takes n free pages, with one reference each.

    Pages given back go out first, in the order in which they were given back together: what a rollback gives up its sequence gets again, so a
    lone sequence lies in one piece. Taking virgin pages first would leave a hole at each rollback, and touch the whole pool though little is in use.

    Args:
        n: pages wanted, 0 or more.

    Returns:
        The new pool and the ids; where fewer than n are free, the pool as it was and None.

    Raises:
        ValueError: n is negative.

    >>> pool, ids = alloc(init(8), 3)
    >>> ids, alloc(pool, 6)[1]
    ((0, 1, 2), None)
    """
    num_pages, virgin, free, freed, held = pool
    if n < 0:
        raise ValueError(f"n is {n}; expected 0 or more pages")
    if n > freed + num_pages - virgin:
        return pool, None
    if n == 1:
        if freed:
            page = next(iter(free))
            return PagePool(num_pages, virgin, free.drop_first(), freed - 1, held.insert(page, 1)), (page,)
        return PagePool(num_pages, virgin + 1, free, 0, held.insert(virgin, 1)), (virgin,)
    ids = list(islice(free, n))
    for _ in ids:
        free = free.drop_first()
    fresh = n - len(ids)
    freed -= len(ids)
    ids += range(virgin, virgin + fresh)
    return PagePool(num_pages, virgin + fresh, free, freed, held.update(dict.fromkeys(ids, 1))), tuple(ids)


def retain(pool: PagePool, ids: Sequence[int]) -> PagePool:
    """Adds a reference to each page; an id that stands twice gets two.

    Args:
        ids: held pages.

    Raises:
        ValueError: a page is not held.

    >>> pool, ids = alloc(init(8), 2)
    >>> references(retain(pool, ids), 1)
    2
    """
    held = pool.held
    counts: dict[int, int] = {}
    for page in ids:
        count = counts.get(page) or held.get(page)
        if count is None:
            raise ValueError(f"retain received page {page}, which is free; expected a page that is held")
        counts[page] = count + 1
    return PagePool(pool.num_pages, pool.virgin, pool.free, pool.freed, held.update(counts))


def release(pool: PagePool, ids: Sequence[int]) -> PagePool:
    """Takes a reference from each page; a page without one is free.

    Args:
        ids: held pages; an id may stand as often as the page has references.

    Raises:
        ValueError: a page is not held, or an id stands more often than that.

    >>> pool, ids = alloc(init(8), 2)
    >>> free_count(release(pool, ids))
    8
    >>> release(release(pool, ids), ids)
    Traceback (most recent call last):
        ...
    ValueError: release received page 0, which is free; expected a page that is held, at most as often as it has references
    """
    num_pages, virgin, free, freed, held = pool
    counts: dict[int, int] = {}
    gone: list[int] = []
    for page in ids:
        count = counts.get(page)
        if count is None:
            count = held.get(page, 0)
        if not count:
            raise ValueError(f"release received page {page}, which is free; expected a page that is held, at most as often as it has references")
        counts[page] = count - 1
        if count == 1:
            gone.append(page)
    for page in reversed(gone):
        del counts[page]
        held = held.remove(page)
        free = free.push_front(page)
    return PagePool(num_pages, virgin, free, freed + len(gone), held.update(counts) if counts else held)


def free_count(pool: PagePool) -> int:
    """Pages that nobody holds.

    >>> free_count(alloc(init(8), 3)[0])
    5
    """
    return pool.freed + pool.num_pages - pool.virgin


def references(pool: PagePool, page: int) -> int:
    """How many hold the page; 0 if it is free.

    >>> pool, ids = alloc(init(8), 1)
    >>> references(pool, 0), references(pool, 5)
    (1, 0)
    """
    return pool.held.get(page, 0)
