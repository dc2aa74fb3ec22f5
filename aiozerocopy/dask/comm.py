"""A comm: Dask messages over one of our streams; and the connectors that open one.

It is open until `close`, `abort`, an error, or the peer's end.  A read or write that
fails or is cancelled ends it too: the next bytes on the wire may be inside a message
then, and Dask never uses such a comm again.  A read that is going on notices that the
peer has left; at other times `closed` asks the kernel.

The stream belongs to the comm.  If a comm is collected without being closed, Dask's
logger reports it, as for Dask's own comms, and its stream is aborted.
"""

from __future__ import annotations

import logging
import os
import ssl
import sys
import weakref
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeAlias

import anyio
import dask
from dask.utils import parse_timedelta
from distributed.comm.addressing import unparse_host_port
from distributed.comm.core import Comm, CommClosedError, Connector, FatalCommClosedError
from distributed.comm.utils import from_frames, to_frames
from distributed.system import MEMORY_LIMIT

from aiozerocopy.dask.local import has_hung_up
from aiozerocopy.dask.messages import NotAMessage, pack, receive_frames

if TYPE_CHECKING:
    import socket

    from aiozerocopy._net.tls import TLSStream
    from aiozerocopy.dask.local import LocalStream
    from aiozerocopy.dask.messages import Frame
    from aiozerocopy.streams import Stream

    Link: TypeAlias = Stream | TLSStream | LocalStream

logger: logging.Logger = logging.getLogger("distributed.comm.azc")

ENCRYPTED = "azc+tls://"
UNNAMED = "@"  # a Unix client; its name follows, if it has one

# The exceptions of a stream that cannot go on.
LOST = (
    anyio.EndOfStream,
    anyio.IncompleteRead,
    anyio.BrokenResourceError,
    anyio.ClosedResourceError,
    ssl.SSLError,
    NotAMessage,
)


class StreamComm(Comm):
    """Base of the comms of all our protocols."""

    # With a limit Dask would cut large buffers, which must then be joined again.
    max_shard_size: ClassVar[int] = sys.maxsize
    _goodbye = 0

    def __init__(
        self,
        stream: Link,
        local_address: str,
        peer_address: str,
        deserialize: bool = True,
    ) -> None:
        """Take over the stream."""
        self._closed = False
        self._is_reading = False
        self._most = MEMORY_LIMIT  # bytes of a message; the listener sets less at first
        self.stream = stream
        self._local_addr = local_address  # (Dask reads them by these names)
        self._peer_addr = peer_address
        self._extra: dict[str, Any] = {}
        super().__init__(deserialize)
        who = f"<{type(self).__name__} local={local_address} remote={peer_address}>"
        self._finalizer = weakref.finalize(self, _give_up, stream, who)
        self._finalizer.atexit = False

    @property
    def local_address(self) -> str:
        return self._local_addr

    @property
    def peer_address(self) -> str:
        return self._peer_addr

    @property
    def extra_info(self) -> dict[str, Any]:
        return self._extra

    @property
    def socket(self) -> socket.socket:
        """The socket, for its options and facts.  Raises StreamClosed."""
        return self.stream._raw_socket

    async def read(self, deserializers: Any = None) -> Any:
        """Return the next message.  Its large buffers have memory of their own.

        Raises: CommClosedError: the comm ended before the message was complete.
        """
        if self._closed:
            raise CommClosedError(f"{self!r} was closed before")
        try:
            self._is_reading = True
            frames = await self._receive()
        except LOST as error:
            self._lose(error)
        except BaseException:
            self.abort()
            raise
        finally:
            self._is_reading = False
        try:
            return await from_frames(
                frames,
                deserialize=self.deserialize,
                deserializers=deserializers,
                allow_offload=self.allow_offload,
            )
        except EOFError as error:
            self.abort()
            raise CommClosedError(f"{self!r}: the message was cut off") from error

    async def write(
        self, msg: Any, serializers: Any = None, on_error: str = "message"
    ) -> int:
        """Send a message; when this returns it is out, and its buffers are free.

        Returns the number of its bytes.

        Raises: CommClosedError: the comm ended; the peer has not got the whole message.
        """
        if self._closed:
            raise CommClosedError(f"{self!r} was closed before")
        sides = {"sender": self.local_info, "recipient": self.remote_info}
        frames = await to_frames(
            msg,
            allow_offload=self.allow_offload,
            serializers=serializers,
            on_error=on_error,
            context=sides | self.handshake_options,
            frame_split_size=self.max_shard_size,
        )
        buffers, nbytes = pack(frames)
        try:
            await self._send(buffers, nbytes)
        except LOST as error:
            self._lose(error)
        except BaseException:
            self.abort()
            raise
        return nbytes

    async def _send(self, buffers: list[Frame], nbytes: int) -> None:
        await self.stream.send(*buffers)

    async def _receive(self) -> list[memoryview]:
        return await receive_frames(self.stream, self._most)

    def _lose(self, error: Exception) -> NoReturn:
        """End because of this error, and raise it as one of Dask's."""
        text = f"{self!r}: {str(error) or 'the peer has closed the connection'}"
        self.abort()
        why = error.__cause__
        if isinstance(why, ssl.SSLError) and "UNKNOWN_CA" in (why.reason or ""):
            raise FatalCommClosedError(text) from error
        raise CommClosedError(text) from error

    async def close(self) -> None:
        """Close after the write that is going on, for which it waits as long as Dask
        waits for a silent peer."""
        if self._closed:
            return
        self._closed = True
        try:
            with anyio.move_on_after(timeout("tcp")):
                await self.stream.aclose()
        except LOST:
            pass
        finally:
            self.abort()

    def abort(self) -> None:
        """Close at once; unsent bytes are lost.  May be called from any thread."""
        self._closed = True
        self.stream.abort()
        self._finalizer.detach()

    def closed(self) -> bool:
        """Has the comm ended, here or by the peer?"""
        if not self._closed and not self._is_reading and self._is_left():
            self.abort()
        return self._closed

    def _is_left(self) -> bool:
        fd = self.stream.fileno()
        if fd < 0:
            return True
        return not self.stream._has_unread() and has_hung_up(fd, self._goodbye)


class StreamConnector(Connector):
    """Base of the connectors of all our protocols.

    A connector makes one attempt; Dask itself tries again.
    """

    prefix: ClassVar[str]
    comm_class: type[StreamComm]

    async def connect(
        self, address: str, deserialize: bool = True, **connection_args: Any
    ) -> StreamComm:
        """Connect; ``connection_args`` are those of Dask's `Security`.

        Raises:
            OSError: no server answered.
            FatalCommClosedError: TLS failed, and would fail again.
            ValueError: not an address.
            RuntimeError: Dask must encrypt, and this protocol does not.
        """
        refuse_to_encrypt(self.prefix, connection_args)
        stream = await self._open(address)
        try:
            local = self.prefix + location_of(stream._raw_socket.getsockname())
            link = await self._link(stream, address, connection_args)
            return self.comm_class(link, local, self.prefix + address, deserialize)
        except BaseException:
            stream.abort()
            raise

    async def _open(self, address: str) -> Stream:
        raise NotImplementedError

    async def _link(self, stream: Stream, address: str, args: dict[str, Any]) -> Link:
        return stream


def location_of(address: Any) -> str:
    """Return the address of a socket, or of its peer, as Dask writes it."""
    if isinstance(address, tuple):
        return unparse_host_port(*address[:2])
    if isinstance(address, str):
        return address or UNNAMED
    return UNNAMED + os.fsdecode(address[1:])


def refuse_to_encrypt(prefix: str, connection_args: dict[str, Any]) -> None:
    """Raises: RuntimeError: Dask must encrypt, and this protocol does not."""
    if connection_args.get("require_encryption") and prefix != ENCRYPTED:
        raise RuntimeError(
            f"Dask must encrypt, by its configuration, and {prefix} does not: use "
            f"{ENCRYPTED}"
        )


def _give_up(stream: Link, who: str) -> None:
    if stream.fileno() >= 0:
        logger.warning("closing %s, which was never closed", who)
        stream.abort()


def timeout(name: str) -> float:
    """Return one of Dask's timeouts, "tcp" or "connect", in seconds."""
    return float(parse_timedelta(dask.config.get(f"distributed.comm.timeouts.{name}")))
