"""RGB to YUV and back: compared with formulas in doubles, and with plain C."""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tensors import Tensor

from aiozerocopy import FramePool
from aiozerocopy.frames import Colour, Conversion, to_nv12, to_rgb, to_yuv420p

Doubles = NDArray[np.float64]
Bytes = NDArray[np.uint8]

TESTS = Path(__file__).parents[1]
CSRC = TESTS.parent / "csrc"
PARTS = {"bt709": (0.2126, 0.0722), "bt601": (0.299, 0.114), "bt2020": (0.2627, 0.0593)}
COLOURS = [
    Colour(matrix, full, chroma)  # type: ignore[arg-type]
    for matrix in PARTS
    for full in (False, True)
    for chroma in ("left", "center")
]
# Rounding may add 0.5; fixed point adds less than 0.1.
CLOSE = 0.6


class Exact:
    """The formulas of the standards, without rounding."""

    def __init__(self, colour: Colour) -> None:
        self.colour = colour
        red, blue = PARTS[colour.matrix]
        self.luma = np.array([red, 1 - red - blue, blue])
        self.black = 0 if colour.full_range else 16
        scales = (1.0, 1.0) if colour.full_range else (219 / 255, 224 / 255)
        self.y_range, self.c_range = scales

    def planes(self, rgb: NDArray[Any]) -> tuple[Doubles, Doubles, Doubles]:
        red, _, blue = self.luma
        of_pixels = rgb.astype(float)
        luma = of_pixels @ self.luma
        at = self._where_chroma_is(of_pixels)
        grey = at @ self.luma
        u = (at[..., 2] - grey) / (2 * (1 - blue)) * self.c_range + 128
        v = (at[..., 0] - grey) / (2 * (1 - red)) * self.c_range + 128
        return luma * self.y_range + self.black, u, v

    def _where_chroma_is(self, rgb: Doubles) -> Doubles:
        height, width, _ = rgb.shape
        around = np.pad(rgb, ((0, height % 2), (1, 1 + width % 2), (0, 0)), "edge")
        rows = (around[0::2] + around[1::2]) / 2
        here = rows[:, 1:-1:2]
        if self.colour.chroma == "center":
            return (here + rows[:, 2::2][:, : here.shape[1]]) / 2
        before, after = rows[:, 0:-2:2], rows[:, 2::2]
        n = here.shape[1]
        return (before[:, :n] + 2 * here + after[:, :n]) / 4

    def pixels(self, y: NDArray[Any], u: NDArray[Any], v: NDArray[Any]) -> Doubles:
        """Use each chroma sample for the pixels from which it was made."""
        height, width = y.shape
        u, v = (
            np.repeat(np.repeat((plane - 128.0) / self.c_range, 2, 0), 2, 1)
            for plane in (u, v)
        )
        grey = (y - float(self.black)) / self.y_range
        red = grey + 2 * (1 - self.luma[0]) * v[:height, :width]
        blue = grey + 2 * (1 - self.luma[2]) * u[:height, :width]
        green = (grey - self.luma[0] * red - self.luma[2] * blue) / self.luma[1]
        return np.stack([red, green, blue], -1)


def planes_of(
    picture: Bytes, size: tuple[int, int], yuv: str
) -> tuple[Bytes, Bytes, Bytes]:
    width, height = size
    wide, high = -(-width // 2), -(-height // 2)
    flat = picture.reshape(-1)
    y, chroma = flat[: width * height].reshape(height, width), flat[width * height :]
    if yuv == "nv12":
        pairs = chroma.reshape(high, wide, 2)
        return y, pairs[..., 0], pairs[..., 1]
    return (
        y,
        chroma[: wide * high].reshape(high, wide),
        chroma[wide * high :].reshape(high, wide),
    )


def error(given: NDArray[Any], exact: Doubles) -> float:
    return float(np.abs(given - np.clip(exact, 0, 255)).max())


@pytest.mark.parametrize("colour", COLOURS, ids=str)
def test_random_pictures(colour: Colour, dice: np.random.Generator) -> None:
    exact = Exact(colour)
    formats = itertools.product(("rgb24", "bgra", "rgba", "bgr24"), ("yuv420p", "nv12"))
    for rgb, yuv in formats:
        for size in ((1, 1), (2, 3), (33, 5), (64, 64), (131, 7), (642, 10)):
            conversion = Conversion(rgb, yuv, size, colour)
            pixels = dice.integers(0, 256, conversion.rgb_shape, np.uint8)
            if dice.random() < 0.3:
                pixels = (pixels >> 7) * np.uint8(255)  # the corners of the colour cube
            made = np.empty(conversion.yuv_shape, np.uint8)
            conversion.to_yuv(pixels, made)
            seen = pixels[..., 2::-1] if rgb.startswith("b") else pixels[..., :3]
            planes = planes_of(made, size, yuv)
            expected = exact.planes(seen)
            assert max(map(error, planes, expected)) < CLOSE
            back = np.empty_like(pixels)
            conversion.to_rgb(made, back)
            got = back[..., 2::-1] if rgb.startswith("b") else back[..., :3]
            assert error(got, exact.pixels(*planes)) < CLOSE
            assert (back[..., 3:] == 255).all()


@pytest.mark.parametrize("channels", [3, 4])
def test_rows_apart_or_upside_down(channels: int, dice: np.random.Generator) -> None:
    whole = dice.integers(0, 256, (40, 100, channels), np.uint8)
    for view in (whole[5:20, 10:71], whole[::-1], whole[::2], whole[30::-3, :64]):
        straight = np.ascontiguousarray(view)
        assert (to_yuv420p(view) == to_yuv420p(straight)).all()
        assert (to_nv12(memoryview(view)) == to_nv12(straight)).all()
        tensor: Any = Tensor(view)
        assert (to_yuv420p(tensor) == to_yuv420p(straight)).all()
        size, out = view.shape[1::-1], bytearray(to_yuv420p(view).nbytes)
        flipping = Conversion({3: "rgb24", 4: "rgba"}[channels], "yuv420p", size)
        for picture in (view, straight, straight.tobytes()):
            flipping.to_yuv(picture, out, flip=True)
            assert out == to_yuv420p(view[::-1]).tobytes()


def test_other_strides_are_refused() -> None:
    whole = np.zeros((8, 8, 3), np.uint8)
    for view in (whole[:, ::2], whole[..., ::-1], whole.transpose(1, 0, 2)):
        with pytest.raises(BufferError, match="C-contiguous"):
            to_yuv420p(view)


def test_frames_of_pools(dice: np.random.Generator) -> None:
    with FramePool((4, 6, 4)) as pictures, FramePool((6, 6)) as planes:
        picture, plane = pictures.acquire_nowait(), planes.acquire_nowait()
        picture.array[:] = dice.integers(0, 256, (4, 6, 4), np.uint8)
        assert to_yuv420p(picture, plane) is plane
        assert (plane.array == to_yuv420p(picture.array)).all()
        picture.release()
        plane.release()


def test_bytes_with_a_size() -> None:
    black = to_yuv420p(bytes(6 * 4 * 3), bytearray(36), size=(6, 4))
    assert black == b"\x10" * 24 + b"\x80" * 12
    white = to_nv12(b"\xff" * (6 * 4 * 4), bytearray(36), size=(6, 4), pix_fmt="bgr0")
    assert white == b"\xeb" * 24 + b"\x80" * 12
    assert to_rgb(white, (6, 4), bytearray(96), pix_fmt="rgba") == b"\xff" * 96


def test_size_may_be_any_sequence() -> None:
    size: Any = [6, 4]
    planes = to_yuv420p(bytes(6 * 4 * 3), bytearray(36), size=size)
    assert to_rgb(planes, size, bytearray(72)) == bytes(72)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: to_yuv420p(bytes(12)), "size=(width, height) is needed"),
        (lambda: to_yuv420p(np.zeros((2, 2, 2), np.uint8)), "pixels of 2 channels"),
        (lambda: to_yuv420p(bytes(12), size=(2, 2), pix_fmt="gray"), "'gray'"),
        (lambda: to_yuv420p(bytes(11), size=(2, 2)), "has 12 bytes, not 11"),
        (lambda: to_yuv420p(bytes(12), bytearray(5), size=(2, 2)), "6 bytes, not 5"),
        (lambda: to_rgb(bytes(7), (2, 2)), "2x2 yuv420p has 6 bytes, not 7"),
        (lambda: to_rgb(bytes(6), (2, 2), bytearray(11)), "12 bytes, not 11"),
        (lambda: to_rgb(bytes(6), (0, 2)), "sides must be from 1 to 32768, not 0x2"),
        (lambda: to_rgb(bytes(6), (2, 2), source="yuv444p"), "unknown YUV format"),
        (lambda: Colour("bt470"), "unknown matrix"),  # type: ignore[arg-type]
        (lambda: Colour(chroma="top"), "chroma must be"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_picture_is_refused(call: Any, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        call()


def test_read_only_memory_is_not_written() -> None:
    with pytest.raises(BufferError, match="read-only"):
        to_yuv420p(bytes(12), bytes(6), size=(2, 2))


# ---- in C --------------------------------------------------------------------------

SOURCES = [*sorted((CSRC / "colour").glob("*.c")), TESTS / "sim" / "pictures.c"]


def compare(compiler: str, folder: Path, *flags: str, under: list[str]) -> str:
    program = folder / "pictures"
    command = [compiler, "-std=c11", "-D_GNU_SOURCE=1", "-Wall", "-Wextra", "-Werror"]
    command += [*flags, f"-I{CSRC / 'colour'}", *map(str, SOURCES)]
    subprocess.run([*command, "-o", str(program)], check=True)
    done = subprocess.run(
        [*under, str(program)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")
def test_this_processor_does_as_plain_c(tmp_path: Path) -> None:
    sanitized = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
    compare("cc", tmp_path, "-O1", "-g", *sanitized, under=[])


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.skipif(
    not (shutil.which("aarch64-linux-gnu-gcc") and shutil.which("qemu-aarch64")),
    reason="needs a compiler for 64-bit ARM, and qemu-aarch64",
)
def test_arm_does_as_plain_c(tmp_path: Path) -> None:
    flags = ("-O2", "-static")
    under = ["qemu-aarch64"]
    assert compare("aarch64-linux-gnu-gcc", tmp_path, *flags, under=under) == "NEON"
