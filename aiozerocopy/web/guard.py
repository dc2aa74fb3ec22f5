"""Which requests are answered at all: by host name, token and origin."""

from __future__ import annotations

import contextlib
import ipaddress
import secrets
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from aiozerocopy.web import assets, missing_token
from aiozerocopy.web.http import Refused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiozerocopy.web.http import Request

_OPEN_TO_ALL = {"/healthz", *assets.PARTS}  # no token: nothing to see


class Guard:
    """Refuses requests: of a wrong host name, without the token, of other origins."""

    def __init__(
        self,
        host: str | None,
        token: str | None,
        hosts: Sequence[str],
        origins: Sequence[str],
    ) -> None:
        self._is_local = is_loopback(host or "")
        self._token = token
        self._hosts = {name.lower() for name in hosts}
        self._origins = {origin.lower() for origin in origins}

    def check(self, request: Request) -> None:
        """Raises: Refused."""
        name = request.host
        if self._is_local and not is_loopback(name) and name not in self._hosts:
            raise Refused(403, "this server is not known by that name")
        if self._token is None or request.path in _OPEN_TO_ALL:
            return
        given = _token_of(request)
        is_right = secrets.compare_digest(given.encode(), self._token.encode())
        if not (given and is_right):
            raise missing_token.refusal(request, is_wrong=bool(given))

    def check_origin(self, request: Request) -> None:
        """A browser says which page asks; programs need not.

        Raises: Refused.
        """
        origin = request.headers.get("origin")
        if origin is None or origin.lower() in self._origins:
            return
        with contextlib.suppress(ValueError):
            if urlsplit(origin).netloc.lower() == request.headers["host"].lower():
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


def is_loopback(name: str) -> bool:
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
