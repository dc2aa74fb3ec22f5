"""How old a picture is when a browser has painted it, or when a viewer has it.

Each contender serves 30 pictures a second from a process of its own.  In the races to
paint, one script reads which picture headless Chromium shows, each time that the
display takes the page (60 times a second), so an age includes the wait for the display.
Our page's own figures do not include it: the page counts a picture as soon as it has
painted it.  The other races have viewers in Python, and links of all kinds.

CPU is that of the contender's process, which also makes the pictures, and of what it
has started to encode them; the other end is the browser, or the viewers.
"""

from __future__ import annotations

import contextlib
import os
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from bench.far_link import PERIOD, Shape
from bench.processes import Lab, worker
from bench.race import Contender, Lacking, Race, Run, Work, need
from bench.video import ffmpeg_here, waves
from bench.viewer_rivals import RIVALS
from bench.watching import COUNTED, FPS, PIXELS, SETTLING, Source, paint, start, view
from bench.worker import Job

SIZES = ((640, 360), (1280, 720), (1920, 1080))
BUFFERS = 8
SLOW = 0.4 * 4.4e6 / 8  # bytes a second: FFmpeg makes 4.4 Mbit/s of these pictures

Field = dict[str, tuple[Callable[[Job], Any], tuple[str, ...]]]  # with what each needs


class Scene(NamedTuple):
    """Viewers without a browser."""

    title: str
    near: int = 0  # viewers on this machine
    far: Shape | None = None  # the link of another viewer
    newcomers: bool = False
    seconds: float = 3.0  # at least


SCENES = (
    Scene("one viewer", 1),
    Scene("8 viewers, one with 40 % of the stream's rate", 7, Shape(rate=SLOW)),
    Scene("50 ms away, and 1 % of the packets lost", 0, Shape(delay=0.05, loss=0.01)),
    *(
        Scene(f"after 2 s of silence that {does} packets", far=link, seconds=PERIOD + 3)
        for does in ("holds", "loses")
        for link in [Shape(silence=does)]
    ),
    Scene("newcomers", 1, newcomers=True),
    Scene("100 viewers", 100),
)


def races(lab: Lab, quick: bool) -> Iterator[Race]:
    need("numpy", "pytest", "wsproto", "h11")
    ffmpeg, _ = ffmpeg_here()
    make = partial(race, lab, quick, ffmpeg=ffmpeg)
    h264_only: Field = {"ours, H.264": (h264, ())}
    for size in SIZES[: 1 if quick else None]:
        yield make("painted, by the page's own figures", size, h264_only, COUNTED)
    size = SIZES[0 if quick else 1]
    yield make("painted", size, {**h264_only, **OTHERS, **RIVALS})
    for scene in SCENES:
        yield make(f"arrived, {scene.title}", size, h264_only, scene=scene)


def race(
    lab: Lab,
    quick: bool,
    what: str,
    size: tuple[int, int],
    field: Field,
    script: str = PIXELS,
    scene: Scene | None = None,
    **told: Any,
) -> Race:
    least = scene.seconds if scene else 3.0
    frames = round(FPS * (least if quick else max(15.0, 3 * least)))
    work = Work(size[0] * size[1] * 3, frames, round(FPS * SETTLING), BUFFERS)
    told |= {"script": script, "scene": scene, "shape": (*size[::-1], 3)}

    def run(way: Callable[[Job], Any], work: Work, check: bool) -> Run:
        look_for_all(scene)
        pictures = str(waves(lab, size, BUFFERS))
        command = worker(way, **work.told, **told, pictures=pictures)
        sender = lab.reports(command)["sender"]
        seconds, own = sender["seconds"], sender["cpu"]
        cpu = own + sender["encoders"]
        used = {"CPU %": 100 * cpu / seconds, "own CPU %": 100 * own / seconds}
        return Run(seconds, cpu, sender["sinks"], {**figures(sender, scene), **used})

    contenders = [
        Contender(name, partial(run, way), needs)
        for name, (way, needs) in field.items()
    ]
    title = f"{size[0]}x{size[1]} {what}"
    return Race("viewer", title, work, contenders, duels=(), extra=True)


def look_for_all(scene: Scene | None) -> None:
    """Raises: Lacking: no browser, or no link to shape."""
    import browser as chromium
    import pytest
    from cut_links import SERVER, tun, two_hosts

    if scene is None and chromium.find() is None:
        raise Lacking("no Chromium: on Debian, apt install chromium")
    if scene and scene.far:
        try:
            with two_hosts(tun) as hosts:
                os.close(hosts.open_tun(SERVER))
        except (OSError, pytest.skip.Exception) as error:
            raise Lacking(f"no link to shape: {error}") from None


def figures(sender: dict[str, Any], scene: Scene | None) -> dict[str, float]:
    if scene is None:
        return dict(sender["browser"]["figures"])
    seen = sender["far" if scene.far else "near"]
    if scene.newcomers:
        first, *waited = seen["waited"]
        more = {"newcomer ms": statistics.median(waited), "at most": max(waited)}
        return {**more, "first of all ms": first}
    if scene.far and scene.far.silence:
        back = seen["back"]
        return {"new again after ms": statistics.median(back), "at most": max(back)}
    others = sender["near"]["figures"] if scene.far and scene.near else {}
    return {**seen["figures"], **{f"others' {name}": n for name, n in others.items()}}


# ---- our process ---------------------------------------------------------------------


async def h264(job: Job) -> dict[str, Any]:
    return await serve(job, "h264")


async def av1(job: Job) -> dict[str, Any]:
    return await serve(job, "av1")


async def jpeg(job: Job) -> dict[str, Any]:
    return await serve(job, "mjpeg")


OTHERS: Field = {"ours, AV1": (av1, ("av",)), "ours, JPEG": (jpeg, ())}


async def serve(job: Job, mode: str) -> dict[str, Any]:
    from cut_links import CLIENT, SERVER, Hosts, tun, two_hosts

    import aiozerocopy as azc

    source, scene = Source(job), Scene(*job.scene) if job.scene else None
    watchers: dict[str, Any] = {}

    async def publish() -> None:
        with await pool.acquire() as frame:
            source.draw(frame.array)
            await hub.publish(frame, pixel_format="rgb24")

    async def start_far(hosts: Hosts, shape: Shape) -> Any:
        ends = [hosts.open_tun(host) for host in (SERVER, CLIENT)]
        told = {"host": SERVER, "port": server.port, "ends": ends, "link": shape}
        hosts.go_to(CLIENT)
        try:
            return await start(view, pass_fds=ends, **told)
        finally:
            hosts.go_to(SERVER)
            for fd in ends:
                os.close(fd)

    async with contextlib.AsyncExitStack() as undo:
        if scene and scene.far:
            hosts = undo.enter_context(two_hosts(tun))
            watchers["far"] = start_far(hosts, scene.far)
        hub = await undo.enter_async_context(azc.Broadcast())
        host = "0.0.0.0" if scene else "127.0.0.1"
        serving = azc.web.serve(hub, host, modes=[mode])
        server = await undo.enter_async_context(serving)
        pool = undo.enter_context(azc.FramePool(job.shape, slots=5))
        if scene is None:
            watchers["browser"] = start(paint, url=server.url, script=job.script)
        elif scene.near:
            many: dict[str, Any] = {"viewers": scene.near, "newcomers": scene.newcomers}
            watchers["near"] = start(view, port=server.port, **many)
        found = await source.watched(publish, **watchers)
    return found
