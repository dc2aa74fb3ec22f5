"""sendfile: a file's bytes through a transport, moved by the kernel, or in pieces."""

from __future__ import annotations

import asyncio
from typing import IO, Any

from aiozerocopy._core.errors import StreamBroken, StreamClosed
from aiozerocopy.transport.reading import os_error
from aiozerocopy.transport.socket_transport import AFTER_EOF, SocketTransport
from aiozerocopy.transport.tls import TLSTransport

PIECE = 256 << 10  # bytes read at a time from a file that is sent in pieces


async def sendfile(
    transport: asyncio.WriteTransport,
    file: IO[bytes],
    offset: int = 0,
    count: int | None = None,
    *,
    fallback: bool = True,
) -> int:
    """Send a file after the data written before; return how many bytes were sent.

    It sends from ``offset`` on, ``count`` bytes or up to the file's end, and leaves the
    file's position behind the last byte sent, even if it fails.  The kernel moves the
    bytes, in a thread of ours; data written meanwhile follows them.  A file without an
    fd or one that the kernel refuses, and any file under TLS, is read in pieces, unless
    ``fallback`` is false: writes raise RuntimeError meanwhile, and other files wait.
    If that fails, the position is behind the last piece that was sent whole.  For a
    transport that is not ours, its loop's ``sendfile`` is called.

    Raises:
        ConnectionError: the peer left.
        RuntimeError: the transport is closing, or cannot write any more.
        ValueError, TypeError: a text file, or a wrong ``offset`` or ``count``.
        asyncio.SendfileNotAvailableError: the kernel cannot do it, and ``fallback``
            is false.
    """
    if not takes(transport):
        loop = asyncio.get_running_loop()
        return await loop.sendfile(transport, file, offset, count, fallback=fallback)
    _check(transport, file, offset, count)
    if isinstance(transport, SocketTransport) and not transport._line and _has_fd(file):
        try:
            return await _by_the_kernel(transport, file, offset, count)
        except asyncio.SendfileNotAvailableError:
            if not fallback:
                raise
    elif not fallback:
        raise _not_available(transport, file)
    return await _in_turn(transport, file, offset, count)


def _not_available(transport: object, file: object) -> Exception:
    text = f"the kernel cannot send {file!r} through {transport!r}"
    return asyncio.SendfileNotAvailableError(text)


def takes(transport: object) -> bool:
    """Can `sendfile` send through the transport without its loop's ``sendfile``?"""
    return isinstance(transport, SocketTransport | TLSTransport)


def _check(transport: Any, file: IO[bytes], offset: int, count: int | None) -> None:
    if transport.is_closing():
        raise RuntimeError("Transport is closing")
    if getattr(transport, "_eof", False):
        raise RuntimeError(AFTER_EOF)
    if "b" not in getattr(file, "mode", "b"):
        raise ValueError("file should be opened in binary mode")
    most = 1 if count is None else count
    for name, number, least in (("offset", offset, 0), ("count", most, 1)):
        if not isinstance(number, int):
            raise TypeError(f"{name} must be an integer, not {number!r}")
        if number < least:
            raise ValueError(f"{name} must be at least {least}, not {number!r}")


def _has_fd(file: IO[bytes]) -> bool:
    try:
        return file.fileno() >= 0
    except (AttributeError, OSError):  # io.UnsupportedOperation
        return False


async def _by_the_kernel(
    transport: SocketTransport, file: IO[bytes], offset: int, count: int | None
) -> int:
    relay = transport._stream.send_file(file, offset, count)
    try:
        try:
            transport._files.add(relay)
            return await relay
        except (StreamBroken, StreamClosed) as error:
            transport._read_before_the_end()
            transport._find_failure()
            failure = transport._failure  # (None: it is the file's)
            raise (failure.again() if failure else os_error(error)) from error
        except OSError as error:
            if relay.moved:
                raise
            raise _not_available(transport, file) from error
        finally:
            transport._files.discard(relay)
    finally:
        transport._files.discard(relay)
        if relay.moved:
            _seek(file, offset + relay.moved)
        if relay._goes_on and not transport._is_lost:
            transport._find_failure()  # (once the file's message has ended)
        transport._advance()


async def _in_turn(
    transport: Any, file: IO[bytes], offset: int, count: int | None
) -> int:
    """Send in pieces; until then refuse writes, and have other such files wait."""
    line: list[asyncio.Event] = transport._line
    me = asyncio.Event()
    try:
        try:
            line.append(me)
            if isinstance(transport, SocketTransport):
                transport._out.unbind_port()  # (as in `write_eof`)
            while line[0] is not me:
                await line[0].wait()
            return await _in_pieces(transport, file, offset, count)
        finally:
            _leave(line, me)
    finally:
        _leave(line, me)
        if isinstance(transport, SocketTransport):
            transport._advance()


def _leave(line: list[asyncio.Event], me: asyncio.Event) -> None:
    if me in line:
        line.remove(me)
    me.set()


async def _in_pieces(
    transport: Any, file: IO[bytes], offset: int, count: int | None
) -> int:
    if offset:
        file.seek(offset)
    else:
        _seek(file, 0)
    sent = 0
    while count is None or sent < count:
        most = PIECE if count is None else min(PIECE, count - sent)
        data = await asyncio.get_running_loop().run_in_executor(None, _read, file, most)
        if not data:
            break
        transport._write_pieces([data])
        try:
            await transport.drained()
        except OSError:  # (if this is cancelled, the piece goes out)
            _seek(file, offset + sent)
            raise
        sent += len(data)
    return sent


def _read(file: Any, most: int) -> bytes | memoryview:
    if hasattr(file, "read"):
        data: bytes = file.read(most)
        return data
    buffer = bytearray(most)
    return memoryview(buffer)[: file.readinto(buffer) or 0]


def _seek(file: Any, position: int) -> None:
    """Move the position of a file that has one."""
    ask = getattr(file, "seekable", None)
    if ask() if ask else hasattr(file, "seek"):
        file.seek(position)
