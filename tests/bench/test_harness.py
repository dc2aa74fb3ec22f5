"""Races, the command that runs them, and the tables that are made of them."""

import shutil
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from scripts import output

from bench import __main__ as program
from bench import processes, race, results
from bench.processes import Lab
from bench.race import Contender, Duel, Race, Run, Work, WrongBytes
from bench.results import Outcome

WORK = Work(1_000_000, 10, warm=2, buffers=2)
MACHINE: dict[str, Any] = {
    **{"date": "2026-11-24T19:43:46+00:00", "python": "3.13.0", "cpu": "a CPU"},
    **{"system": "Linux 6.18.1 x86_64", "cpus": 2, "load": 0.1, "versions": {}},
}


def contender(name: str, *seconds: float, needs: tuple[str, ...] = ()) -> Contender:
    """A contender that takes these seconds in its rounds, after the one that checks."""
    left = iter((9.0, *seconds))
    return Contender(name, lambda work, check: Run(next(left), 0.5, 0.5), needs)


def two(ours: tuple[float, ...], theirs: tuple[float, ...]) -> Race:
    field = [contender("ours", *ours), contender("theirs", *theirs)]
    duels = [Duel("ours", "theirs", "a megabyte: send", "C")]
    return Race("fakes", "1 MB", WORK, field, duels)


def test_contenders_run_in_turn_and_the_check_does_not_count() -> None:
    told: list[str] = []
    result = race.run_race(two((1.0, 2.0), (3.0, 4.0)), 2, told.append)
    runs = {name: [run.seconds for run in some] for name, some in result.runs.items()}
    assert runs == {"ours": [1.0, 2.0], "theirs": [3.0, 4.0]}
    phases = ("checking", "round 1 of 2", "round 2 of 2")
    names = ("ours", "theirs")
    assert told == [f"{phase}, {name}" for phase in phases for name in names]


def test_rounds_end_when_time_is_over_but_one_is_run() -> None:
    result = race.run_race(two((1.0,), (2.0,)), 9, lambda what: None, until=0.0)
    assert [len(runs) for runs in result.runs.values()] == [1, 1]


def test_rival_among_many_is_the_one_with_the_best_median() -> None:
    rounds = two((1.0,) * 3, (2.0, 0.1, 2.0))
    field = [*rounds.contenders, contender("others", 1.5, 1.5, 1.5)]
    names = ("theirs", "others", "missing")
    duels = [Duel("ours", "", "a megabyte: send", "the best: {}", among=names)]
    one = replace(rounds, contenders=field, duels=duels)
    assert [one.name for one in one.in_table().contenders] == ["ours", *names[:2]]
    result = race.run_race(one, 3, lambda what: None)
    [row] = Outcome(MACHINE, [result]).rows
    assert row.cells()[1:3] == ("the best: others", "1.50")


def test_tables_are_those_of_the_results(tmp_path: Path) -> None:
    """No figure in the README and the documentation is typed by hand."""
    root, pages = processes.HERE.parents[1], Path("docs", "pages")
    made = ("benchmarks.md", "benchmarks.json", "benchmarks.svg")
    files = [Path("README.md"), *(pages / name for name in made)]
    (tmp_path / pages).mkdir(parents=True)
    for name in files[:2]:
        shutil.copy(root / name, tmp_path / name)
    script = root / ".make" / "bench_table.py"
    output([sys.executable, script, root / files[2], tmp_path])
    for name in files:
        same = (tmp_path / name).read_text() == (root / name).read_text()
        assert same, f"{name}: run make bench-table"


# ---- the command line ----------------------------------------------------------------


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> list[Race]:
    """Make `fakes` the only bench, with these races."""
    found = [two((1.0,) * 9, (2.0,) * 9)]
    module: Any = type(sys)("bench.fakes")
    module.races = lambda lab, quick: iter(found)
    monkeypatch.setitem(sys.modules, "bench.fakes", module)
    monkeypatch.setattr(program, "BENCHES", {"fakes": "what they do"})
    return found


def test_all_benches_in_brief_and_their_json(
    fakes: list[Race], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "now.json"
    assert program.main(["--json", str(path)]) == 0
    outcome = results.from_json(path.read_text())
    assert len(outcome.rows[0].ratios) == 9
    assert capsys.readouterr().out == outcome.text() + "\n"


def test_contenders_by_name_beside_another_build(
    fakes: list[Race], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The other build is in the path only while it runs."""
    seen: list[tuple[str, str]] = []

    def at(name: str, work: Work, check: bool) -> Run:
        seen.append((name, processes.ENVIRONMENT["PYTHONPATH"].split(":")[0]))
        return Run(1.0, 1.0, 1.0)

    field = [Contender(name, partial(at, name)) for name in ("ours", "theirs", "C")]
    fakes[0] = replace(fakes[0], contenders=field)
    words = ["fakes", "--who", "^(ours|theirs)$", "--beside", str(tmp_path)]
    assert program.main([*words, "--rounds", "1"]) == 0
    said = capsys.readouterr().out
    assert "1 MB: 10 messages of 1,000,000 bytes, one round" in said
    tests = str(processes.HERE.parent)
    one_round = [("ours", tests), ("ours", str(tmp_path)), ("theirs", tests)]
    assert seen == one_round * 2
    assert "1 MB: ours" in said
    assert f"ours, in {tmp_path}" in said


def test_race_that_fails_or_lacks_something_does_not_end_the_rest(
    fakes: list[Race], capsys: pytest.CaptureFixture[str]
) -> None:
    for number, error in enumerate((race.Lacking("no X"), WrongBytes("all\nwrong"))):
        good = two((1.0,), (2.0,))

        def fail(*_: object, error: Exception = error) -> Run:
            raise error

        field = [Contender(one.name, fail) for one in good.contenders]
        fakes.insert(0, replace(good, title=f"bad {number}", contenders=field))
    assert program.main(["fakes", "--rounds", "1"]) == 1
    said = capsys.readouterr().out
    assert "left out: fakes, bad 0: no X" in said
    assert "failed: fakes, bad 1: WrongBytes: wrong" in said
    assert "a megabyte: send" in said


def test_ctrl_c_shows_what_there_is(
    fakes: list[Race], capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(work: Work, check: bool) -> Run:
        raise KeyboardInterrupt

    fakes.append(replace(fakes[0], contenders=[Contender("ours", interrupted)]))
    assert program.main([]) == 130
    assert "a megabyte: send" in capsys.readouterr().out


def test_what_is_typed_wrong(
    fakes: list[Race], capsys: pytest.CaptureFixture[str]
) -> None:
    for line in ("nonsense", "--rounds x", "fakes --only x", "fakes --who x"):
        with pytest.raises(SystemExit) as exit_:
            program.main(line.split())
        assert exit_.value.code == 2
        assert line.split()[-1] in capsys.readouterr().err


def test_package_is_the_one_of_a_relative_path(tmp_path: Path) -> None:
    """Its processes run in another folder, where that path would lead elsewhere."""
    code = "import bench.processes as p; print(p.ENVIRONMENT['PYTHONPATH'])"
    paths = {"PYTHONPATH": f"here:{processes.HERE.parent}"}
    environment = processes.ENVIRONMENT | paths
    said = output([sys.executable, "-c", code], cwd=tmp_path, env=environment)
    assert str(tmp_path.resolve() / "here") in said.split(":")


# ---- processes -----------------------------------------------------------------------


def test_process_that_fails_ends_the_others_and_is_told() -> None:
    with Lab() as lab, pytest.raises(ChildProcessError, match="it is broken"):
        lab.reports(["sleep", "100"], ["sh", "-c", "echo it is broken >&2; exit 3"])
