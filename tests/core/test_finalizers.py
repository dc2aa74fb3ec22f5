"""The garbage collector, the interpreter's end, forks and other interpreters.

Each test runs a program of its own, since the faults that it looks for end a process:
memory freed too early, a lock that is never released.  `signal.alarm` ends a hang.
"""

import os
import shutil

import pytest
import scripts
from links import linux_only

from aiozerocopy._core.binding import PORTABLE

pytestmark = linux_only  # the programs read /proc
every_loop = pytest.mark.parametrize("loop", ["asyncio", "uvloop", "trio"])

# Shared by the programs below.
TOOLS = """
    import socket
    BIG = 1 << 20
    signal.alarm(12)

    def until(condition):
        deadline = time.monotonic() + 5
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.001)

    def threads():
        return len(os.listdir("/proc/self/task"))

    def must_end_well(pid):
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if status:
            print("the child's status is", status, file=sys.stderr, flush=True)
            os._exit(1)

    async def transfer():
        "Opens streams and uses them."
        data, copy = os.urandom(BIG), bytearray(BIG)
        for reader, writer in (azc.pipe(1 << 16), azc.socketpair()):
            async with reader, writer, anyio.create_task_group() as tasks:
                tasks.start_soon(writer.send, data)
                await reader.receive_exactly(copy)
            assert copy == data

    gc.disable()
"""


def lost(code: str, *arguments: str) -> tuple[str, str]:
    """Return the output of a program that does not close its streams."""
    return scripts.perturbed(TOOLS + code, *arguments)


# ---- the garbage collector ----------------------------------------------------------


@every_loop
def test_published_frame_in_a_cycle(loop: str) -> None:
    """The frame's pin is released before the collector clears the pinned memoryview.

    In the other order, Python before 3.12.7 crashes.
    """
    said, complained = lost(
        """
    from aiozerocopy.broadcast import Broadcast

    async def use(near, data):
        view = memoryview(data)  # older than its holders, so it is cleared first
        stream = azc.wrap_socket(near)
        hub = Broadcast()
        hub.attach(stream, encode=lambda published: [view])
        await hub.publish(b"a frame")
        cycle = [hub, stream]
        cycle.append(cycle)

    for generation in range(3):
        near, far = socket.socketpair()
        data = bytearray(1000)
        run(lambda: use(near, data))
        gc.collect(generation)
        data.append(0)  # it is exported no more
        far.close()
    print("ends")
    """,
        loop,
    )
    assert said == "ends\n"
    assert "BufferError" not in complained


# ---- threads, after the loop and at the end -----------------------------------------


@every_loop
def test_threads_and_the_streams_of_a_closed_loop(loop: str) -> None:
    """Threads send, abort and collect garbage, and all of it ends by itself."""
    said, complained = lost(
        """
    import contextlib
    data = bytearray(BIG)

    async def main(streams):
        for _ in range(8):
            reader, writer = azc.pipe(1 << 16)
            await writer.put(data)
            await begun(writer)
            streams.append((reader, writer))

    def use(reader, writer, go):
        def send():
            go.wait()
            with contextlib.suppress(azc.StreamClosed):
                while True:
                    writer.send_from_thread(b"x" * 1000)
        sender = threading.Thread(target=send)
        sender.start()
        go.wait()
        if writer.fileno() % 2:
            gc.collect()
        writer.abort()
        reader.abort()
        sender.join()

    for _ in range(15):
        streams = []
        run(lambda: main(streams))
        go = threading.Barrier(2 * len(streams))
        users = [threading.Thread(target=use, args=(*each, go)) for each in streams]
        for user in users:
            user.start()
        for user in users:
            user.join()
        del streams, users
        data.append(0)
    until(lambda: threads() == 1)
    print("ends")
    """,
        loop,
    )
    assert said == "ends\n"
    assert complained == ""


# ---- the program's end --------------------------------------------------------------

# (an exit handler from before the package's import runs after all of ours)
STORES = """
    told, answers, fd = map(int, sys.argv[2:])
    data = bytearray(b"a" * BIG)

    def store():
        "What is in the buffer from here on was never sent."
        data[:] = b"\\xdb" * BIG
        os.write(told, b".")
        os.read(answers, 1)  # the test reads to the end: our pipe must be closed
        os._exit(0)  # (the rest of the exit does not matter)

    async def main():
        global stream
        stream = azc.open_writer(fd)
        await stream.put(data)
        await begun(stream)

    run(main)
    """


@pytest.mark.parametrize("warnings", ["default", "error"])
def test_nothing_is_sent_of_what_is_stored_at_the_end(warnings: str) -> None:
    """Every channel is closed before memory is freed."""
    read_fd, write_fd = os.pipe()
    told, tell = os.pipe()
    ask, answer = os.pipe()
    theirs = [tell, ask, write_fd]
    process = scripts.start(
        TOOLS + STORES,
        "asyncio",
        *map(str, theirs),
        before="import atexit\natexit.register(lambda: store())\n",
        warnings=warnings,
        pass_fds=theirs,
    )
    for fd in theirs:
        os.close(fd)
    received = b""
    if os.read(told, 1) == b".":
        while piece := os.read(read_fd, 1 << 20):
            received += piece
    for fd in (told, answer, read_fd):
        os.close(fd)
    status, _, complained = scripts.finish(process)
    assert status == 0, complained
    assert set(received) == set(b"a")
    assert "bytes were still queued" in complained


# ---- forks --------------------------------------------------------------------------


def test_fork_from_c_while_pumps_are_busy() -> None:
    """Python does not notice such a fork.  Still, the child's streams are dead, and it
    can open streams of its own."""
    scripts.run(
        TOOLS
        + """
    import ctypes, mmap, subprocess
    libc = ctypes.PyDLL(None)  # (it keeps the interpreter's lock)
    data = mmap.mmap(-1, 1 << 30, flags=mmap.MAP_PRIVATE | 0x4000)  # no memory
    near, far = azc.socketpair()
    streams, readers = [], []

    def to_a_reader(end, sender):
        readers.append(
            subprocess.Popen(["cat"], stdin=end, stdout=subprocess.DEVNULL)
        )
        streams.append(sender)

    read_fd, write_fd = os.pipe()
    to_a_reader(read_fd, azc.open_writer(write_fd))
    os.close(read_fd)
    ours, theirs = socket.socketpair()
    to_a_reader(theirs, azc.wrap_socket(ours))
    theirs.close()

    async def main():
        await transfer()  # whatever is imported late is imported now
        for stream in streams:
            await stream.put(data)
            await begun(stream)

    def child():
        signal.alarm(5)
        for stream in (near, *streams):
            try:
                stream.send_from_thread(b"child")
            except azc.StreamClosed:
                stream.abort()
            else:
                return 1
        anyio.run(transfer)
        return 0

    run(main)
    for _ in range(20):
        pid = libc.fork()
        if pid == 0:
            code = 2
            try:
                code = child()
            finally:
                os._exit(code)
        must_end_well(pid)
    near.send_from_thread(b"parent")
    assert anyio.run(far.receive) == b"parent"
    for stream in (near, far, *streams):
        stream.abort()
    for reader in readers:
        reader.wait()
    anyio.run(transfer)
    """
    )


# ---- what outlives everything else ---------------------------------------------------

KEPT = {
    "streams": "(*azc.socketpair(), *azc.pipe())",
    "send": "(ends := azc.socketpair(), await ends[0].put(bytes(BIG)))",
    "pool": "azc.FramePool(100).acquire_nowait()",
    "process": "await azc.open_process(['sleep', '100'], stdin=True)",
    "process that talks": "await azc.open_process(['sh', '-c', 'yes >&2'])",
    "film": "await azc.ffmpeg.Writer(['-f', 'null', '-'], (64, 48), fps=25)",
    "ring": "await rings()",
    "broadcast": "(hub := Broadcast(), hub.attach(azc.pipe()[1]))",
}


@pytest.mark.parametrize(
    ("kept", "place"),
    [
        *((kept, "builtins") for kept in KEPT),
        *((kept, "__main__") for kept in ("send", "ring")),
    ],
)
def test_nothing_is_said_and_nothing_hangs_at_the_end(kept: str, place: str) -> None:
    """Objects that remain when modules are cleared and threads are stopped."""
    if kept == "ring" and PORTABLE:
        pytest.skip("the portable build has no rings")
    if kept == "film" and not shutil.which("ffmpeg"):
        pytest.skip("no FFmpeg")
    said = scripts.run(
        f"""
    import asyncio, importlib, signal, tempfile, warnings
    import aiozerocopy as azc
    from aiozerocopy.broadcast import Broadcast

    BIG = 1 << 20
    signal.alarm(10)
    warnings.simplefilter("ignore", ResourceWarning)
    warnings.filterwarnings("ignore", "unclosed <Writer")

    async def rings():
        with tempfile.TemporaryDirectory() as folder:
            listener = azc.shm.listen_ring(folder + "/ring", 1 << 16)
            connector = azc.shm.connect_ring(folder + "/ring", timeout=10)

            async def awaited(opening):
                return await opening

            return await asyncio.gather(awaited(listener), awaited(connector))

    async def main():
        importlib.import_module("{place}").kept = {KEPT[kept]}

    asyncio.run(main())
    """
    )
    assert said == ""


# ---- another interpreter in this process --------------------------------------------


def test_subinterpreter_is_refused_and_harms_nobody() -> None:
    said = scripts.run(
        TOOLS
        + """
    try:
        import _interpreters as interpreters
    except ImportError:
        import _xxsubinterpreters as interpreters
        create = interpreters.create
    else:
        create = lambda: interpreters.create("legacy")

    async def main():
        async with azc.pipe(1 << 16) as (reader, writer):
            ticket = await writer.put(bytes(BIG))
            other = create()
            interpreters.run_string(other, code)
            interpreters.destroy(other)
            await reader.receive_exactly(bytearray(BIG))
            await ticket
            print("ends")

    code = '''if True:
        try:
            import aiozerocopy
        except ImportError as error:
            print(f"refused: {error}", flush=True)
        else:
            print("accepted", flush=True)
    '''
    run(main)
    """
    )
    refused, *rest = said.splitlines()
    assert rest == ["ends"]
    assert refused.startswith("refused: ")
    assert "interpreter" in refused
