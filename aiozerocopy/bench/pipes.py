"""Raw video frames to a child that reads its stdin in pieces, as FFmpeg does."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from aiozerocopy.bench.feeding import LOOPS, Feeder, in_c, in_python, pipe_link
from aiozerocopy.bench.kit import Goal, Options, Race, Work

if TYPE_CHECKING:
    from aiozerocopy.bench.feeding import Lab

KIB, MIB = 1 << 10, 1 << 20
FRAME = 1920 * 1080 * 3
READS = (32 * KIB, 256 * KIB, MIB)
CHUNKS = (4 * KIB, 8 * KIB, 16 * KIB, 64 * KIB, 0)
PIPES = (64 * KIB, 256 * KIB, MIB)


def races(lab: Lab, options: Options) -> list[Race]:
    return [
        feed_child(lab, options, read) for read in READS[: 1 if options.quick else 3]
    ]


def feed_child(lab: Lab, options: Options, read_size: int) -> Race:
    feeder = partial(Feeder, lab=lab, read_size=read_size)
    ours = [
        feeder(f"open_process, {name}, {loop}", command=command, link=None, needs=needs)
        for loop, needs in LOOPS
        for name, command in (
            ("send", in_python("send", loop)),
            ("put 3 in flight", in_python("put", loop, in_flight=3)),
        )
    ]
    peers = [
        feeder(
            f"{loop} child stdin, write+drain",
            command=in_python("child_write_and_drain", loop),
            link=None,
            needs=needs,
        )
        for loop, needs in LOOPS
    ]
    in_turn = [
        feeder(
            f"C write of {size_name(chunk)}, {size_name(pipe)} pipe",
            command=in_c(chunk),
            link=pipe_link(pipe),
        )
        for chunk in (CHUNKS[1:2] if options.quick else CHUNKS)
        for pipe in (PIPES[::2] if options.quick else PIPES)
    ]
    # What the C loop loses by a pause, by an event loop's turn after each frame, and
    # by an event loop beside it, as there is with put.
    disturbed = [
        feeder(
            f"C write of 8 KiB, {what}",
            command=in_c(8 * KIB, **disturbance),
            link=pipe_link(MIB),
        )
        for what, disturbance in (
            ("paused each 64 KiB", {"pause": 64 * KIB}),
            ("a turn of 20 us", {"turn": 20}),
            ("a thread of 60 us", {"thread": 60}),
        )
    ]
    bests = [rival.name for rival in in_turn]
    goals = [
        *(Goal("pipe", one.name, bests, 0.9) for one in ours),
        *(Goal("pipe", one.name, bests) for one in disturbed),
        *(Goal("pipe", one.name, [peer.name for peer in peers]) for one in ours),
    ]
    frames = 4 if options.quick else 250
    work = Work(FRAME, frames, warm=4 if options.quick else 20, buffers=4)
    title = f"1080p rgb24 frames, read {size_name(read_size)} at a time"
    return Race(title, work, [*ours, *peers, *disturbed], goals, candidates=in_turn)


def size_name(n: int) -> str:
    if n == 0:
        return "whole frames"
    return f"{n >> 20} MiB" if n >= MIB else f"{n >> 10} KiB"
