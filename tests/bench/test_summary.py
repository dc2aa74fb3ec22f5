"""`aiozerocopy bench` without a name: all of them in brief, as one table."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
from fake_races import (
    FACTS,
    OURS,
    WORK,
    Clock,
    Fake,
    easy_race,
    fake_race,
    measured,
    silent,
)

from aiozerocopy.bench import everything, machine, outcome, racing, summary, tables
from aiozerocopy.bench.everything import Everything
from aiozerocopy.bench.feeding import Lab
from aiozerocopy.bench.outcome import Missed
from aiozerocopy.bench.racing import Lacking, Options, Race
from aiozerocopy.commands import bench, ending

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Races = Callable[[Lab, Options], "Iterator[Race]"]

pytest.importorskip("numpy")


def add_bench(monkeypatch: pytest.MonkeyPatch, name: str, races: Races) -> None:
    module = ModuleType(f"aiozerocopy.bench.{name}")
    module.races = races  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(bench, "BENCHES", {**bench.BENCHES, name: ""})


@pytest.fixture
def no_benches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "BENCHES", {})
    monkeypatch.setattr(machine, "facts", lambda: FACTS)


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab() as made:
        yield made


# ---- which races, and how long ------------------------------------------------------


def test_a_race_in_brief_has_the_contestants_of_its_headlines_and_less_work() -> None:
    race = replace(easy_race(), brief=200, rounds=40)
    race = replace(race, contestants=[*race.contestants, Fake("nobody's rival")])
    brief = racing.in_brief(race)
    assert [one.name for one in brief.contestants] == ["ours", "rival", "other"]
    assert (brief.work.messages, brief.rounds) == (200, None)
    assert list(brief.comparisons) == list(race.headlines)
    assert racing.in_brief(replace(race, brief=0)).work == WORK
    assert racing.in_brief(replace(race, brief=5000)).work == WORK


def test_rounds_end_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock.monotonic)
    contestants = [Fake(name, 2.0, clock=clock) for name in ("ours", "rival")]
    races = [fake_race(title, *contestants) for title in ("one", "two", "three")]
    done = Everything(FACTS)
    done.run(races, Options(rounds=9), silent, seconds=50)
    # (a round takes 4 s; what one race leaves over, the next ones have)
    rounds = [len(result.entries[0].runs) for result in done.results]
    assert rounds == [3, 3, 3]
    assert clock.now == 3 * (1 + 3) * 4.0


def test_there_are_no_more_rounds_than_wanted_and_none_too_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock.monotonic)
    races = [
        fake_race("quick", Fake("ours", 0.1, clock=clock), Fake("a", 0.1, clock=clock)),
        fake_race("slow", Fake("ours", 99.0, clock=clock), Fake("a", 99, clock=clock)),
        fake_race("late", Fake("ours", 0.1, clock=clock), Fake("a", 0.1, clock=clock)),
    ]
    done = Everything(FACTS)
    done.run(races, Options(rounds=9), silent, seconds=100)
    assert [len(one.entries[0].runs) for one in done.results] == [9, 1]
    assert done.left_out == [Missed("", "late", everything.LATE)]


def test_what_cannot_run_is_left_out_and_says_why(
    no_benches: None, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_camera(lab: Lab, options: Options) -> Iterator[Race]:
        yield easy_race("without a camera")
        raise Lacking("no camera: buy one")

    def no_package(lab: Lab, options: Options) -> Iterator[Race]:
        raise ModuleNotFoundError("it needs spam: pip install spam", name="spam")

    def broken(lab: Lab, options: Options) -> Iterator[Race]:
        raise OSError("no such luck")

    for races in (no_camera, no_package, broken):
        add_bench(monkeypatch, races.__name__, races)
    done = Everything(FACTS)
    found = done.races([*bench.BENCHES], lab, Options())
    assert [(one.bench, one.title) for one in found] == [
        ("no_camera", "without a camera")
    ]
    assert list(map(str, done.left_out)) == [
        "no_camera: no camera: buy one",
        "no_package: it needs spam: pip install spam",
    ]
    assert list(map(str, done.failed)) == ["broken: OSError: no such luck"]


def test_rival_that_is_not_installed_is_left_out_once(
    no_benches: None, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def races(lab: Lab, options: Options) -> Iterator[Race]:
        absent = Fake("Spam", needs=["no_such_module"])
        for title in ("one", "two"):
            yield fake_race(title, Fake("ours"), Fake("there"), absent)
        yield fake_race("no rival", Fake("ours"), absent)
        yield fake_race("not ours", Fake("ours", needs=["no_such_loop"]), Fake("there"))
        yield Race("no headline", WORK, [Fake("ours")], [])

    add_bench(monkeypatch, "fakes", races)
    done = Everything(FACTS)
    found = done.races(["fakes"], lab, Options())
    assert [race.title for race in found] == ["one", "two"]
    [spam, loop] = map(str, done.left_out)
    assert spam.startswith("fakes, Spam: no_such_module is not installed: pip install ")
    assert "no_such_loop is not installed" in loop
    done.run(found, Options(quick=True, rounds=1), silent)
    rows = outcome.from_json(done.as_json()).rows
    assert [(row.title, row.against) for row in rows] == [
        ("one", "there"),
        ("two", "there"),
    ]


def test_it_is_said_how_to_get_a_package() -> None:
    told = {name: racing.how_to_get(name) for name in ("zmq", "mss", "tachyon")}
    assert told["zmq"] == "zmq is not installed: pip install pyzmq"
    assert told["mss"] == "mss is not installed: pip install 'mss>=10'"
    assert "Benchmarks in the documentation" in told["tachyon"]


def test_reason_is_told_once() -> None:
    lacks = [
        Missed("sockets", "a race", "no C compiler"),
        Missed("ring", "Spam", "it is no more"),
        Missed("sockets", "another", "no C compiler"),
        Missed("pipes", "", "no C compiler"),
    ]
    told = outcome.Outcome(FACTS, [], lacks, [Missed("dask", "a race", "OSError: no")])
    assert summary.remarks(told) == [
        "failed: dask, a race: OSError: no",
        "left out in sockets, pipes: no C compiler",
        "left out: ring, Spam: it is no more",
    ]


def test_race_that_fails_does_not_end_the_rest() -> None:
    last = "spam.py: no such luck"
    error = ChildProcessError(f"['python'] failed:\nTraceback\n{last}\n")
    races = [
        replace(fake_race("bad", Fake("ours", error=error), Fake("a")), bench="x"),
        replace(fake_race("lacks", Fake("ours", error=Lacking("no X"))), bench="x"),
        easy_race(),
    ]
    done = Everything(FACTS)
    done.run(races, Options(rounds=2), silent)
    assert [one.race.title for one in done.results] == ["easy"]
    assert done.failed == [Missed("x", "bad", f"ChildProcessError: {last}")]
    assert list(map(str, done.left_out)) == ["x, lacks: no X"]


# ---- the table ----------------------------------------------------------------------


def test_row_is_what_the_rounds_say() -> None:
    row, other = outcome.from_json(measured(3)).rows
    assert (row.bench, row.against, other.against) == ("fakes", "rival", "other")
    assert row.ratios == (2.0, 2.0, 2.0)
    assert row.cpu_ratios == (0.5, 0.5, 0.5)
    assert summary.cells(row) == (
        f"messages of 1 MB: {OURS}",
        "rival",
        "2.00",
        "2.00 to 2.00",
        "0.50",
        "1,000 messages/s",
    )
    in_bytes = replace(row, unit="GB", rate=1.0, ratios=(10.04,), cpu_ratios=())
    assert summary.cells(in_bytes)[2:] == ("10.0", "", "", "1.00 GB/s")
    rates = {9_999: "9,999", 12_345: "12.3 k", 960_471: "960 k", 2_814_547: "2.81 M"}
    for rate, text in rates.items():
        assert summary.rate(replace(row, rate=rate)) == f"{text} messages/s"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.004, "0.00"),
        (9.994, "9.99"),
        (9.996, "10.0"),
        (99.96, "100"),
        (1234, "1,234"),
    ],
)
def test_number_has_the_digits_that_count(value: float, text: str) -> None:
    assert summary.number(value) == text


def test_results_are_the_same_when_they_are_read_again() -> None:
    told = measured()
    assert outcome.parse(json.dumps(told)) == outcome.from_json(told)
    told["left_out"] = [{"bench": "a", "what": "", "why": "c"}]
    assert outcome.parse(json.dumps(told)).left_out == [Missed("a", "", "c")]


def spoilt(change: Callable[[dict[str, Any]], object]) -> str:
    told = json.loads(json.dumps(measured()))
    change(told)
    return json.dumps(told)


FOREIGN = {
    "empty": "",
    "text": "hello",
    "list": "[]",
    "number": "3",
    "deep": "[" * 100_000,
    "no date": spoilt(lambda told: told["machine"].update(date="today")),
    "no races": spoilt(lambda told: told.pop("races")),
    "no machine": spoilt(lambda told: told.update(machine=None)),
    "no round": spoilt(lambda t: t["races"][0]["comparisons"][0].update(ratios=[])),
    "zero": spoilt(lambda t: t["races"][0]["comparisons"][0].update(ratios=[0])),
    "nan": spoilt(lambda t: t["races"][0]["comparisons"][0].update(rate=float("nan"))),
    "words": spoilt(lambda t: t["races"][0]["comparisons"][0].update(ratios=["1"])),
    "title": spoilt(lambda t: t["races"][0].update(title=7)),
}


@pytest.mark.parametrize("text", FOREIGN.values(), ids=FOREIGN)
def test_foreign_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=outcome.FOREIGN):
        outcome.parse(text)


GROUPS = summary.groups(outcome.from_json(measured()).rows)


@pytest.mark.parametrize("columns", [30, 40, 80, 200])
def test_table_fits(columns: int) -> None:
    lines = tables.lines(summary.HEADER, GROUPS, columns)
    assert max(map(len, lines)) <= columns
    assert "\N{NO-BREAK SPACE}" not in "".join(lines)
    text = " ".join(" ".join(lines).split())
    assert text.count(f"messages of 1 MB: {OURS}") == 1  # said once, above both rivals
    if columns == 30:  # a line ends between two of them, not in one
        assert "    range 2.00 to 2.00," in lines
    if columns < 80:
        assert "against rival ratio 2.00, range 2.00 to 2.00, CPU 0.50, our" in text
    else:
        assert "rival 2.00 2.00 to 2.00 0.50 1,000 messages/s other 0.50 " in text


def test_columns_are_aligned() -> None:
    lines = tables.lines(summary.HEADER, GROUPS, 80)
    header, rival, other = (
        next(line for line in lines if word in line)
        for word in ("against", "rival ", "other ")
    )
    ends = [line.index(cell) + 4 for line, cell in ((rival, "2.00"), (other, "0.50"))]
    assert ends == [header.index("ratio") + 5] * 2
    assert len(rival) == len(other) == len(header)


def test_table_has_every_cell(capsys: pytest.CaptureFixture[str]) -> None:
    tables.show(summary.HEADER, GROUPS)
    text = capsys.readouterr().out
    cells = {cell for _, rows in GROUPS for row in rows for cell in row}
    assert [cell for cell in cells if cell not in text] == []
    assert max(map(len, text.splitlines())) <= tables.TO_A_FILE


def test_markdown_names_machine_rivals_and_what_is_missing() -> None:
    told = outcome.from_json(measured())
    told = replace(told, left_out=[Missed("ring", "Spam", "it is no more")])
    text = summary.markdown(told)
    assert text.startswith("2026-11-23: 2 CPUs (A Processor), Linux 6.18.5 x86_64, ")
    assert "\n- left out: ring, Spam: it is no more\n" in text
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert {line.count("|") for line in rows} == {len(summary.HEADER) + 1}
    busy = replace(told, machine=FACTS | {"load": 1.5})
    assert "2026-11-23, beside other work: " in summary.markdown(busy)


# ---- the command --------------------------------------------------------------------


@pytest.fixture
def fakes(no_benches: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def races(lab: Lab, options: Options) -> Iterator[Race]:
        yield easy_race("one")
        yield easy_race("two")

    add_bench(monkeypatch, "fakes", races)


def test_command_shows_and_writes_it_all(
    fakes: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept, table = tmp_path / "results.json", tmp_path / "table.md"
    assert bench.main(["--json", str(kept), "--markdown", str(table)]) == 0
    said = capsys.readouterr()
    assert f"two: {OURS}" in said.out
    assert summary.LEGEND in said.out
    assert [line.partition(" (")[0] for line in said.err.splitlines()] == [
        "1/2 fakes: one",
        "2/2 fakes: two",
    ]
    told = outcome.parse(kept.read_text())
    assert len(told.rows[0].ratios) == everything.ROUNDS
    assert table.read_text() == summary.markdown(told)
    assert bench.main(["--from", str(kept)]) == 0
    assert capsys.readouterr().out == said.out


def test_json_alone_goes_to_stdout(
    fakes: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.main(["--quick", "--only", "two", "--json"]) == 0
    told = outcome.parse(capsys.readouterr().out)
    assert [(row.title, len(row.ratios)) for row in told.rows] == [("two", 1)] * 2


def test_failure_is_shown_and_is_the_exit_status(
    fakes: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def races(lab: Lab, options: Options) -> Iterator[Race]:
        error = racing.WrongBytes("ours: the first wrong one is number 7")
        yield fake_race("bad", Fake("ours", error=error), Fake("a"))

    add_bench(monkeypatch, "worse", races)
    assert bench.main(["--quick"]) == 1
    said = capsys.readouterr().out
    assert f"two: {OURS}" in said
    assert "failed: worse, bad: WrongBytes: ours: the first wrong one is " in said


def test_ctrl_c_shows_what_has_been_measured(
    fakes: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def races(lab: Lab, options: Options) -> Iterator[Race]:
        yield fake_race("bad", Fake("ours", error=KeyboardInterrupt()), Fake("a"))

    add_bench(monkeypatch, "worse", races)
    assert ending.ended("aiozerocopy bench", lambda: bench.main([])) == 130
    said = capsys.readouterr()
    assert f"two: {OURS}" in said.out
    assert said.err.endswith("aiozerocopy bench: interrupted: 2 of 3 races\n")


def test_every_bench_has_a_headline_and_they_are_told_apart(lab: Lab) -> None:
    """Each names contestants that there are; the README's few are among them."""
    found = [
        race for name in bench.BENCHES for race in all_of(name, lab) if race.headlines
    ]
    if not any(race.bench in ("encode", "dask", "render", "capture") for race in found):
        pytest.skip("too much is not installed")
    rows = [(race, one) for race in found for one in race.headlines]
    keys = {(race.title, one.ours, *one.rivals) for race, one in rows}
    assert len(keys) == len(rows)
    assert len({(one.work, one.against or one.rivals[0]) for _, one in rows}) == len(
        rows
    )
    for race, headline in rows:
        field = [*race.contestants, *race.candidates]
        names = {one.name for one in field}
        assert {headline.ours, *headline.rivals} <= names
        for unit in (race.work.buffers, race.count or 1):
            brief = racing.in_brief(race).work.messages
            assert not brief % unit or race.work.messages % unit
    assert 3 <= sum(one.front for _, one in rows) <= 5


def all_of(name: str, lab: Lab) -> list[Race]:
    """As far as they can run here."""
    found: list[Race] = []
    with contextlib.suppress(Lacking, ModuleNotFoundError):
        found.extend(everything.gather(name, lab, Options()))
    return found


@pytest.mark.slow
@pytest.mark.timeout(400)  # some dozens of processes, a few at a time
def test_all_benches_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = tmp_path / "results.json"
    assert bench.main(["--quick", "--json", str(kept)]) == 0
    told = outcome.parse(kept.read_text())
    left_out = {one.bench for one in told.left_out}
    assert {*bench.BENCHES} - {row.bench for row in told.rows} <= left_out
    out = capsys.readouterr().out
    assert all(one.why in out for one in told.left_out)
