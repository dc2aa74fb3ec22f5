"""Frames to and from FFmpeg: every byte, every format, and refused arguments.

Most tests run with the FFmpeg on PATH and with the one of imageio-ffmpeg, which differ
by years.
"""

import errno
import io
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest
from ffmpegs import (
    HEIGHT,
    NULL,
    SHAPE,
    SIZE,
    WIDTH,
    frames_of,
    is_gone,
    needed,
    picture,
)
from ffmpegs import quick_ffmpeg as quick_ffmpeg
from tensors import CUDA, Tensor

import aiozerocopy as azc
from aiozerocopy.ffmpeg import (
    Audio,
    Encoder,
    FFmpegError,
    Reader,
    Status,
    Writer,
    find_ffmpeg,
)
from aiozerocopy.ffmpeg.run import status_in

pytestmark = pytest.mark.anyio

# ---- there and back ----------------------------------------------------------------


@pytest.mark.every_loop
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
    assert back.fps == 30
    pid = back.pid
    (await back.receive()).release()
    await back.aclose()
    await back.aclose()
    assert is_gone(pid)
    with pytest.raises(azc.StreamClosed):
        await back.receive()


# ---- reading -----------------------------------------------------------------------


def pattern(*more: str, size: str = "64x48", seconds: str = "1") -> list[str]:
    return ["-f", "lavfi", "-i", f"testsrc=size={size}:rate=30:duration={seconds}"]


async def test_pool_of_another_size() -> None:
    with azc.FramePool(100) as pool:
        with pytest.raises(
            ValueError, match=r"9,216 bytes, and a frame of the pool 100"
        ):
            await Reader(pattern(), pool=pool)


async def test_pool_that_is_closed_in_use() -> None:
    pool = azc.FramePool(SHAPE, slots=2)
    async with Reader(pattern(), pool=pool) as video:
        frame = await video.receive()
        pool.close()
        with pytest.raises(anyio.ClosedResourceError, match="pool"):
            await video.receive()
        async with Writer(NULL, SIZE) as copy:
            await copy.send(frame)  # a leased frame stays valid
            frame.release()
            with pytest.raises(ValueError, match="frame was released"):
                await copy.send(frame)
    assert copy.status.frames == 1


async def test_reader_of_nothing(ffmpeg: str, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no video")
    for path, text, kind in (
        ("nonesuch", "No such file", FileNotFoundError),
        ("nonesuch/a.mp4", "No such file", FileNotFoundError),
        (".", "Is a directory", IsADirectoryError),
        ("text", "Invalid data", FFmpegError),
    ):
        for source in (tmp_path / path, ["-i", str(tmp_path / path)]):
            with pytest.raises(FFmpegError, match=text) as caught:
                await Reader(source, ffmpeg=ffmpeg)
            assert isinstance(caught.value, kind)
            assert caught.value.returncode
            assert text in caught.value.stderr


async def test_name_with_a_colon(
    ffmpeg: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = "cam-12:30.mkv"
    async with Writer(name, SIZE, ffmpeg=ffmpeg) as video:
        await video.send(picture(0))
    async with Reader(name, ffmpeg=ffmpeg) as back:
        (await back.receive()).release()
    async with Writer("b.mkv", SIZE, audio=name, ffmpeg=ffmpeg) as video:
        assert video._sound == ["-i", f"file:{name}"]
        await video.send(picture(0))


async def test_film_that_may_not_be_read(pretend: Callable[[str], str]) -> None:
    program = pretend("echo 'a.mp4: Permission denied' >&2; exit 1")
    with pytest.raises(PermissionError, match=r"denied: a\.mp4") as caught:
        await Reader("a.mp4", ffmpeg=program)
    assert isinstance(caught.value, FFmpegError)
    assert caught.value.errno == errno.EACCES


async def test_reader_that_is_told_no_size(pretend: Callable[[str], str]) -> None:
    with pytest.raises(FFmpegError, match="how large a frame is"):
        await Reader("a", ffmpeg=pretend("echo frame"))


# ---- refused arguments -------------------------------------------------------------


@pytest.mark.parametrize(
    ("frame", "kind", "text"),
    [
        (bytes(9215), ValueError, "64x48 rgb24 has 9,216 bytes, not 9,215"),
        (np.empty((WIDTH, HEIGHT, 3), "u1"), ValueError, r"shape \(48, 64, 3\), not"),
        (
            np.empty((HEIGHT, WIDTH, 4), "u1"),
            ValueError,
            r"not 12,288 \(\(48, 64, 4\), uint8\)",
        ),
        (np.empty((HEIGHT, WIDTH, 3), "f4"), ValueError, r"36,864 \(.*, float32\)"),
        (np.empty((HEIGHT, 48), "f4"), ValueError, "dtype uint8, not of float32"),
        (np.empty((HEIGHT, 96), "u2"), ValueError, "dtype uint8, not of uint16"),
        (np.empty(SHAPE, "u1").transpose(1, 0, 2), ValueError, r"shape \(48, 64, 3\)"),
        (np.ones(SHAPE, bool), ValueError, r"of bool: multiply it by np\.uint8\(255\)"),
        (Tensor(np.empty(SHAPE, "u1"), CUDA), BufferError, "copy it to the host"),
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
        for shape, dtype in (
            ((WIDTH, HEIGHT, 3), "u1"),
            ((HEIGHT, 48), "float32"),
            (SHAPE, "?"),
        ):
            with azc.FramePool(shape, dtype) as pool:
                with pytest.raises(ValueError, match="a frame of 64x48"):
                    await video.send(pool.acquire_nowait())


@pytest.mark.parametrize(
    ("pix_fmt", "dtype", "other"),
    [
        ("gray16le", "<u2", ">u2"),
        ("gray16be", ">u2", "<u2"),
        ("rgba64be", ">u2", "<u8"),
        ("grayf32le", "<f4", ">f4"),
        ("yuv420p10le", "<u2", ">u2"),
    ],
)
async def test_frames_in_the_other_byte_order(
    pix_fmt: str, dtype: str, other: str
) -> None:
    async with Writer(NULL, SIZE, pix_fmt=pix_fmt) as video:
        for order, shape in (
            (dtype, video.layout.shape),
            (other, (HEIGHT, WIDTH) if other.endswith("8") else video.layout.shape),
        ):
            with azc.FramePool(shape, order) as pool:
                for frame in (np.zeros(shape, order), pool.acquire_nowait()):
                    if order == dtype:
                        await video.send(frame)
                        continue
                    with pytest.raises(ValueError, match=r"is of dtype \S+, not of "):
                        await video.send(frame)
        await video.send(bytes(video.layout.nbytes))
    assert video.status.frames == 3


Y, U = np.zeros((HEIGHT, WIDTH), "u1"), np.zeros((HEIGHT // 2, WIDTH // 2), "u1")


@pytest.mark.parametrize(
    ("pix_fmt", "right", "wrong", "text"),
    [
        ("rgb24", [bytes(9000), bytes(216)], [Y, Y, Y], r"one array \(48, 64, 3\)"),
        ("yuv420p", [Y, U, U], [U, Y, U], "of 3,072, 768, 768 bytes, not of 768, "),
        ("yuv420p", [Y, bytes(2 * U.size)], [U, U, Y], "planes of 3,072, 768, 768"),
        ("yuva420p", [Y, U, U, Y], [Y, Y, U, U], "planes of 3,072, 768, 768, 3,072"),
        ("nv12", [Y, Y[::2]], [Y, U, U], "planes of 3,072, 1,536 bytes"),
        ("gbrp", [Y, Y, Y], [Y[1:], Y[:1], Y, Y], "planes of 3,072, 3,072, 3,072"),
        ("p010le", [Y.astype("u2"), Y[::2].astype("u2")], [Y, Y, Y], "of 6,144, 3,072"),
    ],
)
async def test_frames_in_planes(
    pix_fmt: str, right: list[Any], wrong: list[Any], text: str
) -> None:
    async with Writer(NULL, SIZE, pix_fmt=pix_fmt) as video:
        with pytest.raises(ValueError, match=text):
            await video.send(*wrong)
        await video.send(*right)
    assert video.status.frames == 1


@pytest.mark.parametrize("dtype", ["u4", "i4", "u1"])
async def test_pixels_as_integers(dtype: str) -> None:
    async with Writer(NULL, SIZE, pix_fmt="rgba") as video:
        await video.send(
            np.zeros((HEIGHT, WIDTH * 4 // np.dtype(dtype).itemsize), dtype)
        )
    assert video.status.frames == 1


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"size": (0, 10)}, ValueError, "at least 1x1"),
        ({"fps": 0}, ValueError, "positive"),
        *(
            ({"fps": fps}, ValueError, f"a number or a fraction, not {fps!r}")
            for fps in ("fast", float("nan"), None)
        ),
        *(
            ({"size": size}, ValueError, r"size must be \(width, height\), not ")
            for size in ("64x48", (64, 48, 3), (64.5, 48))
        ),
        ({"timeout": 0}, ValueError, "timeout must be seconds, or None for no limit"),
        ({"timeout": float("nan")}, ValueError, "no limit, not nan"),
        ({"quality": "best"}, ValueError, "one of lossless, high, .*, not 'best'"),
        ({"preset": "warp"}, ValueError, "one of ultrafast, .*, not 'warp'"),
        ({"codec": 5}, TypeError, "codec must be a name such as 'libx264', not 5"),
        ({"colour": "bt709"}, TypeError, r"a Colour such as .*, not 'bt709'"),
        ({"output": []}, ValueError, "output is empty"),
        ({"output": ""}, ValueError, "output is empty"),
        ({"output": "-"}, ValueError, "standard output"),
        ({"output": ["-f", "mp4", "pipe:1"]}, ValueError, "standard output"),
        ({"output": {"a.mkv"}}, TypeError, r"list of arguments, not \{'a\.mkv'\}$"),
        ({"audio": bytes(99)}, TypeError, r"a list of arguments, not b'.{9,30}'$"),
        ({"audio": ["a.wav"] * 99}, ValueError, r"not \['a\.wav', .*, \.\.\.\]$"),
        ({"output": None}, TypeError, "the output is a path, a URL or a list of arg"),
        ({"options": "-an"}, TypeError, "options is a list of arguments, not '-an'"),
        ({"audio": 5}, TypeError, "an input is a path, a URL or a list of .*, not 5"),
        (
            {"pix_fmt": None},
            TypeError,
            "pix_fmt must be a name such as 'rgb24', not None",
        ),
        *(
            ({"pix_fmt": name, "flip": True}, ValueError, f"flip=True .* not {name}")
            for name in ("yuv420p", "gbrp", "yuyv422")
        ),
    ],
    ids=str,
)
def test_arguments_that_mean_nothing(
    options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        Writer(**{"output": "a.mkv", "size": SIZE, **options})


async def test_name_that_says_no_format(tmp_path: Path) -> None:
    for name in ("film", "film.", "film.d/film", ".film.d/film."):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        for output in (path, str(path), f"file:{path}"):
            with pytest.raises(ValueError, match=r"has no suffix, .*such as film\.mp4"):
                await Writer(output, SIZE)
        async with Writer(path, SIZE, options={"f": "matroska"}) as video:
            await video.send(picture(0))
    (tmp_path / "a.mp4").mkdir()
    for folder in (tmp_path / "a.mp4", str(tmp_path), Path()):
        with pytest.raises(IsADirectoryError, match="Is a directory: add the name"):
            await Writer(folder, SIZE)


def test_open_file_is_no_film(tmp_path: Path) -> None:
    path = tmp_path / "a.mkv"
    path.write_bytes(b"line\n" * 99)
    with path.open("r+b") as opened:
        file: Any
        for file in (opened, io.BytesIO(bytes(99))):
            for make in (Reader, lambda film: Writer(film, SIZE)):
                with pytest.raises(TypeError, match=r"give the path of a file$"):
                    make(file)
            assert file.tell() == 0


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


# ---- which FFmpeg ------------------------------------------------------------------


async def test_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nonesuch"):
        await Writer(NULL, SIZE, ffmpeg="nonesuch")
    with pytest.raises(FileNotFoundError, match="nonesuch"):
        await Reader("a.mkv", ffmpeg=tmp_path / "nonesuch")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(FileNotFoundError, match="pip install 'imageio-ffmpeg"):
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
    assert "MALLOC_TOP_PAD_=77" in lines  # the user's setting


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
    status = status_in(text)
    assert status == Status(10, 25.5, 123_400, 1000, 1.5, 1, 2, 1.5)
    last = REPORT.format(frame=20, progress="end")
    for cut in range(len(last)):
        assert status_in(text + last[:cut]) == status
    assert status_in(text + last).ended
    assert status_in(text + last).frames == 20
    nothing = "frame=1\nbitrate=N/A\ntotal_size=N/A\nspeed=inf\nprogress=continue\n"
    assert status_in(nothing) == Status(frames=1)
    assert status_in("") == Status()


# ---- audio -------------------------------------------------------------------------


def streams_in(path: Path) -> list[str]:
    """Return FFmpeg's description of each stream."""
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


async def test_audio_that_is_sent(ffmpeg: str, tmp_path: Path) -> None:
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
        path, size, 30, codec="ffv1", options=options, audio=sound, ffmpeg=ffmpeg
    ) as video:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send_sound, video)
            for one in pictures:
                await video.send(one)
    assert await audio_of(path) == samples.tobytes()
    assert await frames_of(path) == [one.tobytes() for one in pictures]


async def test_sound_without_pictures_is_told(ffmpeg: str) -> None:
    """FFmpeg waits for a picture, and reads no more sound: the send fails."""
    video = await Writer(NULL, SIZE, audio=Audio(), timeout=0.2, ffmpeg=ffmpeg)
    says = r"did nothing for 0\.2 s while it waited for pictures .*call close_video"
    with pytest.raises(FFmpegError, match=says):
        await video.send_audio(bytes(64 << 20))
    with pytest.raises(FFmpegError):
        await video.aclose()


async def test_pictures_without_sound_are_told(
    ffmpeg: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """FFmpeg waits for samples, and reads no more pictures."""
    monkeypatch.setattr("aiozerocopy.ffmpeg.run.SILENT", 0.05)
    video = await Writer(NULL, SIZE, audio=Audio(), timeout=0.2, ffmpeg=ffmpeg)
    says = "while it waited for samples .*call close_audio"
    with pytest.raises(FFmpegError, match=says):
        while True:
            await video.send(picture(0))
    with pytest.raises(FFmpegError):
        await video.aclose()
    said = caplog.messages[-1]
    assert re.search(f"nothing for 0\\.\\d s {says}", said)


@pytest.mark.every_loop
async def test_sound_that_is_longer_than_the_pictures(
    ffmpeg: str, tmp_path: Path
) -> None:
    path, seconds = tmp_path / "a.mkv", 10
    options = ["-c:a", "pcm_s16le"]
    async with Writer(
        path, SIZE, 30, options=options, audio=Audio(), ffmpeg=ffmpeg
    ) as video:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(video.send_audio, bytes(seconds * 48_000 * 4))
            await video.send(picture(0))
            await video.close_video()
        await video.close_video()
        with pytest.raises(azc.StreamClosed):
            await video.send(picture(0))
    assert video.frames_written == 1
    assert len(await audio_of(path)) == seconds * 48_000 * 4


async def test_audio_from_a_file(ffmpeg: str, tmp_path: Path) -> None:
    path, sound = tmp_path / "a.mkv", tmp_path / "sound.wav"
    command = [ffmpeg, "-v", "error", "-nostdin", "-f", "lavfi", "-i", "sine=d=0.5"]
    await anyio.run_process([*command, str(sound)])
    async with Writer(path, SIZE, 30, audio=sound, ffmpeg=ffmpeg) as video:
        for number in range(15):
            await video.send(picture(number))
        with pytest.raises(RuntimeError, match="no audio track"):
            await video.send_audio(bytes(4))
    kinds = [line.partition(": ")[2].partition(":")[0] for line in streams_in(path)]
    assert kinds == ["Video", "Audio"]


async def test_input_among_the_options(ffmpeg: str, tmp_path: Path) -> None:
    options = ["-f", "lavfi", "-i", "sine=d=0.5", "-c:a", "pcm_s16le", "-shortest"]
    words: dict[str, Any] = {"options": options, "ffmpeg": ffmpeg}
    paths = tmp_path / "a.mkv", tmp_path / "b.mkv"
    async with Writer(paths[0], SIZE, 30, quality="high", **words) as video:
        await video.send(picture(0))
    async with Encoder(SIZE, 30, format="mkv", **words) as encoder:
        await encoder.send(picture(0))
        await encoder.finish()
        await azc.relay(encoder.output, paths[1])
        await encoder.wait()
    for path in paths:
        kinds = [line.partition(": ")[2][:10] for line in streams_in(path)]
        assert kinds == ["Video: h26", "Audio: pcm"]


@pytest.mark.parametrize("name", ["a.mp4", "a.mov"])
async def test_sound_begins_at_once(name: str, ffmpeg: str, tmp_path: Path) -> None:
    """The encoder's silence before the sound does not delay the pictures."""
    sine = ["-f", "lavfi", "-i", "sine=d=0.5"]
    async with Writer(tmp_path / name, SIZE, 30, audio=sine, ffmpeg=ffmpeg) as video:
        for number in range(15):
            await video.send(picture(number))
    async with Reader(tmp_path / name, copy=True, ffmpeg=ffmpeg) as back:
        times = [back.time async for _ in back]
    assert times == pytest.approx([number / 30 for number in range(15)], abs=1e-6)


async def test_wrong_samples() -> None:
    async with Writer(NULL, SIZE, audio=Audio()) as video:
        for samples, text in (
            (bytes(3), "3 bytes are not a whole number of samples"),
            (np.zeros(4, "f4"), "s16le are not of dtype float32"),
            (np.zeros(4, "f2"), "s16le are not of dtype float16"),
            (np.zeros(4, ">i2"), "s16le are not of dtype >i2"),
            (np.zeros(4, "u2"), "s16le are not of dtype uint16"),
            (np.zeros(4, "i1"), "s16le are not of dtype int8"),
            (np.zeros((2, 8), "i2"), r"shape \(n, 2\), not \(2, 8\): transpose them"),
            (np.zeros((8, 1), "i2"), r"shape \(n, 2\), not \(8, 1\)$"),
        ):
            with pytest.raises(ValueError, match=text):
                await video.send_audio(samples)
        with pytest.raises(BufferError):
            await video.send_audio(np.zeros(8, "i2")[::2])
        await video.send(picture(0))
        await video.send_audio(np.zeros((800, 2), "i2"))
    mono = Audio("f32le", channels=1)
    for dtype in ("i4", "u4", ">f4", "f8", "?"):
        with pytest.raises(ValueError, match="f32le are not of dtype"):
            mono.check(np.zeros(8, dtype))
    for right in (np.zeros(8, "u1"), np.zeros((1, 8), "f4"), np.zeros((8, 1), "f4")):
        mono.check(right)
    with azc.FramePool((800, 2), "int16") as pool:
        Audio().check(pool.acquire_nowait())
    Audio("s24be", channels=2).check(np.zeros((8, 2), "V3"))
    with pytest.raises(ValueError, match="unknown sample format"):
        Audio("mp3")
    with pytest.raises(ValueError, match="must be at least 1"):
        Audio(channels=0)
