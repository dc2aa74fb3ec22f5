"""The kind of server at an address, found by a greeting.

A server of another kind may be silent, and so may a server of frames before its first
frame.  So a second connection sends a TLS client's first message, which each kind of
server answers differently.
"""

from __future__ import annotations

import contextlib
import ssl
from typing import TYPE_CHECKING, Literal, TypeAlias

import anyio

from aiozerocopy._net.foreign_streams import drop_stream
from aiozerocopy._net.frame_header import MAGIC
from aiozerocopy._net.tls import secure

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from anyio.abc import ByteStream

    from aiozerocopy.streams import Stream

# "tls": only the server speaks TLS; "plain": only we do
Obstacle: TypeAlias = Literal["tls", "plain", "web", "token", "foreign"]

PATIENCE = 0.4  # seconds for an answer
LONGEST = 2.0  # seconds for all of it

_ENCRYPTED = (b"\x16\x03", b"\x15\x03")  # a handshake, an alert
_REFUSED = b"\x15"  # the answer of `admission` to a wrong token


async def find_obstacle(
    connect: Callable[[], Awaitable[Stream]],
    ssl_context: ssl.SSLContext | None,
    hostname: str,
) -> tuple[Obstacle | None, bool]:
    """Return what keeps a client from its frames, and whether the server sent a frame.

    None: no obstacle was found.
    """
    answer = b""
    with (
        anyio.move_on_after(LONGEST),
        contextlib.suppress(OSError, anyio.EndOfStream, anyio.BrokenResourceError),
    ):
        answer = await _answer_of(await connect())
        if answer.startswith(_ENCRYPTED):
            if ssl_context is None:
                return "tls", False
            answer = b""
            plain = await connect()
            try:
                inner = await secure(plain, ssl_context, hostname=hostname)
                answer = await _answer_of(inner)
            finally:
                plain.abort()
        elif answer and ssl_context is not None:
            return "plain", False
    if not answer or answer.startswith(MAGIC):
        return None, bool(answer)
    if answer.startswith(b"HTTP/"):
        return "web", False
    return ("token" if answer.startswith(_REFUSED) else "foreign"), False


async def _answer_of(stream: ByteStream) -> bytes:
    """Return the first bytes that come after our greeting; none if that takes long."""
    try:
        with anyio.move_on_after(PATIENCE):
            await stream.send(_greeting())
            return await stream.receive(16)
        return b""
    finally:
        await drop_stream(stream)


def _greeting() -> bytes:
    """Return a TLS client's first message."""
    said = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(
            ssl.MemoryBIO(), said, server_hostname="localhost"
        ).do_handshake()
    return said.read()
