"""Rings whose peer is hostile, broken, or killed.

Nothing reaches beyond the ring: our side gets an exception and stays usable.
"""

import contextlib
import errno
import itertools
import logging
import os
import random
import signal
import socket
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
import scripts
from links import (
    attempting,
    cut_short,
    fork,
    linux_only,
    meanwhile,
    others_wait,
    refusing,
    until,
)
from ring_peer import (
    ANSWER,
    ASK,
    CONSUMER,
    HELLO,
    INDEX_OF_CONSUMER,
    INDEX_OF_PRODUCER,
    OFFER,
    PAGE,
    PRODUCER,
    Peer,
    bell,
    facing,
    hello,
    memory,
)
from rings import SMALL, connected, filled, opened, ring_pair

import aiozerocopy as azc
from aiozerocopy import StreamBroken, StreamClosed
from aiozerocopy._core.waiter import current_loop
from aiozerocopy._net.connecting import connect_once_possible
from aiozerocopy.shm.handshake import RING_SOCKET

pytestmark = [linux_only, pytest.mark.anyio]

RECORD = b"r" * 1000
WAKES_WITHIN = 5.0  # seconds; only the other side's bell can wake us in time
KILLS = int(os.environ.get("AZC_RING_KILLS", "100"))


# ---- a hostile listener -------------------------------------------------------------


def offering(capacity: int = SMALL, role: int = CONSUMER, **changes: int) -> bytes:
    return hello(OFFER, role, capacity, **changes)


def fds(**changes: int) -> tuple[int, int, int]:
    """Return the fds of an offer."""
    return memory(**changes), bell(), bell()


def a_pipe() -> int:
    read_fd, write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    os.close(read_fd)
    return write_fd


# A listener's message with fds, and the text of our error.
NO_RING: dict[str, tuple[Callable[[], tuple[Any, ...]], str]] = {
    "truncated": (lambda: (offering()[:20], *fds()), "speak"),
    "too long": (lambda: (offering() + b"!", *fds()), "speak"),
    "empty": (lambda: (b"", *fds()), "hung up"),
    "magic": (lambda: (offering(magic=1),), "does not speak"),
    "kind": (lambda: (hello(ASK),), "does not speak"),
    "version": (lambda: (offering(abi=2),), "another version"),
    "refusal": (lambda: (offering(status=-12),), os.strerror(12)),
    "strange refusal": (lambda: (offering(status=12),), "does not speak"),
    "no fds": (lambda: (offering(),), "does not speak"),
    "two fds": (lambda: (offering(), memory(), bell()), "speak"),
    "four fds": (lambda: (offering(), *fds(), bell()), "speak"),
    "many fds": (lambda: (offering(), *fds(), *(bell() for _ in range(60))), "speak"),
    "role": (lambda: (offering(role=3), *fds()), "speak"),
    "not sealed": (lambda: (offering(), *fds(seals=0)), "not sealed"),
    "may shrink": (lambda: (offering(), *fds(seals=1 | 4)), "not sealed"),
    "seals may be added": (lambda: (offering(), *fds(seals=2 | 4)), "not sealed"),
    "too small": (lambda: (offering(), *fds(size=PAGE)), "speak"),
    "no power of two": (
        lambda: (offering(SMALL + 4096), *fds(capacity=SMALL + 4096)),
        "speak",
    ),
    "huge": (lambda: (offering(1 << 63), *fds()), "speak"),
    "no capacity": (lambda: (offering(0), *fds(capacity=0)), "speak"),
    "another page": (lambda: (offering(), *fds(page_bytes=4096)), "speak"),
    "another version there": (lambda: (offering(), *fds(abi=9)), "speak"),
    "a file": (
        lambda: (offering(), os.open("/dev/null", os.O_RDWR), bell(), bell()),
        "not sealed",
    ),
    "a bell that waits": (
        lambda: (offering(), memory(), os.eventfd(0, os.EFD_CLOEXEC), bell()),
        "speak",
    ),
    "a pipe": (lambda: (offering(), memory(), bell(), a_pipe()), "speak"),
}


@contextlib.contextmanager
def listening(path: Path) -> Iterator[socket.socket]:
    with socket.socket(*RING_SOCKET) as listener:
        listener.bind(str(path))
        listener.listen()
        yield listener


@pytest.mark.parametrize("name", NO_RING)
async def test_offer_that_is_none(tmp_path: Path, name: str) -> None:
    """Our side refuses it, and closes every fd that came (conftest.py looks)."""
    make, words = NO_RING[name]

    def serve() -> None:
        sock, _ = listener.accept()
        with sock:
            assert sock.recv(100) == hello(ASK)
            message, *sent = make()
            socket.send_fds(sock, [message], sent)
            for fd in sent:
                os.close(fd)
            sock.recv(100)

    with listening(tmp_path / "ring") as listener:
        async with meanwhile(anyio.to_thread.run_sync, serve):
            with pytest.raises(OSError, match=words) as caught:
                await azc.shm.connect_ring(tmp_path / "ring")
    assert str(tmp_path) in str(caught.value)


async def test_offer_of_the_other_role(tmp_path: Path) -> None:
    def serve() -> None:
        sock, _ = listener.accept()
        with sock:
            assert sock.recv(100) == hello(ASK, PRODUCER)
            offered = fds()
            socket.send_fds(sock, [offering(role=CONSUMER)], offered)
            for fd in offered:
                os.close(fd)
            sock.recv(100)

    with listening(tmp_path / "ring") as listener:
        async with meanwhile(anyio.to_thread.run_sync, serve):
            with pytest.raises(ConnectionError, match="does not speak"):
                await azc.shm.connect_ring(tmp_path / "ring", sends=True)


# Locked memory: mmap fails with EAGAIN, which is no reason to wait for the socket.
LOCKED = """
import ctypes, resource

async def main():
    libc, version = ctypes.CDLL(None), ctypes.create_string_buffer(8)
    version[:4] = (0x20080522).to_bytes(4, sys.byteorder)
    able = (ctypes.c_uint32 * 6)()
    libc.capget(version, able)
    able[0] &= ~(1 << 14)  # CAP_IPC_LOCK
    libc.capset(version, able)
    _, most = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (min(8 << 20, most % 2**64), most))
    assert libc.mlockall(2) == 0  # MCL_FUTURE
    try:
        await azc.shm.connect_ring(sys.argv[2])
    except OSError as error:
        print(error.strerror)

run(main)
"""


async def test_memory_that_cannot_be_locked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "ring"
    async with cut_short(lambda: azc.shm.listen_ring(path, 16 << 20)):
        await until(path.exists)
        program = partial(scripts.run, LOCKED, "asyncio", str(path))
        said = await anyio.to_thread.run_sync(program)
    assert "Cannot allocate memory" in said
    assert "turned away: Cannot allocate memory" in caplog.text


# ---- a hostile visitor --------------------------------------------------------------


@contextlib.contextmanager
def visiting(path: Path, ask: bytes = b"") -> Iterator[socket.socket]:
    with socket.socket(*RING_SOCKET) as sock:
        sock.connect(str(path))
        if ask:
            sock.send(ask)
        yield sock


def taken(sock: socket.socket) -> list[int]:
    return socket.recv_fds(sock, 100, 3)[1]


def ask_and(answer: bytes | None, ask: bytes = hello(ASK)) -> Callable[[Path], None]:
    """Connect, send an ask, and answer the offer; or hang up."""

    def connect(path: Path) -> None:
        with visiting(path, ask) as sock:
            for fd in taken(sock) if ask else ():
                os.close(fd)
            if answer is not None:
                sock.send(answer)
                with contextlib.suppress(ConnectionError):
                    sock.recv(100)

    return connect


def keep_fds(path: Path) -> None:
    """Take the offer, and hang up: the fds that are kept have no memory."""
    with visiting(path, hello(ASK)) as sock:
        fds = taken(sock)
    try:
        assert os.fstat(fds[0]).st_size == PAGE + SMALL
        give_up = time.monotonic() + WAKES_WITHIN
        while os.fstat(fds[0]).st_blocks and time.monotonic() < give_up:
            time.sleep(0.001)
        assert os.fstat(fds[0]).st_blocks == 0
    finally:
        for fd in fds:
            os.close(fd)


def send_fds(path: Path) -> None:
    with visiting(path) as sock:
        fd = bell()
        socket.send_fds(sock, [hello(ASK)], [fd, fd])
        os.close(fd)
        sock.recv(100)


@pytest.mark.parametrize(
    "visit",
    [
        pytest.param(ask_and(None, b""), id="probe"),
        pytest.param(ask_and(None), id="hangs up"),
        pytest.param(keep_fds, id="keeps the fds"),
        pytest.param(ask_and(hello(ANSWER, status=-5)), id="refuses"),
        pytest.param(ask_and(b"nonsense"), id="nonsense"),
        pytest.param(ask_and(None, b"nonsense"), id="nonsense at once"),
        pytest.param(ask_and(None, hello(ASK, abi=2)), id="another version"),
        pytest.param(ask_and(None, hello(ASK, 77)), id="no role"),
        pytest.param(send_fds, id="fds"),
    ],
)
async def test_visitor_does_not_disturb_the_listener(
    tmp_path: Path, visit: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)  # (a later test checks the warnings)
    path = tmp_path / "ring"
    async with attempting(listen, path) as listener:
        await until(path.exists)
        await anyio.to_thread.run_sync(visit, path)
        producer = await connected(path)
    async with producer, listener.result as consumer:
        await producer.send(RECORD)
        assert bytes(await consumer.receive()) == RECORD
    assert not path.exists()


async def listen(path: Path, **options: Any) -> azc.shm.Ring:
    return await azc.shm.listen_ring(path, SMALL, **options)


@pytest.mark.parametrize("count", [1, 20])
async def test_silent_visitors_keep_nobody_waiting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, count: int
) -> None:
    """They connect before another visitor who asks for the ring, and stay."""
    caplog.set_level(logging.CRITICAL)
    path = tmp_path / "ring"
    async with attempting(lambda: listen(path, any_user=True)) as listener:
        await until(path.exists)
        with contextlib.ExitStack() as silent:
            for _ in range(count):
                visitor = silent.enter_context(socket.socket(*RING_SOCKET))
                await connect_once_possible(visitor, str(path))
            with anyio.fail_after(5):
                producer = await connected(path, any_user=True)
                await until(lambda: listener.done)
    async with producer, listener.result as consumer:
        await producer.send(RECORD)
        assert bytes(await consumer.receive()) == RECORD


async def test_listener_says_whom_it_has_turned_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "ring"
    async with attempting(listen, path) as listener:
        await until(path.exists)
        with pytest.raises(ConnectionError, match="both sides want to receive"):
            await azc.shm.connect_ring(path, sends=False)
        producer = await connected(path, sends=True)
    async with producer, listener.result:
        pass
    assert "both sides want to receive" in caplog.text


def visit_as_nobody(path: str) -> int:
    """Ask for a ring as another user; return the status in the answer."""
    if (pid := fork()) == 0:
        try:
            os.setuid(65_534)
            with visiting(Path(path)) as sock:
                with contextlib.suppress(BrokenPipeError):
                    sock.send(hello(ASK))
                status = HELLO.unpack(sock.recv(100))[4]
            os._exit(-status)
        except ConnectionResetError:  # turned away before the ask was read
            os._exit(errno.ECONNRESET)
        finally:
            os._exit(255)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
async def test_other_users_are_turned_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    name = f"\0{tmp_path}"  # so that a folder's permissions do not matter
    opening = azc.shm.listen_ring(name, SMALL)
    async with attempting(lambda: opening._opening) as listener:
        await others_wait()
        status = await anyio.to_thread.run_sync(visit_as_nobody, name)
        assert status in (errno.EACCES, errno.ECONNRESET)
        producer = await azc.shm.connect_ring(name)
    async with producer, listener.result:
        assert "the other process is another user's" in caplog.text


async def test_path_of_somebody_else(tmp_path: Path) -> None:
    path = tmp_path / "ring"
    with pytest.raises(FileNotFoundError, match="nobody listens there"):
        await azc.shm.connect_ring(path)
    path.touch()
    with pytest.raises(OSError, match=r"^\[Errno \d+\] cannot listen on [^:]*: Addr"):
        await listen(path)
    path.unlink()
    with socket.socket(*RING_SOCKET) as stale:
        stale.bind(str(path))
    with pytest.raises(ConnectionRefusedError, match="nobody listens there"):
        await azc.shm.connect_ring(path)
    async with attempting(listen, path) as listener:  # replaces the stale socket
        await others_wait()
        with pytest.raises(OSError, match=os.strerror(errno.EADDRINUSE)):
            await listen(path)
        producer = await connected(path)
    async with producer, listener.result:
        with pytest.raises(FileNotFoundError):  # both want to produce
            await azc.shm.connect_ring(path)
    with socket.socket(socket.AF_UNIX) as stream:
        stream.bind(str(tmp_path / "stream"))
        stream.listen()
        with pytest.raises(OSError, match="the socket there is not that of a ring"):
            await azc.shm.connect_ring(tmp_path / "stream")


async def test_connect_waits_for_somebody_to_listen(tmp_path: Path) -> None:
    """From a missing path to a socket that does not listen yet."""
    path = tmp_path / "ring"
    connect = partial(azc.shm.connect_ring, path, timeout=10)
    async with attempting(connect) as producer:
        await others_wait()
        with socket.socket(*RING_SOCKET) as stale:
            stale.bind(str(path))
            await anyio.sleep(0.02)  # long enough for another attempt
        consumer = await listen(path)
    async with producer.result, consumer:
        await producer.result.send(b"hello")
        with await consumer.receive() as record:
            assert bytes(record.view) == b"hello"


async def test_time_is_over(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError, match=r"no ring at .*: nobody listens there"):
        await azc.shm.connect_ring(tmp_path / "ring", timeout=0.01)
    with pytest.raises(TimeoutError, match=r"cannot listen for a ring .*: timed out"):
        await listen(tmp_path / "ring", timeout=0.01)
    with listening(tmp_path / "ring"):
        with pytest.raises(TimeoutError, match=r"no ring at .* did not answer"):
            await azc.shm.connect_ring(tmp_path / "ring", timeout=0.01)


async def test_visitor_who_waits_hears_of_the_end(tmp_path: Path) -> None:
    """Even while a reference to the listener's error keeps its frames."""
    path = tmp_path / "ring"
    async with attempting(lambda: listen(path, timeout=0.2)) as listener:
        await until(path.exists)
        with visiting(path, hello(ASK)), visiting(path, hello(ASK)) as second:
            await until(lambda: listener.done)
            second.settimeout(5)
            assert second.recv(100) == b""
    assert isinstance(listener.error, TimeoutError)


async def test_late_visitor_connects_to_the_next(tmp_path: Path) -> None:
    """A listener that has its ring closes, and resets connections in its backlog."""
    path = tmp_path / "ring"
    with socket.socket(*RING_SOCKET) as busy:
        busy.bind(str(path))
        busy.listen()
        connect = partial(azc.shm.connect_ring, path, timeout=10)
        async with attempting(connect) as producer:
            await anyio.wait_readable(busy)
            path.unlink()
            busy.close()
            consumer = await listen(path)
    async with producer.result, consumer:
        await producer.result.send(RECORD)
        with await consumer.receive() as record:
            assert bytes(record.view) == RECORD


@pytest.mark.parametrize("capacity", [0, -1, (1 << 39) + 1, "1M"])
def test_capacity_that_no_ring_has(tmp_path: Path, capacity: Any) -> None:
    says = "must be from 1 to 549,755,813,888 bytes|number of bytes, not '1M'"
    with pytest.raises((ValueError, TypeError), match=says):
        azc.shm.listen_ring(tmp_path / "ring", capacity)


async def test_capacity_that_this_machine_has_not(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"no memory for a ring of 549,755,813,888 bytes"):
        await azc.shm.listen_ring(tmp_path / "ring", 1 << 39)
    assert not (tmp_path / "ring").exists()


# ---- a hostile peer of a running ring -----------------------------------------------


NO_INDEX = "an impossible index"
NO_RECORD = "no record where one must begin"
LONG = "longer than the bytes sent"
LIES: dict[str, tuple[Callable[[Peer], object], str]] = {
    "far": (lambda peer: peer.put(INDEX_OF_PRODUCER, SMALL + 64), NO_INDEX),
    "odd": (lambda peer: peer.put(INDEX_OF_PRODUCER, 65), NO_INDEX),
    "huge": (lambda peer: peer.put(INDEX_OF_PRODUCER, (1 << 64) - 64), NO_INDEX),
    "no header": (lambda peer: peer.commit(0, 0, 10), NO_RECORD),
    "wrong header": (lambda peer: peer.commit(0, 65, 10), NO_RECORD),
    "long record": (lambda peer: peer.commit(0, 1, 49), LONG),
    "endless record": (lambda peer: peer.commit(0, 1, 0xFFFFFFFF), LONG),
    "says something": (lambda peer: peer.sock.send(b"hello"), "bytes on the socket"),
}


@pytest.mark.parametrize("name", LIES)
async def test_producer_that_lies(tmp_path: Path, name: str) -> None:
    lie, said = LIES[name]
    async with facing(tmp_path, sends=False) as (ring, peer):
        async with attempting(ring.receive) as waiting:
            await others_wait()
            lie(peer)
            peer.ring()
        assert isinstance(waiting.error, StreamBroken)
        assert "the producer broke the ring's rules" in str(waiting.error)
        assert said in str(waiting.error)
        with pytest.raises(StreamBroken, match="rules"):  # the error stays
            await ring.receive_batch()


@pytest.mark.parametrize("index", [40_128, SMALL * 2, 1, (1 << 64) - 64])
async def test_consumer_that_lies(tmp_path: Path, index: int) -> None:
    async with facing(tmp_path, sends=True) as (ring, peer):
        await filled(ring, b"x" * 40000)
        async with attempting(ring.send, b"x" * 40000) as waiting:
            await others_wait()
            peer.put(INDEX_OF_CONSUMER, index)
            peer.ring()
        assert isinstance(waiting.error, StreamBroken)
        assert "the consumer broke the ring's rules" in str(waiting.error)


async def test_bell_that_always_rings(tmp_path: Path) -> None:
    """Other tasks run, and nothing is received but real records."""
    async with facing(tmp_path, sends=False) as (ring, peer):
        async with attempting(ring.receive) as waiting:
            for _ in range(100):
                peer.ring()
                await anyio.lowlevel.checkpoint()
            assert not waiting.done
            peer.commit(0, 1, 10)
        assert len(waiting.result) == 10


FULL = (1 << 64) - 2  # the doorbell's counter is full


@pytest.mark.parametrize("sends", [True, False])
async def test_bells_that_wait(tmp_path: Path, sends: bool) -> None:
    """A read of our bell and a write to the peer's would block: each process that has
    them may clear O_NONBLOCK."""
    async with facing(tmp_path, sends) as (ring, peer):
        os.set_blocking(peer.their_bell, True)
        os.eventfd_write(peer.bell, FULL)
        os.set_blocking(peer.bell, True)
        peer.put(INDEX_OF_CONSUMER + 128, 64)  # wake_at
        if sends:
            await ring.send(RECORD)
            assert ring.stats.rings == 1
        peer.sock.shutdown(socket.SHUT_RDWR)  # the socket is readable, the bell is not
        await anyio.lowlevel.checkpoint()
        await until(lambda: ring._end.hear())
        await ring.aclose()


WAKES = """
import rings, pathlib

async def main():
    async with rings.ring_pair(pathlib.Path(sys.argv[2])) as (producer, consumer):
        for n in range(100):  # (more requests than an io context has room for)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(consumer.receive)
                await anyio.wait_all_tasks_blocked()
                await producer.send(b"wake up")
        assert producer.stats.rings == 100

run(main)
"""


@pytest.mark.parametrize(
    "fault",
    [
        "io_setup:error=EPERM",  # in a sandbox
        "io_submit:error=EINVAL",  # Linux before 4.19
        "preadv2:error=EOPNOTSUPP",  # before 5.8
        "io_getevents:error=ENOSYS",
    ],
)
async def test_bells_without_a_system_call(tmp_path: Path, fault: str) -> None:
    scripts.run(WAKES, "asyncio", str(tmp_path), under=refusing(fault))


# ---- death --------------------------------------------------------------------------

PEER = """
path, role = sys.argv[2], sys.argv[3]

async def main():
    async with azc.shm.connect_ring(path, timeout=10) as ring:
        n = 0
        print("ready", flush=True)
        while role == "producer":
            n += 1
            await ring.send(n.to_bytes(8, "little") * (1 + n * 7919 % 500), type_id=n)
        await anyio.sleep_forever()
signal.alarm(60)
run(main)
"""


@contextlib.asynccontextmanager
async def with_process(
    folder: Path, role: str, sends: bool
) -> AsyncIterator[tuple[azc.shm.Ring, subprocess.Popen[str]]]:
    """A ring of ours whose peer is a process that can be killed."""
    path = folder / "ring"
    process = scripts.start(PEER, "asyncio", str(path), role)
    try:
        async with azc.shm.listen_ring(path, SMALL, sends=sends) as ring:
            assert process.stdout is not None
            assert await anyio.to_thread.run_sync(process.stdout.readline) == "ready\n"
            yield ring, process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("sends", [False, True])
async def test_death_wakes_who_waits(tmp_path: Path, sends: bool) -> None:
    async with with_process(tmp_path, "idle", sends) as (ring, process):
        if sends:
            await filled(ring, RECORD)
        call: Any = (lambda: ring.send(RECORD)) if sends else ring.receive
        async with attempting(call) as waiting:
            await others_wait()
            process.kill()
            killed = time.monotonic()
        assert time.monotonic() - killed < WAKES_WITHIN
        assert isinstance(waiting.error, StreamBroken)
        assert "died" in str(waiting.error)


async def test_death_is_noticed_while_there_is_room(tmp_path: Path) -> None:
    async with with_process(tmp_path, "idle", sends=True) as (ring, process):
        await ring.send(RECORD)
        process.kill()
        await until(lambda: ring._end.stats().gone)
        with pytest.raises(StreamBroken, match="the consumer died"):
            await ring.send(RECORD)
        with pytest.raises(StreamBroken, match="the consumer died"):
            await ring.reserve(10)


async def test_death_of_a_stopped_process(tmp_path: Path) -> None:
    """Committed records are received before the end."""
    async with with_process(tmp_path, "producer", sends=False) as (ring, process):
        await until(lambda: ring.stats.bytes_used > SMALL - 4096)
        process.send_signal(signal.SIGSTOP)
        process.kill()
        process.wait()
        count = 0
        with pytest.raises(StreamBroken, match="the producer died"):
            while True:
                record = await ring.receive()
                count += 1
                assert (bytes(record), record.type_id) == (numbered(count), count)
                record.release()
        assert count > 10


def numbered(n: int) -> bytes:
    """Return the n-th record."""
    return n.to_bytes(8, "little") * (1 + n * 7919 % 500)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("role", ["producer", "consumer"])
@pytest.mark.parametrize("anyio_backend", [("asyncio", {})], ids=["asyncio"])
async def test_kill_at_any_instruction(
    tmp_path: Path, role: str, ring_kill: Path
) -> None:
    """Under load: our side gets only whole records, and soon after the kill the end.

    The peer is a C program (tests/sim/ring_kill.c), so the signal comes while it runs
    the header's code.  AZC_RING_KILLS=500 kills it more often.
    """
    rng = random.Random(7)
    for _ in range(KILLS):
        path = tmp_path / "ring"
        process = subprocess.Popen([ring_kill, path, role])  # noqa: ASYNC220
        killer = threading.Timer(rng.uniform(0, 0.02), process.kill)
        try:
            async with azc.shm.listen_ring(
                path, SMALL, sends=role == "consumer", timeout=10
            ) as ring:
                killer.start()
                with (
                    anyio.fail_after(WAKES_WITHIN),
                    pytest.raises(StreamBroken, match="died"),
                ):
                    await exchange(ring)
        finally:
            process.kill()
            process.wait()
            killer.join()


async def exchange(ring: azc.shm.Ring) -> None:
    for n in itertools.count(1):
        if ring.sends:
            await ring.send(numbered(n), type_id=n)
        else:
            with await ring.receive() as record:
                assert (bytes(record), record.type_id) == (numbered(n), n)


@pytest.fixture(scope="module")
def ring_kill(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = Path(__file__).parents[2]
    program = tmp_path_factory.mktemp("kill") / "ring_kill"
    command = ["cc", "-std=c11", "-D_GNU_SOURCE=1", "-O1", f"-I{root / 'csrc'}"]
    source = root / "tests" / "sim" / "ring_kill.c"
    try:
        subprocess.run([*command, source, "-o", program], check=True)
    except FileNotFoundError:
        pytest.skip("there is no C compiler here")
    return program


# ---- closed here --------------------------------------------------------------------


async def test_end_of_a_ring_that_was_reserved(tmp_path: Path) -> None:
    producer, consumer = await opened(tmp_path)
    async with consumer:
        slot = await producer.reserve(10)
        await producer.aclose()
        with pytest.raises(StreamClosed):
            slot.commit()
        slot.rollback()
        with pytest.raises(anyio.EndOfStream):
            await consumer.receive()


async def test_ring_of_another_loop(tmp_path: Path) -> None:
    async with ring_pair(tmp_path) as (producer, consumer):

        async def elsewhere() -> None:
            await producer.send(RECORD)

        with pytest.raises(RuntimeError, match="another event loop"):
            await anyio.to_thread.run_sync(anyio.run, elsewhere)
        await producer.send(b"next")
        assert bytes(await consumer.receive()) == b"next"


# ---- a loop that cannot watch -------------------------------------------------------


@pytest.mark.parametrize("refused", [1, 2])
async def test_peer_hears_of_a_side_that_could_not_watch(
    refused: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An epoll may reach its limit of watches or of memory."""
    watch = type(current_loop()).watch
    calls = itertools.count(1)

    def watch_if_it_may(loop: Any, fd: int, callback: Any) -> None:
        watch(loop, fd, callback)  # (as a signal may come after the watch)
        if next(calls) == refused:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async def listen() -> None:
        async with azc.shm.listen_ring(path, SMALL) as ring:
            with pytest.raises(StreamBroken):
                await ring.receive()

    path = tmp_path / "ring"
    async with meanwhile(listen):
        await until(path.exists)
        with monkeypatch.context() as patch:
            patch.setattr(type(current_loop()), "watch", watch_if_it_may)
            with pytest.raises(OSError, match="No space") as caught:
                await connected(path)
    assert caught  # (it keeps frames, and what they refer to, alive until here)
