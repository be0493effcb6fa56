"""The log of a server: what is acknowledged is there after a kill at any byte, and a file that is no log of ours is left alone."""

import errno
import json
import os
import resource
import stat
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import IO

import pytest

from specdec_fn.serve import journal as room
from specdec_fn.serve.journal import Entry, Journal, Kept


def entry(name: str, seed: int = 3) -> Entry:
    return Entry(name, "chat", b"\x01\x02", 7, {"messages": [{"role": "user", "content": "né"}], "seed": seed})


def kept(name: str) -> Kept:
    return Kept(name, b"\x01\x02", 7, "finished", {"text": name})


def reopened(path: Path, **options: int) -> Journal:
    """What another server finds."""
    journal = Journal(str(path), "model", **options)
    journal.close()
    return journal


def test_what_ended_is_not_unfinished_and_the_secret_stays(tmp_path: Path) -> None:
    path = str(tmp_path / "state")
    first = Journal(path, "model")
    for name in "abc":
        first.submitted(entry(name))
    first.end(kept("b"))
    first.close()
    second = Journal(path, "model")
    second.close()
    assert [one.id for one in second.unfinished] == ["a", "c"]
    assert second.unfinished[0] == entry("a")
    assert second.ended == [kept("b")]
    assert second.secret == first.secret
    assert len(first.secret) == 32


def test_only_the_owner_can_read_it_even_where_it_was_there_before(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.touch(0o644)
    Journal(str(path), "model").close()
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


def test_a_kill_at_any_byte_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    path = tmp_path / "state"
    whole = Journal(str(path), "model")
    whole.submitted(entry("a"))
    before = path.stat().st_size
    whole.submitted(entry("b"))
    whole.close()
    data = path.read_bytes()
    for cut in range(before, len(data)):
        torn = tmp_path / f"torn{cut}"
        torn.write_bytes(data[:cut])
        again = Journal(str(torn), "model")
        again.submitted(entry("c"))
        again.close()
        last = Journal(str(torn), "model")
        last.close()
        assert [one.id for one in last.unfinished] == ["a", "c"]


def test_no_two_servers_share_a_log(tmp_path: Path) -> None:
    path = str(tmp_path / "state")
    first = Journal(path, "model")
    with pytest.raises(ValueError, match="in use by another server"):
        Journal(path, "model")
    first.submitted(entry("a"))  # the first one goes on undisturbed
    first.close()
    second = Journal(path, "model")
    second.close()
    assert [one.id for one in second.unfinished] == ["a"]


@pytest.mark.parametrize("content", [b"a letter to my mother", b"a letter\nto my mother\n", b"{}\n", b'{"specdec": 1}\n', b"\xff\xfe\n", b"[]\n"])
def test_what_is_no_log_is_refused_and_left_as_it_was(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "letter"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="expected one that --state wrote, or a new file"):
        Journal(str(path), "model")
    assert path.read_bytes() == content


def test_another_model_or_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state"
    Journal(str(path), "one").close()
    before = path.read_bytes()
    with pytest.raises(ValueError, match="begun with another model"):
        Journal(str(path), "other")
    assert path.read_bytes() == before
    head = json.loads(before)
    path.write_text(json.dumps({**head, "specdec": 99}) + "\n")
    with pytest.raises(ValueError, match="format 99"):
        Journal(str(path), "one")


def test_links_and_folders_are_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for name in ("link", "."):
        with pytest.raises(ValueError, match="no regular file"):
            Journal(str(tmp_path / name), "model")
    assert not (tmp_path / "elsewhere").exists()


def test_the_file_does_not_grow_with_what_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "SLACK", 4096)
    path = tmp_path / "state"
    journal = Journal(str(path), "model", kept=3)
    journal.submitted(entry("long lived"))
    sizes = []
    for number in range(200):
        journal.submitted(entry(f"{number}"))
        journal.end(kept(f"{number}"))
        sizes.append(path.stat().st_size)
    assert max(sizes) < 3 * 4096
    journal.close()
    again = Journal(str(path), "model", kept=3)
    again.close()
    assert [one.id for one in again.unfinished] == ["long lived"]
    assert [one.id for one in again.ended] == ["197", "198", "199"]


class Disk:
    """A disk with room for so many bytes more."""

    def __init__(self, room: int) -> None:
        self.room, self.write = room, os.write

    def __call__(self, descriptor: int, data: bytes) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done = self.write(descriptor, data[: self.room])
        self.room -= done
        return done


def failing(*_: object, **__: object) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def lines(*names: str) -> list[bytes]:
    """The lines of submissions, as a log has them."""
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(f"{folder}/state", "model")
        for name in names:
            journal.submitted(entry(name))
        journal.close()
        return Path(folder, "state").read_bytes().splitlines(keepends=True)[1:]


def test_a_write_that_fails_at_any_byte_is_taken_back(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path / "state"), "model")
    expected = []
    for cut in range(len(lines("b")[0])):
        before = (tmp_path / "state").read_bytes()
        for log in (lambda: journal.submitted(entry("b")), lambda: journal.end(kept("never began"))):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(os, "write", Disk(min(cut, 80)))
                with pytest.raises(OSError, match="No space left"):
                    log()
            assert (tmp_path / "state").read_bytes() == before
        journal.submitted(entry(f"after {cut}"))
        expected.append(f"after {cut}")
    journal.close()
    again = reopened(tmp_path / "state")
    assert [one.id for one in again.unfinished] == expected
    assert again.ended == []
    assert again.skipped == 0


def test_a_limit_of_the_system_on_the_size_of_files_is_taken_back_too(tmp_path: Path) -> None:
    path = tmp_path / "state"
    journal = Journal(str(path), "model")
    journal.submitted(entry("a"))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 40, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            journal.submitted(entry("b"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    journal.submitted(entry("c"))
    journal.close()
    again = reopened(path)
    assert [one.id for one in again.unfinished] == ["a", "c"]


def test_a_line_that_did_not_reach_the_disk_is_taken_back(tmp_path: Path) -> None:
    path = tmp_path / "state"
    journal = Journal(str(path), "model")
    before, calls, sync = path.read_bytes(), [], os.fsync

    def once(descriptor: int) -> None:
        calls.append(descriptor)
        return failing() if len(calls) == 1 else sync(descriptor)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", once)
        with pytest.raises(OSError, match="Input/output"):
            journal.submitted(entry("a"))
    assert len(calls) == 2  # the cut is made to last
    assert path.read_bytes() == before
    journal.submitted(entry("b"))
    journal.close()


@pytest.mark.parametrize("name", ["ftruncate", "fsync"])
def test_a_write_that_cannot_be_taken_back_is_the_last(tmp_path: Path, name: str) -> None:
    path = tmp_path / "state"
    journal = Journal(str(path), "model")
    journal.submitted(entry("a"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "write", Disk(20))
        patch.setattr(os, name, failing)
        with pytest.raises(OSError, match="No space left"):
            journal.submitted(entry("b"))
    before = path.read_bytes()
    for log in (lambda: journal.submitted(entry("c")), lambda: journal.end(kept("a"))):
        with pytest.raises(OSError, match="could not be taken back"):
            log()
    assert path.read_bytes() == before
    journal.close()
    again = Journal(str(path), "model")
    again.submitted(entry("d"))
    again.close()
    last = reopened(path)
    assert [one.id for one in last.unfinished] == ["a", "d"]


@pytest.mark.parametrize("hole", [b"", bytes(50)], ids=["cut", "hole"])
def test_a_torn_line_in_the_middle_loses_no_other(tmp_path: Path, hole: bytes) -> None:
    path = tmp_path / "state"
    Journal(str(path), "model").close()
    head = path.read_bytes()
    a, torn, c, d = lines("a", "torn", "c", "d")
    nested = torn.replace(b'"seed":3', b'"seed":3,"metadata":{"submitted":"x"}')
    forged = torn.replace(b'"body":{', b'"body":{"x":' + lines("forged")[0].strip() + b",")
    for cut in range(1, len(nested) - 1):
        path.write_bytes(head + a + forged[: cut + len(forged) - len(nested)] + hole + c + d)
        journal = reopened(path)
        assert ([one.id for one in journal.unfinished], journal.skipped) == (["a", "c", "d"], 1)
        path.write_bytes(head + a + nested[:cut] + hole + b"\n" + c + d)
        journal = reopened(path)
        assert ([one.id for one in journal.unfinished], journal.skipped) == (["a", "c", "d"], 1)
        again = reopened(path)  # written anew, without it
        assert (again.unfinished, again.skipped) == (journal.unfinished, 0)


@pytest.mark.parametrize("line", [b"a letter", b"[]", b"{}", b"3", b"null", b'"submitted"', b'{"submitted":"x"}'])
def test_a_line_that_no_torn_write_explains_is_refused_and_left(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "state"
    Journal(str(path), "model").close()
    content = path.read_bytes() + line + b"\n" + lines("a")[0]
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"line 2 is not of a log.*; expected one that --state wrote"):
        Journal(str(path), "model")
    assert path.read_bytes() == content


def test_a_torn_first_line_is_refused_and_left(tmp_path: Path) -> None:
    path = tmp_path / "state"
    content = b'{"specdec":1,"mod\n' + lines("a")[0]
    path.write_bytes(content)
    with pytest.raises(ValueError, match="line 1 is not of a log"):
        Journal(str(path), "model")
    assert path.read_bytes() == content


@pytest.mark.parametrize("name", ["replace", "open", "fsync of the new file"])
def test_a_log_that_cannot_be_written_anew_goes_on_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(room, "SLACK", 4096)
    path = tmp_path / "state"
    journal = Journal(str(path), "model", kept=3)
    first = path.stat()
    tries, sync = [], os.fsync

    def counted(*_: object, **__: object) -> None:
        tries.append(path.stat().st_size)
        failing()

    def only_the_log(descriptor: int) -> None:
        return sync(descriptor) if os.path.samestat(os.fstat(descriptor), first) else counted()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, name.split()[0], only_the_log if "new" in name else counted)
        for number in range(100):
            journal.submitted(entry(f"{number}"))
            journal.end(kept(f"{number}"))
        journal.submitted(entry("last"))
    grown = [after - before for before, after in pairwise(tries)]
    assert len(grown) > 2
    assert min(grown) > 4096  # not at every line
    assert os.listdir(tmp_path) == ["state"]
    assert path.stat().st_ino == first.st_ino
    assert path.stat().st_size > 3 * 4096
    for number in range(100, 120):
        journal.submitted(entry(f"{number}"))
        journal.end(kept(f"{number}"))
    assert path.stat().st_size < 3 * 4096  # and once it can be, it is
    journal.close()
    again = reopened(path, kept=3)
    assert [one.id for one in again.unfinished] == ["last"]
    assert [one.id for one in again.ended] == ["117", "118", "119"]


@pytest.mark.parametrize("name", ["replace", "write", "fsync"])
def test_a_log_that_cannot_be_written_anew_at_the_start_is_left_as_it_was(tmp_path: Path, name: str) -> None:
    path = tmp_path / "state"
    journal = Journal(str(path), "model")
    journal.submitted(entry("a"))
    journal.close()
    before = path.read_bytes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, name, failing)
        with pytest.raises(OSError, match="Input/output"):
            Journal(str(path), "model")
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["state"]
    Journal(str(path), "model").close()  # nor is it held


def test_nothing_is_acknowledged_in_a_file_that_may_lose_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "SLACK", 0)
    path = tmp_path / "state"
    journal = Journal(str(path), "model")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(room, "sync_folder", failing)
        journal.submitted(entry("a"))  # stands in the file before the renaming and in the one after it
        with pytest.raises(OSError, match="Input/output"):
            journal.submitted(entry("b"))
    journal.submitted(entry("c"))
    journal.close()
    again = reopened(path)
    assert [one.id for one in again.unfinished] == ["a", "c"]


@pytest.mark.parametrize("stays", [True, False])
def test_a_file_that_is_replaced_between_opening_and_locking_is_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stays: bool) -> None:
    path = str(tmp_path / "state")
    Journal(path, "model").close()
    lock, others = room._lock, []

    def late(file: IO[bytes], name: str) -> None:
        monkeypatch.setattr(room, "_lock", lock)
        others.append(Journal(path, "model"))
        others[0].submitted(entry("one"))
        if not stays:
            others[0].close()
        lock(file, name)

    monkeypatch.setattr(room, "_lock", late)
    if stays:
        with pytest.raises(ValueError, match="in use by another server"):
            Journal(path, "model")
        others[0].submitted(entry("two"))
        others[0].close()
    else:
        second = Journal(path, "model")
        second.submitted(entry("two"))
        second.close()
    last = reopened(Path(path))
    assert [one.id for one in last.unfinished] == ["one", "two"]


def test_a_file_that_is_replaced_or_removed_at_every_try_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, lock = tmp_path / "state", room._lock

    def late(file: IO[bytes], name: str) -> None:
        path.unlink()
        lock(file, name)

    monkeypatch.setattr(room, "_lock", late)
    with pytest.raises(ValueError, match="in use by another server"):
        Journal(str(path), "model")


def test_files_of_others_beside_it_stay_theirs(tmp_path: Path) -> None:
    path, other = tmp_path / "state", tmp_path / "state.new"
    other.write_text("my file")
    other.chmod(0o644)
    for _ in range(2):
        Journal(str(path), "model").close()
    assert other.read_text() == "my file"
    assert stat.S_IMODE(other.stat().st_mode) == 0o644
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert sorted(os.listdir(tmp_path)) == ["state", "state.new"]


def test_a_temporary_name_that_is_taken_is_not_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room.secrets, "token_hex", lambda _: "taken")
    (tmp_path / "state.taken").write_text("my file")
    with pytest.raises(FileExistsError):
        Journal(str(tmp_path / "state"), "model")
    assert (tmp_path / "state.taken").read_text() == "my file"
