"""One TLS session by OpenSSL in memory: ciphertext on one side, plaintext on the other.

It does no I/O.  `tls.TLSStream` carries its bytes for tasks, and `transport.tls` for
protocols.

The states
    shaking   until `shake` returns true
    open      bytes go both ways.  The peer may change the keys, or by TLS 1.2 negotiate
              anew: until it has done so `encrypt` takes nothing
    ended     the peer has said close_notify.  We may go on sending
    failed    `failure` says why.  What was decrypted before that counts
"""

from __future__ import annotations

import contextlib
import ssl
from typing import TYPE_CHECKING, Any

from aiozerocopy._core.failure import Failure

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Buffer

RECORD = 16 << 10  # the most that TLS puts under one seal
AT_ONCE = 16  # records that are decrypted at once, at most

_SIZED = ("GCM", "CCM", "CHACHA")  # ciphers that add the same to each record


class Session:
    """Encrypts and decrypts what one connection sends and gets."""

    def __init__(
        self,
        context: ssl.SSLContext,
        *,
        server_side: bool,
        server_hostname: str | None = None,
    ) -> None:
        self.arrived: ssl.MemoryBIO = ssl.MemoryBIO()
        self.sealed: ssl.MemoryBIO = ssl.MemoryBIO()
        self.ssl: ssl.SSLObject = context.wrap_bio(
            self.arrived, self.sealed, server_side, server_hostname
        )
        self.ended: bool = False
        self.said_goodbye: bool = False
        self.failure: Failure[ssl.SSLError] | None = None
        # What arrives, and what is to be sent: these are called for each piece.
        self.feed: Callable[[Buffer], int] = self.arrived.write
        self.take: Callable[[], bytes] = self.sealed.read
        # (the methods in C, where CPython's object keeps them)
        inner = getattr(self.ssl, "_sslobj", self.ssl)
        self._read: Any = inner.read
        self._write: Callable[[Buffer], int] = inner.write
        self._inside: Callable[[], int] = inner.pending

    def shake(self) -> bool:
        """Go on with the handshake; is it done?

        Raises:
            ssl.SSLError: it has failed.
        """
        try:
            self.ssl.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def encrypt(self, piece: Buffer) -> bool:
        """Seal a piece; false if the peer must be heard first.  It is not empty.

        Raises:
            ssl.SSLError: nothing can be sent any more.
        """
        try:
            self._write(piece)
        except ssl.SSLWantReadError:
            return False
        return True

    def has_arrived(self, beyond: int = 0) -> bool:
        """Is there something that could be decrypted?

        What was not looked at yet counts from more than ``beyond`` bytes on.
        """
        return self.arrived.pending > beyond or self._inside() > 0

    def decrypt(self) -> bytes:
        """Return the next `AT_ONCE` records of what has arrived, or less.

        May set `ended` or `failure`.
        """
        pieces: list[bytes] = []
        read, arrived = self._read, self.arrived
        if self.failure is not None:
            return b""
        try:
            while piece := read(RECORD):
                pieces.append(piece)
                if not arrived.pending or len(pieces) == AT_ONCE:
                    break
            else:
                self.ended = True
        except ssl.SSLError as error:
            self._stopped(error)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def decrypt_into(self, room: memoryview, filled: int = 0) -> int:
        """Fill the room from there on with as much as there is; return how far.

        May set `ended` or `failure`.
        """
        size, read, arrived = room.nbytes, self._read, self.arrived
        if self.failure is not None or not self.has_arrived():
            return filled
        try:
            while filled < size:
                count = read(size - filled, room[filled:] if filled else room)
                filled += count
                self.ended = count == 0
                # (nothing is left inside of a record that has not filled the room)
                if not (count and arrived.pending):
                    break
        except ssl.SSLError as error:
            self._stopped(error)
        return filled

    def _stopped(self, error: ssl.SSLError) -> None:
        """What came is not a whole record, or the end, or wrong."""
        if isinstance(error, ssl.SSLZeroReturnError):
            self.ended = True
        elif not isinstance(error, ssl.SSLWantReadError):
            self.failure = Failure(error)

    def say_goodbye(self) -> None:
        """Seal a close_notify, once.  First decrypt all that has arrived.

        While the peer negotiates there can be none.
        """
        if not self.said_goodbye:
            before = self.sealed.pending
            with contextlib.suppress(ssl.SSLError):  # at least, no answer has come
                self.ssl.unwrap()
            self.said_goodbye = self.sealed.pending > before

    def known(self) -> dict[str, Any]:
        """What can be told of it after the handshake."""
        return {
            "ssl_object": self.ssl,
            "peercert": self.ssl.getpeercert(),
            "cipher": self.ssl.cipher(),
            "compression": self.ssl.compression(),
        }

    def plain_in(self, sealed: bytes, plain: int, out: int) -> int | None:
        """Of ``plain`` bytes in these records, how many the first ``out`` bytes hold.

        A record counts if it is there as a whole.  None: that cannot be known.
        """
        records, at, whole, held = 0, 0, 0, 0
        while at < len(sealed):
            at += 5 + int.from_bytes(sealed[at + 3 : at + 5], "big")
            records += 1
            if at <= out:
                whole, held = records, at
        added, odd = divmod(len(sealed) - plain, records) if records else (0, 0)
        cipher = (self.ssl.cipher() or ("",))[0]
        if odd or not 16 < added < 64 or not any(kind in cipher for kind in _SIZED):
            return None
        return held - whole * added
