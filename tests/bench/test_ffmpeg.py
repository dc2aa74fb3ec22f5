"""The benches with FFmpeg run, count every frame, and find wrong bytes."""

from __future__ import annotations

import importlib
import io
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from aiozerocopy.bench import (
    chart,
    decode,
    encode,
    feeding,
    ffmpeg,
    frames,
    racing,
    render,
    report,
    video,
)
from aiozerocopy.bench.feeding import Lab
from aiozerocopy.bench.ffmpeg import FrameRace, of_heartbeats, of_memory
from aiozerocopy.bench.racing import Comparison, Options, Race, Work, WrongBytes
from aiozerocopy.bench.video import FrameFeeder, FrameRun, Video
from aiozerocopy.commands import bench

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

pytestmark = pytest.mark.skipif(
    shutil.which("ffmpeg") is None or shutil.which(feeding.COMPILER) is None,
    reason="needs ffmpeg and a C compiler",
)
QUICK = Options(rounds=1, quick=True)


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab() as made:
        yield made


@pytest.fixture
def small() -> Video:
    return Video(shutil.which("ffmpeg") or "", (64, 48))


WORK = Work(64 * 48 * 3, 30, warm=10, buffers=3)


@pytest.fixture(scope="module")
def arrays() -> None:
    """NumPy, whose threads begin when it is imported."""
    pytest.importorskip("numpy")


@pytest.fixture(scope="module")
def egl() -> None:
    """Skip where nothing can be rendered; what OpenGL starts once starts here."""
    moderngl: Any = pytest.importorskip("moderngl")
    try:
        moderngl.create_context(standalone=True, backend="egl").release()
    except Exception as error:  # glcontext raises plain Exception
        pytest.skip(f"no EGL here: {error}")
    pytest.importorskip("numpy")  # which has threads of its own


@pytest.fixture(scope="module")
def fonts() -> None:
    """matplotlib looks for all fonts once, and keeps those that it uses open."""
    pytest.importorskip("matplotlib")
    figure: Any = importlib.import_module("matplotlib.figure").Figure()
    figure.subplots().set_title("one, messages/s", fontsize=10)
    figure.savefig(io.BytesIO())


# ---- contestants ---------------------------------------------------------------------


WAYS = {
    "put": {},
    "send": {},
    "turbopipe": {"options": {"module": "aiozerocopy.compat.turbopipe"}},
    "write": {},
    "write_and_drain": {},
    "vmsplice": {},
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_carries_every_byte(lab: Lab, small: Video, way: str) -> None:
    options: Any = WAYS[way]
    run = FrameFeeder(way, lab, small, way, **options).run(WORK, check=True)
    assert run.seconds > 0
    assert run.sink_cpu > 0


@pytest.mark.parametrize("way", ["put", "vmsplice"])
def test_calls_are_counted(lab: Lab, small: Video, way: str) -> None:
    work = replace(WORK, size=1280 * 720 * 3)
    feeder = FrameFeeder(way, lab, replace(small, size=(1280, 720)), way)
    calls = feeder.count_calls(work)
    assert calls is not None
    assert 0 < calls < 1000


class Liar(FrameFeeder):
    """Sends what is not the pattern."""

    def _sender(self, work: Work, *options: Any) -> list[str]:
        *command, job = super()._sender(work, *options)
        pattern = Path(self.lab.pattern(work))
        other = pattern.with_name("other")
        data = bytearray(pattern.read_bytes())
        data[work.size + 5] ^= 1
        other.write_bytes(data)
        return [*command, job.replace(str(pattern), str(other))]


def test_wrong_bytes_are_found(lab: Lab, small: Video) -> None:
    with pytest.raises(WrongBytes, match="other bytes"):
        Liar("liar", lab, small, "put").run(WORK, check=True)


def test_missing_frames_are_found(
    lab: Lab, small: Video, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(video, "frames_seen", lambda progress: 39)
    with pytest.raises(WrongBytes, match="39 frames and not 40"):
        FrameFeeder("put", lab, small, "put").run(WORK, check=False)


def test_ffmpeg_that_fails_is_reported(lab: Lab, small: Video) -> None:
    broken = replace(small, output=("-c:v", "no_such_codec", "-f", "null", "-"))
    with pytest.raises(ChildProcessError, match="no_such_codec"):
        FrameFeeder("write", lab, broken, "write").run(WORK, check=False)


def test_count_of_frames_is_the_last_that_ffmpeg_told(tmp_path: Path) -> None:
    told = tmp_path / "progress"
    told.write_text("frame=3\nfps=0\nprogress=continue\nframe=17\nprogress=end\n")
    assert video.frames_seen(told) == 17


def test_percentile() -> None:
    assert frames.percentile([float(n) for n in range(101)], 0.99) == 99.0


# ---- what is made of the runs --------------------------------------------------------


def entry(
    name: str, *, rate: float = 1, gap: Any = None, growth: int = 0
) -> racing.Entry:
    feeder: Any = Race  # whoever has a name
    made = racing.Entry(feeder, WORK)
    made.contestant = type("Named", (), {"name": name})()
    seconds = WORK.messages / rate
    made.runs = [FrameRun(seconds, 1, 1, None, gap, growth)]
    return made


def test_heartbeat_and_overlap_are_told() -> None:
    told = of_heartbeats(
        [
            entry("renders only", rate=400, gap=0.004),
            entry("sends only", rate=200),
            entry("ours", rate=180, gap=0.0045),
        ]
    )
    held_up = "the event loop is held up for {} ms at most, 99 times of 100"
    assert f"renders only: {held_up.format('4.00')}" in told
    assert f"ours: {held_up.format('4.50')}" in told
    assert any(line.startswith("ours: 0.90 times the rate") for line in told)


def test_growth_of_memory_is_told() -> None:
    told = of_memory([entry("ours", growth=1_000_000), entry("worse", growth=90 << 20)])
    assert told == [
        "ours: memory grew by 1.0 MB",
        "worse: memory grew by 94.4 MB",
    ]


def test_race_tells_its_remarks() -> None:
    race = FrameRace("one", WORK, [], [], told=lambda entries: [f"{len(entries)}"])
    assert race.remarks([entry("ours")]) == ["1"]


# ---- the benches ---------------------------------------------------------------------


def check(result: racing.Result) -> None:
    names = [contestant.name for contestant in result.race.contestants]
    pairs: Sequence[Comparison] = result.race.comparisons
    named = {pair.ours for pair in pairs}.union(*(pair.rivals for pair in pairs))
    assert named <= {*names}
    assert all(entry.verified for entry in result.entries)
    assert len(result.entries) + len(result.left_out) == len(names)


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("number", range(3), ids=["null", "heartbeat", "memory"])
def test_bench_ffmpeg_runs(lab: Lab, number: int) -> None:
    races = [*ffmpeg.races(lab, QUICK)]
    assert len(races) == 3
    check(racing.run_race(races[number], QUICK))


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_bench_render_runs(egl: None, lab: Lab) -> None:
    [race] = render.races(lab, QUICK)
    assert "scene to x264" in race.title
    check(racing.run_race(race, QUICK))


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_bench_encode_runs(arrays: None, lab: Lab) -> None:
    race = next(encode.races(lab, replace(QUICK, frames=6, size=(96, 64))))
    assert race.work.messages == 6
    result = racing.run_race(race, QUICK)
    check(result)
    told = report.footnotes(result)
    assert any(
        note.startswith("Writer: ") and "as they are shown" in note for note in told
    )
    assert any("FFmpeg's included" in note for note in told)


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_bench_encode_has_scenes(egl: None, lab: Lab) -> None:
    _, race = encode.races(lab, QUICK)
    assert race.title.startswith("OpenGL scene, 160x90, x264 ultrafast")
    check(racing.run_race(race, QUICK))


def test_film_of_other_frames_is_found(
    arrays: None, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    race = next(encode.races(lab, QUICK))
    monkeypatch.setattr(encode, "NEAR", 0.0)
    with pytest.raises(WrongBytes, match="frame 0 is off by"):
        race.contestants[3].run(race.work, check=True)


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_bench_decode_runs(arrays: None, lab: Lab) -> None:
    race = next(decode.races(lab, replace(QUICK, frames=6, size=(96, 64))))
    assert race.work.messages == 6
    result = racing.run_race(race, QUICK)
    check(result)
    told = report.footnotes(result)
    assert any(
        note.startswith("Reader: ") and "as they are shown" in note for note in told
    )


@pytest.mark.parametrize("reader", range(4))
def test_frames_of_another_film_are_found(
    arrays: None, lab: Lab, reader: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    race = next(decode.races(lab, QUICK))
    contestant = race.contestants[reader]
    if racing.missing(contestant):
        pytest.skip(f"{contestant.name} is not installed")
    contestant.run(race.work, check=True)
    monkeypatch.setattr(decode, "NEAR", 0.0)
    with pytest.raises(WrongBytes, match="a frame is off by"):
        contestant.run(race.work, check=True)


def test_film_that_is_too_short_is_found(arrays: None, lab: Lab) -> None:
    race = next(decode.races(lab, QUICK))
    short: Any = race.contestants[2]
    film = short._film(race.work)
    more = replace(race.work, messages=race.work.messages + 1)
    film.rename(short.lab.path / film.name.replace("-20.", "-21."))
    with pytest.raises(WrongBytes, match="20 frames came"):
        short.run(more, check=False)


def test_encode_has_all_sizes_and_presets(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encode, "ffmpegs", lambda _: {"5": "five", "9": "nine"})
    monkeypatch.setattr(render, "need_opengl", lambda: None)
    races = [*encode.races(lab, Options(frames=7))]
    assert len({race.title for race in races}) == 2 * 2 * 2 * 2
    assert all(race.work.messages == 7 for race in races)


@pytest.mark.parametrize(
    "words",
    [
        ["encode", "--size", "99x64"],
        ["encode", "--size", "wide"],
        ["encode", "--frames", "0"],
        ["pipes", "--frames", "9"],
    ],
    ids=" ".join,
)
def test_options_that_mean_nothing(words: list[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        bench.main(words)


def test_picture_of_another_scene_is_found(
    egl: None, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    race = next(render.races(lab, QUICK))
    feeder = next(one for one in race.contestants if "yuv420p" in one.name)
    monkeypatch.setattr(render, "NEAR", 0.0)
    with pytest.raises(WrongBytes, match="frame 0 is off by"):
        feeder.run(race.work, check=True)


def test_all_sizes_buffers_and_ffmpegs_are_raced(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ffmpeg, "ffmpegs", lambda _: {"5": "five", "9": "nine"})
    races = [*ffmpeg.races(lab, Options())]
    assert len(races) == 2 * 4 * 2 + 2 + 1
    assert len({race.title for race in races}) == len(races)
    assert all(race.work.messages >= 100 for race in races)


def test_chart_is_a_picture(fonts: None, tmp_path: Path) -> None:
    race = Race("one", WORK, [], [])
    entries = [entry("ours", rate=100), entry("theirs", rate=50)]
    verdict = racing.Verdict("ours", "theirs", 2.0, None)
    path = tmp_path / "chart.png"
    chart.draw([racing.Result(race, entries, [verdict], [])] * 3, path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_without_ffmpeg_it_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(FileNotFoundError, match="install FFmpeg"):
        video.ffmpegs(QUICK)
