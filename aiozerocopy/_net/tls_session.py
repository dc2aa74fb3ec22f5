"""One TLS session by OpenSSL in memory: ciphertext on one side, plaintext on the other.

It does no I/O, as `ssl.MemoryBIO` intends.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Buffer


class Session:
    """Encrypts and decrypts what one connection sends and gets."""

    def __init__(
        self,
        context: ssl.SSLContext,
        *,
        server_side: bool,
        server_hostname: str | None = None,
    ) -> None:
        self._arrived, self._sealed = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._ssl = context.wrap_bio(
            self._arrived, self._sealed, server_side, server_hostname
        )
        self.ended: bool = False  # the peer has said close_notify
        self.error: ssl.SSLError | None = None  # why nothing more can be decrypted
        # What arrives, and what is to be sent: these are called for each piece.
        self.feed: Callable[[Buffer], int] = self._arrived.write
        self.take: Callable[[], bytes] = self._sealed.read
        self.encrypt: Callable[[Buffer], int] = self._ssl.write
        self._read: Callable[[int, memoryview], int] = self._ssl.read  # type: ignore[assignment]

    def shake(self) -> bool:
        """Go on with the handshake; is it done?

        Raises:
            ssl.SSLError: it has failed.
        """
        try:
            self._ssl.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def has_sealed(self) -> bool:
        """Is there something to be sent?"""
        return self._sealed.pending > 0

    def has_arrived(self, beyond: int = 0) -> bool:
        """Is there something that could be decrypted?

        What was not looked at yet counts from more than ``beyond`` bytes on.
        """
        return self._arrived.pending > beyond or self._ssl.pending() > 0

    def decrypt_into(self, room: memoryview) -> int:
        """Fill the room with as much as there is; may set `ended` or `error`."""
        filled, size, read = 0, room.nbytes, self._read
        arrived, inside = self._arrived, self._ssl.pending
        while filled < size and (arrived.pending or inside()) and self.error is None:
            try:
                count = read(size - filled, room[filled:] if filled else room)
            except ssl.SSLWantReadError:
                break
            except ssl.SSLZeroReturnError:
                count = 0
            except ssl.SSLError as error:
                self.error = error
                break
            if count == 0:
                self.ended = True
                break
            filled += count
        return filled

    def say_goodbye(self) -> None:
        """Seal a close_notify; may set `error`.  First decrypt all that has arrived."""
        try:
            self._ssl.unwrap()
        except ssl.SSLWantReadError:
            pass  # the peer's own has not come
        except ssl.SSLError as error:
            self.error = error

    def known(self) -> dict[str, Any]:
        """What can be told of it after the handshake."""
        return {
            "ssl_object": self._ssl,
            "peercert": self._ssl.getpeercert(),
            "cipher": self._ssl.cipher(),
            "compression": self._ssl.compression(),
        }
