"""One connection to an X server: requests go out at once, replies come in order.

No task reads in the background.  The tasks that wait for answers read in turn, one
message at a time, and give each message to the answer that it is for.

The states of an `Answer`
    expected    the server may write to the memory that the answer keeps
    done        its reply or error has come, and it keeps nothing

An answer whose waiter was cancelled stays expected until a later reader gets its reply,
so no task gets memory that the server may still write to.  If only a part of a message
has come, the next reader continues it.

If a signal's exception comes between a system call and our note of it, we do not know
how many bytes were sent or received: then the connection is lost, and no slot counts as
free.

Requests are small and few, so the socket has room for them; if it has none, the
connection is lost.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import socket
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio

from aiozerocopy._core.change import Turns, in_turn
from aiozerocopy._core.failure import Failure
from aiozerocopy.capture import x11
from aiozerocopy.capture.display import Display
from aiozerocopy.capture.x11 import HEAD, ScreenError, ScreenLost

if TYPE_CHECKING:
    import weakref
    from collections.abc import Callable

    from aiozerocopy.capture.x11 import Rectangle

PATIENCE = 10.0  # seconds for the greeting; or for the next bytes of an answer
NEEDED = {"RANDR": (1, 5), "XFIXES": (2, 0), "DAMAGE": (1, 1)}  # versions
_MOST = 16 << 20  # bytes of a reply that is not a picture


@dataclass(eq=False, slots=True)
class Answer:
    """The answer to a request, before and after it has come."""

    sequence: int
    has_reply: bool
    into: memoryview | None = None  # where the picture goes
    keeps: object = None  # memory, until the server no longer writes to it
    is_done: bool = False
    data: bytes = b""
    refusal: str = ""

    def end(self, data: bytes = b"", refusal: str = "") -> None:
        self.data, self.refusal, self.is_done = data, refusal, True
        self.into = self.keeps = None


class Connection:
    """A client of an X server.  It belongs to the event loop that opened it."""

    def __init__(self, sock: socket.socket, name: str) -> None:
        self.name = name
        self.is_local: bool = sock.family == socket.AF_UNIX  # an fd can be passed
        self.majors: dict[int, str] = {}  # names of extensions, for errors
        # Called with events.  Weak, since the listeners refer to this connection.
        self.listeners: list[weakref.WeakMethod[Callable[[bytes], object]]] = []
        self.lost: Failure[ScreenLost] | None = None
        self._socket = sock
        self.is_closed: bool = False
        self._sent = 0
        self._heard_at = 0.0  # when the server last sent something
        self._is_unsure = False  # do we not know how much was sent or received?
        self._unsent = b""
        self._expected: collections.deque[Answer] = collections.deque()
        self._turns = Turns()  # of the tasks that read
        # The message that is being read.  Nothing else refers to its memory, not even
        # the traceback of a cancelled task.
        self._head = bytearray(HEAD)
        self._body: memoryview | None = None  # None until all of the head is there
        self._missing = memoryview(self._head)  # what is received next
        self._ids = itertools.count(1)

    # ---- the beginning and the end ----------------------------------------------

    @classmethod
    async def open(cls, display: Display) -> Connection:
        """Connect, and exchange greetings.  Raises: ScreenError."""
        connection = cls(await display.connect(), display.name)
        try:
            with anyio.move_on_after(PATIENCE):
                await connection._greet(display)
                return connection
            raise ScreenError(
                f"the display {display.name} does not answer: is it an X server?"
            )
        except BaseException:
            connection.close()
            raise

    async def _greet(self, display: Display) -> None:
        self._write(x11.hello(*display.cookie(self._socket)), None)
        head = await self._receive(8)
        rest = await self._receive(4 * struct.unpack_from("=H", head, 6)[0])
        self._missing = memoryview(self._head)
        if why := x11.refusal(head, rest):
            raise ScreenError(
                f"the X server of {self.name} refused the connection: {why}"
            )
        try:
            self.setup: x11.Setup = x11.setup(rest, display.screen)
        except ScreenError as error:
            raise ScreenError(f"{self.name}: {error}") from None

    async def _receive(self, nbytes: int) -> bytes:
        data = bytearray(nbytes)
        self._missing = memoryview(data)
        await self._fill()
        return bytes(data)

    async def extensions(self) -> dict[str, tuple[int, int]]:
        """Return the numbers of the extensions that we use and the server has."""
        queries = {name: self.ask(x11.query_extension(name)) for name in x11.EXTENSIONS}
        found = {}
        for name, query in queries.items():
            numbers = x11.extension(await self.answer(query))
            if numbers is not None:
                found[name] = numbers
                self.majors[numbers[0]] = name
        for name, needed in NEEDED.items():
            if name in found:
                reply = await self.query(x11.version(found[name][0], *needed))
                if x11.version_of(reply) < needed:
                    del found[name]
        return found

    def close(self) -> None:
        """Close the socket; tasks that wait get ClosedResourceError."""
        if not self.is_closed:
            self.is_closed = True
            with contextlib.suppress(RuntimeError):  # (no loop runs, so no task waits)
                anyio.notify_closing(self._socket)
            self._socket.close()
            self._expected.clear()
            self._body, self._missing = None, memoryview(b"")

    def new_id(self) -> int:
        """Return an id for an object that the server will create for us."""
        return self.setup.resource_base + next(self._ids)

    # ---- requests ------------------------------------------------------------------

    def tell(self, request: bytes) -> None:
        """Queue a request without a reply; it is sent together with the next `ask`."""
        self._unsent, self._sent = self._unsent + request, self._sent + 1

    def ask(
        self,
        request: bytes,
        into: memoryview | None = None,
        keeps: object = None,
        fd: int | None = None,
    ) -> Answer:
        """Send a request, whose reply fills ``into``, if given.

        ``keeps`` is kept alive as long as the server may write to it.  A request with
        an ``fd`` has no reply: its answer is done once a later request is answered.
        """
        self._check_open()
        self._is_unsure = True
        answer = Answer(self._sent + 1, fd is None, into, keeps)
        self._expected.append(answer)  # before the server can know of its memory
        self._write(self._unsent + request, fd)
        self._unsent, self._sent, self._is_unsure = b"", self._sent + 1, False
        return answer

    def _write(self, data: bytes, fd: int | None) -> None:
        beside: list[Any] = []
        if fd is not None:
            beside = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", fd))]
        try:
            sent = self._socket.sendmsg([data], beside)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            raise self._fail("has gone", error) from error
        if sent < len(data):
            raise self._fail("no longer reads requests")

    # ---- replies -------------------------------------------------------------------

    async def answer(self, answer: Answer) -> bytes:
        """Wait for the whole reply, and return it.

        Raises:
            ScreenError: the server refused; ScreenLost: it has gone, or is silent.
            anyio.ClosedResourceError: the connection was closed.
        """
        while not answer.is_done:
            with anyio.move_on_after(PATIENCE):
                await self.until(lambda: answer.is_done)
            silence = anyio.current_time() - self._heard_at
            if not answer.is_done and silence >= PATIENCE:
                raise self._fail(f"has not answered for {PATIENCE:g} seconds")
        if answer.refusal:
            raise ScreenError(answer.refusal)
        return answer.data

    async def query(self, request: bytes) -> bytes:
        """Send a request, and return its reply; raises what `answer` does."""
        return await self.answer(self.ask(request))

    async def until(self, ready: Callable[[], bool]) -> None:
        """Read messages until ``ready()``."""
        while not ready():
            await self._read_one(ready)

    @in_turn
    async def _read_one(self, ready: Callable[[], bool]) -> None:
        if ready():  # another task has read it meanwhile
            return
        self._check_open()
        if self._body is None:
            await self._fill()
            self._body = self._missing = self._room_for(self._head)
        await self._fill()
        self._is_unsure = True  # (an interrupted reply would seem left out)
        body, self._body, self._missing = self._body, None, memoryview(self._head)
        self._take(bytes(self._head), body)
        self._is_unsure = False

    def _room_for(self, head: bytearray) -> memoryview:
        """Return the memory for the rest of a message."""
        kind, length = struct.unpack_from("=B3xI", head)
        if kind not in (x11.REPLY, x11.GENERIC_EVENT) or not length:
            return memoryview(b"")
        nbytes = 4 * length
        if kind == x11.REPLY and (into := self._answer_to(head).into) is not None:
            if into.nbytes == nbytes:
                return into
            nbytes = _MOST + 1
        if nbytes > _MOST:
            raise self._fail("sends invalid data")
        return memoryview(bytearray(nbytes))

    def _take(self, head: bytes, body: memoryview) -> None:
        if head[0] in (x11.REPLY, x11.ERROR):
            refusal = ""
            if head[0] == x11.ERROR:
                said = x11.request_that_failed(head, self.majors)
                refusal = f"the X server of {self.name} refused: {said}"
            answer = self._answer_to(head)
            data = head if answer.into is not None else head + body
            self._expected.popleft()
            answer.end(data, refusal)
            return
        for listener in self.listeners:
            if (hear := listener()) is not None:
                hear(head)

    def _answer_to(self, head: bytes | bytearray) -> Answer:
        """Return the answer that a reply or error is for; end those before it."""
        (sequence,) = struct.unpack_from("=H", head, 2)
        while self._expected:
            first = self._expected[0]
            if first.sequence & 0xFFFF == sequence:
                return first
            if (sequence - first.sequence) & 0x8000:  # it is for an earlier request
                break
            if first.has_reply:
                raise self._fail("left out a reply")
            first.end()  # (idempotent: if interrupted, the next call repeats it)
            self._expected.popleft()
        if head[0] == x11.ERROR:  # of a request without a reply
            said = x11.request_that_failed(bytes(head), self.majors)
            raise self._fail(f"refused: {said}")
        raise self._fail("answers a request that was not made")

    async def _fill(self) -> None:
        """Receive the missing bytes.  If cancelled, the next call continues."""
        while self._missing.nbytes:
            self._check_open()
            self._is_unsure = True
            try:
                n = self._socket.recv_into(self._missing)
            except BlockingIOError:
                self._is_unsure = False
                try:
                    await anyio.wait_readable(self._socket)
                except (OSError, ValueError):  # closed while the loop began to wait
                    self._check_open()
                    raise
                continue
            except OSError as error:
                raise self._fail("has gone", error) from error
            if n == 0:
                raise self._fail("has gone")
            self._missing, self._is_unsure = self._missing[n:], False
            self._heard_at = anyio.current_time()

    def _check_open(self) -> None:
        if self.is_closed:
            raise anyio.ClosedResourceError("the screen is closed")
        if self.lost is not None:
            raise self.lost.again()
        if self._is_unsure:
            lost = f"a message to or from {self.name} was interrupted: open it again"
            self.lost = Failure(ScreenLost(lost))
            raise self.lost.again()

    def _fail(self, what: str, cause: BaseException | None = None) -> ScreenLost:
        lost = ScreenLost(f"the X server of {self.name} {what}")
        lost.__cause__ = cause
        self.lost = Failure(lost)
        return lost


# ---- the monitors -----------------------------------------------------------------


@dataclass(frozen=True)
class Monitor:
    """A monitor's name, and where on the screen it is."""

    name: str
    place: Rectangle
    is_primary: bool = False


async def monitors(display: str | None = None) -> list[Monitor]:
    """Return the monitors of a display, by default of the one that DISPLAY names.

    If the server knows no monitors, the whole screen is one, called "screen".

    Raises:
        ScreenError: there is no X server, or it refuses the connection.
        ValueError: the name is not one of a display.
    """
    connection = await Connection.open(Display.named(display))
    try:
        extensions = await connection.extensions()
        geometry = await connection.query(x11.get_geometry(connection.setup.root))
        return await list_monitors(connection, extensions, x11.geometry(geometry))
    finally:
        connection.close()


async def list_monitors(
    connection: Connection, extensions: dict[str, tuple[int, int]], whole: Rectangle
) -> list[Monitor]:
    """Return the monitors that RANDR lists; without it, the whole screen as one."""
    found = []
    if "RANDR" in extensions:
        request = x11.get_monitors(extensions["RANDR"][0], connection.setup.root)
        entries = x11.monitors(await connection.query(request))
        names = [connection.ask(x11.get_atom_name(atom)) for atom, *_ in entries]
        for (_, is_primary, place), asked in zip(entries, names, strict=True):
            name = x11.atom_name(await connection.answer(asked))
            found.append(Monitor(name, place, is_primary))
    return found or [Monitor("screen", whole, is_primary=True)]
