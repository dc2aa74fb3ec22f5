"""Open files over Unix sockets: they stay in order, and none is lost or left open.

(conftest.py looks for fds that are left after each test.)
"""

import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
import scripts
from anyio.abc import SocketAttribute, SocketStream, UNIXSocketStream
from inventory import held
from links import (
    BIG,
    attempt,
    begun,
    cut_short,
    linux_only,
    meanwhile,
    open_link,
    others_wait,
    receives,
    refusing,
    submitted,
)
from oracle import message

import aiozerocopy as azc
from aiozerocopy._core import fds as core_fds
from aiozerocopy._core import receiving

pytestmark = pytest.mark.anyio


@pytest.fixture
def files(tmp_path: Path) -> Iterator[list[Any]]:
    """Three open files."""
    opened = [(tmp_path / name).open("w+b", buffering=0) for name in "abc"]
    yield opened
    for file in opened:
        file.close()


def identities(fds: list[int]) -> list[tuple[int, int]]:
    """Return device and inode of each file, and close the fds."""
    found = [(os.fstat(fd).st_dev, os.fstat(fd).st_ino) for fd in fds]
    for fd in fds:
        os.close(fd)
    return found


def same(fds: list[int], files: list[Any]) -> bool:
    """Tell whether the fds are these files, and close the fds."""
    assert not any(map(os.get_inheritable, fds))
    return identities(fds) == identities([os.dup(file.fileno()) for file in files])


async def read_all(
    stream: azc.UnixStream, size: int
) -> tuple[bytearray, list[tuple[int, list[int]]]]:
    """Read size bytes; also return each list of fds, and where its bytes end."""
    received, came = bytearray(), []
    while len(received) < size:
        piece, fds = await stream.receive_fds(size - len(received), 3)
        received += piece
        if fds:
            came.append((len(received), fds))
    return received, came


async def test_files_come_with_their_message(files: list[Any]) -> None:
    async with azc.socketpair() as (ours, theirs):
        await ours.send_fds(b"three", [files[0], files[1].fileno(), files[2]])
        got, fds = await theirs.receive_fds(100, 3)
        assert got == b"three"
        assert same(fds, files)
        await ours.send(b"none")
        assert await theirs.receive_fds(100, 3) == (b"none", [])


async def test_order_with_all_that_is_sent(files: list[Any]) -> None:
    """A recvmsg ends behind the bytes of its fds, which shows their place."""
    data = message(1, 0, BIG)
    async with azc.socketpair() as (ours, theirs), anyio.create_task_group() as tasks:
        await ours.put(data)
        await begun(ours)
        sent = b"".join([data, b"first", b"middle", b"second", b"end"])
        tasks.start_soon(ours.send_fds, b"first", files[:2])
        await submitted(ours, 2)
        tasks.start_soon(ours.send, b"middle")
        await submitted(ours, 3)
        tasks.start_soon(ours.send_fds, b"second", files[2:])
        await submitted(ours, 4)
        tasks.start_soon(ours.send, b"end")
        await submitted(ours, 5)
        for file in files:
            file.close()  # the queue has duplicates
        received, came = await read_all(theirs, len(sent))
    assert received == sent
    ends = [end for end, _ in came]
    assert ends == [len(data) + 5, len(data) + 5 + 6 + 6]
    assert [len(identities(fds)) for _, fds in came] == [2, 1]


async def test_behind_a_flush(files: list[Any]) -> None:
    """An empty message in the queue does not take the fds."""
    async with azc.socketpair() as (ours, theirs), anyio.create_task_group() as tasks:
        await ours.put(message(1, 0, BIG))
        await begun(ours)
        tasks.start_soon(ours.flush)
        await submitted(ours, 2)
        tasks.start_soon(ours.send_fds, b"x", files)
        await submitted(ours, 3)
        received, came = await read_all(theirs, len(message(1, 0, BIG)) + 1)
    assert [end for end, _ in came] == [len(received)]
    assert same(came[0][1], files)


# ---- cancelled, closed, broken ---------------------------------------------------


@pytest.mark.every_loop
async def test_cancelled_before_it_began_sends_neither(files: list[Any]) -> None:
    data = message(1, 0, BIG)
    async with azc.socketpair() as (ours, theirs):
        await ours.put(data)
        await begun(ours)
        async with cut_short(ours.send_fds, b"never", files):
            await submitted(ours, 2)
        async with meanwhile(ours.send, b"next"):
            received, came = await read_all(theirs, len(data) + 4)
    assert received == bytes(data) + b"next"
    assert came == []


@pytest.mark.every_loop
async def test_cancelled_later_sends_both(files: list[Any]) -> None:
    data = message(1, 0, BIG)
    async with azc.socketpair() as (ours, theirs):
        async with cut_short(ours.send_fds, data, files):
            await begun(ours)
        sent = bytes(data)
        data.clear()
        received, came = await read_all(theirs, len(sent))
    assert received == sent
    assert same(came[0][1], files)


async def cancel_once_they_have_come(
    ours: azc.UnixStream, theirs: azc.UnixStream, files: list[Any]
) -> None:
    """Cancel a receive_fds when C has its bytes and fds, unknown to its task."""
    async with cut_short(theirs.receive_fds, 100, 3):
        await others_wait()
        assert receives(theirs)
        with socket.socket(fileno=os.dup(ours.fileno())) as sock:
            socket.send_fds(sock, [b"kept"], [file.fileno() for file in files])
        while not theirs._in.stats().bytes:
            pass  # the task has no turn meanwhile


@pytest.mark.every_loop
async def test_cancelled_receive_loses_nothing(files: list[Any]) -> None:
    async with azc.socketpair() as (ours, theirs):
        await cancel_once_they_have_come(ours, theirs, files)
        await ours.send_fds(b"later", files[:1])
        got, fds = await theirs.receive_fds(2, 3)
        assert got == b"ke"
        assert same(fds, files)
        assert await theirs.receive_fds(100, 3) == (b"pt", [])
        got, fds = await theirs.receive_fds(100, 3)
        assert got == b"later"
        assert same(fds, files[:1])


async def test_interrupted_as_it_begins_nothing_stays_borrowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The signal comes before a variable refers to the new receive."""

    class Lost(receiving.Reception):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            raise KeyboardInterrupt

    async with azc.socketpair() as (_, theirs):
        monkeypatch.setattr(receiving, "Reception", Lost)
        with pytest.raises(KeyboardInterrupt):
            await theirs.receive_fds(100, 1)
        assert held() == []


async def test_kept_fds_end_with_the_stream(files: list[Any]) -> None:
    async with azc.socketpair() as (ours, theirs):
        await cancel_once_they_have_come(ours, theirs, files)


async def test_kept_fds_whose_bytes_went_elsewhere_are_closed(files: list[Any]) -> None:
    async with azc.socketpair() as (ours, theirs):
        await cancel_once_they_have_come(ours, theirs, files)
        assert await theirs.receive() == b"kept"
        await ours.send(b"without")
        assert await theirs.receive_fds(100, 3) == (b"without", [])


async def test_more_fds_than_are_expected(files: list[Any]) -> None:
    async with azc.socketpair() as (ours, theirs):
        await ours.send_fds(b"three", files)
        with pytest.raises(OSError, match="than maxfds=2") as caught:
            await theirs.receive_fds(100, 2)
        assert caught.value.errno == errno.EMSGSIZE
        assert await theirs.receive_fds(100, 2) == (b"three", [])
        await ours.send_fds(b"one", files[:1])
        got, fds = await theirs.receive_fds(100, 2)
        assert got == b"one"
        assert same(fds, files[:1])


@linux_only
async def test_credentials_are_no_fds(files: list[Any]) -> None:
    async with azc.socketpair() as (ours, theirs):
        sock = theirs.extra(SocketAttribute.raw_socket)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        await ours.send_fds(b"one", files[:1])
        got, fds = await theirs.receive_fds(100, 1)
        assert got == b"one"
        assert same(fds, files[:1])
        await ours.send(b"none")
        assert await theirs.receive_fds(100, 1) == (b"none", [])


@linux_only
@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_a_message_whose_files_the_kernel_refuses(loop: str) -> None:
    """The stream goes on.  (strace injects the error, as root has no such limit.)"""
    code = """
    async def main():
        async with azc.socketpair() as (ours, theirs):
            for _ in range(2):
                try:
                    await ours.send_fds(b"never", [0])
                except OSError as error:
                    print(error.strerror)
            await ours.send(b"as before")
            print((await theirs.receive()).decode())

    run(main)
    """
    process = scripts.start(code, loop, under=refusing("sendmsg:error=ETOOMANYREFS"))
    status, said, complained = scripts.finish(process)
    assert (status, complained) == (0, "")
    assert said.splitlines() == [
        "too many fds are in flight; nothing was sent",
        "too many fds are in flight; nothing was sent",
        "as before",
    ]


async def test_receive_drops_fds(files: list[Any]) -> None:
    async with azc.socketpair() as (ours, theirs):
        await ours.send_fds(b"dropped", files)
        assert await theirs.receive() == b"dropped"


@pytest.mark.every_loop
@pytest.mark.parametrize("end", ["abort", "peer"])
async def test_end_while_fds_are_queued(end: str, files: list[Any]) -> None:
    ours, theirs = azc.socketpair()
    async with anyio.create_task_group() as tasks:
        await ours.put(message(1, 0, BIG))
        await begun(ours)
        sending = attempt(tasks, ours.send_fds, b"never", files)
        await submitted(ours, 2)
        (ours if end == "abort" else theirs).abort()
    if end == "abort":
        assert isinstance(sending.error, azc.StreamClosed)
    else:
        assert isinstance(sending.error, azc.StreamBroken)
        assert "0 of 5 bytes" in str(sending.error)
    ours.abort()
    theirs.abort()


# ---- what is refused ----------------------------------------------------------------


async def test_what_cannot_be_sent(files: list[Any]) -> None:
    async with azc.socketpair() as (ours, theirs):
        with pytest.raises(ValueError, match="message must not be empty"):
            await ours.send_fds(b"", files)
        with pytest.raises(ValueError, match="fds must not be empty"):
            await ours.send_fds(b"x", [])
        with pytest.raises(ValueError, match="at most 253 fds"):
            await ours.send_fds(b"x", files * 85)
        with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
            await ours.send_fds(b"x", [files[0].fileno(), 1 << 30])
        with pytest.raises(TypeError, match="bytes-like"):
            await ours.send_fds("text", files)  # type: ignore[arg-type]
        await ours.send(b"as before")
        assert await theirs.receive() == b"as before"


async def test_as_many_as_the_kernel_takes(files: list[Any]) -> None:
    async with azc.socketpair() as (ours, theirs):
        await ours.send_fds(b"x", files[:1] * core_fds.MOST_FDS)
        got, fds = await theirs.receive_fds(100, core_fds.MOST_FDS)
        assert got == b"x"
        assert len(set(identities(fds))) == 1
        assert len(fds) == core_fds.MOST_FDS


@pytest.mark.parametrize(
    ("msglen", "maxfds", "wrong"),
    [(-1, 1, "msglen"), ("x", 1, "msglen"), (1, 0, "maxfds"), (1, "x", "maxfds")],
)
async def test_what_cannot_be_expected(msglen: Any, maxfds: Any, wrong: str) -> None:
    async with azc.socketpair() as (ours, _):
        with pytest.raises(ValueError, match=f"{wrong} must be a"):
            await ours.receive_fds(msglen, maxfds)
        with pytest.raises(ValueError, match="maxfds must be 253 at most"):
            await ours.receive_fds(1, 254)


async def test_which_streams_have_it(tmp_path: Path) -> None:
    async with azc.socketpair() as (ours, theirs):
        assert isinstance(ours, UNIXSocketStream)
        assert isinstance(theirs, SocketStream)
    with open_link("tcp4", tmp_path) as link:
        async with azc.wrap_socket(link.take_write_fd()) as stream:
            assert isinstance(stream, SocketStream)
            assert not isinstance(stream, UNIXSocketStream)
            assert not hasattr(stream, "send_fds")
