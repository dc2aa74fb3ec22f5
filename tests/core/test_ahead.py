"""Receives that begin before a task waits for them, and whose data C converts."""

import errno
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from answering import Answering
from gates import Gate
from links import Link, attempting, cancelled_at, open_link, open_unread, others_wait
from oracle import payload

import aiozerocopy as azc
from aiozerocopy import (
    IncompleteReceive,
    ReceiveStream,
    SendStream,
    StreamBroken,
    StreamClosed,
)
from aiozerocopy._core import channel
from aiozerocopy._core.ahead import Ahead, Coming
from aiozerocopy._core.borrows import borrowed
from aiozerocopy.frames import Conversion

pytestmark = pytest.mark.anyio

SIZE = 400_000
SMALL = Conversion("rgb24", "yuv420p", (64, 48))
PLANES = bytes(payload(12, SMALL.yuv_bytes))
LARGE = Conversion("bgra", "nv12", (320, 200))
Picture = tuple[bytearray, bytearray]  # planes as received, and pixels


@pytest.fixture(params=["pipe", "unix", "file"])
def source(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[Link, bytes]]:
    data = bytes(payload(11, SIZE))
    with open_unread(request.param, tmp_path, data) as link:
        yield link, data


class Pictures(Ahead[Picture]):
    def __init__(self, stream: ReceiveStream, conversion: Conversion = SMALL) -> None:
        super().__init__(stream)
        self._conversion = conversion

    def begin_some(self, most: int = 3) -> None:
        while len(self) < most:
            planes = bytearray(self._conversion.yuv_bytes)
            pixels = bytearray(self._conversion.rgb_bytes)
            then = self._conversion.then_rgb(planes, pixels)
            self.begin(planes, then, (planes, pixels))

    async def next(self) -> bytearray:
        self.begin_some()
        planes, pixels = await self.take()
        expected = bytearray(len(pixels))
        self._conversion.to_rgb(planes, expected)
        assert pixels == expected
        for memory in (planes, pixels):
            memory.append(0)  # nothing else uses the memory
        return planes[:-1]

    async def rest(self) -> bytearray:
        """Return all data to the end, which comes in the middle of a picture."""
        received = bytearray()
        with pytest.raises(IncompleteReceive) as caught:
            while True:
                received += await self.next()
        begun, _ = next(iter(self))
        assert 0 < caught.value.received < caught.value.total == len(begun)
        return received + begun[: caught.value.received]


@pytest.mark.parametrize("conversion", [SMALL, LARGE], ids=["small", "large"])
async def test_all_and_the_end(
    source: tuple[Link, bytes], conversion: Conversion
) -> None:
    link, data = source
    async with link.receiver() as stream:
        pictures = Pictures(stream, conversion)
        assert await pictures.rest() == data
        assert len(pictures.clear()) == 3
        with pytest.raises(anyio.EndOfStream):
            await pictures.next()


@pytest.mark.every_loop
async def test_cancel_at_every_await_loses_nothing(source: tuple[Link, bytes]) -> None:
    link, data = source
    received = bytearray()
    async with link.receiver() as stream:
        pictures = Pictures(stream, LARGE)
        for n in (1, 2, 3, 4, 1, 1):
            cancelled, planes = await cancelled_at(pictures.next(), n)
            if not cancelled:
                received += planes
        received += await pictures.rest()
    assert received == data


@pytest.mark.parametrize("n", [1, SMALL.yuv_bytes, 2 * SMALL.yuv_bytes + 5])
async def test_what_came_before_comes_first(source: tuple[Link, bytes], n: int) -> None:
    link, data = source
    async with link.receiver() as stream:
        begun = bytearray(n)
        await stream.receive_exactly(begun)
        stream._unread = bytes(begun)
        pictures = Pictures(stream)
        assert await pictures.rest() == data


async def test_all_come_without_anybody_who_waits(source: tuple[Link, bytes]) -> None:
    link, data = source
    async with link.receiver() as stream:
        pictures = Pictures(stream)
        pictures.begin_some(5)
        await anyio.lowlevel.checkpoint()
        received = b"".join([(await pictures.take())[0] for _ in range(5)])
        with pytest.raises(anyio.BusyResourceError):
            await stream.receive()
        with pytest.raises(anyio.BusyResourceError):
            Pictures(stream)
        assert received + await pictures.rest() == data


# ---- when it goes wrong --------------------------------------------------------------


@pytest.fixture
async def empty() -> AsyncIterator[tuple[Pictures, SendStream]]:
    """An empty pipe, and its sending end."""
    async with azc.pipe() as (reader, writer):
        pictures = Pictures(reader)
        yield pictures, writer
    pictures.clear()


def known_to(stream: ReceiveStream) -> list[object]:
    """Return the receives in progress that its loop knows."""
    operations = stream._enter().port.operations.values()
    return [one for one in operations if isinstance(one, Coming)]


async def test_memory_that_cannot_be_used(empty: tuple[Pictures, SendStream]) -> None:
    pictures, writer = empty
    planes, pixels = bytearray(SMALL.yuv_bytes), bytearray(SMALL.rgb_bytes)
    then = SMALL.then_rgb(planes, pixels)
    with pytest.raises(BufferError, match="read-only") as caught:
        pictures.begin(bytes(SMALL.yuv_bytes), then, (planes, pixels))
    assert caught.value.__traceback__  # its frames keep no memory
    assert len(pictures) == 0
    planes.append(0)
    pixels.append(0)
    await writer.send(PLANES)
    assert await pictures.next() == PLANES


async def test_refused(
    empty: tuple[Pictures, SendStream], monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures, writer = empty
    pictures.begin_some(1)
    with monkeypatch.context() as patch:
        patch.setattr(channel, "lib", Answering("azc_recv_then", -errno.EIO))
        with pytest.raises(StreamBroken) as caught:
            pictures.begin_some(2)
    assert (caught.value.errno, caught.value.total) == (errno.EIO, SMALL.yuv_bytes)
    assert len(pictures) == 1
    await writer.send(PLANES)
    assert await pictures.next() == PLANES


async def test_nothing_of_what_was_there_already_is_left(
    empty: tuple[Pictures, SendStream],
) -> None:
    pictures, _ = empty
    stream = pictures._stream
    stream._unread = PLANES + PLANES[:5]
    pictures.begin_some(1)
    assert not known_to(stream)
    assert stream._unread == PLANES[:5]
    planes, _ = await pictures.take()
    assert planes == PLANES


@pytest.mark.every_loop
@pytest.mark.parametrize("given_up", [True, False])
async def test_ended_while_somebody_waits(
    given_up: bool, empty: tuple[Pictures, SendStream]
) -> None:
    pictures, writer = empty
    pictures.begin_some(1)
    async with attempting(pictures.take) as taking:
        await others_wait()
        if given_up:
            pictures.clear()
            await writer.send(PLANES)
        else:
            await pictures._stream.aclose()
    assert isinstance(taking.error, StreamClosed)


@pytest.mark.parametrize("end", ["cancel", "close"])
async def test_memory_stays_borrowed_until_all_is_done(
    source: tuple[Link, bytes], end: str
) -> None:
    """A cancelled receive or a closed stream keeps the memory until C has ended."""
    link, data = source
    memory, gate = bytearray(len(data)), Gate()
    stream = link.receiver()
    ahead: Ahead[None] = Ahead(stream)
    ahead.begin(memory, gate.before(), None)
    await gate.until_begun()
    one, waiter = ahead._coming[0], stream._enter()
    try:
        if end == "cancel":
            assert not stream._in.take_back(waiter.port, one)
        else:
            stream.abort()
        with pytest.raises(BufferError):
            memory.append(0)
        assert not one.done
    finally:
        gate.open()
    await waiter.wait(one)
    assert (one.status, one.sent) == (0, len(memory))
    ahead.clear()
    memory.append(0)
    await stream.aclose()


def test_what_c_has_outlives_all_that_knows_of_it(tmp_path: Path) -> None:
    """C keeps the memory of a receive, even when its loop has been closed."""
    with open_link("pipe", tmp_path) as link:
        stream = link.receiver()

        async def begin() -> tuple[int, Any]:
            planes, pixels = bytearray(SMALL.yuv_bytes), bytearray(SMALL.rgb_bytes)
            then = SMALL.then_rgb(planes, pixels)
            ahead = Ahead[None](stream)
            ahead.begin(planes, then, None)
            return ahead._coming[0].token, then.argument

        token, job = anyio.run(begin)
        assert any(view is job for view in borrowed[token])
        stream.abort()


def test_sizes_are_checked() -> None:
    with pytest.raises(ValueError, match="4,608 bytes, not 4,607"):
        SMALL.then_rgb(bytearray(SMALL.yuv_bytes - 1), bytearray(SMALL.rgb_bytes))
    with pytest.raises(ValueError, match="9,216 bytes, not 9,215"):
        SMALL.then_rgb(bytearray(SMALL.yuv_bytes), bytearray(SMALL.rgb_bytes - 1))
