"""A source of pictures, and those who watch it: how old is what they see?

The source's process notes when it published each picture, and starts processes that
watch.  These note by the same clock when each picture was painted in a browser, or came
to a viewer in Python, and report it when their stdin ends.  Each picture has its number
in it, as black and white blocks that survive every codec: so one script sees what any
page has painted, whichever way it came.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from bench.far_link import back_at, carried
from bench.processes import ENVIRONMENT, worker
from bench.race import WrongBytes
from bench.worker import Job

FPS, BITS, GRAIN = 30, 16, 8
SETTLING, TRAILING = 2.0, 0.5  # seconds before and after the pictures that count
ACKNOWLEDGE = 0.04  # seconds between a viewer's acknowledgements, as the page's
OFF_BEAT = 1.01  # so that in every run the display takes pictures early and late
NEW, LATEST = 150.0, 2000.0  # ms: a new picture's age, and when it must have come

# Notes each number that the page shows, when the display takes the page.
PIXELS = f"""(() => {{
    const context = new OffscreenCanvas({BITS}, 1).getContext("2d", {{
        willReadFrequently: true
    }});
    context.imageSmoothingEnabled = false;
    self.seen = [];
    const look = () => {{
        const from = document.querySelector("#picture, img, video");
        const width = from.videoWidth || from.naturalWidth || from.width;
        const side = Math.floor(width / {BITS});
        if (!side || from.hidden) return;
        context.drawImage(from, 0, 0, side * {BITS}, side, 0, 0, {BITS}, 1);
        const pixels = context.getImageData(0, 0, {BITS}, 1).data;
        let number = 0;
        for (let bit = 0; bit < {BITS}; bit += 1)
            if (pixels[4 * bit + 1] > 127) number += 1 << bit;
        if (pixels[3] && number !== seen.at(-1)?.[0])
            seen.push([number, performance.timeOrigin + performance.now()]);
    }};
    const drawn = new MessageChannel(); // whose messages come after all is drawn
    drawn.port1.onmessage = look;
    const draw = () => {{ drawn.port2.postMessage(0); requestAnimationFrame(draw); }};
    draw();
}})()"""
# Notes each picture when our page counts it: as soon as it has painted it.
COUNTED = """(() => {
    const { numbers } = viewer;
    const { show } = numbers;
    self.seen = [];
    numbers.show = (header) => {
        if (header.sequence !== numbers.last)
            seen.push([header.sequence, performance.timeOrigin + performance.now()]);
        show.call(numbers, header);
    };
})()"""


class Source:
    """Pictures that move, with so much grain that encoders use all their bits."""

    def __init__(self, job: Job) -> None:
        import numpy

        self.job = job
        self.published: list[float] = []  # when each picture was (ms)
        noise, shape = numpy.random.default_rng(1), job.shape
        self._pictures = [
            (wave // 2 + 64 + noise.integers(-GRAIN, GRAIN, shape, "i1")).astype("u1")
            for wave in numpy.fromfile(job.pictures, "u1").reshape(-1, *shape)
        ]

    def draw(self, picture: Any = None) -> Any:
        """Draw the next picture (into `picture` if given), and note when it was."""
        number = len(self.published)
        plain = self._pictures[number % len(self._pictures)]
        if picture is None:
            picture = plain.copy()
        else:
            picture[:] = plain
        side = picture.shape[1] // BITS
        for bit in range(BITS):
            picture[:side, bit * side : (bit + 1) * side] = 255 * (number >> bit & 1)
        self.published.append(time.time() * 1e3)
        return picture

    async def _publish(self, publish: Callable[[], Awaitable[object]]) -> None:
        due = time.perf_counter()
        while True:
            await publish()
            due = max(due + OFF_BEAT / FPS, time.perf_counter() - 1)
            await asyncio.sleep(max(0.0, due - time.perf_counter()))

    async def watched(
        self, publish: Callable[[], Awaitable[object]], **watchers: Awaitable[Any]
    ) -> dict[str, Any]:
        """Publish while the watchers' processes run; return what they saw."""
        from links import cut_short

        async with cut_short(self._publish, publish):
            started = {name: await start for name, start in watchers.items()}
            for one in started.values():
                if not await one.stdout.readline():
                    raise ChildProcessError("a watching process saw no picture")
            await asyncio.sleep(SETTLING)
            theirs = {one.pid for one in started.values()}
            begin, first = costs(theirs), len(self.published)
            self.job.begin()
            await asyncio.sleep(self.job.messages / FPS)
            self.job.end()
            end, last = costs(theirs), len(self.published)
            await asyncio.sleep(TRAILING)
        found = {}
        for name, one in started.items():
            told, _ = await one.communicate()
            found[name] = self._found(json.loads(told), range(first, last))
        encoders, sinks = (b - a for a, b in zip(begin, end, strict=True))
        return {"encoders": encoders, "sinks": sinks, **found}

    def _found(self, told: dict[str, Any], numbers: range) -> dict[str, Any]:
        """What one process has seen of the pictures with these numbers."""
        published, ages = self.published, []
        for number, when in told["seen"]:
            if number >= len(published) or when < published[number]:
                raise WrongBytes(f"picture {number} was seen before it was published")
            if number in numbers:
                ages.append((when, when - published[number]))
        if not ages:
            raise WrongBytes("no picture was seen in time")
        every = sorted(age for _, age in ages)
        begin, end = (published[numbers[at]] for at in (0, -1))
        figures = {
            "p50 ms": every[len(every) // 2],
            "p95 ms": every[len(every) * 95 // 100],
            "max ms": every[-1],
            "pictures/s": 1e3 * len(ages) / told["viewers"] / (end - begin),
            "seen %": 100 * len(ages) / told["viewers"] / len(numbers),
        }
        back = sorted({back_at(published[number] / 1e3) * 1e3 for number in numbers})
        silences = [
            min((when for when, age in ages if when >= at and age < NEW), default=end)
            - at
            for at in back
            if begin < at < end - LATEST
        ]
        return {"figures": figures, "waited": told.get("waited"), "back": silences}


def children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def cpu_of(pid: int) -> float:
    """CPU seconds of a process, and of all that it has started."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
        return ticks + sum(map(cpu_of, children(pid)))
    except FileNotFoundError:  # it has ended just now
        return 0.0


def costs(theirs: set[int]) -> tuple[float, float]:
    """CPU seconds of our other children, and of those with these pids."""
    ours = {*children(os.getpid())} - theirs
    return sum(map(cpu_of, ours)), sum(map(cpu_of, theirs))


# ---- the processes that watch --------------------------------------------------------


VIEW = {"host": "127.0.0.1", "viewers": 1, "newcomers": False, "ends": ()}


def start(
    function: Callable[..., Any], pass_fds: Sequence[int] = (), **told: Any
) -> Awaitable[Any]:
    pipe = asyncio.subprocess.PIPE
    return asyncio.create_subprocess_exec(
        *worker(function, **{**VIEW, **told}),
        pass_fds=pass_fds,
        stdin=pipe,
        stdout=pipe,
        env=ENVIRONMENT,
        limit=1 << 26,
    )


def say_ready() -> None:
    os.write(1, b"ready\n")


def paint(job: Job) -> dict[str, Any]:
    """A browser."""
    import browser as chromium

    with chromium.running() as browser:
        browser.open(job.url)
        browser.wait_until("self.viewer || !document.querySelector('#picture')")
        browser.evaluate(job.script)
        browser.wait_until("seen.length > 3")
        say_ready()
        sys.stdin.read()
        return {"viewers": 1, "seen": browser.evaluate("seen")}


async def view(job: Job) -> dict[str, Any]:
    """Watch with the job's viewers; newcomers, if any are wanted, come one by one."""
    import anyio
    from links import cut_short

    seen: list[list[float]] = []
    waited: list[float] = []  # by each, for its first picture (ms)

    async def until(count: int) -> None:
        while len(waited) < count:  # noqa: ASYNC110 - it is there soon
            await asyncio.sleep(0.002)

    async def newcomers() -> None:
        while job.newcomers:
            async with cut_short(one_viewer, job, [], waited):
                await until(len(waited) + 1)
            await asyncio.sleep(random.uniform(0.4, 0.6))

    with carried(job):
        async with anyio.create_task_group() as tasks:
            for _ in range(job.viewers):
                tasks.start_soon(one_viewer, job, seen, waited)
            await until(job.viewers)
            say_ready()
            tasks.start_soon(newcomers)
            await asyncio.to_thread(sys.stdin.read)
            tasks.cancel_scope.cancel()
    return {"viewers": job.viewers, "seen": seen, "waited": waited}


async def one_viewer(job: Job, seen: list[list[float]], waited: list[float]) -> None:
    """Takes H.264, and acknowledges it as the page does."""
    from links import cut_short
    from web_client import watching
    from wsproto.events import TextMessage

    from aiozerocopy.web.pixels import CODED

    came, newest, asked = asyncio.Event(), -1, time.time()

    async def acknowledge() -> None:
        while True:
            await came.wait()
            came.clear()
            await viewer.send(TextMessage(str(newest)))
            await asyncio.sleep(ACKNOWLEDGE)

    async with watching(job, "/h264") as viewer:
        async with cut_short(acknowledge):
            while True:
                header, _ = await viewer.message()
                if header[1] == CODED:
                    now = time.time()
                    if newest < 0:
                        waited.append((now - asked) * 1e3)
                    if header[7] > newest:  # (a newcomer may get the same one twice)
                        seen.append([header[7], now * 1e3])
                    newest = header[7]
                    came.set()
