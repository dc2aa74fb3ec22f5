"""A real X server without a screen (Xvfb), and a program that draws on it for tests.

The program speaks the X protocol itself, over a blocking socket, and so shares nothing
with `aiozerocopy.capture`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import struct
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest

SIZE = WIDTH, HEIGHT = 160, 120
COLOURS = (0xFF0000, 0x00FF00, 0x0000FF, 0xFFFFFF, 0x7840C8, 0xFAC80A)


@dataclass
class Server:
    """A running Xvfb."""

    name: str  # of its display
    process: subprocess.Popen[bytes]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def as_bytes(colour: int, order: str = "bgr") -> Sequence[int]:
    """Return the bytes of a pixel, without the fourth."""
    return [colour >> 8 * (2 - "rgb".index(letter)) & 0xFF for letter in order]


@contextlib.contextmanager
def x_server(
    *arguments: str, size: tuple[int, int] = SIZE, depth: int = 24
) -> Iterator[Server]:
    """Start a small Xvfb; yield when it accepts clients."""
    program = shutil.which("Xvfb")
    if program is None:
        pytest.skip("needs Xvfb")
    told, tells = os.pipe()
    screen = f"{size[0]}x{size[1]}x{depth}"
    command = [program, "-displayfd", str(tells), "-screen", "0", screen]
    # (-noreset: else Xvfb would begin anew when its last client leaves)
    command += ["-nolisten", "tcp", "-noreset", *arguments]
    with open(told) as lines:
        try:
            # (in a session of its own, Ctrl-C does not reach it)
            process = subprocess.Popen(
                command,
                pass_fds=[tells],
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        finally:
            os.close(tells)
        number = lines.readline().strip()
    try:
        if not number:
            raise ChildProcessError(f"Xvfb does not start: {' '.join(command)}")
        yield Server(f":{number}", process)
    finally:
        # (a signal just before Xvfb sleeps does not wake it)
        while process.poll() is None:
            process.terminate()  # so that it removes its lock
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1)


class Painter:
    """A client that shows windows of one colour each, and moves them."""

    def __init__(self, display: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(f"/tmp/.X11-unix/X{display[1:]}")
        self._socket.sendall(struct.pack("=BxHHHHxx", ord("l"), 11, 0, 0, 0))
        head = self._receive(8)
        assert head[0] == 1
        setup = self._receive(4 * struct.unpack_from("=H", head, 6)[0])
        self._base, vendor = struct.unpack_from("=4xI8xH", setup)
        formats = setup[21]
        at = 32 + vendor + -vendor % 4 + 8 * formats
        self.root: int = struct.unpack_from("=I", setup, at)[0]
        self._windows = 0

    def _receive(self, n: int) -> bytes:
        data = b""
        while len(data) < n:
            more = self._socket.recv(n - len(data))
            assert more, "the X server has gone"
            data += more
        return data

    def _send(self, opcode: int, detail: int, layout: str, *values: int) -> None:
        body = struct.pack(f"={layout}", *values)
        head = struct.pack("=BBH", opcode, detail, 1 + len(body) // 4)
        self._socket.sendall(head + body)

    def _ask(self, opcode: int, detail: int, layout: str, *values: int) -> bytes:
        self._send(opcode, detail, layout, *values)
        while (head := self._receive(32))[0] > 1:
            continue
        assert head[0] == 1, f"error {head[1]}"
        return head + self._receive(4 * struct.unpack_from("=I", head, 4)[0])

    def finish(self) -> None:
        """Return when the server has done everything."""
        self._ask(43, 0, "")

    def window(self, colour: int, x: int, y: int, width: int, height: int) -> int:
        """Show a window of one colour, out of reach of a window manager."""
        self._windows += 1
        window: int = self._base + self._windows
        pixel_and_unmanaged = 1 << 1 | 1 << 9
        place = (x, y, width, height, 0, 1, 0)
        values = (pixel_and_unmanaged, colour, 1)
        self._send(1, 0, "IIhhHHHHIIII", window, self.root, *place, *values)
        self._send(8, 0, "I", window)
        self.finish()
        return window

    def move(self, window: int, x: int, y: int) -> None:
        self._send(12, 0, "IHxxii", window, 0b11, x, y)
        self.finish()

    def point(self, x: int, y: int) -> None:
        """Move the mouse's pointer there."""
        self._send(41, 0, "IIhhHHhh", 0, self.root, 0, 0, 0, 0, x, y)
        self.finish()

    def _ask_named(self, opcode: int, name: str) -> bytes:
        text = name.encode() + bytes(-len(name) % 4)
        body = struct.pack(f"=Hxx{len(text)}s", len(name), text)
        head = struct.pack("=BBH", opcode, 0, 1 + len(body) // 4)
        self._socket.sendall(head + body)
        return self._receive(32)

    def monitor(self, name: str, x: int, y: int, width: int, height: int) -> None:
        """Declare a part of the screen a monitor."""
        randr = self.extension("RANDR")
        self._ask(randr, 0, "II", 1, 5)
        (atom,) = struct.unpack_from("=I", self._ask_named(16, name), 8)
        place = (x, y, width, height, width, height)
        self._send(randr, 43, "IIBBHhhHHII", self.root, atom, 0, 0, 0, *place)
        self.finish()

    def extension(self, name: str) -> int:
        """Return the opcode of an extension's requests."""
        reply = self._ask_named(98, name)
        assert reply[8], f"the X server has no {name}"
        return int(reply[9])

    def resize(self, width: int, height: int) -> None:
        """Change the size of the screen, as xrandr does."""
        randr = self.extension("RANDR")
        self._ask(randr, 0, "II", 1, 5)
        resources = self._ask(randr, 8, "I", self.root)
        now, changed, count = struct.unpack_from("=IIH", resources, 8)
        for crtc in struct.unpack_from(f"={count}I", resources, 32):
            self._ask(randr, 21, "IIIhhIHxx", crtc, now, changed, 0, 0, 0, 1)
        self._send(randr, 7, "IHHII", self.root, width, height, width, height)
        self.finish()

    def close(self) -> None:
        """Remove the windows, unless the server is gone."""
        with contextlib.suppress(OSError, AssertionError):
            for number in range(1, self._windows + 1):
                self._send(4, 0, "I", self._base + number)
            self.finish()
        self._socket.close()

    def __enter__(self) -> Painter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
