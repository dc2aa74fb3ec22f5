"""Results: JSON, and the table."""

import itertools
import json
import os
import platform
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from importlib.metadata import distributions
from typing import Any

from proof.results import processor

from bench.race import Duel, Result, Run

RIVALS = (
    *("uvloop", "turbopipe", "av", "imageio-ffmpeg", "websockets", "aiohttp"),
    *("distributed", "pyzmq", "aiofastnet", "aiortc"),
)
BUSY = 0.5  # of the cores: with more load than that, figures get worse

NO_DIFFERENCE = "no difference shown"
HEADER = ("work", "against", "ratio", "range", "CPU", "our rate")
LEGEND = (
    "ratio: our rate divided by the rival's, measured in turn on the same machine: the "
    "median of the rounds, and their range. Above 1 we are faster; no difference is "
    "shown if the range has 1 in it. CPU: our CPU time for the same bytes divided by "
    "the rival's; below 1 we need less."
)


# ---- the table -----------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A duel, and the ratios of its rounds."""

    result: Result
    duel: Duel

    @property
    def ratios(self) -> list[float]:
        return [b.seconds / a.seconds for a, b in self._pairs()]

    @property
    def cpu_ratios(self) -> list[float]:
        """The ratios of CPU, without rounds that used too little to compare."""
        used = [(self._cpu(a), self._cpu(b)) for a, b in self._pairs()]
        return [a / b for a, b in used if a and b]

    def cells(self) -> tuple[str, ...]:
        ratios, cpu = self.ratios, self.cpu_ratios
        spans = min(ratios) < 1 < max(ratios)
        span = f"{number(min(ratios))} to {number(max(ratios))}"
        return (
            self.duel.work,
            self.duel.against.format(self.duel.rival) or self.duel.rival,
            NO_DIFFERENCE if spans else number(statistics.median(ratios)),
            span if len(ratios) > 1 else "",
            number(statistics.median(cpu)) if cpu else "",
            self._rate(),
        )

    def _pairs(self) -> Iterable[tuple[Run, Run]]:
        runs = self.result.runs
        return zip(runs[self.duel.ours], runs[self.duel.rival], strict=True)

    def _cpu(self, run: Run) -> float:
        return run.cpu + (run.sink_cpu if self.duel.both else 0)

    def _rate(self) -> str:
        """Return our rate, in units a second."""
        unit, result = self.duel.unit, self.result
        amount = result.messages * (result.size / 1e9 if unit == "GB" else 1)
        runs = result.runs[self.duel.ours]
        rate = statistics.median(amount / run.seconds for run in runs)
        for letter, factor in (("M", 1e6), ("k", 1e3)):
            if rate >= max(factor, 10_000):
                return f"{number(rate / factor)} {letter} {unit}/s"
        return f"{number(rate) if unit == 'GB' else f'{rate:,.0f}'} {unit}/s"


def number(value: float) -> str:
    """Return a number with two decimals, with fewer from 10 on."""
    decimals = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:,.{decimals}f}"


def in_text(header: Sequence[str], rows: Sequence[Sequence[str]], words: int) -> str:
    """Lay rows out in columns, the first ``words`` of them aligned to the left."""
    shown = [header, *_without_repeats(rows)]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    lines = (
        [
            cell.ljust(width) if at < words else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        for row in shown
    )
    return "\n".join("  ".join(cells).rstrip() for cells in lines)


def in_markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    rule = ["---", "---", *("--:" for _ in header[2:])]
    shown = [header, rule, *_without_repeats(rows)]
    return "\n".join(f"| {' | '.join(row)} |".replace("|  |", "| |") for row in shown)


def _without_repeats(rows: Sequence[Sequence[str]]) -> list[Sequence[str]]:
    """Name the work only in the first of the rows that are about it."""
    found: list[Sequence[str]] = []
    for _, group in itertools.groupby(rows, key=lambda row: row[0]):
        first, *others = group
        found += [first, *(("", *row[1:]) for row in others)]
    return found


def rates(result: Result) -> str:
    """All contenders of a race, compared or not."""
    gb = result.size * result.messages / 1e9
    header = ["", "GB/s", "messages/s", "CPU s/GB", "other end s/GB"]
    header += next(iter(result.runs.values()))[0].more or {}  # of all, or of none
    rows = []
    for name, runs in result.runs.items():
        columns = zip(*(run[:3] for run in runs), strict=True)
        seconds, cpu, sink_cpu = map(statistics.median, columns)
        row = [name, f"{gb / seconds:.2f}", f"{result.messages / seconds:,.0f}"]
        row += [f"{cpu / gb:.3f}", f"{sink_cpu / gb:.3f}"]
        for more in header[5:]:
            found = ((run.more or {})[more] for run in runs)
            row.append(f"{statistics.median(found):,.2f}")
        rows.append(row)
    rounds = f"medians of {len(runs)} rounds" if len(runs) > 1 else "one round"
    work = f"{result.messages:,} messages of {result.size:,} bytes"
    return f"{result.title}: {work}, {rounds}\n{in_text(header, rows, 1)}"


# ---- all that came out of a run ------------------------------------------------------


@dataclass
class Outcome:
    """What the JSON has."""

    machine: dict[str, Any]
    results: list[Result] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    @property
    def rows(self) -> list[Row]:
        return [Row(result, duel) for result in self.results for duel in result.duels]

    def remarks(self) -> list[str]:
        """Say what is not in the table, and why."""
        said = [f"failed: {one}" for one in self.failed]
        return said + [f"left out: {one}" for one in dict.fromkeys(self.left_out)]

    def text(self) -> str:
        """For a terminal."""
        table = [in_text(HEADER, [row.cells() for row in self.rows], 2)]
        return "\n".join([*(table if self.rows else []), *self.remarks(), LEGEND])

    def markdown(self) -> str:
        """For the page on benchmarks."""
        table = in_markdown(HEADER, [row.cells() for row in self.rows])
        remarks = "\n".join(f"- {line}" for line in self.remarks())
        parts = [sentence(self.machine), LEGEND, table, remarks]
        return "\n\n".join(filter(None, parts)) + "\n"

    def front(self) -> str:
        """For the README: a few rows, without our rate."""
        rows = [row.cells()[:-1] for row in self.rows if row.duel.front]
        return in_markdown(HEADER[:-1], rows)

    def to_json(self) -> str:
        """Return JSON with a line for each race."""
        races = ",\n".join(json.dumps(asdict(one)) for one in self.results)
        text = json.dumps({**vars(self), "results": []}, indent=1)
        return text.replace('"results": []', f'"results": [\n{races}\n]') + "\n"


def from_json(text: str) -> Outcome:
    told = json.loads(text)
    outcome = Outcome(**{**told, "results": []})
    for race in told["results"]:
        duels = [Duel(**{**duel, "among": ()}) for duel in race.pop("duels")]
        runs = race.pop("runs").items()
        each = {name: [Run(*run) for run in some] for name, some in runs}
        outcome.results.append(Result(**race, duels=duels, runs=each))
    return outcome


# ---- the machine ---------------------------------------------------------------------


def machine() -> dict[str, Any]:
    """Return what figures depend on here; call it before the races."""
    installed = {one.metadata["Name"]: one.version for one in distributions()}
    versions = {name: installed.get(name) for name in ("aiozerocopy", *RIVALS)}
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": processor(),
        "cpus": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],  # of the last minute
        "versions": {name: text for name, text in versions.items() if text},
    }


def _busy(machine: dict[str, Any]) -> str:
    is_busy = machine["load"] > BUSY * machine["cpus"]
    return ", beside other work" if is_busy else ""


def sentence(machine: dict[str, Any]) -> str:
    """Everything about the machine in a sentence, without the hour."""
    versions = ", ".join(f"{name} {text}" for name, text in machine["versions"].items())
    cpus = f"{machine['cpus']} CPUs ({machine['cpu']})"
    where = f"{cpus}, {machine['system']}, Python {machine['python']}"
    return f"{machine['date'][:10]}{_busy(machine)}: {where}, {versions}."


def where_and_when(machine: dict[str, Any]) -> str:
    """Return the machine and the month, in half a line."""
    kernel = ".".join(" ".join(machine["system"].split()[:2]).split(".")[:2])
    python = ".".join(machine["python"].split(".")[:2])
    month = datetime.fromisoformat(machine["date"]).strftime("%B %Y")
    cores = f"{machine['cpus']} cores"
    return f"{cores}, {kernel}, Python {python}, {month}{_busy(machine)}"
