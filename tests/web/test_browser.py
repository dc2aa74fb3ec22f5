"""The viewer in a real browser: are the frames on the screen those that were sent?

Every frame has its number drawn in it, as black and white blocks that survive JPEG and
H.264, beside a patch of a known colour.
"""

from __future__ import annotations

import ssl
from functools import partial
from io import BytesIO
from typing import Any
from unittest.mock import Mock

import browser as chromium
import numpy as np
import pytest
import web_servers
from browser import Page
from links import until
from numpy.typing import NDArray

from aiozerocopy import web
from aiozerocopy.broadcast import Broadcast
from aiozerocopy.web import modes
from aiozerocopy.web.child import by_ffmpeg

pytestmark = [pytest.mark.anyio, chromium.NEEDED, pytest.mark.timeout(60)]

WIDTH, HEIGHT = 641, 361  # odd: rows are not aligned, and H.264 must be padded
BLOCK, BITS = 40, 16
COLOR = (200, 40, 90)  # of the patch below the number
PAINTER = "viewer.painter.constructor.name"
# What is on the canvas (number, colour and size), and what the page says of it.
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


def draw(number: int) -> NDArray[np.uint8]:
    frame = np.full((HEIGHT, WIDTH, 3), COLOR, np.uint8)
    for bit in range(BITS):
        frame[:BLOCK, bit * BLOCK : (bit + 1) * BLOCK] = 255 * (number >> bit & 1)
    return frame


publishing = partial(chromium.publishing, picture=draw)


async def watch(page: Page, url: str) -> None:
    await page.open(url)
    await page.until("viewer.numbers.total >= 5")


async def look(page: Page, mode: str) -> dict[str, Any]:
    """Return what is seen, after the checks that hold for every frame."""
    seen: dict[str, Any] = await page.tell(LOOK)
    assert seen["mode"] == mode
    assert seen["state"] == "live"
    assert seen["size"] == [WIDTH, HEIGHT]
    assert seen["number"] == seen["sequence"] & 0xFFFF
    tolerance = 0 if mode == "raw" else 12
    for ours, theirs in zip(COLOR, seen["color"], strict=True):
        assert abs(ours - theirs) <= tolerance, seen["color"]
    return seen


@pytest.mark.parametrize(
    ("offered", "taken"),
    [
        (["h264", "mjpeg", "raw"], "h264"),
        (["av1", "mjpeg", "raw"], "av1"),
        pytest.param(["mjpeg", "raw"], "mjpeg", marks=pytest.mark.slow),
        pytest.param(["raw"], "raw", marks=pytest.mark.slow),
    ],
)
async def test_frames_on_the_screen_are_those_sent(
    page: Page, offered: list[str], taken: str
) -> None:
    async with Broadcast() as hub, web.serve(hub, modes=offered) as server:
        if server.modes != tuple(offered):
            pytest.skip(f"{offered} needs a package or FFmpeg")
        async with publishing(hub):
            await watch(page, server.url)
            first = await look(page, taken)
            await page.until(f"viewer.sequence > {first['sequence']}")
            assert (await look(page, taken))["number"] > first["number"]
            assert page.browser.complaints() == []


@pytest.mark.slow
async def test_the_screen_shows_the_canvas(page: Page) -> None:
    image = pytest.importorskip("PIL.Image")
    place = "(({x, y, width, height}) => [x + width / 2, y + height / 2])"
    async with Broadcast() as hub, web.serve(hub, modes=["raw"]) as server:
        async with publishing(hub):
            await watch(page, server.url)
            middle = await page.tell(
                f"{place}(document.getElementById('picture').getBoundingClientRect())"
            )
            with image.open(BytesIO(await page.do(page.browser.screenshot))) as screen:
                assert screen.convert("RGB").getpixel((*map(int, middle),)) == COLOR


@pytest.mark.slow
async def test_another_way_when_the_best_does_not_work(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = partial(by_ffmpeg, "/bin/false")
    monkeypatch.setattr(modes, "find_encoders", lambda *_, **__: broken)
    async with Broadcast() as hub, web.serve(hub) as server, publishing(hub):
        await watch(page, server.url)
        await look(page, next(mode for mode in server.modes if mode != "h264"))


@pytest.mark.slow
@pytest.mark.parametrize("by", ["the server", "the browser"])
async def test_the_only_way_does_not_work(
    page: Page, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page says why, and tries again after a while."""
    encoders = partial(by_ffmpeg, "/bin/false") if by == "the server" else Mock()
    monkeypatch.setattr(modes, "find_encoders", lambda *_, **__: encoders)
    script = "" if by == "the server" else "delete self.VideoDecoder"
    why = "H.264 cannot be encoded here" if by == "the server" else "No WebCodecs"
    async with page.changed_by(script), Broadcast() as hub:
        async with web.serve(hub, modes=["h264"]) as server, publishing(hub):
            await page.open(server.url)
            assert why in await page.says("unable")


@pytest.mark.slow
async def test_a_browser_without_webcodecs_or_webgl(page: Page) -> None:
    script = (
        "delete self.VideoDecoder; HTMLCanvasElement.prototype.getContext = ("
        "(real) => function (kind, ...rest) {"
        "return kind === 'webgl' ? null : real.call(this, kind, ...rest); }"
        ")(HTMLCanvasElement.prototype.getContext);"
    )
    async with page.changed_by(script):
        async with Broadcast() as hub, web.serve(hub) as server, publishing(hub):
            await watch(page, server.url)
            await look(page, next(m for m in server.modes if m != "h264"))
            await watch(page, f"{server.url}?mode=raw")
            await look(page, "raw")
            assert await page.tell(PAINTER) == "FlatPainter"
            if "h264" in server.modes:
                await page.open(f"{server.url}?mode=h264")
                assert "No WebCodecs" in await page.says("unable")


@pytest.mark.slow
async def test_webgl_that_is_lost_comes_back(page: Page) -> None:
    """WebGL is slow without a GPU, so the page uses it only if asked to."""
    async with Broadcast() as hub, web.serve(hub) as server, publishing(hub):
        await watch(page, server.url)
        assert await page.tell(PAINTER) == "FlatPainter"
        for mode in server.modes:
            await watch(page, f"{server.url}?painter=webgl&mode={mode}")
            assert await page.tell(PAINTER) == "GlPainter"
            lost = "viewer.painter.gl.getExtension('WEBGL_lose_context')"
            await page.tell(f"(self.lost = {lost}).loseContext()")
            assert await page.tell("viewer.painter.gl.isContextLost()")
            await page.tell("lost.restoreContext()")
            await page.until("!viewer.painter.gl.isContextLost()")
            shown = await page.tell("viewer.numbers.total")
            await page.until(f"viewer.numbers.total > {shown} + 1")
            await look(page, mode)


@pytest.mark.slow
async def test_mounted_in_another_application(page: Page) -> None:
    """Every mode works below a prefix, and the page says when no more may watch."""
    client = pytest.importorskip("websockets.sync.client")
    async with Broadcast() as hub, publishing(hub):
        app = web.app(hub, max_viewers=1)
        async with web_servers.in_starlette("uvicorn", app) as port:
            url = f"http://127.0.0.1:{port}{web_servers.PREFIX}"
            for mode in app.modes:
                await watch(page, f"{url}?mode={mode}")
                await look(page, mode)
                assert page.browser.complaints() == []
                await page.open("about:blank")
                await until(lambda: app.viewers == 0)
            address = f"ws://127.0.0.1:{port}{web_servers.PREFIX}/raw"
            full = "document.body.dataset.state === 'full'"

            def see_that_it_is_full() -> None:
                with client.connect(address, max_size=None):
                    page.browser.open(url)
                    page.browser.wait_until(full)

            await page.do(see_that_it_is_full)
            await page.until("viewer.numbers.total >= 5")


@pytest.mark.slow
async def test_over_tls_with_a_token(page: Page) -> None:
    """Every mode works, although the page may request nothing without encryption."""
    trustme = pytest.importorskip("trustme")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    trusting = partial(page.browser.call, "Security.setIgnoreCertificateErrors")
    await page.do(partial(trusting, ignore=True))
    try:
        async with Broadcast() as hub, publishing(hub):
            options: dict[str, Any] = {"ssl_context": context, "token": "sesame"}
            async with web.serve(hub, **options) as server:
                for mode in server.modes:  # the address loses the token
                    await watch(page, f"{server.url}&mode={mode}")
                    assert await page.tell("location.search") == f"?mode={mode}"
                    await look(page, mode)
    finally:
        await page.do(partial(trusting, ignore=False))


@pytest.mark.slow
async def test_numbers_that_are_shown(page: Page) -> None:
    shown = "document.getElementById('{}').textContent"
    async with Broadcast() as hub, web.serve(hub) as server, publishing(hub):
        await watch(page, f"{server.url}?mode=raw")
        for name in ("fps", "latency", "rate"):
            await page.until(f"Number({shown.format(name)}) > 0")
        assert await page.tell(shown.format("size")) == f"{WIDTH} \u00d7 {HEIGHT}"
        for width, phone in ((1280, False), (390, True)):  # nothing sticks out
            await page.do(partial(page.browser.resize, width, 800, 1, phone=phone))
            assert await page.tell("document.documentElement.scrollWidth") <= width


@pytest.mark.slow
@pytest.mark.parametrize("size", [(1280, 800), (1024, 500), (844, 390), (390, 844)])
async def test_the_whole_picture_is_to_be_seen(
    page: Page, size: tuple[int, int]
) -> None:
    box = "(({x, y, width, height}) => [x, y, width, height])"
    of = "(document.getElementById('{}').getBoundingClientRect())"
    frame = np.zeros((720, 1280, 3), np.uint8)
    try:
        await page.do(partial(page.browser.resize, *size, 1, phone=size[1] < 400))
        async with Broadcast() as hub, web.serve(hub) as server:
            async with chromium.publishing(hub, frame):
                await watch(page, server.url)
                await page.until("viewer.sequence > 0")
                stage = await page.tell(box + of.format("stage"))
                assert await page.tell(box + of.format("picture")) == stage
                assert stage[1] + stage[3] <= size[1]
                assert min(stage[2:]) > 200
    finally:
        await page.do(partial(page.browser.resize, 1280, 800, 1, phone=False))
