"""Races whose contestants do nothing, and take as long as they are told."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from aiozerocopy.bench import racing
from aiozerocopy.bench.everything import Everything
from aiozerocopy.bench.racing import Headline, Options, Race, Run, Work

if TYPE_CHECKING:
    from collections.abc import Sequence

WORK = Work(size=1_000_000, messages=1000, warm=0, buffers=1)  # 1 GB
FACTS = {
    "date": "2026-11-23T07:00:00+00:00",
    "python": "3.13.0",
    "system": "Linux 6.18.5 x86_64",
    "cpu": "A Processor",
    "cpus": 2,
    "load": 0.1,
    "versions": {"uvloop": "0.23.0"},
}
OURS = "await send"


class Clock:
    """Time that passes only while somebody works."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


class Fake:
    """A contestant that needs so many seconds for its work, and fewer of CPU."""

    def __init__(
        self,
        name: str,
        seconds: float = 1.0,
        needs: Sequence[str] = (),
        error: BaseException | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.name = name
        self.needs = needs
        self.seconds = seconds
        self.error = error
        self.clock = clock or Clock()
        self.ran = 0

    def run(self, work: Work, check: bool) -> Run:
        if self.error is not None:
            raise self.error
        self.ran += 1
        self.clock.now += self.seconds
        return Run(self.seconds, self.seconds / 2, 0.1, None)

    def count_calls(self, work: Work) -> float | None:
        raise AssertionError("nobody has time for that")


def fake_race(title: str, ours: Fake, *rivals: Fake, **more: Any) -> Race:
    headlines = [
        Headline(ours.name, [rival.name], work=f"{title}: {OURS}", unit="messages")
        for rival in rivals
    ]
    return Race(title, WORK, [ours, *rivals], [], headlines=headlines, **more)


def easy_race(title: str = "easy") -> Race:
    return fake_race(title, Fake("ours"), Fake("rival", 2.0), Fake("other", 0.5))


def silent(number: int, race: Race, what: str) -> None:
    """Nobody looks."""


def measured(rounds: int = 5, **more: Any) -> dict[str, Any]:
    """The JSON of a race, in which we are twice and half as fast."""
    race = replace(easy_race("messages of 1 MB"), bench="fakes", **more)
    done = Everything(FACTS)
    done.run([racing.in_brief(race)], Options(rounds=rounds), silent)
    return done.as_json()
