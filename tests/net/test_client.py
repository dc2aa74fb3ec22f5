"""The client that reconnects: its pauses, its gaps, and when it gives up."""

import contextlib
import ssl
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from interruption import Interruption
from links import attempting, cut_short, free_port, others_wait, until

import aiozerocopy as azc
from aiozerocopy import client as module
from aiozerocopy import framing, web
from aiozerocopy._net import greeting
from aiozerocopy.client import (
    FrameClient,
    TokenRefused,
    connect_frames,
    parse_address,
    seconds_to_wait,
)
from aiozerocopy.framing import FrameReceiver, FrameSender, WrongMagic
from aiozerocopy.pool import FramePool

pytestmark = pytest.mark.anyio
np = pytest.importorskip("numpy")


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let attempts follow each other without a pause."""
    monkeypatch.setattr(module, "LONGEST_WAIT", 0)


class Server:
    """Successive connections, each with a script that plays the server."""

    def __init__(self, *scripts: Any) -> None:
        self.scripts = list(scripts)
        self.streams: list[azc.Stream] = []

    async def connect(self) -> azc.Stream:
        script = self.scripts.pop(0)
        if isinstance(script, Exception):
            raise script
        near, far = azc.socketpair()
        self.streams.append(near)
        try:
            await script(near)
        except BaseException:  # the call that connects was cut short
            far.abort()
            raise
        self._far = far
        return far

    def received(self) -> int:
        """Return how many bytes the client received on the last connection."""
        return self._far.stats.bytes_received

    def close(self) -> None:
        for stream in self.streams:
            stream.abort()


def frames(*numbers: int, then: Callable[[azc.Stream], Any] | None = None) -> Any:
    async def script(stream: azc.Stream) -> None:
        sender = FrameSender(stream)
        for number in numbers:
            sender.sequence = number
            await sender.send(bytes([number]))
        if then is not None:
            await then(stream)

    return script


@pytest.mark.parametrize("where", ["wait", "_count"])
async def test_frame_whose_receive_is_interrupted_comes_again(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(frames(1, 2))
    async with FrameClient(server.connect) as client:
        owner: Any = module._Silence if where == "wait" else client
        original = getattr(owner, where)

        async def wait(*args: Any) -> bool:
            await original(*args)
            raise Interruption

        def count(_: int) -> None:
            raise Interruption

        with monkeypatch.context() as patch, pytest.raises(Interruption):
            patch.setattr(owner, where, wait if where == "wait" else count)
            await client.receive()
        got = [bytes((await client.receive()).view) for _ in range(2)]
        assert got == [b"\x01", b"\x02"]
    server.close()


async def end(stream: azc.Stream) -> None:
    await stream.aclose()


async def cut(stream: azc.Stream) -> None:
    await stream.send(b"AZCF\1")
    await stream.aclose()


async def stay(stream: azc.Stream) -> None:
    await anyio.lowlevel.checkpoint()


async def show(stream: azc.Stream) -> None:
    """Send a frame to a client of `serve_tcp`, and stay."""
    await FrameSender(stream).send(b"frame")
    await anyio.sleep_forever()


@pytest.mark.every_loop
@pytest.mark.usefixtures("at_once")
async def test_frames_through_lost_connections() -> None:
    server = Server(
        frames(0, 1, then=end),
        ConnectionRefusedError("nobody there"),
        frames(2, 5, then=cut),
        frames(6, 7, then=end),
        frames(0, 1, then=stay),  # the server began anew
    )
    heard: list[tuple[str, Any]] = []
    client = FrameClient(server.connect, on_event=lambda *event: heard.append(event))
    async with client:
        numbers = [(await client.receive()).sequence for _ in range(8)]
        assert numbers == [0, 1, 2, 5, 6, 7, 0, 1]
    stats = client.stats
    assert (stats.received, stats.missing, stats.gaps) == (8, 2, 1)
    assert (stats.connections, stats.failures) == (4, 1)
    assert [event for event, _ in heard if event != "waiting"] == [
        *("connected", "lost", "lost", "connected", "gap"),
        *("lost", "connected", "lost", "connected"),
    ]
    assert ("gap", 2) in heard
    assert [detail for event, detail in heard if event == "connected"] == [0, 1, 2, 3]
    server.close()


@pytest.mark.usefixtures("at_once")
async def test_payloads_go_into_the_pool() -> None:
    server = Server(frames(0, 1, then=end), frames(2, then=stay))
    with FramePool(10, slots=1) as pool:
        async with FrameClient(server.connect, pool=pool) as client:
            for number in range(3):
                with await client.receive() as frame:
                    assert pool.stats.free == 0
                    assert bytes(frame.view) == bytes([number])
    server.close()


@pytest.mark.usefixtures("at_once")
async def test_without_reconnecting_the_first_failure_is_told() -> None:
    server = Server(ConnectionRefusedError("nobody there"), frames(1, then=stay))
    async with FrameClient(server.connect, reconnect=False) as client:
        with pytest.raises(ConnectionRefusedError):
            await client.receive()
        assert client.stats.failures == 1
        assert (await client.receive()).sequence == 1  # the next call tries again
    server.close()


async def test_limit_of_bytes() -> None:
    server = Server(frames(1, then=stay))
    async with FrameClient(server.connect, max_bytes=0) as client:
        with pytest.raises(framing.FrameTooLarge):
            await client.receive()
    server.close()


@pytest.mark.every_loop
@pytest.mark.parametrize("where", ["receiving", "waiting"])
async def test_aclose_ends_a_receive(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = frames(then=stay) if where == "receiving" else OSError("nobody there")
    server = Server(first)
    events: list[str] = []
    monkeypatch.setattr(module, "FIRST_WAIT", 1000)
    monkeypatch.setattr(module, "LONGEST_WAIT", 1000)
    client = FrameClient(server.connect, on_event=lambda it, _: events.append(it))
    async with attempting(collect, client) as receiving:
        await until(lambda: {"connected", "waiting"} & {*events})
        await others_wait()
        await client.aclose()
    assert receiving.result == []
    with pytest.raises(azc.StreamClosed):
        await client.receive()
    server.close()


@pytest.mark.every_loop
async def test_aclose_while_it_connects_and_cannot_be_cancelled() -> None:
    server, may_connect = Server(frames(0, then=stay)), anyio.Event()

    async def connect() -> Any:
        with anyio.CancelScope(shield=True):
            await may_connect.wait()
            return await server.connect()

    client = FrameClient(connect)
    async with attempting(client.receive) as receiving:
        await others_wait()
        await client.aclose()
        may_connect.set()
    assert isinstance(receiving.error, azc.StreamClosed)
    assert client._stream is None
    with pytest.raises(anyio.BrokenResourceError):
        await server.streams[0].send(b"is anybody there?")
    server.close()


async def collect(client: FrameClient) -> list[int]:
    return [frame.sequence async for frame in client]


@pytest.mark.every_loop
async def test_cancelled_receive_loses_nothing() -> None:
    server = Server(frames(0, then=stay))
    async with FrameClient(server.connect) as client:
        await client.receive()
        async with cut_short(client.receive):
            before = server.received()
            await server.streams[0].send(b"AZ")
            await until(lambda: server.received() == before + 2)
        packed = framing.FrameHeader(1, 0, "|u1", (1,), "", True, 0, 1).pack()
        await server.streams[0].send(packed[2:] + b"x")
        assert (await client.receive()).sequence == 1
    assert client.stats.connections == 1
    server.close()


async def test_hook_that_fails_hurts_nobody(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_event: str, _detail: Any) -> None:
        raise ZeroDivisionError

    server = Server(frames(0, then=stay))
    async with FrameClient(server.connect, on_event=fail) as client:
        assert (await client.receive()).sequence == 0
    assert "hook" in caplog.text
    server.close()


# ---- the pauses ---------------------------------------------------------------------


def test_pauses_grow_to_the_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "JITTER", 0)
    waits = [seconds_to_wait(n) for n in range(9)]
    assert waits == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10])
    assert seconds_to_wait(10**6) == 10


def test_pauses_are_never_in_step() -> None:
    waits = {seconds_to_wait(0) for _ in range(100)}
    assert len(waits) == 100
    assert 0.05 <= min(waits) <= max(waits) <= 0.1


@pytest.mark.every_loop
@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("option", ["idle_timeout", "frame_timeout"])
async def test_server_that_falls_silent(option: str) -> None:
    """The server falls silent between frames, or within a frame."""

    async def begin(stream: azc.Stream) -> None:
        header = framing.FrameHeader(1, 0, "|u1", (9,), "", True, 0, 9)
        await stream.send(header.pack(), b"some")

    events: list[tuple[str, Any]] = []
    silence = stay if option == "idle_timeout" else begin
    server = Server(frames(0, then=silence), frames(1, then=stay))
    options: dict[str, Any] = {option: 0.2}
    client = FrameClient(
        server.connect, on_event=lambda *event: events.append(event), **options
    )
    async with client:
        for number in (0, 1):
            assert (await client.receive()).sequence == number
    server.close()
    (why,) = [detail for event, detail in events if event == "lost"]
    assert option in str(why)


@pytest.mark.every_loop
async def test_waiting_for_a_slot_of_its_own_is_no_silence() -> None:
    """Each frame has come, but the program keeps the slot for longer than the limit."""
    limit = 0.3
    server = Server(frames(0, 1, 2, then=stay))
    with FramePool(10, slots=1) as pool:
        client = FrameClient(server.connect, pool=pool, idle_timeout=limit)
        async with client:
            frame = await client.receive()
            for number in (1, 2):
                async with attempting(client.receive) as receiving:
                    await until(lambda: pool.stats.waited == number)  # noqa: B023
                    await anyio.sleep(limit + 0.1)  # (a limit that ran has ended first)
                    frame.release()
                frame = receiving.result
                assert frame.sequence == number
            frame.release()
        assert client.stats.connections == 1
    server.close()


# ---- calls that are cancelled -------------------------------------------------------


async def receive_in_pieces(client: FrameClient, is_over: Callable[[], object]) -> None:
    """Receive for a moment, again and again, without a frame."""
    with anyio.fail_after(10):
        while not is_over():
            with anyio.move_on_after(0.02):
                await client.receive()


@pytest.mark.every_loop
async def test_a_pause_goes_on_in_the_next_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "FIRST_WAIT", 0.2)
    monkeypatch.setattr(module, "JITTER", 0)
    refusal = ConnectionRefusedError("nobody there")
    # (On a busy machine a call may end as it connects; the next one connects again.)
    server = Server(refusal, *[frames(then=stay)] * 100)
    async with FrameClient(server.connect) as client:
        await receive_in_pieces(client, lambda: client.stats.connections)
    server.close()


@pytest.mark.every_loop
@pytest.mark.usefixtures("at_once")
async def test_silence_is_counted_from_call_to_call() -> None:
    # (On a busy machine the next connection is silent for too long as well.)
    server = Server(frames(0, then=stay), *[frames(then=stay)] * 100)
    async with FrameClient(server.connect, idle_timeout=0.2) as client:
        await client.receive()
        await receive_in_pieces(client, lambda: client.stats.connections >= 2)
    server.close()


@pytest.mark.every_loop
@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("script", [frames(then=stay), frames(then=end)])
async def test_a_question_that_was_cut_off_is_asked_again(script: Any) -> None:
    """A silent server, and one that has closed the connection without a frame."""
    asked: list[str] = []

    async def ask(refusal: str) -> str:
        asked.append(refusal)
        if len(asked) == 1:
            await anyio.sleep_forever()
        return "web"

    server = Server(script, script)
    async with FrameClient(server.connect) as client:
        client._ask = ask
        async with cut_short(client.receive):
            await until(lambda: asked)
        with anyio.fail_after(10), pytest.raises(WrongMagic, match="for browsers"):
            await client.receive()
    assert len(asked) == 2
    server.close()


@pytest.mark.every_loop
async def test_the_server_is_asked_even_if_calls_are_short() -> None:
    async def ask(_refusal: str) -> str:
        await anyio.lowlevel.checkpoint()
        return "web"

    # (On a busy machine a call may end as it connects; the next one connects again.)
    server = Server(*[frames(then=stay)] * 100)
    async with FrameClient(server.connect) as client:
        client._ask = ask
        with pytest.raises(WrongMagic, match="for browsers"):
            await receive_in_pieces(client, lambda: False)
    server.close()


@pytest.mark.every_loop
async def test_a_second_task_is_refused_even_while_it_connects() -> None:
    server = Server(frames(0, then=stay))
    may_connect = anyio.Event()

    async def connect() -> azc.Stream:
        await may_connect.wait()
        return await server.connect()

    async with FrameClient(connect) as client:
        async with cut_short(client.receive):
            await others_wait()
        async with attempting(client.receive) as first:
            await others_wait()
            with pytest.raises(anyio.BusyResourceError):
                await client.receive()
            may_connect.set()
        assert first.result.sequence == 0
    assert client.stats.connections == 1
    server.close()


async def test_a_stream_that_got_no_receiver_is_closed() -> None:
    """As if a signal handler had raised just after connecting."""
    server = Server(frames(0, then=stay), frames(1, then=stay))
    async with FrameClient(server.connect) as client:
        make, client._new_receiver = client._new_receiver, lambda _: 1 / 0  # type: ignore[assignment]
        with pytest.raises(ZeroDivisionError):
            await client.receive()
        client._new_receiver = make
        assert (await client.receive()).sequence == 1
        with pytest.raises(anyio.BrokenResourceError):
            await server.streams[0].send(b"is anybody there?")
    server.close()


# ---- over TCP -----------------------------------------------------------------------


@pytest.mark.every_loop
@pytest.mark.usefixtures("at_once")
async def test_server_that_is_restarted() -> None:
    async with azc.serve_tcp(show) as server:
        port = server.port
        client = connect_frames("127.0.0.1", port)
        assert bytes((await client.receive()).view) == b"frame"
        await server.aclose(0)
    async with attempting(client.receive) as receiving:
        await until(lambda: client.stats.failures > 1)
        async with azc.serve_tcp(show, port=port) as server:
            await until(lambda: receiving.done)
            await server.aclose(0)
    assert receiving.error is None
    assert client.stats.connections == 2
    await client.aclose()


async def test_unix_without_coming_back(tmp_path: Path) -> None:
    async def show(stream: azc.Stream) -> None:
        await FrameSender(stream).send(b"frame")

    path = str(tmp_path / "socket")
    async with azc.serve_unix(show, path):
        async with connect_frames(path, reconnect=False) as client:
            assert [frame.sequence async for frame in client] == [0]
    async with connect_frames(path, reconnect=False) as client:
        with pytest.raises(FileNotFoundError):
            await client.receive()


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("localhost:80", ("localhost", 80)),
        ("[::1]:80", ("::1", 80)),
        ("/run/azc:80", ("/run/azc:80", None)),
        ("socket", ("socket", None)),
        ("host:http", ("host:http", None)),
        (":80", (":80", None)),
    ],
)
def test_addresses(address: str, expected: tuple[str, int | None]) -> None:
    assert parse_address(address) == expected


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("127.0.0.1", "'127.0.0.1' has no port: write HOST:PORT"),
        ("example.org", "has no port"),
        ("frames.sock", r"put \./ before"),
        (":80", "has no port"),
        ("tcp://127.0.0.1:80", "leave out the ...://"),
        ("127.0.0.1:70000", "port must be"),
    ],
)
def test_what_is_no_address(address: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        connect_frames(address)


async def nothing_yet(_stream: azc.Stream) -> None:
    await anyio.sleep_forever()


async def some_frames(stream: azc.Stream) -> None:
    while True:
        await FrameSender(stream).send(b"frame")
        await anyio.sleep(0.01)


async def another_protocol(stream: azc.Stream) -> None:
    await stream.receive()
    await stream.send(b"500 what?\r\n")
    await anyio.sleep_forever()


@pytest.mark.parametrize(
    ("handler", "wants", "gives", "error", "says"),
    [
        (nothing_yet, "token", "", TokenRefused, "wants a token: give token="),
        (nothing_yet, "token tls", "tls", TokenRefused, "wants a token: give token="),
        (nothing_yet, "token", "wrong", TokenRefused, "refused the token"),
        (some_frames, "", "token", TokenRefused, "wants no token: leave out token="),
        (nothing_yet, "tls", "", WrongMagic, "speaks TLS: give ssl_context="),
        (some_frames, "", "tls", WrongMagic, "speaks no TLS"),
        (nothing_yet, "token", "tls", WrongMagic, "speaks no TLS"),
        (another_protocol, "", "", WrongMagic, "is no server of frames"),
        (None, "", "", WrongMagic, "is for browsers"),
        (None, "", "token", WrongMagic, "is for browsers"),
    ],
)
async def test_what_would_never_heal_is_raised(
    handler: Any,
    wants: str,
    gives: str,
    error: type[Exception],
    says: str,
    tls: tuple[ssl.SSLContext, ssl.SSLContext],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(greeting, "PATIENCE", 5)  # for a busy machine
    monkeypatch.setattr(greeting, "LONGEST", 5)
    of_server, of_client = tls
    tokens = {"token": "secret", "wrong": "another"}
    async with contextlib.AsyncExitStack() as undo:
        if handler is None:
            hub = await undo.enter_async_context(azc.Broadcast())
            server: Any = await undo.enter_async_context(web.serve(hub))
        else:
            server = azc.serve_tcp(
                handler,
                token="secret" if "token" in wants else None,
                ssl_context=of_server if "tls" in wants else None,
            )
            await undo.enter_async_context(server)
        async with connect_frames(
            *("127.0.0.1", server.port),
            token=next((tokens[each] for each in tokens if each in gives), None),
            ssl_context=of_client if "tls" in gives else None,
        ) as client:
            with anyio.fail_after(15), pytest.raises(error, match=says) as caught:
                await client.receive()
        assert f"127.0.0.1:{server.port} " in str(caught.value)
        await server.aclose(0)


@pytest.mark.every_loop
@pytest.mark.usefixtures("at_once")
async def test_no_answer_to_the_token_is_no_refusal() -> None:
    """A full server closes without a word, and so does a proxy without a server."""
    tokens: list[bytes] = []

    async def proxy(stream: azc.Stream) -> None:
        greeting = await stream.receive()
        if greeting.startswith(b"AZCT"):
            tokens.append(greeting[6:])
            if len(tokens) == 3:
                await stream.send(b"\6")
                await show(stream)

    async with azc.serve_tcp(proxy) as server:
        where = "127.0.0.1", server.port
        async with connect_frames(*where, token="secret") as client:
            assert bytes((await client.receive()).view) == b"frame"
        assert client.stats.failures == 2
        await server.aclose(0)
    assert tokens == [b"secret"] * 3


async def test_a_server_that_is_only_slow_is_waited_for() -> None:
    """The client asks, and the server is silent; then its first frame comes."""
    events: list[str] = []

    async def later(stream: azc.Stream) -> None:
        await until(lambda: "silent" in events)
        await show(stream)

    async with azc.serve_tcp(later) as server:
        where = "127.0.0.1", server.port
        options: Any = {"on_event": lambda event, _: events.append(event)}
        async with connect_frames(*where, **options) as client:
            assert bytes((await client.receive()).view) == b"frame"
        await server.aclose(0)
    assert events == ["connected", "silent"]


@pytest.mark.every_loop
@pytest.mark.usefixtures("at_once")
async def test_the_first_failure_is_logged_and_the_last_raised(
    caplog: pytest.LogCaptureFixture,
) -> None:
    port = free_port()
    async with connect_frames("127.0.0.1", port, connect_within=1) as client:
        with anyio.fail_after(10), pytest.raises(OSError, match=r"refused|within"):
            await client.receive()
        assert client.stats.failures > 1
    # (on a busy machine, asyncio may log a slow callback)
    (record,) = (each for each in caplog.records if each.name == "aiozerocopy")
    said = record.getMessage()
    assert said.startswith(f"no frames from 127.0.0.1:{port} for now: ")
    assert "Connection refused" in said


@pytest.mark.every_loop
@pytest.mark.usefixtures("at_once")
async def test_connections_that_bring_nothing_are_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A proxy without a backend accepts each connection, and closes it later."""
    monkeypatch.setattr(module, "SILENCE", 0.0)  # (less than each connection lasts)

    async def connect() -> azc.Stream:
        near, far = azc.socketpair()
        near.abort()
        return far

    async with FrameClient(connect, connect_within=0.3) as client:
        with anyio.fail_after(10), pytest.raises((anyio.EndOfStream, OSError)):
            await client.receive()
    assert client.stats.connections > 1


async def test_an_attempt_that_takes_too_long() -> None:
    client = FrameClient(anyio.sleep_forever, connect_within=0.1)  # type: ignore[arg-type]
    async with client:
        with anyio.fail_after(10), pytest.raises(TimeoutError, match=r"within 0\.1 s"):
            await client.receive()


async def test_strange_certificate(tls: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    context, trusting = tls

    async def show(stream: Any) -> None:
        await FrameSender(stream).send(np.arange(100_000, dtype="u2"))
        await FrameReceiver(stream).receive()

    async with azc.serve_tcp(show, ssl_context=context) as server:
        to = partial(connect_frames, "127.0.0.1", server.port, ssl_context=trusting)
        async with to(hostname="elsewhere.test") as client:
            with pytest.raises(ssl.SSLCertVerificationError):
                await client.receive()
            assert client.stats.failures == 1
        async with to(hostname="localhost") as client:
            frame = await client.receive()
            assert np.array_equal(frame.array, np.arange(100_000, dtype="u2"))
        await server.aclose(0)


async def hook_that_nobody_awaits(_event: str, _detail: Any) -> None:
    """Do nothing: it is never called."""


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"on_event": 3}, "on_event must be a function, not 3"),
        ({"on_event": hook_that_nobody_awaits}, "on_event must be a plain function"),
        ({"max_bytes": None}, "max_bytes must be a whole number, not None"),
        ({"max_bytes": "1M"}, "max_bytes must be a whole number"),
        ({"max_bytes": -1}, "max_bytes must be at least 0"),
        ({"pool": 3}, "pool must be a FramePool or None, not 3"),
        ({"frame_timeout": -1}, "frame_timeout must be above 0"),
        ({"idle_timeout": "5"}, "idle_timeout must be a number"),
    ],
)
def test_options_are_checked_before_it_connects(
    options: dict[str, Any], says: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=says):
        connect_frames("127.0.0.1:9000", **options)


# ---- the examples -----------------------------------------------------------------


@pytest.mark.timeout(30)
def test_examples() -> None:
    folder = Path(__file__).parents[2] / "examples"
    serve = [sys.executable, str(folder / "serve_frames.py"), "0", "secret"]
    with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            port = server.stdout.readline().split()[1]
            view = [sys.executable, str(folder / "view_frames.py"), port]
            options: Any = {"capture_output": True, "text": True, "timeout": 20}
            seen = subprocess.run([*view, "secret", "30"], **options)
            refused = subprocess.run([*view, "wrong"], **options)
        finally:
            server.kill()
    assert "(720, 1280, 3) rgb24" in seen.stdout, seen.stderr
    assert "TokenRefused" in refused.stderr
