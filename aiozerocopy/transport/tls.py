"""TLS between a transport and a protocol.

A `TLSTransport` faces both ways: it is the protocol of the transport below, the wire,
and the transport of the program's protocol above.

The states
    SHAKING   until both sides agree: what is written is held
    OPEN      bytes go both ways
    CLOSING   `close` was called: what is held goes out, then close_notify.  What still
              arrives is decrypted and dropped, until the peer's close_notify or its end
    CLOSED    the wire is given up or lost: nothing goes in or out

Who owns what
    plaintext   `write` encrypts as long as the wire takes it.  The rest is borrowed,
                not copied, until the wire asks for more: a buffer that was written must
                not change until `drained` has returned.
    ciphertext  is made a piece at a time, and each is the wire's as soon as it is made.
"""

from __future__ import annotations

import asyncio
import enum
from typing import TYPE_CHECKING, Any

from aiozerocopy._net.tls_session import Session
from aiozerocopy.transport.reading import scratch
from aiozerocopy.transport.tls_parts import Inbox, Outbox, Upper

if TYPE_CHECKING:
    from collections.abc import Iterable

    from typing_extensions import Buffer

    from aiozerocopy.transport.tls_options import TLSOptions

RECORD = 16 << 10  # the most that TLS puts under one seal


class State(enum.Enum):
    """Where a connection stands."""

    SHAKING = enum.auto()
    OPEN = enum.auto()
    CLOSING = enum.auto()
    CLOSED = enum.auto()


class TLSTransport(asyncio.Transport, asyncio.BufferedProtocol):
    """What a protocol gets where ``ssl=`` was given, and from `start_tls`.

    It is used as a `SocketTransport`, and the marks between which a protocol is paused
    are those of the transport below.  `get_extra_info` knows "sslcontext",
    "ssl_object", "peercert", "cipher", "compression" and "tls", which is "memory" since
    the kernel has no part in it; it asks the transport below for the rest.  A protocol
    whose ``eof_received`` returns true may go on writing; there is no `write_eof`, as
    in asyncio.

    The methods of a protocol that it has are the lower transport's to call.
    """

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
        self._wire: Any = None
        self._upper = Upper(self._loop, protocol, ready, is_made=is_made)
        self._session = Session(
            options.context,
            server_side=options.server_side,
            server_hostname=options.server_hostname,
        )
        self._out = Outbox(self._session)
        self._in = Inbox(self._session)
        self._state = State.SHAKING
        self._timer: asyncio.TimerHandle | None = None
        self._error: BaseException | None = None
        self._reading_paused = False
        self._wire_paused = False  # until it is resumed, a moment later
        self._wire_ended = False
        self._said_goodbye = False

    # -- the transport of the protocol above --------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        extra: dict[str, Any] = self._extra  # type: ignore[attr-defined]
        if name in extra or self._wire is None:
            return extra.get(name, default)
        return self._wire.get_extra_info(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._upper.protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        protocol: asyncio.BaseProtocol = self._upper.protocol
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
        """Go on reading, soon."""
        if self._reading_paused:
            self._reading_paused = False
            self._loop.call_soon(self._resume)

    def get_write_buffer_size(self) -> int:
        """Bytes that wait to be encrypted, or to leave."""
        below = 0 if self._wire is None else self._wire.get_write_buffer_size()
        return self._out.nbytes + int(below)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        low, high = self._wire.get_write_buffer_limits()
        return low, high

    def set_write_buffer_limits(
        self, high: int | None = None, low: int | None = None
    ) -> None:
        self._wire.set_write_buffer_limits(high=high, low=low)

    def write(self, data: Buffer) -> None:
        """Encrypt and send a buffer as far as the transport below takes it.

        The rest is borrowed until `drained` returns.  The buffer may be anything that
        is C-contiguous, of any shape and type.

        Raises:
            TypeError, BufferError: it cannot be sent; nothing of it was.
        """
        view = memoryview(data)
        if not view.c_contiguous:
            raise BufferError("only C-contiguous memory can be written")
        if not view.nbytes:
            return
        if self.is_closing():
            self._out.refuse()
        else:
            self._out.add(view.cast("B"))
            self._send()

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        """Write each in order, as `write` does; those that are small under one seal."""
        views = [memoryview(data) for data in list_of_data]
        if sum(view.nbytes for view in views) <= RECORD:
            self.write(b"".join(views))
        else:
            for view in views:
                self.write(view)

    async def drained(self) -> None:
        """Return when all that was written is out, and the buffers are yours again.

        Over a transport that is not of this package, "out" is "written to that".

        Raises:
            OSError: not all of it is out, nor will be; but the buffers are yours.
        """
        await self._out.drained()

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
        elif self._state is not State.CLOSED:
            self._state = State.CLOSING
            if self._timer is None:
                error = TimeoutError("SSL shutdown timed out")
                self._start_timer(self._options.leaving, error)
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
        self._wire = self._out.wire = transport
        if self._state is State.CLOSED:
            self._wire.abort()
            return
        _, high = self._wire.get_write_buffer_limits()
        self._out.wire_is_full = self._wire.get_write_buffer_size() > high
        seconds = self._options.handshaking
        error = ConnectionAbortedError(
            f"SSL handshake is taking longer than {seconds} seconds: "
            "aborting the connection"
        )
        self._start_timer(seconds, error)
        self._shake()

    def connection_lost(self, exc: BaseException | None) -> None:
        """The wire is gone, and what was held with it."""
        self._state = State.CLOSED
        self._stop_timer()
        error = self._error or exc
        self._out.lose(error)
        self._upper.lost(error)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the wire stores what arrives, to call `buffer_updated` at once."""
        return scratch.memory

    def buffer_updated(self, nbytes: int) -> None:
        """``nbytes`` bytes of ciphertext have arrived there."""
        self._session.feed(scratch.memory[:nbytes])
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
        self._out.wire_is_full = True
        self._upper.pause()

    def resume_writing(self) -> None:
        """The wire wants more."""
        self._out.wire_is_full = False
        self._send()
        if self._state is State.CLOSING:
            self._go_on_closing()
        if not self._out.wire_is_full:
            self._upper.resume()

    # -- what becomes of it -------------------------------------------------------

    def _shake(self) -> None:
        try:
            is_done = self._session.shake()
        except Exception as error:
            self._fail(error)
            return
        self._out.hand_on()
        if is_done:
            self._stop_timer()
            self._extra.update(self._session.known())  # type: ignore[attr-defined]
            self._state = State.OPEN
            self._upper.made(self)
            self._send()
            self._take_in()

    def _send(self) -> None:
        if self._state in (State.OPEN, State.CLOSING):
            try:
                self._out.send()
            except Exception as error:
                self._fail(error)

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
        try:
            while self.is_reading() and self._in.deliver(self._upper.protocol):
                pass
            if self.is_reading() and self._session.error is not None:
                self._fail(self._session.error)
            elif (
                self.is_reading()
                and (self._session.ended or self._wire_ended)
                and not self._upper.ended()
            ):
                self.close()
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            self._upper.complain("Fatal error: the protocol failed", error)
            self._fail(error)
        if self._state is State.CLOSING:
            self._go_on_closing()
        elif self._state is State.OPEN:
            self._out.hand_on()

    def _go_on_closing(self) -> None:
        """Once all is out say goodbye, and once the peer has said it close the wire."""
        self._in.drop()
        if not self._out.is_empty():
            return
        if not self._said_goodbye:
            self._said_goodbye = True
            self._session.say_goodbye()
        self._out.hand_on()
        if self._session.error is not None:
            self._fail(self._session.error)
        elif self._session.ended or self._wire_ended:
            self._wire.close()

    def _fail(self, error: BaseException) -> None:
        """Close the connection because of this error."""
        if self._state is not State.CLOSED:
            self._state = State.CLOSED
            self._error = error
            self._out.hand_on()  # the alert that tells the peer why
            self._wire.abort()

    def _start_timer(self, seconds: float, error: BaseException) -> None:
        self._timer = self._loop.call_later(seconds, self._fail, error)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
