"""The page to play with: its files, as they lie in the package, and the headers that hold it to them."""

from collections.abc import Mapping
from importlib import resources
from types import MappingProxyType

__all__ = ["HEADERS", "files"]

FILES = (
    ("/", "index.html", "text/html; charset=utf-8"),
    ("/page.css", "page.css", "text/css; charset=utf-8"),
    *((f"/{name}", name, "text/javascript; charset=utf-8") for name in ("page.js", "stream.js", "tokens.js", "card.js", "meters.js")),
    ("/icon.svg", "icon.svg", "image/svg+xml"),
)
# No line of script or style but from this server's own files, nothing from elsewhere, and in nobody's frame.
POLICY = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'"
HEADERS: Mapping[str, str] = MappingProxyType(
    {
        "content-security-policy": POLICY,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cache-control": "no-cache",
    }
)


def files() -> Mapping[str, tuple[bytes, str]]:
    """The page's files by the address that each is served at: its content, and the type of that.

    Raises:
        FileNotFoundError: a package without them.

    >>> sorted(files())
    ['/', '/card.js', '/icon.svg', '/meters.js', '/page.css', '/page.js', '/stream.js', '/tokens.js']
    """
    folder = resources.files("specdec_fn.serve").joinpath("page")
    return MappingProxyType({address: (folder.joinpath(name).read_bytes(), kind) for address, name, kind in FILES})
