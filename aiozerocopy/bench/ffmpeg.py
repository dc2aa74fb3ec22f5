"""Raw frames to FFmpeg, which throws them away.

Besides the rates: how long an event loop is held up that renders meanwhile, and whether
the memory of the sender grows.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from aiozerocopy._core.pipe_size import PIPE_SIZE
from aiozerocopy.bench.racing import Comparison, Headline, Options, Race, Work
from aiozerocopy.bench.video import (
    ROOMY,
    FrameRun,
    Video,
    amount,
    contestants,
    counted,
    ffmpegs,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from aiozerocopy.bench.feeding import Lab
    from aiozerocopy.bench.racing import Entry

    Given = Mapping[str, Mapping[str, Any]]  # a contestant's options, by its name

SIZES = {
    "720p": (1280, 720),
    "1080p": (1920, 1080),
    "1440p": (2560, 1440),
    "2160p": (3840, 2160),
}
TINY = {"90p": (160, 90)}
RENDER = 0.002  # seconds that the loop is busy for each frame, in `heartbeat`

# ---- races ---------------------------------------------------------------------------


@dataclass(frozen=True)
class FrameRace(Race):
    """A race whose results are more than rates."""

    told: Callable[[Sequence[Entry]], list[str]] = lambda entries: []

    def remarks(self, entries: Sequence[Entry]) -> list[str]:
        return self.told(entries)


def races(lab: Lab, options: Options) -> Iterator[Race]:
    known = ffmpegs(options)
    for version, ffmpeg in known.items():
        for name, size in (TINY if options.quick else SIZES).items():
            for buffers in (4,) if options.quick else (1, 4):
                title = f"{name}, {counted(buffers)}, FFmpeg {version}"
                video = Video(ffmpeg, size)
                work = amount(options, video, 3_000_000_000, buffers)
                race = to_null(lab, title, video, work)
                # (the summary makes do with the first FFmpeg)
                is_first = ffmpeg == next(iter(known.values()))
                yield replace(
                    race, headlines=headlines(name, buffers, version) * is_first
                )
    for version, ffmpeg in known.items():
        name, size = [*(TINY if options.quick else SIZES).items()][-1]
        video = Video(ffmpeg, size)
        yield heartbeat(
            lab,
            f"{name}, 2 ms of rendering a frame, FFmpeg {version}",
            video,
            amount(options, video, 6_000_000_000, 4),
        )
    video = Video(ffmpeg, TINY["90p"] if options.quick else SIZES["1080p"])
    work = amount(options, video, 10_000_000_000, 4)
    yield memory_over(lab, f"memory over {work.gigabytes:.3g} GB", video, work)


UVLOOP: Mapping[str, Any] = {"loop": "uvloop", "needs": ("uvloop",)}
PEER: Mapping[str, Any] = {
    "way": "turbopipe",
    "options": {"module": "turbopipe"},
    "needs": ("turbopipe",),
}
TUNED: Mapping[str, Any] = {
    **PEER,
    "options": {"module": "turbopipe", "pipe_size": PIPE_SIZE},
}
COMPATIBLE: Mapping[str, Any] = {
    "way": "turbopipe",
    "options": {"module": "aiozerocopy.compat.turbopipe"},
}


def to_null(lab: Lab, title: str, video: Video, work: Work) -> Race:
    ours: Given = {
        "put, asyncio": {"way": "put"},
        "put, uvloop": {"way": "put", **UVLOOP},
        "send, asyncio": {"way": "send"},
        "put, asyncio, copied": {"way": "put", "options": {"peer": "unknown"}},
        "compat.turbopipe": COMPATIBLE,
    }
    limit: Given = {"C vmsplice, huge pages": {"way": "vmsplice"}}
    tuned: Given = {"TurboPipe, our pipe and environment": TUNED}
    plain: Given = {
        "TurboPipe": PEER,
        "stdin.write(buffer.read())": {"way": "write"},
        "asyncio stdin, write+drain": {"way": "write_and_drain"},
        "uvloop stdin, write+drain": {"way": "write_and_drain", **UVLOOP},
    }
    comparisons = [
        Comparison(one, [rival])
        for one in ("put, asyncio", "send, asyncio")
        for rival in (*limit, *tuned, *plain)
    ]
    comparisons += [
        Comparison(one, ["TurboPipe"])
        for one in ("put, uvloop", "put, asyncio, copied", "compat.turbopipe")
    ]
    field = [
        *contestants(lab, video, {**ours, **limit, **tuned}, environment=ROOMY),
        *contestants(lab, video, plain),
    ]
    return Race(title, work, field, comparisons, brief=60)


def headlines(name: str, buffers: int, version: str) -> list[Headline]:
    """What is in the summary of the races of that size with so many buffers."""
    headline = partial(Headline, "put, asyncio", unit="frames")
    work = f"{name} frames into FFmpeg {version}: put, {counted(buffers)}"
    others = {
        "TurboPipe": "TurboPipe",
        "uvloop stdin, write+drain": "uvloop's child stdin",
        "stdin.write(buffer.read())": "stdin.write(buffer.read())",
    }
    in_c = headline(["C vmsplice, huge pages"], work=work, against="C loop of vmsplice")
    first = "TurboPipe" if name != "2160p" else ""
    all_of_them = [
        headline([rival], work=work, against=against, front=rival == first)
        for rival, against in others.items()
    ]
    return {
        ("1080p", 4): [*all_of_them, in_c],
        ("90p", 4): [*all_of_them, in_c],  # for a quick look
        ("1080p", 1): [in_c],
        ("2160p", 4): all_of_them[:2],
    }.get((name, buffers), [])


def heartbeat(lab: Lab, title: str, video: Video, work: Work) -> Race:
    """How long a program's event loop is held up while frames go out at full rate."""
    rendering: Given = {
        "put, asyncio": {"way": "put", "environment": ROOMY},
        "put, uvloop": {"way": "put", "environment": ROOMY, **UVLOOP},
        "TurboPipe": PEER,
        "uvloop stdin, write+drain": {"way": "write_and_drain", **UVLOOP},
        "renders only": {"way": "nothing"},
    }
    sending: Given = {"sends only": {"way": "put", "environment": ROOMY}}
    field = [
        *contestants(lab, video, rendering, render=RENDER),
        *contestants(lab, video, sending),
    ]
    comparisons = [
        Comparison(one, [rival])
        for one in ("put, asyncio", "put, uvloop")
        for rival in ("TurboPipe", "uvloop stdin, write+drain")
    ]
    return FrameRace(title, work, field, comparisons, told=of_heartbeats)


def of_heartbeats(entries: Sequence[Entry]) -> list[str]:
    """How long the loop was held up, and whether rendering and sending overlapped."""
    gaps = {entry.name: gap for entry in entries if (gap := gap_of(entry)) is not None}
    told = [
        f"{name}: the event loop is held up for {gap * 1e3:.2f} ms at most, "
        "99 times of 100"
        for name, gap in gaps.items()
    ]
    rate = {entry.name: entry.messages_per_second for entry in entries}
    slower = min(rate["renders only"], rate["sends only"])
    told += [
        f"{name}: {rate[name] / slower:.2f} times the rate of the slower of rendering "
        "and sending alone"
        for name in gaps
        if name != "renders only"
    ]
    return told


def gap_of(entry: Entry) -> float | None:
    gaps = [
        run.gap
        for run in entry.runs
        if isinstance(run, FrameRun) and run.gap is not None
    ]
    return statistics.median(gaps) if gaps else None


def memory_over(lab: Lab, title: str, video: Video, work: Work) -> Race:
    given: Given = {
        "put, asyncio": {"way": "put", "environment": ROOMY},
        "send, asyncio": {"way": "send", "environment": ROOMY},
        "TurboPipe": PEER,
        "uvloop stdin, write+drain": {"way": "write_and_drain", **UVLOOP},
    }
    comparisons = [
        Comparison(one, ["TurboPipe"]) for one in ("put, asyncio", "send, asyncio")
    ]
    field = contestants(lab, video, given)
    return FrameRace(title, work, field, comparisons, told=of_memory)


def of_memory(entries: Sequence[Entry]) -> list[str]:
    told = []
    for entry in entries:
        grown = [run.growth for run in entry.runs if isinstance(run, FrameRun)]
        most = max((n for n in grown if n is not None), default=0)
        told.append(f"{entry.name}: memory grew by {most / 1e6:.1f} MB")
    return told
