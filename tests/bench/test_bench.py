"""The benches run, their receiver sees every byte, and their numbers make sense."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest

from aiozerocopy.bench import feeding, one_pipe, outcome, racing, report
from aiozerocopy.bench.feeding import Crew, Feeder, Lab, in_c, unix_link
from aiozerocopy.bench.one_pipe import Stage, Turn, TurnTaker
from aiozerocopy.bench.racing import Comparison, Options, Race, Run, Work, WrongBytes
from aiozerocopy.commands import bench

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

LOOPS = ["asyncio", *(["uvloop"] if find_spec("uvloop") else [])]
needs_compiler = pytest.mark.skipif(
    shutil.which(feeding.COMPILER) is None, reason="no C compiler"
)


class Fake:
    """A contestant whose runs are known beforehand: (seconds, CPU seconds)."""

    def __init__(
        self, name: str, *runs: tuple[float, float], needs: Sequence[str] = ()
    ) -> None:
        self.name = name
        self.needs = needs
        self.runs = list(runs)

    def run(self, work: Work, check: bool) -> Run:
        if check:
            return Run(1, 1, 1, None)
        seconds, cpu = self.runs.pop(0)
        return Run(seconds, cpu, 1, None)

    def count_calls(self, work: Work) -> float | None:
        return 1.5


WORK = Work(size=1_000_000, messages=1000, warm=0, buffers=1)  # 1 GB


def fake_result() -> racing.Result:
    contestants = [
        Fake("ours", (1.0, 0.5), (2.0, 0.5), (10.0, 0.5)),
        Fake("rival", (1.5, 1.0), (3.0, 1.0), (5.0, 1.0)),
        Fake("slow", (9.0, 0.1), (9.0, 0.1), (9.0, 0.1)),
        Fake("absent", needs=["no_such_module"]),
    ]
    comparison = Comparison("ours", ["rival", "slow", "absent"])
    race = Race("fakes", WORK, contestants, [comparison])
    return racing.run_race(race, Options(rounds=3))


def test_ratio_is_the_median_of_the_rounds_against_the_best_rival() -> None:
    [verdict] = fake_result().verdicts
    assert (verdict.rival, verdict.ratio, verdict.cpu_ratio) == ("rival", 1.5, 0.5)


def test_by_cpu_the_best_rival_is_the_one_that_needs_least() -> None:
    contestants = [
        Fake("ours", (3.0, 0.5)),
        Fake("fast", (1.0, 2.0)),
        Fake("frugal", (2.0, 1.0)),
    ]
    comparison = Comparison("ours", ["fast", "frugal"], by_cpu=True)
    race = Race("fakes", WORK, contestants, [comparison])
    result = racing.run_race(race, Options(rounds=1))
    [verdict] = result.verdicts
    assert (verdict.rival, verdict.cpu_ratio) == ("frugal", 0.5)
    assert report.footnotes(result) == [
        "ours: 0.67 times the rate of frugal, for 0.50 times its CPU time"
    ]


def test_race_may_have_rounds_of_its_own() -> None:
    race = Race("fakes", WORK, [Fake("ours", (1.0, 1.0))], [], rounds=1)
    result = racing.run_race(race, Options(rounds=5))
    assert len(result.entries[0].runs) == 1
    assert report.heading(result).endswith("bytes, one round")


def test_only_the_best_candidate_is_in_the_race() -> None:
    candidates = [
        Fake("slow", *[(2.0, 1.0)] * 3),
        Fake("fast", *[(1.0, 1.0)] * 4),
    ]
    race = Race("fakes", WORK, [Fake("ours", (1.0, 1.0))], [], candidates)
    result = racing.run_race(race, Options(rounds=1))
    assert [entry.name for entry in result.entries] == ["ours", "fast"]


def test_candidates_of_a_long_race_are_tried_more_often() -> None:
    one, other = Fake("one", *[(2.0, 1.0)] * 5), Fake("other", *[(1.0, 1.0)] * 25)
    race = Race("fakes", WORK, [], [], [one, other], rounds=20)
    result = racing.run_race(race, Options())
    assert [entry.name for entry in result.entries] == ["other"]
    assert [one.runs, other.runs] == [[], []]


def test_spread_of_the_ratios_is_told_once_there_are_enough() -> None:
    ours = Fake("ours", *[(1 / rate, 1.0) for rate in (1.0, 1.1, 1.2, 1.3, 1.4)])
    contestants = [ours, Fake("rival", *[(1.0, 1.0)] * 5)]
    race = Race("fakes", WORK, contestants, [Comparison("ours", ["rival"])])
    result = racing.run_race(race, Options(rounds=5))
    assert report.footnotes(result) == [
        "ours: 1.20 times the rate of rival (1.05 to 1.35 in half of the rounds), "
        "for 1.00 times its CPU time"
    ]
    [told] = outcome.as_json({}, [result])["races"][0]["comparisons"]
    assert told["spread"] == pytest.approx((1.05, 1.35))


def test_what_is_not_installed_is_named() -> None:
    assert "not installed: absent" in report.footnotes(fake_result())


@pytest.mark.parametrize("rich_is_there", [True, False])
def test_table_names_every_contestant(
    rich_is_there: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if rich_is_there:
        pytest.importorskip("rich")
    else:
        monkeypatch.setattr(report, "find_spec", lambda name: None)
    report.show(fake_result())
    text = capsys.readouterr().out
    assert all(name in text for name in ("ours", "rival", "slow", "1.50"))
    assert "ours: 1.50 times the rate of rival, for 0.50 times its CPU time" in text


@needs_compiler
@pytest.mark.parametrize(
    "link",
    [feeding.unix_link, feeding.tcp_link, feeding.pipe_link(65536)],
    ids=["unix", "tcp", "pipe"],
)
def test_every_link_carries_every_byte(link: Callable[[], tuple[int, int]]) -> None:
    work = Work(size=10_000, messages=30, warm=3, buffers=3)
    with Lab() as lab:
        run = Feeder("C", lab, in_c(4096), link, read_size=1000).run(work, check=True)
    assert run.seconds > 0


@needs_compiler
def test_sender_imports_the_package_that_runs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "aiozerocopy"
    other.mkdir()
    (other / "__init__.py").write_text("raise ImportError('the wrong one')\n")
    monkeypatch.chdir(tmp_path)
    work = Work(size=1000, messages=3, warm=3, buffers=3)
    with Lab() as lab:
        feeder = Feeder("ours", lab, feeding.in_python("send"), unix_link)
        assert feeder.run(work, check=True).calls is not None


@needs_compiler
def test_wrong_bytes_are_found() -> None:
    work = Work(size=4096, messages=8, warm=8, buffers=4)
    with Lab() as lab:
        right = Feeder("right", lab, in_c(), unix_link, read_size=1000)
        right.run(work, check=True)
        wrong = lab.path / "wrong"
        data = bytearray((lab.path / "pattern-16384").read_bytes())
        data[5000] ^= 1
        wrong.write_bytes(data)

        def command(lab: Lab, task: feeding.Task) -> list[str]:
            return in_c()(lab, replace(task, pattern=str(wrong)))

        with pytest.raises(WrongBytes, match=r"the first wrong one is number 5000$"):
            Feeder("wrong", lab, command, unix_link).run(work, check=True)


@needs_compiler
def test_sender_that_fails_is_reported() -> None:
    def command(lab: Lab, task: feeding.Task) -> list[str]:
        return ["sh", "-c", "echo no such luck >&2; exit 3"]

    work = Work(size=1, messages=1, warm=0, buffers=1)
    with Lab() as lab, pytest.raises(ChildProcessError, match="no such luck"):
        Feeder("failing", lab, command, unix_link).run(work, check=False)


needs_one_pipe = pytest.mark.skipif(not one_pipe.is_possible(), reason="no /proc")


@pytest.fixture
def stage() -> Iterator[Stage]:
    with Lab() as lab:
        yield Stage(lab, "asyncio", read_size=1000)


@needs_compiler
@needs_one_pipe
def test_those_who_share_a_child_have_their_turns(stage: Stage) -> None:
    work = Work(size=100_000, messages=8, warm=4, buffers=4)
    calls = {}
    for turn in (Turn("write", 4096, 65536), Turn("send"), Turn("put"), Turn("write")):
        taker = TurnTaker(turn.way, stage, turn)
        for check in (False, True):
            run = taker.run(work, check)
            assert min(run.seconds, run.sink_cpu, run.sender_cpu) > 0
        calls[turn] = taker.count_calls(work)
    assert calls[Turn("write", 4096, 65536)] == 25
    assert calls[Turn("write")] == 1
    assert calls[Turn("send")]
    told = stage.close()
    assert told is not None
    assert told["bytes"] == 4 * 2 * 12 * 100_000  # (what was checked, another had)


@needs_compiler
@needs_one_pipe
def test_byte_that_is_wrong_in_a_turn_is_found(stage: Stage) -> None:
    # The second phase begins with the first buffer again, where the child expects
    # another.
    work = Work(size=10_000, messages=8, warm=3, buffers=4)
    with pytest.raises(WrongBytes, match="'wrong': 30000"):
        TurnTaker("ours", stage, Turn("send")).run(work, check=True)


@needs_compiler
@needs_one_pipe
def test_turn_that_fails_is_reported_and_another_may_follow(stage: Stage) -> None:
    work = Work(size=10_000, messages=4, warm=4, buffers=4)
    with pytest.raises(ChildProcessError, match="Invalid argument"):
        stage.turn(Turn("write", pipe=-1), work)
    assert stage.turn(Turn("send"), work)["seconds"] > 0


@needs_compiler
@pytest.mark.slow
@pytest.mark.timeout(90)  # dozens of processes, one after the other
@pytest.mark.parametrize(
    ("name", "titles", "count"),
    [
        ("sockets", ["1"] * 3, 21),
        ("pipes", ["1080p"] * (1 + len(LOOPS)), 7 + 3 * len(LOOPS)),
        ("relay", ["file", "pipe", "FFmpeg"], 19),
        ("transport", ["64"] * 4, 16),
    ],
)
def test_bench_runs_and_every_byte_is_right(
    name: str,
    titles: list[str],
    count: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tables = tmp_path / "tables.md"
    assert bench.main([name, "--quick", "--json", "--markdown", str(tables)]) == 0
    races: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["races"]
    assert [race["title"].split()[0] for race in races] == titles
    entries = [entry for race in races for entry in race["contestants"]]
    left_out = [name for race in races for name in race["not_installed"]]
    assert len(entries) + len(left_out) == count
    assert bool(left_out) == (find_spec("uvloop") is None)
    for entry in entries:
        assert entry["verified"]
        assert 0 < entry["median_gb_per_s"] < 1000
        assert 0 <= entry["cpu_s_per_gb"] < 1000
    for race in races:
        for told in race["comparisons"]:
            assert told["ratio"] > 0
    assert all(entry["name"] in tables.read_text() for entry in entries)


def test_a_run_is_over_once_a_process_has_failed(tmp_path: Path) -> None:
    with Crew(tmp_path / "log") as crew:
        crew.start([sys.executable, "-c", "import signal; signal.pause()"])
        crew.start([sys.executable, "-c", "raise SystemExit('broken')"])
        with pytest.raises(ChildProcessError, match="failed:\nbroken"):
            crew.finish()
