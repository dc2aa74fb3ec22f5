"""What happens to a client before a server's handler gets it: TLS, then a token.

The token's wire format: ``AZCT``, the token's length (16 bits, little-endian), the
token; the server answers with one byte, 6 for yes and 21 for no (ASCII's ACK and NAK),
and closes after a no.
"""

from __future__ import annotations

import hmac
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

from aiozerocopy._core.errors import IncompleteReceive
from aiozerocopy._net.foreign_streams import exact_receiver
from aiozerocopy._net.tls import secure

if TYPE_CHECKING:
    import ssl

    from anyio.abc import ByteStream

    from aiozerocopy.streams import Stream

ADMISSION_SECONDS = 10.0  # seconds that a client has for all of it
MAX_TOKEN = 1024
_TOKEN = struct.Struct("<4sH")
_MAGIC = b"AZCT"
_YES, _NO = b"\x06", b"\x15"


class TokenRefused(ConnectionError):
    """The server refused the token, or expects none."""


class NotAdmitted(Exception):
    """The server sent this client away."""


@dataclass(frozen=True)
class Admission:
    """What is asked of every client."""

    ssl_context: ssl.SSLContext | None = None
    token: bytes | None = None

    async def admit(self, stream: Stream) -> ByteStream:
        """The stream for the handler: the client's own, or TLS over it.

        Raises:
            NotAdmitted: it has no token, or a wrong one, or took too long.
            others: the handshake failed, or the client left.
        """
        if self.ssl_context is None and self.token is None:
            return stream
        try:
            with anyio.fail_after(ADMISSION_SECONDS):
                admitted: ByteStream = stream
                if self.ssl_context is not None:
                    admitted = await secure(stream, self.ssl_context, server_side=True)
                if self.token is not None:
                    await _check_token(admitted, self.token)
        except TimeoutError:
            raise NotAdmitted("it took too long to come in") from None
        return admitted


def token_bytes(token: str | bytes | None) -> bytes | None:
    """Raises: ValueError for an empty token, or one of more than 1024 bytes."""
    if token is None:
        return None
    token = token.encode() if isinstance(token, str) else token
    if not 0 < len(token) <= MAX_TOKEN:
        raise ValueError(f"a token has 1 to {MAX_TOKEN} bytes, not {len(token)}")
    return token


async def _check_token(stream: ByteStream, token: bytes) -> None:
    """Compare them in constant time, so that the time says nothing about the token."""
    magic, length = _TOKEN.unpack(await _read(stream, _TOKEN.size))
    if magic == _MAGIC and length <= MAX_TOKEN:
        given = await _read(stream, length)
        if hmac.compare_digest(given, token):
            await stream.send(_YES)
            return
    await stream.send(_NO)
    raise NotAdmitted("it has not the right token")


async def present_token(stream: ByteStream, token: str | bytes) -> None:
    """Show the token to a server, right after connecting.

    Raises:
        TokenRefused: it is not the server's.
        ValueError: it is empty, or has more than 1024 bytes.
        StreamBroken, StreamClosed: as sending and receiving.
    """
    plain = token_bytes(token) or b""
    await stream.send(_TOKEN.pack(_MAGIC, len(plain)) + plain)
    try:
        answer = await _read(stream, 1)
    except (anyio.EndOfStream, IncompleteReceive):
        answer = b""
    if answer != _YES:
        raise TokenRefused("the server refused the token")


async def _read(stream: ByteStream, n: int) -> bytes:
    data = bytearray(n)
    await exact_receiver(stream).receive_exactly(data)
    return bytes(data)
