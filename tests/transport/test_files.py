"""aiozerocopy.transport: sending files."""

import asyncio
import errno
import io
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from links import BIG, linux_only, others_wait, until
from oracle import payload
from transports import End, HeldFile, Recorder, both_loops, opened

from aiozerocopy import transport as azt
from aiozerocopy.transport import files

pytestmark = pytest.mark.anyio


FILM = bytes(payload(4, BIG))


@pytest.fixture
def film(tmp_path: Path) -> Path:
    path = tmp_path / "film"
    path.write_bytes(FILM)
    return path


@both_loops
async def test_sendfile_in_order_with_writes(end: End, film: Path) -> None:
    end.transport.write(bytes(BIG))
    with film.open("rb") as file:
        sending = asyncio.ensure_future(azt.sendfile(end.transport, file))
        await asyncio.sleep(0)
        end.transport.write(b"behind")
        data = await end.read(2 * BIG + 6)
        assert await sending == BIG
        assert file.tell() == BIG
    assert data == bytes(BIG) + FILM + b"behind"


@both_loops
async def test_a_cancelled_sendfile_completes_first(end: End, film: Path) -> None:
    with film.open("rb") as file:
        sending = asyncio.ensure_future(azt.sendfile(end.transport, file))
        await until(lambda: end.transport._stream.stats.bytes_sent)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
    end.transport.close()
    assert await end.read(BIG) == FILM


@both_loops
@pytest.mark.parametrize("is_closing", [False, True])
@pytest.mark.parametrize("is_paused", [False, True])
async def test_a_reset_that_a_file_has_met(
    is_paused: bool, is_closing: bool, film: Path
) -> None:
    os.truncate(film, 64 * BIG)  # more than a connection holds
    async with opened(tcp=True) as end:
        if is_paused:
            end.transport.pause_reading()
        with film.open("rb") as file:
            sending = asyncio.ensure_future(azt.sendfile(end.transport, file))
            await until(lambda: end.transport._stream.stats.bytes_sent)
            if is_closing:
                end.transport.close()
            end.peer.send(b"last")
            end.reset()
            lost = await end.protocol.lost
            assert isinstance(lost, (ConnectionResetError, BrokenPipeError))
            for each in (sending, end.transport.drained()):
                with pytest.raises(type(lost)):
                    await each
        if not (is_paused or is_closing):
            assert end.protocol.data == b"last"


@both_loops
async def test_an_abort_ends_a_file(end: End, film: Path) -> None:
    with film.open("rb") as file:
        sending = asyncio.ensure_future(azt.sendfile(end.transport, file))
        await until(lambda: end.transport._stream.stats.bytes_sent)
        end.transport.abort()
        with pytest.raises(ConnectionAbortedError, match="before all was out"):
            await sending
    assert await end.protocol.lost is None


@linux_only
async def test_a_file_that_fails_does_not_end_the_connection(end: End) -> None:
    with open("/proc/self/mem", "rb", buffering=0) as file:  # noqa: ASYNC230
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            await azt.sendfile(end.transport, file)
    end.transport.write(b"still well")
    assert await end.read(10) == b"still well"


async def test_sendfile_of_memory(end: End) -> None:
    data = bytes(payload(2, BIG))
    reading = asyncio.ensure_future(end.read(BIG - 10))
    with pytest.raises(asyncio.SendfileNotAvailableError):
        await azt.sendfile(end.transport, io.BytesIO(data), fallback=False)
    assert await azt.sendfile(end.transport, io.BytesIO(data), 10) == BIG - 10
    assert await reading == data[10:]


@both_loops
async def test_nothing_gets_between_the_pieces_of_a_file(end: End, film: Path) -> None:
    held = HeldFile(FILM)
    with film.open("rb") as file:
        every: list[Any] = [held, io.BytesIO(FILM[::-1]), io.BytesIO(b"never"), file]
        sending = [
            asyncio.ensure_future(azt.sendfile(end.transport, it)) for it in every
        ]
        await others_wait()
        for write in (end.transport.write, lambda it: end.transport.writelines([it])):
            with pytest.raises(RuntimeError, match="a file is being sent in pieces"):
                write(b"between")
        end.transport.write_eof()
        sending[2].cancel()
        held.go.set()
        assert await end.read_all() == FILM + FILM[::-1] + FILM
        assert await sending[0] == await sending[1] == await sending[3] == BIG
    with pytest.raises(RuntimeError, match="after write_eof"):
        await azt.sendfile(end.transport, io.BytesIO(b"late"))


@both_loops
@pytest.mark.parametrize("call", ["close", "abort"])
async def test_the_transport_is_closed_between_the_pieces(end: End, call: str) -> None:
    held = HeldFile(FILM)
    sending = asyncio.ensure_future(azt.sendfile(end.transport, held))
    await others_wait()
    getattr(end.transport, call)()
    held.go.set()
    if call == "close":
        assert await end.read_all() == FILM
        assert await sending == BIG
    else:
        end.transport.write(b"too late, but no error")
        with pytest.raises(ConnectionAbortedError, match="before all was out"):
            await sending
    assert await end.protocol.lost is None


async def test_writes_after_a_file_that_was_sent_in_pieces(end: End) -> None:
    for file in (io.BytesIO(b"1"), HeldFile(b"never")):
        sending = asyncio.ensure_future(azt.sendfile(end.transport, file))
        if isinstance(file, HeldFile):
            await others_wait()
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
            file.go.set()
        else:
            assert await sending == 1
        end.transport.write(b"2")
        end.transport.writelines([b"3", b"4"])
    assert await end.read(7) == b"1234234"


class Reads:
    def __init__(self, data: bytes) -> None:
        self.read = io.BytesIO(data).read


class ReadsInto:
    def __init__(self, data: bytes) -> None:
        self.readinto = io.BytesIO(data).readinto


@pytest.mark.parametrize("count", [None, 9])
@pytest.mark.parametrize("kind", [Reads, ReadsInto])
async def test_files_that_can_only_be_read(
    end: End, kind: type[Any], count: int | None
) -> None:
    reading = asyncio.ensure_future(end.read(count or BIG))
    assert await azt.sendfile(end.transport, kind(FILM), 0, count) == (count or BIG)
    assert await reading == FILM[:count]
    with pytest.raises(AttributeError, match="seek"):
        await azt.sendfile(end.transport, kind(FILM), 1)


@linux_only
@pytest.mark.parametrize("count", [None, 3])
@pytest.mark.parametrize("kind", ["pipe", "/proc"])
async def test_files_that_the_kernel_refuses(
    end: End, kind: str, count: int | None
) -> None:
    """A pipe has no offset, and nobody can seek to the end of this file of /proc."""
    number = os.open("/proc/self/limits", os.O_RDONLY)
    content = os.pread(number, BIG, 0)
    if kind == "pipe":
        os.close(number)
        number, writing = os.pipe()
        os.write(writing, content)
        os.close(writing)
    with os.fdopen(number, "rb") as file:
        with pytest.raises(asyncio.SendfileNotAvailableError):
            await azt.sendfile(end.transport, file, fallback=False)
        content = content[:count]
        assert await azt.sendfile(end.transport, file, 0, count) == len(content)
    assert await end.read(len(content)) == content


@both_loops
async def test_where_a_file_of_memory_is_if_the_peer_leaves(
    end: End, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "PIECE", 1000)
    file = io.BytesIO(bytes(BIG))
    sending = asyncio.ensure_future(azt.sendfile(end.transport, file))
    await until(lambda: end.transport._stream.stats.bytes_queued)
    end.peer.close()
    with pytest.raises(ConnectionError):
        await sending
    sent = end.transport._stream.stats.bytes_sent
    assert sent - 1000 <= file.tell() <= sent


async def test_sendfile_refuses(end: End, film: Path) -> None:
    with film.open() as text, pytest.raises(ValueError, match="binary"):
        await azt.sendfile(end.transport, text)  # type: ignore[arg-type]
    with film.open("rb") as file:
        send: Any = azt.sendfile
        for numbers in ((-1, None), (0, 0)):
            with pytest.raises(ValueError, match="must be at least"):
                await send(end.transport, file, *numbers)
        for wrong in ((1.5, None), (0, "all")):
            with pytest.raises(TypeError):
                await send(end.transport, file, *wrong)
        end.transport.close()
        with pytest.raises(RuntimeError, match="closing"):
            await azt.sendfile(end.transport, file)


async def test_sendfile_through_another_transport(film: Path) -> None:
    loop = asyncio.get_running_loop()
    if not isinstance(loop, asyncio.BaseEventLoop):
        pytest.skip("uvloop has no sendfile")
    one, other = socket.socketpair()
    transport, _ = await loop.create_connection(Recorder, sock=one)
    other.setblocking(False)
    with other, film.open("rb") as file:
        sending = asyncio.ensure_future(azt.sendfile(transport, file, count=1000))
        received = await loop.sock_recv(other, 2000)
        assert received == FILM[: len(received)]
        assert await sending == 1000
        transport.close()
        await until(transport.is_closing)
        await asyncio.sleep(0)
