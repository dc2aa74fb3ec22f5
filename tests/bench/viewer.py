"""How old a picture is when a browser has painted it, or when it has come to a viewer.

Each contender serves 30 pictures a second from a process of its own.  In the races to
paint, one script reads which picture headless Chromium shows, each time that the
display takes the page (60 times a second): so an age includes the wait for the display.
Our page's own figures do not include it: the page counts a picture as soon as it has
painted it.  The other races have viewers in Python, and links of all kinds.

CPU is that of the contender's process, which makes the pictures too, and of what it has
started to encode them; the other end is the browser, or the viewers.
"""

from __future__ import annotations

import contextlib
import os
import statistics
from collections.abc import Awaitable, Iterator
from functools import partial
from typing import Any, NamedTuple

from bench import viewer_rivals
from bench.far_link import PERIOD, Shape, carrying
from bench.processes import Lab, worker
from bench.race import Contender, Lacking, Race, Run, Work, need
from bench.video import ffmpeg_here, waves
from bench.watching import (
    COUNTED,
    FPS,
    LATEST,
    PIXELS,
    SETTLING,
    Source,
    paint,
    start,
    view,
)
from bench.worker import Job

SIZES = ((640, 360), (1280, 720), (1920, 1080))
BUFFERS = 8
SQUEEZED = 0.4 * viewer_rivals.bitrate(*SIZES[1]) / 8  # bytes a second


class Scene(NamedTuple):
    """Viewers without a browser."""

    title: str
    near: int = 0  # viewers on this machine
    far: Shape | None = None  # the link of another viewer
    newcomers: bool = False


SCENES = (
    Scene("one viewer", 1),
    Scene("8 viewers, one with 40 % of the stream's rate", 7, Shape(rate=SQUEEZED)),
    Scene("50 ms away, and 1 % of the packets lost", 0, Shape(delay=0.05, loss=0.01)),
    Scene("after 2 s of silence that held packets back", 0, Shape(silence="holds")),
    Scene("after 2 s of silence that lost packets", 0, Shape(silence="loses")),
    Scene("newcomers", 1, newcomers=True),
    Scene("100 viewers", 100),
)


def races(lab: Lab, quick: bool) -> Iterator[Race]:
    need("numpy", "pytest", "wsproto", "h11")
    told: dict[str, Any] = {
        "ffmpeg": ffmpeg_here()[0],
        "modes": ["h264"],
        "script": PIXELS,
    }
    told["scene"] = None
    contender, make = partial(contender_of, lab), partial(race, quick)
    for size in SIZES[: 1 if quick else None]:
        one = contender("ours, H.264", size, ours, {**told, "script": COUNTED})
        yield make("painted, by the page's own figures", size, [one])
    size = SIZES[0 if quick else 1]
    yield make(
        "painted",
        size,
        [
            contender("ours, H.264", size, ours, told),
            contender("ours, JPEG", size, ours, {**told, "modes": ["mjpeg"]}),
            *(
                contender(name, size, way, told, needs)
                for name, (way, needs) in viewer_rivals.RIVALS.items()
            ),
        ],
    )
    for scene in SCENES:
        one = contender("ours, H.264", size, ours, {**told, "scene": scene})
        seconds = PERIOD + LATEST / 1e3 if scene.far and scene.far.silence else 0.0
        yield make(f"arrived, {scene.title}", size, [one], seconds)


def race(
    quick: bool,
    what: str,
    size: tuple[int, int],
    field: list[Contender],
    least: float = 0.0,
) -> Race:
    """The seconds are few if it is to be quick, but not fewer than ``least``."""
    seconds = max(3 if quick else 15, (1 if quick else 3) * least)
    numbers = (round(FPS * seconds), round(FPS * SETTLING), BUFFERS)
    work = Work(size[0] * size[1] * 3, *numbers)
    title = f"{size[0]}x{size[1]} {what}"
    return Race("viewer", title, work, field, duels=(), extra=True)


def contender_of(
    lab: Lab,
    name: str,
    size: tuple[int, int],
    way: Any,
    told: dict[str, Any],
    needs: tuple[str, ...] = (),
) -> Contender:
    def run(work: Work, check: bool) -> Run:
        look_for(told["scene"])
        shown = {"pictures": str(waves(lab, size, BUFFERS)), "shape": (*size[::-1], 3)}
        command = worker(way, **work.told, **told, **shown)
        return run_of(lab.reports(command)["sender"], told["scene"])

    return Contender(name, run, needs)


def look_for(scene: Scene | None) -> None:
    """Raises: Lacking: the browser, or a link to shape."""
    import browser as chromium
    import pytest
    from cut_links import SERVER, tun, two_hosts

    if scene is None and chromium.find() is None:
        raise Lacking("no Chromium: on Debian, apt install chromium")
    if scene is None or scene.far is None:
        return
    try:
        with two_hosts(tun) as hosts:
            os.close(hosts.open_tun(SERVER))
    except (OSError, pytest.skip.Exception) as error:
        raise Lacking(f"no link to shape: {error}") from None


def run_of(sender: dict[str, Any], scene: Scene | None) -> Run:
    seconds, own = sender["seconds"], sender["cpu"]
    cpu = own + sender["encoders"]
    more = figures_of(sender, scene)
    more |= {"CPU %": 100 * cpu / seconds, "own CPU %": 100 * own / seconds}
    return Run(seconds, cpu, sender["sinks"], more)


def figures_of(sender: dict[str, Any], scene: Scene | None) -> dict[str, float]:
    if scene is None:
        return dict(sender["browser"]["figures"])
    seen = sender["far" if scene.far else "near"]
    if scene.newcomers:
        first, *waited = seen["waited"]
        figures = {"newcomer ms": statistics.median(waited), "at most": max(waited)}
        return {**figures, "first of all ms": first}
    if scene.far and scene.far.silence:
        back = seen["back"]
        return {"new again after ms": statistics.median(back), "at most": max(back)}
    others = sender["near"]["figures"] if scene.far and scene.near else {}
    return {**seen["figures"], **{f"others' {name}": n for name, n in others.items()}}


# ---- our process ---------------------------------------------------------------------


async def ours(job: Job) -> dict[str, Any]:
    from cut_links import CLIENT, SERVER, Hosts, tun, two_hosts

    import aiozerocopy as azc

    source = Source(job)
    scene = Scene(*job.scene) if job.scene else None

    async def publish() -> None:
        with await pool.acquire() as frame:
            source.draw(frame.array)
            await hub.publish(frame, pixel_format="rgb24")

    async def start_far(hosts: Hosts) -> Any:
        to = {"host": SERVER, "port": server.port}
        hosts.go_to(CLIENT)
        try:
            return await start(view, to=to, viewers=1, newcomers=False)
        finally:
            hosts.go_to(SERVER)

    watchers: dict[str, Awaitable[Any]] = {}
    async with contextlib.AsyncExitStack() as undo:
        if scene and scene.far:
            hosts = undo.enter_context(two_hosts(tun))
            ends = [hosts.open_tun(host) for host in (SERVER, CLIENT)]
            undo.enter_context(carrying(ends, Shape(*scene.far)))
            watchers["far"] = start_far(hosts)
        hub = await undo.enter_async_context(azc.Broadcast())
        host = "0.0.0.0" if scene else "127.0.0.1"
        serving = azc.web.serve(hub, host, modes=job.modes)
        server = await undo.enter_async_context(serving)
        pool = undo.enter_context(azc.FramePool(job.shape, slots=5))
        if scene is None:
            watchers["browser"] = start(paint, url=server.url, script=job.script)
        elif scene.near:
            told = {"viewers": scene.near, "newcomers": scene.newcomers}
            watchers["near"] = start(view, to={"port": server.port}, **told)
        result = await source.watched(publish, **watchers)
    return result
