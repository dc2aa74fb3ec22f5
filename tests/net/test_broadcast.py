"""One frame to many clients: who gets it, who waits, and which memory is in use."""

import asyncio
import contextlib
import gc
import os
import select
from collections.abc import AsyncIterator, Sequence
from typing import Any

import anyio
import pytest
from anyio import EndOfStream
from anyio.streams.stapled import StapledByteStream
from interruption import Interruption
from links import attempt, attempting, meanwhile, others_wait, until
from live import Live
from transports import both_loops

import aiozerocopy as azc
from aiozerocopy._core import to_all
from aiozerocopy.broadcast import Broadcast, Client, ClientTooSlow, Published
from aiozerocopy.broadcast.encodings import BURST
from aiozerocopy.framing import FrameReceiver
from aiozerocopy.pool import FramePool

np = pytest.importorskip("numpy")
pytestmark = pytest.mark.anyio

BIG = 1 << 20  # more than a socket pair takes by itself


def picture(number: int, size: int = 1000) -> Any:
    return np.full(size, number, "u1")


class Viewer:
    """The far end of a client's stream, which receives frames."""

    def __init__(self, client: Client, near: azc.Stream, far: azc.Stream) -> None:
        self.client = client
        self.near = near
        self.far = far
        self.receiver = FrameReceiver(far)

    async def receive(self) -> tuple[int, int]:
        """Return the next frame's sequence and number, and check that it is whole."""
        frame = await self.receiver.receive()
        assert frame.array.min() == frame.array.max()
        return frame.sequence, int(frame.array[0])

    async def numbers(self, count: int) -> list[int]:
        """Return the numbers of the next frames."""
        return [(await self.receive())[1] for _ in range(count)]

    async def rest(self) -> list[int]:
        """Detach the client; return the numbers of all frames that still arrive."""
        self.client.detach()
        numbers = []
        async with meanwhile(self.near.send_eof):
            with contextlib.suppress(EndOfStream):
                while True:
                    numbers.append((await self.receive())[1])
        return numbers


class Studio:
    """A hub, and viewers whose streams end with the test."""

    def __init__(self, hub: Broadcast) -> None:
        self.hub = hub
        self.viewers: list[Viewer] = []

    def viewer(self, foreign: bool = False, **options: Any) -> Viewer:
        near, far = azc.socketpair()
        stream: Any = StapledByteStream(near, near) if foreign else near
        viewer = Viewer(self.hub.attach(stream, **options), near, far)
        self.viewers.append(viewer)
        return viewer

    async def publish(self, *numbers: int, size: int = BIG, **options: Any) -> None:
        for number in numbers:
            await self.hub.publish(picture(number, size), **options)

    async def publish_slot(self, pool: FramePool, number: int) -> None:
        with await pool.acquire() as frame:
            frame.array[:] = number
            await self.hub.publish(frame)

    def end(self) -> None:
        for viewer in self.viewers:
            viewer.near.abort()
            viewer.far.abort()


@pytest.fixture
async def studio(anyio_backend: object) -> AsyncIterator[Studio]:
    studio = Studio(Live())
    yield studio
    await studio.hub.aclose(0)
    studio.end()


@contextlib.asynccontextmanager
async def on_air(broadcast: Broadcast | None = None) -> AsyncIterator[Studio]:
    """A studio whose hub is entered, so that slow encoders can run."""
    async with broadcast or Broadcast() as hub:
        studio = Studio(hub)
        try:
            yield studio
        finally:
            await hub.aclose(0)
            studio.end()


# ---- all clients keep up ----------------------------------------------------------


async def test_all_get_all(studio: Studio) -> None:
    viewers = [studio.viewer() for _ in range(5)]
    assert studio.hub.clients == tuple(viewer.client for viewer in viewers)
    for number in range(20):
        await studio.publish(number, size=1000)
        for viewer in viewers:
            assert await viewer.receive() == (number, number)
    for viewer in viewers:
        stats = viewer.client.stats
        assert (stats.sent, stats.dropped, stats.queued) == (20, 0, 0)
        assert stats.bytes_sent == viewer.near.stats.bytes_sent == 20 * 1128
        assert stats.age_ns > 0
        assert stats.waiting_ns == 0
        assert viewer.near.stats.sent_at_once == 20


async def test_what_receivers_are_told(studio: Studio) -> None:
    viewer = studio.viewer()
    array = np.arange(12, dtype="f4").reshape(3, 4)
    await studio.hub.publish(
        array, pixel_format="grayf32", metadata=b"12345", timestamp_ns=6
    )
    array[:] = 0  # the hub does not need the array any more
    frame = await viewer.receiver.receive()
    assert np.array_equal(frame.array, np.arange(12).reshape(3, 4))
    found = frame.pixel_format, frame.metadata, frame.key, frame.sequence
    assert (*found, frame.timestamp_ns) == ("grayf32", b"12345", True, 0, 6)


@pytest.mark.parametrize("size", [0, 10, 100_000])
async def test_kinds_of_memory(studio: Studio, size: int) -> None:
    viewer = studio.viewer()
    for data in (b"7" * size, bytearray(b"7" * size), np.full((1, size), 55, "u1")):
        await studio.hub.publish(data)
        assert bytes((await viewer.receiver.receive()).view) == b"7" * size


async def test_frames_that_cannot_travel(studio: Studio) -> None:
    viewer = studio.viewer()
    bad: Any
    for bad in (picture(1)[::2], "text", np.zeros(1, "O")):
        with pytest.raises((TypeError, BufferError)):
            await studio.hub.publish(bad)
    for bad in ("text", 3):
        with pytest.raises(TypeError, match="metadata= must be bytes-like, not '"):
            await studio.hub.publish(picture(1), metadata=bad)
    with pytest.raises(TypeError, match="must be an array or another buffer, not 'li"):
        await studio.hub.publish([1, 2])  # type: ignore[arg-type]
    await studio.publish(3)
    assert await viewer.receive() == (0, 3)


@pytest.mark.every_loop
async def test_metadata_of_any_memory_travels_as_its_bytes(studio: Studio) -> None:
    viewer = studio.viewer()
    metadata: Any = np.arange(3, dtype="<i4")
    await studio.hub.publish(picture(1), metadata=metadata)
    await studio.publish(2)
    assert (await viewer.receiver.receive()).metadata == metadata.tobytes()
    assert await viewer.receive() == (1, 2)


# ---- in step with other senders ---------------------------------------------------


async def test_others_send_between_two_frames(studio: Studio) -> None:
    """Other sends use up a stream's prepared operation, so the hub prepares anew."""
    viewer, other = (studio.viewer(policy="drop_oldest") for _ in range(2))
    sender = azc.FrameSender(viewer.near)
    await studio.publish(1, size=1000)
    async with meanwhile(sender.send, picture(2, 4 * BIG)):
        await others_wait()
        await studio.publish(3, size=1000)
        assert await viewer.numbers(3) == [1, 2, 3]
    await studio.publish(4, 5, size=1000)
    assert await viewer.numbers(2) == [4, 5]
    assert await other.numbers(4) == [1, 3, 4, 5]
    await until(lambda: viewer.client.stats.sent == other.client.stats.sent == 4)


async def test_stream_that_is_watched_twice(studio: Studio) -> None:
    """If a stream has two clients, each of them sends each frame on it."""
    viewer = studio.viewer(policy="drop_oldest")
    twin = studio.hub.attach(viewer.near, policy="drop_oldest")
    await studio.publish(1, size=1000)
    await studio.publish(2, 3)  # two frames that get stuck
    assert await viewer.numbers(6) == [1, 1, 2, 2, 3, 3]
    await until(lambda: viewer.client.stats.sent == twin.stats.sent == 3)
    await studio.publish(4, size=1000)
    assert await viewer.numbers(2) == [4, 4]
    twin.detach()


async def test_client_that_leaves_while_others_are_sent_to(studio: Studio) -> None:
    """The client leaves while a burst of other clients is served before it."""

    def leave(_client: Client, event: str, sequence: int) -> None:
        if (event, sequence) == ("sent", 1):
            viewers[-1].client.detach()

    viewers = [studio.viewer(on_event=leave)]
    viewers += [studio.viewer() for _ in range(BURST)]
    await studio.publish(1, 2, 3, size=10)
    sent = [viewer.client.stats.sent for viewer in viewers]
    assert sent == [3] * BURST + [1]
    assert viewers[-1].client.stats.dropped == 0


def test_client_of_a_loop_that_has_ended() -> None:
    """After the loop's end, nothing would notice the end of a prepared operation."""
    studio = Studio(Live())

    async def publish(number: int) -> Viewer:
        viewer = studio.viewer()
        await studio.publish(number)
        await viewer.receive()
        await until(lambda: viewer.client.stats.sent == 1)
        await studio.publish(number + 1, size=10)
        return viewer

    first = asyncio.run(publish(1))
    second = asyncio.run(publish(3))
    assert first.client.stats.sent == second.client.stats.sent == 2
    assert isinstance(first.client.error, RuntimeError)
    studio.end()


# ---- policies ---------------------------------------------------------------------


async def test_latest_skips_to_the_newest_whole_frame(studio: Studio) -> None:
    stuck, fast = studio.viewer(), studio.viewer(policy="block")
    for number in range(10):
        await studio.publish(number)
        assert await fast.receive() == (number, number)
        assert stuck.client.stats.queued <= 2
    stats = stuck.client.stats
    assert (stats.sent, stats.dropped, stats.queued) == (0, 8, 2)
    assert stats.waiting_ns > 0
    assert await stuck.receive() == (0, 0)
    assert await stuck.receive() == (9, 9)
    await studio.publish(10)
    assert await stuck.receive() == (10, 10)
    assert await fast.receive() == (10, 10)
    await until(lambda: stuck.client.stats.sent == 3)
    await until(lambda: fast.client.stats.sent == 11)


async def test_a_frame_that_has_become_the_newest_is_sent_once(
    studio: Studio, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds even if a signal comes when it has begun, before that is noted."""
    viewer = studio.viewer()
    filled = fill(viewer.near.fileno())
    await studio.publish(0, 1)
    note = to_all._note_moves

    def interrupted(*arguments: Any) -> None:
        monkeypatch.setattr(to_all, "_note_moves", note)
        drain(viewer.far.fileno(), filled)
        assert select.select([viewer.far.fileno()], [], [], 10)[0]  # it has begun
        raise Interruption

    monkeypatch.setattr(to_all, "_note_moves", interrupted)
    with pytest.raises(Interruption):
        await studio.publish(2)
    assert await viewer.receive() == (2, 2)
    await studio.publish(3)
    assert await viewer.receive() == (3, 3)
    await until(lambda: viewer.client.stats.sent == 2)
    assert viewer.client.stats.dropped == 2


def fill(fd: int) -> int:
    """Write until nothing more fits; return the number of bytes."""
    filled = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            filled += os.write(fd, bytes(1000))
    return filled


def drain(fd: int, nbytes: int) -> None:
    while nbytes:
        select.select([fd], [], [])
        nbytes -= len(os.read(fd, nbytes))


async def test_drop_oldest_keeps_as_many_as_its_limit(studio: Studio) -> None:
    viewer = studio.viewer(policy="drop_oldest", limit=3)
    await studio.publish(*range(10))
    assert viewer.client.stats.queued == 4
    assert await viewer.numbers(4) == [0, 7, 8, 9]
    assert viewer.client.stats.dropped == 6


@pytest.mark.every_loop
async def test_block_waits_for_room(studio: Studio) -> None:
    viewer, other = studio.viewer(policy="block", limit=2), studio.viewer()
    await studio.publish(0, 1, 2)
    async with attempting(studio.publish, 3) as publishing:
        await others_wait()
        assert not publishing.done
        assert other.client.stats.dropped == 2  # the other client does not wait
        assert await viewer.numbers(4) == [0, 1, 2, 3]
    assert viewer.client.stats.dropped == 0


@pytest.mark.every_loop
async def test_block_with_a_deadline(studio: Studio) -> None:
    stuck = studio.viewer(policy="block", deadline=0.02)
    other = studio.viewer(policy="block", deadline=60)
    await studio.publish(0, 1)
    assert [await other.receive(), await other.receive()] == [(0, 0), (1, 1)]
    await studio.publish(2)
    assert isinstance(stuck.client.error, ClientTooSlow)
    assert stuck.client.closed
    assert studio.hub.clients == (other.client,)
    assert await other.receive() == (2, 2)


async def test_client_that_ended_keeps_no_memory(studio: Studio) -> None:
    """The client's loop may end before it notices the end of the frame in flight."""
    client = studio.viewer().client
    await studio.publish(0)
    client._end()
    assert client._current is not None
    assert (client._current.buffers, client._current._shared) == ((), None)


async def test_disconnect_at_a_limit_of_bytes(studio: Studio) -> None:
    viewer = studio.viewer(policy="disconnect", limit=3 * BIG)
    await studio.publish(0, 1)
    assert not viewer.client.closed
    await studio.publish(2)
    await viewer.client.wait_closed()
    assert isinstance(viewer.client.error, ClientTooSlow)
    await until(lambda: viewer.client.stats.dropped == 3)
    assert viewer.client.stats.queued == 0
    assert viewer.near.fileno() == -1


@pytest.mark.parametrize("policy", ["latest", "drop_oldest", "disconnect"])
async def test_disconnect_after_a_deadline(studio: Studio, policy: str) -> None:
    viewer = studio.viewer(policy=policy, deadline=0.005)
    while not viewer.client.closed:
        await studio.publish(1)
    assert isinstance(viewer.client.error, ClientTooSlow)


async def hook_that_nobody_awaits(_client: Client, _event: str, _: int) -> None:
    """Do nothing: it is never called."""


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"policy": "newest"}, "policy must be one of"),
        ({"policy": []}, "policy must be one of"),
        ({"encode": None}, "encode must be a function, not None"),
        ({"limit": 0}, "limit must be at least 1, not 0"),
        ({"policy": "block", "limit": -1}, "limit must be at least 1, not -1"),
        ({"limit": 1.5}, "limit must be a whole number, not 1.5"),
        ({"deadline": "5"}, "deadline must be a number of seconds, or None, not '5'"),
        ({"deadline": -1}, "deadline must be above 0 seconds"),
        ({"on_event": 3}, "on_event must be a function, not 3"),
        ({"on_event": hook_that_nobody_awaits}, "on_event must be a plain function"),
    ],
)
async def test_bad_options(studio: Studio, options: dict[str, Any], says: str) -> None:
    near, far = azc.socketpair()
    async with near, far:
        with pytest.raises((TypeError, ValueError), match=says):
            studio.hub.attach(near, **options)
    assert studio.hub.clients == ()


def test_number_of_slots_is_checked() -> None:
    slots: Any
    for slots in ("3", None):
        with pytest.raises(TypeError, match=f"slots must be a whole .*, not {slots!r}"):
            Broadcast(slots)


async def test_what_is_no_stream_to_send_to(studio: Studio) -> None:
    async with azc.pipe() as (reader, _):
        for wrong in (None, reader):
            with pytest.raises(TypeError, match=r"async send\(\) is needed, .*not "):
                studio.hub.attach(wrong)  # type: ignore[arg-type]
    assert studio.hub.clients == ()


# ---- frames that need those before them -------------------------------------------


@pytest.mark.parametrize("policy", ["latest", "drop_oldest"])
async def test_after_a_drop_nothing_before_a_key(studio: Studio, policy: str) -> None:
    viewer = studio.viewer(policy=policy, limit=2)
    await studio.publish(9, key=False)  # dropped, as no key precedes it
    assert viewer.client.stats.dropped == 1
    await studio.publish(0)
    await studio.publish(1, 2, 3, 4, key=False)
    await studio.publish(5)
    await studio.publish(6, key=False)
    assert await viewer.numbers(1) == [0]
    expected = {"latest": [], "drop_oldest": [5, 6]}[policy]
    assert await viewer.numbers(len(expected)) == expected
    await studio.publish(7, key=False)
    await studio.publish(8)
    assert (await viewer.numbers(1 + (policy == "drop_oldest")))[-1] == 8


# ---- newcomers ----------------------------------------------------------------------


async def test_newcomer_gets_the_last_key_and_waits_for_the_next() -> None:
    async with on_air() as studio:
        await studio.publish(1)
        await studio.publish(2, key=False)
        viewer = studio.viewer()
        assert await viewer.receive() == (0, 1)
        await studio.publish(3, key=False)
        await studio.publish(4)
        assert await viewer.receive() == (3, 4)


# ---- encodings ----------------------------------------------------------------------


@pytest.mark.parametrize("slow", [False, True])
async def test_encoder_that_fails_costs_only_its_own_clients(
    slow: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_published: Published) -> Sequence[Any]:
        raise ZeroDivisionError

    async def fail_later(published: Published) -> Sequence[Any]:
        await anyio.lowlevel.checkpoint()
        return fail(published)

    async with on_air(Live()) as studio:
        bad = studio.viewer(encode=fail_later if slow else fail)
        good = studio.viewer()
        with FramePool(10, slots=1) as pool:
            await studio.publish_slot(pool, 1)
            await bad.client.wait_closed()
            assert isinstance(bad.client.error, ZeroDivisionError)
            assert await good.receive() == (0, 1)
            await until(lambda: pool.stats.free == 1)
    [record] = (each for each in caplog.records if each.name == "aiozerocopy")
    assert record.levelname == "ERROR"
    assert record.getMessage().endswith("raise ZeroDivisionError\nZeroDivisionError\n")


@both_loops
@pytest.mark.parametrize(
    ("returned", "says"),
    [
        (None, "NoneType"),
        (b"one buffer", "bytes"),
        (memoryview(b"one buffer"), "memoryview"),
        ([b"data", None], "list of bytes, NoneType"),
    ],
)
async def test_encoder_that_returns_no_list_of_buffers(
    studio: Studio, returned: Any, says: str
) -> None:
    bad = studio.viewer(encode=lambda _: returned)
    await studio.publish(1)
    await bad.client.wait_closed()
    assert isinstance(bad.client.error, TypeError)
    assert str(bad.client.error) == f"encode must return a list of buffers, not {says}"


@pytest.mark.parametrize("at_the_end", [False, True])
async def test_encoder_whose_future_somebody_cancels(at_the_end: bool) -> None:
    """It costs only the encoder's own clients, also if the encoder is being stopped."""
    awaited = asyncio.get_running_loop().create_future()
    begun: list[int] = []

    async def encode(published: Published) -> Sequence[Any]:
        begun.append(published.sequence)
        await awaited
        return [published.view]

    async with on_air() as studio:
        bad = studio.viewer(encode=encode)
        good = studio.viewer()
        await studio.publish(1)
        await until(lambda: begun == [0])
        awaited.cancel()
        if at_the_end:
            studio.hub._encodings[encode].stop()
        await bad.client.wait_closed()
        assert "cancelled" in str(bad.client.error)
        await studio.publish(2)
        assert await good.numbers(2) == [1, 2]


# ---- encoders that take their time --------------------------------------------------


async def test_newcomer_between_two_encodings_gets_the_frame_once() -> None:
    """Joining gave it the frame, although it is now among the clients to serve."""
    joined: list[Viewer] = []

    def first(published: Published) -> Sequence[Any]:
        if not joined:
            joined.append(studio.viewer(encode=second))
        return published.wire

    def second(published: Published) -> Sequence[Any]:
        return published.wire

    async with on_air() as studio:
        others = [studio.viewer(encode=each) for each in (first, second)]
        await studio.publish(1, 2, size=1000)
        assert [await joined[0].receive() for _ in range(2)] == [(0, 1), (1, 2)]
        assert [each.client.stats.sent for each in (*joined, *others)] == [2] * 3


class SlowEncoder:
    """Finishes a frame when the test says so."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self._go = anyio.Semaphore(0)

    async def __call__(self, published: Published) -> Sequence[Any]:
        self.begun.append(published.sequence)
        await self._go.acquire()
        return [b"frame %d;" % published.array[0]]

    def finish(self, frames: int = 1) -> None:
        for _ in range(frames):
            self._go.release()


@pytest.mark.every_loop
async def test_slow_encoder_delays_neither_publisher_nor_others() -> None:
    """The encoder takes one frame at a time, and then the newest one."""
    encode = SlowEncoder()
    async with on_air() as studio:
        slow = [studio.viewer(encode=encode) for _ in range(2)]
        fast = studio.viewer()
        raw = studio.viewer(encode=lambda published: [published.view])
        for number in range(10):
            await studio.publish(number, size=1000)
            assert await fast.receive() == (number, number)
            assert await raw.far.receive() == bytes([number]) * 1000
            await until(lambda: encode.begun == [0])
        assert fast.client.stats.dropped == raw.client.stats.dropped == 0
        encode.finish(2)
        for viewer in slow:
            data = bytearray(len(b"frame 0;frame 9;"))
            await viewer.far.receive_exactly(data)
            assert data == b"frame 0;frame 9;"
            stats = viewer.client.stats
            assert (stats.sent, stats.dropped) == (2, 8)
        assert encode.begun == [0, 9]


async def test_slow_encoder_and_frames_that_need_those_before() -> None:
    """After a dropped frame, the encoder gets no frame before the next key."""
    encode = SlowEncoder()
    async with on_air() as studio:
        viewer = studio.viewer(encode=encode)
        await studio.publish(0, size=10)
        await until(lambda: encode.begun == [0])
        await studio.publish(1, 2, 3, size=10, key=False)
        assert viewer.client.stats.dropped == 3
        await studio.publish(4, size=10)
        encode.finish()
        await until(lambda: encode.begun == [0, 4])
        await studio.publish(5, size=10, key=False)
        encode.finish()
        await until(lambda: encode.begun == [0, 4, 5])
        encode.finish()
        await until(lambda: viewer.client.stats.sent == 3)
        assert viewer.client.stats.dropped == 3


@pytest.mark.every_loop
async def test_slow_encoder_of_a_client_who_must_not_miss_a_frame() -> None:
    encode = SlowEncoder()
    async with on_air() as studio, anyio.create_task_group() as tasks:
        viewer = studio.viewer(encode=encode, policy="block")
        await studio.publish(0, size=10)
        publishing = attempt(tasks, studio.publish, 1)
        await others_wait()
        assert not publishing.done
        encode.finish()
        await until(lambda: publishing.done)
        encode.finish()
        await until(lambda: viewer.client.stats.sent == 2)
        assert (encode.begun, viewer.client.stats.dropped) == ([0, 1], 0)


async def test_slow_encoder_and_newcomers() -> None:
    encode = SlowEncoder()
    async with on_air() as studio:
        await studio.publish(1, 2, size=10)
        first = studio.viewer(encode=encode)  # for it, the last frame is encoded
        encode.finish()
        assert await first.far.receive() == b"frame 2;"
        second = studio.viewer(encode=encode)  # gets the frame that was encoded before
        assert await second.far.receive() == b"frame 2;"
        await studio.publish(3, size=10)
        third = studio.viewer(encode=encode)  # even while another frame is encoded
        assert await third.far.receive() == b"frame 2;"
        encode.finish()
        for viewer in (first, second, third):
            assert await viewer.far.receive() == b"frame 3;"
        assert encode.begun == [1, 2]


@pytest.mark.every_loop
async def test_slow_encoder_whose_clients_leave() -> None:
    """The encoder ends, unless a new client comes before that."""
    encode = SlowEncoder()
    async with on_air(Live()) as studio:
        gone = studio.viewer(encode=encode)
        await studio.publish(1, size=10)
        await until(lambda: encode.begun == [0])
        gone.client.detach()
        new = studio.viewer(encode=encode)
        await studio.publish(2, size=10)
        await others_wait()
        assert encode.begun == [0]
        encode.finish(2)
        data = bytearray(16)
        await new.far.receive_exactly(data)
        assert data == b"frame 1;frame 2;"
        new.client.detach()
        await until(lambda: not studio.hub._encodings)


@pytest.mark.every_loop
async def test_slow_encoder_at_the_end_of_the_broadcast() -> None:
    """The frame that is being encoded is still sent, except with a grace of 0."""
    encode = SlowEncoder()
    async with anyio.create_task_group() as tasks:
        async with on_air() as studio:
            viewer = studio.viewer(encode=encode)
            await studio.publish(1, size=10)
            closing = attempt(tasks, studio.hub.aclose, 30)
            await others_wait()
            assert not closing.done
            encode.finish()
            assert await viewer.far.receive() == b"frame 1;"
            await until(lambda: closing.done)
        async with on_air() as studio:
            studio.viewer(encode=encode)
            await studio.publish(1, size=10)
            await studio.hub.aclose(0)
    assert len(encode.begun) <= 2


async def test_slow_encoder_needs_the_block_of_the_hub(studio: Studio) -> None:
    near, far = azc.socketpair()
    async with near, far:
        with pytest.raises(RuntimeError, match="async with"):
            studio.hub.attach(near, encode=SlowEncoder())
    assert studio.hub.clients == ()
    async with Broadcast() as hub:
        with pytest.raises(RuntimeError, match="once"):
            await hub.__aenter__()


# ---- memory -------------------------------------------------------------------------


async def test_pool_frame_is_leased_until_all_have_it(studio: Studio) -> None:
    viewers = [studio.viewer(), studio.viewer()]
    with FramePool(BIG, slots=2) as pool:
        await studio.publish_slot(pool, 9)
        assert await viewers[0].receive() == (0, 9)
        assert pool.stats.free == 1
        assert await viewers[1].receive() == (0, 9)
        await until(lambda: pool.stats.free == 2)


@pytest.mark.parametrize("policy", ["latest", "drop_oldest", "disconnect"])
@pytest.mark.parametrize("broadcast", [Live, Broadcast])
async def test_stuck_clients_hold_no_slots(
    policy: Any, broadcast: type[Broadcast]
) -> None:
    async with on_air(broadcast()) as studio:
        with FramePool(BIG, slots=3) as pool:
            for number in range(12):  # with each frame, one more client gets stuck
                studio.viewer(policy=policy)
                await studio.publish_slot(pool, number)
            assert pool.stats.free >= 1
        first = studio.viewers[0]
        assert await first.receive() == (0, 0)
        assert first.client.error is None
        for viewer in studio.viewers[:4]:
            numbers = await viewer.rest()
            assert numbers == sorted(set(numbers))


async def test_copied_frames_go_to_the_heap_when_slots_are_out() -> None:
    async with on_air(Live(slots=1)) as studio:
        viewer = studio.viewer(policy="drop_oldest", limit=20)
        await studio.publish(*range(12))
        assert await viewer.numbers(12) == list(range(12))


@pytest.mark.parametrize(
    ("policy", "numbers"),
    [("latest", [2, 3]), ("drop_oldest", [0, 1, 2, 3]), ("disconnect", [0, 1, 2, 3])],
)
async def test_frame_that_has_not_begun(
    studio: Studio, policy: str, numbers: list[int]
) -> None:
    """The policy decides whether the frame is replaced or waits."""
    viewer = studio.viewer(policy=policy)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(viewer.near.send, bytes(BIG))  # other senders are allowed
        await until(lambda: viewer.near.stats.messages_queued)
        await studio.publish(0, 1, 2, 3)
        assert viewer.client.stats.queued == len(numbers)
        await viewer.far.receive_exactly(bytearray(BIG))
        assert await viewer.numbers(len(numbers)) == numbers
    assert viewer.client.stats.dropped == 4 - len(numbers)


# ---- clients that come and go -------------------------------------------------------


async def test_client_that_is_detached_as_another_fails(studio: Studio) -> None:
    """Both clients are served by one call."""

    def leave(_: Client, _event: str, _sequence: int) -> None:
        studio.viewers[1].client.detach()

    failing, twin = studio.viewer(on_event=leave), studio.viewer()
    failing.near.abort()
    await studio.publish(1, size=10)
    assert isinstance(failing.client.error, azc.StreamClosed)
    assert twin.client.stats.sent == twin.client.stats.bytes_sent == 0


@pytest.mark.every_loop
async def test_client_that_leaves_inside_of_a_frame(studio: Studio) -> None:
    gone = studio.viewer()
    await studio.publish(1, 2)
    async with meanwhile(gone.client.wait_closed):
        await gone.far.receive(1000)
        gone.far.abort()
    assert isinstance(gone.client.error, azc.StreamBroken)
    stats = gone.client.stats
    assert (stats.sent, stats.dropped, stats.queued) == (0, 2, 0)


@pytest.mark.every_loop
async def test_client_that_has_left_is_noticed_by_the_next_frame(
    studio: Studio,
) -> None:
    client = (gone := studio.viewer()).client
    await studio.publish(1, size=10)
    await until(lambda: client.stats.sent == 1)
    gone.far.abort()
    await others_wait()
    assert client.error is None
    await studio.publish(2, size=10)
    await until(lambda: client.error is not None)
    assert isinstance(client.error, azc.StreamBroken)


async def test_closed_stream_is_refused(studio: Studio) -> None:
    near, far = azc.socketpair()
    async with near, far:
        pass
    with pytest.raises(azc.StreamClosed):
        studio.hub.attach(near)
    assert studio.hub.clients == ()


@pytest.mark.every_loop
async def test_a_stream_that_is_being_closed_gets_no_more_frames(
    studio: Studio,
) -> None:
    viewer = studio.viewer()
    await viewer.near.put(bytes(BIG))
    async with meanwhile(viewer.near.aclose):
        await until(lambda: viewer.near._refusal)
        await studio.publish(1)
        error = viewer.client.error
        assert "being closed" in str(error)
        assert isinstance(error, azc.StreamClosed)
        await viewer.far.receive_exactly(bytearray(BIG))
    with pytest.raises(EndOfStream):
        await viewer.far.receive()


@pytest.mark.every_loop
async def test_detached_client_completes_what_has_begun(studio: Studio) -> None:
    viewer = studio.viewer()
    await studio.publish(1, 2)
    viewer.client.detach()
    viewer.client.detach()
    await viewer.client.wait_closed()
    await studio.publish(3)
    assert viewer.client.stats.queued == 0
    async with meanwhile(viewer.near.send_eof):
        assert await viewer.receive() == (0, 1)
        with pytest.raises(EndOfStream):
            await viewer.receiver.receive()


@pytest.mark.every_loop
async def test_aclose_waits_for_what_is_on_its_way() -> None:
    async with on_air() as studio:
        viewer = studio.viewer()
        async with anyio.create_task_group() as tasks:
            await studio.publish(1, 2)
            tasks.start_soon(viewer.client.wait_closed)
            receiving = attempt(tasks, viewer.numbers, 2)
            await studio.hub.aclose(30)
        assert receiving.result == [1, 2]
        with pytest.raises(azc.StreamClosed):
            await studio.publish(3)
        with pytest.raises(azc.StreamClosed):
            studio.hub.attach(viewer.near)


@pytest.mark.every_loop
async def test_aclose_ends_a_publish_that_waits(studio: Studio) -> None:
    studio.viewer(policy="block")
    await studio.publish(1, 2)
    async with attempting(studio.publish, 3) as publishing:
        await others_wait()
        await studio.hub.aclose(0)
    assert publishing.done


async def test_hook_hears_of_everything(studio: Studio) -> None:
    heard: list[tuple[str, int]] = []

    def hear(client: Client, event: str, sequence: int) -> None:
        heard.append((event, sequence))
        if event == "dropped":
            raise ZeroDivisionError  # logged, without further effect

    viewer = studio.viewer(on_event=hear)
    await studio.publish(0, 1, 2)
    await viewer.receive()
    await viewer.receive()
    await until(lambda: len(heard) == 3)
    viewer.client.detach()
    assert heard == [("dropped", 1), ("sent", 0), ("sent", 2), ("closed", -1)]


@pytest.mark.every_loop
async def test_publishing_tasks_take_turns(studio: Studio) -> None:
    viewer = studio.viewer(policy="drop_oldest", limit=100)
    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(studio.publish, number)
    got = [await viewer.receive() for _ in range(20)]
    assert [sequence for sequence, _ in got] == list(range(20))


# ---- foreign streams, which do not keep messages whole -------------------------------


@pytest.mark.every_loop
async def test_foreign_stream_is_fed_by_wait_closed(studio: Studio) -> None:
    viewer = studio.viewer(foreign=True)
    client = viewer.client
    async with attempting(client.wait_closed) as waiting:
        for number in range(3):
            await studio.publish(number)
            assert await viewer.receive() == (number, number)
        await until(lambda: not client.stats.queued)
        await studio.publish(3, 4, 5)
        assert await viewer.numbers(2) == [3, 5]
        viewer.far.abort()
        await studio.publish(6)
        await until(lambda: waiting.done)
    assert isinstance(client.error, azc.StreamBroken)
    assert client.stats.dropped == 2


async def test_foreign_stream_that_nobody_can_feed_is_forgotten(studio: Studio) -> None:
    """Nothing is encoded for it, either.  (A signal may have ended its feeder.)"""
    near, far = azc.socketpair()
    encoded: list[int] = []

    def encode(frame: Published) -> Sequence[Any]:
        encoded.append(frame.sequence)
        return frame.wire

    async with near, far:
        client = studio.hub.attach(StapledByteStream(near, near), encode=encode)
        await studio.publish(1)
        assert (studio.hub.clients, encoded) == ((client,), [0])
        del client
        gc.collect()
        await studio.publish(2)
        assert (studio.hub.clients, encoded) == ((), [0])


@pytest.mark.every_loop
@pytest.mark.parametrize("how", ["deadline", "cancel"])
async def test_foreign_stream_that_is_stuck(studio: Studio, how: str) -> None:
    client = studio.viewer(foreign=True, deadline=0.005).client
    async with anyio.create_task_group() as tasks:
        waiting = attempt(tasks, client.wait_closed)
        await studio.publish(1, size=4 * BIG)
        await others_wait()
        if how == "cancel":
            tasks.cancel_scope.cancel()
        else:
            while not waiting.done:
                await studio.publish(2)
    assert isinstance(client.error, azc.StreamBroken)
    assert isinstance(client.error, ClientTooSlow) == (how == "deadline")
