"""Makes the viewer's pictures for the documentation, and says where they are.

    cd tests/support && ../../.venv/bin/python viewer_pictures.py

A sunset is watched for as long as the graph is wide, on a laptop and on a phone, by
somebody who likes it dark and by somebody who likes it light.
"""

from __future__ import annotations

import io
import itertools
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import browser as chromium
import numpy as np
from PIL import Image

import aiozerocopy as azc

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

PAGES = Path(__file__).parents[2] / "docs" / "pages"
WIDTH, HEIGHT, FPS, LOOP = 640, 360, 15, 60  # LOOP frames, again and again
SCREENS = {"laptop": (1280, 800, 1, False), "phone": (390, 844, 2, True)}
PAGE_COLOURS, PICTURE_COLOURS = 56, 96  # of the PNG: less than 60 KB each


PART = """(() => {
    const part = document.getElementById("stage").getBoundingClientRect().toJSON();
    for (const side in part) part[side] = Math.round(part[side] * devicePixelRatio);
    return part;
})()"""


def sunset(number: int) -> NDArray[np.uint8]:
    """A sky from violet to orange, a sun, and a sea that moves."""
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH] / HEIGHT
    glow = (0.1 + 0.9 * np.clip(y / 0.62, 0, 1) ** 1.6)[..., None]
    picture = (1 - glow) * (38, 24, 84) + glow * (255, 148, 74)
    away = np.hypot(x - 0.95, y - 0.5)
    picture += np.exp(-4 * away)[..., None] * (70, 60, 40)
    sun = np.clip((0.1 - away) * HEIGHT, 0, 1)[..., None]  # with a smooth edge
    picture = (1 - sun) * picture + sun * (255, 236, 200)
    depth = np.clip(y - 0.62, 0.004, 1)
    phase = 2 * np.pi * number / LOOP
    ripples = np.sin(3 / (depth + 0.05) + 4 * np.sin(6 * (x - 0.9) + phase) - 2 * phase)
    light = (0.5 + 0.5 * ripples)[..., None] * np.exp(-1.5 * np.abs(x - 0.95))[
        ..., None
    ]
    sea = (1 - light) * (30, 34, 84) + light * (226, 132, 112)
    picture[y > 0.62] = sea[y > 0.62]
    made: NDArray[np.uint8] = picture.clip(0, 255).astype(np.uint8)
    return made


async def publish(hub: azc.Broadcast) -> None:
    frames = [sunset(number).tobytes() for number in range(LOOP)]
    for frame in itertools.cycle(frames):
        array = np.frombuffer(frame, np.uint8).reshape(HEIGHT, WIDTH, 3)
        await hub.publish(array, pixel_format="rgb24")
        await anyio.sleep(1 / FPS)


def palette_of(image: Image.Image, colours: int) -> list[int]:
    quantized = image.quantize(colours, Image.Quantize.MAXCOVERAGE)  # also rare ones
    palette = quantized.getpalette()
    assert palette is not None
    return palette[: 3 * colours]


def small(png: bytes, part: dict[str, int]) -> Image.Image:
    """With few colours: some for the page, and others for the part with the picture."""
    with Image.open(io.BytesIO(png)) as image:
        whole = image.convert("RGB")
    page = whole.copy()
    box = (part["left"], part["top"], part["right"], part["bottom"])
    page.paste("black", box)
    colours = palette_of(page, PAGE_COLOURS)
    colours += palette_of(whole.crop(box), PICTURE_COLOURS)
    palette = Image.new("P", (1, 1))
    palette.putpalette(colours)
    return whole.quantize(palette=palette, dither=Image.Dither.NONE)


async def do(call: Callable[..., Any], *args: Any, **options: Any) -> Any:
    return await anyio.to_thread.run_sync(partial(call, *args, **options))


async def watch(browser: chromium.Browser, url: str) -> None:
    for screen, (width, height, scale, is_phone) in SCREENS.items():
        await do(browser.resize, width, height, scale, phone=is_phone)
        for scheme in ("dark", "light"):
            await do(browser.prefer, scheme)
            await do(browser.open, url)
            for seconds in (8, 16, 24, 31):  # (it waits no longer than 12 at a time)
                shown = f"performance.now() > {seconds * 1000}"
                await do(browser.wait_until, f"{shown} && viewer.state === 'live'")
            path = PAGES / f"viewer-{screen}-{scheme}.png"
            part = await do(browser.evaluate, PART)
            png = await do(browser.screenshot)
            small(png, part).save(path, optimize=True)
            print(f"{path}: {path.stat().st_size >> 10} KiB")


async def main() -> None:
    with chromium.running() as browser:
        async with azc.Broadcast() as hub:
            async with azc.web.serve(hub, title="Sunset at sea") as server:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(publish, hub)
                    await watch(browser, server.url)
                    tasks.cancel_scope.cancel()


if __name__ == "__main__":
    anyio.run(main)
