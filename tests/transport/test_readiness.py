"""How a transport learns that there is data to read, or that its socket has ended.

uvloop stops watching a socket at its first error, so an epoll of ours waits for errors.
"""

import asyncio
import os
import socket
import sys
from collections.abc import Callable
from typing import Any

import pytest
from links import others_wait, until
from oracle import payload
from transports import Echo, End, Recorder, both_loops, opened

from aiozerocopy.transport import readiness, reading

pytestmark = pytest.mark.anyio

MUCH = 1 << 20

# Linux's numbers, which the socket module lacks.
SO_TIMESTAMPING, SOFTWARE_TX = 37, 1 << 1 | 1 << 4


class Ears:
    """Counts the reports of our epoll."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.heard = 0
        hear: Any = readiness._Guarded._hear

        def count(of: Any) -> None:
            self.heard += 1
            hear(of)

        monkeypatch.setattr(readiness._Guarded, "_hear", count)


@pytest.fixture
def ears(monkeypatch: pytest.MonkeyPatch) -> Ears:
    return Ears(monkeypatch)


def has(end: End, data: bytes) -> Callable[[], bool]:
    return lambda: bool(end.protocol.data == data)


@both_loops
async def test_what_comes_takes_no_turn_more(ears: Ears) -> None:
    async with opened(tcp=True) as end:
        for number in range(1, 20):
            end.peer.send(b"x" * 1000)
            await until(has(end, b"x" * 1000 * number))
        end.peer.shutdown(socket.SHUT_WR)
        await until(lambda: "eof" in end.protocol.events)
        assert ears.heard == 0


async def test_a_read_asks_while_there_is_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each turn has one read, whose size rises from 1000 to 3000, and falls again."""
    monkeypatch.setattr(reading, "MESSAGE", 1000)
    monkeypatch.setattr(reading, "BULK", 3000)
    async with opened(Recorder) as end:
        end.transport._size = 1000
        for sent, told in ((5000, 1000), (0, 4000), (0, 5000), (0, 5000), (2000, 7000)):
            end.peer.send(b"x" * sent)
            end.transport._readable()
            assert len(end.protocol.data) == told
        assert end.transport._size == 3000
        end.peer.send(b"x" * 999)
        end.transport._readable()
        assert end.transport._size == 1000


async def test_the_functions_that_one_echo_calls() -> None:
    """One read, and one call into C.  No attribute is in a dictionary, where Python
    would have to search for it."""
    called: list[str] = []

    def note(frame: Any, event: str, builtin: Any) -> None:
        if "aiozerocopy" in frame.f_code.co_filename and event.endswith("call"):
            called.append(getattr(builtin, "__name__", frame.f_code.co_name))

    async with opened(Echo) as end:
        for _ in range(2):  # the first write prepares an operation
            end.peer.send(b"x" * 1000)
            called.clear()
            sys.setprofile(note)
            end.transport._readable()
            sys.setprofile(None)
        ours = [name for name in called if name not in ("len", "setprofile")]
        assert ours == ["_readable", "read", "write", "send_at_once"]
        assert vars(end.transport) == {}


@both_loops
async def test_much_and_then_a_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    """All data that the kernel has kept arrives, then the end."""
    monkeypatch.setattr(reading, "BULK", size := 8192)
    async with opened(tcp=True) as end:
        end.transport._size = size
        data = bytes(payload(1, MUCH))
        sent = end.peer.send(data)
        assert sent > size  # so it takes several reads
        end.reset()
        assert isinstance(await end.protocol.lost, ConnectionResetError)
        assert len(end.protocol.data) > size
        assert data[:sent].startswith(end.protocol.data)


@pytest.mark.parametrize("something", [b"", b"last"])
async def test_reset_while_it_is_paused(something: bytes, ears: Ears) -> None:
    async with opened(tcp=True) as end:
        end.transport.pause_reading()
        end.peer.send(something)
        end.reset()
        await others_wait()
        await others_wait()
        assert end.protocol.events == ["made"]
        assert ears.heard <= 2  # then the loop sleeps
        end.transport.resume_reading()
        assert isinstance(await end.protocol.lost, ConnectionResetError)
        assert end.protocol.data == something


@both_loops
async def test_nothing_turns_after_the_end_of_what_comes(ears: Ears) -> None:
    """The peer has gone, and the protocol keeps its own side open."""
    async with opened(lambda: Recorder(keep_open=True)) as end:
        end.peer.close()
        await until(lambda: "eof" in end.protocol.events)
        heard = ears.heard
        await others_wait()
        assert ears.heard <= heard + 1
        assert not end.transport.is_closing()


async def test_an_error_that_passes() -> None:
    """A socket that reports times of sends has them as an error until they are read."""
    async with opened(tcp=True) as end:
        sock = end.transport.get_extra_info("socket")._sock
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPING, SOFTWARE_TX)
        end.transport.write(b"x")
        await others_wait()
        sock.recvmsg(1000, 1000, socket.MSG_ERRQUEUE)
        end.transport.write(b"x")
        await others_wait()
        end.peer.send(b"during")
        await until(lambda: end.protocol.data == b"during")
        sock.recvmsg(1000, 1000, socket.MSG_ERRQUEUE)
        end.peer.send(b" and after")
        await until(lambda: end.protocol.data == b"during and after")


@both_loops
async def test_numbers_that_are_used_again() -> None:
    for _ in range(5):
        async with opened(tcp=True) as end:
            number = end.transport._fd
            end.peer.send(b"last")
            end.reset()
            assert isinstance(await end.protocol.lost, ConnectionResetError)
        async with opened(tcp=True) as end:
            assert abs(end.transport._fd - number) <= 2
            end.peer.send(b"first")
            await until(has(end, b"first"))


async def test_two_numbers_of_one_connection() -> None:
    """A closed transport gets no reports, although another fd keeps its socket open."""
    async with opened(tcp=True) as end:
        with socket.socket(fileno=os.dup(end.transport._fd)):
            end.transport.abort()
            await end.protocol.lost
            async with opened(tcp=True) as other:
                end.reset()
                await others_wait()
                assert other.protocol.events == ["made"]
                other.peer.send(b"x")
                await until(lambda: other.protocol.data == b"x")


async def test_loop_refuses_others_the_fd_of_a_transport(end: End) -> None:
    """As asyncio does for its own transports: a second reader would replace ours."""
    loop = asyncio.get_running_loop()
    handle = end.transport.get_extra_info("socket")
    for fd in (end.transport._fd, handle.fileno()):
        for call in (loop.add_reader, loop.add_writer):
            with pytest.raises(RuntimeError, match="is used by transport"):
                call(fd, print)
        for undo in (loop.remove_reader, loop.remove_writer):
            with pytest.raises(RuntimeError, match="is used by transport"):
                undo(fd)
    end.peer.send(b"hello")
    await until(has(end, b"hello"))
