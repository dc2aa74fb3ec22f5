"""Relays, step by step: their counts, where each byte is, and why they fail."""

import errno
import os
import sys
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

import anyio
import pytest
from answering import Answering
from interruption import hit_after_each_call
from limits import files_up_to
from links import Attempt, linux_only, meanwhile, until
from unread import SIZE

import aiozerocopy as azc
from aiozerocopy import ReceiveStream, SendStream, StreamBroken, StreamClosed
from aiozerocopy._core import relaying
from aiozerocopy._core.binding import PORTABLE, ffi, lib
from aiozerocopy._core.relaying import Relay, open_source
from aiozerocopy.relays import open_sink

pytestmark = pytest.mark.anyio


class Ends:
    """Two pipes, and a relay from the first into the second."""

    def __init__(self) -> None:
        self.source: ReceiveStream
        self.feeder: SendStream
        self.source, self.feeder = azc.pipe()
        self.reader, self.sink = azc.pipe()

    def relay(self, nbytes: int | None = None) -> Relay:
        return azc.relay(self.source, self.sink, nbytes)

    def is_idle(self) -> bool:
        """Tell whether nothing is left of the relay, except prepared operations."""
        assert self.sink._waiter is not None
        operations = self.sink._waiter.port.operations.values()
        ready = all(it.views == [None] for it in operations)
        return ready and self.source._reception is None


async def call(relay: Awaitable[int]) -> int:
    return await relay


async def never(*_: object) -> int:
    raise AssertionError


@pytest.fixture
async def ends() -> AsyncIterator[Ends]:
    made = Ends()
    yield made
    for stream in (made.sink, made.reader, made.feeder, made.source):
        stream.abort()


# ---- its counts ----------------------------------------------------------------------


class TestTells:
    async def test_meanwhile_and_afterwards(self, ends: Ends) -> None:
        lane = "copy" if PORTABLE else "splice"
        relay, attempt = ends.relay(6), Attempt()
        assert (relay.moved, relay.taken, relay.lane) == (0, 0, "copy")
        async with meanwhile(attempt.run, call, relay):
            await ends.feeder.send(b"1234")
            assert await ends.reader.receive() == b"1234"
            assert relay.lane == lane
            await until(lambda: relay.moved == relay.taken == 4)
            number = relay._number[0]
            await ends.feeder.send(b"56789")
        assert attempt.result == 6
        assert (relay.moved, relay.taken, relay.lane) == (6, 6, lane)
        assert relay._number[0] == 0
        state = ffi.new("azc_relay_state *")
        await until(lambda: lib.azc_relay_ask(number, state) < 0)  # it was freed
        assert await ends.source.receive() == b"789"

    def test_one_that_is_lost(self, monkeypatch: pytest.MonkeyPatch) -> None:
        freed: list[int] = []

        def free(number: int) -> int:
            freed.append(number)
            return 0

        monkeypatch.setattr(Relay.__del__, "__defaults__", (free,))
        Relay.__new__(Relay).__del__()  # no __init__
        Relay(never).__del__()  # not begun
        assert not freed
        relay = Relay(never)
        relay._number[0] = number = (1 << 20) - 1  # in use by no relay
        del relay
        assert freed == [number]


# ---- bytes that were received before -------------------------------------------------


class TestUnread:
    async def test_what_did_not_get_out_stays(self, ends: Ends) -> None:
        ends.source._unread = data = os.urandom(2 * SIZE)
        relay, attempt = ends.relay(len(data)), Attempt()
        async with meanwhile(attempt.run, call, relay):
            await ends.reader.receive_exactly(bytearray(1000))
            ends.reader.abort()
        assert isinstance(attempt.error, StreamBroken)
        moved = attempt.error.bytes_sent
        assert 1000 <= moved == relay.moved == relay.taken < len(data)
        assert ends.source._unread == data[moved:]
        assert ends.is_idle()


# ---- why it cannot begin -----------------------------------------------------------


class TestRefused:
    @pytest.mark.parametrize("unread", [b"", b"abcdef"])
    async def test_somebody_else_receives(self, ends: Ends, unread: bytes) -> None:
        ends.source._unread, ends.source._reception = unread, ends
        with pytest.raises(anyio.BusyResourceError, match="reading"):
            await ends.relay(3)
        assert ends.source._reception is ends
        assert ends.source._unread == unread

    @pytest.mark.parametrize(
        ("code", "why"),
        [
            (errno.EAGAIN, "no thread can start"),
            (errno.EMFILE, os.strerror(errno.EMFILE)),
            (errno.ENOMEM, os.strerror(errno.ENOMEM)),
            (errno.EINVAL, os.strerror(errno.EINVAL)),
        ],
    )
    async def test_it_cannot_begin(
        self, ends: Ends, code: int, why: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The streams stay usable."""
        with monkeypatch.context() as patched:
            patched.setattr(relaying, "lib", Answering("azc_relay_open", -code))
            with pytest.raises(
                OSError, match=f"the relay cannot begin: {why}"
            ) as caught:
                await ends.relay()
        assert not isinstance(caught.value, StreamBroken)
        assert caught.value.errno == code
        assert ends.is_idle()
        await ends.feeder.send(b"x")
        assert await ends.relay(1) == 1

    async def test_a_forked_child(
        self, ends: Ends, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        answering = Answering("azc_relay_open", -errno.ECHILD)
        monkeypatch.setattr(relaying, "lib", answering)
        with pytest.raises(StreamClosed, match="forked child"):
            await ends.relay()

    async def test_the_sink_was_broken(self, ends: Ends) -> None:
        ends.reader.abort()
        with pytest.raises(StreamBroken):
            await ends.sink.send(b"x")
        text = "the sink broke: the reader is gone, after 0 bytes were relayed"
        with pytest.raises(StreamBroken, match=text):
            await ends.relay()
        ends.source._unread = b"abc"
        with pytest.raises(StreamBroken):
            await ends.relay(2)
        assert ends.source._unread == b"abc"
        assert ends.is_idle()

    async def test_the_source_was_broken(self, ends: Ends) -> None:
        """The peer's close resets the connection, as it had unread data."""
        ends.source.abort()
        ends.source, peer = azc.socketpair()
        await ends.source.send(b"which nobody reads")
        peer.abort()
        with pytest.raises(StreamBroken):
            await ends.source.receive()
        text = "the source broke: the peer reset .*, after 0 bytes were relayed"
        with pytest.raises(StreamBroken, match=text):
            await ends.relay()
        assert ends.is_idle()


# ---- why it fails ------------------------------------------------------------------


class TestFails:
    async def test_the_sink_is_asked_why(
        self, ends: Ends, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A child's stdin can tell how the child ended."""
        explained: list[Exception] = []

        async def explain(_: SendStream, error: StreamBroken) -> StreamBroken:
            explained.append(error)
            return error

        monkeypatch.setattr(SendStream, "_explain", explain)
        relay, attempt = ends.relay(), Attempt()
        async with meanwhile(attempt.run, call, relay):
            await ends.feeder.send(b"1234")
            await until(lambda: relay.moved == 4)
            ends.reader.abort()
        text = "the sink broke: the reader is gone, after 4 bytes were relayed"
        assert (str(attempt.error), explained) == (text, [attempt.error])
        assert (relay.moved, relay.taken) == (4, 4)
        assert ends.is_idle()


# ---- files -------------------------------------------------------------------------


DATA = os.urandom(20_000)


@pytest.fixture
def film(tmp_path: Path) -> Path:
    path = tmp_path / "film"
    path.write_bytes(DATA)
    return path


class TestFile:
    @pytest.mark.parametrize("offset", [None, 0, 4])
    @pytest.mark.parametrize("kind", ["path", "text", "bytes", "open", "number"])
    async def test_of_every_kind(
        self, film: Path, kind: str, offset: int | None
    ) -> None:
        """Without an offset, an open file is read from its position, which moves."""
        with film.open("rb", buffering=0) as opened:
            opened.seek(2)
            files: dict[str, Any] = {"path": film, "text": str(film), "open": opened}
            files |= {"bytes": os.fsencode(film), "number": opened.fileno()}
            source = open_source(files[kind], offset)
            begin = 2 if offset is None and kind in ("open", "number") else offset or 0
            assert await source.receive() == DATA[begin:]
            await relaying.close_source(source)
            moves = offset is None and kind in ("open", "number")
            assert opened.tell() == (len(DATA) if moves else 2)
        assert source.fileno() == -1

    def test_a_fifo_that_nobody_writes_to(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "fifo")
        source = open_source(tmp_path / "fifo")
        assert not os.get_blocking(source.fileno())
        source.abort()

    @linux_only
    @pytest.mark.filterwarnings("ignore:unclosed")
    @pytest.mark.parametrize("to", ["sink", "source"])
    @pytest.mark.parametrize("kind", ["path", "number"])
    async def test_an_interruption_leaves_no_fd(
        self, film: Path, kind: str, to: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
        source, feeder = azc.pipe()
        with film.open("r+b") as opened:
            file = film if kind == "path" else opened.fileno()

            async def call() -> None:
                if to == "sink":
                    open_sink(file, source).abort()
                else:
                    open_source(file, 4).abort()
                    open_source(file).abort()

            rooms = ("relays", "opening", "_core.relaying", "_core.channel")
            async with source, feeder:
                await hit_after_each_call(call, *rooms)

    @pytest.mark.parametrize("kind", ["file", "pipe"])
    async def test_what_was_read_too_much(
        self, kind: str, film: Path, tmp_path: Path
    ) -> None:
        """A file's position is behind the relayed bytes; a pipe has lost the rest."""
        read_fd, write_fd = os.pipe()
        os.write(write_fd, DATA)
        os.close(write_fd)
        with film.open("rb") as opened, (tmp_path / "copy").open("ab") as copy:
            file = read_fd if kind == "pipe" else opened
            with files_up_to(10_000), pytest.raises(StreamBroken) as caught:
                await azc.relay(file, copy)
            assert caught.value.bytes_sent == 10_000
            assert opened.tell() == (0 if kind == "pipe" else 10_000)
        os.close(read_fd)
