"""A real X server's screen: the content of its frames, and their lifetimes."""

import contextlib
import fcntl
import math
import os
import random
import signal
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from interruption import Interruption
from links import attempting, cut_short, linux_only, meanwhile
from xserver import COLOURS, HEIGHT, SIZE, WIDTH, Painter, Server, as_bytes, x_server

import aiozerocopy as azc
from aiozerocopy import capture
from aiozerocopy.capture import connection as connecting
from aiozerocopy.capture import x11
from aiozerocopy.capture.connection import Connection
from aiozerocopy.capture.display import Display
from aiozerocopy.capture.x11 import Rectangle

pytest.importorskip("numpy")
import numpy as np

pytestmark = [pytest.mark.anyio, linux_only]

ALL = (0, 0, WIDTH, HEIGHT)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with x_server() as server:
        yield server


@pytest.fixture(scope="module")
def plain_server() -> Iterator[Server]:
    """A server without shared memory and without reports of damage."""
    with x_server("-extension", "MIT-SHM", "-extension", "DAMAGE") as server:
        yield server


@pytest.fixture(params=["shm", "socket"])
def each_server(
    request: pytest.FixtureRequest, server: Server, plain_server: Server
) -> tuple[str, Server]:
    """Each server, with the lane that it leads to."""
    return request.param, server if request.param == "shm" else plain_server


@pytest.fixture
def painter(server: Server) -> Iterator[Painter]:
    with Painter(server.name) as painter:
        yield painter
    with Painter(server.name) as sync:  # its windows are gone
        sync.finish()


def paint(painter: Painter) -> None:
    """Show some windows, each in another colour."""
    for number, colour in enumerate(COLOURS):
        painter.window(colour, 7 + 24 * number, 5 + 13 * number, 31, 29)


def colours(picture: capture.Screenshot) -> Any:
    """Return a copy of the picture without its fourth bytes, which mean nothing."""
    return picture.array[..., :3].copy()


async def shown(server: Server, *arguments: Any, **options: Any) -> Any:
    async with capture.X11Screen(server.name, *arguments, **options) as screen:
        with await screen.grab() as picture:
            return colours(picture)


# ---- what is in a picture ---------------------------------------------------------


async def test_picture_shows_the_screen(each_server: tuple[str, Server]) -> None:
    lane, server = each_server
    with Painter(server.name) as painter:
        paint(painter)
        async with capture.X11Screen(server.name) as screen:
            assert (screen.lane, screen.size, screen.pix_fmt) == (lane, SIZE, "bgr0")
            with await screen.grab() as picture:
                assert picture.shape == (HEIGHT, WIDTH, 4)
                assert picture.pix_fmt == "bgr0"
                for number, colour in enumerate(COLOURS):
                    x, y = 7 + 24 * number, 5 + 13 * number
                    assert [*picture.array[y, x, :3]] == as_bytes(colour)
                    assert [*picture.array[y + 12, x + 23, :3]] == as_bytes(colour)
                assert not picture.array[:5, :, :3].any()


@pytest.mark.parametrize(
    ("depth", "pix_fmt", "shape", "dtype", "green"),
    [
        (16, "rgb565le", (HEIGHT, WIDTH), "uint16", 0x7E0),
        (30, "x2rgb10le", (HEIGHT, WIDTH), "uint32", 0x3FF << 10),
    ],
)
async def test_other_depths(
    depth: int, pix_fmt: str, shape: tuple[int, int], dtype: str, green: int
) -> None:
    with x_server(depth=depth) as server, Painter(server.name) as painter:
        painter.window(green, 10, 10, 20, 20)
        async with capture.X11Screen(server.name) as screen:
            with await screen.grab() as picture:
                assert (picture.pix_fmt, picture.shape) == (pix_fmt, shape)
                assert picture.dtype == dtype
                assert picture.array[10, 10] == green
                assert picture.array[9, 10] == 0


async def test_region(server: Server, painter: Painter) -> None:
    paint(painter)
    whole = await shown(server)
    part = await shown(server, (30, 20, 50, 41))
    assert (part == whole[20:61, 30:80]).all()


async def test_monitors() -> None:
    places = {"left": (0, 0, 90, HEIGHT), "right": (90, 0, 70, 100)}
    with x_server() as server, Painter(server.name) as painter:
        [monitor] = await capture.monitors(server.name)
        assert monitor.place == ALL
        for name, place in places.items():
            painter.monitor(name, *place)
        painter.window(0x10FF20, *places["right"])
        found = {one.name: one.place for one in await capture.monitors(server.name)}
        assert places.items() <= found.items()
        for name, place in places.items():
            picture = await shown(server, monitor=name)
            assert picture.shape == (place[3], place[2], 3)
            is_painted = picture == as_bytes(0x10FF20)
            assert is_painted.all() == (name == "right")


async def test_two_screens() -> None:
    with x_server("-screen", "1", "90x70x16") as server:
        async with capture.X11Screen(f"{server.name}.1") as screen:
            assert (screen.size, screen.pix_fmt) == ((90, 70), "rgb565le")
            with await screen.grab() as picture:
                assert picture.shape == (70, 90)
        with pytest.raises(capture.ScreenError, match="no screen 2: the display has 2"):
            await capture.X11Screen(f"{server.name}.2")


async def test_server_behind_the_network() -> None:
    with x_server("-listen", "tcp") as server, Painter(server.name) as painter:
        paint(painter)
        async with (
            capture.X11Screen(f"127.0.0.1{server.name}") as screen,
            capture.X11Screen(server.name) as other,
        ):
            assert (screen.lane, other.lane) == ("socket", "shm")
            with await screen.grab() as one, await other.grab() as two:
                assert (colours(one) == colours(two)).all()


async def test_cursor_is_drawn_by_asking(server: Server, painter: Painter) -> None:
    painter.window(0x40A0FF, *ALL)
    for x, y in ((80, 60), (0, 0), (WIDTH - 1, HEIGHT - 1)):
        painter.point(x, y)
        plain = await shown(server)
        drawn = await shown(server, cursor=True)
        different = np.argwhere((drawn != plain).any(axis=2))
        assert len(different) > 20
        assert abs(different - (y, x)).max() < 20
        assert {tuple(pixel) for pixel in drawn[tuple(different.T)]} <= {
            (0, 0, 0),
            (255, 255, 255),
        }


# ---- damage -----------------------------------------------------------------------


async def test_damage_gives_a_picture_only_when_something_has_changed(
    server: Server, painter: Painter
) -> None:
    window = painter.window(0xFF0000, 10, 10, 20, 20)
    async with capture.X11Screen(server.name) as screen:
        pictures = screen.frames(damage=True)
        with await anext(pictures) as first:
            assert first.changed is None
            assert first.view.readonly
        with anyio.move_on_after(0.05) as scope:  # (nothing comes, however long)
            await anext(pictures)
        assert scope.cancelled_caught
        painter.move(window, 100, 50)
        with await anext(pictures) as picture:
            assert picture.changed is not None
            assert {(10, 10, 20, 20), (100, 50, 20, 20)} <= {*picture.changed}
            assert [*picture.array[50, 100, :3]] == as_bytes(0xFF0000)
            assert not picture.array[10, 10, :3].any()


@pytest.mark.parametrize("cursor", [False, True])
async def test_pictures_by_damage_are_whole(
    cursor: bool, server: Server, painter: Painter
) -> None:
    """Whatever the program holds, each picture equals one that is copied whole."""
    chance = random.Random(1)
    windows = [painter.window(colour, 0, 0, 25, 17) for colour in COLOURS]
    held: list[tuple[capture.Screenshot, Any]] = []
    async with (
        capture.X11Screen(server.name, slots=3, cursor=cursor) as screen,
        capture.X11Screen(server.name, cursor=cursor) as other,
    ):
        pictures = screen.frames(damage=True)
        for _ in range(60):
            for window in chance.sample(windows, 2):
                painter.move(window, chance.randrange(-20, 160), chance.randrange(120))
            painter.point(chance.randrange(WIDTH), chance.randrange(HEIGHT))
            if chance.random() < 0.2 and len(held) < 2:  # a writable picture in between
                with await screen.grab() as mine:
                    mine.array[:] = 77
            picture = await anext(pictures)
            with await other.grab() as whole:
                assert (colours(picture) == colours(whole)).all()
            held.append((picture, colours(picture)))
            if len(held) > chance.randrange(3):
                held.pop(chance.randrange(len(held)))[0].release()
        for picture, content in held:
            assert (colours(picture) == content).all()
            picture.release()


@contextlib.contextmanager
def stopped(server: Server) -> Iterator[None]:
    """Stop the server's process for the length of the block."""
    os.kill(server.process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.process.pid, signal.SIGCONT)


@pytest.mark.parametrize("wait", ["take", "_fetch"])
async def test_cancelled_wait_for_damage_loses_none(
    wait: str, server: Server, painter: Painter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a cancel before the server's answer, the next pictures are whole."""
    window = painter.window(0xFF0000, 0, 0, 20, 20)
    async with capture.X11Screen(server.name, slots=2) as screen:
        pictures = screen.frames(damage=True)
        for _ in range(2):  # so that both slots are filled
            (await anext(pictures)).release()
            painter.move(window, 50, 10)
        owner: Any = screen._damage if wait == "take" else screen
        waiting = getattr(owner, wait)

        async def wait_stopped(*arguments: Any) -> None:
            with stopped(server):
                async with cut_short(waiting, *arguments):
                    await anyio.wait_all_tasks_blocked()
            scope.cancel()
            await anyio.lowlevel.checkpoint()

        for number in range(4):
            painter.move(window, 10 * number, 30 * number)
            with monkeypatch.context() as patch, anyio.CancelScope() as scope:
                patch.setattr(owner, wait, wait_stopped)
                await anext(pictures)
            assert scope.cancelled_caught
            painter.move(window, 10 * number, 30 * number + 1)
            for _ in range(2):
                with await anext(pictures) as picture, await screen.grab() as whole:
                    assert (colours(picture) == colours(whole)).all()
                painter.move(window, 10 * number + 5, 30 * number + 1)


async def test_no_account_of_damage_is_said(plain_server: Server) -> None:
    async with capture.X11Screen(plain_server.name) as screen:
        with pytest.raises(capture.ScreenError, match="has no DAMAGE"):
            screen.frames(damage=True)


# ---- time -------------------------------------------------------------------------


async def test_frames_come_at_their_rate_and_late_ones_do_not(server: Server) -> None:
    async with capture.X11Screen(server.name) as screen:
        pictures = screen.frames(rate=100)
        began = anyio.current_time()
        for number in range(5):
            with await anext(pictures) as picture:
                assert picture.number >= number
                last = picture.number
                assert anyio.current_time() - began >= last / 100 - 0.001
        await anyio.sleep(0.06)  # (uvloop counts in milliseconds)
        with await anext(pictures) as picture:
            assert picture.number >= last + 5


async def test_a_cancelled_wait_leaves_its_due_time(server: Server) -> None:
    async with capture.X11Screen(server.name) as screen:
        pictures = screen.frames(rate=5)
        (await anext(pictures)).release()
        for _ in range(100):
            with anyio.CancelScope() as scope:
                scope.cancel()
                await anext(pictures)
        with await anext(pictures) as picture:
            assert 1 <= picture.number < 100


@pytest.mark.parametrize("rate", [0, -1, math.nan, math.inf])
async def test_rate_that_is_none(rate: float, server: Server) -> None:
    async with capture.X11Screen(server.name) as screen:
        with pytest.raises(ValueError, match="positive"):
            screen.frames(rate)


# ---- lifetimes --------------------------------------------------------------------


async def test_grab_waits_for_a_slot(each_server: tuple[str, Server]) -> None:
    _, server = each_server
    got: list[capture.Screenshot] = []

    async def grab() -> None:
        with await screen.grab() as picture:
            got.append(picture)

    async with capture.X11Screen(server.name, slots=2) as screen:
        first, second = await screen.grab(), await screen.grab()
        part = second.array[3:5]
        second.release()
        async with meanwhile(grab):
            await anyio.wait_all_tasks_blocked()
            assert screen.pool.stats.waiting == 1
            assert not got
            del part
        assert len(got) == 1
        first.release()
        assert screen.pool.stats.free == 2


async def test_picture_that_comes_in_pieces() -> None:
    """Even if a grab was cancelled between two pieces."""
    size = (1000, 700)
    with x_server("-extension", "MIT-SHM", size=size) as server:
        with Painter(server.name) as painter:
            for number, colour in enumerate(COLOURS):
                painter.window(colour, 100 * number, 90 * number, 400, 200)
            async with capture.X11Screen(server.name) as screen:
                with await screen.grab() as picture:
                    content = colours(picture)
                for number, colour in enumerate(COLOURS):
                    assert [*content[90 * number, 100 * number]] == as_bytes(colour)
                for after in range(0, 60, 6):
                    async with cut_short(screen.grab):
                        for _ in range(after):
                            await anyio.lowlevel.checkpoint()
                    with await screen.grab() as picture:
                        assert (colours(picture) == content).all()
                assert screen.pool.stats.free == 3


async def test_slot_of_a_cancelled_grab_stays_taken_until_the_server_has_answered(
    server: Server,
) -> None:
    async with capture.X11Screen(server.name, slots=1) as screen:
        with stopped(server):
            async with cut_short(screen.grab):
                await anyio.wait_all_tasks_blocked()
            assert screen.pool.stats.free == 0
        connection = screen._connection
        assert connection is not None
        await connection.until(lambda: screen.pool.stats.free == 1)


class InterruptedSocket:
    """A socket with one call that a signal interrupts when its work is done."""

    def __init__(self, sock: socket.socket, call: str) -> None:
        self._socket = sock
        self._call = call

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._socket, name)
        if name != self._call:
            return method

        def interrupted(*arguments: Any) -> None:
            method(*arguments)
            raise Interruption

        return interrupted


@pytest.mark.parametrize("call", ["sendmsg", "recv_into"])
async def test_interrupted_call_frees_no_slot(call: str, server: Server) -> None:
    async with capture.X11Screen(server.name) as screen:
        connection: Any = screen._connection
        sock = connection._socket
        connection._socket = InterruptedSocket(sock, call)
        with pytest.raises(Interruption):
            await screen.grab()
        connection._socket = sock
        assert screen.pool.stats.free == 2
        with pytest.raises(capture.ScreenLost, match="was interrupted"):
            await screen.grab()


async def test_interrupted_reply_is_not_left_out(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next error does not blame the server."""

    def interrupted(*_: object) -> None:
        raise Interruption

    async with capture.X11Screen(server.name) as screen:
        with monkeypatch.context() as patch:
            patch.setattr(Connection, "_take", interrupted)
            with pytest.raises(Interruption):
                await screen.grab()
        with pytest.raises(capture.ScreenLost, match="was interrupted"):
            await screen.grab()


async def test_close_wakes_who_waits(server: Server) -> None:
    ended = []

    async def wait(pictures: Any) -> None:
        with pytest.raises(anyio.ClosedResourceError):
            while True:
                ended.append(await anext(pictures))

    async with capture.X11Screen(server.name, slots=4) as screen:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait, screen.frames(damage=True))
            tasks.start_soon(wait, screen.frames(rate=1000))
            while screen.pool.stats.waiting == 0:
                await anyio.lowlevel.checkpoint()
            await screen.aclose()
    with pytest.raises(anyio.ClosedResourceError, match="the screen is closed"):
        await screen.grab()


async def test_what_is_used_wrongly(server: Server) -> None:
    screen = capture.X11Screen(server.name)
    with pytest.raises(RuntimeError, match="not open"):
        await screen.grab()
    async with screen:
        with pytest.raises(RuntimeError, match="opened before"):
            await screen


# ---- failures ---------------------------------------------------------------------


@pytest.mark.parametrize("extension", ["MIT-SHM", "RANDR"])
async def test_server_killed_while_somebody_waits(extension: str) -> None:
    with x_server("-extension", extension) as server:
        with Painter(server.name) as painter:
            painter.window(0x10FF20, *ALL)
            async with capture.X11Screen(server.name) as screen:
                picture = await screen.grab()
                pictures = screen.frames(damage=True)
                (await anext(pictures)).release()
                async with attempting(anext, pictures) as waiting:
                    await anyio.wait_all_tasks_blocked()
                    server.kill()
                assert isinstance(waiting.error, capture.ScreenLost)
                assert "has gone" in str(waiting.error)
                with pytest.raises(capture.ScreenLost, match="has gone"):
                    await screen.grab()
                assert (picture.array[..., :3] == as_bytes(0x10FF20)).all()
                picture.release()
                assert screen.pool.stats.free == 3


@pytest.mark.parametrize("size", [(120, 90), (80, 60)])
async def test_another_resolution(size: tuple[int, int]) -> None:
    with x_server() as server, Painter(server.name) as painter:
        painter.window(0x10FF20, *ALL)
        region = (20, 10, 90, 70)
        async with (
            capture.X11Screen(server.name) as screen,
            capture.X11Screen(server.name, region) as part,
        ):
            picture = await screen.grab()
            painter.resize(*size)
            with pytest.raises(capture.ScreenChanged, match=f"{size[0]}x{size[1]}"):
                await screen.grab()
            with pytest.raises(capture.ScreenChanged):
                screen.frames(damage=True)
            if size[0] > 100:
                with await part.grab() as small:
                    assert (small.array[..., :3] == as_bytes(0x10FF20)).all()
            else:
                with pytest.raises(capture.ScreenChanged, match="open it again"):
                    await part.grab()
            assert (picture.array[..., :3] == as_bytes(0x10FF20)).all()
            picture.release()
            assert screen.pool.stats.free == part.pool.stats.free == 3
        async with capture.X11Screen(server.name) as screen:
            assert screen.size == size
            (await screen.grab()).release()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"region": (100, 0, 61, 10)}, r"61x10\+100\+0 is not entirely on the screen"),
        ({"region": (-1, 0, 10, 10)}, r"10x10-1\+0 is not entirely on the screen"),
        ({"region": (0, 0, 0, 10)}, "no pixels"),
        ({"region": (1, 2, 3)}, r"four whole numbers, .*, not \(1, 2, 3\)"),
        ({"region": (0, 0, 10.5, 10)}, r"four whole numbers, .*, not \(0, 0, 10\.5"),
        ({"region": "abcd"}, "four whole numbers, .*, not 'abcd'"),
        ({"monitor": "HDMI-7"}, "called 'HDMI-7': there is only '"),
        ({"monitor": "x", "region": ALL}, "not both"),
        ({"slots": 0}, "slots must be at least 1"),
    ],
)
async def test_what_is_asked_wrongly(
    options: dict[str, Any], says: str, server: Server
) -> None:
    with pytest.raises(ValueError, match=says):
        async with capture.X11Screen(server.name, **options):
            pass


@pytest.mark.parametrize(
    ("name", "host", "number", "screen"),
    [
        (":0", "", 0, 0),
        (":10.1", "", 10, 1),
        ("unix:3", "", 3, 0),
        ("localhost:10.0", "localhost", 10, 0),
        ("[::1]:5", "::1", 5, 0),
    ],
)
def test_name_of_a_display(name: str, host: str, number: int, screen: int) -> None:
    assert Display.named(name) == Display(name, host, number, screen)


@pytest.mark.parametrize("name", ["0", "x", ":", ":x", "host::0", ":0.", ":0.x"])
def test_name_of_no_display(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="write a name such as :0"):
        Display.named(name)
    monkeypatch.delenv("DISPLAY", raising=False)
    with pytest.raises(capture.ScreenError, match="DISPLAY is not set"):
        capture.X11Screen()


async def test_nobody_is_there() -> None:
    for name in (":4321", "127.0.0.1:4321"):
        with pytest.raises(capture.ScreenError, match=f"at the display {name}: "):
            await capture.X11Screen(name)


async def test_server_that_wants_a_cookie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(path: Path, cookie: bytes) -> None:
        parts = [socket.gethostname().encode(), b"", b"MIT-MAGIC-COOKIE-1", cookie]
        packed = b"".join(struct.pack(">H", len(part)) + part for part in parts)
        path.write_bytes(struct.pack(">H", 256) + packed)

    write(tmp_path / "right", bytes(range(16)))
    write(tmp_path / "wrong", bytes(16))
    (tmp_path / "broken").write_bytes(b"\x01\x00\x00\xff\x01")
    with x_server("-auth", str(tmp_path / "right")) as server:
        for name in ("wrong", "broken", "missing"):
            monkeypatch.setenv("XAUTHORITY", str(tmp_path / name))
            with pytest.raises(capture.ScreenError, match="refused the connection: "):
                await capture.X11Screen(server.name)
        monkeypatch.setenv("XAUTHORITY", str(tmp_path / "right"))
        async with capture.X11Screen(server.name) as screen:
            (await screen.grab()).release()


@contextlib.contextmanager
def answering(said: bytes, goes: bool = True) -> Iterator[str]:
    """Listen where an X server would; yield the name of the display.

    One client gets these bytes, then the end or, without ``goes``, nothing more.
    """
    over = threading.Event()

    def answer() -> None:
        with listener.accept()[0] as client:
            client.recv(100)
            client.sendall(said)
            if not goes:
                over.wait()

    with socket.socket(socket.AF_UNIX) as listener:
        while True:
            number = random.randrange(10_000, 100_000)
            with contextlib.suppress(OSError):  # the name is in use
                listener.bind(f"\0/tmp/.X11-unix/X{number}")
                break
        listener.listen()
        thread = threading.Thread(target=answer)
        thread.start()
        try:
            yield f":{number}"
        finally:
            over.set()
            thread.join()


# A server's acceptance, and the length of the rest in units of 4 bytes.
WELCOME = struct.Struct("=BxHHH")


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        WELCOME.pack(1, 11, 0, 0),
        WELCOME.pack(1, 11, 0, 8) + bytes(32),
        WELCOME.pack(1, 11, 0, 8) + b"\xff" * 32,
        struct.pack("=BBHHH", 0, 5, 11, 0, 2) + b"never!!!",
        # two screens, the first without depths
        WELCOME.pack(1, 11, 0, 100)
        + struct.pack("=4xI8xH2xBBB", 1, 0, 2, 0, 0).ljust(400, b"\0"),
        b"",
    ],
)
async def test_server_that_is_none(said: bytes) -> None:
    with answering(said) as name, pytest.raises(capture.ScreenError):
        await capture.X11Screen(f"{name}.1")


def setup_of(base: int) -> bytes:
    """Make a server's description, with one screen of 24 bits."""
    said = struct.pack("=4xI8xH2xBBB", base, 0, 1, 1, 0).ljust(32, b"\0")
    said += struct.pack("=BBB5x", 24, 32, 32)
    said += struct.pack("=I28xI2xBB", 1, 2, 24, 1)
    said += struct.pack("=BxH4x", 24, 1)
    return said + struct.pack("=I4xIII4x", 2, 0xFF0000, 0xFF00, 0xFF)


def test_numbers_that_no_request_could_hold() -> None:
    assert x11.setup(setup_of(0x1FFFFFFF), 0).pix_fmt == "bgr0"
    with pytest.raises(capture.ScreenError, match="not an X server"):
        x11.setup(setup_of(0xFFFFFFFF), 0)


@pytest.mark.parametrize("lets_in", [False, True])
async def test_server_that_says_nothing(
    lets_in: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connecting, "PATIENCE", 0.2)
    said, says = b"", "does not answer: is it an X"
    if lets_in:
        setup = setup_of(1 << 21)
        said = WELCOME.pack(1, 11, 0, len(setup) // 4) + setup
        says = "has not answered for"
    with (
        answering(said, goes=False) as name,
        anyio.fail_after(10),
        pytest.raises(capture.ScreenError, match=says),
    ):
        await capture.X11Screen(name)


@pytest.mark.parametrize(
    ("read", "reply"),
    [
        (x11.atom_name, struct.pack("=8xH", 5).ljust(36, b"\0")),
        (x11.rectangles, bytes(32 + 4)),
        (x11.monitors, struct.pack("=12xI", 2).ljust(32 + 24, b"\0")),
        (x11.cursor, struct.pack("=8xhhHHHHI", 0, 0, 2, 2, 0, 0, 1) + bytes(16)),
    ],
)
def test_answer_that_is_shorter_than_it_says(
    read: Callable[[bytes], object], reply: bytes
) -> None:
    with pytest.raises(capture.ScreenError, match="invalid data"):
        read(reply)


async def test_fds_that_do_not_arrive(
    server: Server, painter: Painter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program between us and the server forwards only the bytes."""
    paint(painter)
    write = Connection._write
    async with capture.X11Screen(server.name) as other:
        monkeypatch.setattr(
            Connection, "_write", lambda self, data, _fd: write(self, data, None)
        )
        async with capture.X11Screen(server.name) as screen:
            assert (screen.lane, other.lane) == ("socket", "shm")
            with await screen.grab() as one, await other.grab() as two:
                assert (colours(one) == colours(two)).all()


async def test_refused_request_is_named(server: Server) -> None:
    connection = await Connection.open(Display.named(server.name))
    try:
        off = Rectangle(WIDTH, HEIGHT, 10, 10)
        asked = connection.ask(x11.get_image(connection.setup.root, off))
        with pytest.raises(capture.ScreenError, match="BadMatch for request 73"):
            await connection.answer(asked)
        again = connection.ask(x11.get_input_focus())
        assert await connection.answer(again)
    finally:
        connection.close()


# ---- later use of a picture ---------------------------------------------------------


async def test_sent_picture_is_not_what_is_on_the_screen_later(
    server: Server, painter: Painter
) -> None:
    """The picture's slot is reused while the pipe still holds its bytes."""
    async with capture.X11Screen(server.name, slots=1) as screen:
        read, write = os.pipe()
        os.set_blocking(read, False)
        fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 1 << 20)
        writer, reader = azc.open_writer(write, peer="reads"), azc.open_reader(read)
        async with reader, writer:
            for colour in COLOURS[:2]:
                painter.window(colour, *ALL)
                with await screen.grab() as picture:
                    await writer.send(picture)
            assert screen.pool.stats.free == 1  # no part of the picture is lent
            received = bytearray(WIDTH * HEIGHT * 4)
            for colour in COLOURS[:2]:
                await reader.receive_exactly(received)
                assert [*received[:3]] == as_bytes(colour)
                assert [*received[-4:-1]] == as_bytes(colour)
