"""All benches one after the other, in brief: what makes the summary.

Only races with a headline are in it, with the contestants that it names and less work.
Each race gets an equal part of the time that is left, and has as many rounds as fit.
What cannot run here is left out, and what fails does not end the rest.
"""

from __future__ import annotations

import importlib
import time
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from aiozerocopy._core import extras
from aiozerocopy.bench import outcome
from aiozerocopy.bench.outcome import Missed
from aiozerocopy.bench.racing import (
    Lacking,
    Options,
    how_to_get,
    in_brief,
    missing,
    run_race,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from aiozerocopy.bench.feeding import Lab
    from aiozerocopy.bench.racing import Race, Result, Tell

SECONDS = 570.0  # ten minutes, less what the last race takes too long
ROUNDS = 9
LATE = "there was no time left for it"


@dataclass
class Everything:
    """What has been measured so far."""

    machine: dict[str, Any]
    results: list[Result] = field(default_factory=list)
    left_out: list[Missed] = field(default_factory=list)
    failed: list[Missed] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return outcome.as_json(self.machine, self.results, self.left_out, self.failed)

    def races(self, names: Sequence[str], lab: Lab, options: Options) -> list[Race]:
        """All that have a headline and can run here."""
        return [race for name in names for race in self._of(name, lab, options)]

    def run(
        self,
        races: Sequence[Race],
        options: Options,
        tell: Callable[[int, Race, str], None],
        seconds: float = SECONDS,
    ) -> None:
        """Tell before each step: the number of the race from 0 on, and what it does.

        What would begin too late is left out.
        """
        end = time.monotonic() + seconds
        for number, race in enumerate(races):
            now = time.monotonic()
            if now >= end:
                self._leave_out(Missed(race.bench, race.title, LATE))
                continue
            until = now + (end - now) / (len(races) - number)
            self._run(race, options, partial(tell, number), until)

    def _of(self, name: str, lab: Lab, options: Options) -> Iterator[Race]:
        try:
            for race in gather(name, lab, options):
                if self._has_rivals(race):
                    yield in_brief(race)
        except Exception as error:
            self._note(name, "", error)

    def _run(self, race: Race, options: Options, tell: Tell, until: float) -> None:
        try:
            self.results.append(run_race(race, options, tell, until))
        except Exception as error:
            self._note(race.bench, race.title, error)

    def _has_rivals(self, race: Race) -> bool:
        """Is anything left to compare?  What is not installed is noted."""
        field = in_brief(race).contestants
        absent = {one.name: one.needs for one in field if missing(one)}
        for name, needs in absent.items():
            package = next(one for one in needs if find_spec(one) is None)
            self._leave_out(Missed(race.bench, name, how_to_get(package)))
        names = {one.name for one in [*field, *race.candidates]} - set(absent)
        return any(
            headline.ours in names and names.intersection(headline.rivals)
            for headline in race.headlines
        )

    def _leave_out(self, missed: Missed) -> None:
        if missed not in self.left_out:
            self.left_out.append(missed)

    def _note(self, bench: str, title: str, error: Exception) -> None:
        """A race, or a whole bench, that is not to be."""
        if is_lack(error):
            self._leave_out(Missed(bench, title, str(error)))
        else:
            # (of a process that failed, the last line of its stderr)
            *_, last = str(error).strip().splitlines() or [""]
            why = f"{type(error).__name__}: {last.strip()}"
            self.failed.append(Missed(bench, title, why))


def gather(name: str, lab: Lab, options: Options) -> Iterator[Race]:
    """The races of a bench, until it says that no more can run here."""
    bench = importlib.import_module(f"aiozerocopy.bench.{name}")
    for race in bench.races(lab, options):
        yield replace(race, bench=name)


def is_lack(error: Exception) -> bool:
    """Can it not run here?  Anything else is a failure."""
    if isinstance(error, ModuleNotFoundError):
        return extras.is_foreign(error)
    return isinstance(error, Lacking)
