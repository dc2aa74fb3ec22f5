"""Which requests are answered at all: by host name, token and origin."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import ipaddress
import socket
import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from aiozerocopy._net.admission import Refusals, is_one_of, tokens_of
from aiozerocopy.web import assets
from aiozerocopy.web.request import Refused
from aiozerocopy.web.settings import check

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiozerocopy.web.request import Request

SESSION_SECONDS = 12 * 3600  # that a cookie is good for; the page renews it
COOKIE = "aiozerocopy-"  # how its name begins
_OPEN_TO_ALL = {"/healthz", *assets.PARTS}  # without a token: they show nothing


class Guard:
    """Refuses requests with a wrong host name, without a token, or of other origins.

    A page elsewhere can let its own name point to this server, and would then count as
    the server's own.  So the server answers only to names that no such page can have.

    A browser that brings a token gets a cookie for it and goes on without the token,
    which then is in no log, history or Referer.  The cookie is the time when it ends,
    signed with a key made from the token: any process that knows the token can check
    it, and a new token makes it void.
    """

    def __init__(
        self,
        host: str | None,
        token: str | Sequence[str] | None,
        hosts: Sequence[str],
        origins: Sequence[str],
    ) -> None:
        check(token=token, hosts=hosts, origins=origins)
        self.refusals: Refusals = Refusals()
        self._is_strict = bool(hosts) or is_loopback(host or "")
        self._names = {name.lower() for name in hosts}
        if not self._is_strict:
            # (The empty name is no danger: every browser sends a name.)
            self._names |= {(host or "").lower(), ""} | names_of_this_machine()
        self._tokens = tokens_of(token)
        self._keys = {token: _key_of(token) for token in self._tokens}
        self._origins = {origin.lower().rstrip("/") for origin in origins}

    def check(self, request: Request) -> None:
        """Raises: Refused."""
        if not self._is_known(request.host):
            why = "this server is not known by that name: see hosts="
            self.refusals.note(request.peer, why, f" ({request.host!a})")
            raise Refused(403, why)
        if not self._tokens or request.path in _OPEN_TO_ALL:
            return
        given = _token_of(request)
        if not is_one_of(given, self._tokens) and (given or not self._ends(request)):
            why = "its token is wrong" if given else "it has no token"
            self.refusals.note(request.peer, why)
            raise _without_token(request, is_wrong=bool(given))

    def _is_known(self, name: str) -> bool:
        if name in self._names or "*" in self._names or is_loopback(name):
            return True
        # A page elsewhere has a name, not an address, and does not know the token.
        is_safe = bool(self._tokens) or address_in(name) is not None
        return is_safe and not self._is_strict

    def check_origin(self, request: Request) -> None:
        """Raises: Refused.  A browser says which page asks; programs need not."""
        reason = self.reason_against(request.headers.get("origin"), request)
        if reason:
            detail = f" ({request.headers['origin']!a})"
            self.refusals.note(request.peer, "its page is not among origins=", detail)
            raise Refused(403, reason)

    def reason_against(self, origin: str | None, request: Request) -> str:
        """Return why a page of this origin gets no WebSocket; "" if it gets one."""
        if origin is None or origin.lower() in self._origins:
            return ""
        with contextlib.suppress(ValueError):
            place = urlsplit(origin).netloc.lower()
            if place and place == request.authority.lower():
                return ""
        return f"this page's address, {origin}, is not among origins="

    # -- the cookie -------------------------------------------------------------------

    def cookie_for(self, request: Request, *, renews: bool = False) -> dict[str, str]:
        """Return headers with a cookie for the token that came with this request.

        With ``renews``, for the request's own cookie, once half of its time is over.
        """
        given, ends = _token_of(request), self._ends(request)
        token = next((each for each in self._tokens if each == given), None)
        if renews:
            is_due = ends and ends[1] < time.time() + SESSION_SECONDS / 2
            token = ends[0] if ends and is_due and not given else None
        if token is None:
            return {}
        name, key = self._keys[token]
        end = str(int(time.time()) + SESSION_SECONDS)
        # Lax, so that a link in a mail or a chat works; no GET changes anything here.
        kind = "HttpOnly; SameSite=Lax" + "; Secure" * request.is_secure
        value = f"{name}={end}.{_signed(key, end)}; Max-Age={SESSION_SECONDS}; {kind}"
        return {"Set-Cookie": value}

    def _ends(self, request: Request) -> tuple[bytes, int] | None:
        """Return the token behind the request's cookie, and when the cookie ends."""
        for cookie in request.headers.get("cookie", "").split(";"):
            given, _, value = cookie.strip().partition("=")
            end, _, signature = value.partition(".")
            for token, (name, key) in self._keys.items():
                if given == name and end.isascii() and end.isdigit():
                    is_right = hmac.compare_digest(
                        signature.encode(errors="surrogateescape"),
                        _signed(key, end).encode(),
                    )
                    if is_right and len(end) < 12 and int(end) > time.time():
                        return token, int(end)
        return None


def _key_of(token: bytes) -> tuple[str, bytes]:
    """Return a cookie's name and key; names of servers on one host must differ.

    Making the key is slow, so that a weak token is not quickly guessed from a cookie.
    """
    key = hashlib.pbkdf2_hmac("sha256", token, b"aiozerocopy viewer", 50_000)
    return f"{COOKIE}{hashlib.sha256(key).hexdigest()[:8]}", key


def _signed(key: bytes, end: str) -> str:
    return hmac.new(key, end.encode(), "sha256").hexdigest()


def _token_of(request: Request) -> bytes:
    """The token that was given, in UTF-8; empty if none was."""
    given = request.query.get("token")
    if given is None:
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer":
            return b""
    given = given.strip()
    try:
        return given.encode()
    except UnicodeEncodeError:  # a header in Latin-1, as Python's clients send it
        sent = given.encode(errors="surrogateescape")
        return sent.decode("latin-1").encode()


def _without_token(request: Request, *, is_wrong: bool) -> Refused:
    """Browsers get a page that asks for the token, programs a line of text."""
    challenge = {"WWW-Authenticate": "Bearer"}
    if not request.wants_page:
        is_wrong = is_wrong or COOKIE in request.headers.get("cookie", "")
        text = "this token is wrong" if is_wrong else "a token is needed: /?token=..."
        return Refused(401, text, challenge)
    page = assets.filled(
        assets.TOKEN_PAGE,
        headline="This token is wrong" if is_wrong else "A token is needed",
        explanation=(
            "The link may have changed when the stream was restarted: "
            "ask for the new one."
            if is_wrong
            else "Open the full link, with its token, or enter the token here."
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
    name = socket.gethostname().lower()
    short = name.partition(".")[0]
    return {name, short, f"{short}.local"}
