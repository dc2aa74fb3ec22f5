"""The screen of an X server as pictures in memory, beside python-mss.

All contestants of a race take pictures of the same Xvfb, one after the other, as fast
as they can; none does anything with them.  The X server's CPU time counts too, since it
is the server that copies: in the table it is in the receiver's column.
"""

from __future__ import annotations

import contextlib
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aiozerocopy.bench.feeding import Crew
from aiozerocopy.bench.network import command
from aiozerocopy.bench.racing import (
    Comparison,
    Headline,
    Options,
    Race,
    Run,
    Work,
    need,
)
from aiozerocopy.bench.xvfb import Server, x_server

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from aiozerocopy.bench.feeding import Lab
    from aiozerocopy.bench.racing import Entry

SIZES = {"1080p": (1920, 1080), "2160p": (3840, 2160)}
TINY = {"90p": (160, 90)}
_BYTES = 3_000_000_000  # in one round
_WARM = 8  # pictures: every slot was written to once
_CHECKED = 10  # pictures, in the round that checks


def races(lab: Lab, options: Options) -> Iterator[Race]:
    need("numpy")
    for name, size in (TINY if options.quick else SIZES).items():
        yield race(lab, options, name, size)


def race(lab: Lab, options: Options, name: str, size: tuple[int, int]) -> Race:
    nbytes = size[0] * size[1] * 4
    pictures = _CHECKED if options.quick else _BYTES // nbytes
    work = Work(nbytes, pictures, _WARM, buffers=1)
    server = XServer(lab, size)
    ours = [
        Camera("X11Screen", server, lab, "grab"),
        Camera("X11Screen, uvloop", server, lab, "grab", "uvloop", ("uvloop",)),
        Camera("X11Screen, damage", server, lab, "damage"),
    ]
    theirs = [
        Camera("mss", server, lab, "mss", needs=("mss",)),
        Camera("mss in a thread", server, lab, "mss_in_thread", needs=("mss",)),
    ]
    comparisons = [
        Comparison(one.name, [rival.name], cpu_of_both=True, other="the X server")
        for one in ours
        for rival in theirs
    ]
    title = f"{name} screen, a window moves"
    headlines = [
        Headline(
            way,
            ["mss"],
            cpu_of_both=True,
            work=f"pictures of a {name} screen{how}",
            against="python-mss",
            unit="pictures",
        )
        for way, how in (("X11Screen", ""), ("X11Screen, damage", ", by damage"))
        if name != "2160p"
    ]
    field = [*ours, *theirs]
    return CaptureRace(title, work, field, comparisons, headlines=headlines, brief=120)


@dataclass(frozen=True)
class CaptureRace(Race):
    def remarks(self, entries: Sequence[Entry]) -> list[str]:
        return [remark(entry) for entry in entries]


def remark(entry: Entry) -> str:
    pictures = entry.work.messages
    ours, theirs = (
        statistics.median(times) / pictures * 1e3
        for times in zip(*((r.sender_cpu, r.sink_cpu) for r in entry.runs), strict=True)
    )
    return (
        f"{entry.name}: {entry.messages_per_second:,.0f} pictures a second, for "
        f"{ours:.2f} ms of CPU each and {theirs:.2f} ms of the X server's"
    )


class XServer:
    """Xvfb, from its first use to the end of the lab."""

    def __init__(self, lab: Lab, size: tuple[int, int]) -> None:
        self._lab = lab
        self.size = size
        self._running: Server | None = None

    def running(self) -> Server:
        if self._running is None:
            stack = contextlib.ExitStack()
            self._running = stack.enter_context(x_server(size=self.size))
            self._lab.at_end(stack.close)
        return self._running


@dataclass(frozen=True)
class Camera:
    """A process that takes pictures in one of the ways of `screens`."""

    name: str
    server: XServer
    lab: Lab
    way: str
    loop: str = "asyncio"
    needs: Sequence[str] = ()

    def run(self, work: Work, check: bool) -> Run:
        server = self.server.running()
        job: dict[str, Any] = {
            "way": self.way,
            "loop": self.loop,
            "display": server.name,
            "server": server.process.pid,
            "size": self.server.size,
            "warm": work.warm,
            "pictures": _CHECKED if check else work.messages,
            "check": check,
        }
        with Crew(self.lab.path / "stderr") as crew:
            crew.start(command("screens", job))
            told = crew.finish()["sender"]
        return Run(told["seconds"], told["cpu"], told["server_cpu"], None)

    def count_calls(self, work: Work) -> float | None:
        """They differ little: a handful for each picture."""
        return None
