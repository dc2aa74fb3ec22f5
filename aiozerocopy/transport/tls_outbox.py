"""What is written to a TLS connection, until it is encrypted and the wire has it.

The wire is the transport below.  A piece that was taken from the queue and not handed
on would be missing in the middle; and the handler of a signal may raise between any
two lines.  So a mark stands while a piece is on its way, and who finds it there knows.
"""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aiozerocopy._net.tls_session import Session

PIECE = 256 << 10  # bytes that are encrypted at a time


class Outbox:
    """A queue of buffers, which are borrowed until they are encrypted."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._held: deque[memoryview] = deque()
        self._is_on_its_way = False  # the mark
        self._waiting: list[asyncio.Future[None]] = []
        self._unsent: OSError | None = None  # why not all will be sent
        self.nbytes: int = 0
        self.wire: Any = None
        self.wire_is_full = False

    def add(self, view: memoryview) -> None:
        """Take a view of bytes in."""
        self._held.append(view)
        self.nbytes += view.nbytes

    def send(self) -> None:
        """Encrypt until nothing is left, or the wire is full.

        Raises:
            ConnectionAbortedError: an exception has hit an earlier call.
            Exception: of OpenSSL or of the wire; nothing more can be sent.
        """
        while self._held and not self.wire_is_full:
            if self._is_on_its_way:
                raise ConnectionAbortedError("an exception interrupted a write")
            self._is_on_its_way = True
            piece = self._held[0]
            if piece.nbytes > PIECE:
                self._held[0] = piece[PIECE:]
                piece = piece[:PIECE]
            else:
                self._held.popleft()
            self.nbytes -= piece.nbytes
            self._session.encrypt(piece)
            self.hand_on()
            self._is_on_its_way = False
        if self._waiting and not self._held:
            self._wake()

    def is_empty(self) -> bool:
        """Is nothing waiting here?"""
        return not self._held

    def hand_on(self) -> None:
        """Give the wire what is encrypted, and what OpenSSL itself has to say."""
        if self._session.has_sealed():
            self.wire.write(self._session.take())

    def refuse(self) -> None:
        """Something was written after the end: `drained` shall say so."""
        if self._unsent is None:
            self._unsent = ConnectionAbortedError(
                errno.ECONNABORTED, "it was written to after it was closed"
            )

    def lose(self, cause: BaseException | None) -> None:
        """The wire is gone."""
        if isinstance(cause, OSError):
            self._unsent = cause
        elif self._held or self._is_on_its_way:
            self._unsent = ConnectionAbortedError(
                errno.ECONNABORTED, "it was aborted before all was out"
            )
        self._held.clear()
        self.nbytes = 0
        self._wake()

    async def drained(self) -> None:
        """Return once nothing is borrowed, and all is out.

        Raises:
            OSError: not all is out, nor will be.
        """
        if self._held:
            future = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            await future
        elif self._unsent is not None:
            raise self._unsent
        if hasattr(self.wire, "drained"):  # it is one of ours
            await self.wire.drained()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if future.done():
                continue
            if self._unsent is None:
                future.set_result(None)
            else:
                future.set_exception(self._unsent)
