"""Which requests are answered at all: by host name, token and origin."""

from __future__ import annotations

import contextlib
import ipaddress
import secrets
import socket
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from aiozerocopy.web import assets
from aiozerocopy.web.request import Refused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiozerocopy.web.request import Request

_OPEN_TO_ALL = {"/healthz", *assets.PARTS}  # no token: nothing to see


class Guard:
    """Refuses requests: of a wrong host name, without the token, of other origins.

    A page can let its own name point to this server, and would then count as the
    server's own.  So the server answers only to names that no such page can have.
    """

    def __init__(
        self,
        host: str | None,
        token: str | None,
        hosts: Sequence[str],
        origins: Sequence[str],
    ) -> None:
        self._is_strict = bool(hosts) or is_loopback(host or "")
        self._names = {name.lower() for name in hosts}
        if not self._is_strict:
            # (No name at all: no browser does that.)
            self._names |= {(host or "").lower(), ""} | names_of_this_machine()
        self._token = token
        self._origins = {origin.lower() for origin in origins}

    def check(self, request: Request) -> None:
        """Raises: Refused."""
        if not self._is_known(request.host):
            raise Refused(403, "this server is not known by that name: see hosts=")
        if self._token is None or request.path in _OPEN_TO_ALL:
            return
        given = _token_of(request)
        is_right = secrets.compare_digest(given.encode(), self._token.encode())
        if not (given and is_right):
            raise _without_token(request, is_wrong=bool(given))

    def _is_known(self, name: str) -> bool:
        if name in self._names or "*" in self._names or is_loopback(name):
            return True
        # Such a page has a name, and does not know the token.
        is_safe = self._token is not None or address_in(name) is not None
        return is_safe and not self._is_strict

    def check_origin(self, request: Request) -> None:
        """A browser says which page asks; programs need not.

        Raises: Refused.
        """
        origin = request.headers.get("origin")
        if origin is None or origin.lower() in self._origins:
            return
        with contextlib.suppress(ValueError):
            place = urlsplit(origin).netloc.lower()
            if place and place == request.authority.lower():
                return
        raise Refused(403, "not for pages of another origin")


def _token_of(request: Request) -> str:
    """The token that was given; "" if none was."""
    given = request.query.get("token")
    if given is None:
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer":
            return ""
    return given.strip()


def _without_token(request: Request, *, is_wrong: bool) -> Refused:
    """A page that asks a browser for the token; a line of text for programs."""
    challenge = {"WWW-Authenticate": "Bearer"}
    if "text/html" not in request.headers.get("accept", ""):
        text = "this token is wrong" if is_wrong else "a token is needed: /?token=..."
        return Refused(401, text, challenge)
    page = assets.filled(
        assets.TOKEN_PAGE,
        headline="This token is wrong" if is_wrong else "A token is needed",
        explanation=(
            "Links change when a stream is started anew. Ask for the link again."
            if is_wrong
            else "Only who has the whole link may watch. Open it, or enter its token."
        ),
    )
    return Refused(401, page, {**challenge, **assets.headers(assets.TOKEN_PAGE)})


def is_loopback(name: str) -> bool:
    address = address_in(name)
    is_local = address is not None and address.is_loopback
    return is_local or name == "localhost" or name.endswith(".localhost")


def address_in(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(name)
    return None


def names_of_this_machine() -> set[str]:
    """As others in its network call it."""
    name = socket.gethostname().lower()
    short = name.partition(".")[0]
    return {name, short, f"{short}.local"}
