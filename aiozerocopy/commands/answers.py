"""Who answers at an address, if no frames come from there.

A server that waits for something else says nothing.  So a second connection greets it
as TLS does, at which each of our servers shows what it is.
"""

from __future__ import annotations

import contextlib
import ssl
from typing import TYPE_CHECKING

import anyio

from aiozerocopy._net.foreign_streams import drop_stream
from aiozerocopy._net.frame_header import MAGIC
from aiozerocopy.client import open_stream

if TYPE_CHECKING:
    from aiozerocopy.commands.options import Address

PATIENCE = 0.4  # seconds for an answer

# How an answer begins, and what that means for a viewer.
_WEB = "is for browsers: view needs the port of serve --tcp"
_ENCRYPTED = "speaks TLS: say --tls, or --tls-ca FILE"
_NO_TOKEN = "wants a token: say --token"
_FOREIGN = "is another program's: view needs the port of serve --tcp"
_MEANINGS = {
    b"HTTP/": _WEB,
    b"\x16\x03": _ENCRYPTED,  # a handshake
    b"\x15\x03": _ENCRYPTED,  # an alert
    b"\x15": _NO_TOKEN,  # what `admission` says to a wrong token
}


async def obstacle(
    address: Address, ssl_context: ssl.SSLContext | None, *, has_token: bool
) -> str | None:
    """What keeps a viewer from getting frames there; None if nothing is known.

    Raises:
        OSError: nobody answers at all.
    """
    answer = b""
    with anyio.move_on_after(PATIENCE):
        stream = await open_stream(*address, ssl_context=ssl_context)
        try:
            with contextlib.suppress(
                anyio.EndOfStream, anyio.BrokenResourceError, ssl.SSLError
            ):
                await stream.send(_greeting())
                answer = await stream.receive(16)
        finally:
            await drop_stream(stream)
    if not answer or answer.startswith(MAGIC):
        return None
    for beginning, meaning in _MEANINGS.items():
        if answer.startswith(beginning):
            return None if meaning is _NO_TOKEN and has_token else meaning
    return _FOREIGN


def _greeting() -> bytes:
    """What a TLS client says first."""
    said = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(
            ssl.MemoryBIO(), said, server_hostname="localhost"
        ).do_handshake()
    return said.read()
