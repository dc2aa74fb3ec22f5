"""``aiozerocopy render SHADER.glsl -o out.mp4``: a fragment shader becomes a video."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import anyio

from aiozerocopy.commands import scenes
from aiozerocopy.commands.film import QUICK, pad_in_silence, render
from aiozerocopy.commands.options import (
    Parser,
    Size,
    add_film,
    add_picture,
    ffmpeg_option,
    file,
    refuse_pictures,
    seconds,
)
from aiozerocopy.commands.progress import counted
from aiozerocopy.ffmpeg.codecs import PRESETS, QUALITIES

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from pathlib import Path


def _parser() -> Parser:
    parser = Parser(
        prog="aiozerocopy render",
        description="Render a fragment shader with mainImage(out vec4, in vec2), which "
        "may use iResolution, iTime, iTimeDelta, iFrame, iFrameRate, iMouse and iDate.",
    )
    parser.add_argument("shader", type=file, help="a GLSL file")
    add_film(parser)
    add_picture(parser, Size(1920, 1080), 60)
    parser.add_argument(
        "--duration",
        type=seconds,
        default=5.0,
        metavar="SECONDS",
        help="length of the film",
    )
    rate = parser.add_mutually_exclusive_group()
    rate.add_argument(
        "--quality",
        choices=QUALITIES,
        help="quality, instead of a --bitrate (default: the encoder's own)",
    )
    parser.add_argument(
        "--preset",
        choices=PRESETS,
        metavar="NAME",
        help=f"the encoder's speed, ultrafast to veryslow (default: {QUICK})",
    )
    rate.add_argument("--bitrate", metavar="RATE", help="bits a second, such as 5M")
    parser.add_argument(
        "--ffmpeg-option",
        action="extend",
        default=[],
        type=ffmpeg_option,
        metavar="NAME=VALUE",
        help="an output option of FFmpeg, such as tune=animation; may be repeated",
    )
    parser.add_argument(
        "--pix-fmt",
        default="auto",
        metavar="NAME",
        help="pixels to read from the GPU: rgba, rgb24, yuv420p, nv12 or auto",
    )
    return parser


async def run(options: argparse.Namespace, scene: scenes.Scene) -> str:
    """Render the film; return a line about it."""
    if not options.overwrite:
        refuse_pictures(options.output)
    frames = max(1, round(options.duration * options.fps))
    made = await render(
        scene,
        options.output,
        options.output,
        size=options.size,
        fps=options.fps,
        frames=frames,
        codec=options.codec,
        quality=options.quality,
        preset=options.preset,
        bitrate=options.bitrate,
        options=options.ffmpeg_option,
        overwrite=options.overwrite,
    )
    return (
        f"{made.output}: {counted(made.frames)} in {made.seconds:.2f} s "
        f"({made.frames / made.seconds:,.0f} fps, {made.nbytes / 1e6:,.0f} MB of "
        f"{scene.pix_fmt} by {made.lane}), drawn by {scene.name}"
    )


def main(argv: Sequence[str]) -> int:
    """Render; return 0 or raise."""
    options = _parser().parse_args(argv)
    pad_in_silence()
    with contextlib.closing(_scene(options)) as scene:
        print(anyio.run(run, options, scene))
    return 0


def _scene(options: argparse.Namespace) -> scenes.Scene:
    shader: Path = options.shader
    try:
        return scenes.ShaderScene(
            shader.read_text(), options.size, float(options.fps), options.pix_fmt
        )
    except (ModuleNotFoundError, OSError):
        raise
    except UnicodeDecodeError as error:
        raise ValueError(f"{shader} is not text: write a shader in GLSL") from error
    except scenes.ShaderError as error:
        raise scenes.ShaderError(f"{shader}: {error}") from error
    except ValueError as error:
        raise ValueError(f"--pix-fmt: {error}") from error
    except Exception as error:  # an error of the driver may have any type
        raise scenes.ShaderError(f"{shader}: {error}") from error
