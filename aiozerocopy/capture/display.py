"""Where a display is, and the cookie for its X server."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import struct
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio.to_thread

from aiozerocopy.capture.x11 import ScreenError

if TYPE_CHECKING:
    from collections.abc import Iterator

_FIRST_PORT = 6000
_SOCKETS = "/tmp/.X11-unix/X"
_NAME = re.compile(
    r"(?:(?:tcp|unix)/)?(?P<host>[^/]*):(?P<number>\d{1,5})(?:\.(?P<screen>\d{1,3}))?"
)
_COOKIE = b"MIT-MAGIC-COOKIE-1"
_LOCAL, _ANY, _INTERNET, _INTERNET6 = 256, 65535, 0, 6  # families of addresses


@dataclass(frozen=True)
class Display:
    """The parts of a name such as ":0" or "host:10.1"."""

    name: str
    host: str  # "" for this machine, by a Unix socket
    number: int
    screen: int = 0

    @classmethod
    def named(cls, name: str | None) -> Display:
        """Return the display with that name, or with the name in DISPLAY.

        Raises:
            ScreenError: no name is given, and DISPLAY is not set.
            ValueError: the name is not one of a display.
        """
        name = name if name is not None else os.environ.get("DISPLAY", "")
        if not name:
            raise ScreenError("DISPLAY is not set: name a display such as ':0'")
        match = _NAME.fullmatch(name)
        if match is None or match["host"].endswith(":"):
            raise ValueError(f"{name!r} is not a display: write a name such as :0")
        host = match["host"].removeprefix("[").removesuffix("]")
        host = "" if host == "unix" else host
        return cls(name, host, int(match["number"]), int(match["screen"] or 0))

    async def connect(self) -> socket.socket:
        """Return a nonblocking socket; raise ScreenError if there is no server."""
        try:
            if not self.host:
                return self._connect_unix()
            connect = partial(
                socket.create_connection, (self.host, _FIRST_PORT + self.number)
            )
            sock = await anyio.to_thread.run_sync(connect, abandon_on_cancel=True)
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise ScreenError(
                f"no X server answers at the display {self.name}: {why}"
            ) from error
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    def _connect_unix(self) -> socket.socket:
        path = f"{_SOCKETS}{self.number}"
        with contextlib.suppress(OSError):  # (only Linux has abstract names)
            return _connected(f"\0{path}")
        return _connected(path)

    def cookie(self, peer: socket.socket) -> tuple[bytes, bytes]:
        """Return the name and data of the cookie for this display; b"" without one."""
        address = _address_of(peer)
        for family, place, number, name, data in _entries():
            here = family == _ANY or (family, place) == address
            if here and name == _COOKIE and number in (b"", b"%d" % self.number):
                return name, data
        return b"", b""


def _connected(place: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.setblocking(False)
        sock.connect(place)
    except BaseException:
        sock.close()
        raise
    return sock


def _address_of(peer: socket.socket) -> tuple[int, bytes]:
    """Return the address of the other end, as the file of cookies has it."""
    if peer.family == socket.AF_UNIX:
        return _LOCAL, socket.gethostname().encode()
    host = peer.getpeername()[0]
    packed = socket.inet_pton(peer.family, host.partition("%")[0])
    if host in ("127.0.0.1", "::1"):
        return _LOCAL, socket.gethostname().encode()
    return _INTERNET if len(packed) == 4 else _INTERNET6, packed


def _entries() -> Iterator[tuple[int, bytes, bytes, bytes, bytes]]:
    """Yield family, address, display, kind and data of each cookie."""
    path = os.environ.get("XAUTHORITY") or Path.home() / ".Xauthority"
    # (struct.error comes at the file's end)
    with contextlib.suppress(OSError, struct.error), open(path, "rb") as file:
        while True:
            (family,) = struct.unpack(">H", file.read(2))
            lengths = (struct.unpack(">H", file.read(2))[0] for _ in range(4))
            place, number, name, data = map(file.read, lengths)
            yield family, place, number, name, data
