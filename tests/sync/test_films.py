"""Films without an event loop: frames to FFmpeg and back, in threads."""

from __future__ import annotations

import queue
import textwrap
import threading
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scripts
from ffmpegs import FOUND
from links import begun_in_thread

from aiozerocopy import FramePool, StreamClosed, sync
from aiozerocopy.ffmpeg import Audio, FFmpegError
from aiozerocopy.sync._portal import _Call

pytestmark = pytest.mark.skipif(not any(FOUND.values()), reason="needs FFmpeg")

SIZE = (160, 120)


def pictures(count: int, channels: int = 3) -> npt.NDArray[Any]:
    noise = np.random.default_rng(count)
    shape = (count, SIZE[1], SIZE[0], channels)
    return noise.integers(0, 255, shape, dtype="u1")


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_film_and_back(tmp_path: Path, channels: int) -> None:
    path, made = tmp_path / "film.mkv", pictures(12, channels)
    given = made[..., 0] if channels == 1 else made
    assert sync.ffmpeg.write(path, given, fps=10, codec="ffv1") == str(path)
    pix_fmt = {1: "gray", 3: "rgb24", 4: "rgba"}[channels]
    seen = sync.ffmpeg.read(path, pix_fmt)
    assert np.array_equal(seen.reshape(made.shape), made)


def test_single_picture_is_no_film(tmp_path: Path) -> None:
    path, picture = tmp_path / "film.mkv", pictures(1)[0]
    for one in (picture, picture[..., :1], picture[..., 0]):
        with pytest.raises(ValueError, match=r"one picture\?.* write \[picture\]"):
            sync.ffmpeg.write(path, one)
    sync.ffmpeg.write(path, [picture], codec="ffv1")
    copied: dict[str, Any] = {"copy": True}  # as the result is in any case
    assert np.array_equal(sync.ffmpeg.read(path, **copied), [picture])


def test_warning_names_the_line_of_the_caller(tmp_path: Path) -> None:
    path, odd = tmp_path / "film.mp4", pictures(2)[:, 1:]
    with pytest.warns(UserWarning, match="padded to 160x120") as told:
        sync.ffmpeg.write(path, odd)
        sync.ffmpeg.Writer(path, (160, 119)).abort()
    assert [each.filename for each in told] == [__file__] * 2
    assert told[1].lineno == told[0].lineno + 1


def test_frame_after_frame(tmp_path: Path) -> None:
    path, made = tmp_path / "film.mkv", pictures(20)
    with sync.ffmpeg.Writer(path, SIZE, fps=10, codec="ffv1") as film:
        tickets = [film.put(frame) for frame in made[:10]]
        for ticket in tickets:
            ticket.wait()
            assert ticket.done()
        frame = made[10].copy()
        for each in made[10:]:
            frame[:] = each
            film.send(frame)
            frame[:] = 0  # the frame is the caller's again
        assert film.layout.nbytes == frame.nbytes
    assert (film.frames_written, film.written_to) == (20, str(path))
    with pytest.raises(StreamClosed):
        film.send(frame)
    with sync.ffmpeg.Reader(path) as source:
        assert source.size == SIZE
        assert source.fps == 10
        assert source.duration == 2.0
        for number, got in enumerate(source):
            with got:
                assert np.array_equal(got.array, made[number])
                assert source.time == pytest.approx(number / 10)
        assert number == 19


def test_frame_whose_receive_is_interrupted_comes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C may come when the portal has received the frame."""
    path, made = tmp_path / "film.mkv", pictures(3)
    wait = _Call._wait

    def interrupted(call: _Call[Any]) -> None:
        wait(call)
        monkeypatch.undo()
        raise KeyboardInterrupt

    def interrupt(film: sync.ffmpeg.Reader) -> None:
        monkeypatch.setattr(_Call, "_wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            film.receive()

    sync.ffmpeg.write(path, made, fps=10, codec="ffv1")
    with sync.ffmpeg.Reader(path) as film:
        for number in range(2):
            interrupt(film)
            with film.receive() as frame:
                assert np.array_equal(frame.array, made[number])
                assert frame.time == film.time == pytest.approx(number / 10)
        interrupt(film)
    with pytest.raises(StreamClosed):
        film.receive()


def test_picture_and_sound_from_two_threads(tmp_path: Path) -> None:
    path = tmp_path / "film.mkv"
    audio = Audio(rate=8000, channels=1)
    with sync.ffmpeg.Writer(path, SIZE, 10, audio=audio) as film:

        def sound() -> None:
            for _ in range(20):
                film.send_audio(np.zeros(800, "<i2"))
            film.close_audio()

        thread = threading.Thread(target=sound)
        thread.start()
        for frame in pictures(20):
            film.send(frame)
        film.close_video()
        thread.join()
    assert film.frames_written == 20


def test_acquire_waits_for_a_slot() -> None:
    with FramePool((10,), slots=1) as pool:
        held = sync.acquire(pool)
        waiting = begun_in_thread(lambda: sync.acquire(pool).shape)
        while not pool.stats.waiting:
            pass
        held.release()
        assert waiting() == (10,)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_recorder_loses_no_frame(tmp_path: Path) -> None:
    """A recorder that drops frames when its queue is full lost two of 72,649 frames."""
    count, path = 72_649, tmp_path / "film.mkv"
    pool = FramePool((48, 64), slots=30)
    recorded: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def encode() -> int:
        with (
            pool,
            sync.ffmpeg.Writer(path, (64, 48), pix_fmt="gray", codec="ffv1") as film,
        ):
            while (frame := recorded.get()) is not None:
                with frame:
                    film.put(frame)
        return film.frames_written

    encoded = begun_in_thread(encode)
    for number in range(count):
        frame = sync.acquire(pool)
        frame.array[:] = number % 251
        recorded.put(frame)
    recorded.put(None)
    assert encoded() == count
    assert pool.stats.waited  # so there was backpressure
    with sync.ffmpeg.Reader(path, pix_fmt="gray") as film:
        number = -1
        for number, frame in enumerate(film):
            with frame:
                assert frame.array.min() == frame.array.max() == number % 251
    assert number == count - 1


class TestFailures:
    def test_no_frames(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="no frame"):
            sync.ffmpeg.write(tmp_path / "film.mp4", [])
        with pytest.raises((FileNotFoundError, FFmpegError)):
            sync.ffmpeg.read(tmp_path / "film.mp4")

    @pytest.mark.parametrize("convert", ["auto", "ffmpeg"])
    def test_ffmpeg_that_fails(self, tmp_path: Path, convert: Any) -> None:
        film = sync.ffmpeg.Writer(
            tmp_path / "film.mp4", SIZE, options=["-crf", "no"], convert=convert
        )
        with pytest.raises(FFmpegError, match="crf"):
            for _ in range(1000):
                film.send(pictures(1)[0])
        with pytest.raises(FFmpegError, match="crf"):
            film.close()

    def test_abort_leaves_nothing_and_ends_a_send(self, tmp_path: Path) -> None:
        film = sync.ffmpeg.Writer(tmp_path / "film.mp4", SIZE)

        def send() -> None:
            while True:
                film.send(pictures(1)[0])

        end = begun_in_thread(send)
        while not film.stats.bytes_sent:
            pass
        film.abort()
        assert isinstance(end(), (StreamClosed, FFmpegError))
        assert list(tmp_path.iterdir()) == []


PRELUDE = """
from aiozerocopy import sync
import numpy as np
frame = np.zeros((120, 160, 3), "u1")
"""


class TestProcesses:
    def test_ctrl_c_leaves_a_film_that_plays(self, tmp_path: Path) -> None:
        path = tmp_path / "film.mkv"
        code = f"""
            film = sync.ffmpeg.Writer({str(path)!r}, (160, 120), fps=10)
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
            try:
                with film:
                    while True:
                        film.send(frame)
            except KeyboardInterrupt:
                print(film.frames_written > 0)
        """
        assert scripts.run(_with_prelude(code)) == "True\n"
        assert len(sync.ffmpeg.read(path)) > 0

    @pytest.mark.parametrize("warnings", ["default", "error"])
    def test_films_open_at_exit_are_ended(self, warnings: str, tmp_path: Path) -> None:
        paths = [str(tmp_path / "one.mp4"), str(tmp_path / "other.mp4")]
        code = """
            films = [sync.ffmpeg.Writer(each, (160, 120)) for each in sys.argv[1:]]
            for film in films * 7:
                film.send(frame)
        """
        process = scripts.start(_with_prelude(code), *paths, warnings=warnings)
        status, _, complained = scripts.finish(process)
        assert (status, "unclosed <sync Writer" in complained) == (0, True)
        assert warnings == "error" or "Traceback" not in complained
        for path in paths:
            assert b"moof" not in Path(path).read_bytes()  # the index is in front
            assert len(sync.ffmpeg.read(path)) == 7

    def test_child_of_a_fork_makes_its_own(self, tmp_path: Path) -> None:
        path, its = tmp_path / "film.mkv", tmp_path / "its.mkv"
        code = f"""
            warnings.simplefilter("ignore", DeprecationWarning)  # threads, and a fork
            film = sync.ffmpeg.Writer({str(path)!r}, (160, 120), fps=10)
            film.send(frame)
            if (child := os.fork()) == 0:
                for call in (film.send, film.put):
                    try:
                        call(frame)
                    except azc.StreamClosed:
                        pass
                    else:
                        os._exit(1)
                sync.ffmpeg.write({str(its)!r}, [frame] * 3, fps=10)
                os._exit(0)
            print(os.waitpid(child, 0)[1])
            film.send(frame)
            film.close()
            print(film.frames_written)
        """
        assert scripts.run(_with_prelude(code)) == "0\n2\n"
        assert len(sync.ffmpeg.read(its)) == 3


def _with_prelude(code: str) -> str:
    return PRELUDE + textwrap.dedent(code)
