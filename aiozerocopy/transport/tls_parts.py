"""What a `TLSTransport` is made of, besides OpenSSL (`_net.tls_session`).

    Inbox    what arrives, until the protocol above has it
    Outbox   what is written, until it is encrypted and the wire has it
    Upper    the protocol above, and what it was told

The wire is the transport below.  A piece that was taken out of one of the boxes and not
handed on would be missing in the middle; and the handler of a signal may raise between
any two lines.  So a flag is set while a piece is in transit: finding it set means that
an exception has interrupted us.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

from aiozerocopy._core.change import Change
from aiozerocopy.transport.lifetime import WAS_ABORTED, WAS_CLOSED, aborted
from aiozerocopy.transport.reading import scratch

if TYPE_CHECKING:
    from aiozerocopy._net.tls_session import Session

PIECE = 256 << 10  # bytes that are encrypted at a time


class Inbox:
    """The way up of what arrives.

    The wire stores in `scratch`, which all connections of a thread share, and says so
    at once, as all transports do that wait until there is something to read: OpenSSL
    takes a copy of it then.  It decrypts into the memory of a `BufferedProtocol`, or
    else into `scratch` again, of which ``data_received`` gets a copy.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._is_in_transit = False

    def deliver(self, protocol: Any) -> bool:
        """Give the protocol one piece; False if there is none.

        Raises:
            ConnectionAbortedError: an exception has hit an earlier call.
            Exception: of the protocol.
        """
        if self._is_in_transit:
            raise ConnectionAbortedError("an exception interrupted a delivery")
        if not self._session.has_arrived():
            return False
        self._is_in_transit = True
        if isinstance(protocol, asyncio.BufferedProtocol):
            room = memoryview(protocol.get_buffer(-1))
            if not room.nbytes:
                raise RuntimeError("get_buffer() returned an empty buffer")
            nbytes = self._session.decrypt_into(room)
            room.release()
            if nbytes:
                protocol.buffer_updated(nbytes)
        else:
            room = scratch.memory
            nbytes = self._session.decrypt_into(room)
            if nbytes:
                protocol.data_received(bytes(room[:nbytes]))
        self._is_in_transit = False
        return nbytes > 0

    def drop(self) -> None:
        """Decrypt all that there is, and drop it."""
        while self._session.decrypt_into(scratch.memory):
            pass


class Outbox:
    """A queue of buffers, which are borrowed until they are encrypted."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._held: deque[memoryview] = deque()
        self._is_in_transit = False
        self._end = Change()  # of what is held
        self._unsent: OSError | None = None  # why not all will be sent
        self.nbytes: int = 0
        self.wire: Any = None
        self.wire_is_full = False

    def add(self, view: memoryview) -> None:
        self._held.append(view)
        self.nbytes += view.nbytes

    def send(self) -> None:
        """Encrypt until nothing is left, or the wire is full.

        Raises:
            ConnectionAbortedError: an exception has hit an earlier call.
            Exception: of OpenSSL or of the wire; nothing more can be sent.
        """
        while self._held and not self.wire_is_full:
            if self._is_in_transit:
                raise ConnectionAbortedError("an exception interrupted a write")
            self._is_in_transit = True
            piece = self._held[0]
            if piece.nbytes > PIECE:
                self._held[0] = piece[PIECE:]
                piece = piece[:PIECE]
            else:
                self._held.popleft()
            self.nbytes -= piece.nbytes
            self._session.encrypt(piece)
            self.hand_on()
            self._is_in_transit = False
        if not self._held:
            self._end.happen()

    def is_empty(self) -> bool:
        return not self._held

    def hand_on(self) -> None:
        """Give the wire what is encrypted, and what OpenSSL itself has to say."""
        if self._session.has_sealed():
            self.wire.write(self._session.take())

    def refuse(self) -> None:
        """Something was written after the end: `drained` shall say so."""
        if self._unsent is None:
            self._unsent = aborted(WAS_CLOSED)

    def lose(self, cause: BaseException | None) -> None:
        """The wire is gone."""
        if isinstance(cause, OSError):
            self._unsent = cause
        elif self._held or self._is_in_transit:
            self._unsent = aborted(WAS_ABORTED)
        self._held.clear()
        self.nbytes = 0
        self._end.happen()

    async def drained(self) -> None:
        """See `TLSTransport.drained`."""
        if self._held:
            await self._end.next()
        if self._unsent is not None:
            raise self._unsent
        if hasattr(self.wire, "drained"):  # it is one of ours
            await self.wire.drained()


class Upper:
    """Calls a program's protocol: each of its methods once, and in order."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        protocol: Any,
        ready: asyncio.Future[None] | None,
        *,
        is_made: bool,
    ) -> None:
        self._loop = loop
        self._ready = ready  # done when the handshake is
        self._is_made = is_made
        self._is_paused = False
        self._has_ended = False
        self.protocol: Any = protocol

    def made(self, transport: asyncio.BaseTransport) -> None:
        """Call connection_made, unless that was done before."""
        if not self._is_made:
            self._is_made = True
            self.protocol.connection_made(transport)
        ready, self._ready = self._ready, None
        if ready is not None and not ready.done():
            ready.set_result(None)

    def lost(self, error: BaseException | None) -> None:
        """Call connection_lost."""
        ready, self._ready = self._ready, None
        if ready is not None and not ready.done():
            ready.set_exception(error or ConnectionAbortedError("it was closed"))
        if self._is_made:
            self.protocol.connection_lost(error)

    def ended(self) -> bool:
        """Call eof_received; False if the protocol wants the connection to end."""
        if self._has_ended:
            return True
        self._has_ended = True
        return bool(self.protocol.eof_received())

    def pause(self) -> None:
        """Call pause_writing."""
        if self._is_made and not self._is_paused:
            self._is_paused = True
            self._tell_writer("pause_writing")

    def resume(self) -> None:
        """Call resume_writing."""
        if self._is_paused:
            self._is_paused = False
            self._tell_writer("resume_writing")

    def _tell_writer(self, what: str) -> None:
        try:
            getattr(self.protocol, what)()
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            self.complain(f"protocol.{what}() failed", error)

    def complain(self, message: str, error: BaseException) -> None:
        """Tell the loop's handler what the protocol did wrong."""
        context = {"message": message, "exception": error, "protocol": self.protocol}
        self._loop.call_exception_handler(context)
