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


def test_keys_of_any_script_are_compared_as_the_bytes_that_were_sent() -> None:
    access = Access(["schlüssel", "clà", "ключ"], b"secret")  # the last byte of à is a white space of Latin-1

    def sent(key: str, encoding: str = "utf-8") -> int:
        return status_of(access, authorization=(b"Bearer " + key.encode(encoding)).decode("latin-1"))  # as servers hand headers over

    assert [sent(key) for key in ("schlüssel", "clà", "ключ", " schlüssel ")] == [200] * 4
    assert [sent(key) for key in ("schlussel", "schl?ssel", "schl??ssel", "cl", "cl\xc3", "????")] == [401] * 6
    assert sent("schlüssel", "latin-1") == 401
    raw = Access([b"\xff\xfe".decode("utf-8", "surrogateescape")], b"s")  # as the environment hands over what is no UTF-8
    assert [status_of(raw, authorization=f"Bearer {key}") for key in ("\xff\xfe", "??")] == [200, 401]


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


def test_a_host_is_a_name_and_perhaps_a_port_and_nothing_else() -> None:
    access = Access([], b"s", hosts=(*LOOPBACK, "Proxy.example.", "fe80::1", "[fe80::2]"))
    for host in ("localhost", "localhost:80", "localhost.", "localhost.:80", "proxy.EXAMPLE:1", "[fe80::1]", "[fe80::2]:3", "[::1]"):
        assert status_of(access, host=host) == 200, host
    for host in ("evil@localhost", "a:b@localhost", "localhost/evil", "localhost#x", "localhost?x", "localhost\\", "localhost..", ".localhost"):
        assert status_of(access, host=host) == 421, host
    for host in (
        "localhost:",
        "localhost:x",
        "localhost:80:80",
        "localhost:8\u0660",
        "localhost\n",
        " localhost",
        "::1",
        "[localhost]",
        "[::1]x",
        "x[::1]",
    ):
        assert status_of(access, host=host) == 421, host
    assert status_of(Access([], b"s", hosts=()), host="") == 421
    assert status_of(Access([], b"s"), host="anything@all") == 200


def test_which_addresses_are_this_machine_alone() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "localhost", "::1", f"127.{3}.2.1")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "", "example.org", "127.evil.example", "128.0.0.1")))
