"""Raw video frames to a child that reads its stdin in pieces, as FFmpeg does.

Two races for each size of piece: against other libraries, each sender with a child of
its own; and against loops in C, all with the same child (see `one_pipe`).
"""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

from aiozerocopy.bench import one_pipe
from aiozerocopy.bench.feeding import LOOPS, Feeder, in_c, in_python, pipe_link
from aiozerocopy.bench.one_pipe import IN_FLIGHT, Stage, Turn, TurnTaker
from aiozerocopy.bench.racing import Comparison, Headline, Options, Race, Work

if TYPE_CHECKING:
    from aiozerocopy.bench.feeding import Lab

KIB, MIB = 1 << 10, 1 << 20
FRAME = 1920 * 1080 * 3
READS = (32 * KIB, 256 * KIB, MIB)
CHUNKS = (4 * KIB, 8 * KIB, 16 * KIB, 64 * KIB, 0)
PIPES = (64 * KIB, 256 * KIB, MIB)
SEND, PUT = "open_process, send", f"open_process, put {IN_FLIGHT} in flight"
TURNS = 8  # with the same child for each round, since they are short


def races(lab: Lab, options: Options) -> list[Race]:
    loops = [loop for loop, needs in LOOPS if all(map(find_spec, needs))]
    result = []
    for read_size in READS[:1] if options.quick else READS:
        result.append(feed_children(lab, options, read_size))
        if one_pipe.is_possible():
            result += [feed_one_child(lab, options, read_size, loop) for loop in loops]
    return result


def feed_children(lab: Lab, options: Options, read_size: int) -> Race:
    feeder = partial(Feeder, lab=lab, read_size=read_size)
    ours = [
        feeder(f"{name}, {loop}", command=command, link=None, needs=needs)
        for loop, needs in LOOPS
        for name, command in (
            (SEND, in_python("send", loop)),
            (PUT, in_python("put", loop, in_flight=IN_FLIGHT)),
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
    c_loop = feeder(c_name(8 * KIB, MIB), command=in_c(8 * KIB), link=pipe_link(MIB))
    names = [peer.name for peer in peers]
    comparisons = [Comparison(one.name, names) for one in ours]
    messages, warm = (4, 4) if options.quick else (250, 20)
    work = Work(FRAME, messages, warm, buffers=4)
    headlines = [
        Headline(
            f"{SEND}, {loop}",
            [f"{loop} child stdin, write+drain"],
            work="1080p frames to a child's stdin: await send",
            against=f"{loop} write + drain",
            unit="frames",
        )
        for loop, _ in LOOPS
        if read_size == READS[0]
    ]
    return Race(
        title(read_size),
        work,
        [*ours, *peers, c_loop],
        comparisons,
        headlines=headlines,
        brief=60,
    )


def feed_one_child(lab: Lab, options: Options, read_size: int, loop: str) -> Race:
    taker = partial(TurnTaker, stage=Stage(lab, loop, read_size))
    ours = [taker(f"{SEND}, {loop}", how=Turn("send"))]
    ours += [taker(f"{PUT}, {loop}", how=Turn("put"))]
    in_c = [
        taker(c_name(chunk, pipe), how=Turn("write", chunk, pipe))
        for chunk in (CHUNKS[1:2] if options.quick else CHUNKS)
        for pipe in (PIPES[::2] if options.quick else PIPES)
    ]
    names = [one.name for one in in_c]
    comparisons = [Comparison(one.name, names) for one in ours]
    work = Work(FRAME, messages=4 if options.quick else 60, warm=4, buffers=4)
    rounds = 1 if options.quick else TURNS * options.rounds
    name = f"{title(read_size)}, one child for all"
    headline = Headline(
        ours[0].name,
        names,
        work="1080p frames to one child, in turns: await send",
        against="the best C loop of write",
        unit="frames",
    )
    headlines = [headline] if (read_size, loop) == (READS[0], "asyncio") else []
    return Race(name, work, ours, comparisons, in_c, rounds, headlines=headlines)


def title(read_size: int) -> str:
    return f"1080p rgb24 frames, read {size_name(read_size)} at a time"


def c_name(chunk: int, pipe: int) -> str:
    return f"C write of {size_name(chunk)}, {size_name(pipe)} pipe"


def size_name(n: int) -> str:
    if n == 0:
        return "whole frames"
    return f"{n >> 20} MiB" if n >= MIB else f"{n >> 10} KiB"
