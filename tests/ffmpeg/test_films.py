"""Films as users get them: true colours, playable files, and nothing lost."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from math import prod
from pathlib import Path
from typing import Any

import anyio
import ffmpegs
import numpy as np
import pytest
from ffmpegs import frames_of, quick_ffmpeg
from flat_pictures import DRAWN, drawn
from links import cut_short, fork, meanwhile, others_wait
from numpy.typing import NDArray
from tensors import Tensor

from aiozerocopy.ffmpeg import FFmpegError, Writer, codecs, destination
from aiozerocopy.ffmpeg.colours import plan
from aiozerocopy.frames import Colour, Conversion, to_yuv420p

Array = NDArray[np.uint8]

__all__ = ["quick_ffmpeg"]
pytestmark = pytest.mark.anyio


FILTER = "scale=out_color_matrix=bt709,format=yuv420p"
SD, HD = (640, 360), (1280, 720)


async def film(path: Path, size: tuple[int, int], pix_fmt: str, **options: Any) -> None:
    async with Writer(path, size, 30, pix_fmt, **options) as video:
        for colour in DRAWN:
            picture = drawn(colour, size, pix_fmt)
            await video.put(picture)
            await video.put(picture)


def seen(path: Path, size: tuple[int, int]) -> Array:
    """Return the colour of each picture; every picture was sent twice."""
    return ffmpegs.seen(path, size)[::2]


def facts(path: Path) -> dict[str, str]:
    """Return ffprobe's facts about the picture."""
    names = "codec_name,pix_fmt,width,height,color_range,color_space,color_transfer"
    said = subprocess.run(
        [
            *("ffprobe", "-v", "error", "-select_streams", "v:0", "-show_entries"),
            *(f"stream={names},color_primaries,nb_frames", "-of", "flat=s=_", path),
        ],
        capture_output=True,
        check=True,
        text=True,
    ).stdout
    return {
        line.partition("=")[0].split("_", 3)[3]: line.partition("=")[2].strip('"')
        for line in said.splitlines()
        if line.startswith("streams_stream_0")
    }


def error(given: NDArray[Any]) -> int:
    assert len(given) == len(DRAWN)
    return int(np.abs(given.astype(int) - np.array(DRAWN)).max())


# ---- true colours ------------------------------------------------------------------


@pytest.mark.parametrize(
    "filters",
    [
        ["-vf", "hflip"],
        ["-filter:v", "scale=320:-2,format=rgb24"],
        ["-vf", FILTER],
        ["-metadata", "title=The matrix", "-vf", "null", "-vf", "vflip"],
    ],
    ids=str,
)
async def test_filters_of_the_program_keep_the_colours(
    ffmpeg: str, tmp_path: Path, filters: list[str]
) -> None:
    """FFmpeg would convert to BT.601 after them, and tag it as BT.709."""
    path = tmp_path / "a.mp4"
    more = {"quality": "high", "preset": "ultrafast", "ffmpeg": ffmpeg}
    await film(path, SD, "rgb24", options=filters, **more)
    size = (320, 180) if "320" in filters[1] else SD
    assert error(seen(path, size)) <= 5
    assert facts(path)["color_space"] == "bt709"


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "size", [SD, pytest.param(HD, marks=pytest.mark.slow)], ids=str
)
@pytest.mark.parametrize(
    "pix_fmt", ["rgb24", "rgba", "bgr24", "bgra", "yuv420p", "nv12"]
)
async def test_what_was_drawn_is_seen(
    ffmpeg: str, tmp_path: Path, pix_fmt: str, size: tuple[int, int]
) -> None:
    path = tmp_path / "a.mp4"
    options = {"quality": "high", "preset": "ultrafast", "ffmpeg": ffmpeg}
    await film(path, size, pix_fmt, **options)
    assert error(seen(path, size)) <= 2
    told = facts(path)
    assert told["pix_fmt"] == "yuv420p"
    assert told["color_range"] == "tv"
    for name in ("space", "transfer", "primaries"):
        assert told[f"color_{name}"] == "bt709"
    mine = [
        np.frombuffer(frame, np.uint8).reshape(size[1], size[0], 3)
        for frame in await frames_of(path, ffmpeg=ffmpeg)
    ]
    assert (
        error(np.array([each[size[1] // 2, size[0] // 2] for each in mine[::2]])) <= 2
    )


async def test_table_of_the_page_about_colours(tmp_path: Path) -> None:
    """The table's columns: colours as drawn, by `Writer`, and by FFmpeg alone."""
    page = Path(__file__).parents[2] / "docs" / "pages" / "colours.md"
    rows = re.findall(r"^\|((?: \d+, \d+, \d+ \|){3})$", page.read_text(), re.MULTILINE)
    table = np.array([re.findall(r"\d+", row) for row in rows], int).reshape(-1, 3, 3)
    assert len(table) == 8
    drawn, ours, alone = (table[:, at].astype("u1") for at in range(3))
    picture = np.tile(np.repeat(drawn, 160, axis=0), (720, 1, 1))
    paths = [tmp_path / "ours.mp4", tmp_path / "alone.mp4"]
    async with Writer(paths[0], HD, 30, quality="high") as film:
        await film.send(picture)
    raw = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", "1280x720", "-i", "-"]
    encode = ["-c:v", "libx264", "-crf", "17", "-pix_fmt", "yuv420p", str(paths[1])]
    await anyio.run_process(
        ["ffmpeg", "-v", "error", *raw, *encode], input=picture.tobytes()
    )
    for path, told in zip(paths, (ours, alone), strict=True):
        (shown,) = await frames_of(path)
        row = np.frombuffer(shown, "u1").reshape(720, 1280, 3)[360, 80::160]
        assert np.abs(row.astype(int) - told).max() <= 2


@pytest.mark.parametrize(
    ("name", "pix_fmt", "options"),
    [
        *((name, "rgb24", {"quality": "high"}) for name in ("a.mov", "a.ts", "a.flv")),
        ("a.webm", "rgb24", {"quality": "high"}),
        ("a.gif", "rgb24", {}),
        ("a.mkv", "rgb24", {"convert": "ffmpeg"}),
        ("a.mkv", "rgba", {"options": {"pix_fmt": "yuv444p"}}),
        ("a.mkv", "rgb24", {"options": ["-vf", FILTER]}),
        ("a.mkv", "rgb24", {"colour": Colour("bt601")}),
        ("a.mkv", "rgb24", {"colour": Colour("bt601"), "convert": "ffmpeg"}),
        ("a.mkv", "bgr24", {"colour": Colour(full_range=True)}),
        ("a.mkv", "bgr24", {"colour": Colour(full_range=True), "convert": "ffmpeg"}),
        ("a.mkv", "yuv420p", {"quality": "lossless"}),
        ("a.mkv", "bgra", {"codec": "hevc", "preset": "ultrafast", "quality": "high"}),
        ("a.mkv", "rgb24", {"codec": "mpeg4", "quality": "high"}),
        ("a.mkv", "rgb24", {"codec": "mjpeg"}),
        ("a.mov", "rgb24", {"codec": "prores"}),
    ],
    ids=str,
)
async def test_other_ways_have_them_too(
    ffmpeg: str, tmp_path: Path, name: str, pix_fmt: str, options: dict[str, Any]
) -> None:
    path = tmp_path / name
    await film(path, (160, 90), pix_fmt, ffmpeg=ffmpeg, **options)
    limit = 2 if options == {"quality": "high"} else 3  # for mpeg4 and x265
    assert error(seen(path, (160, 90))) <= limit


async def test_grey_stays_what_it_is(ffmpeg: str, tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    async with Writer(
        path, (64, 48), 30, "gray", quality="high", ffmpeg=ffmpeg
    ) as video:
        for number in range(0, 256, 5):
            await video.send(np.full((48, 64), number, np.uint8))
    shown = seen(path, (64, 48))[:, 0].astype(int)
    assert np.abs(shown - np.arange(0, 256, 10)).max() <= 2
    grey = [frame[0] for frame in await frames_of(path, "gray", ffmpeg=ffmpeg)]
    assert np.abs(np.array(grey) - np.arange(0, 256, 5)).max() <= 2


@pytest.mark.parametrize("quality", ["high", "lossless"])
@pytest.mark.parametrize(
    ("pix_fmt", "index", "colour"),
    [
        ("pal8", 0, (37, 100, 200)),
        ("rgb8", 0b001_011_11, (36, 108, 255)),
        ("bgr8", 0b11_011_001, (36, 108, 255)),
        ("rgb4_byte", 0b0_01_1, (0, 85, 255)),
        ("bgr4_byte", 0b1_01_0, (0, 85, 255)),
    ],
)
async def test_colours_of_a_palette(
    ffmpeg: str, tmp_path: Path, pix_fmt: str, index: int, colour: Any, quality: Any
) -> None:
    path = tmp_path / "a.mp4"
    frame = bytes([index]) * (64 * 48)
    if pix_fmt == "pal8":
        frame += bytes([*colour[::-1], 255]) * 256
    async with Writer(path, (64, 48), 30, pix_fmt, quality=quality, ffmpeg=ffmpeg) as v:
        await v.send(frame)
    (shown,) = await frames_of(path, "rgb24", ffmpeg=ffmpeg)
    wrong = np.abs(np.frombuffer(shown[:3], "u1").astype(int) - colour).max()
    assert wrong <= (0 if quality == "lossless" else 2)


async def test_frames_of_full_range_by_their_name(ffmpeg: str, tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    async with Writer(
        path, (64, 48), 30, "yuvj420p", quality="high", ffmpeg=ffmpeg
    ) as video:
        for colour in DRAWN:
            rgb = np.full((48, 64, 3), colour, np.uint8)
            picture = to_yuv420p(rgb, colour=Colour(full_range=True))
            await video.put(picture)
            await video.put(picture)
    assert error(seen(path, (64, 48))) <= 2
    assert facts(path)["color_range"] == "pc"


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.webm"])
async def test_lossless_is(ffmpeg: str, tmp_path: Path, name: str) -> None:
    dice = np.random.default_rng(2)
    pictures = [dice.integers(0, 256, (48, 64, 3), np.uint8) for _ in range(5)]
    path = tmp_path / name
    async with Writer(path, (64, 48), quality="lossless", ffmpeg=ffmpeg) as video:
        for picture in pictures:
            await video.put(picture)
    assert await frames_of(path) == [picture.tobytes() for picture in pictures]
    told = facts(path)  # without these, browsers guess, even the matrix
    assert told["color_space"] == "gbr"
    assert told["color_transfer"] == told["color_primaries"] == "bt709"


async def test_hdr_is_told(ffmpeg: str, tmp_path: Path) -> None:
    path = tmp_path / "a.mkv"
    colour = Colour("bt2020", primaries="bt2020", transfer="smpte2084")
    await film(path, (160, 90), "rgb24", colour=colour, ffmpeg=ffmpeg)
    told = facts(path)
    assert told["color_space"] == "bt2020nc"
    assert told["color_transfer"] == "smpte2084"
    assert told["color_primaries"] == "bt2020"


# ---- playable ----------------------------------------------------------------------


async def test_odd_sizes_are_padded(ffmpeg: str, tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    with pytest.warns(UserWarning, match="padded to 162x92") as warned:
        await film(path, (161, 91), "rgb24", ffmpeg=ffmpeg)
    assert len(warned) == 1
    assert warned[0].filename == __file__
    assert error(seen(path, (162, 92))) <= 2


async def test_index_is_in_front(ffmpeg: str, tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    await film(path, (160, 90), "rgb24", ffmpeg=ffmpeg)
    data = path.read_bytes()
    assert data.index(b"moov") < data.index(b"mdat")
    assert b"moof" not in data
    assert facts(path)["nb_frames"] == str(2 * len(DRAWN))


KEY = "00112233445566778899aabbccddeeff"
CENC = ["-encryption_scheme", "cenc-aes-ctr", "-encryption_key", KEY]
CREATED = ["-metadata", "creation_time=2020-01-02T03:04:05Z"]


@pytest.mark.parametrize(
    ("options", "written"),
    [
        ([*CENC, "-encryption_kid", KEY], b"senc"),
        (["-brand", "mp42"], b"ftypmp42"),
        (["-timecode", "01:00:00:00"], b"tmcd"),
        (["-metadata", "timecode=01:00:00:00"], b"tmcd"),
        (CREATED, b"mvhd" + bytes(4) + (3660779045).to_bytes(4, "big")),
    ],
    ids=str,
)
async def test_index_is_as_the_options_say(
    ffmpeg: str, tmp_path: Path, options: list[str], written: bytes
) -> None:
    path = tmp_path / "a.mp4"
    async with Writer(path, (64, 48), 30, options=options, ffmpeg=ffmpeg) as video:
        for number in range(3):
            await video.send(numbered(number))
    data = path.read_bytes()
    assert written in data
    assert data.index(b"moov") < data.index(b"mdat")
    assert b"moof" not in data
    key = ["-decryption_key", KEY] if "senc" in str(data) else []
    frames = await frames_of([*key, "-i", str(path)], ffmpeg=ffmpeg)
    assert len(frames) == 3
    assert len(set(frames)) == 3


def test_all_options_of_the_muxer_are_known(ffmpeg: str) -> None:
    """A film with one of these has no second pass, which would not obey it."""
    command = [ffmpeg, "-hide_banner", "-h", "muxer=mp4"]
    told = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    options = re.findall(r"^ +(-\w+) +<", told, re.MULTILINE)
    assert len(options) > 20
    assert not [each for each in options if not destination._OF_THE_INDEX.match(each)]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"codec": "libx265x"}, "has no encoder 'libx265x': did you mean libx265"),
        ({"codec": "copy"}, "raw frames must be encoded"),
        ({"quality": "best"}, "quality must be one of lossless, high, medium, low, no"),
        ({"preset": "warp"}, "one of ultrafast, superfast"),
        ({"quality": "high", "bitrate": "5M"}, "not both"),
        ({"codec": "mpeg4", "quality": "lossless"}, "mpeg4 cannot be lossless"),
        ({"codec": "mpeg4", "preset": "fast"}, "it has none"),
        ({"codec": "ffv1", "bitrate": 1}, "ffv1 takes no bitrate="),
        ({"options": ["-c:v", "libx264"], "quality": "high"}, "options=[...]"),
        ({"convert": "gpu"}, "convert must be 'auto' or 'ffmpeg'"),
    ],
    ids=str,
)
async def test_words_that_mean_nothing_touch_nothing(
    tmp_path: Path, options: dict[str, Any], says: str
) -> None:
    path = tmp_path / "a.mp4"
    path.write_text("mine")
    with pytest.raises(ValueError) as raised:  # noqa: PT011 - looked at below
        await Writer(path, (64, 48), **options)
    assert says in str(raised.value)
    assert os.listdir(tmp_path) == ["a.mp4"]
    assert path.read_text() == "mine"


async def test_hardware_that_works_is_taken(
    pretend: Callable[[str], str], tmp_path: Path
) -> None:
    real = ffmpegs.needed("packaged")
    fake = pretend(
        f"""case "$*" in
        *lavfi*h264_nvenc*) exit 0;;
        *lavfi*) exit 1;;
        *-encoders*) {real} -hide_banner -encoders; echo " V..... h264_nvenc x";;
        esac"""
    )
    assert await codecs.hardware_of(fake) == ("h264_nvenc",)
    assert await codecs.encoder_for("mp4", "auto", fake) == "h264_nvenc"
    assert await codecs.encoder_for("webm", "auto", fake) == "libvpx-vp9"
    assert await codecs.encoder_for("mp4", "auto", real) == "libx264"


@pytest.mark.parametrize(
    ("url", "muxer"),
    [
        ("rtmp://host/live", "flv"),
        ("srt://host:9000?mode=caller", "mpegts"),
        ("udp://host:9", "mpegts"),
        ("https://host/a.mp4", None),
        ("a.mp4", None),
    ],
)
def test_urls_have_their_container(url: str, muxer: str | None) -> None:
    assert destination.muxer_of(url, []) == ([] if muxer is None else ["-f", muxer])
    assert destination.muxer_of(url, ["-f", "x"]) == []
    assert codecs.CONTAINERS[destination.container_of(url)] is codecs.H264


def test_what_is_converted_here() -> None:
    x264 = codecs.chosen("libx264")

    def made(pix_fmt: str, *options: str, ours: bool = True) -> str:
        return plan(pix_fmt, (64, 48), x264, options, Colour(), ours=ours).pix_fmt

    assert made("rgb24") == made("bgra") == made("yuv420p") == "yuv420p"
    assert made("rgb24", ours=False) == "rgb24"
    for option in (
        *("-vf", "-filter", "-filter:v:0", "-filter_complex", "-lavfi"),
        *("-filter_complex_script", "-/filter_complex"),
    ):
        assert made("rgb24", option, "x") == "rgb24"
    assert made("rgb24", "-filter:a", "x") == made("rgb24", "-filter:1", "x")
    assert made("rgb24", "-filter:1", "x") == "yuv420p"
    assert made("rgb24", "-pix_fmt", "yuv444p") == "rgb24"
    assert made("rgb24", "-pix_fmt", "nv12") == "nv12"
    assert made("gbrp") == "gbrp"


@pytest.mark.parametrize(
    "options", [["-f", "null"], ["-f", "rawvideo"], ["-c:v", "copy"]]
)
def test_frames_that_stay_as_they_are_cost_nothing(options: list[str]) -> None:
    made = plan("rgb24", (64, 48), codecs.chosen(None), options, Colour(), ours=True)
    assert (made.pix_fmt, made.of_input, made.of_output) == ("rgb24", [], options)


# ---- during a put ------------------------------------------------------------------

RAW = ["-f", "rawvideo", "-pix_fmt", "yuv420p"]


def numbered(number: int, size: tuple[int, int] = (64, 48)) -> Array:
    return np.full((size[1], size[0], 3), number, np.uint8)


def luma_of(path: Path, count: int, size: tuple[int, int] = (64, 48)) -> list[int]:
    planes = np.frombuffer(path.read_bytes(), np.uint8).reshape(count, -1)
    return [int(luma) for luma in planes[:, 0]]


def expected(numbers: Sequence[int]) -> list[int]:
    return [round(16 + number * 219 / 255) for number in numbers]


@pytest.mark.parametrize("anyio_backend", ["asyncio", "uvloop"], indirect=True)
async def test_asyncios_own_cancel_waits_for_the_thread(tmp_path: Path) -> None:
    """Whenever the cancel comes, the film is whole, and the caller owns the memory."""
    path = tmp_path / "a.yuv"
    picture = bytearray(prod(size := (2560, 1440)) * 3)

    async with Writer([*RAW, path], size) as video:
        for moment in range(40):
            picture[:] = bytes([100]) * len(picture)
            put = asyncio.ensure_future(video.put(picture))
            for _ in range(moment):
                await asyncio.sleep(0)
            put.cancel()
            await asyncio.wait([put])
            picture[:] = bytes([200]) * len(picture)  # no picture shows this
            picture.append(0)
            del picture[-1]
        await video.put(numbered(60, size))
    count = path.stat().st_size * 2 // (3 * prod(size))
    *before, last = luma_of(path, count, size)
    assert last == expected([60])[0]
    assert set(before) <= set(expected([100]))


@pytest.mark.every_loop
async def test_loop_is_free_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other tasks run while a picture is converted."""
    is_free = threading.Event()

    def convert(*_: object, **_options: object) -> None:
        assert is_free.wait(10)

    monkeypatch.setattr(Conversion, "to_yuv", convert)
    size = (2560, 1440)
    async with Writer([*RAW, tmp_path / "a.yuv"], size) as video:
        async with meanwhile(video.put, numbered(1, size)):
            await others_wait()
            is_free.set()


# ---- any array ---------------------------------------------------------------------


def _apart(picture: Array) -> Iterator[Any]:
    """Make copies of the picture in memory of several kinds, partly not contiguous."""
    height, width, channels = picture.shape
    for rows, columns in ((1, 1), (2, 1), (1, 2)):
        yield picture
        whole = np.zeros((height * rows, width * columns, channels), "u1")
        view = whole[: height * rows : rows, ::columns]
        view[:] = picture
        yield view
    yield picture[::-1].copy()[::-1]
    yield memoryview(picture[..., ::-1].copy()[..., ::-1])
    yield Tensor(picture)
    yield Tensor(picture.transpose(2, 0, 1).copy().transpose(1, 2, 0))


@pytest.mark.parametrize("size", [(64, 48), (2560, 1440)], ids=str)
@pytest.mark.parametrize("pix_fmt", ["yuv420p", "rgb24"])
async def test_any_strides(
    tmp_path: Path, pix_fmt: str, size: tuple[int, int], dice: np.random.Generator
) -> None:
    """Converted or not, by the loop's thread or another, always in order."""
    path, width, height = tmp_path / "a.raw", *size
    picture = dice.integers(0, 256, (height, width, 3), np.uint8)
    film, expected = ["-f", "rawvideo", "-pix_fmt", pix_fmt, str(path)], list[bytes]()
    async with Writer(film, size) as video:
        for number, frame in enumerate(_apart(picture)):
            changed = getattr(frame, "array", np.asarray(frame))
            changed[0, 0] = number
            expected.append(changed.tobytes())
            ticket = await video.put(frame)
            if video.converts or not changed.flags.c_contiguous:
                changed[0, 0] = 255  # the caller owns it again
            await ticket
        assert video.converts == (pix_fmt == "yuv420p")
    if video.converts:
        pictures = (
            np.frombuffer(each, "u1").reshape(picture.shape) for each in expected
        )
        expected = [to_yuv420p(each).tobytes() for each in pictures]
    assert path.read_bytes() == b"".join(expected)


@pytest.mark.every_loop
async def test_strides_and_order_of_many_tasks(tmp_path: Path) -> None:
    """A frame that needs no copy does not overtake one that is copied."""
    path, size = tmp_path / "a.rgb", (1280, 720)
    async with Writer(["-f", "rawvideo", path], size) as video:
        async with anyio.create_task_group() as tasks:
            for number in range(0, 20, 2):
                for frame in (numbered(number, size)[::-1], numbered(number + 1, size)):
                    tasks.start_soon(video.send, frame)
                    await others_wait()
    film = np.fromfile(path, "u1").reshape(20, -1)
    assert film[:, 0].tolist() == film[:, -1].tolist() == [*range(20)]


async def test_planes_of_any_strides(tmp_path: Path) -> None:
    """As decoders give them, with a gap after each row."""
    path, whole = tmp_path / "a.yuv", np.arange(96 * 80, dtype="u2").reshape(96, 80)
    planes = [
        whole.astype("u1")[:rows, :width]
        for rows, width in ((48, 64), (24, 32), (24, 32))
    ]
    async with Writer([*RAW, path], (64, 48), pix_fmt="yuv420p") as video:
        await video.send(*planes)
        await video.send(*(plane.copy() for plane in planes))
    assert path.read_bytes() == b"".join(plane.tobytes() for plane in planes) * 2


@pytest.mark.parametrize("end", ["yuv420p", "rgba"])
@pytest.mark.parametrize("pix_fmt", ["rgb24", "rgba", "bgr0", "rgba64le", "gray"])
async def test_flipped(
    tmp_path: Path, pix_fmt: str, end: str, dice: np.random.Generator
) -> None:
    """A film of frames upside down equals one of the upright frames."""
    paths, size = [tmp_path / "upright", tmp_path / "flipped"], (60, 34)
    for path in paths:
        film = ["-f", "rawvideo", "-pix_fmt", end, str(path)]
        async with Writer(film, size, 30, pix_fmt, flip=path == paths[1]) as video:
            layout = video.layout
            frame = np.arange(layout.nbytes // layout.itemsize).reshape(layout.shape)
            frame = (frame % 251).astype(layout.dtype)
            if path == paths[1]:
                frame = frame[::-1]
            plain = frame.tobytes()
            for kind in (frame, frame.copy(), plain, bytearray(plain)):
                await video.send(kind)
            await video.send(plain[:100], plain[100:])
    upright, flipped = (path.read_bytes() for path in paths)
    assert upright == flipped
    assert upright == upright[: len(upright) // 5] * 5


# ---- nothing good is lost ----------------------------------------------------------


async def test_older_film_stays_until_there_is_a_new_one(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    path.write_text("mine")
    path.chmod(0o640)
    async with Writer(path, (64, 48)) as video:
        for number in range(5):
            await video.put(numbered(number))
        assert path.read_text() == "mine"
        assert len(os.listdir(tmp_path)) == 2
    assert os.listdir(tmp_path) == ["a.mp4"]
    assert facts(path)["nb_frames"] == "5"
    assert path.stat().st_mode & 0o777 == 0o640
    assert video.frames_written == 5


@pytest.mark.parametrize("name", ["100%.mkv", "a.mpg", "a.nut"])
async def test_older_film_of_any_name_stays(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text("mine")
    with pytest.raises(FileExistsError):
        await Writer(path, (64, 48), overwrite=False)
    video = await Writer(path, (64, 48), 25)
    await video.send(numbered(1))
    video.abort()
    assert path.read_text() == "mine"
    assert os.listdir(tmp_path) == [name]


def test_parts_are_numbered_in_place(tmp_path: Path) -> None:
    path = tmp_path / "a-%03d.mkv"
    segments = ["-f", "segment", "-segment_time", "1"]
    assert destination.destination_of(path, segments, overwrite=True) is None
    assert os.listdir(tmp_path) == []


async def test_name_without_room_for_ours_is_too_long(tmp_path: Path) -> None:
    path = tmp_path / ("a" * 240 + ".mkv")
    with pytest.raises(OSError, match="leave 18 bytes for") as caught:
        await Writer(path, (64, 48))
    assert caught.value.errno == errno.ENAMETOOLONG
    assert caught.value.filename == str(path)


@pytest.mark.parametrize("has_links", [True, False])
async def test_film_that_came_meanwhile_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_links: bool
) -> None:
    """Also on a file system without hard links."""

    def refuse(*_: object) -> None:
        raise PermissionError

    if not has_links:
        monkeypatch.setattr(os, "link", refuse)
    paths = [tmp_path / "a.mkv", tmp_path / "b.mkv"]
    for path in paths:
        video = await Writer(path, (64, 48), overwrite=False)
        await video.send(numbered(1))
        if path is paths[0]:
            await video.aclose()
            assert os.listdir(tmp_path) == ["a.mkv"]
            continue
        path.write_text("mine")
        with pytest.raises(FileExistsError, match=r"b\.unfinished-"):
            await video.aclose()
        assert path.read_text() == "mine"
        assert len(await frames_of(Path(video.written_to))) == 1
        video.abort()
        assert len(os.listdir(tmp_path)) == 3


@pytest.mark.every_loop
async def test_second_aclose_waits_for_the_first(tmp_path: Path) -> None:
    path = tmp_path / "a.mkv"
    video = await Writer(path, (64, 48))
    await video.send(numbered(1))

    async def close() -> None:
        await video.aclose()
        assert path.exists()
        assert video.frames_written == 1

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(close)
        tasks.start_soon(close)


@pytest.mark.every_loop
async def test_forked_child_leaves_its_parents_film(tmp_path: Path) -> None:
    path = tmp_path / "a.mkv"
    async with Writer(path, (64, 48)) as video:
        await video.send(numbered(1))
        if not (child := fork()):
            with contextlib.suppress(BaseException):
                try:
                    video.aclose().send(None)
                except StopIteration:
                    video.abort()
                    os._exit(0)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0  # noqa: ASYNC222 - it has ended by itself
        await video.send(numbered(2))
    assert len(await frames_of(path)) == 2


async def test_link_leads_to_the_film_as_before(tmp_path: Path) -> None:
    (tmp_path / "link.mp4").symlink_to("a.mp4")
    async with Writer(tmp_path / "link.mp4", (64, 48)) as video:
        await video.send(numbered(1))
    assert (tmp_path / "link.mp4").is_symlink()
    assert facts(tmp_path / "a.mp4")["nb_frames"] == "1"


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv"])
async def test_no_frame_is_no_film(ffmpeg: str, tmp_path: Path, name: str) -> None:
    with pytest.raises(FFmpegError, match="no frame was sent"):
        async with Writer(tmp_path / name, (64, 48), ffmpeg=ffmpeg):
            pass
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv"])
async def test_film_without_a_frame_replaces_none(
    ffmpeg: str, tmp_path: Path, name: str
) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(FFmpegError, match="wrote no frame"):
        late = ["-ss", "5"]
        async with Writer(tmp_path / name, (64, 48), options=late, ffmpeg=ffmpeg) as v:
            await v.send(numbered(1))
    assert (tmp_path / name).read_text() == "mine"
    assert os.listdir(tmp_path) == [name]


async def test_broken_ffmpeg(pretend: Callable[[str], str], tmp_path: Path) -> None:
    with pytest.raises(FFmpegError, match="does not work: it lists no encoders"):
        await Writer(tmp_path / "a.mp4", (64, 48), ffmpeg=pretend("exit 3"))
    assert os.listdir(tmp_path) == ["pretended"]


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv"])
async def test_exception_leaves_what_was_sent(tmp_path: Path, name: str) -> None:
    with pytest.raises(ZeroDivisionError):
        async with Writer(tmp_path / name, (64, 48)) as video:
            for number in range(7):
                await video.put(numbered(number))
            raise ZeroDivisionError
    assert os.listdir(tmp_path) == [name]
    assert video.frames_written == 7
    assert len(await frames_of(tmp_path / name)) == 7


@pytest.mark.every_loop
async def test_cancelled_at_its_end_it_is_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The cancel comes while the index is moved to the front."""
    began = anyio.Event()

    async def forever(*_: str, **options: object) -> tuple[int, str]:
        began.set()
        await anyio.sleep_forever()
        raise AssertionError

    path = tmp_path / "a.mp4"
    video = await Writer(path, (64, 48))
    await video.send(numbered(1))
    monkeypatch.setattr("aiozerocopy.ffmpeg.destination.ask", forever)
    async with cut_short(video.aclose):
        await began.wait()
    assert os.listdir(tmp_path) == ["a.mp4"]
    assert len(await frames_of(path)) == 1


@pytest.mark.parametrize(
    ("name", "ends_by"),
    [("a.mp4", "kill"), ("a.mkv", "kill"), ("a.ts", "kill"), ("a.mp4", "full disk")],
)
@pytest.mark.parametrize("older", [False, True])
async def test_broken_one_leaves_what_plays(
    ffmpeg: str,
    pretend: Callable[[str], str],
    tmp_path: Path,
    name: str,
    ends_by: str,
    older: bool,
) -> None:
    """Everything that FFmpeg had written remains; an older film stays in its place."""
    folder = tmp_path / "films"
    folder.mkdir()
    if older:
        (folder / name).write_text("mine")
    program, killed = ffmpeg, False
    if ends_by == "full disk":  # 3 MB
        program = pretend(f"""trap '' XFSZ; ulimit -f 6144; exec "{ffmpeg}" "$@" """)
    words: dict[str, Any] = {"preset": "ultrafast", "ffmpeg": program}
    words["options"] = ["-g", "5", "-flush_packets", "1"]
    dice = np.random.default_rng(1)
    with pytest.raises(FFmpegError, match=r"has the first \d+ frames") as raised:
        async with Writer(folder / name, (640, 480), **words) as video:
            while True:
                await video.send(dice.integers(0, 256, (480, 640, 3), np.uint8))
                if ends_by == "kill" and not killed and (video.status.size or 0) >> 20:
                    os.kill(video.pid, signal.SIGKILL)
                    killed = True
    video.abort()  # changes nothing: the film has ended
    left = Path(video.written_to)
    assert set(os.listdir(folder)) == {name, left.name}
    assert (left.name == name) is not older
    assert not older or (folder / name).read_text() == "mine"
    assert video.frames_written > 0
    assert f"{left} has the first {video.frames_written} frames" in str(raised.value)
    assert ("SIGKILL" if ends_by == "kill" else "too large") in str(raised.value)
    assert len(await frames_of(left)) == video.frames_written


async def test_folder_that_refuses_says_so_at_once(ffmpeg: str, tmp_path: Path) -> None:
    film = Writer(tmp_path / "missing" / "film.mp4", (64, 48), ffmpeg=ffmpeg)
    with pytest.raises(FileNotFoundError, match="there is no such folder") as caught:
        await film
    assert caught.value.filename == str(tmp_path / "missing")


async def test_device_is_written_to(tmp_path: Path) -> None:
    """A file that is not regular is not replaced."""
    (tmp_path / "null.mkv").symlink_to(os.devnull)
    async with Writer(tmp_path / "null.mkv", (64, 48)) as video:
        await video.send(numbered(1))
    assert os.listdir(tmp_path) == ["null.mkv"]
