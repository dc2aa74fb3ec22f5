"""``aiozerocopy render SHADER.glsl -o out.mp4``: a fragment shader becomes a video."""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from aiozerocopy.commands import scenes
from aiozerocopy.commands.film import render
from aiozerocopy.commands.progress import frames_bar
from aiozerocopy.ffmpeg import FFmpegError

if TYPE_CHECKING:
    from collections.abc import Sequence


def size_of(text: str) -> tuple[int, int]:
    """``1920x1080`` as a pair."""
    width, _, height = text.partition("x")
    if not (width.isdecimal() and height.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not like 1920x1080")
    size = int(width), int(height)
    if min(size) < 2 or size[0] % 2 or size[1] % 2:
        raise argparse.ArgumentTypeError("width and height must be even, 2 at least")
    return size


def positive(text: str) -> float:
    """A number of seconds, or of frames in one."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return number


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="aiozerocopy render",
        description="Render a fragment shader with mainImage(out vec4, in vec2), which "
        "may use iResolution, iTime, iTimeDelta, iFrame, iFrameRate, iMouse and iDate.",
    )
    parser.add_argument("shader", type=Path, help="a GLSL file")
    parser.add_argument("-o", "--output", required=True, help="a file or URL")
    parser.add_argument(
        "--size", type=size_of, default=(1920, 1080), metavar="WxH", help="1920x1080"
    )
    parser.add_argument("--fps", type=positive, default=60.0)
    parser.add_argument("--duration", type=positive, default=5.0, metavar="SECONDS")
    parser.add_argument("--codec", default="libx264", help="one of FFmpeg's: libx264")
    parser.add_argument(
        "--pix-fmt", default="auto", help="what is read back: auto, rgba, yuv420p ..."
    )
    return parser


async def _run(options: argparse.Namespace, scene: scenes.Scene) -> str:
    frames = max(1, round(options.duration * options.fps))
    width, height = options.size
    with frames_bar(options.output, frames, width * height * 3) as tick:
        done = await render(
            scene,
            options.output,
            size=options.size,
            fps=options.fps,
            frames=frames,
            codec=options.codec,
            tick=tick,
        )
    return (
        f"{done.output}: {done.frames} frames in {done.seconds:.2f} s "
        f"({done.frames / done.seconds:,.0f} fps, {done.nbytes / 1e6:,.0f} MB of "
        f"{scene.pix_fmt} by {done.lane}), drawn by {scene.name}"
    )


def main(argv: Sequence[str]) -> int:
    """Render; 1 if the shader or FFmpeg refused."""
    options = _parser().parse_args(argv)
    try:
        source = options.shader.read_text()
        scene = scenes.ShaderScene(source, options.size, options.fps, options.pix_fmt)
    except ModuleNotFoundError:
        raise
    except Exception as error:
        print(f"aiozerocopy render: {options.shader}: {error}", file=sys.stderr)
        return 1
    try:
        print(anyio.run(_run, options, scene))
    except (FFmpegError, OSError, ValueError) as error:
        print(f"aiozerocopy render: {error}", file=sys.stderr)
        return 1
    finally:
        scene.close()
    return 0
