"""The streams: SendStream, ReceiveStream, Stream for both directions of a socket, and
UnixStream, which also carries open files.

They are anyio's ``ByteSendStream``, ``ByteReceiveStream`` and ``ByteStream``, so all
code for those works with them.  `_core.sending` and `_core.receiving` implement them,
and `_core.lifetime` their common part.
"""

from __future__ import annotations

import contextlib
import os
import socket
from functools import partial
from typing import TYPE_CHECKING, Any

from anyio.abc import ByteStream, SocketAttribute, SocketStream, UNIXSocketStream
from anyio.streams.file import FileStreamAttribute

from aiozerocopy._core.errors import StreamClosed
from aiozerocopy._core.fds import MOST_FDS, close_fds, duplicates, numbers_in, room_for
from aiozerocopy._core.pins import content, scratch
from aiozerocopy._core.receiving import ReceiveStream as ReceiveStream
from aiozerocopy._core.sending import CLOSING
from aiozerocopy._core.sending import SendStream as SendStream
from aiozerocopy._core.sending import Ticket as Ticket
from aiozerocopy._core.waiter import checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from typing_extensions import Buffer

    from aiozerocopy._core.channel import Channel
    from aiozerocopy._core.fds import HasFileno
    from aiozerocopy._core.receiving import Reception
    from aiozerocopy._core.waiter import Waiter

_EOF = "send_eof was called before"


class BorrowedSocket(socket.socket):
    """A socket object over another owner's fd, which it never closes.

    (Not even if a signal handler raises before it is stored or detached.)
    """

    def __del__(self) -> None:
        self.detach()


class Stream(SendStream, ReceiveStream, ByteStream):
    """A connected stream socket: a `SendStream` and a `ReceiveStream` in one.

    It counts as an `anyio.abc.SocketStream`.
    """

    def __init__(self, channel: Channel, **options: Any) -> None:
        """``options`` are `SendStream`'s."""
        self._receive_from(channel.opposite())
        self._socket: socket.socket | None = None
        self._eof = False
        self._ending: set[object] = set()  # the calls of `send_eof` in progress
        SendStream.__init__(self, channel, **options)
        self._channels = (channel, self._in)

    async def send_eof(self) -> None:
        """Send what was accepted, then tell the peer that no more will come.

        From the call on messages are refused with StreamClosed; receiving goes on.
        Called again, it does nothing.  If it is cancelled, or a message before it has
        failed, it has not been called.

        Raises: as `flush`.
        """
        if self._eof:
            await checkpoint()
            return
        call = object()
        try:
            self._enter()
            if self._refusal == CLOSING:
                raise StreamClosed(CLOSING)
            self._ending.add(call)
            self._take_no_more(_EOF)
            await self.flush()
            await self._drain()
        except BaseException:
            self._ending.discard(call)
            if self._refusal == _EOF and not (self._eof or self._ending):
                self._take_more()
            raise
        # (if this is interrupted, the peer may know: messages stay refused)
        self._out.shutdown()
        self._eof = True

    def _take_more(self) -> None:
        waiter, self._refusal = self._waiter, ""
        if waiter is not None and not (self._closed or waiter.is_trio):
            self._loop = waiter.loop.native

    def _let_go(self) -> None:
        if self._socket is not None:
            self._socket.detach()

    # -- what anyio and others ask a socket ---------------------------------------

    @property
    def _raw_socket(self) -> socket.socket:
        """Our fd as a socket object: ask it, set options, but do no I/O with it."""
        if self._closed:
            raise StreamClosed("the stream is closed")
        if self._socket is None:
            self._socket = BorrowedSocket(fileno=self.fileno())
            if not os.get_blocking(self.fileno()):
                self._socket.setblocking(False)  # (so that its timeout fits the fd)
        return self._socket

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        raw = self._raw_socket
        attributes: dict[Any, Callable[[], Any]] = {
            FileStreamAttribute.fileno: self.fileno,
            SocketAttribute.raw_socket: lambda: raw,
            SocketAttribute.family: lambda: raw.family,
            SocketAttribute.local_address: lambda: _plain_address(raw.getsockname()),
        }
        has_port = raw.family in (socket.AF_INET, socket.AF_INET6)
        if has_port:
            attributes[SocketAttribute.local_port] = lambda: raw.getsockname()[1]
        with contextlib.suppress(OSError):  # a peer that has gone has no address
            peer = raw.getpeername()
            attributes[SocketAttribute.remote_address] = lambda: _plain_address(peer)
            if has_port:
                attributes[SocketAttribute.remote_port] = lambda: peer[1]
        return attributes


class UnixStream(Stream):
    """A connected UNIX socket, which also carries open files.

    It counts as an `anyio.abc.UNIXSocketStream`.  Fds come with certain bytes: if
    `receive` gets those bytes, the kernel closes the fds.
    """

    _fds: Any = None  # fds received with the unread bytes

    async def send_fds(self, message: Buffer, fds: Collection[int | HasFileno]) -> None:
        """Send a message, and with its first byte open files: fds, files or sockets.

        It keeps its place among all messages.  The files are duplicated when the call
        begins, so they are always yours; the peer gets duplicates of its own.
        Cancelled before the first byte was out, it sends neither; cancelled later, the
        files are out, and the rest of the message follows as in `send`.

        Raises:
            ValueError: no message, no fds, or more than 253.
            OSError: an fd is not open, no more can be opened, or this user has too many
                fds in flight.
            others: as `send`.
        """
        copies = duplicates(fds)
        waiter, operation = await self._begin()
        submit = partial(self._out.send_fds, waiter.port, operation, message, copies)
        await self._submit_and_wait(waiter, operation, submit)

    async def receive_fds(self, msglen: int, maxfds: int) -> tuple[bytes, list[int]]:
        """Return the next 1 to ``msglen`` bytes, and the fds that came with them.

        There may be no fds.  They are yours to close, and are closed on exec.  A
        cancelled call loses nothing: bytes and fds that had arrived come with the next.

        Raises:
            ValueError: ``msglen`` is negative, or ``maxfds`` not from 1 to 253.
            OSError: more fds came than ``maxfds``.  All were closed; the bytes come
                with the next receive.
            others: as `receive`.
        """
        if not isinstance(msglen, int) or msglen < 0:
            raise ValueError("msglen must be a non-negative integer")
        if not isinstance(maxfds, int) or maxfds < 1:
            raise ValueError("maxfds must be a positive integer")
        if maxfds > MOST_FDS:
            raise ValueError(f"maxfds must be {MOST_FDS} at most: no more come at once")
        waiter = self._enter_alone()
        if not self._unread:
            self._drop_fds()  # their bytes went elsewhere
        fds = self._fds or room_for(maxfds)

        def result(view: Any, n: int) -> tuple[bytes, list[int]]:
            received = content(view, n), numbers_in(fds, maxfds)
            self._fds = None
            return received

        return await self._receive(waiter, scratch, msglen, 1, result, fds)

    async def _keep(
        self,
        waiter: Waiter,
        reception: Reception | None,
        view: Any,
        error: BaseException,
    ) -> None:
        if reception is not None and reception.fds is not None:
            self._fds = reception.fds
        await super()._keep(waiter, reception, view, error)
        if self._has_ended:
            self._drop_fds()

    def _drop_fds(self) -> None:
        if self._fds is not None:
            close_fds(self._fds)
            self._fds = None

    def _end(self) -> None:
        self._drop_fds()
        super()._end()


SocketStream.register(Stream)
UNIXSocketStream.register(UnixStream)


def _plain_address(address: Any) -> Any:
    """Return an address in anyio's form: (host, port), or a path as str."""
    if not isinstance(address, tuple):
        return os.fsdecode(address)
    host, port, *more = address
    scope = more[1] if more else 0
    return (f"{host.partition('%')[0]}%{scope}" if scope else host), port
