"""Colours in a real browser: a pixel has the numbers that were drawn.

The browser draws as it does with a GPU.  Without one Chromium turns BT.709 into RGB by
coarser arithmetic of its own, and blue is up to 12 off, whichever program made the
film.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import browser as chromium
import numpy as np
import pytest
from ffmpegs import ffmpeg, quick_ffmpeg
from flat_pictures import DRAWN, drawn

from aiozerocopy import web
from aiozerocopy.broadcast import Broadcast
from aiozerocopy.ffmpeg import Writer
from aiozerocopy.frames import Colour
from aiozerocopy.web import jpeg, renditions

__all__ = ["ffmpeg", "quick_ffmpeg"]
pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    chromium.NEEDED,
    pytest.mark.timeout(120),
]

SD, HD, UHD = (640, 360), (1280, 720), (3840, 2160)
FORMATS = ("rgb24", "rgba", "yuv420p", "nv12")
FPS = 2
NEAR = 2  # of 255: what YUV may cost
PATIENCE = 5.0  # seconds until a colour is near: the first frames of AV1 are coarse

LOAD = """new Promise((loaded, failed) => {{
    const bytes = Uint8Array.from(atob("{film}"), (one) => one.charCodeAt(0));
    globalThis.video = document.createElement("video");
    document.body.replaceChildren(video);
    video.muted = true;
    video.onloadedmetadata = () => loaded();
    video.onerror = () => failed(new Error(video.error.message));
    video.src = URL.createObjectURL(new Blob([bytes]));
}})"""

# The middle of the frame that begins at this second, once it is on the screen.
LOOK = """new Promise((seen) => {{
    const look = (_, {{ mediaTime }}) => {{
        if (Math.abs(mediaTime - {second}) > 0.1)
            return video.requestVideoFrameCallback(look);
        const context = new OffscreenCanvas(2, 2).getContext("2d");
        context.drawImage(video, -video.videoWidth / 2, -video.videoHeight / 2);
        seen([...context.getImageData(0, 0, 1, 1).data].slice(0, 3));
    }};
    video.requestVideoFrameCallback(look);
    video.currentTime = {second} + 0.1;
}})"""

# The middle of the viewer's canvas.
LOOK_AT_VIEWER = """(() => {
    const canvas = document.getElementById("picture");
    const context = new OffscreenCanvas(2, 2).getContext("2d");
    context.drawImage(canvas, -canvas.width / 2, -canvas.height / 2);
    return [...context.getImageData(0, 0, 1, 1).data].slice(0, 3);
})()"""


@pytest.fixture(scope="module")
def browser() -> Iterator[chromium.Browser]:
    with chromium.running(chromium.AS_GPU) as browser:
        yield browser


async def film(path: Path, size: tuple[int, int], pix_fmt: str, **options: Any) -> None:
    given = {"quality": "high", "preset": "ultrafast", **options}
    async with Writer(path, size, FPS, pix_fmt, **given) as video:
        for colour in DRAWN:
            await video.put(drawn(colour, size, pix_fmt))


def played(browser: chromium.Browser, path: Path) -> list[list[int]]:
    """Return the colour of each frame."""
    film = base64.b64encode(path.read_bytes()).decode()
    browser.evaluate(LOAD.format(film=film))
    seconds = [number / FPS for number in range(len(DRAWN))]
    return [browser.evaluate(LOOK.format(second=second)) for second in seconds]


async def shown(
    page: chromium.Page,
    mode: str,
    query: str,
    size: tuple[int, int],
    pix_fmt: str,
    near: int = NEAR,
) -> list[list[int]]:
    """Return what the canvas shows for each colour drawn, once it is near enough."""
    async with Broadcast() as hub, web.serve(hub, modes=[mode]) as server:
        if server.modes != (mode,):
            pytest.skip(f"{mode} needs a package or FFmpeg")
        seen: list[list[int]] = []
        for colour in DRAWN:
            picture, first = drawn(colour, size, pix_fmt), hub.sequence
            async with chromium.publishing(hub, picture, pix_fmt):
                if not seen:
                    await page.open(server.url + query)
                # (with a colour's second frame, none of the last is in the encoder)
                await page.until(f"viewer.sequence > {first}")
                seen.append(await page.tell(LOOK_AT_VIEWER))
                with anyio.move_on_after(PATIENCE):
                    while off(seen[-1:], [colour]) > near:
                        seen[-1] = await page.tell(LOOK_AT_VIEWER)
        await page.open("about:blank")
    return seen


def off(seen: Sequence[Sequence[int]], was: Sequence[Sequence[int]] = DRAWN) -> int:
    return int(np.abs(np.subtract(seen, was)).max())


@pytest.mark.parametrize(
    ("size", "pix_fmt"),
    [
        *((size, each) for size in (SD, HD) for each in FORMATS),
        *((UHD, each) for each in ("rgb24", "nv12")),  # (they take long)
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["a.mp4", "a.webm"])
async def test_a_film_looks_as_it_was_drawn(
    browser: chromium.Browser,
    tmp_path: Path,
    name: str,
    pix_fmt: str,
    size: tuple[int, int],
) -> None:
    await film(tmp_path / name, size, pix_fmt)
    seen = played(browser, tmp_path / name)
    assert off(seen) <= NEAR, seen


@pytest.mark.parametrize("size", [SD, HD], ids=str)
@pytest.mark.parametrize(
    "options",
    [
        {"convert": "ffmpeg"},
        {"quality": "lossless"},
        {"colour": Colour("bt601")},
        {"colour": Colour(full_range=True)},
    ],
    ids=str,
)
async def test_other_ways_to_the_same_colours(
    browser: chromium.Browser,
    ffmpeg: str,
    tmp_path: Path,
    options: dict[str, Any],
    size: tuple[int, int],
) -> None:
    await film(tmp_path / "a.mp4", size, "rgb24", ffmpeg=ffmpeg, **options)
    seen = played(browser, tmp_path / "a.mp4")
    assert off(seen) <= NEAR, seen


@pytest.mark.parametrize("name", ["a.mp4", "a.webm"])
async def test_srgb_by_name_looks_as_bt709(
    browser: chromium.Browser, tmp_path: Path, name: str
) -> None:
    seen = []
    for transfer in ("bt709", "iec61966-2-1"):
        await film(tmp_path / name, SD, "rgb24", colour=Colour(transfer=transfer))
        seen.append(played(browser, tmp_path / name))
    assert seen[0] == seen[1]


async def test_hd_that_says_nothing_is_misread(
    browser: chromium.Browser, ffmpeg: str, tmp_path: Path
) -> None:
    """FFmpeg by itself makes such a film of RGB: the tests above would notice."""
    path = tmp_path / "a.mp4"
    raw = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", "1280x720", "-r", str(FPS)]
    command = [ffmpeg, "-v", "error", *raw, "-i", "-", "-pix_fmt", "yuv420p"]
    frames = b"".join(drawn(colour, HD, "rgb24").tobytes() for colour in DRAWN)
    await anyio.run_process([*command, str(path)], input=frames)
    assert off(played(browser, path)) > 10 * NEAR


@pytest.mark.parametrize(
    ("size", "pix_fmt"),
    [(SD, "rgb24"), (HD, "rgb24"), (SD, "bgra"), (SD, "yuv420p"), (SD, "nv12")],
    ids=str,
)
@pytest.mark.parametrize("by", ["webgl", "2d"])
@pytest.mark.parametrize("mode", ["h264", "av1", "mjpeg", "raw"])
async def test_the_viewer_shows_what_was_drawn(
    browser: chromium.Browser,
    mode: str,
    by: str,
    size: tuple[int, int],
    pix_fmt: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # (a busy machine is like a slow link, which gets a JPEG of lower quality)
    monkeypatch.setattr(jpeg, "lower", lambda quality: quality)
    seen = await shown(chromium.Page(browser), mode, f"?painter={by}", size, pix_fmt)
    assert off(seen) <= NEAR, seen


CORNERS = [[40, 60, 80], [200, 60, 80], [40, 180, 80], [200, 180, 80]]
LOOK_AT_CORNERS = """[[1, 1], [3, 1], [1, 3], [3, 3]].map(([x, y]) => {
    const canvas = document.getElementById("picture");
    const context = new OffscreenCanvas(2, 2).getContext("2d");
    context.drawImage(canvas, -x * canvas.width / 4, -y * canvas.height / 4);
    return [...context.getImageData(0, 0, 1, 1).data].slice(0, 3);
})"""


@pytest.mark.parametrize("size", [(642, 362), (641, 361)], ids=str)
@pytest.mark.parametrize("by", ["webgl", "2d"])
@pytest.mark.parametrize("mode", ["h264", "av1"])
async def test_half_the_size_fills_the_canvas(
    browser: chromium.Browser,
    mode: str,
    by: str,
    size: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(renditions, "HALVED", 0)
    width, height = size
    picture = np.empty((height, width, 3), np.uint8)
    for number, colour in enumerate(CORNERS):
        rows = slice(height // 2, None) if number > 1 else slice(height // 2)
        columns = slice(width // 2, None) if number % 2 else slice(width // 2)
        picture[rows, columns] = colour
    page = chromium.Page(browser)
    async with Broadcast() as hub, web.serve(hub, modes=[mode]) as server:
        async with chromium.publishing(hub, picture, "rgb24"):
            await page.open(f"{server.url}?painter={by}")
            await page.until("viewer.sequence > 0")
            seen = await page.tell(LOOK_AT_CORNERS)
        await page.open("about:blank")
    assert np.abs(np.subtract(seen, CORNERS)).max() <= 2 * NEAR, seen


LOOK_AT_ENDS = """[[1, 0.5], [0.5, 1]].map(([x, y]) => {
    const canvas = document.getElementById("picture");
    const context = new OffscreenCanvas(2, 2).getContext("2d");
    context.drawImage(canvas, -x * (canvas.width - 1), -y * (canvas.height - 1));
    return context.getImageData(0, 0, 1, 1).data[1];
})"""


@pytest.mark.parametrize("by", ["webgl", "2d"])
async def test_half_the_size_is_not_cut_off(
    browser: chromium.Browser, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of each side is odd: the encoder scales it to one more."""
    monkeypatch.setattr(renditions, "HALVED", 0)
    inside, ends = 40, 220
    picture = np.full((362, 642, 3), inside, np.uint8)
    picture[-2:] = picture[:, -2:] = ends
    page = chromium.Page(browser)
    async with Broadcast() as hub, web.serve(hub, modes=["h264"]) as server:
        async with chromium.publishing(hub, picture, "rgb24"):
            await page.open(f"{server.url}?painter={by}")
            await page.until("viewer.sequence > 0")
            seen = await page.tell(LOOK_AT_ENDS)
        await page.open("about:blank")
    assert min(seen) > (inside + ends) / 2, seen
