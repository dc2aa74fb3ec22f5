"""The streams with trio's interfaces, checked by trio's own test functions."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import sys
import types
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest
import scripts
from interruption import Interruption, Lines
from links import BIG
from oracle import message

import aiozerocopy as azc

np = pytest.importorskip("numpy")  # (it starts threads, so import it first)
trio = pytest.importorskip("trio")
trio_testing = pytest.importorskip("trio.testing")

pytestmark = pytest.mark.anyio


if TYPE_CHECKING:
    Pair = tuple[Any, Any]
    Maker = Callable[[], Awaitable[Pair]]


@pytest.fixture
def anyio_backend() -> str:
    return "trio"


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_guest_of_asyncio() -> None:
    """Our calls find asyncio's loop there, so those that wait end with trio's error."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()

    async def main() -> None:
        reader, writer = azc.pipe()
        await writer.send(b"one")
        assert await reader.receive() == b"one"
        with pytest.raises(TypeError, match="asyncio"):
            await reader.receive()
        reader.abort()
        writer.abort()

    trio.lowlevel.start_guest_run(
        main,
        run_sync_soon_threadsafe=loop.call_soon_threadsafe,
        done_callback=done.set_result,
    )
    (await done).unwrap()


# ---- trio's own checks ------------------------------------------------------------


async def pipe() -> Pair:
    reader, writer = azc.pipe()
    return azc.as_trio(writer), azc.as_trio(reader)


async def sockets() -> Pair:
    ours, theirs = azc.socketpair()
    return azc.as_trio(ours), azc.as_trio(theirs)


def fill(fd: int) -> None:
    """Write until not one more byte fits."""
    for size in (1 << 16, 1):
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(fd, bytes(size))


def clogged(make: Maker) -> Maker:
    """Make streams like these, whose buffers are full in every direction."""

    async def make_clogged() -> Pair:
        pair = await make()
        for each in pair:
            if isinstance(each, trio.abc.SendStream):
                fill(each.fileno())
        return pair

    return make_clogged


async def test_check_one_way_stream() -> None:
    await trio_testing.check_one_way_stream(pipe, clogged(pipe))


async def test_check_half_closeable_stream() -> None:
    await trio_testing.check_half_closeable_stream(sockets, clogged(sockets))


# ---- what trio's checks leave out ---------------------------------------------------


async def test_ssl_stream(tls: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    data = bytes(message(1, 0, BIG))
    received = bytearray()

    async def serve(stream: Any) -> None:
        server = trio.SSLStream(stream, tls[0], server_side=True)
        async with server:
            async for piece in server:
                received.extend(piece)
                if len(received) == len(data):
                    await server.send_all(b"all of it")

    ours, theirs = await sockets()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve, theirs)
        client = trio.SSLStream(ours, tls[1], server_hostname="localhost")
        async with client:
            await client.send_all(data)
            assert await client.receive_some() == b"all of it"
    assert received == data


async def test_room_in_a_regular_file(tmp_path: Path) -> None:
    async with azc.as_trio(azc.open_writer((tmp_path / "f").open("wb"))) as sender:
        with trio_testing.assert_checkpoints():
            await sender.wait_send_all_might_not_block()
        await sender.send_all(b"x")
    assert (tmp_path / "f").read_bytes() == b"x"


@pytest.mark.parametrize("end", ["aclose", "abort"])
async def test_who_waits_for_the_fd_is_told(end: str) -> None:
    ours, theirs = azc.socketpair()

    async def wait(wait_for: Callable[[int], Awaitable[object]]) -> None:
        with pytest.raises(trio.ClosedResourceError):
            await wait_for(ours.fileno())

    fill(azc.as_trio(ours).fileno())
    async with theirs, trio.open_nursery() as nursery:
        nursery.start_soon(wait, trio.lowlevel.wait_readable)
        nursery.start_soon(wait, trio.lowlevel.wait_writable)
        await trio_testing.wait_all_tasks_blocked()
        if end == "aclose":
            await ours.aclose()
        else:
            ours.abort()


def test_a_stream_ends_while_trio_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = types.ModuleType("trio.lowlevel")
    monkeypatch.setitem(sys.modules, "trio.lowlevel", begun)
    for stream in azc.pipe():
        stream.abort()
        assert stream.fileno() == -1


async def test_errors_keep_their_cause() -> None:
    sender, receiver = await pipe()
    async with sender:
        await receiver.aclose()
        with pytest.raises(trio.BrokenResourceError, match="0 of 1 bytes") as told:
            await sender.send_all(b"x")
        assert isinstance(told.value.__cause__, azc.StreamBroken)
        assert isinstance(told.value.__cause__.__cause__, BrokenPipeError)
    with pytest.raises(trio.ClosedResourceError, match="is closed"):
        await sender.send_all(b"x")


async def test_the_stream_itself_refuses_a_second_sender_too() -> None:
    sender, receiver = await sockets()
    async with receiver, trio.open_nursery() as nursery:
        nursery.start_soon(sender.send_all, message(1, 0, BIG))
        await trio_testing.wait_all_tasks_blocked()
        with pytest.raises(trio.BusyResourceError, match="already writing to"):
            await sender.send_all(b"x")
        with pytest.raises(anyio.BusyResourceError, match="already writing to"):
            await sender._sender.send(b"x")
        nursery.cancel_scope.cancel()
    with trio.move_on_after(0):
        await sender.aclose()


def test_what_is_no_stream() -> None:
    with socket.socket() as sock, pytest.raises(TypeError, match="not 'socket'"):
        azc.as_trio(sock)  # type: ignore[call-overload]


def test_without_trio_it_says_what_to_install(tmp_path: Path) -> None:
    code = "import sys; sys.modules['trio'] = None; import aiozerocopy as azc"
    done = scripts.ran([sys.executable, "-c", f"{code}; azc.as_trio"], cwd=tmp_path)
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ModuleNotFoundError: aiozerocopy.as_trio needs trio: pip")


# ---- a signal's exception ------------------------------------------------------------

# (without calls in trio's own tasks, which no signal's exception reaches)
ROOMS = ("trio_streams", "streams", *(f"_core.{n}" for n in ("sending", "receiving")))


async def use_and_be_hit(lines: Lines) -> None:
    """Whichever line is interrupted, the stream stays usable and can be closed."""
    ours, theirs = await sockets()
    sent = received = b""

    async def use() -> None:
        nonlocal sent, received
        await ours.wait_send_all_might_not_block()
        await ours.send_all(b"before")
        sent = b"before"
        received += await theirs.receive_some()
        await ours.send_eof()
        await ours.aclose()

    with contextlib.suppress(Interruption), lines:
        await use()
    with trio.fail_after(5):
        with contextlib.suppress(trio.ClosedResourceError):
            await ours.wait_send_all_might_not_block()
            await ours.send_all(b"after")
        await ours.aclose()
        async for piece in theirs:
            received += piece
        await theirs.aclose()
    assert ours.fileno() == theirs.fileno() == -1
    assert received in (b"", b"before", b"beforeafter", b"after")
    assert received.startswith(sent)


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
def test_an_exception_at_any_line() -> None:
    lines = Lines(rooms=ROOMS, withs=True)
    trio.run(use_and_be_hit, lines)
    assert len(lines.seen) > 50
    for place in lines.seen:
        trio.run(use_and_be_hit, Lines(place, ROOMS, withs=True))
