"""The class and text of each error, and that it keeps no other object alive."""

import asyncio
import errno
import gc
import mmap
import os
import shutil
import ssl
import sys
import weakref
from typing import TypeVar

import anyio
import anyio.lowlevel
import pytest
from links import BIG, is_trio, linux_only
from transports import opened

import aiozerocopy as azc
from aiozerocopy import IncompleteReceive, StreamBroken, StreamClosed
from aiozerocopy._core.borrows import Operation
from aiozerocopy._core.errors import error_of
from aiozerocopy._core.failure import Failure
from aiozerocopy._core.waiter import current_waiter
from aiozerocopy.client import FrameClient
from aiozerocopy.framing import FrameReceiver, TruncatedFrame

if sys.version_info < (3, 11):  # (anyio needs this package there, too)
    from exceptiongroup import ExceptionGroup

from collections.abc import Awaitable, Callable

E = TypeVar("E", bound=BaseException)

UNKNOWN = errno.EXDEV  # an error for which there is only the system's text


def test_how_a_child_ended() -> None:
    error = StreamBroken("gone", 3, 5)
    assert str(error) == "gone"
    assert (error.bytes_sent, error.total) == (3, 5)
    error.returncode = 0
    assert str(error) == "gone; the child exited with code 0"
    error.stderr = "no\nfilm"
    assert str(error).endswith("code 0; its last words:\nno\nfilm")
    error.args = ("the sink broke: gone", "more")
    assert str(error).startswith("the sink broke: gone;")


def test_an_incomplete_receive() -> None:
    error = IncompleteReceive(1000, 5000, b"ab")
    assert str(error) == "the stream ended after 1,000 of 5,000 bytes"
    assert (error.received, error.total, error.rest) == (1000, 5000, b"ab")


@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize(
    ("code", "words"),
    [(errno.ESHUTDOWN, "the stream is closed"), (errno.ECHILD, "forked child")],
)
def test_closed(code: int, words: str, broken: bool) -> None:
    error = error_of(-code, 1, 2, broken=broken)
    assert type(error) is StreamClosed
    assert words in str(error)


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (errno.EFAULT, BufferError, "cannot be used"),
        (errno.ETOOMANYREFS, OSError, "too many fds"),
        (errno.ENOMEM, MemoryError, "no memory to queue"),
    ],
)
def test_only_the_call_failed(code: int, kind: type[Exception], words: str) -> None:
    error = error_of(-code, 0, 5, broken=False)
    assert type(error) is kind
    assert words in str(error)
    assert type(error_of(-code, 0, 5)) is StreamBroken


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (errno.EPIPE, "the reader is gone"),
        (errno.ECONNRESET, "reset"),
        (errno.EBADF, "behind our back"),
        (errno.ENOSPC, "the disk is full"),
        (errno.ECANCELED, "rescue_limit"),
        (UNKNOWN, os.strerror(UNKNOWN)),
    ],
)
@pytest.mark.parametrize("broken", [False, True])
def test_broken(code: int, words: str, broken: bool) -> None:
    error = error_of(-code, 3000, 5000, broken=broken)
    assert isinstance(error, StreamBroken)
    assert words in str(error)
    assert str(error).endswith(": 3,000 of 5,000 bytes of this message were sent")
    assert (error.errno, error.bytes_sent, error.total) == (code, 3000, 5000)
    assert isinstance(error.__cause__, OSError)
    assert error.__cause__.errno == code


def test_what_is_not_known_exactly() -> None:
    assert "at least 3 of 5 bytes" in str(error_of(-errno.EPIPE, 3, 5, at_least=True))
    assert str(error_of(-errno.EPIPE)) == "the reader is gone"


def test_of_a_receive() -> None:
    broken = error_of(-errno.ECONNRESET, 3, 5, received=True)
    assert str(broken).endswith(": 3 of 5 bytes were received")
    refused = error_of(-errno.EFAULT, 0, 5, broken=False, received=True)
    assert str(refused).endswith("; nothing was received")


# ---- what a failure remembers -------------------------------------------------------


def raised(error: E, cause: BaseException | None = None) -> E:
    with pytest.raises(type(error)):
        raise error from cause
    return error


NAMED = FileNotFoundError(errno.ENOENT, "no such file", "one", None, "other")
ERRORS = [
    error_of(-errno.EPIPE, 3, 5),
    TruncatedFrame(3, 5),
    IncompleteReceive(1, 2, b"x"),
    raised(NAMED, raised(KeyError("key"))),
    OSError("only a text"),
    ssl.SSLError(1, "[SSL] wrong"),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "why"),
    anyio.EndOfStream(),
    ExceptionGroup("two", [raised(ValueError(1)), raised(OSError(2, "no"))]),
]


def told(error: BaseException | None) -> object:
    """Return everything that a program can see of an error."""
    if error is None:
        return None
    assert error.__traceback__ is None
    names = ("errno", "strerror", "filename", "filename2", "start", "reason")
    seen = [getattr(error, name, None) for name in names]
    cause, hidden = told(error.__cause__), error.__suppress_context__
    attributes = {name: each for name, each in vars(error).items() if name[0] != "_"}
    within = [told(each) for each in getattr(error, "exceptions", ())]
    return type(error), repr(error), str(error), attributes, seen, cause, hidden, within


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_failure_is_told_again(error: BaseException) -> None:
    failure = Failure(error)
    assert raised(failure.again()).__traceback__
    anew = told(failure.again())
    each: BaseException | None = error
    while each is not None:  # `told` is for errors without tracebacks
        each.__traceback__, each = None, each.__cause__
    for inner in getattr(error, "exceptions", ()):
        inner.__traceback__ = None
    assert anew == told(error)


# ---- what an error keeps alive ------------------------------------------------------

# An error must keep nothing alive.  If a function still had it in a variable, the cycle
# with its traceback would keep the callers' objects until the next collection: for
# example a pool's frame whose slot another task is waiting for.


class Local:
    """An object of the caller."""


def writer_without_reader() -> azc.SendStream:
    reader, writer = azc.pipe()
    reader.abort()
    return writer


async def sends() -> None:
    async with writer_without_reader() as writer:
        await writer.send(b"x")


async def puts() -> None:
    writer = writer_without_reader()
    try:
        await (await writer.put(bytes(1 << 20)))
    finally:
        writer.abort()


async def closes_late() -> None:
    reader, writer = azc.pipe()
    async with reader:
        await writer.put(bytes(8 << 20))
        await writer.aclose(linger=0.01)


async def relays_into_nothing() -> None:
    source, feed = azc.pipe()
    async with source, feed, writer_without_reader() as sink:
        await feed.send(b"x")
        await azc.relay(source, sink)


async def relays_what_is_closed() -> None:
    source, feed = azc.pipe()
    reader, sink = azc.pipe()

    async def close() -> None:
        await reader.receive()
        source.abort()

    async with reader, feed, sink, anyio.create_task_group() as group:
        await feed.send(b"x")
        group.start_soon(close)
        try:
            await azc.relay(source, sink)
        except azc.StreamClosed:
            caught = True
    if caught:  # (raised here, because a group's error would be a group)
        raise azc.StreamClosed("the source was closed")


async def connects_in_vain() -> None:
    async def refuse() -> azc.Stream:
        raise ConnectionRefusedError

    async with FrameClient(refuse, reconnect=False) as client:
        await client.receive()


async def writes_what_cannot_be_read() -> None:
    if is_trio():
        pytest.skip("transports are asyncio's")
    fd = os.memfd_create("short")
    os.ftruncate(fd, BIG)
    memory = mmap.mmap(fd, BIG)
    os.ftruncate(fd, 0)
    os.close(fd)
    async with opened() as end:
        end.transport.writelines([memory, memory])


receivers: list[FrameReceiver] = []  # they remember their failures


async def receives_part_of_a_frame() -> None:
    one, other = azc.socketpair()
    async with one, other:
        await one.send(b"part")
        await one.send_eof()
        receivers[:] = [FrameReceiver(other)]
        await receivers[0].receive()


async def feeds_an_ffmpeg_that_fails() -> None:
    output = ["-c:v", "nonesuch", "-f", "null", "-"]
    async with azc.ffmpeg.Writer(output, (64, 48), fps=25) as video:
        while True:
            await video.send(bytes(64 * 48 * 3))


async def is_cancelled_in_a_shield() -> None:
    if is_trio():
        pytest.skip("there a shield lets nothing through")
    task = asyncio.current_task()
    assert task is not None
    waiter = current_waiter()
    operation = Operation(waiter.port, [])
    waiter.port.forget(operation)
    asyncio.get_running_loop().call_soon(task.cancel)
    asyncio.get_running_loop().call_soon(operation.end)
    try:
        await waiter.wait_shielded(operation)
    finally:
        if sys.version_info >= (3, 11):
            task.uncancel()


ACTIONS = [
    *(sends, puts, closes_late, relays_into_nothing, relays_what_is_closed),
    *(connects_in_vain, is_cancelled_in_a_shield, receives_part_of_a_frame),
    pytest.param(
        feeds_an_ffmpeg_that_fails,
        marks=pytest.mark.skipif(not shutil.which("ffmpeg"), reason="needs FFmpeg"),
    ),
    pytest.param(writes_what_cannot_be_read, marks=linux_only),
]


FAILURES = (azc.StreamBroken, azc.StreamClosed, OSError, BufferError, TruncatedFrame)


async def called(action: Callable[[], Awaitable[None]]) -> weakref.ReferenceType[Local]:
    local = Local()
    try:
        await action()
    except (*FAILURES, asyncio.CancelledError):
        return weakref.ref(local)
    pytest.fail("the action did not fail")


@pytest.mark.anyio
@pytest.mark.every_loop
@pytest.mark.parametrize("action", ACTIONS)
async def test_nothing_is_kept(action: Callable[[], Awaitable[None]]) -> None:
    gc.collect()
    gc.disable()
    try:
        local = await called(action)
        await anyio.lowlevel.checkpoint()  # asyncio still has the future that woke us
        assert local() is None
    finally:
        gc.enable()
