"""Frames to and from FFmpeg: every byte, every error, and nothing left behind.

Most of it runs with the FFmpeg on PATH and with the one of imageio-ffmpeg, which are
years apart.
"""

from __future__ import annotations

import gc
import itertools
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import anyio
import numpy as np
import pytest
import scripts
from links import until

import aiozerocopy as azc
from aiozerocopy.ffmpeg import (
    Audio,
    FFmpegError,
    Reader,
    Status,
    Writer,
    find_ffmpeg,
    finding,
    layout_of,
    probing,
    progress,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.anyio

SIZE = WIDTH, HEIGHT = 64, 48
SHAPE = (HEIGHT, WIDTH, 3)
NULL = ["-f", "null", "-"]
LOSSLESS: dict[str, Any] = {"codec": "ffv1", "options": ["-pix_fmt", "bgr0"]}


FOUND = {"path": shutil.which("ffmpeg"), "packaged": finding._packaged()}


@pytest.fixture(scope="module", autouse=True)
def quick_ffmpeg(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let PATH lead to the one of imageio-ffmpeg, which starts four times as fast."""
    if FOUND["packaged"] is None:
        yield
        return
    folder = tmp_path_factory.mktemp("bin")
    (folder / "ffmpeg").symlink_to(FOUND["packaged"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(folder), prepend=os.pathsep)
        yield


@pytest.fixture(params=["path", "packaged"])
def each_ffmpeg(request: pytest.FixtureRequest) -> str:
    """The FFmpeg on PATH, and that of imageio-ffmpeg."""
    return needed(request.param)


@pytest.fixture
def ffmpeg(anyio_backend: tuple[str, dict[str, Any]]) -> str:
    """One of them on some loops, the other on the others."""
    return needed("path" if anyio_backend[1].get("use_uvloop") else "packaged")


def needed(name: str) -> str:
    found = FOUND[name]
    if found is None:
        pytest.skip(f"no FFmpeg ({name})")
    return found


def picture(number: int, shape: tuple[int, ...] = SHAPE) -> np.ndarray[Any, Any]:
    """A frame that compresses badly and that no other one is like."""
    return np.random.default_rng(number).integers(0, 256, shape, "u1")


async def frames_of(path: Path, pix_fmt: str = "rgb24", **options: Any) -> list[bytes]:
    async with Reader(path, pix_fmt, **options) as video:
        frames: list[bytes] = []
        async for frame in video:
            with frame:
                frames.append(bytes(frame.view))
    return frames


def is_gone(pid: int) -> bool:
    """Ended and reaped: not even a zombie is left."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.fixture
def pretend(tmp_path: Path) -> Callable[[str], str]:
    """Make a program that is called like FFmpeg and behaves otherwise."""

    def make(body: str) -> str:
        path = tmp_path / "pretended"
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return str(path)

    return make


# ---- there and back ----------------------------------------------------------------


async def test_round_trip(each_ffmpeg: str, tmp_path: Path) -> None:
    path = tmp_path / "a.mkv"
    pictures = [picture(number) for number in range(10)]
    async with Writer(path, SIZE, 25, ffmpeg=each_ffmpeg, **LOSSLESS) as video:
        for one in pictures:
            await video.send(one)
    assert video.returncode == 0
    assert video.status.frames == 10
    assert video.status.ended
    async with Reader(path, ffmpeg=each_ffmpeg) as back:
        assert back.size == SIZE
        assert back.fps == 25
        assert back.duration == pytest.approx(0.4)
        for one in pictures:
            with await back.receive() as frame:
                assert np.array_equal(frame.array, one)
        for _ in range(2):
            with pytest.raises(anyio.EndOfStream):
                await back.receive()
    assert back.returncode == 0
    assert back.frames_received == 10


async def test_one_array_and_one_pool_for_all(tmp_path: Path) -> None:
    path = tmp_path / "a.mkv"
    size = (640, 480)
    async with Writer(path, size, **LOSSLESS) as video:
        array = np.empty(video.layout.shape, video.layout.dtype)
        for number in range(5):
            array[:] = number
            await video.send(array)
        with azc.FramePool(video.layout.shape, video.layout.dtype) as pool:
            for number in range(5, 10):
                with await pool.acquire() as frame:
                    frame.array[:] = number
                    await video.put(frame)
    assert [set(frame) for frame in await frames_of(path)] == [{n} for n in range(10)]


async def test_tickets_and_planes(tmp_path: Path) -> None:
    path = tmp_path / "a.mkv"
    y, u, v = (picture(n, (HEIGHT // d, WIDTH // d)) for n, d in enumerate((1, 2, 2)))
    async with Writer(path, SIZE, pix_fmt="yuv420p", codec="ffv1") as video:
        await video.send(y, u, v)
        ticket = await video.put(y, v, u)
        await ticket
        assert ticket.done()
    planes = [plane.tobytes() for plane in (y, u, v, y, v, u)]
    assert b"".join(await frames_of(path, "yuv420p")) == b"".join(planes)


async def test_many_senders(tmp_path: Path) -> None:
    path = tmp_path / "a.mkv"
    async with Writer(path, SIZE, **LOSSLESS) as video:
        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(video.send, picture(number))
    expected = {picture(number).tobytes() for number in range(20)}
    frames = await frames_of(path)
    assert len(frames) == 20
    assert set(frames) == expected


async def test_awaited_and_closed(tmp_path: Path) -> None:
    video = await Writer(tmp_path / "a.mkv", SIZE)
    assert repr(video) == "<Writer 64x48 rgb24, running>"
    assert video.returncode is None
    pid = video.pid
    await video.send(picture(0))
    await video.aclose()
    await video.aclose()
    assert repr(video) == "<Writer 64x48 rgb24, ended with code 0>"
    assert is_gone(pid)
    with pytest.raises(azc.StreamClosed):
        await video.send(picture(0))
    back = await Reader(pattern(seconds="1000"))
    assert repr(back) == "<Reader 64x48 rgb24, running>"
    pid = back.pid
    (await back.receive()).release()
    await back.aclose()
    await back.aclose()
    assert is_gone(pid)
    with pytest.raises(azc.StreamClosed):
        await back.receive()


FORMATS = (
    "gray gray16le ya8 rgb24 rgba 0rgb rgb48be rgba64le gbrp gbrap10le gbrpf32le "
    "grayf32le yuv420p yuvj422p yuv444p12le yuva420p yuva444p16be yuv411p yuv440p nv12 "
    "nv24 p010le yuyv422 pal8 monow"
)


@pytest.mark.parametrize("size", [(64, 48), (63, 47)], ids=str)
@pytest.mark.parametrize("pix_fmt", FORMATS.split())
def test_layout_is_ffmpegs(pix_fmt: str, size: tuple[int, int]) -> None:
    layout = layout_of(pix_fmt, size)
    width, height = size
    command = [find_ffmpeg(), "-v", "error", "-f", "lavfi", "-i", "color"]
    command += ["-frames:v", "1", "-s", f"{width}x{height}", "-pix_fmt", pix_fmt]
    done = subprocess.run([*command, "-f", "rawvideo", "-"], capture_output=True)
    if layout is None:
        assert pix_fmt in ("yuyv422", "pal8", "monow")
        assert done.returncode == 0
    else:
        assert (layout.nbytes, done.stderr) == (len(done.stdout), b"")
        dtype = np.dtype(layout.dtype)
        assert np.empty(layout.shape, dtype).nbytes == layout.nbytes


async def test_format_that_only_ffmpeg_knows(ffmpeg: str, tmp_path: Path) -> None:
    path = tmp_path / "a.mkv"
    options = ["-pix_fmt", "yuv422p"]
    array = picture(0, (HEIGHT, WIDTH * 2))
    async with Writer(
        path, SIZE, 30, "yuyv422", "ffv1", options, ffmpeg=ffmpeg
    ) as video:
        assert video.frame_bytes == array.nbytes
        await video.send(array)
    assert await frames_of(path, "yuyv422", ffmpeg=ffmpeg) == [array.tobytes()]


async def test_deep_formats(tmp_path: Path) -> None:
    path = tmp_path / "a.mkv"
    array = np.arange(HEIGHT * WIDTH * 3, dtype="u2").reshape(SHAPE)
    async with Writer(path, SIZE, pix_fmt="rgb48le", codec="ffv1") as video:
        await video.send(array)
    async with Reader(path, "rgb48le") as back, await back.receive() as frame:
        assert np.array_equal(frame.array, array)


# ---- reading -----------------------------------------------------------------------


def pattern(*more: str, size: str = "64x48", seconds: str = "1") -> list[str]:
    return ["-f", "lavfi", "-i", f"testsrc=size={size}:rate=30:duration={seconds}"]


async def test_reader_scales_and_repeats(ffmpeg: str) -> None:
    async with Reader(
        pattern(), "gray", size=(32, 24), fps="60000/1001", ffmpeg=ffmpeg
    ) as video:
        assert video.size == (32, 24)
        assert video.fps == Fraction(60000, 1001)
        assert video.layout
        assert video.layout.shape == (24, 32)
        count = 0
        async for frame in video:
            count += 1
            frame.release()
        assert count == 60


async def test_reader_sees_filters_and_rotation(ffmpeg: str) -> None:
    options = ["-vf", "transpose,crop=40:20"]
    async with Reader(pattern(), options=options, ffmpeg=ffmpeg) as video:
        assert video.size == (40, 20)


async def test_reader_lands_in_the_pool_that_is_given() -> None:
    with azc.FramePool(SHAPE, slots=2) as pool:
        async with Reader(pattern(), pool=pool) as video:
            first, second = await video.receive(), await video.receive()
            assert pool.stats.free == 0
            with anyio.move_on_after(0.02) as scope:
                await video.receive()
            assert scope.cancelled_caught
            kept = bytes(second.view)
            first.release()
            (await video.receive()).release()
            assert bytes(second.view) == kept
            assert video.frames_received == 3
        second.release()
        async with Reader(pattern(), pool=pool) as video:  # the pool is still open
            (await video.receive()).release()


async def test_pool_of_another_size() -> None:
    with azc.FramePool(100) as pool:
        with pytest.raises(
            ValueError, match=r"9,216 bytes, and a frame of the pool 100"
        ):
            await Reader(pattern(), pool=pool)


async def test_frames_outlive_the_reader() -> None:
    async with Reader(pattern()) as video:
        frame = await video.receive()
        array = frame.array
    assert array.shape == SHAPE
    assert array.any()


async def test_cancelled_receive_loses_nothing() -> None:
    expected = await frames_of(pattern())  # type: ignore[arg-type]
    frames: list[bytes] = []
    async with Reader(pattern()) as video:
        while len(frames) < 30:
            with anyio.move_on_after(0.0005):
                frames.append(bytes((await video.receive()).view))
    assert frames == expected


async def test_reader_that_is_left_early() -> None:
    async with Reader(pattern(size="640x480", seconds="1000")) as video:
        async for frame in video:
            frame.release()
            break
        pid = video.pid
    assert video.returncode == -signal.SIGKILL
    assert is_gone(pid)


async def test_empty_video(ffmpeg: str) -> None:
    async with Reader(pattern(), options=["-frames:v", "0"], ffmpeg=ffmpeg) as video:
        assert [frame async for frame in video] == []
        assert video.size == (0, 0)


async def test_reader_of_nothing(each_ffmpeg: str, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no video")
    for path, text in (("nonesuch", "No such file"), ("text", "Invalid data")):
        with pytest.raises(FFmpegError, match=text) as caught:
            await Reader(tmp_path / path, ffmpeg=each_ffmpeg)
        assert caught.value.returncode
        assert text in caught.value.stderr


async def test_reader_whose_ffmpeg_is_killed(ffmpeg: str) -> None:
    async with Reader(pattern(size="640x480", seconds="1000"), ffmpeg=ffmpeg) as video:
        (await video.receive()).release()
        os.kill(video.pid, signal.SIGKILL)
        with pytest.raises(FFmpegError, match=r"SIGKILL|inside frame") as caught:
            async for frame in video:
                frame.release()
    assert caught.value.returncode == -signal.SIGKILL


HEADER = "Output #0, rawvideo\n  Stream #0:0: Video: rawvideo, rgb24, 4x2, 25 fps"


async def test_video_that_ends_inside_a_frame(pretend: Callable[[str], str]) -> None:
    body = f"echo '{HEADER}' >&2; printf '%030d' 0; exit 3"
    async with Reader("a", ffmpeg=pretend(body)) as video:
        (await video.receive()).release()
        with pytest.raises(FFmpegError, match="inside frame 1") as caught:
            await video.receive()
        assert caught.value.returncode == 3
        with pytest.raises(anyio.EndOfStream):
            await video.receive()


async def test_reader_that_is_told_no_size(pretend: Callable[[str], str]) -> None:
    with pytest.raises(FFmpegError, match="how large a frame is"):
        await Reader("a", ffmpeg=pretend("echo frame"))


# ---- what is refused ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("frame", "kind", "text"),
    [
        (bytes(9215), ValueError, "64x48 rgb24 has 9,216 bytes, not 9,215"),
        (np.empty((WIDTH, HEIGHT, 3), "u1"), ValueError, r"shape \(48, 64, 3\), not"),
        (np.empty((HEIGHT, WIDTH, 4), "u1"), ValueError, "not 12,288"),
        (np.empty((HEIGHT, WIDTH, 3), "f4"), ValueError, "not 36,864"),
        (np.empty((HEIGHT, 48), "f4"), ValueError, "dtype uint8, not of 'f'"),
        (np.empty((HEIGHT, 96), "u2"), ValueError, "dtype uint8, not of 'H'"),
        (np.empty((HEIGHT, WIDTH * 2, 3), "u1")[:, ::2], BufferError, "contiguous"),
        (np.empty((WIDTH, HEIGHT, 3), "u1").transpose(1, 0, 2), BufferError, "contig"),
        ("frame", TypeError, "bytes-like"),
        (None, TypeError, "bytes-like"),
    ],
)
async def test_wrong_frames(frame: Any, kind: type[Exception], text: str) -> None:
    async with Writer(NULL, SIZE) as video:
        for method in (video.send, video.put):
            with pytest.raises(kind, match=text):
                await method(frame)
        await video.send(picture(0))
    assert video.status.frames == 1
    assert video.log == ""


async def test_frames_of_a_wrong_pool() -> None:
    async with Writer(NULL, SIZE) as video:
        for shape, dtype in (((WIDTH, HEIGHT, 3), "u1"), ((HEIGHT, 48), "float32")):
            with azc.FramePool(shape, dtype) as pool:
                with pytest.raises(ValueError, match="a frame of 64x48"):
                    await video.send(pool.acquire_nowait())


@pytest.mark.parametrize("dtype", ["u4", "i4", "u1"])
async def test_pixels_as_integers(dtype: str) -> None:
    async with Writer(NULL, SIZE, pix_fmt="rgba") as video:
        await video.send(
            np.zeros((HEIGHT, WIDTH * 4 // np.dtype(dtype).itemsize), dtype)
        )
    assert video.status.frames == 1


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"size": (0, 10)}, "no pixels"),
        ({"fps": 0}, "positive"),
        ({"fps": "fast"}, "a number or a fraction"),
        ({"fps": float("nan")}, "a number or a fraction"),
        ({"output": []}, "output is empty"),
        ({"output": "-"}, "standard output"),
        ({"output": ["-f", "mp4", "pipe:1"]}, "standard output"),
    ],
)
def test_arguments_that_mean_nothing(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Writer(**{"output": "a.mkv", "size": SIZE, **options})


@pytest.mark.parametrize("options", [{"size": (0, 1)}, {"fps": -1}, {"slots": 0}])
def test_reader_arguments_that_mean_nothing(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"no pixels|positive|slot"):
        Reader("a.mkv", **options)


async def test_not_open() -> None:
    video, back = Writer(NULL, SIZE), Reader("a.mkv")
    for use in (video.send, video.put, video.send_audio):
        with pytest.raises(RuntimeError, match="not open"):
            await use(picture(0))
    with pytest.raises(RuntimeError, match="not open"):
        await back.receive()
    with pytest.raises(RuntimeError, match="not open"):
        _ = back.pid
    with pytest.raises(RuntimeError, match="not open"):
        _ = video.layout
    assert (video.status, video.log, video.returncode) == (Status(), "", None)
    assert video.stats == azc.Stats()
    assert (back.size, back.fps, back.duration) == ((0, 0), None, None)
    video.abort()
    await video.aclose()
    await back.aclose()


async def test_opened_twice() -> None:
    async with Writer(NULL, SIZE) as video:
        with pytest.raises(RuntimeError, match="opened before"):
            await video
    async with Reader(pattern()) as back:
        with pytest.raises(RuntimeError, match="opened before"):
            await back


async def test_unknown_pixel_format(ffmpeg: str) -> None:
    with pytest.raises(ValueError, match="no pixel format 'nonesuch'"):
        await Writer(NULL, SIZE, pix_fmt="nonesuch", ffmpeg=ffmpeg)


# ---- which FFmpeg ------------------------------------------------------------------


async def test_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nonesuch"):
        await Writer(NULL, SIZE, ffmpeg="nonesuch")
    with pytest.raises(FileNotFoundError, match="nonesuch"):
        await Reader("a.mkv", ffmpeg=tmp_path / "nonesuch")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(FileNotFoundError, match=r"pip install 'aiozerocopy\[ffmpeg\]'"):
        await Writer(NULL, SIZE)


def test_packaged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    packaged = needed("packaged")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_ffmpeg() == packaged


async def test_environment(
    monkeypatch: pytest.MonkeyPatch, pretend: Callable[[str], str]
) -> None:
    monkeypatch.setenv("MALLOC_TOP_PAD_", "77")
    video = await Writer(NULL, SIZE, ffmpeg=pretend("env >&2; exit 1"))
    with pytest.raises(FFmpegError):
        await video.aclose()
    lines = video.log.splitlines()
    assert "MALLOC_MMAP_THRESHOLD_=1073741824" in lines
    assert "MALLOC_TRIM_THRESHOLD_=4294967296" in lines
    assert "MALLOC_TOP_PAD_=77" in lines  # the user's


# ---- status ------------------------------------------------------------------------


async def test_status_while_it_runs(ffmpeg: str) -> None:
    options = ["-stats_period", "0.01"]
    async with Writer(NULL, SIZE, 30, options=options, ffmpeg=ffmpeg) as video:
        for number in range(30):
            await video.send(picture(number))
        while not video.status.frames:
            await video.send(picture(0))
            await anyio.sleep(0.001)
        status = video.status
        assert 0 < status.frames <= video.stats.messages_sent
        assert not status.ended
        assert video.lane
    assert video.status.ended
    assert video.status.frames == video.stats.messages_sent
    assert video.status.out_time == pytest.approx(video.status.frames / 30, abs=0.04)


REPORT = (
    "frame={frame}\nfps=25.5\nstream_0_0_q=-0.0\nbitrate= 123.4kbits/s\n"
    "total_size=1000\nout_time_us=1500000\nout_time_ms=1500000\nout_time=00:00:01.5\n"
    "dup_frames=1\ndrop_frames=2\nspeed=1.5x\nprogress={progress}\n"
)


def test_reports() -> None:
    text = REPORT.format(frame=10, progress="continue")
    status = progress.parse(text)
    assert status == Status(10, 25.5, 123_400, 1000, 1.5, 1, 2, 1.5)
    last = REPORT.format(frame=20, progress="end")
    for cut in range(len(last)):
        assert progress.parse(text + last[:cut]) == status
    assert progress.parse(text + last).ended
    assert progress.parse(text + last).frames == 20
    nothing = "frame=1\nbitrate=N/A\ntotal_size=N/A\nspeed=inf\nprogress=continue\n"
    assert progress.parse(nothing) == Status(frames=1)
    assert progress.parse("") == Status()


def test_facts() -> None:
    facts = probing.facts_in(f"  Duration: 01:02:03.50, start: 0\n{HEADER}, 25 tbn\n")
    assert facts == probing.Facts((4, 2), Fraction(25), 3723.5)
    header = HEADER.replace("25 fps", "29.97 fps")
    assert probing.facts_in(f"  Duration: N/A\n{header}") == probing.Facts(
        (4, 2), Fraction(30000, 1001), None
    )
    kilo = probing.facts_in(HEADER.replace("25 fps", "1k fps"))
    assert kilo
    assert kilo.fps == 1000
    assert probing.facts_in("Input #0\n  Stream #0:0: Video: h264, 4x2") is None


# ---- audio -------------------------------------------------------------------------


def streams_in(path: Path) -> list[str]:
    """What FFmpeg says of each stream."""
    command = [find_ffmpeg(), "-hide_banner", "-nostdin", "-i", str(path)]
    said = subprocess.run(command, capture_output=True, text=True).stderr
    return [line for line in said.splitlines() if "Stream #0:" in line]


async def audio_of(path: Path, *options: str) -> bytes:
    command = [find_ffmpeg(), "-v", "error", "-nostdin", "-i", str(path), *options]
    async with azc.open_process(
        [*command, "-vn", "-f", "s16le", "-"], stdin=False, stdout=True
    ) as child:
        assert child.stdout
        return b"".join([data async for data in child.stdout])


async def test_audio_that_is_sent(each_ffmpeg: str, tmp_path: Path) -> None:
    path = tmp_path / "a.mkv"
    size = (640, 480)
    samples = np.arange(30 * 1600 * 2, dtype="i2").reshape(30, 1600, 2)
    pictures = [np.full((480, 640, 3), number, "u1") for number in range(30)]
    options = ["-pix_fmt", "bgr0", "-c:a", "pcm_s16le"]
    sound = Audio("s16le", 48_000, 2)

    async def send_sound(video: Writer) -> None:
        for block in samples:
            await video.send_audio(block)
        await video.close_audio()

    async with Writer(
        path, size, 30, codec="ffv1", options=options, audio=sound, ffmpeg=each_ffmpeg
    ) as video:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send_sound, video)
            for one in pictures:
                await video.send(one)
    assert await audio_of(path) == samples.tobytes()
    assert await frames_of(path) == [one.tobytes() for one in pictures]


async def test_sound_without_pictures_is_told(ffmpeg: str) -> None:
    """FFmpeg waits for one with the other: nobody hangs because of that."""
    video = await Writer(NULL, SIZE, audio=Audio(), timeout=0.2, ffmpeg=ffmpeg)
    with pytest.raises(FFmpegError, match=r"did nothing.*from two tasks\?"):
        await video.send_audio(bytes(64 << 20))
    with pytest.raises(FFmpegError):
        await video.aclose()


async def test_audio_from_a_file(ffmpeg: str, tmp_path: Path) -> None:
    path, sound = tmp_path / "a.mkv", tmp_path / "sound.wav"
    command = [ffmpeg, "-v", "error", "-nostdin", "-f", "lavfi", "-i", "sine=d=0.5"]
    await anyio.run_process([*command, str(sound)])
    async with Writer(path, SIZE, 30, audio=sound, ffmpeg=ffmpeg) as video:
        for number in range(15):
            await video.send(picture(number))
    kinds = [line.partition(": ")[2].partition(":")[0] for line in streams_in(path)]
    assert kinds == ["Video", "Audio"]


async def test_audio_as_arguments(tmp_path: Path) -> None:
    path = tmp_path / "a.mkv"
    sine = ["-f", "lavfi", "-i", "sine=d=0.1"]
    async with Writer(path, SIZE, audio=sine) as video:
        await video.send(picture(0))
        with pytest.raises(RuntimeError, match="no audio of its own"):
            await video.send_audio(bytes(4))
    assert len(streams_in(path)) == 2


async def test_wrong_samples() -> None:
    async with Writer(NULL, SIZE, audio=Audio()) as video:
        for samples, text in (
            (bytes(3), "4 bytes, and 3 are not a number"),
            (np.zeros(4, "f4"), "s16le are not of dtype 'f'"),
            (np.zeros(4, "f2"), "s16le are not of dtype 'e'"),
        ):
            with pytest.raises(ValueError, match=text):
                await video.send_audio(samples)
        with pytest.raises(BufferError):
            await video.send_audio(np.zeros(8, "i2")[::2])
        await video.send(picture(0))
        await video.send_audio(np.zeros((800, 2), "i2"))
    with pytest.raises(ValueError, match="unknown sample format"):
        Audio("mp3")
    with pytest.raises(ValueError, match="needs a rate"):
        Audio(channels=0)


# ---- FFmpeg that fails -------------------------------------------------------------


async def send_until_error(video: Writer) -> None:
    for number in itertools.count():
        await video.send(picture(number))


async def test_bad_codec(each_ffmpeg: str) -> None:
    with pytest.raises(FFmpegError, match="Unknown encoder 'nonesuch'") as caught:
        async with Writer(NULL, SIZE, codec="nonesuch", ffmpeg=each_ffmpeg) as video:
            await send_until_error(video)
    assert caught.value.returncode
    assert isinstance(caught.value, azc.StreamBroken)
    assert isinstance(caught.value.__cause__, BrokenPipeError)
    assert "Unknown encoder" in str(caught.value)


async def test_bad_codec_is_told_at_the_end_too(ffmpeg: str) -> None:
    video = await Writer(NULL, SIZE, codec="nonesuch", ffmpeg=ffmpeg)
    with pytest.raises(FFmpegError, match="Unknown encoder 'nonesuch'"):
        await video.aclose()
    await video.aclose()


async def test_existing_file_stays(each_ffmpeg: str, tmp_path: Path) -> None:
    path = tmp_path / "a.mkv"
    path.write_text("mine")
    video = await Writer(path, SIZE, overwrite=False, ffmpeg=each_ffmpeg)
    with pytest.raises(FFmpegError, match="already exists"):
        await video.aclose()
    assert path.read_text() == "mine"


async def test_bad_url(ffmpeg: str) -> None:
    video = await Writer(["-f", "flv", "rtmp://127.0.0.1:1/x"], SIZE, ffmpeg=ffmpeg)
    with pytest.raises(FFmpegError, match=r"refused|Cannot open|Error"):
        await send_until_error(video)
    with pytest.raises(FFmpegError):
        await video.aclose()


async def test_killed_in_the_middle(each_ffmpeg: str) -> None:
    with pytest.raises(FFmpegError, match="SIGKILL") as caught:
        async with Writer(NULL, SIZE, ffmpeg=each_ffmpeg) as video:
            for number in range(5):
                await video.send(picture(number))
            os.kill(video.pid, signal.SIGKILL)
            await send_until_error(video)
    assert caught.value.returncode == -signal.SIGKILL
    assert is_gone(video._running.process.pid)  # type: ignore[union-attr]


async def test_ended_by_itself(ffmpeg: str) -> None:
    """As told by an output option; who sends more hears of it."""
    video = await Writer(NULL, SIZE, options=["-frames:v", "3"], ffmpeg=ffmpeg)
    with pytest.raises(FFmpegError, match="ended by itself") as caught:
        await send_until_error(video)
    assert caught.value.returncode == 0
    await video.aclose()
    assert video.status.frames == 3


FULL = ["-f", "matroska", "/dev/full"]


@pytest.mark.parametrize("frames", [1, 2000])
async def test_full_disk(each_ffmpeg: str, frames: int) -> None:
    """Also if FFmpeg writes so little that it only notices at the end."""
    with pytest.raises(FFmpegError, match="No space left on device"):
        async with Writer(FULL, SIZE, ffmpeg=each_ffmpeg, **LOSSLESS) as video:
            for number in range(frames):
                await video.send(picture(number % 10))


async def test_every_waiting_sender_is_told(
    pretend: Callable[[str], str], tmp_path: Path
) -> None:
    errors: list[FFmpegError] = []
    frame = np.empty((1080, 1920, 3), "u1")

    async def send(video: Writer, put: bool) -> None:
        with pytest.raises(FFmpegError) as caught:
            if put:
                await (await video.put(frame))
            else:
                await video.send(frame)
        errors.append(caught.value)

    said = tmp_path / "said"
    program = pretend(f"echo words >&2; : >{said}; exec sleep 60")
    video = await Writer(NULL, (1920, 1080), ffmpeg=program)
    async with anyio.create_task_group() as tasks:
        for number in range(6):
            tasks.start_soon(send, video, number % 2 == 0)
        await until(lambda: video.stats.messages_queued > 3 and said.exists())
        os.kill(video.pid, signal.SIGKILL)
    assert [error.returncode for error in errors] == [-signal.SIGKILL] * 6
    assert {error.stderr for error in errors} == {"words\n"}
    assert {error.total for error in errors} == {frame.nbytes}
    assert sum(error.bytes_sent > 0 for error in errors) == 1
    with pytest.raises(FFmpegError):
        await video.aclose()


async def test_sender_in_a_thread_is_told() -> None:
    async with Writer(NULL, SIZE, codec="nonesuch") as video:
        assert video._running
        stream = video._running.video
        frame = bytes(4 << 20)
        with pytest.raises(FFmpegError, match="nonesuch"):
            await anyio.to_thread.run_sync(stream.send_from_thread, frame)
        with pytest.raises(FFmpegError):
            await video.aclose()


# ---- FFmpeg that hangs -------------------------------------------------------------


@pytest.mark.parametrize("body", ["exec sleep 60", "exec <&-; sleep 60 & wait"])
async def test_never_reading(
    monkeypatch: pytest.MonkeyPatch, pretend: Callable[[str], str], body: str
) -> None:
    """Whether it has its input open or not."""
    monkeypatch.setattr("aiozerocopy.ffmpeg.running.LAST_WORDS", 0.01)
    async with Writer(NULL, (640, 480), ffmpeg=pretend(body), timeout=0.1) as video:
        frame = np.empty((480, 640, 3), "u1")
        with pytest.raises(FFmpegError) as caught:
            for _ in range(10):
                await video.send(frame)
        with pytest.raises(FFmpegError, match=r"did nothing for 0\.1 s"):
            await video.aclose()
    assert caught.value.returncode in (None, -signal.SIGKILL)


async def test_never_ending(pretend: Callable[[str], str]) -> None:
    program = pretend("cat >/dev/null; exec sleep 60")
    video = await Writer(NULL, SIZE, ffmpeg=program, timeout=0.1)
    await video.send(picture(0))
    with pytest.raises(FFmpegError, match=r"did nothing for 0\.1 s"):
        await video.aclose()


async def test_stopped(ffmpeg: str) -> None:
    video = await Writer(NULL, (640, 480), ffmpeg=ffmpeg, timeout=0.2)
    frame = np.empty((480, 640, 3), "u1")
    await video.send(frame)
    os.kill(video.pid, signal.SIGSTOP)
    with pytest.raises(FFmpegError, match="did nothing"):
        while True:
            await video.send(frame)
    with pytest.raises(FFmpegError):
        await video.aclose()


async def test_idle_writer_is_left_alone(ffmpeg: str) -> None:
    async with Writer(NULL, SIZE, ffmpeg=ffmpeg, timeout=0.05) as video:
        await video.send(picture(0))
        await anyio.sleep(0.15)
        await video.send(picture(1))
    assert video.status.frames == 2


async def test_busy_ffmpeg_is_left_alone(pretend: Callable[[str], str]) -> None:
    script = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; cat >/dev/null"
    async with Writer(NULL, (640, 480), ffmpeg=pretend(script), timeout=0.1) as video:
        for _ in range(5):
            await video.send(np.empty((480, 640, 3), "u1"))
    assert video.returncode == 0


async def test_ffmpeg_that_says_very_much(pretend: Callable[[str], str]) -> None:
    """On its standard error and where it reports, before it reads a byte."""
    script = textwrap.dedent(
        """
        import sys
        report = int(sys.argv[sys.argv.index("-progress") + 1].partition(":")[2])
        with open(report, "w") as file:
            for number in range(50_000):
                print(f"frame={number}", "progress=continue", sep="\\n", file=file)
                print("words " * 20, file=sys.stderr)
        while sys.stdin.buffer.read(1 << 20):
            pass
        """
    )
    program = pretend(f"exec {sys.executable} -SIc '{script}' \"$@\"")
    async with Writer(NULL, (640, 480), ffmpeg=program) as video:
        for _ in range(5):
            await video.send(np.empty((480, 640, 3), "u1"))
    assert video.status.frames == 49_999
    assert len(video.log) <= 64 << 10


# ---- the end -----------------------------------------------------------------------


async def test_abort(ffmpeg: str, tmp_path: Path) -> None:
    video = await Writer(tmp_path / "a.mkv", SIZE, ffmpeg=ffmpeg)
    await video.send(picture(0))
    pid = video.pid
    video.abort()
    assert video.returncode == -signal.SIGKILL
    assert is_gone(pid)
    video.abort()
    await video.aclose()
    with pytest.raises(azc.StreamClosed):
        await video.send(picture(0))


async def test_block_that_fails_leaves_a_file_to_play(
    ffmpeg: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.mp4"
    with pytest.raises(ZeroDivisionError):
        async with Writer(path, SIZE, ffmpeg=ffmpeg) as video:
            for number in range(10):
                await video.put(picture(number))
            raise ZeroDivisionError
    assert is_gone(video._running.process.pid)  # type: ignore[union-attr]
    assert len(await frames_of(path)) == 10


async def test_block_that_is_cancelled(ffmpeg: str, tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    with anyio.CancelScope() as scope:
        async with Writer(path, SIZE, ffmpeg=ffmpeg) as video:
            await video.send(picture(0))
            scope.cancel()
            await video.send(picture(1))
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert is_gone(video._running.process.pid)  # type: ignore[union-attr]
    assert len(await frames_of(path)) in (1, 2)


async def test_block_that_fails_while_ffmpeg_hangs(
    monkeypatch: pytest.MonkeyPatch, pretend: Callable[[str], str]
) -> None:
    monkeypatch.setattr("aiozerocopy.ffmpeg.writer.GRACE", 0.05)
    with pytest.raises(ZeroDivisionError):
        async with Writer(NULL, SIZE, ffmpeg=pretend("exec sleep 60")) as video:
            raise ZeroDivisionError
    assert video.returncode == -signal.SIGTERM


async def test_aclose_that_is_cancelled(pretend: Callable[[str], str]) -> None:
    video = await Writer(NULL, SIZE, ffmpeg=pretend("exec sleep 60"), timeout=None)
    with anyio.move_on_after(0.05) as scope:
        await video.aclose()
    assert scope.cancelled_caught
    assert video.returncode == -signal.SIGTERM


async def test_cancelled_before_the_start() -> None:
    with anyio.CancelScope() as scope:
        scope.cancel()
        await Writer(NULL, SIZE)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await Reader(pattern())
    assert scope.cancelled_caught


async def test_start_that_fails_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("no program")
    path.chmod(0o755)
    for options in ({}, {"audio": Audio()}):
        with pytest.raises(OSError, match="Exec format"):
            await Writer(NULL, SIZE, ffmpeg=path, **options)  # type: ignore[arg-type]


async def test_forgotten_writer() -> None:
    video = await Writer(NULL, SIZE)
    pid = video.pid
    with pytest.warns(ResourceWarning, match="unclosed <Writer 64x48 rgb24, running>"):
        del video
        gc.collect()
    assert is_gone(pid)


INTERRUPTED = """
import numpy

async def main():
    options = {"ffmpeg": sys.argv[2]}
    async with azc.ffmpeg.Writer(sys.argv[3], (64, 48), 30, **options) as video:
        frame = numpy.zeros((48, 64, 3), "u1")
        for number in range(1_000_000):
            await video.send(frame)
            if number == 50:
                print("ready", flush=True)

import aiozerocopy.ffmpeg
try:
    run(main)
except (KeyboardInterrupt, asyncio.CancelledError):  # the latter before Python 3.11
    print("interrupted", flush=True)
"""


@pytest.mark.parametrize("loop", ["asyncio", "uvloop", "trio"])
def test_ctrl_c(each_ffmpeg: str, tmp_path: Path, loop: str) -> None:
    """The terminal sends it to all of the program's group; the file can be played."""
    path = tmp_path / "a.mp4"
    process = scripts.start(
        INTERRUPTED, loop, each_ffmpeg, str(path), start_new_session=True
    )
    assert process.stdout
    try:
        assert process.stdout.readline() == "ready\n"
        os.killpg(process.pid, signal.SIGINT)
        assert scripts.finish(process) == (0, "interrupted\n", "")
    finally:
        process.kill()
    assert len(anyio.run(frames_of, path)) > 50


async def kill_at_random(ffmpeg: str, seed: int) -> None:
    """One FFmpeg that dies somewhere between its start and its end."""
    random_one = random.Random(seed)
    size = random_one.choice([SIZE, (640, 480)])
    victim = random_one.randrange(12)
    told: list[int | None] = []

    async def send(video: Writer, pool: azc.FramePool | None) -> None:
        try:
            while True:
                frame: Any = bytes(video.frame_bytes)
                if pool is not None:
                    frame = await pool.acquire()
                await video.send(frame)
        except FFmpegError as error:
            told.append(error.returncode)

    video = await Writer(NULL, size, ffmpeg=ffmpeg)
    with azc.FramePool(video.layout.shape, slots=2) as pool:
        async with anyio.create_task_group() as tasks:
            for place in (None, pool, None):
                tasks.start_soon(send, video, place)
            await until(lambda: video.stats.messages_sent >= victim)
            os.kill(video.pid, signal.SIGKILL)
    with pytest.raises(FFmpegError):
        await video.aclose()
    assert told == [-signal.SIGKILL] * 3
    gc.collect()
    assert pool.stats.free == 2


async def test_kills_at_random_frames(each_ffmpeg: str) -> None:
    for seed in range(17):  # times 6: on each loop, with each FFmpeg
        await kill_at_random(each_ffmpeg, seed)


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_thousand_kills(each_ffmpeg: str) -> None:
    for seed in range(170):
        await kill_at_random(each_ffmpeg, seed)
