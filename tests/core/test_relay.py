"""Relays: every byte is in the sink or still in the source, and in order."""

import contextlib
import gzip
import io
import os
import re
import signal
import socket
import ssl
import termios
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import loans
import pytest
import scripts
from anyio.abc import ByteReceiveStream, ByteSendStream
from inventory import TASKS, thread_ids
from limits import files_up_to
from links import (
    Attempt,
    cut_short,
    everything,
    linux_only,
    meanwhile,
    open_link,
    open_unread,
    others_wait,
    reading,
    receives,
    tls_over,
    unread,
    until,
)
from oracle import assert_prefix, assert_same, payload

import aiozerocopy as azc
from aiozerocopy import ReceiveStream, Relay, SendStream, relays
from aiozerocopy._core.binding import PORTABLE

pytestmark = pytest.mark.anyio

DATA = bytes(payload(1, 4 << 20))
SPLICES = pytest.mark.skipif(PORTABLE, reason="the portable build copies")


async def _call(relay: Relay) -> int:
    return await relay


# ---- from every kind of stream to every other ----------------------------------------

FROM = ("pipe", "adopted", "fifo", "file", "pty", "unix", "tcp4")
TO = ("pipe", "adopted", "fifo", "file", "pty", "unix", "tcp4", "cat")


@pytest.mark.parametrize(
    ("source", "to"),
    [
        *((source, "pipe") for source in FROM),
        *(("pipe", to) for to in TO[1:]),
        *((kind, kind) for kind in FROM[1:]),
        *[("file", "tcp4"), ("tcp4", "file"), ("unix", "cat"), ("file", "pty")],
    ],
)
async def test_every_byte_of_every_link(source: str, to: str, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("in", "out")]
    for folder in folders:
        folder.mkdir()
    data = DATA[: 300_000 if "pty" in (source, to) else None]
    got = bytearray()
    with open_unread(source, folders[0], data) as left:
        with open_link(to, folders[1]) as right:
            async with reading(right, got.extend), left.receiver() as first:
                async with right.sender() as second:
                    relay = azc.relay(first, second, len(data))
                    assert await relay == len(data)
                    assert (relay.moved, relay.taken) == (len(data), len(data))
                    await second.send(b"after")
    assert_same(got, data + b"after")


@SPLICES
@pytest.mark.parametrize(
    ("source", "to", "lane"),
    [
        ("file", "tcp4", "sendfile"),
        ("file", "file", "sendfile"),
        ("file", "pipe", "splice"),
        ("pipe", "tcp4", "splice"),
        ("pipe", "pipe", "splice"),
        ("adopted", "fifo", "splice"),
        ("tcp4", "pipe", "splice"),
        ("pty", "pipe", "copy"),
        ("tcp4", "tcp4", "copy"),  # these block: see `Link`
    ],
)
async def test_the_kernel_moves_what_it_can(
    source: str, to: str, lane: str, tmp_path: Path
) -> None:
    folders = [tmp_path / name for name in ("in", "out")]
    for folder in folders:
        folder.mkdir()
    with open_link(source, folders[0]) as left, open_link(to, folders[1]) as right:
        for link in (left, right):
            if "tcp4" in (source, to) and source != to:
                for fd in (link._read_fd, link._write_fd):
                    os.set_blocking(fd, False)
        os.write(left._write_fd, b"some bytes")
        async with left.receiver() as first, right.sender() as second:
            relay = azc.relay(first, second, 10)
            assert await relay == 10
            assert relay.lane == lane


@SPLICES
async def test_from_socket_to_socket_through_a_pipe() -> None:
    async with azc.socketpair() as (a, b), azc.socketpair() as (c, d):
        relay = azc.relay(b, c, 3)
        await a.send(b"123456")
        assert await relay == 3
        assert relay.lane == "splice through a pipe"
        assert await d.receive() == b"123"
        assert await b.receive() == b"456"


@pytest.mark.every_loop
async def test_echo() -> None:
    """A socket may be source and sink, as its two directions are independent."""
    async with azc.socketpair() as (one, other), anyio.create_task_group() as tasks:
        tasks.start_soon(_call, azc.relay(other, other))
        received = bytearray(len(DATA))
        tasks.start_soon(one.send, DATA)
        await one.receive_exactly(received)
        assert_same(received, DATA)
        await one.send_eof()


# ---- files -------------------------------------------------------------------------


@pytest.fixture
def film(tmp_path: Path) -> Path:
    path = tmp_path / "film"
    path.write_bytes(DATA)
    return path


async def sent_to_pipe(relay_to: Any) -> tuple[bytes, int]:
    """Relay to a pipe; return the bytes that arrive, and the count of the relay."""
    reader, writer = azc.pipe()
    got = Attempt()
    async with reader, meanwhile(got.run, everything, reader):
        async with writer:
            moved = await relay_to(writer)
    return got.result, moved


@pytest.mark.parametrize("as_path", [True, False])
async def test_a_part_of_a_file(film: Path, as_path: bool) -> None:
    with film.open("rb") as opened:
        file: Any = film if as_path else opened
        got, moved = await sent_to_pipe(lambda to: to.send_file(file, 1000, 5000))
        assert (got, moved) == (DATA[1000:6000], 5000)
        assert as_path or opened.tell() == 0  # (an offset leaves the position alone)


async def test_an_open_file_from_where_it_stands(film: Path) -> None:
    with film.open("rb", buffering=0) as opened:
        opened.seek(7)
        got, _ = await sent_to_pipe(lambda to: to.send_file(opened, nbytes=20))
        assert got == DATA[7:27]
        assert opened.tell() == 27


@pytest.mark.parametrize("mode", ["rb", "r+b"])
@pytest.mark.parametrize("way", ["send_file", "relay"])
async def test_what_a_file_has_read_ahead_comes_again(
    way: str, mode: str, film: Path
) -> None:
    with film.open(mode) as opened:
        assert opened.read(7) == DATA[:7]

        async def move(to: SendStream) -> int:
            if way == "send_file":
                return await to.send_file(opened, nbytes=20)
            return await azc.relay(opened, to, 20)

        got, _ = await sent_to_pipe(move)
        assert got == DATA[7:27]
        assert opened.read(20) == DATA[27:47]


@pytest.mark.parametrize("mode", ["wb", "w"])
async def test_what_a_file_has_buffered_goes_first(
    mode: str, tmp_path: Path, film: Path
) -> None:
    with (tmp_path / "copy").open(mode) as to:
        to.write("first" if mode == "w" else b"first")
        await azc.relay(film, to, 20)
        to.write("last" if mode == "w" else b"last")
    assert (tmp_path / "copy").read_bytes() == b"first" + DATA[:20] + b"last"


@pytest.mark.parametrize(("offset", "nbytes"), [(0, 0), (5 << 20, None), (4 << 20, 9)])
async def test_nothing_to_send(film: Path, offset: int, nbytes: int | None) -> None:
    got, moved = await sent_to_pipe(lambda to: to.send_file(film, offset, nbytes))
    assert (got, moved) == (b"", 0)


async def test_more_than_there_is(film: Path) -> None:
    got, moved = await sent_to_pipe(
        lambda to: azc.relay(film, to, len(DATA) + 5, offset=1)
    )
    assert moved == len(DATA) - 1
    assert_same(got, DATA[1:])


@pytest.mark.parametrize("appends", [True, False])
async def test_into_a_file(appends: bool, tmp_path: Path, film: Path) -> None:
    """The file is truncated, unless it was opened to append."""
    copy = tmp_path / "copy"
    copy.write_bytes(b"x" * (5 << 20))
    with copy.open("ab") as opened:
        assert await azc.relay(film, opened if appends else copy) == len(DATA)
    assert_same(copy.read_bytes(), b"x" * (5 << 20) * appends + DATA)


async def test_refused(tmp_path: Path, film: Path) -> None:
    async with azc.pipe() as (reader, writer):
        calls: list[Any] = [writer.send_file, partial(azc.relay, sink=writer)]
        with pytest.raises(IsADirectoryError):
            await azc.relay(tmp_path, writer)
        with pytest.raises(IsADirectoryError):
            await azc.relay(film, tmp_path)
        with pytest.raises(FileNotFoundError):
            await azc.relay(tmp_path / "none", writer)
        (tmp_path / "x").touch()
        with (tmp_path / "x").open("rb") as reads:
            with pytest.raises(OSError, match="reading only"):
                await azc.relay(film, reads)
        with (tmp_path / "x").open("wb") as writes:
            for call in calls:
                with pytest.raises(OSError, match="writing only"):
                    await call(writes)
        with socket.socket(type=socket.SOCK_DGRAM) as datagrams:
            with pytest.raises(io.UnsupportedOperation, match="SOCK_DGRAM"):
                await azc.relay(datagrams, writer)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            with pytest.raises(io.UnsupportedOperation, match="listening"):
                await azc.relay(listener, writer)
        with film.open() as text, pytest.raises(TypeError, match="binary mode"):
            await azc.relay(text, writer)
        with gzip.open(tmp_path / "x", "wb") as packed:
            with pytest.raises(TypeError, match="changes the bytes"):
                await azc.relay(film, packed)
        for call in calls:
            for part in ("nbytes", "offset"):
                says = f"{part} must be at least 0, not -1"
                with film.open("rb") as opened:
                    opened.seek(10)
                    with pytest.raises(ValueError, match=says):
                        await call(opened, **{part: -1})
                    assert opened.tell() == 10
        with pytest.raises(ValueError, match="only a file has an offset"):
            azc.relay(reader, writer, offset=2)
        with pytest.raises(ValueError, match="onto itself"):
            await azc.relay(reader, writer)
        await writer.send(b"as before")
        assert await reader.receive() == b"as before"


async def test_a_socket_that_both_sides_have_ended_still_has_its_bytes() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with socket.create_connection(listener.getsockname()) as sock:
            peer = listener.accept()[0]
            peer.sendall(b"the answer")
            sock.shutdown(socket.SHUT_WR)
            peer.close()
            with contextlib.suppress(OSError):
                while sock.getpeername():
                    pass
            async with azc.pipe() as (reader, writer):
                assert await azc.relay(sock, writer) == 10
                assert await reader.receive() == b"the answer"


async def test_a_relay_is_awaited_once(film: Path, tmp_path: Path) -> None:
    relay = azc.relay(film, tmp_path / "copy")
    assert (relay.moved, relay.taken) == (0, 0)
    await relay
    with pytest.raises(RuntimeError, match="only once"):
        await relay


@linux_only
@pytest.mark.parametrize("kind", ["pipe", "unix"])
async def test_a_full_disk(kind: str, tmp_path: Path) -> None:
    """Bytes that are not on the disk stay in the source."""
    source, feeder = ends(kind)
    async with source, feeder, meanwhile(_send_and_close, feeder):
        with files_up_to(1 << 20), pytest.raises(azc.StreamBroken) as caught:
            await azc.relay(source, tmp_path / "copy")
        rest = await everything(source)
    written = (tmp_path / "copy").read_bytes()
    assert caught.value.bytes_sent == len(written) == 1 << 20
    assert_same(written + rest, DATA)


@linux_only
@pytest.mark.parametrize("mode", ["wb", "ab"])  # appending is copied
async def test_a_full_disk_and_a_file(tmp_path: Path, film: Path, mode: str) -> None:
    """The source's position is behind the bytes that were relayed."""
    with film.open("rb", buffering=0) as opened, (tmp_path / "copy").open(mode) as to:
        with files_up_to(1 << 20), pytest.raises(azc.StreamBroken) as caught:
            await azc.relay(opened, to)
        assert opened.tell() == caught.value.bytes_sent == 1 << 20


async def _send_and_close(stream: SendStream) -> None:
    await stream.send(DATA)
    if isinstance(stream, azc.Stream):
        await stream.send_eof()
    else:
        await stream.aclose()


# ---- in order ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["pipe", "unix"])
async def test_one_message_among_others(kind: str, film: Path, tmp_path: Path) -> None:
    got = bytearray()
    with open_link(kind, tmp_path) as link:
        async with reading(link, got.extend, start=False) as reader:
            async with link.sender() as writer, anyio.create_task_group() as tasks:
                first = await writer.put(DATA[:1_000_000])
                tasks.start_soon(_call, azc.relay(film, writer))
                await others_wait()
                last = await writer.put(b"last")
                assert not first.done()
                reader.start()
                await last
    assert_same(got, DATA[:1_000_000] + DATA + b"last")


@pytest.mark.every_loop
async def test_a_message_from_a_thread_waits_for_its_end() -> None:
    async with azc.pipe() as (reader, writer), azc.pipe() as (source, feeder):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_call, azc.relay(source, writer, 8))
            await feeder.send(b"1234")
            assert await reader.receive() == b"1234"
            tasks.start_soon(
                anyio.to_thread.run_sync, writer.send_from_thread, b"thread"
            )
            await until(lambda: writer.stats.messages_queued == 2)
            await feeder.send(b"5678")
            received = bytearray(10)
            await reader.receive_exactly(received)
    assert received == b"5678thread"


@pytest.mark.every_loop
async def test_in_pieces_others_may_send_in_between() -> None:
    async with azc.pipe() as (reader, writer), azc.pipe() as (source, feeder):
        async with meanwhile(_call, azc.relay(source, writer, pieces=True)):
            for letter in (b"a", b"b", b"c"):
                await feeder.send(letter)
                assert await reader.receive() == letter
                await writer.send(b"!")
                assert await reader.receive() == b"!"
            await feeder.aclose()


@pytest.mark.every_loop
@pytest.mark.parametrize("ended", ["source", "sink", "reader", "feeder"])
@pytest.mark.parametrize("moved", [0, 1])
async def test_in_pieces_until_one_is_closed(ended: str, moved: int) -> None:
    """The relay ends, and the next owner of an fd's number can be woken."""
    source, feeder = azc.pipe()
    reader, sink = azc.pipe()
    numbers = {source.fileno(), sink.fileno()}
    relay, relaying = azc.relay(source, sink, pieces=True), Attempt()
    async with source, feeder, reader, sink, meanwhile(relaying.run, _call, relay):
        if moved:
            await feeder.send(b"x")
            await reader.receive()
        await until(lambda: receives(source))
        await locals()[ended].aclose()
        # The relay notices at its next send.  (The pipe has a reader until a thread
        # has returned from poll.)
        while ended == "reader" and relaying.error is None:
            await feeder.send(b"x")
            await anyio.lowlevel.checkpoint()
    if ended == "feeder":
        assert relaying.error is None
    else:
        closed = azc.StreamBroken if ended == "reader" else azc.StreamClosed
        assert type(relaying.error) is closed
        assert relay.moved == moved or ended == "reader"
    one, other = azc.pipe()
    async with one, other, anyio.create_task_group() as tasks:
        assert {one.fileno(), other.fileno()} & numbers
        tasks.start_soon(Attempt().run, anyio.wait_readable, one.fileno())
        await others_wait()
        await other.send(b"x")


async def test_a_file_in_pieces(film: Path) -> None:
    got, moved = await sent_to_pipe(lambda to: azc.relay(film, to, pieces=True))
    assert moved == len(DATA)
    assert_same(got, DATA)


@pytest.mark.parametrize("kind", ["path", "link", "opened"])
async def test_a_file_onto_itself_stays_as_it_is(kind: str, film: Path) -> None:
    link = film.with_name("link")
    os.link(film, link)
    with open(film, "r+b") as opened:  # noqa: ASYNC230
        sinks: dict[str, Any] = {"path": film, "link": link, "opened": opened}
        with pytest.raises(ValueError, match="onto itself"):
            await azc.relay(film, sinks[kind])
        assert_same(opened.read(), DATA)


async def test_two_relays_from_one_source() -> None:
    async with azc.pipe() as (reader, writer), azc.pipe() as (source, feeder):
        async with meanwhile(_call, azc.relay(source, writer)):
            await until(lambda: source._in.stats().queued)
            with pytest.raises(anyio.BusyResourceError):
                await azc.relay(source, writer)
            with pytest.raises(anyio.BusyResourceError):
                await source.receive()
            await feeder.send(b"and on it goes")
            assert await reader.receive() == b"and on it goes"
            await feeder.aclose()


async def test_what_was_received_and_not_taken_goes_first() -> None:
    async with azc.pipe() as (reader, writer), azc.pipe() as (source, feeder):
        source._unread = b"before "
        await feeder.send(b"and after")
        assert await azc.relay(source, writer, 4) == 4
        assert await azc.relay(source, writer, 6) == 6
        assert await azc.relay(source, writer, 6) == 6
        received = bytearray(16)
        await reader.receive_exactly(received)
        assert received == b"before and after"


@SPLICES
@pytest.mark.parametrize("first", ["the lender", "the relay"])
@pytest.mark.parametrize(
    ("kind", "lane"), [("pipe", "splice"), ("socket", "splice through a pipe")]
)
async def test_pages_are_lent_or_spliced(kind: str, lane: str, first: str) -> None:
    """A splice of lent pages would show what the frame holds later."""
    pool = azc.FramePool((1 << 20,), slots=1)
    read_fd, write_fd = loans.ends(kind)
    os.set_blocking(read_fd, False)
    os.write(write_fd, b"x")
    async with azc.open_reader(read_fd) as source, azc.socketpair() as (near, far):
        async with anyio.create_task_group() as tasks:
            relay = azc.relay(source, near, 1 + (1 << 20))
            if first == "the lender":
                feeder = azc.open_writer(write_fd, peer="reads")
            tasks.start_soon(_call, relay)
            await far.receive_exactly(bytearray(1))
            if first == "the relay":
                feeder = azc.open_writer(write_fd, peer="reads")
            frame = await pool.acquire()
            frame.view[:] = DATA[: 1 << 20]
            received = bytearray(1 << 20)
            tasks.start_soon(far.receive_exactly, received)
            await feeder.send(frame.view)
            frame.view[:] = bytes(1 << 20)
        assert_same(received, DATA[: 1 << 20])
        lanes = {"the lender": ("vmsplice", "copy"), "the relay": ("copy", lane)}
        assert (feeder.lane, relay.lane) == lanes[first]
        if first == "the relay":  # the relay is over, so the next writer lends again
            async with azc.open_writer(os.dup(feeder.fileno()), peer="reads") as other:
                async with meanwhile(source.receive_exactly, received):
                    await other.send(frame.view)
                assert other.lane == "vmsplice"
        await feeder.aclose()
        frame.release()


def blocked_signals(thread: int) -> int:
    status = (TASKS / str(thread) / "status").read_text()
    return int(re.findall(r"SigBlk:\s*(\w+)", status)[0], 16)


@linux_only
async def test_signals_do_not_reach_its_thread() -> None:
    """Python's own threads handle signals, which would interrupt our calls."""
    before, handled = thread_ids(), 0
    for number in (signal.SIGALRM, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE):
        handled |= 1 << number - 1
    async with azc.pipe() as (source, feed), azc.pipe() as (far, sink):
        async with meanwhile(_call, azc.relay(source, sink)):
            await feed.send(b"x")
            assert await far.receive() == b"x"
            new = thread_ids() - before
            assert len(new) >= 1
            assert {blocked_signals(thread) & handled for thread in new} == {handled}
            await feed.aclose()


# ---- when the relay is cancelled, or one end fails ----------------------------------


class Two:
    """A relay between two streams, in a scope that cancels it."""

    def __init__(self, source: ReceiveStream, sink: SendStream) -> None:
        self.relay = azc.relay(source, sink)
        self.scope = anyio.CancelScope()
        self.error: Exception | None = None

    async def run(self) -> None:
        with self.scope:
            try:
                await self.relay
            except azc.StreamBroken as error:
                self.error = error


PAIRS = [("pipe", "pipe"), ("pipe", "unix"), ("unix", "pipe"), ("unix", "unix")]


def ends(kind: str) -> tuple[Any, Any]:
    """Make a reader and a writer.

    (The pipe is small: a page takes one of its slots, whatever the size of the page.)
    """
    one, other = azc.pipe(16 << 10) if kind == "pipe" else azc.socketpair()
    return one, other


@pytest.mark.every_loop
@pytest.mark.parametrize(("kind", "to"), PAIRS)
async def test_cancelled_every_byte_is_out_or_the_sources(kind: str, to: str) -> None:
    source, feeder = ends(kind)
    reader, sink = ends(to)
    async with source, feeder, reader, sink, anyio.create_task_group() as tasks:
        tasks.start_soon(_send_and_close, feeder)
        two = Two(source, sink)
        tasks.start_soon(two.run)
        await until(lambda: two.relay.moved and _is_stuck(sink))
        two.scope.cancel()
        await until(lambda: not sink._out.stats().error and source._reception is None)
        taken = two.relay.taken
        assert two.relay.moved <= taken < len(DATA)
        out, rest = Attempt(), Attempt()
        tasks.start_soon(rest.run, everything, source)
        tasks.start_soon(out.run, _exactly, reader, taken)
        with anyio.fail_after(10):
            await until(lambda: out.done and rest.done)
        assert_same(out.result + rest.result, DATA)
        await sink.send(b"!")
        assert await reader.receive() == b"!"


@pytest.mark.every_loop
@pytest.mark.parametrize("kind", ["fifo", "pty", "translating"])
async def test_a_cancel_does_not_wait_for_a_stalled_reader(
    kind: str, tmp_path: Path
) -> None:
    """The calls on these fds block (on the FIFO because it is no splice)."""
    with open_link("fifo" if kind == "fifo" else "pty", tmp_path) as link:
        if kind == "translating":
            mode = termios.tcgetattr(link._write_fd)
            mode[1] |= termios.OPOST | termios.ONLCR
            termios.tcsetattr(link._write_fd, termios.TCSANOW, mode)
        async with azc.pipe() as (source, _), link.sender() as sink:
            source._unread = b"one line\n" * 50_000
            two = Two(source, sink)
            async with meanwhile(two.run):
                await until(lambda: two.relay.moved and _is_stuck(sink))
                two.scope.cancel()
            sink.abort()


@SPLICES
@pytest.mark.parametrize("side", ["source", "sink"])
async def test_a_socket_that_another_owner_makes_blocking(side: str) -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    near, far = azc.wrap_socket(ours.dup()), azc.wrap_socket(theirs)
    async with azc.pipe() as (reader, writer):
        feeder: SendStream = writer
        two = Two(reader, near)
        if side == "source":
            two, feeder = Two(near, writer), far
        async with meanwhile(two.run):
            await feeder.send(b"some")
            await until(lambda: two.relay.moved == 4)
            assert two.relay.lane == "splice"
            ours.setblocking(True)
            await feeder.put(DATA)
            await until(lambda: two.relay.lane == "copy")
            two.scope.cancel()
        for stream in (near, far, writer):
            stream.abort()
    ours.close()


async def test_a_cancel_does_not_wait_for_a_silent_device() -> None:
    try:
        device = os.open("/dev/kmsg", os.O_RDONLY)
    except OSError:
        pytest.skip("needs the kernel's messages")
    os.lseek(device, 0, os.SEEK_END)
    async with azc.open_reader(device) as source, azc.pipe() as (_, sink):
        two = Two(source, sink)
        async with meanwhile(two.run):
            await until(lambda: source._in.stats().waits)
            two.scope.cancel()


def _is_stuck(sink: SendStream) -> bool:
    return sink._out.stats().waits > 0


async def _exactly(stream: ReceiveStream, n: int) -> bytes:
    data = bytearray(n)
    await stream.receive_exactly(data)
    return bytes(data)


class Foreign(ByteSendStream):
    """A stream of another package; a stuck one takes nothing."""

    def __init__(self, *, is_stuck: bool = False) -> None:
        self.got = b""
        self._is_stuck = is_stuck

    async def send(self, item: bytes) -> None:
        if self._is_stuck:
            await anyio.sleep_forever()
        self.got += item

    async def aclose(self) -> None: ...


@pytest.mark.every_loop
@pytest.mark.parametrize("to", ["ours", "file", "foreign", "stuck"])
async def test_cancelled_as_bytes_come_from_an_fd_they_go_out(
    to: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were taken from the caller's pipe; a stuck sink is given up."""
    monkeypatch.setattr(relays, "LINGER", 0)
    foreign = Foreign(is_stuck=to == "stuck")
    read_fd, write_fd = os.pipe()
    async with azc.socketpair() as (sink, reader):
        sinks: dict[str, Any] = {"ours": sink, "file": tmp_path / "copy"}
        relay = azc.relay(read_fd, sinks.get(to, foreign), pieces=True)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_call, relay)
            await others_wait()
            os.write(write_fd, b"0123456789")
            while unread(read_fd) == 10:
                pass  # (the loop does not run: a thread takes the bytes)
            tasks.cancel_scope.cancel()
        os.close(write_fd)
        with open(read_fd, "rb") as file:  # noqa: ASYNC230
            left = file.read()
        got = b"" if to == "stuck" else b"0123456789".removesuffix(left)
        assert (relay.taken, relay.moved) == (10 - len(left), len(got))
        assert relay.taken > 0
        if to == "ours":
            assert await reader.receive() == got
        elif to == "file":
            assert (tmp_path / "copy").read_bytes() == got
        else:
            assert foreign.got == got


@pytest.mark.every_loop
async def test_cancelled_as_a_file_is_read_its_position_is_after_the_moved_bytes(
    film: Path,
) -> None:
    sink = Foreign()
    with film.open("rb", buffering=0) as opened:
        relay = azc.relay(opened, sink)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_call, relay)
            await until(opened.tell)
            tasks.cancel_scope.cancel()
        assert opened.tell() == relay.moved == relay.taken == len(sink.got)


@pytest.mark.every_loop
@pytest.mark.parametrize(("kind", "to"), PAIRS)
async def test_when_the_sinks_reader_leaves(kind: str, to: str) -> None:
    """Bytes that the sink's reader has not taken stay in the source."""
    source, feeder = ends(kind)
    reader, sink = ends(to)
    async with source, feeder, anyio.create_task_group() as tasks:
        tasks.start_soon(_send_and_close, feeder)
        two = Two(source, sink)
        tasks.start_soon(two.run)
        await until(lambda: two.relay.moved and _is_stuck(sink))
        await reader.aclose()
        await until(lambda: two.error)
        assert "the sink broke: the reader is gone" in str(two.error)
        moved = two.error.bytes_sent  # type: ignore[union-attr]
        assert (two.relay.moved, two.relay.taken) == (moved, moved)
        assert_same(await everything(source), DATA[moved:])
    sink.abort()


@pytest.mark.every_loop
async def test_the_reader_leaves_while_the_source_is_silent() -> None:
    async with azc.pipe() as (source, feeder):
        reader, sink = azc.pipe()
        two = Two(source, sink)
        async with meanwhile(two.run):
            await until(lambda: source._in.stats().waits)
            await reader.aclose()
            await until(lambda: two.error)
        await feeder.send(b"still mine")
        assert await source.receive() == b"still mine"
        sink.abort()


async def test_a_source_that_breaks_leaves_the_sink_well() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        peer = socket.create_connection(listener.getsockname())
        source = azc.wrap_socket(listener.accept()[0])
    async with source, azc.pipe() as (reader, sink):
        peer.sendall(b"some")
        two = Two(source, sink)
        async with meanwhile(two.run):
            assert await reader.receive() == b"some"
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            peer.close()
        assert "the source broke: the peer reset the connection" in str(two.error)
        assert "after 4 bytes were relayed" in str(two.error)
        await sink.send(b"goes on")
        assert await reader.receive() == b"goes on"


@pytest.mark.every_loop
@pytest.mark.parametrize("which", ["source", "sink"])
@pytest.mark.parametrize("how", ["abort", "aclose"])
@pytest.mark.parametrize("begins", [True, False])
async def test_closed_on_this_side(which: str, how: str, begins: bool) -> None:
    async with azc.pipe() as (reader, sink), azc.pipe() as (source, feeder):
        if not begins:
            await sink.put(DATA)  # the relay has to wait behind this
        attempt = Attempt()
        async with meanwhile(attempt.run, _call, azc.relay(source, sink)):
            if begins:
                await feeder.send(b"some")
                assert await reader.receive() == b"some"
            await until(lambda: source._in.stats().queued)
            closes = source if which == "source" else sink
            if how == "abort":
                closes.abort()
            elif which == "source":
                await source.aclose()
            else:
                with anyio.move_on_after(0):
                    await sink.aclose()
            await until(lambda: attempt.done or (not begins and which == "source"))
            if not begins and which == "source":
                received = bytearray(len(DATA))
                await reader.receive_exactly(received)
                await until(lambda: attempt.done)
        assert isinstance(attempt.error, azc.StreamClosed)
        if which == "source":
            assert "the source was closed" in str(attempt.error)
            await sink.send(b"goes on")
            assert await reader.receive() == b"goes on"


@pytest.mark.every_loop
async def test_cancelled_before_its_turn_it_leaves_no_trace(film: Path) -> None:
    async with azc.pipe() as (reader, sink), azc.pipe() as (source, feeder):
        source._unread = b"left "
        await feeder.send(b"over")
        ticket = await sink.put(DATA)
        for relay in (azc.relay(source, sink), sink.send_file(film)):
            with anyio.move_on_after(0.01):
                await relay
        assert await _exactly(source, 9) == b"left over"
        await sink.put(b"next")
        assert_same(await _exactly(reader, len(DATA) + 4), DATA + b"next")
        await ticket


@contextlib.asynccontextmanager
async def cancelled_file(sink: SendStream, file: Any, *part: int) -> Any:
    """A relay of a file, cancelled in the middle."""
    relay = sink.send_file(file, *part)
    async with cut_short(_call, relay):
        await until(lambda: relay.moved and _is_stuck(sink))
    yield relay


@pytest.mark.every_loop
@pytest.mark.parametrize("to", ["pipe", "unix"])
@pytest.mark.parametrize("how", ["path", "open", "part"])
async def test_a_cancelled_file_completes(how: str, to: str, film: Path) -> None:
    """The file stays readable for us, whatever the caller does with the fd."""
    reader, sink = ends(to)
    want = {"path": DATA, "open": DATA[7:], "part": DATA[7 : 3 << 20]}[how]
    async with reader, anyio.create_task_group() as tasks:
        with film.open("rb", buffering=0) as file:
            file.seek(7)
            arguments: Any = {"path": [film], "part": [file, 7, len(want)]}
            call = cancelled_file(sink, *arguments.get(how, [file]))
            async with call as relay:
                assert file.tell() == (len(DATA) if how == "open" else 7)
                file.seek(0)
        await sink.put(b"next")
        tasks.start_soon(sink.aclose)  # this waits for the file
        assert_same(await everything(reader), want + b"next")
        assert relay.moved == len(want)


@pytest.mark.parametrize("how", ["abort", "closed at once"])
async def test_a_cancelled_file_ends_with_its_sink(how: str, film: Path) -> None:
    reader, sink = ends("unix")
    async with reader, cancelled_file(sink, film):
        if how == "abort":
            sink.abort()
        else:
            await sink.aclose(linger=0)
        received = await everything(reader)
        assert received
        assert_prefix(received, DATA)


EXIT = """
async def send(sink):
    await sink.send_file(sys.argv[2])

async def main():
    ends = azc.pipe(65536)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(send, ends[1])
        await begun(ends[1])
        tasks.cancel_scope.cancel()
    kept.extend(ends)

kept = []
run(main)
"""


def test_a_cancelled_file_at_the_end_of_the_program(film: Path) -> None:
    process = scripts.start(EXIT, "asyncio", str(film), warnings="default")
    status, _, complained = scripts.finish(process)
    assert status == 0, complained
    assert f"{len(DATA) - 65536:,} bytes were still queued" in complained


async def test_a_cancelled_file_that_fails_breaks_its_sink(film: Path) -> None:
    """Only the break tells other senders that the message is incomplete."""
    reader, sink = ends("unix")
    null = os.open(os.devnull, os.O_RDONLY)
    async with reader, cancelled_file(sink, film):
        numbers = [int(name) for name in os.listdir("/dev/fd")]
        [lost] = [fd for fd in numbers if is_same_file(fd, film)]
        os.dup2(null, lost)
        async with meanwhile(everything, reader):
            with pytest.raises(azc.StreamBroken, match="behind our back"):
                await sink.send(b"next")
            sink.abort()
    for fd in (null, lost):
        os.close(fd)


def is_same_file(fd: int, path: Path) -> bool:
    with contextlib.suppress(OSError):
        return os.path.samestat(os.fstat(fd), path.stat())
    return False


@pytest.mark.parametrize("lost", ["source", "sink"])
async def test_a_lost_fd(lost: str, tmp_path: Path) -> None:
    """No byte goes into a file that took our number, or comes out of it."""
    strange = tmp_path / "strange"
    strange.write_bytes(b"none of ours")
    async with azc.pipe() as (source, feeder):
        reader, sink = azc.pipe()
        two = Two(source, sink)
        async with meanwhile(two.run):
            await until(lambda: source._in.stats().waits)
            number = (source if lost == "source" else sink).fileno()
            fd = os.open(strange, os.O_RDWR)
            kept = os.dup(number)
            os.dup2(fd, number)
            await feeder.send(b"ours")
            await until(lambda: two.error)
        assert "behind our back" in str(two.error)
        assert os.pread(fd, 100, 0) == b"none of ours"
        for one in (fd, kept, number):
            os.close(one)
        sink.abort()
        reader.abort()
        source.abort()


# ---- other streams -----------------------------------------------------------------


class ForeignSource(ByteReceiveStream):
    """A stream of another package."""

    def __init__(self, inner: ReceiveStream) -> None:
        self._inner = inner

    async def receive(self, max_bytes: int = 65536) -> bytes:
        return await self._inner.receive(max_bytes)

    async def aclose(self) -> None: ...


@pytest.mark.parametrize("kind", ["whole", "pieces", "foreign"])
async def test_after_the_end_of_the_sink_nothing_is_taken(kind: str) -> None:
    async with azc.pipe() as (source, feeder), azc.socketpair() as (sink, _):
        await feeder.send(b"still here")
        await sink.send_eof()
        first = ForeignSource(source) if kind == "foreign" else source
        with pytest.raises(azc.StreamClosed, match="send_eof was called before"):
            await azc.relay(first, sink, pieces=kind == "pieces")
        assert await source.receive() == b"still here"


async def test_from_and_to_tls(
    tls: tuple[ssl.SSLContext, ssl.SSLContext], film: Path
) -> None:
    copy = film.with_name("copy")
    async with azc.socketpair() as ends, tls_over(ends, tls) as (server, client):
        async with meanwhile(_call, azc.relay(film, server)):
            relay = azc.relay(client, copy, len(DATA))
            assert await relay == len(DATA)
            assert relay.lane == "copy"
    assert_same(copy.read_bytes(), DATA)
