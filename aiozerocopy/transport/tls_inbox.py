"""What arrives at a TLS connection, until the protocol above has it.

All connections of a thread share two buffers.  The wire stores in the first, and says
so at once, as all transports do that wait until there is something to read: OpenSSL
takes a copy of it then.  It decrypts into the memory of a `BufferedProtocol`, or else
into the second, of which ``data_received`` gets a copy.

What was decrypted and not delivered would be missing in the middle; and the handler of
a signal may raise between any two lines.  So a mark stands meanwhile.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aiozerocopy._net.tls_session import Session

SIZE = 256 << 10  # bytes


class _Memory(threading.local):
    """Of a thread."""

    def __init__(self) -> None:
        self.sealed = memoryview(bytearray(SIZE))
        self.plain = memoryview(bytearray(SIZE))


_memory = _Memory()


class Inbox:
    """The way up of what arrives."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._is_on_its_way = False  # the mark

    def room(self) -> memoryview:
        """Where the wire may store something, to call `arrived` at once."""
        return _memory.sealed

    def arrived(self, nbytes: int) -> None:
        """The wire has stored so much."""
        self._session.feed(_memory.sealed[:nbytes])

    def deliver(self, protocol: Any) -> bool:
        """Give the protocol one piece; False if there is none.

        Raises:
            ConnectionAbortedError: an exception has hit an earlier call.
            Exception: of the protocol.
        """
        if self._is_on_its_way:
            raise ConnectionAbortedError("an exception interrupted a delivery")
        if not self._session.has_arrived():
            return False
        self._is_on_its_way = True
        if isinstance(protocol, asyncio.BufferedProtocol):
            room = memoryview(protocol.get_buffer(-1))
            if not room.nbytes:
                raise RuntimeError("get_buffer() returned an empty buffer")
            nbytes = self._session.decrypt_into(room)
            room.release()
            if nbytes:
                protocol.buffer_updated(nbytes)
        else:
            room = _memory.plain
            nbytes = self._session.decrypt_into(room)
            if nbytes:
                protocol.data_received(bytes(room[:nbytes]))
        self._is_on_its_way = False
        return nbytes > 0

    def drop(self) -> None:
        """Decrypt all that there is, for nobody."""
        while self._session.decrypt_into(_memory.plain):
            pass
