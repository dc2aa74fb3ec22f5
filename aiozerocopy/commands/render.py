"""``aiozerocopy render SHADER.glsl -o out.mp4``: a fragment shader becomes a video."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from aiozerocopy.commands import scenes
from aiozerocopy.commands.film import render
from aiozerocopy.commands.options import add_picture, ffmpeg_option, seconds
from aiozerocopy.commands.progress import frames_bar
from aiozerocopy.ffmpeg import FFmpegError
from aiozerocopy.ffmpeg.encoders import PRESETS, QUALITIES

if TYPE_CHECKING:
    from collections.abc import Sequence


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="aiozerocopy render",
        description="Render a fragment shader with mainImage(out vec4, in vec2), which "
        "may use iResolution, iTime, iTimeDelta, iFrame, iFrameRate, iMouse and iDate.",
    )
    parser.add_argument("shader", type=Path, help="a GLSL file")
    parser.add_argument("-o", "--output", required=True, help="a file or URL")
    add_picture(parser, (1920, 1080), 60)
    parser.add_argument("--duration", type=seconds, default=5.0, metavar="SECONDS")
    parser.add_argument(
        "--codec", help="an encoder of FFmpeg's, or auto: hardware if that works here"
    )
    parser.add_argument("--quality", choices=QUALITIES)
    parser.add_argument(
        "--preset", choices=PRESETS, metavar="NAME", help="ultrafast to veryslow"
    )
    parser.add_argument("--bitrate", metavar="RATE", help="such as 5M")
    parser.add_argument(
        "--ffmpeg-option",
        action="append",
        default=[],
        type=ffmpeg_option,
        metavar="NAME=VALUE",
        help="for FFmpeg's output, such as tune=animation; may be said again",
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="replace a file that is there"
    )
    parser.add_argument(
        "--pix-fmt", default="auto", help="what is read back: auto, rgba, yuv420p ..."
    )
    return parser


async def run(options: argparse.Namespace, scene: scenes.Scene) -> str:
    """Render all of it; the line that says how that went."""
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
            quality=options.quality,
            preset=options.preset,
            bitrate=options.bitrate,
            options=dict(options.ffmpeg_option),
            overwrite=options.overwrite,
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
        scene = scenes.ShaderScene(
            source, options.size, float(options.fps), options.pix_fmt
        )
    except ModuleNotFoundError:
        raise
    except Exception as error:
        print(f"aiozerocopy render: {options.shader}: {error}", file=sys.stderr)
        return 1
    try:
        print(anyio.run(run, options, scene))
    except FileExistsError:
        print(
            f"aiozerocopy render: {options.output} is there already: --overwrite "
            "replaces it",
            file=sys.stderr,
        )
        return 1
    except (FFmpegError, OSError, ValueError) as error:
        print(f"aiozerocopy render: {error}", file=sys.stderr)
        return 1
    finally:
        scene.close()
    return 0
