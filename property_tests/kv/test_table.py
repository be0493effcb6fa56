"""Block tables over a pool of a few pages, beside a memory of slots: what a sequence wrote is what it reads, whoever shares its pages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from specdec_fn.kv import pages, table
from specdec_fn.kv.pages import PagePool
from specdec_fn.kv.table import Table

WHICH = st.integers(0, 9)


def filled(pool: PagePool, count: int, *, page_size: int) -> tuple[PagePool, Table]:
    """A table of ``count`` slots that count."""
    room = table.reserve(pool, Table(), count, page_size=page_size)
    assert room is not None
    return room[0], table.append(room[1], count, page_size=page_size)


class TableMachine(RuleBasedStateMachine):
    """Random passes, rollbacks, forks and ends. The model: what each sequence wrote, and one dictionary from slots to what was written last."""

    @initialize(num_pages=st.integers(2, 12), page_size=st.integers(1, 4))
    def empty(self, num_pages: int, page_size: int) -> None:
        self.size = page_size
        self.pool = pages.init(num_pages)
        self.tables = [Table(), Table()]
        self.texts: list[list[int]] = [[], []]
        self.memory: dict[int, int] = {}
        self.writes = 0

    def holders(self, page: int) -> int:
        return sum(page in one.pages for one in self.tables)

    def wanted(self, one: Table, count: int) -> int:
        """Pages that ``count`` more slots cost, counted slot by slot."""
        places = {position // self.size for position in range(one.length, one.length + count)}
        return sum(place >= len(one.pages) or self.holders(one.pages[place]) > 1 for place in places)

    @rule(which=WHICH, count=st.integers(0, 6), kept=st.integers(0, 6), rollback=st.booleans())
    def run(self, which: int, count: int, kept: int, rollback: bool) -> None:
        which %= len(self.tables)
        one, text = self.tables[which], self.texts[which]
        wanted, free = self.wanted(one, count), pages.free_count(self.pool)
        room = table.reserve(self.pool, one, count, page_size=self.size)
        if wanted > free:
            assert room is None
            return
        assert room is not None
        self.pool, roomy, copies = room
        assert pages.free_count(self.pool) == free - wanted
        assert roomy.length == one.length
        self.tables[which] = roomy
        old = dict(self.memory)
        for source, target in copies:
            assert self.holders(target) == 1
            self.memory.update({target * self.size + i: old[source * self.size + i] for i in range(self.size) if source * self.size + i in old})
        slots = table.slots(roomy, one.length, one.length + count, page_size=self.size)
        assert len(slots) == len(set(slots)) == count
        assert all(self.holders(slot // self.size) == 1 and pages.references(self.pool, slot // self.size) == 1 for slot in slots)
        written = list(range(self.writes, self.writes + count))
        self.writes += count
        self.memory.update(zip(slots, written, strict=True))
        kept = min(kept, count)
        self.tables[which] = table.append(roomy, kept, page_size=self.size)
        text += written[:kept]
        if rollback:
            self.truncate(which, len(text))

    @rule(which=WHICH, length=st.integers(0, 20))
    def truncate(self, which: int, length: int) -> None:
        which %= len(self.tables)
        length = min(length, len(self.texts[which]))
        self.pool, self.tables[which] = table.truncate(self.pool, self.tables[which], length, page_size=self.size)
        del self.texts[which][length:]
        assert len(self.tables[which].pages) == len({position // self.size for position in range(length)})

    @rule(which=WHICH, count=st.integers(0, 3))
    def fork(self, which: int, count: int) -> None:
        """A twin of one of the sequences that hold something, which writes at once."""
        full = [place for place, text in enumerate(self.texts) if text] or [0]
        which = full[which % len(full)]
        self.pool, twin = table.fork(self.pool, self.tables[which])
        self.tables.append(twin)
        self.texts.append(list(self.texts[which]))
        if len(self.tables) > 4:
            self.end(0)
        self.run(len(self.tables) - 1, count, count, False)

    @rule(which=WHICH)
    def end(self, which: int) -> None:
        """One sequence ends; where it was the last, another starts."""
        which %= len(self.tables)
        self.pool = table.release(self.pool, self.tables.pop(which))
        self.texts.pop(which)
        if not self.tables:
            self.tables, self.texts = [Table()], [[]]

    @invariant()
    def every_sequence_reads_what_it_wrote(self) -> None:
        for one, text in zip(self.tables, self.texts, strict=True):
            assert one.length == len(text)
            assert [self.memory[slot] for slot in table.slots(one, 0, one.length, page_size=self.size)] == text

    @invariant()
    def pages_are_held_by_tables_or_free(self) -> None:
        for page in range(self.pool.num_pages):
            assert pages.references(self.pool, page) == self.holders(page)
            if not self.holders(page):
                for slot in range(page * self.size, (page + 1) * self.size):
                    self.memory.pop(slot, None)  # a free page keeps nothing that anyone may count on


TestTable = TableMachine.TestCase


def test_slots_of_drafts_are_given_back_a_hundred_requests_over() -> None:
    pool = pages.init(8)
    for request in range(100):
        length = 1 + request % 17
        pool, one = filled(pool, length, page_size=4)
        for kept in (0, 2, 5, 1):
            room = table.reserve(pool, one, 5, page_size=4)  # K = 4 drafts and the row before them
            assert room is not None
            length += kept
            pool, one = table.truncate(room[0], table.append(room[1], kept, page_size=4), length, page_size=4)
            assert pages.free_count(pool) == 8 - -(-length // 4)
        pool = table.release(pool, one)
        assert pages.free_count(pool) == 8


@pytest.mark.parametrize("start", range(1, 10))
def test_nine_rows_in_one_step_over_pages_of_four_stay_in_own_pages(start: int) -> None:
    pool, other = filled(pages.init(16), 6, page_size=4)
    pool, one = filled(pool, start, page_size=4)
    pool, later = filled(pool, 3, page_size=4)
    room = table.reserve(pool, one, 9, page_size=4)
    assert room is not None
    assert room[2] == ()
    pool, one, _ = room
    slots = table.slots(one, start, start + 9, page_size=4)
    before = table.slots(one, 0, start, page_size=4)
    assert len({*before, *slots}) == start + 9
    assert {slot // 4 for slot in slots} <= set(one.pages)
    assert not {slot // 4 for slot in slots} & {*other.pages, *later.pages}
    assert len(one.pages) == len({position // 4 for position in range(start + 9)})


@given(length=st.integers(1, 12), rows=st.integers(1, 9), page_size=st.integers(1, 5))
def test_a_shared_page_is_copied_before_it_is_written(length: int, rows: int, page_size: int) -> None:
    pool, first = filled(pages.init(40), length, page_size=page_size)
    pool, second = table.fork(pool, first)
    room = table.reserve(pool, second, rows, page_size=page_size)
    assert room is not None
    pool, new, copies = room
    full, partly = length // page_size, length % page_size > 0
    assert copies == (((first.pages[full], new.pages[full]),) if partly else ())
    assert new.pages[:full] == first.pages[:full]
    written = {slot // page_size for slot in table.slots(new, length, length + rows, page_size=page_size)}
    assert not written & set(first.pages), "a page that the other sequence reads would be written"
    room = table.reserve(pool, first, rows, page_size=page_size)  # by now it holds its last page alone
    assert room is not None
    assert room[1].pages[: len(first.pages)] == first.pages
    assert room[2] == ()
    assert not {slot // page_size for slot in table.slots(room[1], length, length + rows, page_size=page_size)} & set(new.pages)


def test_full_shared_pages_are_never_among_the_slots_written() -> None:
    pool, one = filled(pages.init(8), 8, page_size=4)
    pool, twin = table.fork(pool, one)
    for sharer in (one, twin):
        room = table.reserve(pool, sharer, 5, page_size=4)
        assert room is not None
        assert room[2] == ()
        pool = room[0]
        written = {slot // 4 for slot in table.slots(room[1], 8, 13, page_size=4)}
        assert not written & set(one.pages)
        assert room[1].pages[:2] == one.pages
    assert [pages.references(pool, page) for page in one.pages] == [2, 2]


def test_pages_reserved_before_a_fork_are_replaced_without_a_copy() -> None:
    room = table.reserve(pages.init(8), Table(), 8, page_size=4)
    assert room is not None
    pool, one = room[0], table.append(room[1], 2, page_size=4)
    pool, twin = table.fork(pool, one)
    room = table.reserve(pool, twin, 6, page_size=4)
    assert room is not None
    assert room[2] == ((0, 2),)
    assert room[1].pages == (2, 3)
    assert pages.free_count(room[0]) == 4
    room = table.reserve(pool, table.append(twin, 2, page_size=4), 1, page_size=4)
    assert room is not None
    assert (room[1].pages, room[2]) == ((0, 2), ())  # its length ends where that page begins


def test_without_pages_nothing_is_reserved_and_nothing_changes() -> None:
    pool, one = filled(pages.init(3), 6, page_size=4)
    before = pool
    assert table.reserve(pool, one, 7, page_size=4) is None
    pool, twin = table.fork(pool, one)
    assert table.reserve(pool, twin, 7, page_size=4) is None  # a copy and two more pages, where one is free
    assert pages.free_count(before) == pages.free_count(pool) == 1
    assert [pages.references(pool, page) for page in one.pages] == [2, 2]


def test_nothing_is_copied_for_no_rows() -> None:
    pool, one = filled(pages.init(3), 6, page_size=4)
    pool, twin = table.fork(pool, one)
    assert table.reserve(pool, twin, 0, page_size=4) == (pool, twin, ())


def test_bad_input_is_refused_in_one_sentence() -> None:
    pool, one = filled(pages.init(4), 6, page_size=4)
    with pytest.raises(ValueError, match="count and page_size are -1 and 4; expected"):
        table.reserve(pool, one, -1, page_size=4)
    with pytest.raises(ValueError, match="count and page_size are 1 and 0; expected"):
        table.reserve(pool, one, 1, page_size=0)
    with pytest.raises(ValueError, match="page 3 of the table is free; expected"):
        table.reserve(pool, Table((0, 3), 6), 1, page_size=4)
    for count in (-1, 3):
        with pytest.raises(ValueError, match=f"count is {count}; expected 0 to 2, the slots that are reserved"):
            table.append(one, count, page_size=4)
    for length in (-1, 7):
        with pytest.raises(ValueError, match=f"length is {length}; expected 0 to 6, the slots that count"):
            table.truncate(pool, one, length, page_size=4)
    for start, stop in ((-1, 2), (3, 2), (4, 9)):
        with pytest.raises(ValueError, match=f"start and stop are {start} and {stop}; expected 0 <= start <= stop <= 8"):
            table.slots(one, start, stop, page_size=4)
    for count, size in ((-1, 4), (1, 0)):
        with pytest.raises(ValueError, match=f"count and page_size are {count} and {size}; expected"):
            table.pages_for(count, page_size=size)


def test_a_table_released_twice_is_refused() -> None:
    pool, one = filled(pages.init(4), 6, page_size=4)
    pool = table.release(pool, one)
    for call in (table.release, table.fork):
        with pytest.raises(ValueError, match="page 0, which is free"):
            call(pool, one)
    assert pages.free_count(pool) == 4
