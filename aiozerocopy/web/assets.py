"""The files of the page, which are in the package."""

from __future__ import annotations

import html
from functools import cache
from importlib.resources import files

KINDS = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
PAGE, TOKEN_PAGE = "index.html", "token.html"

# The parts of the page by path.  They show no picture, so they need no token.
PARTS = {
    f"/{name}": name
    for name in (
        *("graph.js", "icon.svg", "numbers.js", "painter.js", "server.js", "states.js"),
        *("viewer.css", "viewer.js", "ways.js"),
    )
}

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' blob:; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'self'"
)


def headers(name: str) -> dict[str, str]:
    kind = KINDS[name.rpartition(".")[2]]
    return {"Content-Type": kind, "Content-Security-Policy": _POLICY}


@cache
def content(name: str) -> bytes:
    return (files(__package__) / "page" / name).read_bytes()


def filled(name: str, **texts: str) -> str:
    """Return a file with its ``{names}`` replaced, escaped for HTML."""
    page = content(name).decode()
    for key, text in texts.items():
        page = page.replace(f"{{{key}}}", html.escape(text))
    return page
