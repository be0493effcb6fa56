"""The pages of one sequence, in the order of its positions: room ahead of a pass, rollback after it, sharing between sequences.

Position i lies in slot ``pages[i // page_size] * page_size + i % page_size``. Room is reserved before a pass writes, for however many rows it
has; what was kept then counts, and a truncation gives back every page behind it. A shared page is never written: ``reserve`` replaces it.
"""

from typing import NamedTuple

from specdec_fn.kv import pages as pools
from specdec_fn.kv.pages import PagePool

__all__ = ["Table", "append", "fork", "pages_for", "release", "reserve", "slots", "truncate"]


class Table(NamedTuple):
    """The block table of one sequence; it holds one reference on each of its pages.

    Attributes:
        pages: ids; they may reach further than length.
        length: slots whose keys and values are there and count.
    """

    pages: tuple[int, ...] = ()
    length: int = 0


def reserve(pool: PagePool, table: Table, count: int, *, page_size: int) -> tuple[PagePool, Table, tuple[tuple[int, int], ...]] | None:
    """Makes room for ``count`` more slots, every page that they lie in held by this table alone.

    Args:
        count: slots behind the table's length, 0 or more.
        page_size: slots of a page, at least 1.

    Returns:
        The pool, the table (its length as it was) and the copies: pairs (old page, new page) of shared pages that are partly full, whose contents
        the caller copies before anything is written. None where pages are lacking, and nothing has changed.

    Raises:
        ValueError: count is negative, page_size is below 1, or the pool does not hold a page of the table.

    >>> pool, table, copies = reserve(pools.init(8), Table(), 5, page_size=4)
    >>> table, copies
    (Table(pages=(0, 1), length=0), ())
    >>> pool, twin = fork(pool, append(table, 5, page_size=4))
    >>> pool, twin, copies = reserve(pool, twin, 1, page_size=4)
    >>> twin, copies
    (Table(pages=(0, 2), length=5), ((1, 2),))
    """
    if count < 1 or page_size < 1:
        if count < 0 or page_size < 1:
            raise ValueError(f"count and page_size are {count} and {page_size}; expected 0 or more slots in pages of at least 1")
        return pool, table, ()
    ids, length = table
    first, last = length // page_size, (length + count - 1) // page_size
    held = pool.held
    if first == last < len(ids) and held.get(ids[first]) == 1:  # most calls: a few rows in a page that is there
        return pool, table, ()
    shared: list[int] = []
    for place in range(first, min(last + 1, len(ids))):
        references = held.get(ids[place])
        if references != 1:
            if references is None:
                raise ValueError(f"page {ids[place]} of the table is free; expected a table whose pages the pool holds")
            shared.append(place)
    missing = max(0, last + 1 - len(ids))
    if not shared and not missing:
        return pool, table, ()
    pool, fresh = pools.alloc(pool, len(shared) + missing)
    if fresh is None:
        return None
    if not shared:
        return pool, Table(ids + fresh, length), ()
    new = list(ids)
    for place, page in zip(shared, fresh, strict=False):
        new[place] = page
    # Only the page that length ends in has contents to copy; the ones behind it are empty.
    copies = ((ids[first], new[first]),) if shared[0] == first and length % page_size else ()
    pool = pools.release(pool, [ids[place] for place in shared])
    return pool, Table((*new, *fresh[len(shared) :]), length), copies


def append(table: Table, count: int, *, page_size: int) -> Table:
    """Lets ``count`` more slots count, which were reserved and written.

    Args:
        count: slots, 0 or more.
        page_size: slots of a page.

    Raises:
        ValueError: count is negative, or more slots than the table's pages have left.

    >>> append(Table((3, 7), 4), 2, page_size=4)
    Table(pages=(3, 7), length=6)
    """
    ids, length = table
    if not 0 <= count <= len(ids) * page_size - length:
        raise ValueError(f"count is {count}; expected 0 to {len(ids) * page_size - length}, the slots that are reserved")
    return Table(ids, length + count)


def truncate(pool: PagePool, table: Table, length: int, *, page_size: int) -> tuple[PagePool, Table]:
    """Goes back to the first ``length`` slots and gives back every page behind them; at the table's own length, the pages that were only reserved.

    Args:
        length: slots that stay, at most the table's length.
        page_size: slots of a page, at least 1.

    Raises:
        ValueError: length is negative or above the table's, page_size is below 1, or the pool does not hold a page of the table.

    >>> pool, table, _ = reserve(pools.init(8), Table(), 9, page_size=4)
    >>> pool, table = truncate(pool, append(table, 2, page_size=4), 2, page_size=4)
    >>> table, pools.free_count(pool)
    (Table(pages=(0,), length=2), 7)
    """
    ids = table.pages
    if not 0 <= length <= table.length:
        raise ValueError(f"length is {length}; expected 0 to {table.length}, the slots that count")
    kept = pages_for(length, page_size=page_size)
    if kept < len(ids):
        return pools.release(pool, ids[kept:]), Table(ids[:kept], length)
    return pool, Table(ids, length)


def fork(pool: PagePool, table: Table) -> tuple[PagePool, Table]:
    """Makes a second table over the same pages; whichever of the two writes first copies.

    Raises:
        ValueError: the pool does not hold a page of the table.

    >>> pool, table, _ = reserve(pools.init(8), Table(), 3, page_size=4)
    >>> pool, twin = fork(pool, table)
    >>> twin == table, pools.references(pool, 0)
    (True, 2)
    """
    return pools.retain(pool, table.pages), table


def release(pool: PagePool, table: Table) -> PagePool:
    """Gives up all pages of a table, which is not to be used again.

    Raises:
        ValueError: the pool does not hold a page of the table.

    >>> pool, table, _ = reserve(pools.init(8), Table(), 3, page_size=4)
    >>> pools.free_count(release(pool, table))
    8
    """
    return pools.release(pool, table.pages)


def slots(table: Table, start: int, stop: int, *, page_size: int) -> list[int]:
    """The slots of positions start to stop - 1.

    Args:
        start, stop: positions, 0 <= start <= stop.
        page_size: slots of a page, at least 1.

    Raises:
        ValueError: start is negative or above stop, or stop lies past the table's pages.

    >>> slots(Table((3, 7), 4), 2, 6, page_size=4)
    [14, 15, 28, 29]
    """
    ids = table.pages
    if not 0 <= start <= stop <= len(ids) * page_size:
        raise ValueError(f"start and stop are {start} and {stop}; expected 0 <= start <= stop <= {len(ids) * page_size}, the slots that are reserved")
    found: list[int] = []
    while start < stop:
        place, offset = divmod(start, page_size)
        rows = min(page_size - offset, stop - start)
        slot = ids[place] * page_size + offset
        found += range(slot, slot + rows)
        start += rows
    return found


def pages_for(count: int, *, page_size: int) -> int:
    """Pages that ``count`` slots fill, the last one perhaps partly.

    Raises:
        ValueError: count is negative or page_size is below 1.

    >>> [pages_for(count, page_size=4) for count in (0, 1, 4, 5)]
    [0, 1, 1, 2]
    """
    if count < 0 or page_size < 1:
        raise ValueError(f"count and page_size are {count} and {page_size}; expected 0 or more slots in pages of at least 1")
    return -(-count // page_size)
