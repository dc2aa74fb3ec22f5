"""An FFmpeg that fails, hangs, is killed, or fills the disk: errors, and what remains.

Nothing hangs, and no process, thread, fd or slot of a pool remains.
"""

import functools
import gc
import itertools
import os
import re
import signal
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.lowlevel
import numpy as np
import pytest
import scripts
from ffmpegs import LOSSLESS, NULL, SIZE, frames_of, is_gone, picture
from ffmpegs import quick_ffmpeg as quick_ffmpeg
from interruption import Interruption, hit_after_each_call

import aiozerocopy as azc
from aiozerocopy.ffmpeg import Audio, FFmpegError, Reader, Writer, binary
from aiozerocopy.ffmpeg import run as progress
from aiozerocopy.ffmpeg.destination import Destination

pytestmark = pytest.mark.anyio

# ---- FFmpeg that fails -------------------------------------------------------------


async def send_until_error(video: Writer) -> None:
    for number in itertools.count():
        await video.send(picture(number))


BAD = ["-c:v", "nonesuch"]


async def test_bad_codec(ffmpeg: str, tmp_path: Path) -> None:
    """Nothing is left of the film, and an older film is unchanged."""
    path = tmp_path / "a.mp4"
    path.write_text("mine")
    with pytest.raises(FFmpegError, match="Unknown encoder 'nonesuch'") as caught:
        async with Writer(path, SIZE, options=BAD, ffmpeg=ffmpeg) as video:
            await send_until_error(video)
    assert caught.value.returncode
    assert isinstance(caught.value, azc.StreamBroken)
    assert isinstance(caught.value.__cause__, BrokenPipeError)
    assert "nothing is left of the film" in str(caught.value)
    assert os.listdir(tmp_path) == ["a.mp4"]
    assert path.read_text() == "mine"


async def test_aclose_that_fails_in_the_block(ffmpeg: str, tmp_path: Path) -> None:
    with pytest.raises(FFmpegError) as caught:
        path = tmp_path / "a.mp4"
        async with Writer(path, SIZE, options=BAD, ffmpeg=ffmpeg) as video:
            await video.aclose()
    assert str(caught.value).count("nothing is left of the film") == 1


async def test_existing_file_stays(ffmpeg: str, tmp_path: Path) -> None:
    path = tmp_path / "a.mkv"
    path.write_text("mine")
    with pytest.raises(FileExistsError):
        await Writer(path, SIZE, overwrite=False, ffmpeg=ffmpeg)
    assert path.read_text() == "mine"
    assert os.listdir(tmp_path) == ["a.mkv"]


async def test_ended_by_itself(ffmpeg: str) -> None:
    """An output option ends FFmpeg, and further sends fail."""
    video = await Writer(NULL, SIZE, options=["-frames:v", "3"], ffmpeg=ffmpeg)
    with pytest.raises(FFmpegError, match=r"ended by itself .*-frames") as caught:
        await send_until_error(video)
    assert caught.value.returncode == 0
    await video.aclose()
    assert video.status.frames == 3


FULL = ["-f", "matroska", "/dev/full"]


@pytest.mark.parametrize("frames", [1, 2000])
async def test_full_disk(ffmpeg: str, frames: int) -> None:
    """Even if FFmpeg writes so little that it fails only at the end."""
    with pytest.raises(FFmpegError, match=r"^FFmpeg failed.*No space left on device"):
        async with Writer(FULL, SIZE, ffmpeg=ffmpeg, **LOSSLESS) as video:
            for number in range(frames):
                await video.send(picture(number % 10))


# ---- FFmpeg that hangs -------------------------------------------------------------


@pytest.mark.parametrize("body", ["exec sleep 60", "exec <&-; sleep 60 & wait"])
async def test_never_reading(
    monkeypatch: pytest.MonkeyPatch, pretend: Callable[[str], str], body: str
) -> None:
    """With its input open or closed."""
    monkeypatch.setattr("aiozerocopy._process.child.LAST_WORDS", 0.01)
    async with Writer(NULL, (640, 480), ffmpeg=pretend(body), timeout=0.1) as video:
        frame = np.empty((480, 640, 3), "u1")
        with pytest.raises(FFmpegError) as caught:
            for _ in range(10):
                await video.send(frame)
        with pytest.raises(FFmpegError, match=r"did nothing for 0\.1 s"):
            await video.aclose()
    assert caught.value.returncode in (None, -signal.SIGKILL)


async def test_never_ending(
    pretend: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A warning comes long before FFmpeg is killed."""
    monkeypatch.setattr(progress, "SILENT", 0.05)
    program = pretend("cat >/dev/null; exec sleep 60")
    video = await Writer(NULL, SIZE, ffmpeg=program, timeout=0.2)
    await video.send(picture(0))
    with pytest.raises(FFmpegError, match=r"did nothing for 0\.2 s"):
        await video.aclose()
    (said,) = caplog.messages
    assert re.match(r"FFmpeg \(process \d+\) has done nothing for 0\.\d+ s", said)


async def test_never_answering(
    pretend: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Neither to a question nor with a first frame."""
    monkeypatch.setattr(binary, "SILENT", 0.05)
    program = pretend("printf 'some words'; exec sleep 60")
    with pytest.raises(TimeoutError, match=r"has not answered for 0\.2 s"):
        await binary.ask(program, "-encoders", patience=0.2)
    assert caplog.messages[0] == f"{program} has not answered for 0.05 s"
    caplog.clear()
    with pytest.raises(FFmpegError):
        await Reader(["-i", "udp://nobody"], ffmpeg=pretend("sleep 0.3; exit 1"))
    assert caplog.messages == [f"{program} has not answered for 0.05 s"]


async def test_idle_writer_is_left_alone(ffmpeg: str) -> None:
    async with Writer(NULL, SIZE, ffmpeg=ffmpeg, timeout=1.0) as video:
        await video.send(picture(0))
        await anyio.sleep(1.5)
        await video.send(picture(1))
    assert video.status.frames == 2


@pytest.mark.slow
async def test_busy_ffmpeg_is_left_alone(pretend: Callable[[str], str]) -> None:
    script = "i=0; while [ $i -lt 600000 ]; do i=$((i+1)); done; cat >/dev/null"
    async with Writer(NULL, (640, 480), ffmpeg=pretend(script), timeout=0.4) as video:
        for _ in range(5):
            await video.send(np.empty((480, 640, 3), "u1"))
    assert video.returncode == 0


def test_time_in_which_the_machine_stood_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred seconds passed between two looks, and FFmpeg could not run."""
    times = itertools.chain([0.0], itertools.repeat(100.0))
    clock = SimpleNamespace(monotonic=functools.partial(next, times))
    monkeypatch.setattr(progress, "time", clock)
    looks = threading.Semaphore(0)

    def is_awaited() -> bool:
        looks.release()
        return True

    child: Any = SimpleNamespace(pid=0, kill=lambda: None, returncode=None)
    watchdog = progress.Watchdog(child, 0.1, is_awaited, lambda: None)
    watchdog.start()
    try:
        for _ in range(3):
            assert looks.acquire(timeout=10)
        assert not watchdog.barked
        child.returncode = 0
        watchdog._thread.join(10)  # the thread ends with the child, even unstopped
        assert not watchdog._thread.is_alive()
    finally:
        watchdog.stop()


@pytest.mark.parametrize("call", ["__init__", "start"])
async def test_interrupted_start_leaves_no_watchdog(
    ffmpeg: str, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    method: Any = getattr(progress.Watchdog, call)

    def interrupted(*given: Any) -> None:
        method(*given)
        raise Interruption

    monkeypatch.setattr(progress.Watchdog, call, interrupted)
    with pytest.raises(Interruption):
        await Writer(NULL, SIZE, ffmpeg=ffmpeg, timeout=60)
    assert "aiozerocopy watchdog" not in [one.name for one in threading.enumerate()]


@pytest.mark.filterwarnings("ignore:unclosed")
async def test_interrupted_destination_leaves_no_fd(tmp_path: Path) -> None:
    async def make() -> None:
        Destination(tmp_path / "a.mp4", overwrite=True)

    await hit_after_each_call(make, "ffmpeg.destination")


async def test_ffmpeg_that_says_very_much(pretend: Callable[[str], str]) -> None:
    """On its standard error and in its reports, before it reads a byte."""
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


@pytest.mark.every_loop
async def test_abort(ffmpeg: str, tmp_path: Path) -> None:
    """Nothing is left of the process or of the film."""
    video = await Writer(tmp_path / "a.mkv", SIZE, ffmpeg=ffmpeg)
    await video.send(picture(0))
    pid = video.pid
    video.abort()
    assert os.listdir(tmp_path) == []
    assert video.returncode == -signal.SIGKILL
    assert is_gone(pid)
    video.abort()
    await video.aclose()
    with pytest.raises(azc.StreamClosed):
        await video.send(picture(0))


@pytest.mark.every_loop
async def test_forgotten_writer_says_that_its_film_is_deleted(
    ffmpeg: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.mp4"
    path.write_text("mine")
    video = await Writer(path, SIZE, ffmpeg=ffmpeg)
    await video.send(picture(0))
    pid = video.pid
    says = f"unclosed <Writer 64x48 .*killed, and what it wrote of {path} is deleted"
    with pytest.warns(RuntimeWarning, match=says):
        del video
        gc.collect()
    assert is_gone(pid)
    assert os.listdir(tmp_path) == ["a.mp4"]
    assert path.read_text() == "mine"


@pytest.mark.every_loop
async def test_block_that_is_cancelled(ffmpeg: str, tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    with anyio.CancelScope() as scope:
        async with Writer(path, SIZE, ffmpeg=ffmpeg) as video:
            await video.send(picture(0))
            scope.cancel()
            await video.send(picture(1))
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert is_gone(video.pid)
    assert len(await frames_of(path)) in (1, 2)


async def test_block_that_fails_while_ffmpeg_hangs(
    monkeypatch: pytest.MonkeyPatch, pretend: Callable[[str], str]
) -> None:
    monkeypatch.setattr("aiozerocopy.ffmpeg.writer.GRACE", 0.05)
    with pytest.raises(ZeroDivisionError):
        async with Writer(NULL, SIZE, ffmpeg=pretend("exec sleep 60")) as video:
            raise ZeroDivisionError
    assert video.returncode == -signal.SIGTERM


@pytest.mark.every_loop
async def test_aclose_that_is_cancelled(pretend: Callable[[str], str]) -> None:
    video = await Writer(NULL, SIZE, ffmpeg=pretend("exec sleep 60"), timeout=None)
    with anyio.move_on_after(0.05) as scope:
        await video.aclose()
    assert scope.cancelled_caught
    assert video.returncode == -signal.SIGTERM


async def test_start_that_fails_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("no program")
    path.chmod(0o755)
    for options in ({}, {"audio": Audio()}):
        with pytest.raises(OSError, match="Exec format"):
            await Writer(NULL, SIZE, ffmpeg=path, **options)  # type: ignore[arg-type]


INTERRUPTED = """
import numpy

# In trio Ctrl-C may come between any two steps, such as a call and its await.
warnings.filterwarnings("ignore", "coroutine .* was never awaited")

async def main():
    options = {"ffmpeg": sys.argv[2]}
    async with azc.ffmpeg.Writer(sys.argv[3], (64, 48), 30, **options) as video:
        frame = numpy.zeros((48, 64, 3), "u1")
        # (In 3.13 an exception leaves the block without its end if it comes as a loop
        # jumps back from an `if`: dis shows the jump outside of the exception table.)
        for number in range(1_000_000):
            if number == 51:
                print("ready", flush=True)
            await video.send(frame)

import aiozerocopy.ffmpeg
try:
    run(main)
except (KeyboardInterrupt, asyncio.CancelledError):  # the latter before Python 3.11
    print("interrupted", flush=True)
"""


@pytest.mark.parametrize(
    "loop",
    [
        "asyncio",
        pytest.param("uvloop", marks=pytest.mark.slow),
        pytest.param("trio", marks=pytest.mark.slow),
    ],
)
def test_ctrl_c(ffmpeg: str, tmp_path: Path, loop: str) -> None:
    """The terminal sends SIGINT to the program's whole group; the film is playable."""
    path = tmp_path / "a.mp4"
    process = scripts.start(
        INTERRUPTED, loop, ffmpeg, str(path), start_new_session=True
    )
    assert process.stdout
    try:
        assert process.stdout.readline() == "ready\n"
        os.killpg(process.pid, signal.SIGINT)
        assert scripts.finish(process) == (0, "interrupted\n", "")
    finally:
        process.kill()
    assert len(anyio.run(frames_of, path)) > 50
