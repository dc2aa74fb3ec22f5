"""The messages of the X protocol that are needed to capture a screen.

Numbers are in this machine's byte order, which our first message tells the server.
Replies, errors and events begin with 32 bytes; a reply may have more.  The constants
are those of the X11 protocol and of MIT-SHM, RANDR, XFIXES and DAMAGE.
"""

from __future__ import annotations

import contextlib
import struct
import sys
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Request: TypeAlias = Callable[..., bytes]

HEAD = 32  # bytes that every message of the server has
ERROR, REPLY, GENERIC_EVENT = 0, 1, 35
CONFIGURE_NOTIFY = 22
EXTENSIONS = ("MIT-SHM", "RANDR", "XFIXES", "DAMAGE")

_BAD_NAMES = "Request Value Window Pixmap Atom Cursor Font Match Drawable Access Alloc"
ERRORS = {number: f"Bad{name}" for number, name in enumerate(_BAD_NAMES.split(), 1)}
_PIXMAP = 2  # the format of an image whose pixels are whole
_ALL_PLANES = 0xFFFFFFFF
_STRUCTURE = 1 << 17  # events: the size of the window
_WHEN_NOT_EMPTY = 3  # report damage once, until it is taken


class ScreenError(ConnectionError):
    """There is no such display, or its X server refused a request."""


class ScreenLost(ScreenError):
    """The X server has gone.  Frames that you keep stay valid."""


class ScreenChanged(ScreenError):
    """The screen has another size now.

    Pictures of the whole screen or of a monitor end, and so do those of a region that
    is no longer entirely on the screen.  Frames that you keep stay valid; open the
    screen again for the new size.
    """


class Rectangle(NamedTuple):
    """A part of a screen, in pixels: a region, a monitor, or a changed part."""

    x: int
    y: int
    width: int
    height: int

    def within(self, outer: Rectangle) -> Rectangle | None:
        """Return the part that is inside ``outer``; None if there is none."""
        x, y = max(self.x, outer.x), max(self.y, outer.y)
        right = min(self.x + self.width, outer.x + outer.width)
        bottom = min(self.y + self.height, outer.y + outer.height)
        return (
            Rectangle(x, y, right - x, bottom - y) if x < right and y < bottom else None
        )

    def seen_from(self, outer: Rectangle) -> Rectangle:
        """Return the same place, counted from the corner of ``outer``."""
        return self._replace(x=self.x - outer.x, y=self.y - outer.y)

    def __str__(self) -> str:
        return f"{self.width}x{self.height}{self.x:+}{self.y:+}"


@contextlib.contextmanager
def _sense(otherwise: str = "the X server sends invalid data") -> Iterator[None]:
    """Raise ScreenError if the message that the block reads is incomplete or wrong."""
    try:
        yield
    except (struct.error, LookupError, StopIteration, ValueError):
        raise ScreenError(otherwise) from None


# ---- the beginning -----------------------------------------------------------------


class Setup(NamedTuple):
    """The server's description of itself and of one of its screens."""

    resource_base: int
    root: int
    pix_fmt: str  # "" if FFmpeg has no name for it
    depth: int
    pixel_bytes: int
    row_unit: int  # each row has a multiple of these bytes


def hello(name: bytes, data: bytes) -> bytes:
    """Return the first message, with the cookie."""
    order = b"l" if sys.byteorder == "little" else b"B"
    sizes = struct.pack("=HHHHxx", 11, 0, len(name), len(data))
    return order + b"\0" + sizes + _padded(name) + _padded(data)


def refusal(head: bytes, rest: bytes) -> str | None:
    """Return why the server refuses the connection; None if it accepts it."""
    if head[0] == 1:
        return None
    said = rest[: head[1]] if head[0] == 0 else rest
    return said.decode("latin-1").strip("\0 \n") or "it does not say why"


@_sense("not an X server")
def setup(data: bytes, screen: int) -> Setup:
    """Read the description.  Raises: ScreenError: no such screen, or no X server."""
    base, vendor, screens, formats, order = struct.unpack_from("=4xI8xH2xBBB", data)
    if base >> 29:  # the first three bits of all ids are 0
        raise ValueError("numbers that no request could hold")
    at = 32 + vendor + -vendor % 4
    by_depth = {}
    for _ in range(formats):
        depth, bits, unit = struct.unpack_from("=BBB", data, at)
        by_depth[depth] = bits, unit
        at += 8
    if screen >= screens:
        raise ScreenError(f"no screen {screen}: the display has {screens}, from 0 on")
    for _ in range(screen):
        *_, (_, at) = _visuals(data, at)
    (root,) = struct.unpack_from("=I", data, at)
    (visual,) = struct.unpack_from("=I", data, at + 32)
    depth = data[at + 38]
    masks = next(masks for (one, masks), _ in _visuals(data, at) if one == visual)
    bits, unit = by_depth[depth]
    if unit not in (8, 16, 32):
        raise ValueError(f"rows that end at {unit} bits")
    pix_fmt = _PIXELS.get((bits, order, *masks), "")
    return Setup(base, root, pix_fmt, depth, bits // 8, unit // 8)


def _visuals(data: bytes, at: int) -> Iterator[tuple[tuple[int, tuple[int, ...]], int]]:
    """Yield the id and masks of each visual of a screen, and where the next item is."""
    depths, at = data[at + 39], at + 40
    for _ in range(depths):
        (count,) = struct.unpack_from("=H", data, at + 2)
        at += 8
        for _ in range(count):
            one, *masks = struct.unpack_from("=I4xIII", data, at)
            at += 24
            yield (one, tuple(masks)), at
        yield (0, ()), at


# By the bits of a pixel, "is the high byte first?", and the masks of the colours.
_PIXELS = {
    (32, 0, 0xFF0000, 0xFF00, 0xFF): "bgr0",
    (32, 0, 0xFF, 0xFF00, 0xFF0000): "rgb0",
    (32, 1, 0xFF0000, 0xFF00, 0xFF): "0rgb",
    (32, 1, 0xFF, 0xFF00, 0xFF0000): "0bgr",
    (32, 0, 0x3FF << 20, 0x3FF << 10, 0x3FF): "x2rgb10le",
    (16, 0, 0xF800, 0x7E0, 0x1F): "rgb565le",
    (16, 0, 0x7C00, 0x3E0, 0x1F): "rgb555le",
}


# ---- requests ----------------------------------------------------------------------


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)


def _request(major: int, minor: int = 0, layout: str = "", *values: int) -> bytes:
    body = struct.pack(f"={layout}", *values)
    return struct.pack("=BBH", major, minor, 1 + len(body) // 4) + body


def _extended(minor: int, layout: str = "", *always: int) -> Callable[..., bytes]:
    """Return a function that makes requests from the extension's number and values.

    ``always`` are the last values of each request.
    """
    return lambda major, *values: _request(major, minor, layout, *values, *always)


def query_extension(name: str) -> bytes:
    text = _padded(name.encode())
    return struct.pack("=BBHHxx", 98, 0, 2 + len(text) // 4, len(name)) + text


get_input_focus: Request = partial(_request, 43)  # a server always answers it
get_geometry: Request = partial(_request, 14, 0, "I")  # of a drawable
get_atom_name: Request = partial(_request, 17, 0, "I")
version: Request = _extended(0, "II")  # ours, major and minor
shm_version: Request = _extended(0)
# (with the segment's id; the fd is sent beside it)
shm_attach_fd: Request = _extended(6, "IBxxx", False)
get_monitors: Request = _extended(42, "IBxxx", True)  # of a window
create_region: Request = _extended(5, "I")
fetch_region: Request = _extended(19, "I")
get_cursor: Request = _extended(4)
# (with its id, and a drawable)
create_damage: Request = _extended(1, "IIBxxx", _WHEN_NOT_EMPTY)
take_damage: Request = _extended(3, "I4xI")  # (with its id, and a region to move it to)


def watch_size(window: int) -> bytes:
    return _request(2, 0, "III", window, 1 << 11, _STRUCTURE)


def get_image(drawable: int, part: Rectangle) -> bytes:
    return _request(73, _PIXMAP, "IhhHHI", drawable, *part, _ALL_PLANES)


def shm_get_image(
    shm: int, drawable: int, part: Rectangle, segment: int, offset: int
) -> bytes:
    layout = "IhhHHIBxxxII"
    how = (_ALL_PLANES, _PIXMAP, segment, offset)
    return _request(shm, 4, layout, drawable, *part, *how)


# ---- replies and events --------------------------------------------------------------


def extension(reply: bytes) -> tuple[int, int] | None:
    """Return the numbers of an extension's requests and events; None without it."""
    present, major, event = struct.unpack_from("=BBB", reply, 8)
    return (major, event) if present else None


def version_of(reply: bytes, layout: str = "=II") -> tuple[int, int]:
    major, minor = struct.unpack_from(layout, reply, 8)
    return major, minor


def geometry(reply: bytes) -> Rectangle:
    _, _, width, height = struct.unpack_from("=hhHH", reply, 12)
    return Rectangle(0, 0, width, height)


def new_size(event: bytes) -> tuple[int, Rectangle]:
    """Return a window and its size, from a ConfigureNotify."""
    window, width, height = struct.unpack_from("=I8xHH", event, 8)
    return window, Rectangle(0, 0, width, height)


@_sense()
def atom_name(reply: bytes) -> str:
    (length,) = struct.unpack_from("=H", reply, 8)
    if HEAD + length > len(reply):
        raise ValueError("a name that is not there")
    return reply[HEAD : HEAD + length].decode("latin-1")


@_sense()
def rectangles(reply: bytes) -> list[Rectangle]:
    return [Rectangle(*one) for one in struct.iter_unpack("=hhHH", reply[HEAD:])]


@_sense()
def monitors(reply: bytes) -> list[tuple[int, bool, Rectangle]]:
    """Return each monitor's name as an atom, "is it the primary?", and its place."""
    (count,) = struct.unpack_from("=I", reply, 12)
    at, found = HEAD, []
    for _ in range(count):
        atom, primary, outputs = struct.unpack_from("=IBxH", reply, at)
        place = Rectangle(*struct.unpack_from("=hhHH", reply, at + 8))
        found.append((atom, bool(primary), place))
        at += 24 + 4 * outputs
    return found


class Cursor(NamedTuple):
    """The picture of the mouse's pointer, and where it is on the screen."""

    place: Rectangle
    serial: int
    pixels: bytes  # 32 bits each: alpha, and colours, already multiplied by it


@_sense()
def cursor(reply: bytes) -> Cursor:
    x, y, width, height, hot_x, hot_y, serial = struct.unpack_from("=hhHHHHI", reply, 8)
    place = Rectangle(x - hot_x, y - hot_y, width, height)
    pixels = reply[HEAD : HEAD + 4 * width * height]
    if len(pixels) < 4 * width * height:
        raise ValueError("a picture that is not there")
    return Cursor(place, serial, pixels)


def request_that_failed(error: bytes, majors: dict[int, str]) -> str:
    """Return which request a server refused, and X11's name for the reason."""
    code, value, minor, major = struct.unpack_from("=xBxxIHB", error)
    name = ERRORS.get(code, f"error {code}")
    return (
        f"{name} for request {major}.{minor} of {majors.get(major, 'X11')} ({value:#x})"
    )
