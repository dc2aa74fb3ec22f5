"""Which clients a server lets in: how many at a time, after TLS and a token.

A `Crowd` has a `Guest` for every connection of a server.  The states of a guest
    waits   from accept on, while it does TLS, shows a token, or has asked for nothing
            that lasts; a guest of the web server also between two requests
    seated  it is served, and nobody takes its place
    left    or was sent away, by a cancel of its scope
If there is no room, a new client takes the place of a guest that waits: the first that
came from the address with the most waiting guests.  That costs much more than refusing
the client, so while there is no room a `Pace` limits how often an address may come.
Sets of guests are weak: a guest lives as long as its task, even if an exception of a
signal handler prevents its removal.

The token's wire format: ``AZCT``, the token's length (16 bits, little-endian), the
token; the server answers with one byte, 6 for yes and 21 for no (ASCII's ACK and NAK),
and closes after a no.
"""

from __future__ import annotations

import contextlib
import functools
import hmac
import ipaddress
import itertools
import logging
import math
import struct
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import anyio

from aiozerocopy._core.errors import IncompleteReceive, StreamBroken
from aiozerocopy._net.foreign_streams import exact_receiver
from aiozerocopy._net.frame_header import MAGIC
from aiozerocopy._net.tls import check_context, secure

if TYPE_CHECKING:
    import ssl
    from collections.abc import Sequence

    from anyio.abc import ByteStream

    from aiozerocopy.streams import Stream

ADMISSION_SECONDS = 5.0  # from accept to the end of admission, or to a whole request
CONNECTIONS = 1024  # at a time
# How often the clients of one address may come, or ask again, while a server is full.
AT_ONCE = 100  # in a burst
A_SECOND = 10
MOST_PACES = 4096  # addresses whose `Pace` is remembered
LOG_SECONDS = 60.0  # between two lines of one kind about refused clients
MAX_TOKEN = 1024
_TOKEN = struct.Struct("<4sH")
_MAGIC = b"AZCT"
_YES, _NO = b"\x06", b"\x15"
REFUSED = "the server refused the token"  # (only if the server has said so)

log: logging.Logger = logging.getLogger("aiozerocopy")


class TokenRefused(ConnectionError):
    """The server refused the token, or expects none."""


class NotAdmitted(Exception):
    """The server sent this client away."""


_NUMBERS = itertools.count()


class Pace:
    """Limits a rate: ``at_once`` events in a burst, and then ``a_second`` a second."""

    def __init__(self, at_once: int, a_second: float) -> None:
        self._each = 1 / a_second
        self._credit = at_once * self._each
        self._due = -math.inf  # when the next event would be, at the rate allowed

    def count(self, now: float) -> float:
        """Count an event; return by how many seconds it was too early, or 0."""
        self._due = max(self._due, now - self._credit) + self._each
        return max(0.0, self._due - now)

    def allows(self, now: float) -> bool:
        """Count an event, unless it is too early; return whether it was counted."""
        return self._due + self._each <= now and self.count(now) == 0

    def is_rested(self, now: float) -> bool:
        """Return whether this is in the state of a new one."""
        return self._due <= now - self._credit


class Guest:
    """A connection to a server; cancel its ``scope`` to end it."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.share: str = share_of(address)
        self.number: int = next(_NUMBERS)  # (two may come at the same time)
        self.since: float = anyio.current_time()
        self.scope: anyio.CancelScope = anyio.CancelScope()


class Crowd:
    """The guests of a server: at most ``limit`` are seated, and ``room`` are let in.

    Guests of one address (of IPv6: with the same first 64 bits) have at most ``share``
    seats, by default half of them.  127.0.0.1 and ::1 have no such limit, and no
    `Pace`, since a proxy may connect from there.
    """

    def __init__(
        self, limit: int | None, share: int | None = None, room: int | None = None
    ) -> None:
        self.limit: float = math.inf if limit is None else limit
        self._share = max(self.limit / 2, 1) if share is None else share
        self._room = self.limit if room is None else room
        self._guests: WeakSet[Guest] = WeakSet()
        self._waiting = _ByShare()
        self._seats = _ByShare()
        self._paces: dict[str, Pace] = {}

    @property
    def seated(self) -> int:
        """How many guests are served now."""
        return self._seats.count()

    @property
    def is_full(self) -> bool:
        """Whether there is no room for another guest."""
        return len(self._guests) >= self._room

    def comes_too_often(self, address: str) -> bool:
        """Count a client of this address; return whether it comes too often."""
        now = time.monotonic()
        pace = self._pace(share_of(address), now)
        return pace is not None and not pace.allows(now)

    def delay(self, guest: Guest) -> float:
        """Count another request; return the seconds that it has to wait."""
        if not self.is_full:
            return 0.0
        now = time.monotonic()
        pace = self._pace(guest.share, now)
        return 0.0 if pace is None else pace.count(now)

    def _pace(self, share: str, now: float) -> Pace | None:
        if not share:
            return None
        found = self._paces.get(share)
        if found is None:
            if len(self._paces) >= MOST_PACES:
                busy = {
                    share: pace
                    for share, pace in self._paces.items()
                    if not pace.is_rested(now)
                }
                self._paces = busy if len(busy) < MOST_PACES else {}
            found = self._paces[share] = Pace(AT_ONCE, A_SECOND)
        return found

    def enter(self, address: str) -> Guest:
        """Add a client of this address ("" for a UNIX socket) as a guest that waits."""
        guest = Guest(address)
        self._guests.add(guest)
        self._waiting.add(guest)
        return guest

    def has_seat(self, address: str) -> bool:
        """Return whether a guest of this address could be seated now."""
        share = share_of(address)
        is_over = share and len(self._seats.get(share, ())) >= self._share
        return not is_over and self.seated < self.limit

    def seat(self, guest: Guest) -> bool:
        """Seat the guest; False if all seats are taken, or those of its address."""
        if not self.has_seat(guest.address):
            return False
        self._waiting.remove(guest)
        self._seats.add(guest)
        return True

    def stand(self, guest: Guest) -> None:
        """Let a seated guest wait again."""
        self._seats.remove(guest)
        self._waiting.add(guest)

    def leave(self, guest: Guest) -> None:
        self._guests.discard(guest)
        self._seats.remove(guest)
        self._waiting.remove(guest)

    def make_room(self) -> Guest | None:
        """Send away a guest that waits, and return it; None if all are seated."""
        most = max(self._waiting.values(), key=len, default=())
        first = min(most, key=lambda guest: guest.number, default=None)
        if first is not None:
            self.leave(first)
            first.scope.cancel()
        return first


class _ByShare(dict[str, "WeakSet[Guest]"]):
    """Guests by their share."""

    def count(self) -> int:
        return sum(map(len, self.values()))

    def add(self, guest: Guest) -> None:
        self.setdefault(guest.share, WeakSet()).add(guest)

    def remove(self, guest: Guest) -> None:
        guests = self.get(guest.share)
        if guests is not None:
            guests.discard(guest)
            if not guests:
                del self[guest.share]


@functools.lru_cache(MOST_PACES)
def share_of(address: str) -> str:
    """Return the name of an address's share of the seats; "" if it has no limit."""
    try:
        known = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return ""
    known = getattr(known, "ipv4_mapped", None) or known  # (of a dual-stack socket)
    if str(known) in ("127.0.0.1", "::1"):
        return ""
    return str(known) if known.version == 4 else str(known.exploded[:19])


class Refusals:
    """Counts the clients that were refused, and logs some of them."""

    def __init__(self) -> None:
        self.count: int = 0
        self._told: dict[str, tuple[float, int]] = {}  # (silent until, refused since)

    def note(self, peer: str, why: str, detail: str = "") -> None:
        """Count a refusal; log each ``why`` (there are few) once in `LOG_SECONDS`."""
        self.count += 1
        now = time.monotonic()
        until, others = self._told.get(why, (0.0, 0))
        if now < until:
            self._told[why] = (until, others + 1)
            return
        self._told[why] = (now + LOG_SECONDS, 0)
        more = f" (and {others} more since the last such line)" if others else ""
        log.warning("refused %s: %s%s%s", peer or "a client", why, detail, more)


@dataclass(frozen=True)
class Admission:
    """What a server asks of every client."""

    ssl_context: ssl.SSLContext | None = None
    tokens: tuple[bytes, ...] = ()
    is_guarded: bool = False  # the handler asks for a token itself

    def __post_init__(self) -> None:
        check_context(self.ssl_context, server_side=True)

    @property
    def lacks(self) -> list[str]:
        """What is missing if other machines can reach the server."""
        has = {"a token": self.tokens or self.is_guarded, "TLS": self.ssl_context}
        return [name for name, it in has.items() if not it]

    @property
    def asks(self) -> bool:
        """Whether a client must do TLS or show a token."""
        return self.ssl_context is not None or bool(self.tokens)

    async def admit(self, stream: Stream) -> ByteStream:
        """Return the stream for the handler: the client's own, or TLS over it.

        Raises:
            NotAdmitted: the client has no token, or a wrong one, or took too long.
            others: the handshake failed, or the client left.
        """
        if not self.asks:
            return stream
        try:
            with anyio.fail_after(ADMISSION_SECONDS):
                admitted: ByteStream = stream
                if self.ssl_context is not None:
                    admitted = await secure(stream, self.ssl_context, server_side=True)
                if self.tokens:
                    await _check_token(admitted, self.tokens)
        except TimeoutError:
            raise NotAdmitted("its handshake took too long") from None
        return admitted


def tokens_of(token: str | bytes | Sequence[str | bytes] | None) -> tuple[bytes, ...]:
    """Return the tokens that are accepted: an empty tuple for None.

    Raises: TypeError; ValueError for no token, an empty one, or one that is too long.
    """
    if token is None:
        return ()
    is_one = isinstance(token, (str, bytes)) or not isinstance(token, Iterable)
    several: Any = [token] if is_one else token
    if not all(isinstance(each, (str, bytes, bytearray)) for each in several):
        raise TypeError(
            f"token= must be a string or a list of strings, not {kind_of(token)}"
        )
    tokens = tuple(
        each.encode(errors="surrogateescape") if isinstance(each, str) else bytes(each)
        for each in several
    )
    if not tokens:
        raise ValueError("token= is empty: use None for no token")
    for each in tokens:
        if not 0 < len(each) <= MAX_TOKEN:
            raise ValueError(f"token= needs 1 to {MAX_TOKEN} bytes, not {len(each)}")
    return tokens


def kind_of(token: object) -> str:
    """Return what it is without what it says, for an error."""
    kind = type(token).__name__
    if isinstance(token, (list, tuple)):
        kind += f" of {', '.join(type(each).__name__ for each in token)}"
    return kind


def is_one_of(given: bytes, tokens: Sequence[bytes]) -> bool:
    """Compare with each token, in a time that says nothing about the tokens."""
    return bool(sum(hmac.compare_digest(given, token) for token in tokens))


async def _check_token(stream: ByteStream, tokens: Sequence[bytes]) -> None:
    magic, length = _TOKEN.unpack(await _read(stream, _TOKEN.size))
    given = b""
    if magic == _MAGIC and length <= MAX_TOKEN:
        given = await _read(stream, length)
    if is_one_of(given, tokens):
        await stream.send(_YES)
        return
    await stream.send(_NO)
    raise NotAdmitted("its token is wrong")


async def present_token(stream: ByteStream, token: str | bytes) -> None:
    """Show the token to a server, right after connecting.

    Raises:
        TokenRefused: the server did not accept it.
        ValueError: it is empty, or has more than 1024 bytes.
        StreamBroken: the server left without an answer, as one that is full does.
        StreamClosed: as sending and receiving.
    """
    (plain,) = tokens_of(token)
    await stream.send(_TOKEN.pack(_MAGIC, len(plain)) + plain)
    try:
        answer = await _read(stream, 1)
    except (anyio.EndOfStream, IncompleteReceive):
        # (It is full, or restarts behind a proxy: no word about the token.)
        text = "the server has closed the connection without an answer to the token"
        raise StreamBroken(text) from None
    if answer == MAGIC[:1]:  # (the server sends frames already)
        raise TokenRefused("the server wants no token")
    if answer == _NO and await _is_over(stream):  # (a TLS alert begins with _NO, too)
        raise TokenRefused(REFUSED)
    if answer != _YES:
        raise TokenRefused("the server has not accepted the token")


async def _is_over(stream: ByteStream) -> bool:
    with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError):
        return not await stream.receive(1)
    return True


async def _read(stream: ByteStream, n: int) -> bytes:
    data = bytearray(n)
    await exact_receiver(stream).receive_exactly(data)
    return bytes(data)
