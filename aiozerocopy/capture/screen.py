"""X11Screen: pictures of a screen, which the server copies into a pool's slots.

Two lanes.  "shm": the server maps the pool's file and copies each picture into a slot.
"socket": the picture comes through the connection, for a server on another machine or
without MIT-SHM 1.2.

A slot has the states of every pool's slots (see `aiozerocopy.pool`).  An `Answer` keeps
it while the server may write to it; `damage` knows which rows have changed since it was
filled.  A picture that is copied as a whole shows one moment.
"""

from __future__ import annotations

import contextlib
import math
import operator
import warnings
import weakref
from typing import TYPE_CHECKING, Any

import anyio

from aiozerocopy._core import extras
from aiozerocopy._core.change import Turns, in_turn
from aiozerocopy._core.failure import Failure
from aiozerocopy.capture import x11
from aiozerocopy.capture.connection import Answer, Connection, list_monitors
from aiozerocopy.capture.damage import Damage, Rows
from aiozerocopy.capture.display import Display
from aiozerocopy.capture.slots import HAS_FILES, ScreenPool, Screenshot
from aiozerocopy.capture.x11 import Cursor, Rectangle, ScreenChanged, ScreenError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Generator, Sequence
    from fractions import Fraction

    from typing_extensions import Self

    from aiozerocopy.pool import Frame

DRAWABLE = ("bgr0", "rgb0", "0rgb", "0bgr")  # a cursor can be drawn over these
_SHM_WITH_FDS = (1, 2)
CURSOR_RATE = 60  # times a second to ask whether the pointer has moved
_MOST_MEMORY = 1 << 32  # bytes: the protocol's offsets have 32 bits


class X11Screen:
    """A screen of an X server; await it, or use it with ``async with``.

    ``display`` is a name such as ":0", by default that in DISPLAY.  The pictures show
    the whole screen, a ``region`` (x, y, width, height) of it, or the ``monitor`` with
    that name; size and place are those at the opening.  ``cursor`` draws the mouse
    pointer over them, which needs NumPy.

    The pictures lie in ``slots`` slots.  The next picture waits until a slot is free:
    its frame was released, and no views, arrays or sends of it are left.  Frames that
    you keep stay valid after `aclose`, and when the server has gone.

    It belongs to the event loop in which it was opened.
    """

    def __init__(
        self,
        display: str | None = None,
        region: Sequence[int] | None = None,
        slots: int = 3,
        monitor: str | None = None,
        cursor: bool = False,
    ) -> None:
        """Check the arguments; the opening connects to the server.

        Raises:
            ValueError: an argument makes no sense.
            ScreenError: no display was named.
        """
        if region is not None and monitor is not None:
            raise ValueError("give a region or a monitor, not both")
        if slots < 1:
            raise ValueError(f"slots must be at least 1, not {slots}")
        self._wanted = None if region is None else _checked(region)
        self._display = Display.named(display)
        self.display: str = self._display.name
        self._monitor = monitor
        self._cursor = cursor
        self._slots = slots
        self._connection: Connection | None = None
        self._is_opened = False

    # ---- the beginning -----------------------------------------------------------

    async def _open(self) -> Self:
        """Connect to the server.

        Raises:
            ScreenError: there is no X server, it refuses us or a request, FFmpeg has no
                name for its pixel format, or it has no XFIXES for the cursor.
            ValueError: a region off the screen, an unknown monitor, rows with a gap at
                their end, or a cursor over pixels that cannot be drawn over.
        """
        if self._is_opened:
            raise RuntimeError("this X11Screen was opened before")
        self._is_opened = True
        connection = await Connection.open(self._display)
        try:
            await self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return self

    async def _prepare(self, connection: Connection) -> None:
        self._setup = setup = connection.setup
        self.pix_fmt: str = setup.pix_fmt
        self.lane: str = "socket"
        self._extensions = await connection.extensions()
        connection.listeners.append(weakref.WeakMethod(self._hear))
        connection.tell(x11.watch_size(setup.root))
        geometry = await connection.query(x11.get_geometry(setup.root))
        self._whole = x11.geometry(geometry)
        self._changed_to: Rectangle | None = None
        self.region: Rectangle = await self._region(connection)
        self.size: tuple[int, int] = self.region[2:]
        self._check_pixels()
        self._segment = 0
        self._damage: Damage | None = None
        self._turns = Turns()  # of the calls of `_grab_changes`
        self._seen: Cursor | None = None  # the last cursor
        self.pool: ScreenPool = await self._new_pool(connection)

    async def _region(self, connection: Connection) -> Rectangle:
        region = self._wanted
        if self._monitor is not None:
            monitors = await list_monitors(connection, self._extensions, self._whole)
            found = {one.name: one for one in monitors}
            if self._monitor not in found:
                raise ValueError(
                    f"no monitor is called {self._monitor!r}: there is only "
                    f"{' and '.join(map(repr, found))}"
                )
            region = found[self._monitor].place.within(self._whole)
        if region is None:
            return self._whole
        if region.within(self._whole) != region:
            raise ValueError(
                f"the region {region} is not entirely on the screen, {self._whole}"
            )
        return region

    def _check_pixels(self) -> None:
        setup, width = self._setup, self.size[0]
        if not setup.pix_fmt:
            raise ScreenError(
                f"FFmpeg has no pixel format for a screen of depth {setup.depth}: "
                "set its depth to 24"
            )
        if width * setup.pixel_bytes % setup.row_unit:
            raise ValueError(
                f"rows of {width} pixels of {setup.pix_fmt} have a gap at their end: "
                "take an even width"
            )
        if self._cursor and "XFIXES" not in self._extensions:
            raise ScreenError("the X server does not show its cursor: it has no XFIXES")
        if self._cursor and setup.pix_fmt not in DRAWABLE:
            raise ValueError(f"no cursor can be drawn over {setup.pix_fmt}")

    async def _new_pool(self, connection: Connection) -> ScreenPool:
        width, height = self.size
        pixel = self._setup.pixel_bytes
        shape: tuple[int, ...] = (height, width)
        dtype = f"uint{8 * pixel}"
        if self.pix_fmt in DRAWABLE:
            shape, dtype = (*shape, pixel), "uint8"
        self._row_bytes = width * pixel
        fits = self._row_bytes * height * self._slots < _MOST_MEMORY
        if HAS_FILES and fits and connection.is_local and "MIT-SHM" in self._extensions:
            pool = ScreenPool(shape, dtype, self._slots, in_file=True)
            try:
                if await self._attach(connection, pool.file.fileno()):
                    self.lane = "shm"
                    return pool
            finally:
                pool.file.close()
        return ScreenPool(shape, dtype, self._slots, in_file=False)

    async def _attach(self, connection: Connection, fd: int) -> bool:
        """Give the server the pool's file; False if that fails, as when a proxy between
        us and the server does not pass on fds."""
        shm, _ = self._extensions["MIT-SHM"]
        version = await connection.query(x11.shm_version(shm))
        if x11.version_of(version, "=HH") < _SHM_WITH_FDS:
            return False
        segment = connection.new_id()
        attached = connection.ask(x11.shm_attach_fd(shm, segment), fd=fd)
        await connection.query(x11.get_input_focus())
        self._segment = segment
        return not attached.refusal

    def __await__(self) -> Generator[Any, None, Self]:
        return self._open().__await__()

    async def __aenter__(self) -> Self:
        return await self._open()

    # ---- pictures ------------------------------------------------------------------

    async def grab(self) -> Screenshot:
        """Return the screen as it is once a slot is free.  You may write to its bytes.

        Raises:
            ScreenError: the server refused; `ScreenLost`: it has gone;
                `ScreenChanged`: the screen's size has changed, and the pictures are not
                of a region that is still on it.
            anyio.ClosedResourceError: the screen is closed.
        """
        return await self._grab(0)

    async def _grab(self, number: int) -> Screenshot:
        connection = self._usable()
        with await self._acquire(connection) as frame:
            if self._damage is not None:
                self._damage.spoil(self.pool.number_of(frame.view))
            cursor = self._ask_cursor(connection)
            await self._fetch(connection, frame, [(0, self.size[1])])
            if cursor is not None:
                self._draw(x11.cursor(await connection.answer(cursor)), frame)
            self._usable()
            return Screenshot(frame.view, frame, self.pix_fmt, None, number)

    def frames(
        self, rate: float | Fraction | None = None, *, damage: bool = False
    ) -> AsyncIterator[Screenshot]:
        """Return pictures, one at each due time; release each after its use.

        ``rate`` is how many are due in a second; without it, a picture is due when you
        ask for it.  If you or the server are late, the missed pictures are left out:
        `Screenshot.number` shows that.

        With ``damage`` there is a picture only if something has changed (with a cursor,
        60 times a second at most, unless a rate is given).  Only rows that have changed
        are copied, and the picture is read-only.  Only one task at a time can receive
        such pictures.

        Raises: as `grab`, here or when you ask for a picture; ValueError for a rate
            that is not positive, ScreenError if the server does not report changes.
        """
        if rate is not None and not 0 < rate < math.inf:
            raise ValueError(f"the rate must be a positive number, not {rate}")
        if damage:
            connection, found = self._usable(), self._extensions
            if self._damage is None:
                self._damage = Damage(connection, found, self.region, self._slots)
            self._damage.forget()
        if rate is None and damage and self._cursor:
            rate = CURSOR_RATE
        return _Pictures(self, None if rate is None else float(rate), damage)

    async def _acquire(self, connection: Connection) -> Frame:
        """Return a free slot.  Read while waiting: the server may still have a slot for
        a grab that was cancelled."""
        with contextlib.suppress(anyio.WouldBlock):
            return self.pool.acquire_nowait()
        frame: Frame | None = None
        failure: Failure[Exception] | None = None

        async def read() -> None:
            nonlocal failure
            try:
                await connection.until(lambda: False)
            except (ScreenError, anyio.ClosedResourceError) as error:
                failure = Failure(error)
                tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            with contextlib.suppress(anyio.ClosedResourceError):  # the screen is, too
                frame = await self.pool.acquire()
                tasks.cancel_scope.cancel()
        if failure is not None:
            if frame is not None:
                frame.release()
            raise failure.again()
        assert frame is not None
        return frame

    # (A cancel's traceback keeps the variables of the methods below.  Of these only
    # ``frame``, which is released, may refer to a slot's memory.)

    async def _fetch(self, connection: Connection, frame: Frame, rows: Rows) -> None:
        """Have the server copy these rows of the screen to their place in a slot."""
        answers = [self._ask_rows(connection, frame, *band) for band in rows]
        try:
            for answer in answers:
                await connection.answer(answer)
        except ScreenError:  # this may be the first sign of a new size
            if connection.lost is None:
                geometry = await connection.query(x11.get_geometry(self._setup.root))
                self._resize(x11.geometry(geometry))
                self._usable()
            raise

    def _ask_rows(
        self, connection: Connection, frame: Frame, top: int, bottom: int
    ) -> Answer:
        root, (x, y, width, _) = self._setup.root, self.region
        part = Rectangle(x, y + top, width, bottom - top)
        first, last = top * self._row_bytes, bottom * self._row_bytes
        if self.lane == "socket":
            request = x11.get_image(root, part)
            return connection.ask(request, into=frame.view[first:last])
        shm, _ = self._extensions["MIT-SHM"]
        offset = self.pool.number_of(frame.view) * self.pool.stride + first
        request = x11.shm_get_image(shm, root, part, self._segment, offset)
        return connection.ask(request, keeps=frame.view)

    # ---- the cursor ------------------------------------------------------------------

    def _ask_cursor(self, connection: Connection) -> Answer | None:
        if not self._cursor:
            return None
        xfixes, _ = self._extensions["XFIXES"]
        return connection.ask(x11.get_cursor(xfixes))

    def _draw(self, cursor: Cursor, frame: Frame) -> Rectangle | None:
        return draw(cursor, frame.array, self.region, self.pix_fmt)

    # ---- damage ----------------------------------------------------------------------

    def _has_news(self) -> bool:
        damaged = self._damage is None or self._damage.has_news
        return damaged or self._changed_to is not None

    @in_turn
    async def _grab_changes(self, number: int) -> Screenshot | None:
        """Return a picture; None if nothing has changed since the last one."""
        damage = self._damage
        assert damage is not None
        connection = self._usable()
        with await self._acquire(connection) as frame:
            await damage.take()
            cursor = await self._look_for_cursor(connection, damage)
            if damage.is_reported:
                return None
            slot = self.pool.number_of(frame.view)
            await self._fetch(connection, frame, damage.spoil(slot))
            drawn = None if cursor is None else self._draw(cursor, frame)
            damage.mend(slot, but=drawn)
            view, changed = frame.view.toreadonly(), damage.report()
            self._usable()
            return Screenshot(view, frame, self.pix_fmt, changed, number)

    async def _look_for_cursor(
        self, connection: Connection, damage: Damage
    ) -> Cursor | None:
        """Return the cursor, if it is wanted; note if it has moved or changed."""
        asked = self._ask_cursor(connection)
        if asked is None:
            return None
        before, cursor = self._seen, x11.cursor(await connection.answer(asked))
        self._seen = cursor
        if before is None or before[:2] != cursor[:2]:
            damage.note([one.place for one in (before, cursor) if one is not None])
        return cursor

    # ---- the end ---------------------------------------------------------------------

    def _hear(self, event: bytes) -> None:
        if event[0] & 0x7F == x11.CONFIGURE_NOTIFY:
            window, size = x11.new_size(event)
            if window == self._setup.root:
                self._resize(size)

    def _resize(self, size: Rectangle) -> None:
        """Note a new size; a region that is still on the screen stays usable."""
        if size == self._whole:
            return
        if self._wanted is not None and self._wanted.within(size) == self._wanted:
            self._whole = size
        else:
            self._changed_to = size

    def _usable(self) -> Connection:
        if self._connection is None:
            raise RuntimeError("this X11Screen is not open: use it with async with")
        if self._connection.is_closed:
            raise anyio.ClosedResourceError("the screen is closed")
        if (now := self._changed_to) is not None:
            raise ScreenChanged(
                f"the screen's size changed to {now.width}x{now.height}, from "
                f"{self._whole.width}x{self._whole.height}: open it again"
            )
        return self._connection

    async def aclose(self) -> None:
        """Disconnect from the server.  Frames that you keep stay valid; a task that
        waits for a frame gets ClosedResourceError."""
        if self._connection is not None:
            self.pool.close()
            self._connection.close()

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        connection = getattr(self, "_connection", None)
        if connection is not None and not connection.is_closed:
            warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=1)

    def __repr__(self) -> str:
        name = self._display.name
        if self._connection is None:
            return f"<X11Screen {name}, not open>"
        return f"<X11Screen {name}, {self.region} {self.pix_fmt} by {self.lane}>"


class _Pictures:
    """What `X11Screen.frames` returns.  A cancelled wait may be repeated.

    The due times are numbered from 0; without a rate, each picture is due at once.
    """

    def __init__(self, screen: X11Screen, rate: float | None, damage: bool) -> None:
        self._screen = screen
        self._rate = rate
        self._damage = damage
        self._began: float | None = None
        self._number = -1

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Screenshot:
        screen = self._screen
        if not self._damage:
            return await screen._grab(await self._due())
        while True:
            if not screen._cursor:
                await screen._usable().until(screen._has_news)
            picture = await screen._grab_changes(await self._due())
            if picture is not None:
                return picture

    async def _due(self) -> int:
        """Wait for the next due time, and return its number; skip missed ones."""
        now = anyio.current_time()
        if self._began is None:
            self._began = now
        number = self._number + 1
        if self._rate is not None:
            late = math.floor((now - self._began) * self._rate)
            number = max(number, late)
            await anyio.sleep_until(self._began + number / self._rate)
        self._number = number  # (a cancelled wait leaves its due time to the next)
        return number


def _checked(region: Sequence[int]) -> Rectangle:
    try:
        wanted = Rectangle(*map(operator.index, region))
    except TypeError:
        raise ValueError(
            f"region must be four whole numbers, x, y, width, height, not {region!r}"
        ) from None
    if min(wanted.width, wanted.height) < 1:
        raise ValueError(f"a region of {wanted} has no pixels")
    return wanted


def draw(
    cursor: Cursor, picture: Any, region: Rectangle, pix_fmt: str
) -> Rectangle | None:
    """Draw a cursor over the picture of a region; return the part that was drawn.

    The picture is an array of the shape (height, width, 4), in bytes.
    """
    with extras.optional("a picture with the cursor", "capture"):
        import numpy

    shown = cursor.place.within(region)
    if shown is None:
        return None
    x, y, width, height = shown.seen_from(region)
    left, top, _, _ = shown.seen_from(cursor.place)
    size = (cursor.place.height, cursor.place.width)
    pixels = numpy.frombuffer(cursor.pixels, "u4").reshape(size)
    part = pixels[top : top + height, left : left + width, None]
    order = [8 * "bgr".index(letter) if letter != "0" else 24 for letter in pix_fmt]
    colours = part >> numpy.array(order, "u4") & 0xFF  # already multiplied by alpha
    under = picture[y : y + height, x : x + width]
    under[:] = colours + (under * (255 - (part >> 24)) + 127) // 255
    return Rectangle(x, y, width, height)
