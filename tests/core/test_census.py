"""What the census tells of a stream or a ring that is just then being closed."""

import errno
import fcntl
import os
import socket
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from answering import Answering

import aiozerocopy as azc
from aiozerocopy._core import census
from aiozerocopy._core.binding import PORTABLE

NOW = 10**13  # (a machine that has just begun to run has no such past)


def counted(count: int, asked: list[int]) -> Callable[[Any, int], int]:
    """A census that finds so many, each a second older than the one before."""

    def store(entries: Any, most: int) -> int:
        asked.append(most)
        for i in range(min(count, most)):
            entries[i].id = i + 1
            entries[i].since = NOW - i * 10**9
        return count

    return store


@pytest.mark.parametrize(
    ("count", "asked"),
    [(0, [256]), (3, [256]), (256, [256]), (257, [256, 514]), (1000, [256, 2000])],
)
def test_all_are_found(
    count: int, asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(census, "lib", Answering("azc_now", NOW))
    rooms: list[int] = []
    found = census._all(counted(count, rooms), lambda id_, age: {"id": id_, "age": age})
    assert rooms == asked
    assert found == [{"id": i + 1, "age": i} for i in range(count)]


def of_a_stream(fd: int, status: int) -> dict[str, Any]:
    return {"azc_fd": fd, "azc_get_stats": status}


def of_a_ring(fd: int, status: int) -> dict[str, Any]:
    def store(_id: int, stats: Any) -> int:
        stats.bell, stats.socket = fd, -1
        return status

    return {"azc_shm_get_stats": store}


KINDS = [
    (census._stream, of_a_stream),
    pytest.param(
        *(census._ring, of_a_ring),
        marks=pytest.mark.skipif(PORTABLE, reason="the portable build has no rings"),
    ),
]


@pytest.mark.parametrize(("tell", "answers"), KINDS)
@pytest.mark.parametrize(
    ("fd", "status", "is_told"), [(-1, 0, False), (0, -1, False), (0, 0, True)]
)
def test_one_that_is_closed_meanwhile(
    tell: Callable[[int, float], dict[str, Any] | None],
    answers: Callable[[int, int], dict[str, Any]],
    fd: int,
    status: int,
    is_told: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lib = Answering("azc_now", NOW, **answers(fd, status))
    monkeypatch.setattr(census, "lib", lib)
    told = tell(5, 1.5)
    assert (told is not None) is is_told
    if told is not None:
        assert (told["id"], told["fd"], told["age"]) == (5, 0, 1.5)
        assert (told["error"], told["direction"]) == ("", "in")
        if told["lane"] == "ring":
            assert [told[name] for name in census.NOW] == [0, 0, 0]
            assert told["peer_pid"] == 0


class TestStream:
    def test_its_error_has_a_name(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def store(_id: int, stats: Any) -> int:
            stats.error = -errno.EPIPE
            return 0

        answers = Answering("azc_fd", 0, azc_get_stats=store)
        monkeypatch.setattr(census, "lib", answers)
        told = census._stream(5, 1.5)
        assert told is not None
        assert told["error"] == "EPIPE"

    def test_how_full_a_pipe_is(self) -> None:
        read_fd, write_fd = os.pipe()
        os.write(write_fd, b"abc")
        told = census._fill(read_fd)
        assert told == {"unread": 3, "capacity": 16 * os.sysconf("SC_PAGE_SIZE")}
        for fd in (read_fd, write_fd):
            os.close(fd)
        assert census._fill(read_fd) == {}

    def test_of_which_nothing_can_be_told(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: object) -> bytes:
            raise OSError(errno.EBADF, "closed")

        monkeypatch.setattr(fcntl, "ioctl", refuse)
        monkeypatch.setattr(census, "capacity_of", lambda _: 1)
        assert census._fill(0) == {}


@pytest.mark.skipif(PORTABLE, reason="the portable build has no rings")
class TestRing:
    @pytest.mark.parametrize(
        ("fault", "left", "gone", "ending"),
        [
            (0, 0, 0, ""),
            (0, 0, 1, "died"),
            (0, 1, 1, "closed"),
            (0, 1, 0, "closed"),
            (1, 1, 1, "EPROTO"),
        ],
    )
    def test_how_it_ended(self, fault: int, left: int, gone: int, ending: str) -> None:
        stats = SimpleNamespace(fault=fault, left=left, gone=gone)
        assert census._ending(stats) == ending


class TestPeer:
    def test_a_time_limit_for_all_sockets_is_not_set_for_this(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            with monkeypatch.context() as patched:
                patched.setattr(socket, "getdefaulttimeout", lambda: 0.0)
                assert census._peer(ours.fileno()) == 0
            assert ours.gettimeout() is None

    def test_of_what_is_none(self) -> None:
        with open(os.devnull) as file:
            assert census._peer(file.fileno()) == 0
            assert os.fstat(file.fileno())
        assert census._peer(-1) == 0

    def test_of_a_socket_without_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Nobody(socket.socket):
            def getsockopt(self, *_: Any) -> Any:
                raise OSError(errno.ENOPROTOOPT, "not here")

        ours, theirs = socket.socketpair()
        with ours, theirs:
            with monkeypatch.context() as patched:
                patched.setattr(socket, "socket", Nobody)
                assert census._peer(ours.fileno()) == 0
            assert os.fstat(ours.fileno())


def test_what_is_open_is_told() -> None:
    before = {one["id"] for one in census.streams()}
    receiver, sender = azc.pipe()
    told = {one["fd"]: one for one in census.streams() if one["id"] not in before}
    assert told[sender.fileno()]["direction"] == "out"
    assert told[receiver.fileno()]["direction"] == "in"
    assert told[sender.fileno()]["error"] == ""
    receiver.abort()
    sender.abort()
