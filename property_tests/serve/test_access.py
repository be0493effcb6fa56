"""Who may ask: keys, hosts and origins."""

import hmac

import pytest

from specdec_fn.serve import access as room
from specdec_fn.serve.access import LOOPBACK, Access, is_loopback
from specdec_fn.serve.refusal import Refusal


def status_of(access: Access, **headers: str) -> int:
    try:
        access.check_place(headers)
        access.owner(headers)
    except Refusal as refusal:
        return refusal.status
    return 200


def test_a_key_of_several_is_enough_and_nothing_else_is() -> None:
    access = Access(["one", "two"], b"secret")
    assert [status_of(access, authorization=given) for given in ("Bearer one", "bearer two", "BEARER  one ")] == [200, 200, 200]
    wrong = ("", "Bearer", "Bearer ", "Bearer on", "Bearer onee", "Basic one", "one", "Bearer one two", "Bearer \udcff")
    assert [status_of(access, authorization=given) for given in wrong] == [401] * len(wrong)
    assert status_of(access) == 401


def test_owners_differ_by_key_and_by_secret_and_are_not_the_key() -> None:
    def owner(key: str, secret: bytes) -> bytes:
        return Access(["one", "two"], secret).owner({"authorization": f"Bearer {key}"})

    assert owner("one", b"s") == owner("one", b"s")
    assert len({owner("one", b"s"), owner("two", b"s"), owner("one", b"t")}) == 3
    assert b"one" not in owner("one", b"s")
    assert Access([], b"s").owner({}) == b""


def test_every_key_is_compared_by_compare_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, whole = [], hmac.compare_digest

    def compare(left: bytes, right: bytes) -> bool:
        seen.append((len(left), len(right)))
        return whole(left, right)

    monkeypatch.setattr(room.hmac, "compare_digest", compare)
    Access(["one", "a much longer key"], b"s").owner({"authorization": "Bearer one"})
    assert seen == [(32, 32), (32, 32)]  # both, though the first was right, and digests, which tell no length


def test_pages_of_other_origins_and_names_that_are_rebound_are_refused() -> None:
    access = Access([], b"s", hosts=LOOPBACK)
    for host in ("127.0.0.1:8000", "localhost", "LOCALHOST:1", "[::1]:8000"):
        assert status_of(access, host=host) == 200
    for host in ("evil.example", "evil.example:8000", "", "127.0.0.1.evil.example", "[", "[::1", "localhost@evil.example"):
        assert status_of(access, host=host) == 421
    assert status_of(access, host="localhost:8000", origin="http://localhost:8000") == 200
    for origin in ("http://evil.example", "null", "http://localhost:9000", ""):
        assert status_of(access, host="localhost:8000", origin=origin) == 403


def test_which_addresses_are_this_machine_alone() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "localhost", "::1", f"127.{3}.2.1")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "", "example.org", "127.evil.example", "128.0.0.1")))
