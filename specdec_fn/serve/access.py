"""Who may ask: keys, and where a request came to.

Without a key a server listens to this machine alone. Even then a web page that somebody here has open could send it requests, so the ``Host``
of a request must be a name of this machine, its ``Origin``, if it has one, the server itself, and a body must say that it is JSON, which no
page of another origin can send without asking first.
"""

import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence

from specdec_fn.serve.refusal import Refusal

__all__ = ["Access", "is_loopback"]

LOOPBACK = ("localhost", "127.0.0.1", "::1")
HOST = re.compile(r"(\[[^\[\]]+\]|[^\[\]:]+)(?::[0-9]+)?")  # a name or [v6], and perhaps a port


class Access:
    """The keys of a server.

    Args:
        keys: what clients may say; none lets everybody in who can reach the server.
        secret: makes owners out of keys, so that they say nothing about them.
        hosts: names or addresses that requests may be sent to, at whatever port; None for any.

    >>> access = Access(["right"], b"secret")
    >>> access.owner({"authorization": "Bearer right"}) == access.owner({"authorization": "Bearer right"})
    True
    >>> access.owner({"authorization": "Bearer wrong"})
    Traceback (most recent call last):
    ...
    specdec_fn.serve.refusal.Refusal: the key is not one of this server's; expected one, as Authorization: Bearer KEY
    """

    def __init__(self, keys: Sequence[str], secret: bytes, *, hosts: Sequence[str] | None = None) -> None:
        self._digests = tuple(hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest() for key in keys)
        self._secret = secret
        self._hosts = None if hosts is None else frozenset(_name(host) or f"[{host.lower()}]" for host in hosts)

    @property
    def keyed(self) -> bool:
        """Whether a key is needed."""
        return bool(self._digests)

    def owner(self, headers: Mapping[str, str]) -> bytes:
        """Whose a request is: 16 bytes made of its key, or none where no key is needed. Every key is compared, each in constant time.

        Raises:
            Refusal: 401, no key or none of ours.
        """
        if not self._digests:
            return b""
        scheme, _, key = headers.get("authorization", "").partition(" ")
        said = key.encode("latin-1", "replace").strip()  # the bytes that were sent: a server reads headers as Latin-1, whatever they are
        if scheme.lower() != "bearer" or not said:
            raise _unknown("the request has no key; expected one, as Authorization: Bearer KEY")
        digest, known = hashlib.sha256(said).digest(), False
        for own in self._digests:
            known |= hmac.compare_digest(digest, own)
        if not known:
            raise _unknown("the key is not one of this server's; expected one, as Authorization: Bearer KEY")
        return hashlib.blake2b(digest, key=self._secret[:64], digest_size=16).digest()

    def check_place(self, headers: Mapping[str, str]) -> None:
        """Refuses what was sent by a page of another origin, or to another name.

        Raises:
            Refusal: 403, or 421 for another host.
        """
        host = headers.get("host", "")
        if self._hosts is not None and _name(host) not in self._hosts:
            known = ", ".join(sorted(self._hosts))
            raise Refusal(f"the host is {host!r:.80}; expected one of {known} (--allow-host adds others)", status=421, code="host_not_allowed")
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2].lower() != host.lower():
            raise Refusal(f"the origin is {origin!r:.80}; expected none, or this server's own", status=403, code="origin_not_allowed")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach that address.

    >>> is_loopback("127.0.0.1"), is_loopback("0.0.0.0")
    (True, False)
    """
    return host in LOOPBACK or (host.startswith("127.") and host.replace(".", "").isdigit())


def _name(host: str) -> str:
    """The name of a host, as it stands before its port; "" for what is none. A dot at its end says the same name."""
    found = HOST.fullmatch(host)
    return "" if found is None else found[1].lower().removesuffix(".")


def _unknown(message: str) -> Refusal:
    return Refusal(message, status=401, kind="authentication_error", code="invalid_api_key", headers={"www-authenticate": "Bearer"})
