"""relay: from any source to any sink, inside the kernel where possible."""

from __future__ import annotations

import contextlib
import os
import stat
from functools import partial
from typing import TYPE_CHECKING

import anyio
from anyio.abc import ByteReceiveStream, ByteSendStream

from aiozerocopy._core.channel import OwnFd, own_file
from aiozerocopy._core.errors import StreamBroken, StreamClosed
from aiozerocopy._core.fds import duplicates
from aiozerocopy._core.files import number_of
from aiozerocopy._core.relaying import (
    AnyFile,
    check_part,
    close_source,
    open_source,
    relay_streams,
)
from aiozerocopy._core.relaying import Relay as Relay
from aiozerocopy._core.sending import LINGER
from aiozerocopy._core.waiter import call_soon, current_loop
from aiozerocopy.opening import check_fd, open_writer
from aiozerocopy.streams import ReceiveStream, SendStream

if TYPE_CHECKING:
    from aiozerocopy._core.sending import Ticket
    from aiozerocopy._core.waiter import Waiter

PIECE = 256 << 10  # bytes at a time, of a file or through Python

Source = ByteReceiveStream | AnyFile
Sink = ByteSendStream | AnyFile


def relay(
    source: Source,
    sink: Sink,
    nbytes: int | None = None,
    *,
    offset: int | None = None,
    pieces: bool = False,
) -> Relay:
    """Move bytes from ``source`` to ``sink``; await what this returns for their number.

    The source is a stream, a path, an open file or an fd; ``offset`` is where to begin
    in a file.  The sink is a stream or likewise a file; a path is created, or emptied.
    Files and fds that you give stay open.  The relay ends with the source, or after
    ``nbytes``.

    Between two streams of this package, or a file and such a stream, the kernel moves
    the bytes where it can: see `Relay.lane`.  A thread drives it, not the event loop.
    To the sink it is one message, in order with all others; with ``pieces`` others may
    send in between, whenever the source is empty for the moment.  From or to other
    streams (TLS, say) the bytes go through Python, always in pieces.

    After a cancel no more bytes are taken from the source; those taken before go out,
    so the message ends early (`SendStream.send_file` completes it).  If the sink
    breaks, bytes that were taken and are not out come with the source's next receive,
    unless they went through Python, or came from the fd of a pipe or socket: then they
    are lost.  A piece is lost, too, if a cancel cuts off the ``send`` of a sink of
    another package.

    The kernel reads a file's pages when it sends them: a byte that changes meanwhile
    may arrive as it was before or after.

    Raises:
        ValueError: a negative number, or an ``offset`` in a stream.

    Raises, when it is awaited:
        StreamBroken: the text says which of the two broke; ``bytes_sent`` were moved.
        StreamClosed: one of the two was closed on this side.
        BusyResourceError: another task is receiving from the source.
        OSError: the file cannot be opened, or is no stream of bytes, or no thread can
            start.
        ValueError: a pipe or a file is both source and sink, an fd is negative, or an
            object is closed.
    """
    check_part(offset, nbytes)
    if offset is not None and isinstance(source, ByteReceiveStream):
        raise ValueError("only a file has an offset")
    return Relay(partial(_run, source, sink, nbytes, offset, pieces))


async def _run(
    source: Source,
    sink: Sink,
    nbytes: int | None,
    offset: int | None,
    pieces: bool,
    relay: Relay,
    ours: ReceiveStream | None = None,  # the source, if it was opened here
) -> int:
    if not isinstance(source, ByteReceiveStream):
        if not isinstance(source, (str, bytes, os.PathLike)):
            number = number_of(source, reading=True)
            # (A socket at its end may count as not connected, and still have bytes.)
            check_fd(number, os.O_RDONLY, is_connected=False)
        ours = open_source(source, offset)
        try:
            return await _run(ours, sink, nbytes, None, pieces, relay, ours)
        finally:
            await close_source(ours)
    if not isinstance(sink, ByteSendStream):
        async with open_sink(sink, source) as writer:
            return await _run(source, writer, nbytes, None, pieces, relay, ours)
    try:
        if isinstance(source, ReceiveStream) and isinstance(sink, SendStream):
            if pieces:
                return await _in_pieces(relay, source, sink, nbytes)
            return await relay_streams(relay, source, sink, nbytes)
        return await _through_python(relay, source, sink, nbytes)
    except BaseException:
        if ours is not None and ours._has_unread() and not _is_file(ours):
            await _pass_on(relay, ours, sink)
        raise


def open_sink(file: AnyFile, source: ByteReceiveStream) -> SendStream:
    """Open a stream of our own to a file; a path is created, or emptied.

    Raises:
        ValueError: the file is the source; it was not changed.
        OSError: it cannot be opened.
        TypeError: an object that changes the bytes.
    """
    is_named = isinstance(file, (str, bytes, os.PathLike))
    if isinstance(file, (str, bytes, os.PathLike)):
        ours = own_file(file, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK)
    else:
        ours = OwnFd(duplicates([number_of(file, reading=False)]))
    with contextlib.closing(ours):  # (unless `open_writer` takes it over)
        status = os.fstat(ours.fd)
        if stat.S_ISREG(status.st_mode):
            taken = source.fileno() if isinstance(source, ReceiveStream) else -1
            if taken >= 0 and os.path.samestat(os.fstat(taken), status):
                raise ValueError(f"{file!r} cannot be relayed onto itself")
            if is_named:
                os.ftruncate(ours.fd, 0)
        return open_writer(ours)


async def _in_pieces(
    relay: Relay, source: ReceiveStream, sink: SendStream, nbytes: int | None
) -> int:
    """Send one message for what the source has at a time, or for a piece of a file."""
    is_file = _is_file(source)
    _enter(sink)
    while nbytes is None or relay.moved < nbytes:
        left = None if nbytes is None else nbytes - relay.moved
        if is_file:
            left = PIECE if left is None else min(left, PIECE)
        elif not source._has_unread():
            await _something(source, sink)
        if not await relay_streams(relay, source, sink, left, once=True):
            break
    return relay.moved


async def _something(source: ReceiveStream, sink: SendStream) -> None:
    """Return when the source has bytes, or one of the two has ended."""
    loop = current_loop()
    with (
        anyio.CancelScope() as waiting,
        sink._watched(partial(call_soon, loop, waiting.cancel)),
        contextlib.suppress(anyio.EndOfStream, StreamBroken, StreamClosed),
    ):
        await source._arrival()  # (the relay will report an end)


async def _through_python(
    relay: Relay, source: ByteReceiveStream, sink: ByteSendStream, nbytes: int | None
) -> int:
    if isinstance(sink, SendStream):
        _enter(sink)
    while nbytes is None or relay.taken < nbytes:
        most = PIECE if nbytes is None else min(PIECE, nbytes - relay.taken)
        try:
            data = await source.receive(most)
        except anyio.EndOfStream:
            break
        if isinstance(sink, SendStream):
            # The queued bytes go out even if this is cancelled while it waits.
            ticket = _put(relay, sink, data)
            if ticket is not None:
                await ticket
        else:
            await _send(relay, sink, data)
    return relay.moved


async def _pass_on(relay: Relay, source: ReceiveStream, sink: ByteSendStream) -> None:
    """Send what a cancelled receive has taken: nobody else could receive it.

    (For a file `close_source` moves its position back instead.)
    """
    # (the relay's own exception goes on)
    with contextlib.suppress(Exception), anyio.CancelScope(shield=True):
        while source._has_unread():
            data = await source.receive(PIECE)
            if isinstance(sink, SendStream):
                _put(relay, sink, data)
            else:
                with anyio.move_on_after(LINGER):
                    await _send(relay, sink, data)


def _put(relay: Relay, sink: SendStream, data: bytes) -> Ticket | None:
    relay._taken += len(data)
    ticket = sink._put_now(_enter(sink), data)
    relay._sent += len(data)
    return ticket


async def _send(relay: Relay, sink: ByteSendStream, data: bytes) -> None:
    relay._taken += len(data)
    await sink.send(data)
    relay._sent += len(data)


def _enter(sink: SendStream) -> Waiter:
    """Refuse a sink that takes no more, before bytes are taken for it."""
    if sink._refusal:
        raise StreamClosed(sink._refusal)
    return sink._enter()


def _is_file(source: ReceiveStream) -> bool:
    fd = source.fileno()
    return fd >= 0 and stat.S_ISREG(os.fstat(fd).st_mode)
