"""The log of a server: what is acknowledged is there after a kill at any byte, and a file that is no log of ours is left alone."""

import json
import os
import stat
from pathlib import Path

import pytest

from specdec_fn.serve import journal as room
from specdec_fn.serve.journal import Entry, Journal, Kept


def entry(name: str, seed: int = 3) -> Entry:
    return Entry(name, "chat", b"\x01\x02", 7, {"messages": [{"role": "user", "content": "né"}], "seed": seed})


def kept(name: str) -> Kept:
    return Kept(name, b"\x01\x02", 7, "finished", {"text": name})


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
