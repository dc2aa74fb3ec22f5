"""`bench --compare`: what has changed beyond noise."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from fake_races import FACTS, measured

from aiozerocopy.bench import changes, outcome
from aiozerocopy.commands import bench

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from aiozerocopy.bench.outcome import Outcome, Row


NOW = outcome.from_json(measured())
ROW = NOW.rows[0]


def of(*ratios: float, cpu: Sequence[float] = (), **more: Any) -> Row:
    return replace(ROW, ratios=ratios, cpu_ratios=tuple(cpu), **more)


STEADY = (1.0, 1.01, 1.02, 1.03, 1.04)


@pytest.mark.parametrize(
    ("then", "now", "said"),
    [
        (of(*STEADY), of(*STEADY), "the same"),
        (of(*STEADY), of(*(1.2 * one for one in STEADY)), "faster"),
        (of(*STEADY), of(*(0.8 * one for one in STEADY)), "slower"),
        # All of them are greater, but not by so much that it means anything.
        (of(*STEADY), of(*(1.045 * one for one in STEADY)), "the same"),
        # The median is greater, but in one round of five it was less.
        (of(*STEADY), of(0.9, 1.3, 1.3, 1.4, 1.4), "the same"),
        (of(*STEADY[:4]), of(*(9 * one for one in STEADY)), changes.TOO_FEW),
        (of(1.0), of(1.0), changes.TOO_FEW),
        (
            of(*STEADY, cpu=STEADY),
            of(*STEADY, cpu=[2 * one for one in STEADY]),
            "more CPU",
        ),
        (
            of(*STEADY, cpu=STEADY),
            of(*(2 * one for one in STEADY), cpu=[0.5 * one for one in STEADY]),
            "faster, less CPU",
        ),
        (of(*STEADY, messages=1), of(*STEADY), "other work"),
        (of(*STEADY, against="Spam"), of(*STEADY), "other rival"),
    ],
)
def test_what_is_said_of_a_row(then: Row, now: Row, said: str) -> None:
    assert changes.verdict(then, now) == said


@pytest.mark.parametrize(("m", "n"), [(1, 1), (2, 3), (5, 5), (4, 7)])
def test_ways_are_those_of_all_orders(m: int, n: int) -> None:
    counted = [0] * (m * n + 1)
    for places in itertools.combinations(range(m + n), m):
        others = [place for place in range(m + n) if place not in places]
        counted[sum(a < b for a in places for b in others)] += 1
    assert changes.ways_of(m, n) == counted
    assert sum(counted) == math.comb(m + n, m)


def test_chance_is_that_of_ranks() -> None:
    assert changes.chance([1, 2, 3, 4, 5], [6, 7, 8, 9, 10]) == pytest.approx(2 / 252)
    assert changes.chance([6, 7, 8, 9, 10], [1, 2, 3, 4, 5]) == pytest.approx(2 / 252)
    assert changes.chance([1, 4], [2, 3]) == 1.0
    assert changes.chance([1, 1, 1], [1, 1, 1]) == 1.0


def test_noise_is_rarely_called_a_change() -> None:
    """One kind of numbers, parted in every way into two runs of five rounds."""
    values = [1.0, 1.5, 2.2, 3.4, 5.1, 7.6, 11.4, 17.1, 25.6, 38.4]
    found = []
    for places in itertools.combinations(range(10), 5):
        then = [values[place] for place in places]
        now = [values[place] for place in range(10) if place not in places]
        found.append(changes.direction(then, now))
    assert None not in found
    assert sum(map(bool, found)) / len(found) <= changes.RARE


def test_other_machines_and_rows_are_named() -> None:
    other = FACTS | {"cpu": "Another", "versions": {"mss": "10"}}
    then = replace(NOW, machine=other, rows=[replace(ROW, title="gone"), *NOW.rows[1:]])
    assert changes.elsewhere(then.machine, NOW.machine) == [
        "CPU: Another then, A Processor now",
        "mss: 10 then, not installed now",
        "uvloop: not installed then, 0.23.0 now",
    ]
    assert changes.unpaired(then, NOW) == [
        f"only then: {ROW.work}",
        f"only now: {ROW.work}",
    ]
    elsewhere = [replace(row, bench="another") for row in then.rows]
    assert changes.unpaired(replace(then, rows=elsewhere), NOW) == []


def keep(path: Path, factor: float) -> str:
    """A file of results in which we were so much faster."""
    told = measured()
    for race in told["races"]:
        for comparison in race["comparisons"]:
            comparison["ratios"] = [factor * one for one in comparison["ratios"]]
    path.write_text(json.dumps(told))
    return str(path)


@pytest.mark.parametrize(
    ("factor", "words", "status"),
    [
        (1.0, "the same", 0),
        (2.0, "slower", 1),
        (0.5, "faster", 0),
    ],
)
def test_command_compares(
    factor: float,
    words: str,
    status: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    then, now = keep(tmp_path / "then.json", factor), keep(tmp_path / "now.json", 1.0)
    asked = ["--from", now, "--compare", then]
    assert bench.main(asked) == 0
    said = capsys.readouterr().out
    assert "Since 2026-11-23:" in said
    table = said.partition("Since")[2].replace(changes.LEGEND, "")
    assert table.count(words) == 2
    assert bench.main([*asked, "--fail-if-slower"]) == status


def test_single_bench_is_compared_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told: Outcome = outcome.parse(
        (tmp_path / keep(tmp_path / "a.json", 1.0)).read_text()
    )
    assert [change.said for change in changes.show(told, told)] == ["the same"] * 2
