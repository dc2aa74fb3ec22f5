"""``make demo``: an animated scene, rendered without a window, becomes ``demo.mp4``.

Each frame goes from the GPU into a slot of a pool, and from there into FFmpeg by the
fastest lane.  Afterwards FFmpeg counts the frames in the file, some frames go through a
lossless codec and must come back unchanged, and a contact sheet shows some frames.
"""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

import aiozerocopy as azc
from aiozerocopy import ffmpeg
from aiozerocopy.commands import scenes
from aiozerocopy.commands.film import Rendered, render
from aiozerocopy.commands.options import NUMBER, Parser, Size, count, output
from aiozerocopy.commands.progress import counted
from aiozerocopy.ffmpeg.run import failure

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from aiozerocopy.commands.scenes import Scene

SIZE, FPS = Size(1920, 1080), 60
FRAMES, CHECKED = 240, 30
SHEET = (4, 3)  # pictures across and down


async def decoded_digests(path: Path, pix_fmt: str) -> list[str]:
    """Return the hash of each frame that FFmpeg decodes from the file."""
    digests = []
    async with ffmpeg.Reader(str(path), pix_fmt=pix_fmt) as video:
        async for frame in video:
            with frame:
                digests.append(hashlib.sha256(frame.view).hexdigest())
    return digests


async def _render(scene: Scene, path: Path, frames: int, **options: Any) -> Rendered:
    film = {"size": SIZE, "fps": FPS, "frames": frames, **options}
    return await render(scene, str(path), path.name, **film)


async def check_lossless(scene: Scene, frames: int) -> tuple[Rendered, bool]:
    """Do frames come back from a lossless codec unchanged?"""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lossless.mkv"
        options = ["-pix_fmt", "bgra" if scene.pix_fmt == "rgba" else "gbrp"]
        if scene.pix_fmt not in ("rgba", "rgb24"):
            options = []
        made = await _render(
            scene, path, frames, codec="ffv1", options=options, check=True
        )
        return made, await decoded_digests(path, scene.pix_fmt) == made.digests


async def contact_sheet(video: Path, frames: int, picture: Path) -> None:
    """Make one picture with frames from all parts of the file."""
    across, down = SHEET
    step = max(1, frames // (across * down))
    filters = f"select=not(mod(n\\,{step})),scale=480:-2,tile={across}x{down}:padding=8"
    command = [ffmpeg.find_ffmpeg(), "-v", "error", "-y", "-i", str(video)]
    command += ["-vf", filters, "-frames:v", "1", "-update", "1", str(picture)]
    async with azc.open_process(command, stdin=False) as process:
        if status := await process.wait():
            raise failure(status, process.stderr_tail)


def summary(made: Rendered) -> str:
    return (
        f"{counted(made.frames)}, {made.nbytes / 1e6:,.0f} MB in {made.seconds:.2f} s: "
        f"{made.frames / made.seconds:,.0f} fps, "
        f"{made.nbytes / made.seconds / 1e9:.2f} GB/s by {made.lane}, "
        f"{made.calls / made.frames:.0f} system calls a frame"
    )


async def run(options: argparse.Namespace) -> bool:
    """Render, encode and check; False if a frame is missing or has changed."""
    with contextlib.closing(scenes.demo_scene(SIZE, FPS)) as scene:
        print(
            f"{SIZE[0]} x {SIZE[1]} at {FPS} fps, {scene.pix_fmt}, drawn by "
            f"{scene.name}\nand encoded by {ffmpeg.find_ffmpeg()}\n"
        )
        output: Path = options.output
        made = await _render(scene, output, options.frames)
        decoded = len(await decoded_digests(output, "gray"))
        checked, same = await check_lossless(scene, options.checked_frames)
    # (not the pattern of all pictures' names, nor the name of one of them)
    sheet = output.with_name(NUMBER.sub("sheet", output.stem) + ".png")
    await contact_sheet(output, made.frames, sheet)
    whole = decoded == made.frames
    print(
        f"\n  {output.name}: {summary(made)}\n"
        f"    FFmpeg decodes {decoded} of them: {'all' if whole else 'NOT ALL'}\n"
        f"  lossless: {summary(checked)}\n"
        "    every decoded frame has the hash of the rendered one: "
        f"{'yes' if same else 'NO'}\n"
        f"\nLook at {output}\nand     {sheet}"
    )
    return whole and same


def _parser() -> Parser:
    parser = Parser(
        prog="aiozerocopy demo",
        description="Render an animated scene without a window into a film, check the "
        "film, and save some of its frames in a picture beside it.",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=output,
        default="demo.mp4",
        metavar="FILM",
        help="the film to write; its suffix decides the format",
    )
    parser.add_argument(
        "--frames", type=count, default=FRAMES, metavar="N", help="how many frames"
    )
    parser.add_argument(
        "--checked-frames",
        type=count,
        default=CHECKED,
        metavar="N",
        help="how many frames go through a lossless codec, and are compared bit by bit",
    )
    parser.add_argument(
        "--loop",
        choices=("asyncio", "uvloop"),
        default="asyncio",
        help="the event loop",
    )
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the demo; return 1 if a frame is missing or has changed."""
    options = _parser().parse_args(argv)
    options.output = Path(options.output).resolve()
    backend = {"use_uvloop": options.loop == "uvloop"}
    return 0 if anyio.run(run, options, backend_options=backend) else 1
