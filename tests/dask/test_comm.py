"""Comms over our streams, with each protocol in turn, without a cluster."""

import asyncio
import contextlib
import errno
import gc
import logging
import os
import select
import socket
import ssl
import struct
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from accepting import Failing
from interruption import Interruption, Lines, hit_each_line
from links import linux_only, others_wait, until

pytest.importorskip("distributed", reason="needs Dask")
np = pytest.importorskip("numpy")


import dask  # noqa: E402
from distributed.comm.core import CommClosedError, FatalCommClosedError, connect, listen  # noqa: E402
from distributed.comm.registry import get_backend  # noqa: E402
from distributed.comm.tcp import TCPBackend as DasksOwn  # noqa: E402
from distributed.protocol.serialize import Serialized, to_serialize  # noqa: E402
from distributed.utils import offload  # noqa: E402

from aiozerocopy._net.tls import GOODBYE  # noqa: E402
from aiozerocopy.dask import listener as listener_module  # noqa: E402
from aiozerocopy.dask import messages  # noqa: E402
from aiozerocopy.dask.comm import StreamComm  # noqa: E402
from aiozerocopy.dask.messages import memory_for, pack  # noqa: E402

pytestmark = [pytest.mark.anyio, linux_only]

SCHEMES = ("azc", "azc+tls", "azc+unix")
ROOMS = ("dask", "_net.tls")  # folders whose lines are interrupted
BIG = 8 << 20


@pytest.fixture(scope="module", autouse=True)
def dasks_thread() -> None:
    """Dask keeps the thread that serializes."""

    async def start() -> None:
        await offload(int)

    asyncio.run(start())


@pytest.fixture(scope="session")
def mutual() -> dict[str, Any]:
    """Dask's Security, where each side shows a certificate."""
    trustme = pytest.importorskip("trustme")
    authority = trustme.CA()
    contexts = {}
    for side, purpose in (
        ("listen", ssl.Purpose.CLIENT_AUTH),
        ("connect", ssl.Purpose.SERVER_AUTH),
    ):
        context = ssl.create_default_context(purpose)
        authority.configure_trust(context)
        authority.issue_cert("localhost").configure_cert(context)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        contexts[side] = {"ssl_context": context}
    return contexts


@pytest.fixture(params=SCHEMES)
def scheme(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Pair(NamedTuple):
    """Two connected comms, and how to make more."""

    one: Any
    other: Any
    listener: Any


def place(scheme: str) -> str:
    return f"{scheme}://" if scheme == "azc+unix" else f"{scheme}://127.0.0.1:0"


@asynccontextmanager
async def joined(
    address: str,
    to_listen: dict[str, Any] | None = None,
    to_connect: dict[str, Any] | None = None,
    at: Callable[[Any], str] = lambda listener: listener.contact_address,
) -> AsyncIterator[Pair]:
    """The comms of a listener and of its client."""
    served: asyncio.Queue[Any] = asyncio.Queue()
    async with listen(address, served.put, **(to_listen or {})) as listener:
        one = await connect(at(listener), **(to_connect or {}))
        other = await served.get()
        try:
            yield Pair(one, other, listener)
        finally:
            await one.close()
            await other.close()


@asynccontextmanager
async def pair(scheme: str, mutual: dict[str, Any]) -> AsyncIterator[Pair]:
    with_tls = scheme == "azc+tls"
    options = (mutual["listen"], mutual["connect"]) if with_tls else ()
    async with joined(place(scheme), *options) as comms:
        yield comms


async def passed(sender: Any, receiver: Any, message: Any) -> Any:
    """Send a message that does not fit into the sockets; return the received one."""
    got, _ = await asyncio.gather(receiver.read(), sender.write(message))
    return got


@pytest.fixture
async def comms(scheme: str, mutual: dict[str, Any]) -> AsyncIterator[Pair]:
    async with pair(scheme, mutual) as comms:
        yield comms


@pytest.fixture
async def plain(mutual: dict[str, Any]) -> AsyncIterator[Pair]:
    async with pair("azc", mutual) as comms:
        yield comms


# ---- messages -----------------------------------------------------------------------


async def test_messages_go_there_and_back(comms: Pair) -> None:
    messages: list[Any] = [{"op": "x", "n": 1}, [1, "two", None], "text", b"bytes"]
    for message in messages:
        nbytes = await comms.one.write(message)
        assert nbytes > 16
        got = await comms.other.read()
        await comms.other.write(got)
        assert await comms.one.read() in (message, tuple(message))


async def test_arrays_arrive(comms: Pair) -> None:
    rng = np.random.default_rng(1)
    arrays = [
        rng.random(500_000),
        rng.integers(0, 9, (300, 300))[::2, ::3],  # not contiguous
        np.asfortranarray(rng.random((40, 50))),
        np.arange("2020-01-01", "2020-03-01", dtype="M8[D]"),
        np.zeros((0, 3)),
        np.array(7.0),
    ]

    message = {"arrays": [to_serialize(array) for array in arrays]}
    arrived = (await passed(comms.one, comms.other, message))["arrays"]
    for sent, got in zip(arrays, arrived, strict=True):
        assert got.dtype == sent.dtype
        assert np.array_equal(got, sent)
        assert got.flags.writeable or not got.size


@pytest.mark.parametrize("deserialize", [True, False])
async def test_what_is_not_deserialized_goes_back_as_it_came(deserialize: bool) -> None:
    """A scheduler forwards such data without looking into it."""
    data = os.urandom(1 << 20) * 4
    message = {"x": data, "to_ser": [to_serialize(data)]}

    options = {"deserialize": deserialize}
    async with joined("azc://127.0.0.1", options, options) as comms:
        got: Any = message
        for sender, receiver in (comms[:2], comms[1::-1]):
            got = await passed(sender, receiver, got)
            assert isinstance(got["to_ser"][0], Serialized) != deserialize
    assert got["x"] == data
    if deserialize:
        assert bytes(got["to_ser"][0]) == data


async def test_write_returns_when_the_bytes_are_out(comms: Pair) -> None:
    array = np.ones(BIG, "u1")
    write = asyncio.create_task(comms.one.write({"a": to_serialize(array)}))
    await others_wait()
    assert not write.done()
    got = await comms.other.read()
    await write
    array[:] = 0  # the array is the caller's again
    assert got["a"].all()


# ---- the end ------------------------------------------------------------------------


async def test_reads_and_writes_after_the_end(comms: Pair) -> None:
    reading = asyncio.create_task(comms.other.read())
    own = asyncio.create_task(comms.one.read())
    await others_wait()
    await comms.one.close()
    for read in (reading, own):
        with pytest.raises(CommClosedError):
            await read
    for comm in (comms.one, comms.other):
        assert comm.closed()
        assert "(closed)" in repr(comm)
        with pytest.raises(CommClosedError, match="closed"):
            await comm.read()
        with pytest.raises(CommClosedError, match="closed"):
            await comm.write("x")
        await comm.close()
        comm.abort()


async def test_close_lets_a_write_finish(scheme: str, mutual: dict[str, Any]) -> None:
    async with pair("azc" if scheme == "azc+tls" else scheme, mutual) as comms:
        big = {"a": to_serialize(np.ones(BIG, "u1"))}
        write = asyncio.create_task(comms.one.write(big))
        await others_wait()
        close = asyncio.create_task(comms.one.close())
        await others_wait()
        assert (await comms.other.read())["a"].all()
        await write
        await close
        with pytest.raises(CommClosedError):
            await comms.other.read()


async def test_close_waits_no_longer_than_dask_waits(mutual: dict[str, Any]) -> None:
    async with pair("azc+unix", mutual) as comms:
        write = asyncio.create_task(comms.one.write(to_serialize(np.ones(BIG, "u1"))))
        await others_wait()
        with dask.config.set({"distributed.comm.timeouts.tcp": "50ms"}):
            await comms.one.close()
        with pytest.raises(CommClosedError):
            await write


async def test_peer_that_is_gone_is_noticed_in_between(comms: Pair) -> None:
    """Dask keeps comms in a pool, and checks one before it takes it."""
    await comms.other.write("last words")
    assert not comms.one.closed()
    await comms.other.close()
    await wait_for_the_end(comms.one)
    assert not comms.one.closed()  # there is data to read
    assert await comms.one.read() == "last words"
    assert comms.one.closed()
    assert comms.one.stream.fileno() == -1


async def wait_for_the_end(comm: Any) -> None:
    """Return once the kernel knows of the peer's close."""
    poll = select.poll()
    poll.register(comm.stream.fileno(), select.POLLRDHUP)
    await until(lambda: poll.poll(0))


async def test_reset_is_noticed_in_between(plain: Pair) -> None:
    sock = plain.other.socket
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    plain.other.abort()
    await until(plain.one.closed)


BUFFERS, _ = pack([b"h" * 100, bytearray(10_000)])


@pytest.mark.parametrize("part", [0, 5, 8, 30, 5000])
async def test_message_that_is_cut_off_is_none(part: int, plain: Pair) -> None:
    await plain.one.stream.send(b"".join(BUFFERS)[:part])
    await plain.one.close()
    with pytest.raises(CommClosedError):
        await plain.other.read()
    assert plain.other.closed()


@pytest.mark.parametrize("what", ["read", "write"])
async def test_cancel_ends_the_comm(comms: Pair, what: str) -> None:
    array = np.ones(BIG, "u1")
    call = comms.one.read()
    if what == "write":
        call.close()
        call = comms.one.write({"a": to_serialize(array)})
    task = asyncio.create_task(call)
    await others_wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert comms.one.closed()
    array[:] = 0  # the peer must not see the zeros
    with pytest.raises(CommClosedError):
        await comms.other.read()


async def test_memory_that_cannot_be_sent_ends_the_comm(plain: Pair) -> None:
    async def send(*_: Any) -> None:
        raise BufferError("no")

    plain.one.stream.send = send
    with pytest.raises(BufferError):
        await plain.one.write("x")
    assert plain.one.closed()


async def test_object_that_cannot_be_serialized_does_not(plain: Pair) -> None:
    with pytest.raises(TypeError):
        await plain.one.write(to_serialize(threading.Lock()), on_error="raise")
    await plain.one.write("still here")
    assert await plain.other.read() == "still here"


async def test_comm_that_nobody_closes_is_reported(
    mutual: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        async with pair("azc", mutual) as comms:
            comm: Any = await connect(comms.listener.contact_address)
            who = comm.local_address
            del comm
            gc.collect()
            assert f"local={who}" in caplog.text
            assert "was never closed" in caplog.text


# ---- listeners and addresses --------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("azc://127.0.0.1", "127.0.0.1"),
        ("azc://0.0.0.0:0", "0.0.0.0"),
        ("azc://", "0.0.0.0"),
        ("azc://[::1]:0", "[::1]"),
    ],
)
async def test_addresses_of_a_listener(address: str, host: str) -> None:
    async with joined(address, {"default_host": "localhost"}) as comms:
        listener = comms.listener
        assert listener.listen_address.startswith(f"azc://{host}:")
        contact = listener.contact_address
        assert ("localhost" in contact) == (host == "0.0.0.0")
        assert comms.one.peer_address == contact
        assert comms.other.peer_address == comms.one.local_address
        assert comms.one.same_host
    with pytest.raises(ValueError, match="is not listening"):
        _ = listener.contact_address


@pytest.mark.parametrize("port", ["", ":0", ":8786"])
async def test_unix_addresses(port: str, tmp_path: Path) -> None:
    path = tmp_path / "socket"
    address = f"azc+unix://{path}"
    async with joined(address + port) as comms:
        one, other, listener = comms.one, comms.other, comms.listener
        assert listener.contact_address == listener.listen_address == address
        assert path.stat().st_mode & 0o777 == 0o600
        assert (one.peer_address, other.local_address) == (address, address)
        assert one.local_address == other.peer_address
        assert one.local_address.startswith("azc+unix://@")
        assert one.same_host
    assert not path.exists()


async def test_folder_of_a_process_that_was_killed_is_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        monkeypatch.setattr(tempfile, "tempdir", place)
        folders = {}
        with contextlib.ExitStack() as alive:
            for state in ("dead", "alive", "fresh"):
                folders[state] = Path(place, f"aiozerocopy-dask-{state}")
                folders[state].mkdir()
                sock = alive.enter_context(socket.socket(socket.AF_UNIX))
                sock.bind(str(folders[state] / "socket"))
                sock.listen()
                if state != "alive":
                    sock.close()
                if state != "fresh":
                    os.utime(folders[state], (0, 0))
            async with listen("azc+unix://", print):
                there = [state for state, each in folders.items() if each.exists()]
        assert there == ["alive", "fresh"]


@pytest.mark.parametrize(
    "said",
    [
        struct.pack("=QQ", 8 * 900_001, 900_000) + bytes(8 * 900_000),
        struct.pack("=QQQ", 16, 1, 1 << 20),
        b"",
    ],
    ids=["no sizes", "a large frame", "nothing"],
)
async def test_stranger_gets_little_before_the_handshake(
    said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stranger gets little time, too: anybody can reach the port."""
    served: list[Any] = []
    asked: list[int] = []

    def count(nbytes: int) -> memoryview:
        asked.append(nbytes)
        return memory_for(nbytes)

    monkeypatch.setattr(messages, "memory_for", count)
    patience = {"distributed.comm.timeouts.connect": "500ms" if not said else "30s"}
    with dask.config.set(patience):
        async with listen("azc://127.0.0.1", served.append) as listener:
            host, port = listener.get_host_port()
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(said)
            with contextlib.suppress(ConnectionError):
                await asyncio.wait_for(reader.read(), 10)
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
    assert served == []
    assert len(asked) <= 1


@pytest.mark.parametrize("address", ["azc+unix://", "azc+unix://127.0.0.1:0"])
async def test_unix_address_without_a_path_is_a_new_one(address: str) -> None:
    async with listen(address, print) as one, listen(address, print) as other:
        assert one.listen_address != other.listen_address
        folder = Path(one.listen_address.removeprefix("azc+unix://")).parent
        assert folder.stat().st_mode & 0o777 == 0o700
    assert not folder.exists()


def test_backends_are_found_and_resolve_addresses(scheme: str) -> None:
    backend = get_backend(scheme)
    if scheme == "azc+unix":
        assert backend.resolve_address("/a/b") == "/a/b"
        assert backend.get_address_host("/a/b") == "127.0.0.1"
        with pytest.raises(NotImplementedError):
            backend.get_address_host_port("/a/b")
    else:
        assert backend.resolve_address("localhost:12") == "127.0.0.1:12"
        assert backend.get_address_host_port("[::1]:12") == ("::1", 12)
        assert backend.get_local_address_for("127.0.0.1:12") == "127.0.0.1"


async def test_nobody_is_there(
    scheme: str, mutual: dict[str, Any], tmp_path: Path
) -> None:
    place = tmp_path / "none" if scheme == "azc+unix" else "127.0.0.1:1"
    with pytest.raises(OSError, match=r"cannot connect|Timed out"):
        await connect(f"{scheme}://{place}", timeout=0.1, **mutual["connect"])


async def test_listener_that_stops_leaves_comms_alone(plain: Pair) -> None:
    plain.listener.stop()
    await plain.one.write("x")
    assert await plain.other.read() == "x"


@pytest.fixture
def patient() -> Iterator[None]:
    """Let a handshake take as long as it likes."""
    with dask.config.set({"distributed.comm.timeouts.connect": "1h"}):
        yield


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("scheme", ["azc", "azc+tls"])
async def test_client_of_a_listener_that_just_stopped_is_closed(
    scheme: str, mutual: dict[str, Any]
) -> None:
    listener: Any = await listen(place(scheme), print, **mutual["listen"])
    host, port = listener.get_host_port()
    stopped = asyncio.Event()
    accept = listener._serve

    async def stop_first(*connection: Any) -> None:
        listener.stop()
        await accept(*connection)
        stopped.set()

    listener._serve = stop_first
    reader, writer = await asyncio.open_connection(host, port)
    await stopped.wait()
    assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()


async def test_without_fds_it_waits(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A waiting client is accepted as soon as there are fds again."""
    monkeypatch.setattr(listener_module, "PAUSE", 0.01)

    def fill(listener: Any) -> str:
        [each] = listener._sockets
        asyncio.get_running_loop().remove_reader(each.sock)
        each.sock = Failing(each.sock, errno.EMFILE, errno.EMFILE)
        listener._go_on(each.sock)
        return str(listener.contact_address)

    async with joined("azc://127.0.0.1", at=fill):
        pass
    assert caplog.text.count("no connections are accepted for now") == 1


# ---- TLS ----------------------------------------------------------------------------


async def test_tls_tells_who_is_there(mutual: dict[str, Any]) -> None:
    async with pair("azc+tls", mutual) as comms:
        for comm in (comms.one, comms.other):
            info = comm.extra_info
            assert info["peercert"]["subjectAltName"] == (("DNS", "localhost"),)
            assert "TLS" in info["cipher"][1]


async def test_stranger_is_refused_on_either_side(
    mutual: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    trustme = pytest.importorskip("trustme")
    stranger = ssl.create_default_context()
    stranger.check_hostname = False
    other_authority = trustme.CA()
    other_authority.configure_trust(stranger)
    other_authority.issue_cert("localhost").configure_cert(stranger)

    async with listen(place("azc+tls"), print, **mutual["listen"]) as listener:
        address = listener.contact_address
        with pytest.raises(FatalCommClosedError, match="verify failed"):
            await connect(address, ssl_context=stranger)
        stranger.verify_mode = ssl.CERT_NONE
        with pytest.raises(CommClosedError):
            await connect(address, ssl_context=stranger)
    assert "TLS with azc+tls://" in caplog.text


@pytest.mark.usefixtures("patient")
async def test_listener_that_stops_closes_what_is_in_the_handshake(
    mutual: dict[str, Any],
) -> None:
    listener: Any = await listen(place("azc+tls"), print, **mutual["listen"])
    reader, writer = await asyncio.open_connection(*listener.get_host_port())
    await until(lambda: listener._tasks)
    await others_wait()
    listener.stop()
    assert await reader.read() == b""
    await until(lambda: not listener._tasks)
    writer.close()
    await writer.wait_closed()


async def test_handshake_that_is_cancelled_leaves_no_connection() -> None:
    """Dask's loop, for example, cancels handshakes at its end."""

    def serving() -> set[asyncio.Task[Any]]:
        return {task for task in asyncio.all_tasks() if "_serve" in repr(task)}

    async with listen(place("azc"), print) as listener:
        _, _, address = listener.contact_address.partition("://")
        host, _, port = address.partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        await reader.read(1)  # the server's part of the handshake
        for task in serving():
            task.cancel()
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()
        assert not serving()


async def test_no_certificates_are_an_error() -> None:
    with pytest.raises(TypeError, match="give Dask certificates"):
        await listen("azc+tls://127.0.0.1", print)
    async with listen("azc://127.0.0.1", print) as listener:
        location = listener.contact_address.removeprefix("azc://")
        with pytest.raises(TypeError, match="give Dask certificates"):
            await connect(f"azc+tls://{location}")


@pytest.mark.parametrize("scheme", ["azc", "azc+unix"])
async def test_plain_protocols_refuse_when_dask_must_encrypt(scheme: str) -> None:
    with pytest.raises(RuntimeError, match="must encrypt"):
        await listen(f"{scheme}://", print, require_encryption=True)
    with pytest.raises(RuntimeError, match="must encrypt"):
        await connect(f"{scheme}:///tmp/x", require_encryption=True)


# ---- with Dask's own tcp:// ----------------------------------------------------------


@pytest.mark.parametrize("ours_listens", [True, False])
async def test_other_end_may_be_dasks_own(ours_listens: bool) -> None:
    """Both send the same bytes, so a cluster can switch machine by machine."""
    schemes = ("azc", "tcp") if ours_listens else ("tcp", "azc")

    def at(listener: Any) -> str:
        return f"{schemes[1]}://{listener.contact_address.partition('://')[2]}"

    async with joined(f"{schemes[0]}://127.0.0.1", at=at) as comms:
        one, other = comms.one, comms.other
        assert isinstance(other if ours_listens else one, StreamComm)
        for count in (1, 1000, 400_000):
            message = {"a": [to_serialize(np.arange(count)) for _ in range(3)]}
            got = await passed(one, other, message)
            back = {"b": [to_serialize(array) for array in got["a"]]}
            for array in (await passed(other, one, back))["b"]:
                assert np.array_equal(array, np.arange(count))
    assert isinstance(get_backend("tcp"), DasksOwn)


# ---- a signal's exceptions ----------------------------------------------------------

CALLS: dict[str, Callable[[Any], Awaitable[object]]] = {
    "read": lambda comm: comm.read(),
    "write": lambda comm: comm.write({"op": "x"}),
    "large write": lambda comm: comm.write({"a": to_serialize(np.ones(1 << 20, "u1"))}),
    "close": lambda comm: comm.close(),
}


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", CALLS)
def test_exception_at_every_line(
    name: str, mutual: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """The peer gets only whole messages, and sees the connection's end.

    The peer is Dask's own comm, so all interrupted lines are those of our side.
    (test_local.py covers everything except TLS.)
    """

    async def once(lines: Lines) -> list[str]:
        served: asyncio.Queue[Any] = asyncio.Queue()
        async with listen("tls://127.0.0.1", served.put, **mutual["listen"]) as there:
            address = there.contact_address.replace("tls", "azc+tls")
            comm: Any = await connect(address, **mutual["connect"])
            peer = await served.get()
        await peer.write({"op": "y"})
        reading = asyncio.create_task(_read_to_the_end(peer))
        with contextlib.suppress(Interruption), lines:
            await CALLS[name](comm)
        await comm.close()
        del comm
        gc.collect()  # closes what an interrupted end left open
        got = await asyncio.wait_for(reading, 5)
        await peer.close()
        whole = all(each == {"op": "x"} or each["a"].all() for each in got)
        return [] if whole else ["a message is not whole"]

    with caplog.at_level(logging.CRITICAL):
        asyncio.run(hit_each_line(once, ROOMS))


async def _read_to_the_end(comm: Any) -> list[Any]:
    messages: list[Any] = []
    with contextlib.suppress(CommClosedError):
        while True:
            messages.append(await comm.read())
    return messages


def test_goodbye_of_tls_is_shorter_than_a_message() -> None:
    """`closed` tells both apart by their lengths."""
    assert 31 <= GOODBYE < pack([b"\x80"])[1] + 22
