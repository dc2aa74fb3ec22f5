"""Raw video frames to a child that reads its stdin in pieces, as FFmpeg does.

The rate of a pipe depends on the pages and cores that its two processes happened to
get: the same loop in C, started again, may be twice as fast.
"""

from collections.abc import Iterator
from functools import partial

from bench.feeding import LOOPS, fed, in_c, in_loops, pipe_link
from bench.processes import Lab
from bench.race import Duel, Race, Work, best_of
from bench.sockets import send, write_and_drain

KIB = 1 << 10
FRAME = 1920 * 1080 * 3
READ_SIZE = 32 * KIB
SIZES = (64 * KIB, 256 * KIB, 1024 * KIB)  # of a pipe: the best one differs
SEND = "open_process, send"


def races(lab: Lab, quick: bool) -> Iterator[Race]:
    ways = {f"{SEND}, {{}}": send, "{} child stdin, write+drain": write_and_drain}
    in_python = in_loops(lab, None, ways, read_size=READ_SIZE)
    in_c_too = [
        fed(
            lab,
            f"C loop of write, {size // KIB} KiB pipe",
            partial(pipe_link, size),
            partial(in_c, lab),
            read_size=READ_SIZE,
        )
        for size in SIZES
    ]
    what = "1080p frames to a child's stdin: await send"
    yield Race(
        "pipes",
        "1080p rgb24 frames, read 32 KiB at a time",
        Work(FRAME, 4 if quick else 60, warm=20, buffers=4),
        [*in_python, *in_c_too],
        [
            *(
                Duel(f"{SEND}, {loop}", rival, what, f"{loop} write + drain", "frames")
                for loop in LOOPS
                for rival in [f"{loop} child stdin, write+drain"]
            ),
            *(
                best_of(f"{SEND}, {loop}", in_c_too, what, unit="frames")
                for loop in LOOPS
            ),
        ],
    )
