"""A request, whichever server has read it, and the refusal of one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import parse_qs, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    Headers: TypeAlias = Mapping[str, str]

# Of every answer: browsers do not guess its type, and send no Referer with the token.
COMMON_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
SEND_SECONDS = 30.0  # for a small answer, in case the client does not read

_TEXT = {"Content-Type": "text/plain; charset=utf-8"}


class Refused(Exception):
    """A request that is answered with an error or a redirect; ``text`` says why."""

    def __init__(self, status: int, text: str, headers: Headers | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.headers: dict[str, str] = {**_TEXT, **(headers or {})}

    @property
    def body(self) -> bytes:
        return f"{self.text}\n".encode(errors="replace")


@dataclass(frozen=True)
class Request:
    """A request's line and headers, whose names are in lower case."""

    method: str
    authority: str  # host and port that the client asked for
    path: str
    query: Mapping[str, str]
    headers: Headers  # as `joined` makes them of text, `decoded` of bytes
    version: str = "1.1"
    wants_websocket: bool = False
    peer: str = ""  # the client's address, if it has one
    is_secure: bool = False  # it came over TLS

    @property
    def host(self) -> str:
        """The host that the client asked for, in lower case and without the port."""
        try:
            # (urlsplit leaves what follows a "%" as it is)
            return (urlsplit(f"//{self.authority}").hostname or "").lower()
        except ValueError:
            return ""

    @property
    def wants_page(self) -> bool:
        """Does a browser ask for a page?"""
        return "text/html" in self.headers.get("accept", "")

    @property
    def connection(self) -> set[str]:
        """What the client wants done with the connection: "close", "upgrade"."""
        words = self.headers.get("connection", "").lower().split(",")
        return {word.strip() for word in words}

    @property
    def wants_close(self) -> bool:
        if self.version == "1.0":
            return "keep-alive" not in self.connection
        return "close" in self.connection


def joined(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return headers by lower-case names; repeated headers are joined by a comma."""
    found: dict[str, str] = {}
    for raw_name, value in headers:
        name = raw_name.lower()
        found[name] = f"{found[name]}, {value}" if name in found else value
    return found


def decoded(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Headers as UTF-8, by their names; other bytes are escaped, as aiohttp does."""
    return joined(
        (name.decode("latin-1"), value.decode(errors="surrogateescape"))
        for name, value in headers
    )


def fields_of(query: str) -> dict[str, str]:
    """Return the fields of a query; of several with the same name, the last.

    Raises: Refused, for too many.
    """
    try:
        fields = parse_qs(query, max_num_fields=16)
    except ValueError as error:
        raise Refused(400, "the address is invalid") from error
    return {name: values[-1] for name, values in fields.items()}


def refuse_body(request: Request) -> None:
    """Raises: Refused.  (Methods that take a body are refused elsewhere.)"""
    length = request.headers.get("content-length", "0")
    if request.method in ("GET", "HEAD") and (
        length.strip("0") or "transfer-encoding" in request.headers
    ):
        raise Refused(413, "no request here may have a body")
