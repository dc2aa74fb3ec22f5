"""What a program does with each kind of stream, and what must hold whatever fails.

A `Scene` is run while its system calls are made to fail (`fault_server`, which forks a
process for each run), or under a limit (`limited`).  Each of its calls must end, with a
result or an exception of `EXPECTED`; either way the caller then owns the buffers again.
The reader gets whole messages in order, and at most the beginning of one more.  If no
call reported a fault, it gets all messages.
"""

import asyncio
import contextlib
import gc
import io
import os
import time
import traceback
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
from inventory import held, open_files
from oracle import CANARY, Checker, message, poison

import aiozerocopy as azc
from aiozerocopy._core import borrows
from aiozerocopy._process import child as child_process

EXPECTED = (
    OSError,  # StreamBroken is one
    MemoryError,
    BufferError,  # "the buffer's memory cannot be read"
    anyio.ClosedResourceError,
    anyio.BrokenResourceError,
    anyio.EndOfStream,
    azc.IncompleteReceive,
)
# A send to a child that has closed its stdin waits this long for the child's end.
child_process.LAST_WORDS = 0.05
SIZES = (100, 300_000, 5_000, 70_000)
PATIENCE = 2.0  # seconds for something that is just ending
HANGS = 10.0  # seconds for something that takes 0.1
# Its thread is started before anything fails: `Thread.start` waits for ever for a
# thread that finds no memory when it begins.
THREAD = ThreadPoolExecutor(1)
LAST = 1_000_000  # the number of the last message


class Scene:
    """What was sent and what came, for one case."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.complaints: list[str] = []
        self.errors: list[str] = []  # that calls raised
        self.sent: list[int] = []  # numbers of the messages for which `send` returned
        self._number = 0
        self._checkers: list[Checker] = []

    # -- calls, each of which may fail --------------------------------------------

    @contextlib.asynccontextmanager
    async def may_fail(self, what: str) -> Any:
        try:
            yield
        except BaseException as error:
            self.judge(what, error)

    async def tries(self, what: str, call: Callable[[], Awaitable[Any]]) -> Any:
        """Return the call's result, or None if it reported a fault."""
        async with self.may_fail(what):
            return await call()

    def judge(self, what: str, error: BaseException) -> None:
        for each in leaves(error):
            if isinstance(each, asyncio.CancelledError):
                raise error
            self.errors.append(f"{what}: {each!r}")
            if not isinstance(each, EXPECTED) and "new thread" not in str(each):
                text = "".join(traceback.format_exception(each))
                self.complaints.append(f"{what} raised an unexpected exception: {text}")

    def checker(self) -> Checker:
        """Make a checker for one receiver."""
        checker = Checker()
        self._checkers.append(checker)
        return checker

    def next(self, size: int) -> tuple[int, bytearray]:
        self._number += 1
        return self._number, message(self._number, 0, size)

    def is_ours_again(self, data: bytearray, what: str) -> None:
        poison(data, CANARY)
        try:
            data.clear()
        except BufferError:
            self.complaints.append(f"{what} has ended and still borrows its buffer")

    async def sends(self, what: str, call: Callable[[Any], Awaitable[Any]]) -> None:
        """Send a message of each size, and poison it the instant the call ends."""
        for size in SIZES:
            number, data = self.next(size)
            async with self.may_fail(what):
                await call(data)
                self.sent.append(number)
            self.is_ours_again(data, what)

    async def uses(self, stream: azc.SendStream) -> None:
        """Send in every possible way, and close."""

        async def put(data: bytearray) -> None:
            await (await stream.put(data))

        async with self.may_fail("aclose"), stream:
            await self.sends("send", stream.send)
            await self.sends("send of two", lambda d: stream.send(d, b""))
            await self.sends("put", put)
            await self.sends("send_many", lambda d: stream.send_many([d]))
            _, data = self.next(900_000)
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self.tries, "cancelled", lambda: stream.send(data))
                    await anyio.lowlevel.checkpoint()
                    await anyio.lowlevel.checkpoint()
                    scope.cancel()
            self.is_ours_again(data, "a cancelled send")
            await self.sends("send_from_thread", lambda d: in_thread(stream, d))
            await self.tries("flush", stream.flush)

    async def drains(self, stream: Any) -> None:
        """Receive to the end, and check the messages."""
        checker = self.checker()
        memory = bytearray(128 << 10)
        try:
            while True:
                n = await stream.receive_into(memory)
                checker.feed(memoryview(memory)[:n])
        except anyio.EndOfStream:
            pass
        except AssertionError as error:
            self.complaints.append(f"what arrived is wrong: {error}")
        except BaseException as error:
            self.judge("receive_into", error)
        finally:
            self.is_ours_again(memory, "receive_into")

    # -- afterwards -----------------------------------------------------------------

    def look_back(self) -> None:
        """All messages arrived unless a call reported a fault; nothing is left."""
        for checker in self._checkers:
            if list(checker.counts) != sorted(checker.counts):
                self.complaints.append(f"out of order: {list(checker.counts)}")
            if not self.errors:
                lost = set(self.sent) - set(checker.counts)
                if lost:
                    self.complaints.append(f"lost, and no call failed: {sorted(lost)}")
                with contextlib.suppress(AssertionError):
                    checker.finish()
                    continue
                self.complaints.append("the data ended in a message; no call failed")
        gc.collect()
        borrows.sweep()
        if left := held():
            self.complaints.append(f"borrowed after the end: {left}")


def leaves(error: BaseException) -> list[BaseException]:
    """Return the exceptions in a group, or the exception itself."""
    inner = getattr(error, "exceptions", None)
    return [leaf for each in inner for leaf in leaves(each)] if inner else [error]


async def in_thread(stream: azc.SendStream, data: bytearray) -> None:
    """Poll for the end: asyncio's own way back from a thread may be what fails."""
    sending = THREAD.submit(stream.send_from_thread, data)
    while not sending.done():  # noqa: ASYNC110
        await anyio.sleep(0.001)
    sending.result()


# ---- the scenes ---------------------------------------------------------------------


async def watch(scene: Scene, reader: Any) -> None:
    async with scene.may_fail("aclose of the reader"), reader:
        await scene.drains(reader)


async def both(scene: Scene, writer: Any, reader: Any) -> None:
    """Use the writer, while another task drains the reader."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch, scene, reader)
        await scene.uses(writer)


async def adopted_pipe(scene: Scene) -> None:
    """A pipe of fds made elsewhere; `relayed` has a pipe of ours."""
    async with scene.may_fail("open"):
        reader, writer = opened_pipe()
        await both(scene, writer, reader)


def opened_pipe(**options: Any) -> tuple[azc.ReceiveStream, azc.SendStream]:
    ends = os.pipe()
    with contextlib.ExitStack() as opened:
        files = [opened.enter_context(os.fdopen(fd, "rb", 0)) for fd in ends[:1]]
        files += [opened.enter_context(os.fdopen(fd, "wb", 0)) for fd in ends[1:]]
        reader = azc.open_reader(files[0])
        opened.callback(reader.abort)
        writer = azc.open_writer(files[1], **options)
        opened.pop_all()
    return reader, writer


async def lending(scene: Scene) -> None:
    """Frames of a pool, lent to a pipe and taken back."""
    async with scene.may_fail("pipe"):
        await lend_frames(scene, *opened_pipe(peer="reads"))


async def lending_unix(scene: Scene) -> None:
    """Frames of a pool, lent to a socket and taken back."""
    async with scene.may_fail("socketpair"):
        await lend_frames(scene, *azc.socketpair(peer="reads"))


async def lend_frames(
    scene: Scene, reader: azc.ReceiveStream, writer: azc.SendStream
) -> None:
    async with scene.may_fail("pool"):
        pool = azc.FramePool(400_000, slots=2)

        async def lend() -> None:
            async with scene.may_fail("aclose"), writer:
                for turn in range(6):
                    async with scene.may_fail("a frame"):
                        frame = await pool.acquire()
                        number, data = scene.next(400_000 - 32)
                        frame.view[:] = data
                        try:
                            with anyio.move_on_after(0 if turn == 3 else None):
                                await writer.send(frame)
                                scene.sent.append(number)
                        finally:
                            frame.release()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch, scene, reader)
            tasks.start_soon(lend)


async def served(
    scene: Scene, server: Any, connect: Callable[[Any], Awaitable[Any]]
) -> None:
    """A client that uses its stream, and a server that drains it."""

    async def handle(stream: Any) -> None:
        await scene.drains(stream)

    async def ask(running: Any) -> None:
        async with scene.may_fail("connect"):
            with anyio.fail_after(5):
                stream = await connect(running)
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(scene.uses, stream)

    async with scene.may_fail("serve"), server(handle) as running:
        await ask(running)


async def tcp(scene: Scene) -> None:
    await served(
        scene,
        lambda handle: azc.serve_tcp(handle, "127.0.0.1", 0),
        lambda server: azc.connect_tcp("127.0.0.1", server.port),
    )


async def unix(scene: Scene) -> None:
    path = scene.folder / "socket"
    await served(
        scene,
        lambda handle: azc.serve_unix(handle, path),
        lambda _: azc.connect_unix(path),
    )


async def relayed(scene: Scene) -> None:
    """Relay a pipe to a socket, in the kernel, and then a file."""
    path = scene.folder / "file"
    path.write_bytes(message(LAST, 0, 200_000))
    async with scene.may_fail("open"):
        async with azc.pipe() as (source, feed), azc.socketpair() as (out, far):

            async def pass_on() -> None:
                async with scene.may_fail("relay"), source, out:
                    await azc.relay(source, out)
                    if not scene.errors:  # else a message may be incomplete
                        await azc.relay(path, out)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(pass_on)
                tasks.start_soon(watch, scene, far)
                await scene.uses(feed)


async def files(scene: Scene) -> None:
    """Open files, sent with messages between two sockets."""
    async with scene.may_fail("socketpair"):
        one, other = azc.socketpair()

        async def receive() -> None:
            async with scene.may_fail("aclose of the reader"), other:
                with contextlib.suppress(anyio.EndOfStream):
                    while True:
                        got = await other.receive_fds(1000, 4)
                        for fd in got[1]:
                            os.close(fd)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(receive)
            async with scene.may_fail("aclose"), one:
                for _ in range(5):
                    data = bytearray(1000)
                    await scene.tries("fds", partial(one.send_fds, data, [2]))
                    scene.is_ours_again(data, "send_fds")


async def rings(scene: Scene) -> None:
    """Records through shared memory."""
    path = scene.folder / "ring"

    async def consume() -> None:
        # (A timeout, as the client may fail and never connect.)
        async with scene.may_fail("listen_ring"):
            async with azc.shm.listen_ring(path, 1 << 16, timeout=2) as ring:
                checker = scene.checker()
                async for record in ring:
                    checker.feed(bytes(record))
                    record.release()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(consume)
        async with scene.may_fail("connect_ring"):
            async with azc.shm.connect_ring(path, timeout=2) as ring:
                for _ in range(12):
                    number, data = scene.next(20_000)
                    async with scene.may_fail("record"):
                        await ring.send(data)
                        scene.sent.append(number)
                    scene.is_ours_again(data, "a record's send")


async def broadcast(scene: Scene) -> None:
    """Frames to three viewers."""
    async with scene.may_fail("broadcast"), contextlib.AsyncExitStack() as stack:
        hub = await stack.enter_async_context(azc.Broadcast())
        async with anyio.create_task_group() as tasks:
            pairs, clients = [], []
            for _ in range(3):
                async with scene.may_fail("socketpair"):
                    near, far = azc.socketpair()
                    pairs.append(near)
                    tasks.start_soon(watch, scene, far)
                    clients.append(hub.attach(near, encode=lambda it: [it.view]))
            for size in (1_000, 100_000, 700_000) * 3:
                _, data = scene.next(size)
                await scene.tries("publish", partial(hub.publish, data))
                scene.is_ours_again(data, "publish")
            await hub.aclose(5)
            for client in clients:
                if client.error is not None:
                    scene.judge("a viewer", client.error)
            for near in pairs:
                await scene.tries("aclose", near.aclose)


async def child(scene: Scene) -> None:
    """Messages to cat and back."""
    async with scene.may_fail("open_process"):
        async with azc.open_process(["cat"], stdin=True, stdout=True) as process:
            async with anyio.create_task_group() as tasks:
                assert process.stdin is not None
                tasks.start_soon(watch, scene, process.stdout)
                await scene.uses(process.stdin)


SCENES: dict[str, Callable[[Scene], Awaitable[None]]] = {
    each.__name__: each
    for each in (
        adopted_pipe,
        lending,
        lending_unix,
        tcp,
        unix,
        relayed,
        files,
        rings,
        broadcast,
        child,
    )
}


async def watched(name: str, scene: Scene) -> None:
    """Run a scene; if it hangs, its tasks' stacks become a complaint."""

    def complain() -> None:
        stacks = io.StringIO()
        for task in asyncio.all_tasks():
            task.print_stack(file=stacks)
        scene.complaints.append(f"the scene hangs:\n{stacks.getvalue()}")
        tasks.pop().cancel()

    tasks: list[Any] = [asyncio.current_task()]
    timer = asyncio.get_running_loop().call_later(HANGS, complain)
    await SCENES[name](scene)
    timer.cancel()


def play(
    name: str,
    folder: str,
    under: contextlib.AbstractContextManager[object] | None = None,
) -> Scene:
    """Run a scene to its end, under a limit if there is one."""
    scene = Scene(Path(folder))
    before = open_files()
    try:
        with under or contextlib.nullcontext():
            anyio.run(watched, name, scene)
    except asyncio.CancelledError:
        assert scene.complaints  # the scene hung
    except BaseException as error:
        scene.judge("the loop", error)  # calls of asyncio itself may fail, too
    else:
        deadline = time.monotonic() + PATIENCE
        while left := {k: v for k, v in open_files().items() if k not in before}:
            gc.collect()
            time.sleep(0.001)  # threads of ours may be about to end
            if time.monotonic() > deadline:
                scene.complaints.append(f"fds are left: {left}")
                break
    scene.look_back()
    return scene
