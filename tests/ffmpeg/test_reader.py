"""The reading side: who converts, to which colours, and who owns frames."""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import numpy as np
import pytest
from ffmpegs import frames_of, needed
from ffmpegs import quick_ffmpeg as quick_ffmpeg
from gates import Gate
from interruption import Interruption, Lines, Place, hit_each_line
from links import attempting, cut_short, until
from numpy.typing import NDArray

import aiozerocopy as azc
from aiozerocopy.ffmpeg import FFmpegError, Reader, find_ffmpeg, reader
from aiozerocopy.ffmpeg.arguments import part_arguments
from aiozerocopy.ffmpeg.facts import Facts, Pictures, Times, facts_in
from aiozerocopy.frames import Conversion

pytestmark = pytest.mark.anyio

SIZE = WIDTH, HEIGHT = 64, 48
LARGE = (640, 480)  # too large for a receive in the loop's thread
HD = (1280, 48)  # wide enough to count as HD
COLOURS = ((81, 90, 240), (145, 54, 34), (41, 240, 110), (126, 128, 128), (60, 140, 90))


# ---- films -------------------------------------------------------------------------


def flat(colour: Sequence[int], size: tuple[int, int] = SIZE) -> bytes:
    """Make a picture of one colour, in yuv420p."""
    y, u, v = colour
    width, height = size
    samples = -(-width // 2) * -(-height // 2)
    return bytes([y]) * (width * height) + bytes([u]) * samples + bytes([v]) * samples


def make_film(
    path: Path,
    *options: str,
    pictures: Sequence[bytes],
    size: tuple[int, int] = SIZE,
    tags: str = "",
) -> Path:
    """Make a lossless film of pictures in yuv420p, at 30 a second.

    The tags are those of the filter setparams.
    """
    command = [find_ffmpeg(), "-v", "error", "-f", "rawvideo", "-pix_fmt", "yuv420p"]
    command += ["-s", "{}x{}".format(*size), "-r", "30", "-i", "pipe:0"]
    if tags:  # as a filter: newer FFmpegs would convert for -colorspace
        command += ["-vf", f"setparams={tags}"]
    command += ["-c:v", "ffv1", *options, str(path)]
    subprocess.run(command, input=b"".join(pictures), check=True)
    return path


def numbered(path: Path, count: int = 30, size: tuple[int, int] = SIZE) -> Path:
    """Make a film in which each picture is a bit lighter than the last."""
    pictures = [flat((20 + 7 * number, 128, 128), size) for number in range(count)]
    return make_film(path, pictures=pictures, size=size)


def numbers(frames: Sequence[bytes | NDArray[Any]]) -> list[int]:
    """Return the numbers of pictures from such a film, in rgb24."""
    firsts = [int(np.frombuffer(frame, "u1")[0]) for frame in frames]
    return [round((first * 219 / 255 + 16 - 20) / 7) for first in firsts]


def noise(size: tuple[int, int] = SIZE) -> bytes:
    count = len(flat((0, 0, 0), size))
    return np.random.default_rng(1).integers(16, 236, count, "u1").tobytes()


@pytest.fixture
def pretend_film(
    pretend: Callable[[str], str], tmp_path: Path
) -> Callable[[str], Reader]:
    """Make a Reader of a file, with a shell script in place of FFmpeg."""
    (tmp_path / "film").touch()
    return lambda body: Reader(tmp_path / "film", ffmpeg=pretend(body))


# ---- colours -----------------------------------------------------------------------

PARTS = {"bt709": (0.2126, 0.0722), "bt601": (0.299, 0.114), "bt2020": (0.2627, 0.0593)}


def exact(colour: Sequence[int], matrix: str, full: bool) -> NDArray[np.float64]:
    """Compute the colour by the standards' formula."""
    red_part, blue_part = PARTS[matrix]
    y, u, v = (float(part) for part in colour)
    grey = y / 255 if full else (y - 16) / 219
    u, v = ((part - 128) / (255 if full else 224) for part in (u, v))
    red, blue = grey + 2 * (1 - red_part) * v, grey + 2 * (1 - blue_part) * u
    green = (grey - red_part * red - blue_part * blue) / (1 - red_part - blue_part)
    return np.array([red, green, blue]).clip(0, 1) * 255


@pytest.mark.parametrize("convert", ["auto", "ffmpeg"])
@pytest.mark.parametrize(
    ("size", "tags", "matrix", "full"),
    [
        (SIZE, "", "bt601", False),
        (HD, "", "bt709", False),
        ((48, 720), "", "bt709", False),
        ((1278, 48), "", "bt601", False),
        (SIZE, "colorspace=bt709", "bt709", False),
        (HD, "colorspace=smpte170m:range=tv", "bt601", False),
        (HD, "colorspace=bt470bg:range=pc", "bt601", True),
        (SIZE, "colorspace=bt709:range=pc", "bt709", True),
        (HD, "range=pc", "bt709", True),
        (SIZE, "colorspace=bt2020nc", "bt2020", False),
    ],
    ids=str,
)
def test_colours_are_what_the_film_says(
    convert: Any,
    size: tuple[int, int],
    tags: str,
    matrix: str,
    full: bool,
    ffmpeg: str,
    tmp_path: Path,
) -> None:
    pictures = [flat(colour, size) for colour in COLOURS]
    path = make_film(tmp_path / "a.mkv", pictures=pictures, size=size, tags=tags)

    async def read() -> list[NDArray[Any]]:
        async with Reader(path, copy=True, convert=convert, ffmpeg=ffmpeg) as film:
            assert (film._converter is None) == (convert == "ffmpeg")
            return [frame async for frame in film]

    frames = anyio.run(read)
    assert len(frames) == len(COLOURS)
    close = 4 if full and convert == "ffmpeg" else 2  # FFmpeg's scaler is inexact there
    for frame, colour in zip(frames, COLOURS, strict=True):
        assert (frame == frame[0, 0]).all()
        assert np.abs(frame[0, 0] - exact(colour, matrix, full)).max() <= close


async def test_jpeg_has_full_range(ffmpeg: str, tmp_path: Path) -> None:
    options = ["-pix_fmt", "yuvj420p", "-c:v", "mjpeg", "-q:v", "1"]
    pictures = [flat(COLOURS[4])]
    path = make_film(tmp_path / "a.mkv", *options, pictures=pictures, tags="range=pc")
    async with Reader(path, ffmpeg=ffmpeg) as film:
        assert film._converter
        with await film.receive() as frame:
            expected = exact(COLOURS[4], "bt601", full=True)
            assert np.abs(frame.array - expected).max() <= 3


@pytest.mark.parametrize("filters", [[], ["-vf", "hflip"]], ids=str)
@pytest.mark.parametrize("more", [{"size": (640, 24)}, {"pix_fmt": "gbrp"}], ids=str)
def test_ffmpeg_is_told_what_an_untagged_film_is(
    filters: list[str], more: dict[str, Any], ffmpeg: str, tmp_path: Path
) -> None:
    """An HD film keeps its colours if it is scaled down, and in other formats, too."""
    path = make_film(tmp_path / "a.mkv", pictures=[flat(COLOURS[0], HD)], size=HD)
    more = {"options": filters, "ffmpeg": ffmpeg, **more}
    frame = np.frombuffer(
        anyio.run(functools.partial(frames_of, path, **more))[0], "u1"
    )
    red, green, blue = exact(COLOURS[0], "bt709", full=False)
    if "size" in more:
        assert np.abs(frame.reshape(-1, 3) - [red, green, blue]).max() <= 2
    else:
        assert np.abs(frame.reshape(3, -1)[0] - green).max() <= 2  # g, b, r


# ---- who converts ------------------------------------------------------------------


async def converts(path: Path, **more: Any) -> bool:
    """Whether the Reader itself converts; checks that FFmpeg's result is similar."""
    async with Reader(path, copy=True, **more) as film:
        ours = [frame async for frame in film]
        is_converted = film._converter is not None
    async with Reader(path, copy=True, convert="ffmpeg", **more) as film:
        assert film._converter is None
        theirs = [frame async for frame in film]
    assert len(ours) == len(theirs) > 0
    assert np.abs(np.array(ours, "i2") - np.array(theirs, "i2")).max() <= 3
    return is_converted


@pytest.mark.parametrize(
    ("options", "is_converted"),
    [
        ("", True),
        ("-vf setparams=field_mode=prog", True),
        ("-pix_fmt yuv444p", False),
        ("-pix_fmt yuv420p10le", False),
        ("-pix_fmt yuva420p", False),
        ("-pix_fmt bgr0", False),
        ("-pix_fmt gray", False),
        ("-vf setparams=colorspace=fcc", False),
        ("-flags +ilme+ildct -field_order tt -c:v mpeg2video -q:v 1", False),
    ],
)
async def test_films_that_we_convert(
    options: str, is_converted: bool, ffmpeg: str, tmp_path: Path
) -> None:
    path = make_film(tmp_path / "a.mkv", *options.split(), pictures=[noise()] * 2)
    assert await converts(path, ffmpeg=ffmpeg) == is_converted


async def test_odd_sizes(ffmpeg: str, tmp_path: Path) -> None:
    for size in ((63, 47), (17, 24), (32, 15)):
        pictures = [flat(colour, size) for colour in COLOURS]
        path = make_film(tmp_path / f"{size}.mkv", pictures=pictures, size=size)
        async with Reader(path, copy=True, ffmpeg=ffmpeg) as film:
            assert film._converter
            assert film.size == size
            for colour in COLOURS:
                expected = exact(colour, "bt601", full=False)
                assert np.abs(await film.receive() - expected).max() <= 1


async def test_film_that_is_turned(ffmpeg: str, tmp_path: Path) -> None:
    level = make_film(tmp_path / "a.mkv", pictures=[noise()] * 2)
    turned = tmp_path / "b.mkv"
    command = [needed("packaged"), "-v", "error", "-display_rotation", "90"]
    await anyio.run_process([*command, "-i", str(level), "-c", "copy", str(turned)])
    async with Reader(turned, ffmpeg=ffmpeg) as film:
        assert film.size == (HEIGHT, WIDTH)
    assert await converts(turned, ffmpeg=ffmpeg)


@pytest.mark.parametrize(
    ("more", "is_converted"),
    [
        ({"options": ["-vf", "hflip"]}, True),
        ({"options": ["-vf", "scale=32:24"]}, False),
        ({"options": ["-vf", "format=gray"]}, False),
        ({"options": ["-pix_fmt", "gray"]}, False),
        ({"options": ["-filter_complex", "[0:v]hflip"]}, False),
        ({"size": (32, 24)}, False),
        ({"fps": 60}, True),
        ({"pix_fmt": "rgb48le"}, False),
        ({"pix_fmt": "yuv420p"}, False),
    ],
    ids=str,
)
async def test_what_is_asked_for_of_a_film(
    more: dict[str, Any], is_converted: bool, ffmpeg: str, tmp_path: Path
) -> None:
    path = make_film(tmp_path / "a.mkv", pictures=[noise()] * 2)
    assert await converts(path, ffmpeg=ffmpeg, **more) == is_converted


async def test_source_that_may_not_open_twice(tmp_path: Path) -> None:
    path = make_film(tmp_path / "a.mkv", pictures=[noise()])
    async with Reader(["-i", str(path)]) as film:
        assert film._converter is None
        (await film.receive()).release()


async def test_ctrl_c_is_not_for_ffmpeg(ffmpeg: str, tmp_path: Path) -> None:
    async with Reader(numbered(tmp_path / "a.mkv"), ffmpeg=ffmpeg) as film:
        assert os.getpgid(film.pid) == film.pid


HEADER = """Output #0, rawvideo
  Stream #0:0: Video: rawvideo (I420), yuv420p, 4x2, 25 fps"""
MAPPED = f"""  Stream #0:1: Video: h264, yuv420p, 4x2
Stream mapping:
  Stream #0:1 -> #0:0 (h264 (native) -> rawvideo (native))
{HEADER}"""
RAW = HEADER.replace("(I420), yuv420p", ", rgb24")


PLANES = "YUV4MPEG2 W4 H2\\nFRAME\\n%012dFRAME\\n%03d"


@pytest.mark.parametrize(("log", "sent"), [(MAPPED, PLANES), (RAW, "%024d%06d")])
async def test_frame_that_is_cut_off(
    log: str, sent: str, pretend_film: Callable[[str], Reader]
) -> None:
    async with pretend_film(f"echo '{log}' >&2; printf '{sent}' 0 0; exit 3") as film:
        (await film.receive()).release()
        with pytest.raises(FFmpegError, match="inside frame 1") as caught:
            await film.receive()
        assert caught.value.returncode == 3
        with pytest.raises(anyio.EndOfStream):
            await film.receive()


@pytest.mark.every_loop
@pytest.mark.parametrize("rest", ["", "FRAME\\n%03d"], ids=["after", "inside"])
async def test_cancel_at_the_end_hides_no_failure(
    pretend_film: Callable[[str], Reader], tmp_path: Path, rest: str
) -> None:
    os.mkfifo(tmp_path / "go")
    said = f"echo '{MAPPED}' >&2; printf 'YUV4MPEG2 W4 H2\\nFRAME\\n%012d{rest}'"
    async with pretend_film(f"{said}; exec >&-; read _ <{tmp_path}/go; exit 3") as film:
        (await film.receive()).release()
        for _ in range(2):
            async with cut_short(film.receive):
                await until(lambda: has_ended(film))
                await anyio.wait_all_tasks_blocked()
        (tmp_path / "go").write_text("\n")
        with pytest.raises(FFmpegError) as caught:
            await film.receive()
        assert caught.value.returncode == 3


def has_ended(film: Reader) -> bool:
    """Whether the stream's end has reached all receives that wait for frames."""
    converter: Any = film._converter
    coming = converter._coming._coming
    return bool(coming) and all(one.done for one in coming)


async def test_something_else_than_a_frame(
    pretend_film: Callable[[str], Reader],
) -> None:
    said = f"echo '{MAPPED}' >&2; printf 'YUV4MPEG2 W4 H2\\nframe\\n%012d' 0"
    async with pretend_film(said) as film:
        with pytest.raises(FFmpegError, match="something other than a frame") as caught:
            await film.receive()
        assert film.pool
        assert film.pool.stats.free == 2  # one slot is for the next frame
        assert caught.value.__traceback__


# ---- what FFmpeg says --------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("yuv420p", Pictures("yuv420p", (4, 2))),
        ("yuv420p(progressive)", Pictures("yuv420p", (4, 2))),
        ("yuv420p(tv, bt709, progressive)", Pictures("yuv420p", (4, 2), "bt709")),
        ("yuvj420p(pc)", Pictures("yuvj420p", (4, 2), full_range=True)),
        ("nv12(tv, unknown/bt709/bt709)", Pictures("nv12", (4, 2))),
        (
            "yuv420p(8 bpc, pc, fcc/unknown/unknown)",
            Pictures("yuv420p", (4, 2), "fcc", True),
        ),
        (
            "yuv420p(tv, smpte170m/bt709/bt709, top coded first (swapped))",
            Pictures("yuv420p", (4, 2), "smpte170m", interlaced=True),
        ),
    ],
)
def test_pictures_of_a_stream(said: str, expected: Pictures) -> None:
    facts = facts_in(MAPPED.replace("yuv420p", said))
    assert facts == Facts(expected, Fraction(25), film=expected)


def test_rate_and_duration() -> None:
    frames = Pictures("yuv420p", (4, 2))
    facts = facts_in(f"  Duration: 01:02:03.50, start: 0\n{HEADER}, 25 tbn\n")
    assert facts == Facts(frames, Fraction(25), 3723.5)
    facts = facts_in(f"  Duration: N/A\n{HEADER.replace('25 fps', '29.97 fps')}")
    assert facts == Facts(frames, Fraction(30000, 1001))
    facts = facts_in(HEADER.replace("25 fps", "1k fps"))
    assert facts == Facts(frames, Fraction(1000))
    assert facts_in("Input #0\n  Stream #0:0: Video: h264, 4x2") is None


def test_film_is_the_stream_that_is_mapped() -> None:
    log = MAPPED.replace(
        "Stream #0:1:",
        "Stream #0:0: Video: h264, gray, 2x2\n  Stream #0:1[0x1](und):",
        1,
    )
    facts = facts_in(log)
    assert facts
    assert facts.film == Pictures("yuv420p", (4, 2))
    facts = facts_in(log.replace("-> #0:0", "-> overlay"))
    assert facts
    assert facts.film is None


# ---- cancelled, and closed ---------------------------------------------------------


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """Hold up conversions in C, until the gate is opened."""
    gate, then_rgb = Gate(), Conversion.then_rgb

    def held_up(*arguments: Any) -> Any:
        return gate.before(then_rgb(*arguments))

    monkeypatch.setattr(Conversion, "then_rgb", held_up)
    yield gate
    gate.open()


@pytest.mark.every_loop
@pytest.mark.parametrize("convert", ["auto", "ffmpeg"])
async def test_cancelled_receives_lose_nothing(convert: Any, tmp_path: Path) -> None:
    frames: list[bytes] = []
    times: list[float | None] = []
    async with Reader(numbered(tmp_path / "a.mkv"), convert=convert) as film:
        assert (film._converter is None) == (convert == "ffmpeg")
        while len(frames) < 30:
            with anyio.move_on_after(0.0005):
                with await film.receive() as frame:
                    frames.append(bytes(frame.view))
                    times.append(frame.time)
    assert numbers(frames) == list(range(30))
    assert times == pytest.approx([number / 30 for number in range(30)], abs=0.001)


@pytest.mark.every_loop
@pytest.mark.parametrize("convert", ["auto", "ffmpeg"])
async def test_interrupted_receives_lose_nothing(convert: Any, tmp_path: Path) -> None:
    path = numbered(tmp_path / "a.mkv", 3)

    async def play(lines: Lines) -> list[str]:
        frames: list[bytes] = []
        times: list[float | None] = []
        async with Reader(path, convert=convert) as film:
            while len(frames) < 3:
                try:
                    with lines:
                        frame = await film.receive()
                except Interruption:
                    continue
                except anyio.EndOfStream:
                    break
                with frame:
                    frames.append(bytes(frame.view))
                    times.append(frame.time)
        expected = pytest.approx([0, 1 / 30, 2 / 30], abs=0.001)
        ok = numbers(frames) == [0, 1, 2] and times == expected
        ok = ok and film.frames_received == 3
        return [] if ok else [f"pictures {numbers(frames)} at {times}"]

    def first_times(places: list[Place]) -> list[Place]:
        return [place for place in places if place[2] == 1]

    rooms = ("ffmpeg.reader", "ffmpeg.converters", "ffmpeg.facts")
    await hit_each_line(play, rooms, first_times)


def test_interrupted_look_at_the_times_loses_none() -> None:
    told = [b"n:0 pts:0 time\nn:1 pts:", b"500000 time\n"]

    def readinto(memory: bytearray) -> None:
        memory[: len(told[0])] = told[0]
        del told[0]
        raise Interruption  # as a signal handler may, once the bytes were read

    lines: Any = SimpleNamespace(closed=False, readinto=readinto)
    times = Times(lines, 0, None)
    for expected in (0.0, 0.5):
        with pytest.raises(Interruption):
            times.next()
        for _ in range(2):  # (nothing is used up before it is stored)
            time, left = times.next()
            assert time == expected
        times.left = left


@pytest.mark.every_loop
async def test_cancel_waits_for_no_conversion(gate: Gate, tmp_path: Path) -> None:
    async with Reader(numbered(tmp_path / "a.mkv", 3, LARGE), slots=2) as film:
        async with cut_short(film.receive):
            await gate.until_begun()
        pool = film.pool
        assert pool
        assert pool.stats.free == 0  # the received frames have them
        gate.open()
        frames = []
        async for frame in film:
            with frame:
                frames.append(bytes(frame.view))
        await until(lambda: pool.stats.free == 2)  # C reports the ends one by one
    assert numbers(frames) == [0, 1, 2]


@pytest.mark.every_loop
async def test_closed_while_it_converts(gate: Gate, tmp_path: Path) -> None:
    film = await Reader(numbered(tmp_path / "a.mkv", 3, LARGE))
    pool = film.pool
    assert pool
    async with anyio.create_task_group() as tasks:

        async def receive() -> None:
            with contextlib.suppress(azc.StreamClosed):  # if the close is noticed first
                with await film.receive() as frame:
                    assert numbers([bytes(frame.view)]) == [0]

        tasks.start_soon(receive)
        await gate.until_begun()
        tasks.start_soon(film.aclose)
        await anyio.wait_all_tasks_blocked()
        gate.open()
    with pytest.raises(azc.StreamClosed):
        await film.receive()
    assert pool.stats.free == 3


@pytest.mark.every_loop
async def test_next_frame_comes_while_the_last_is_looked_at(tmp_path: Path) -> None:
    async with Reader(numbered(tmp_path / "a.mkv", 2, LARGE)) as film:
        assert film.pool
        with await film.receive() as frame:
            assert film.pool.stats.free == 1
            converter: Any = film._converter
            coming = converter._coming._coming[0]
            await until(lambda: coming.done)
            assert numbers([bytes(frame.view)]) == [0]
        with await film.receive() as frame:
            assert numbers([bytes(frame.view)]) == [1]


async def test_no_frame_of_a_shared_pool_comes_ahead(tmp_path: Path) -> None:
    """Another Reader may be waiting for the slot."""
    path = numbered(tmp_path / "a.mkv")
    pool = azc.FramePool((HEIGHT, WIDTH, 3), slots=2)
    async with Reader(path, pool=pool) as one, Reader(path, pool=pool) as other:
        for number in range(30):
            for film in (one, other):
                with await film.receive() as frame:
                    assert numbers([bytes(frame.view)]) == [number]
                    assert pool.stats.free == 1
    pool.acquire_nowait().release()  # the pool is still open
    pool.close()


@pytest.mark.every_loop
async def test_one_task_at_a_time(gate: Gate, tmp_path: Path) -> None:
    async with Reader(numbered(tmp_path / "a.mkv", 3, LARGE)) as film:
        async with attempting(film.receive) as receiving:
            await gate.until_begun()
            with pytest.raises(anyio.BusyResourceError):
                await film.receive()
            gate.open()
        receiving.result.release()
        assert film.pool
        assert film.pool.stats.free == 2  # one is for the next frame


async def test_conversion_that_cannot_begin(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def then_rgb(*_: object) -> None:
        raise MemoryError

    async with Reader(numbered(tmp_path / "a.mkv", 2)) as film:
        assert film.pool
        with monkeypatch.context() as patch:
            patch.setattr(Conversion, "then_rgb", then_rgb)
            with pytest.raises(MemoryError):
                await film.receive()
        assert film.pool.stats.free == film.pool.slots
        with await film.receive() as frame:
            assert numbers([bytes(frame.view)]) == [0]


# ---- memory ------------------------------------------------------------------------


@pytest.mark.parametrize("convert", ["auto", "ffmpeg"])
async def test_pool_that_runs_dry_is_told_once(
    convert: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(reader, "_PATIENCE", 0.01)
    frames: list[azc.Frame] = []
    path = numbered(tmp_path / "a.mkv")
    async with Reader(path, slots=2, convert=convert) as film:

        async def receive_all() -> None:
            async for frame in film:
                frames.append(frame)  # noqa: PERF401

        with pytest.warns(RuntimeWarning, match=r"none of 2 .* copy=True") as told:
            async with cut_short(receive_all):
                await until(lambda: bool(told.list))
                frames.pop().release()
                await until(lambda: len(frames) == 2)
                with anyio.move_on_after(0.05):  # longer than the Reader's patience
                    await anyio.sleep_forever()
        assert len(told.list) == 1
        assert told.list[0].filename == __file__
    assert film.frames_received == 3


@pytest.mark.parametrize("convert", ["auto", "ffmpeg"])
async def test_frames_to_keep(convert: Any, ffmpeg: str, tmp_path: Path) -> None:
    path = numbered(tmp_path / "a.mkv")
    async with Reader(path, copy=True, convert=convert, ffmpeg=ffmpeg) as film:
        frames = [frame async for frame in film]
        assert film.pool is None
    assert numbers(frames) == list(range(30))
    for frame in frames:
        assert (frame.shape, frame.dtype) == ((HEIGHT, WIDTH, 3), np.dtype("u1"))
        assert frame.flags.writeable
        assert frame.flags.owndata


async def test_deep_frames_to_keep(tmp_path: Path) -> None:
    async with Reader(numbered(tmp_path / "a.mkv"), "rgb48be", copy=True) as film:
        frame = await film.receive()
    assert frame.dtype == np.dtype(">u2")


# ---- a part of a film --------------------------------------------------------------


async def test_part_of_a_film(ffmpeg: str, tmp_path: Path) -> None:
    path = numbered(tmp_path / "a.mkv")
    part = {"start": "0:00.5", "duration": "200ms", "ffmpeg": ffmpeg}
    for source in (path, ["-i", str(path)]):
        assert numbers(await frames_of(source, **part)) == list(range(15, 21))


@pytest.mark.parametrize(
    ("time", "microseconds"),
    [
        (0, 0),
        (1.5, 1_500_000),
        (Fraction(1001, 30000), 33_367),
        ("90", 90_000_000),
        ("1/3", 333_333),
        ("1:30", 90_000_000),
        ("01:00:00.25", 3_600_250_000),
        ("12ms", 12_000),
        ("7us", 7),
        ("3s", 3_000_000),
    ],
)
def test_times(time: Any, microseconds: int) -> None:
    assert part_arguments(time, None) == ["-ss", f"{microseconds}us"]
    if microseconds:
        assert part_arguments(None, time) == ["-t", f"{microseconds}us"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        *(  # a name without -i would be FFmpeg's output
            ({"source": source}, "input arguments end with '-i' and a name")
            for source in ([], ["a.mp4"], ["-i", "a.mp4", "b.mp4"])
        ),
        ({"size": (0, 1)}, "at least 1x1"),
        ({"fps": -1}, "positive"),
        ({"slots": 0}, "slot"),
        ({"start": -1}, "start must be at least 0, not -1"),
        ({"start": "soon"}, "start must be seconds or text such as '1:30', not 'soon'"),
        ({"start": float("inf")}, "start must be seconds"),
        ({"duration": 0}, "duration must be above 0"),
        ({"duration": float("nan")}, "duration must be seconds"),
        ({"duration": [1]}, "duration must be seconds"),
        ({"convert": "numpy"}, "convert must be 'auto' or 'ffmpeg', not 'numpy'"),
        ({"copy": True, "pool": azc.FramePool(3)}, "do not give a pool"),
    ],
    ids=str,
)
def test_arguments_that_mean_nothing(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Reader(**{"source": "a.mkv", **options})
