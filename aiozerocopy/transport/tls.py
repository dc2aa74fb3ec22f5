"""TLS between a transport and a protocol: `_net.tls_session` with callbacks.

A `TLSTransport` faces both ways: it is the protocol of the transport below, the wire,
and the transport of the program's protocol above.

The states
    SHAKING   until both sides agree: what is written is held
    OPEN      bytes go both ways
    CLOSING   `close` was called: what is held goes out, then close_notify.  What still
              arrives is decrypted and dropped, until the peer's close_notify or its end
    CLOSED    the wire is given up or lost: nothing goes in or out.  Once the protocol
              was told, neither it nor the wire is known here any more

Who owns what
    plaintext   `write` encrypts as long as the wire takes it.  The rest is borrowed,
                not copied, until the wire asks for more: a buffer that was written must
                not change until `drained` has returned.
    ciphertext  is made a piece at a time, and each is the wire's as soon as it is made.
                What arrives the wire stores in `scratch`, which all connections of a
                thread share, and OpenSSL takes a copy of it at once.  It decrypts into
                the memory of a `BufferedProtocol`, or else into new bytes.

A signal's handler may raise between any two lines, and a piece that was taken and not
handed on would be missing in the middle.  So a flag is set while a piece is in transit:
finding it set means that an exception has interrupted us.

What is done for each piece keeps to few calls: this Python runs between system calls
and OpenSSL, when the processor's caches have forgotten it.
"""

from __future__ import annotations

import asyncio
import enum
import ssl
import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aiozerocopy._core.change import Change
from aiozerocopy._core.failure import Failure
from aiozerocopy._core.pins import bytes_of, nbytes
from aiozerocopy._net.foreign_streams import PIECE
from aiozerocopy._net.tls_session import RECORD, Session
from aiozerocopy.transport.lifetime import WAS_ABORTED, WAS_CLOSED, aborted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from typing_extensions import Buffer

SCRATCH = 256 << 10
TIMEOUTS = {"handshake": 60.0, "shutdown": 30.0}  # seconds, as asyncio has them


class _Scratch(threading.local):
    """Memory of a thread's loop for what arrives: cheaper than new memory for each."""

    def __init__(self) -> None:
        self.memory: memoryview = memoryview(bytearray(SCRATCH))


scratch: _Scratch = _Scratch()


@dataclass
class TLSOptions:
    """How a connection is to be encrypted; the timeouts get their defaults.

    Raises: as `connections.start_tls`.
    """

    context: ssl.SSLContext
    server_side: bool = False
    server_hostname: str | None = None  # none, or empty: the name is not checked
    handshake_timeout: float | None = None
    shutdown_timeout: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.context, ssl.SSLContext):
            raise TypeError(f"sslcontext must be an SSLContext, got {self.context!r}")
        self.handshaking: float = _seconds("handshake", self.handshake_timeout)
        self.leaving: float = _seconds("shutdown", self.shutdown_timeout)

    def session(self) -> Session:
        name = None if self.server_side else self.server_hostname or None
        return Session(self.context, server_side=self.server_side, server_hostname=name)


def _seconds(name: str, given: float | None) -> float:
    if given is not None and given <= 0:
        raise ValueError(f"ssl_{name}_timeout should be a positive number, got {given}")
    return TIMEOUTS[name] if given is None else given


def for_client(
    given: Any, host: str | None, server_hostname: str | None, *timeouts: float | None
) -> TLSOptions | None:
    """The options by a client's arguments; None if it asks for no TLS.

    Raises:
        TypeError: ``ssl`` is neither true nor a context.
        ValueError: the arguments contradict each other.
    """
    if not given:
        if server_hostname is not None:
            raise ValueError("server_hostname is only meaningful with ssl")
        return for_server(given, *timeouts)
    if server_hostname is None:
        if not host:
            raise ValueError(
                "You must set server_hostname when using ssl without a host"
            )
        server_hostname = host
    if given is True:
        given = ssl.create_default_context()
        given.check_hostname = bool(server_hostname)
    return TLSOptions(given, False, server_hostname, *timeouts)


def for_server(given: Any, *timeouts: float | None) -> TLSOptions | None:
    """As `for_client`, for a server."""
    if given:
        return TLSOptions(given, True, None, *timeouts)
    for name, value in zip(TIMEOUTS, timeouts, strict=True):
        if value is not None:
            raise ValueError(f"ssl_{name}_timeout is only meaningful with ssl")
    return None


class State(enum.Enum):
    """Where a connection stands."""

    SHAKING = enum.auto()
    OPEN = enum.auto()
    CLOSING = enum.auto()
    CLOSED = enum.auto()


_SENDING = (State.OPEN, State.CLOSING)


class TLSTransport(asyncio.Transport, asyncio.BufferedProtocol):
    """What a protocol gets where ``ssl=`` was given, and from `start_tls`.

    It is used as a `SocketTransport`; its water marks are those of the transport below.
    `get_extra_info` knows "sslcontext", "ssl_object", "peercert", "cipher",
    "compression" and "tls" (always "memory": the kernel has no part in it), and asks
    the transport below for the rest.  A protocol whose ``eof_received`` returns true
    may go on writing; there is no `write_eof`, as in asyncio.
    """

    __slots__ = (  # (as in `Lifetime`)
        *("__weakref__", "_loop", "_options", "_session", "_scratch", "_timer"),
        *("_wire", "_wire_is_full", "_wire_ended", "_wire_paused", "_state"),
        *("_failure", "_unsent", "_held", "_is_out", "_is_in_transit"),
        *("_is_delivering", "_protocol", "_is_buffered", "_ready", "_is_made"),
        *("_is_paused", "_reading_paused", "_has_ended"),
    )

    if TYPE_CHECKING:
        _extra: dict[str, Any]

    def __init__(
        self,
        protocol: asyncio.BaseProtocol,
        options: TLSOptions,
        ready: asyncio.Future[None] | None = None,
        *,
        is_made: bool = False,
    ) -> None:
        """Once it is the protocol of a connection it starts the handshake.

        ``ready`` is done when the handshake is, or gets its error.  A protocol that
        ``is_made`` has had its ``connection_made``.
        """
        super().__init__(extra={"sslcontext": options.context, "tls": "memory"})
        self._loop = asyncio.get_running_loop()
        self._options = options
        self._session = options.session()
        self._scratch = scratch.memory
        self._wire: Any = None
        self._wire_is_full = self._wire_ended = False
        self._wire_paused = False  # until it is resumed, a moment later
        self._state = State.SHAKING
        self._timer: asyncio.TimerHandle | None = None
        self._failure: Failure[BaseException] | None = None  # why it was given up
        self._unsent: Failure[OSError] | None = None  # why not all will be sent
        self._held: deque[memoryview] = deque()
        self._is_out = Change()  # all that was held
        self._is_in_transit = self._is_delivering = False  # a piece is, now
        # What the protocol was told.
        self.set_protocol(protocol)
        self._ready = ready
        self._is_made = is_made
        self._is_paused = self._reading_paused = self._has_ended = False

    def __repr__(self) -> str:
        below = "" if self._wire is None else f" over {self._wire!r}"
        return f"<{type(self).__name__} {self._state.name.lower()}{below}>"

    # -- the transport of the protocol above --------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name in self._extra or self._wire is None:
            return self._extra.get(name, default)
        return self._wire.get_extra_info(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol: Any = protocol
        self._is_buffered = isinstance(protocol, asyncio.BufferedProtocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        protocol: asyncio.BaseProtocol = self._protocol
        return protocol

    def is_closing(self) -> bool:
        return self._state in (State.CLOSING, State.CLOSED)

    def is_reading(self) -> bool:
        return not self._reading_paused and not self.is_closing()

    def pause_reading(self) -> None:
        """Give the protocol nothing until `resume_reading`; the peer has to wait."""
        if self.is_reading():
            self._reading_paused = self._wire_paused = True
            self._wire.pause_reading()

    def resume_reading(self) -> None:
        if self._reading_paused:
            self._reading_paused = False
            self._loop.call_soon(self._resume)

    def get_write_buffer_size(self) -> int:
        """Bytes that wait to be encrypted, or to leave."""
        below = 0 if self._wire is None else self._wire.get_write_buffer_size()
        return sum(view.nbytes for view in self._held) + int(below)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        low, high = self._wire.get_write_buffer_limits() if self._wire else (0, 0)
        return low, high

    def set_write_buffer_limits(
        self, high: int | None = None, low: int | None = None
    ) -> None:
        if self._wire is not None:
            self._wire.set_write_buffer_limits(high=high, low=low)

    def write(self, data: Buffer) -> None:
        """Encrypt and send a buffer as far as the transport below takes it.

        The rest is borrowed until `drained` returns.

        Raises:
            TypeError, BufferError: no C-contiguous buffer; nothing of it was sent.
        """
        size = len(data) if type(data) is bytes else nbytes(data)
        if not size:
            return
        if self._state is State.OPEN and not self._held and size <= PIECE:
            is_plain = type(data) is bytes or type(data) is memoryview
            if self._seal(data if is_plain else bytes_of(data)):
                self._is_in_transit = False
                return
        if self.is_closing():
            self._unsent = self._unsent or Failure(aborted(WAS_CLOSED))
        else:
            self._held.append(bytes_of(data))
            self._send()

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        """Write each in order, as `write` does; those that are small under one seal."""
        views = [bytes_of(data) for data in list_of_data]
        is_small = sum(map(len, views)) <= RECORD
        for view in [b"".join(views)] if is_small else views:
            self.write(view)

    async def drained(self) -> None:
        """Return when all that was written is out, and the buffers are yours again.

        Over a transport that is not of this package, "out" is "written to that".

        Raises:
            OSError: not all of it is out, nor will be; but the buffers are yours.
        """
        while self._held or self._is_in_transit:
            await self._is_out.next()
        if self._unsent is not None:
            raise self._unsent.again()
        if hasattr(self._wire, "drained"):  # it is one of ours
            await self._wire.drained()

    def can_write_eof(self) -> bool:
        return False

    def write_eof(self) -> None:
        """Raise NotImplementedError: use `close`."""
        raise NotImplementedError("TLS is not closed by halves here: use close()")

    def close(self) -> None:
        """Send what was written, say goodbye to the peer, and close.

        The protocol gets nothing any more, and at the end ``connection_lost``.
        """
        if self._state is State.SHAKING:
            self.abort()
        elif self._state is State.OPEN:
            self._state = State.CLOSING
            text = "SSL shutdown timed out"
            self._start_timer(self._options.leaving, TimeoutError, text)
            self._resume_wire()
            self._go_on_closing()

    def abort(self) -> None:
        """Close at once; what has not gone out is lost."""
        self._state = State.CLOSED
        if self._wire is not None:
            self._wire.abort()

    # -- the protocol of the transport below --------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """There is a wire: begin the handshake."""
        self._wire = transport
        if self._state is State.CLOSED:
            self._wire.abort()
            return
        _, high = self._wire.get_write_buffer_limits()
        self._wire_is_full = self._wire.get_write_buffer_size() > high
        seconds = self._options.handshaking
        text = f"SSL handshake is taking longer than {seconds} seconds: aborting the "
        text += "connection"
        self._start_timer(seconds, ConnectionAbortedError, text)
        self._shake()

    def connection_lost(self, exc: BaseException | None) -> None:
        """The wire is gone, and what was held with it."""
        self._state = State.CLOSED
        self._stop_timer()
        if self._failure is not None:
            exc = self._failure.again()
        if isinstance(exc, OSError):
            self._unsent = Failure(exc)
        elif self._held or self._is_in_transit:
            self._unsent = Failure(aborted(WAS_ABORTED))
        while self._held:
            self._held.popleft().release()
        self._is_out.happen()
        # (what is kept of them would be a cycle)
        protocol, self._protocol, self._wire = self._protocol, None, None
        ready, self._ready = self._ready, None
        if ready is not None and not ready.done():
            failure = Failure(exc or ConnectionAbortedError("it was closed"))
            ready.set_exception(failure.again())
        if self._is_made:
            protocol.connection_lost(exc)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the wire stores what arrives, to call `buffer_updated` at once."""
        return self._scratch

    def buffer_updated(self, nbytes: int) -> None:
        """``nbytes`` bytes of ciphertext have arrived there."""
        self._session.feed(self._scratch[:nbytes])
        if self._state is State.SHAKING:
            self._shake()
        else:
            self._take_in()

    def eof_received(self) -> bool:
        """The peer has ended the wire, with or without close_notify."""
        self._wire_ended = True
        if self._state is State.SHAKING:
            self._fail(ConnectionResetError("the peer left during the TLS handshake"))
        else:
            self._take_in()
        return self._state is not State.CLOSED

    def pause_writing(self) -> None:
        """The wire has enough for now; so the protocol is paused, too."""
        self._wire_is_full = True
        self._tell_writer()

    def resume_writing(self) -> None:
        self._wire_is_full = False
        self._send()
        if self._state is State.CLOSING:
            self._go_on_closing()

    # -- what becomes of it -------------------------------------------------------

    def _shake(self) -> None:
        try:
            is_done = self._session.shake()
        except Exception as error:
            self._fail(error)
            return
        self._hand_on()
        if is_done:
            self._stop_timer()
            self._extra.update(self._session.known())
            self._state = State.OPEN
            if not self._is_made:
                self._is_made = True
                self._protocol.connection_made(self)
            ready, self._ready = self._ready, None
            if ready is not None and not ready.done():
                ready.set_result(None)
            self._send()
            # (later: the caller of start_tls gets this transport first)
            self._loop.call_soon(self._take_in)

    def _seal(self, piece: Buffer) -> bool:
        """Encrypt a piece and give it to the wire, unless that is full, or the peer
        negotiates.

        Once the caller has noted that it is away, nothing is in transit any more.
        """
        if self._wire_is_full or self._state not in _SENDING:
            return False
        try:
            if self._is_in_transit:
                raise ConnectionAbortedError("an exception interrupted a write")
            self._is_in_transit = True
            if self._session.encrypt(piece):
                self._wire.write(self._session.take())
                return True
            self._is_in_transit = False
        except Exception as error:
            self._fail(error)
        return False

    def _send(self) -> None:
        """Encrypt as much of what is held as can be sent."""
        while self._held:
            view = self._held[0]
            is_last = view.nbytes <= PIECE
            if not self._seal(view if is_last else view[:PIECE]):
                break
            self._held.popleft()
            if not is_last:
                self._held.appendleft(view[PIECE:])
            view.release()
            self._is_in_transit = False
        if not self._held:
            self._is_out.happen()
        if self._held or self._is_paused:
            self._tell_writer()

    def _hand_on(self) -> None:
        """Give the wire what is encrypted, and what OpenSSL itself has to say."""
        if self._session.sealed.pending and self._wire is not None:
            self._wire.write(self._session.take())

    def _resume(self) -> None:
        if self._state is State.OPEN and not self._reading_paused:
            self._take_in()
            if self.is_reading():
                self._resume_wire()

    def _resume_wire(self) -> None:
        if self._wire_paused:
            self._wire_paused = False
            self._wire.resume_reading()

    def _take_in(self) -> None:
        """Give the protocol what has arrived, and then the end."""
        session = self._session
        try:
            while self._state is State.OPEN and not self._reading_paused:
                if self._is_delivering:
                    raise ConnectionAbortedError("an exception interrupted a delivery")
                if session.has_arrived() and self._deliver():
                    continue
                if session.failure is not None:
                    self._fail(session.failure.again())
                elif (session.ended or self._wire_ended) and not self._has_ended:
                    self._has_ended = True
                    if not self._protocol.eof_received():
                        self.close()
                break
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            self._complain("Fatal error: the protocol failed", error)
            self._fail(error)
        if session.sealed.pending or self._held or self._state is not State.OPEN:
            self._settle()

    def _settle(self) -> None:
        """Send what the peer had to be heard first for, and go on closing."""
        if self._state in _SENDING:
            self._hand_on()
            if self._held:
                self._send()
        if self._state is State.CLOSING:
            self._go_on_closing()

    def _deliver(self) -> bool:
        """Give the protocol one piece; may there be more?"""
        self._is_delivering = True
        if self._is_buffered:
            with memoryview(self._protocol.get_buffer(-1)) as room:
                if not room.nbytes:
                    raise RuntimeError("get_buffer() returned an empty buffer")
                size = self._session.decrypt_into(room)
            if size:
                self._protocol.buffer_updated(size)
        else:
            data = self._session.decrypt()
            size = len(data)
            if size:
                self._protocol.data_received(data)
        self._is_delivering = False
        return size > 0 and (self._is_buffered or self._session.arrived.pending > 0)

    def _go_on_closing(self) -> None:
        """Once all is out say goodbye, and once the peer has said it close the wire."""
        while self._session.has_arrived() and self._session.decrypt():
            pass  # (it is dropped)
        if self._held or self._is_in_transit:
            return
        self._session.say_goodbye()
        self._hand_on()
        if self._session.failure is not None:
            self._fail(self._session.failure.again())
        elif self._session.ended or self._wire_ended:
            self._wire.close()

    def _fail(self, error: BaseException) -> None:
        if self._state is not State.CLOSED:
            self._state = State.CLOSED
            self._failure = Failure(error)
            self._hand_on()  # the alert that tells the peer why
            self._wire.abort()

    def _start_timer(self, seconds: float, kind: type[OSError], text: str) -> None:
        self._timer = self._loop.call_later(seconds, lambda: self._fail(kind(text)))

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tell_writer(self) -> None:
        """Pause the protocol as long as something is held, or the wire is full."""
        is_full = self._wire_is_full or bool(self._held)
        is_told = self._is_paused is is_full or not self._is_made
        if is_told or self._state is State.CLOSED:
            return
        self._is_paused = is_full
        what = "pause_writing" if is_full else "resume_writing"
        try:
            getattr(self._protocol, what)()
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            self._complain(f"protocol.{what}() failed", error)

    def _complain(self, message: str, error: BaseException) -> None:
        self._loop.call_exception_handler(
            {"message": message, "exception": error, "protocol": self._protocol}
        )
