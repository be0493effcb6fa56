"""Pages that were computed before, found again by what they hold: a hash chain over full pages, kept until room is needed.

The hash of a page covers the page before it (at the start: the salt) and its own token ids. It only finds a candidate: a hit compares the token
ids and the page before it, by a serial number that is never used twice, so hashes that collide cost a hit and never give a wrong one. The cache
holds a reference of its own on each of its pages. One that only the cache still holds is idle: it can be evicted, the least recently used first.
"""

from array import array
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import NamedTuple

from rpds import HashTrieMap, Queue

from specdec_fn.kv import pages as pools
from specdec_fn.kv.pages import PagePool
from specdec_fn.kv.table import Table

__all__ = ["Node", "PrefixCache", "Tip", "evict", "hold", "idle_count", "init", "lookup", "publish", "release", "root"]

_SLACK = 64  # entries of the queue that may be out of date before it is written anew, however few are idle


class Tip(NamedTuple):
    """How far a sequence has been published, and what the next page's hash starts from.

    Attributes:
        pages: full pages that are done.
        hash: of the last of them; before the first, of the salt.
        node: its serial number; before the first, the salt itself.
    """

    pages: int
    hash: bytes
    node: int | bytes


class Node(NamedTuple):
    """A page in the cache.

    Attributes:
        page: its id.
        tokens: the token ids whose keys and values are in it.
        parent: serial number of the page before it in the chain; the salt for a first page.
        serial: its own number; no other page ever had it.
    """

    page: int
    tokens: tuple[int, ...]
    parent: int | bytes
    serial: int


class PrefixCache(NamedTuple):
    """The cached pages, as persistent maps.

    Attributes:
        nodes: the page under each hash.
        hashes: the hash of each cached page's id; as long as nodes.
        idle: for each cached page that nobody else holds, the number given out when it became so.
        queue: (number, page) in ascending order; an entry counts if idle says the same.
        numbers: serial and idle numbers given out so far.
    """

    nodes: "HashTrieMap[bytes, Node]"
    hashes: "HashTrieMap[int, bytes]"
    idle: "HashTrieMap[int, int]"
    queue: "Queue[tuple[int, int]]"
    numbers: int


def init() -> PrefixCache:
    """Makes an empty cache.

    >>> idle_count(init())
    0
    """
    return PrefixCache(HashTrieMap(), HashTrieMap(), HashTrieMap(), Queue(), 0)


def root(salt: bytes = b"") -> Tip:
    """Where the chain of a sequence starts; different salts share nothing.

    >>> root(b"a").hash == root(b"b").hash
    False
    """
    return Tip(0, blake2b(salt, digest_size=16, person=b"salt").digest(), salt)


def lookup(cache: PrefixCache, tokens: Sequence[int], *, page_size: int, salt: bytes = b"") -> tuple[int, ...]:
    """Pages of the longest cached chain that the tokens begin with, one token at least left to compute.

    Args:
        tokens: of the sequence, prompt and output.
        page_size: slots of a page, at least 1.
        salt: as in ``publish``'s first tip.

    Returns:
        At most (len(tokens) - 1) // page_size ids.

    Raises:
        ValueError: page_size is below 1.

    >>> cache, pool, table, tip = hold(init(), pools.init(8), [1, 2, 3, 4], page_size=2)
    >>> pool, pages = pools.alloc(pool, 2)
    >>> cache, pool, tip = publish(cache, pool, Table(pages, 4), [1, 2, 3, 4], tip, page_size=2)
    >>> lookup(cache, [1, 2, 3, 4], page_size=2), lookup(cache, [1, 2, 3, 4, 5], page_size=2)
    ((0,), (0, 1))
    """
    return tuple(node.page for _, node in _chain(cache, tokens, page_size, salt))


def hold(cache: PrefixCache, pool: PagePool, tokens: Sequence[int], *, page_size: int, salt: bytes = b"") -> tuple[PrefixCache, PagePool, Table, Tip]:
    """Starts a sequence with the pages that ``lookup`` finds, one reference taken on each; they are no longer idle.

    Args:
        tokens, page_size, salt: as in ``lookup``.

    Returns:
        The cache, the pool, a table whose length is that of the hit in slots, and the tip behind it.

    Raises:
        ValueError: page_size is below 1.

    >>> cache, pool, table, tip = hold(init(), pools.init(8), [1, 2, 3], page_size=2)
    >>> table, tip == root()
    (Table(pages=(), length=0), True)
    """
    found = list(_chain(cache, tokens, page_size, salt))
    if not found:
        return cache, pool, Table(), root(salt)
    pages = tuple(node.page for _, node in found)
    idle = cache.idle
    for page in pages:
        idle = idle.discard(page)
    last, node = found[-1]
    cache = _tidy(PrefixCache(cache.nodes, cache.hashes, idle, cache.queue, cache.numbers))
    return cache, pools.retain(pool, pages), Table(pages, len(pages) * page_size), Tip(len(pages), last, node.serial)


def publish(
    cache: PrefixCache, pool: PagePool, table: Table, tokens: Sequence[int], tip: Tip, *, page_size: int
) -> tuple[PrefixCache, PagePool, Tip]:
    """Enters every page that is full within the table's length and was not published yet.

    Where the same chain is cached on another page already, that page stays the cached one. A page under a hash that something else holds takes
    its place. Behind a page that has left the cache nothing is entered, since nothing would find it.

    Args:
        table: of the sequence; its pages are never written again where they are full, so a truncation never goes below ``tip``.
        tokens: of the sequence, at least as many as count in the table.
        tip: of the sequence, from ``hold``, ``root`` or the last publish.
        page_size: slots of a page, at least 1.

    Returns:
        The cache, the pool and the new tip, whose pages are table.length // page_size.

    Raises:
        ValueError: page_size is below 1, the table counts more slots than there are tokens, or one of the pages is cached with other contents.

    >>> pool, pages = pools.alloc(pools.init(8), 2)
    >>> cache, pool, tip = publish(init(), pool, Table(pages, 3), [1, 2, 3], root(), page_size=2)
    >>> tip.pages, pools.references(pool, 0), pools.references(pool, 1)
    (1, 2, 1)
    """
    if page_size < 1:
        raise ValueError(f"page_size is {page_size}; expected at least 1 slot")
    full = table.length // page_size
    done, key, parent = tip
    if full <= done:
        return cache, pool, tip
    if len(tokens) < table.length:
        raise ValueError(f"tokens has {len(tokens)} ids; expected at least {table.length}, the slots that count in the table")
    nodes, hashes, idle, queue, numbers = cache
    if done and ((last := nodes.get(key)) is None or last.serial != parent):
        return cache, pool, Tip(full, key, parent)
    entered: list[int] = []
    dropped: list[int] = []
    for place in range(done, full):
        page, ids = table.pages[place], tuple(tokens[place * page_size : (place + 1) * page_size])
        key = _hash(key, ids)
        node = nodes.get(key)
        if node is None or node.parent != parent or node.tokens != ids:
            if page in hashes:
                raise ValueError(f"page {page} is cached with other contents; expected a page that was not published")
            if node is not None:
                hashes, idle = hashes.remove(node.page), idle.discard(node.page)
                dropped.append(node.page)
            entered.append(page)
            node = Node(page, ids, parent, numbers)
            numbers += 1
            nodes, hashes = nodes.insert(key, node), hashes.insert(page, key)
        parent = node.serial
    pool = pools.release(pools.retain(pool, entered), dropped)
    return _tidy(PrefixCache(nodes, hashes, idle, queue, numbers)), pool, Tip(full, key, parent)


def release(cache: PrefixCache, pool: PagePool, table: Table) -> tuple[PrefixCache, PagePool]:
    """Gives up all pages of a table; those that only the cache still holds become idle, the last of the chain first.

    Raises:
        ValueError: the pool does not hold a page of the table.

    >>> pool, pages = pools.alloc(pools.init(8), 2)
    >>> cache, pool, tip = publish(init(), pool, Table(pages, 3), [1, 2, 3], root(), page_size=2)
    >>> cache, pool = release(cache, pool, Table(pages, 3))
    >>> pools.free_count(pool), idle_count(cache)
    (7, 1)
    """
    pool = pools.release(pool, table.pages)
    nodes, hashes, idle, queue, numbers = cache
    held = pool.held
    for page in reversed(table.pages):
        if page in hashes and held[page] == 1:
            idle, queue = idle.insert(page, numbers), queue.enqueue((numbers, page))
            numbers += 1
    return _tidy(PrefixCache(nodes, hashes, idle, queue, numbers)), pool


def evict(cache: PrefixCache, pool: PagePool, count: int) -> tuple[PrefixCache, PagePool]:
    """Drops up to ``count`` idle pages, the least recently used first; they are free and nothing finds them any more.

    Args:
        count: pages wanted, 0 or more.

    Raises:
        ValueError: count is negative.

    >>> pool, pages = pools.alloc(pools.init(8), 1)
    >>> cache, pool, tip = publish(init(), pool, Table(pages, 2), [1, 2], root(), page_size=2)
    >>> cache, pool = evict(*release(cache, pool, Table(pages, 2)), 1)
    >>> pools.free_count(pool), lookup(cache, [1, 2, 3], page_size=2)
    (8, ())
    """
    if count < 0:
        raise ValueError(f"count is {count}; expected 0 or more pages")
    nodes, hashes, idle, queue, numbers = cache
    gone: list[int] = []
    for number, page in queue:
        if len(gone) == count:
            break
        queue = queue.dequeue()  # type: ignore[call-arg]  # the stub asks for an argument that there is not
        if idle.get(page) == number:
            nodes, hashes, idle = nodes.remove(hashes[page]), hashes.remove(page), idle.remove(page)
            gone.append(page)
    # Tails went before their parents: turned round, a chain is handed out again in the order it lay in.
    return _tidy(PrefixCache(nodes, hashes, idle, queue, numbers)), pools.release(pool, gone[::-1])


def idle_count(cache: PrefixCache) -> int:
    """Cached pages that nobody else holds, which ``evict`` can free.

    >>> idle_count(init())
    0
    """
    return len(cache.idle)


def _hash(parent: bytes, tokens: tuple[int, ...]) -> bytes:
    """The hash of a page behind the one whose hash is ``parent``."""
    return blake2b(parent + array("q", tokens).tobytes(), digest_size=16, person=b"page").digest()


def _chain(cache: PrefixCache, tokens: Sequence[int], page_size: int, salt: bytes) -> Iterator[tuple[bytes, Node]]:
    """Hash and node of each page of the longest cached chain that leaves a token to compute."""
    if page_size < 1:
        raise ValueError(f"page_size is {page_size}; expected at least 1 slot")
    _, key, parent = root(salt)
    nodes = cache.nodes
    for start in range(0, (len(tokens) - 1) // page_size * page_size, page_size):
        ids = tuple(tokens[start : start + page_size])
        key = _hash(key, ids)
        node = nodes.get(key)
        if node is None or node.parent != parent or node.tokens != ids:
            return
        yield key, node
        parent = node.serial


def _tidy(cache: PrefixCache) -> PrefixCache:
    """Writes the queue anew once most of it is out of date, so that it never outgrows what is idle."""
    nodes, hashes, idle, queue, numbers = cache
    if len(queue) <= 2 * len(idle) + _SLACK:
        return cache
    return PrefixCache(nodes, hashes, idle, Queue([entry for entry in queue if idle.get(entry[1]) == entry[0]]), numbers)
