"""Each picture of a film comes once, in order, with its own time.

Each FFmpeg makes a corpus, and the other one reads it: films at constant and other
rates, with sound that begins earlier, B frames, edit lists, and films that are cut off.
The Reader must give the frames that ffprobe counts.
"""

import functools
import json
import shutil
import subprocess
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import anyio
import pytest
from ffmpegs import FOUND, needed

from aiozerocopy.ffmpeg import Reader

pytestmark = pytest.mark.anyio

WIDTH, HEIGHT = 64, 48
SECONDS = 2
H264 = "-c:v libx264 -preset ultrafast -pix_fmt yuv420p"
SOUND = "-map 1:a"
SOME = "select='mod(n,7)*mod(n,3)'"
FILMS = {
    "constant.mp4": H264,
    "ntsc.mkv": "-r 30000/1001 -c:v ffv1",
    "slow.mp4": f"-vf fps=2 {H264}",
    "b_frames.mp4": "-c:v libx264 -bf 3 -pix_fmt yuv420p -movflags +faststart",
    "b_frames.ts": "-c:v libx264 -bf 3 -g 15 -pix_fmt yuv420p",
    "b_frames.avi": "-c:v mpeg4 -bf 2",
    "variable.mkv": f"-vf {SOME} -fps_mode vfr -c:v ffv1",
    "uneven.mp4": "-vf settb=1/90000,setpts=N*3000+mod(N*N\\,7)*300 "
    f"-fps_mode passthrough -enc_time_base 1:90000 {H264}",
    "sound.mp4": f"{SOUND} -c:a aac {H264}",
    "sound.mkv": f"{SOUND} -c:a aac {H264}",
    "sound.ts": f"{SOUND} -c:a aac {H264}",
    "late.mp4": f"{SOUND} -vf setpts=PTS+0.5/TB -c:a aac {H264}",
    "fragments.mp4": f"{SOUND} -c:a aac -movflags +frag_keyframe+empty_moov {H264}",
    "anamorphic.mp4": f"-vf setsar=4/3 {H264}",
    "interlaced.ts": "-vf interlace=lowpass=0 -c:v mpeg2video -flags +ilme+ildct",
    "deep.mkv": "-c:v ffv1 -pix_fmt yuv420p10le",
    "alpha.mov": "-c:v qtrle -pix_fmt argb",
    "alpha.webm": "-c:v libvpx-vp9 -pix_fmt yuva420p -deadline realtime -cpu-used 8",
    "raw.h264": H264,
    "all.gif": "",
    "some.gif": f"-vf {SOME} -fps_mode vfr",
    "all.apng": "-f apng",
    "one.png": "-frames:v 1 -update 1",
    "numbered-%02d.png": "-frames:v 20",
}
# Made from these: by FFmpeg without encoding, or by cutting the file off.
COPIED = {
    "edited.mp4": "-ss 0.5 -i b_frames.mp4",
    "turned.mp4": "-display_rotation 90 -i constant.mp4",
}
CUT = {
    "cut_30.ts": ("b_frames.ts", 0.3),
    "cut_85.ts": ("sound.ts", 0.85),
    "cut_50.mkv": ("variable.mkv", 0.5),
    "cut_70.mp4": ("fragments.mp4", 0.7),
    "cut_90.mp4": ("b_frames.mp4", 0.9),
}
QUICK = ("constant.mp4", "variable.mkv", "b_frames.ts", "sound.mkv", "cut_50.mkv")
BEGINS = {"late.mp4": 0.5}  # seconds after the film's beginning


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of films made by each FFmpeg."""

    @functools.cache
    def made_by(name: str) -> Path:
        ffmpeg, folder = needed(name), tmp_path_factory.mktemp(name)
        run = functools.partial(subprocess.run, cwd=folder, check=True)
        pictures = f"testsrc2=s={WIDTH}x{HEIGHT}:r=30:d={SECONDS}"
        lavfi = ["-f", "lavfi", "-i", pictures]
        lavfi += f"-f lavfi -i sine=r=44100:d={SECONDS}".split()
        outputs = [
            word
            for film, options in FILMS.items()
            for word in ("-map", "0:v", *options.split(), film)
        ]
        run([ffmpeg, "-v", "error", *lavfi, *outputs])
        for film, options in COPIED.items():
            newer = [needed("packaged"), "-v", "error", *options.split(), "-c", "copy"]
            run([*newer, film])
        for film, (whole, part) in CUT.items():
            data = (folder / whole).read_bytes()
            (folder / film).write_bytes(data[: int(part * len(data))])
        joined = [(folder / film).read_bytes() for film in ("b_frames.ts", "sound.ts")]
        (folder / "joined.ts").write_bytes(b"".join(joined))
        return folder

    return made_by


@functools.cache
def probed(film: Path) -> tuple[int, list[float | None]]:
    """Return ffprobe's number of frames, and their times."""
    if shutil.which("ffprobe") is None:
        pytest.skip("needs ffprobe")
    wanted = "stream=nb_read_frames:frame=best_effort_timestamp_time"
    command = ["ffprobe", "-v", "error", "-count_frames", "-select_streams", "v:0"]
    command += ["-show_entries", wanted, "-of", "json", str(film)]
    said: Any = json.loads(subprocess.run(command, capture_output=True).stdout)
    frames, streams = said.get("frames", ()), said.get("streams", [{}])
    times = [frame.get("best_effort_timestamp_time") for frame in frames]
    count = int(streams[0].get("nb_read_frames", 0))
    return count, [time and float(time) for time in times]


async def times_of(film: Any, **options: Any) -> list[Any]:
    times: list[float | None] = []
    async with Reader(film, **options) as video:
        async for frame in video:
            with frame:
                assert frame.time == video.time
                times.append(frame.time)
        assert len(times) == video.frames_received
    return times


@pytest.mark.parametrize(
    "film",
    [
        pytest.param(film, marks=() if film in QUICK else pytest.mark.slow)
        for film in (*FILMS, *COPIED, *CUT, "joined.ts")
    ],
)
async def test_frames_are_those_that_ffprobe_counts(
    film: str, ffmpeg: str, corpus: Callable[[str], Path]
) -> None:
    makers = [name for name, found in FOUND.items() if found]
    path = corpus(max(makers, key=lambda name: FOUND[name] != ffmpeg)) / film
    count, expected = probed(path)
    times = await times_of(path, ffmpeg=ffmpeg)
    assert len(times) == count > 0
    if film in QUICK:
        assert await times_of(path, pix_fmt="gray", ffmpeg=ffmpeg) == times
    assert times[0] == pytest.approx(BEGINS.get(film, 0), abs=0.04)
    assert None not in times
    if film != "joined.ts":  # its times begin again, in the film and for ffprobe
        for time, other in zip(times, expected, strict=True):
            if other is not None and expected[0] is not None:
                assert time - times[0] == pytest.approx(other - expected[0], abs=0.002)
        assert times == sorted(times)


# ---- at a rate ---------------------------------------------------------------------


@pytest.mark.parametrize("film", ["constant.mp4", "sound.mkv"])
@pytest.mark.parametrize(
    ("fps", "count"), [(10, 20), (15, 30), ("60000/1001", 120), (0.5, 1)]
)
async def test_frames_at_a_rate(
    film: str, fps: Any, count: int, ffmpeg: str, corpus: Callable[[str], Path]
) -> None:
    times = await times_of(corpus("packaged") / film, fps=fps, ffmpeg=ffmpeg)
    first, *_ = times
    assert first == pytest.approx(0, abs=0.04)
    expected = [first + n / float(Fraction(fps)) for n in range(count)]
    assert times == pytest.approx(expected, abs=1e-9)


async def test_rate_of_a_films_part(ffmpeg: str, corpus: Callable[[str], Path]) -> None:
    path = corpus("packaged") / "constant.mp4"
    part = {"start": 0.5, "duration": "200ms"}
    times = await times_of(path, fps=10, ffmpeg=ffmpeg, **part)
    assert times == [0.5, 0.6]
    times = await times_of(path, ffmpeg=ffmpeg, **part)
    assert times == pytest.approx([n / 30 for n in range(15, 21)])
    times = await times_of(path, fps=10, options=["-vframes", "3"], ffmpeg=ffmpeg)
    assert times == [0.0, 0.1, 0.2]


@pytest.mark.parametrize("more", [{"fps": 30}, {"options": ["-vf", "fps=30"]}], ids=str)
async def test_gap_that_is_filled(more: Any, ffmpeg: str, tmp_path: Path) -> None:
    """FFmpeg makes all frames of the gap at once, and reports their times first."""
    path = tmp_path / "gap.mkv"
    picture = ["-f", "lavfi", "-i", "testsrc2=s=64x48:r=1/100:d=200"]
    await anyio.run_process([ffmpeg, "-v", "error", *picture, "-c:v", "ffv1", path])
    times = await times_of(path, pix_fmt="gray", ffmpeg=ffmpeg, **more)
    expected = [n / 30 for n in range(3001)]
    assert times[:3001] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        ["-r", "10"],
        ["-ss", "0.5"],
        ["-fps_mode", "cfr"],
        ["-vf", "[in]hflip[out]"],
        ["-filter_complex", "hflip"],
    ],
    ids=str,
)
async def test_timing_of_the_callers_own(
    options: list[str], ffmpeg: str, corpus: Callable[[str], Path]
) -> None:
    path = corpus("packaged") / "constant.mp4"
    times = await times_of(path, options=options, ffmpeg=ffmpeg)
    assert len(times) >= 20
    assert set(times) == {None}
    with pytest.raises(ValueError, match=r"fps=10 cannot be added to \["):
        Reader(path, options=options, fps=10)


@pytest.mark.parametrize("pix_fmt", ["rgb24", "gray"])
@pytest.mark.parametrize("more", [{}, {"size": (32, 24)}, {"fps": 5}], ids=str)
async def test_part_beyond_the_end(
    pix_fmt: str, more: Any, ffmpeg: str, corpus: Callable[[str], Path]
) -> None:
    """The part is empty, as a list's slice would be, and the Reader knows the size."""
    path = corpus("packaged") / "turned.mp4"
    async with Reader(path, pix_fmt, start=9, ffmpeg=ffmpeg, **more) as video:
        with pytest.raises(anyio.EndOfStream):
            await video.receive()
        assert video.size == more.get("size", (HEIGHT, WIDTH))
        assert video.layout
        assert video.pool
        assert video.pool.shape[:2] == video.size[::-1]
        assert video.duration == pytest.approx(SECONDS)
        assert video.frames_received == 0


async def test_ffmpeg_before_5_1(
    pretend: Callable[[str], str], corpus: Callable[[str], Path]
) -> None:
    """There, the option with which each frame comes once has another name."""
    refuse = 'case "$*" in *-fps_mode*) echo "Unrecognized option \'fps_mode\'."'
    known = (
        'for a; do shift; set -- "$@" "$(echo "$a" | sed s/^-vsync$/-fps_mode/)"; done'
    )
    program = f'{refuse} >&2; exit 1;; esac; {known}; exec {needed("path")} "$@"'
    path = corpus("packaged") / "variable.mkv"
    times = await times_of(path, ffmpeg=pretend(program))
    assert times == await times_of(path)
