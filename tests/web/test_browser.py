"""The viewer in a real browser: are the frames on the screen those that were sent?

Every frame has its number drawn in it, as black and white blocks that survive JPEG and
H.264, beside a patch of a known colour.
"""

from __future__ import annotations

import ssl
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import numpy as np
import pytest

pytest.importorskip("h11")
pytest.importorskip("wsproto")

import browser as chromium
import web_servers
from links import until

from aiozerocopy import web
from aiozerocopy.broadcast import Broadcast
from aiozerocopy.web import modes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from numpy.typing import NDArray

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(chromium.find() is None, reason="needs Chromium"),
    pytest.mark.timeout(60),
]

WIDTH, HEIGHT = 641, 361  # odd: rows are not aligned, and H.264 must be padded
BLOCK, BITS = 40, 16
COLOR = (200, 40, 90)  # of the patch below the number
PERIOD = 1 / 30

# What is on the canvas: the number, the patch's colour, and what the page says of both.
LOOK = f"""(() => {{
    const canvas = document.getElementById("picture");
    const copy = new OffscreenCanvas(canvas.width, canvas.height);
    const context = copy.getContext("2d");
    context.drawImage(canvas, 0, 0);
    const at = (x, y) => [...context.getImageData(x, y, 1, 1).data].slice(0, 3);
    let number = 0;
    for (let bit = 0; bit < {BITS}; bit += 1)
        if (at(bit * {BLOCK} + {BLOCK // 2}, {BLOCK // 2})[1] > 127) number += 1 << bit;
    return {{
        number,
        color: at({WIDTH} - 20, {HEIGHT} - 20),
        size: [canvas.width, canvas.height],
        sequence: viewer.sequence,
        mode: viewer.mode,
        state: document.body.dataset.state,
    }};
}})()"""


def draw(number: int, pixel_format: str = "rgb24") -> NDArray[np.uint8]:
    frame = np.full((HEIGHT, WIDTH, 3), COLOR, np.uint8)
    for bit in range(BITS):
        frame[:BLOCK, bit * BLOCK : (bit + 1) * BLOCK] = 255 * (number >> bit & 1)
    if pixel_format == "bgra":
        return np.dstack([frame[:, :, ::-1], np.full((HEIGHT, WIDTH), 255, np.uint8)])
    return frame


@pytest.fixture(scope="module")
def browser() -> Iterator[chromium.Browser]:
    with chromium.running() as browser:
        browser.resize(1280, 800, 1, phone=False)
        yield browser


@asynccontextmanager
async def publishing(
    hub: Broadcast, picture: Callable[[int], Any] = draw, pixel_format: str = "rgb24"
) -> AsyncIterator[None]:
    """A source of 30 frames a second."""

    async def publish() -> None:
        while True:
            await hub.publish(picture(hub.sequence), pixel_format=pixel_format)
            await anyio.sleep(PERIOD)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(publish)
        yield
        tasks.cancel_scope.cancel()


async def in_thread(call: Callable[..., Any], *args: Any) -> Any:
    return await anyio.to_thread.run_sync(partial(call, *args))


async def watch(browser: chromium.Browser, url: str) -> None:
    await in_thread(browser.open, url)
    await in_thread(browser.wait_until, "viewer.numbers.total >= 5")


async def look(browser: chromium.Browser, mode: str) -> dict[str, Any]:
    """What is seen, after the checks that hold for every frame."""
    seen: dict[str, Any] = await in_thread(browser.evaluate, LOOK)
    assert seen["mode"] == mode
    assert seen["state"] == "live"
    assert seen["size"] == [WIDTH, HEIGHT]
    assert seen["number"] == seen["sequence"] & 0xFFFF
    tolerance = 0 if mode == "raw" else 12
    for ours, theirs in zip(COLOR, seen["color"], strict=True):
        assert abs(ours - theirs) <= tolerance, seen["color"]
    return seen


async def leave(browser: chromium.Browser) -> None:
    await in_thread(browser.open, "about:blank")


@pytest.mark.slow
async def test_a_server_that_comes_back_is_found_again(
    browser: chromium.Browser, anyio_backend: tuple[str, dict[str, Any]]
) -> None:
    name, options = anyio_backend  # each way once, for the time it takes
    mode = "raw" if name == "trio" else "mjpeg" if "use_uvloop" in options else "h264"
    async with Broadcast() as hub:
        async with web.serve(hub) as server, publishing(hub):
            if mode not in server.modes:
                pytest.skip(f"{mode} needs a package or FFmpeg")
            port = server.port
            await watch(browser, f"{server.url}?mode={mode}")
        await in_thread(browser.wait_until, "document.body.dataset.state === 'ended'")
        before = await in_thread(browser.evaluate, "viewer.numbers.total")
        async with web.serve(hub, port=port), publishing(hub):
            more = f"viewer.numbers.total > {before + 3}"
            await in_thread(browser.wait_until, more)
            await look(browser, mode)
            await leave(browser)


@pytest.mark.parametrize(
    ("offered", "taken"),
    [
        (["h264", "mjpeg", "raw"], "h264"),
        pytest.param(["mjpeg", "raw"], "mjpeg", marks=pytest.mark.slow),
        pytest.param(["raw"], "raw", marks=pytest.mark.slow),
    ],
)
async def test_frames_on_the_screen_are_those_sent(
    browser: chromium.Browser, offered: list[str], taken: str
) -> None:
    async with Broadcast() as hub, web.serve(hub, modes=offered) as server:
        if server.modes != tuple(offered):
            pytest.skip(f"{offered} needs a package or FFmpeg")
        async with publishing(hub):
            await watch(browser, server.url)
            first = await look(browser, taken)
            newer = f"viewer.sequence > {first['sequence']}"
            await in_thread(browser.wait_until, newer)
            assert (await look(browser, taken))["number"] > first["number"]
            assert browser.complaints() == []
            await leave(browser)


@pytest.mark.slow
async def test_another_way_when_the_best_does_not_work(
    browser: chromium.Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(modes, "ffmpeg_if_any", lambda: "/bin/false")
    async with Broadcast() as hub, web.serve(hub) as server, publishing(hub):
        await watch(browser, server.url)
        await look(browser, next(mode for mode in server.modes if mode != "h264"))
        await leave(browser)


@pytest.mark.slow
async def test_a_browser_without_webcodecs_or_webgl(browser: chromium.Browser) -> None:
    script = (
        "delete self.VideoDecoder; HTMLCanvasElement.prototype.getContext = ("
        "(real) => function (kind, ...rest) {"
        "return kind === 'webgl' ? null : real.call(this, kind, ...rest); }"
        ")(HTMLCanvasElement.prototype.getContext);"
    )
    added = await in_thread(
        partial(browser.call, "Page.addScriptToEvaluateOnNewDocument", source=script)
    )
    try:
        async with Broadcast() as hub, web.serve(hub) as server, publishing(hub):
            await watch(browser, server.url)
            await look(browser, next(m for m in server.modes if m != "h264"))
            await in_thread(browser.evaluate, "viewer.want('raw')")
            await in_thread(browser.wait_until, "viewer.mode === 'raw'")
            await in_thread(
                browser.wait_until, "document.body.dataset.state === 'live'"
            )
            await look(browser, "raw")
            kind = await in_thread(browser.evaluate, "viewer.painter.constructor.name")
            assert kind == "FlatPainter"
            await leave(browser)
    finally:
        await in_thread(
            partial(browser.call, "Page.removeScriptToEvaluateOnNewDocument", **added)
        )


@pytest.mark.slow
async def test_another_format_of_pixels(browser: chromium.Browser) -> None:
    picture = partial(draw, pixel_format="bgra")
    async with Broadcast() as hub, web.serve(hub) as server:
        async with publishing(hub, picture, "bgra"):
            for mode in server.modes:
                await watch(browser, f"{server.url}?mode={mode}")
                await look(browser, mode)
            await leave(browser)


@pytest.mark.slow
async def test_a_token(browser: chromium.Browser) -> None:
    async with Broadcast() as hub, publishing(hub):
        async with web.serve(hub, token="sesame") as server:
            await watch(browser, server.url)
            await look(browser, server.modes[0])
            await leave(browser)


@pytest.mark.slow
@pytest.mark.parametrize("anyio_backend", [("asyncio", {})])
async def test_mounted_in_another_application(browser: chromium.Browser) -> None:
    """Every way below a prefix, and what the page says when no more may watch."""
    client = pytest.importorskip("websockets.sync.client")
    async with Broadcast() as hub, publishing(hub):
        app = web.app(hub, max_viewers=1)
        async with web_servers.in_starlette("uvicorn", app) as port:
            url = f"http://127.0.0.1:{port}{web_servers.PREFIX}"
            for mode in app.modes:
                await watch(browser, f"{url}?mode={mode}")
                await look(browser, mode)
                assert browser.complaints() == []
                await leave(browser)
                await until(lambda: app.viewers == 0)
            address = f"ws://127.0.0.1:{port}{web_servers.PREFIX}/raw"
            full = "document.body.dataset.state === 'full'"

            def see_that_it_is_full() -> None:
                with client.connect(address, max_size=None):
                    browser.open(url)
                    browser.wait_until(full)

            await in_thread(see_that_it_is_full)
            await in_thread(browser.wait_until, "viewer.numbers.total >= 5")
            await leave(browser)


@pytest.mark.slow
async def test_over_tls(browser: chromium.Browser) -> None:
    """Every way, from a page that may ask for nothing that is not encrypted."""
    trustme = pytest.importorskip("trustme")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    trusting = partial(browser.call, "Security.setIgnoreCertificateErrors")
    await in_thread(partial(trusting, ignore=True))
    try:
        async with Broadcast() as hub, publishing(hub):
            async with web.serve(hub, ssl_context=context) as server:
                for mode in server.modes:
                    await watch(browser, f"{server.url}?mode={mode}")
                    await look(browser, mode)
                await leave(browser)
    finally:
        await in_thread(partial(trusting, ignore=False))


@pytest.mark.slow
async def test_numbers_that_are_shown(browser: chromium.Browser) -> None:
    shown = "document.getElementById('{}').textContent"
    async with Broadcast() as hub, web.serve(hub) as server, publishing(hub):
        await watch(browser, f"{server.url}?mode=raw")
        for name in ("fps", "latency", "rate"):
            await in_thread(browser.wait_until, f"Number({shown.format(name)}) > 0")
        text = await in_thread(browser.evaluate, shown.format("size"))
        assert text == f"{WIDTH} \u00d7 {HEIGHT}"
        for width, phone in ((1280, False), (390, True)):  # nothing sticks out
            await in_thread(partial(browser.resize, width, 800, 1, phone=phone))
            wide = "document.documentElement.scrollWidth"
            assert await in_thread(browser.evaluate, wide) <= width
        await leave(browser)
