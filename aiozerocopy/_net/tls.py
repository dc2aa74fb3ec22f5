"""TLSStream: TLS over our own streams, for servers, clients, pages and Dask.

Who owns what
    plaintext    the caller's; encryption copies it, up to `PIECE` bytes ahead of the
                 wire
    ciphertext   C's, as soon as it is made: there is no await in between.  So no cancel
                 can drop a record, and records leave in the order in which they were
                 made, whether by a send or as an answer to the peer

A send that is cancelled before its first byte was encrypted leaves no trace.  Later,
the rest is encrypted at once and left to C, up to the ``rescue_limit`` of the stream
below: the message completes, and the buffers are the caller's.  If that is impossible
(the rest is longer, the peer negotiates, or a signal handler raised between two steps)
the message is cut off: later sends raise StreamBroken, and the stream ends without
close_notify, which shows the peer that bytes are missing.

An end without close_notify breaks the stream: anybody between the two can cause it, and
the first part of a message must not pass for the whole.
"""

from __future__ import annotations

import contextlib
import errno
import ssl
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
from anyio.abc import ByteStream
from anyio.streams.tls import TLSAttribute

from aiozerocopy._core.borrows import and_end, or_undo
from aiozerocopy._core.change import Change, Turns, in_turn
from aiozerocopy._core.errors import (
    IncompleteReceive,
    StreamBroken,
    StreamClosed,
    error_of,
)
from aiozerocopy._core.failure import Failure
from aiozerocopy._core.pins import bytes_of, pin_writable, unpin
from aiozerocopy._core.waiter import enter
from aiozerocopy._net.foreign_streams import CUT, PIECE, MessageStream, pieces_of

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterable, Mapping

    from typing_extensions import Buffer

    from aiozerocopy._core.leases import AnyBuffer
    from aiozerocopy.streams import Stream, Ticket

ARRIVED = 128 << 10  # bytes that are received at once; each connection has this memory
RECEIVE_SIZE = 64 << 10
PATIENCE = 5.0  # seconds that a closing stream waits for the peer's close_notify
LINGER = 1.0  # seconds for all of `aclose` when a block ends by an exception
# A close_notify has at most 31 bytes on the wire with the AEAD ciphers (all of TLS 1.3;
# GCM, CCM and ChaCha20 of 1.2).  With TLS 1.2's CBC ciphers it has up to 85 and is
# taken for data.  Dask, which calls `_has_unread`, has messages of at least 47: 25
# bytes of its own, and at least 22 that a record adds.
GOODBYE = 40

RECORD = 16 << 10  # the most bytes in a record

_SIZED = ("GCM", "CCM", "CHACHA")  # ciphers that add a fixed size to each record

T = TypeVar("T")


class Session:
    """A session of OpenSSL in memory: encrypts and decrypts, and does no I/O.

    The states
        shaking   until `shake` returns true
        open      bytes go both ways.  The peer may change the keys, or with TLS 1.2
                  negotiate anew: until that is done `encrypt` accepts nothing
        ended     the peer has sent close_notify.  We may still send
        failed    `failure` says why.  Bytes that were decrypted before are valid
    """

    def __init__(
        self,
        context: ssl.SSLContext,
        *,
        server_side: bool,
        server_hostname: str | None = None,
    ) -> None:
        self.arrived: ssl.MemoryBIO = ssl.MemoryBIO()
        self.sealed: ssl.MemoryBIO = ssl.MemoryBIO()
        self.ssl: ssl.SSLObject = context.wrap_bio(
            self.arrived, self.sealed, server_side, server_hostname
        )
        self.ended: bool = False
        self.said_goodbye: bool = False
        self.failure: Failure[ssl.SSLError] | None = None
        # `feed` takes ciphertext that has arrived; `take` returns ciphertext to send.
        self.feed: Callable[[Buffer], int] = self.arrived.write
        self.take: Callable[[], bytes] = self.sealed.read
        # (CPython's methods in C, without those in Python around them)
        inner = getattr(self.ssl, "_sslobj", self.ssl)
        self._read: Any = inner.read
        self._write: Callable[[Buffer], int] = inner.write
        self._inside: Callable[[], int] = inner.pending

    def shake(self) -> bool:
        """Go on with the handshake; return whether it is done.

        Raises:
            ssl.SSLError: it has failed.
        """
        try:
            self.ssl.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def encrypt(self, piece: Buffer) -> bool:
        """Seal a piece, which is not empty; False: receive from the peer first.

        Raises:
            ssl.SSLError: nothing can be sent any more.
        """
        try:
            self._write(piece)
        except ssl.SSLWantReadError:
            return False
        return True

    def has_arrived(self, beyond: int = 0) -> bool:
        """Return whether there are bytes that might be decrypted.

        Ciphertext counts if it is more than ``beyond`` bytes.
        """
        return self.arrived.pending > beyond or self._inside() > 0

    def decrypt_into(self, room: memoryview, filled: int = 0) -> int:
        """Fill the room from ``filled`` on, as far as bytes are there; return the end.

        May set `ended` or `failure`.
        """
        size, read, arrived = room.nbytes, self._read, self.arrived
        if self.failure is not None or not self.has_arrived():
            return filled
        try:
            while filled < size:
                count = read(size - filled, room[filled:] if filled else room)
                filled += count
                self.ended = count == 0
                # (a record that has not filled the room has no bytes left)
                if not (count and arrived.pending):
                    break
        except ssl.SSLWantReadError:  # no whole record has come
            pass
        except ssl.SSLZeroReturnError:
            self.ended = True
        except ssl.SSLError as error:
            self.failure = Failure(error)
        return filled

    def say_goodbye(self) -> None:
        """Seal a close_notify, once; impossible while the peer negotiates.

        Call it when all that has arrived was decrypted.
        """
        if not self.said_goodbye:
            before = self.sealed.pending
            with contextlib.suppress(ssl.SSLError):  # (at least: no answer has come)
                self.ssl.unwrap()
            self.said_goodbye = self.sealed.pending > before

    def plain_in(self, sealed: bytes, plain: int, out: int) -> int | None:
        """Return how many of the ``plain`` bytes are in records that end within the
        first ``out`` bytes of ``sealed``; None if that cannot be known.
        """
        records, at, whole, held = 0, 0, 0, 0
        while at < len(sealed):
            at += 5 + int.from_bytes(sealed[at + 3 : at + 5], "big")
            records += 1
            if at <= out:
                whole, held = records, at
        added, odd = divmod(len(sealed) - plain, records) if records else (0, 0)
        cipher = (self.ssl.cipher() or ("",))[0]
        if odd or not 16 < added < 64 or not any(kind in cipher for kind in _SIZED):
            return None
        return held - whole * added


class TLSStream(MessageStream, ByteStream):
    """TLS over one of our streams, which it owns from here on; see `secure`.

    It sends and receives as `Stream` does: any number of tasks may send, and one task
    at a time may receive.  A cancelled message goes out whole or not at all; in the
    cases named above it is cut off, which ends the sending.  `aclose` sends what was
    accepted, however long the peer takes to read it, and then waits up to ``patience``
    seconds for the peer's close_notify.
    """

    def __init__(self, stream: Stream, session: Session, patience: float) -> None:
        self._stream = stream
        self.session = session
        self._patience = patience
        self._arrived = memoryview(bytearray(ARRIVED))
        self._unread = b""  # decrypted, but not received yet
        self._answered: Ticket | None = None  # the last answer to the peer
        self._turns = Turns()  # of the calls that send
        self._received = Change()
        self._is_hearing = self._is_receiving = False  # True: a task is
        self._is_discarding = False  # `aclose` receives now
        self._has_hole = False  # an exception came between decryption and counting
        self._is_cut = False  # a message has begun, and its end was not sent

    # -- sending ------------------------------------------------------------------

    async def send(self, item: AnyBuffer = b"", *more: AnyBuffer) -> None:
        """Send the buffers as one message; when this returns they are yours again.

        Raises:
            StreamBroken: the peer left, or an earlier send was cut off.
                ``bytes_sent`` bytes of this message were out, in records that the peer
                can decrypt.  If the text says "at least", there may have been more.
            others: as `Stream.send`.
        """
        views: list[memoryview] = []

        async def send() -> None:
            views.extend(map(bytes_of, (item, *more)))
            if self._turns and self._stream._is_exclusive:
                raise anyio.BusyResourceError("writing to")
            await self._send(views)

        await and_end(send, partial(unpin, views))

    @in_turn
    async def _send(self, views: list[memoryview]) -> None:
        waiter = self._stream._enter()
        if self.session.said_goodbye:
            raise StreamClosed("send_eof was called before")
        if self._is_cut:
            raise StreamBroken(CUT)
        total, out, size = sum(view.nbytes for view in views), 0, 0
        pieces = pieces_of(views)
        sealed, waits = b"", False
        try:
            for piece in pieces:
                sealed, size = b"", len(piece)
                was_cut, self._is_cut = self._is_cut, True
                while not self.session.encrypt(piece):
                    self._is_cut = was_cut
                    await self._hear_first()
                    self._is_cut = True
                sealed = self.session.take()
                ticket = self._submit(sealed)
                if ticket is not None:
                    waits = True
                    await ticket
                    waits = False
                out += size
            self._is_cut = False
            if self._stream._budget_is_spent(total):
                await waiter.yield_to_loop()
        except StreamBroken as error:
            self._is_cut = False  # (later sends get the error of the stream below)
            more = self.session.plain_in(sealed, size, error.bytes_sent)
            raise error_of(
                *(-(error.errno or errno.EPIPE), out + (more or 0), total),
                at_least=more is None,
            ) from error.__cause__
        except ssl.SSLError as error:
            raise StreamBroken(f"TLS: {error}", out, total) from error
        except BaseException:
            if waits and total - out - size <= self._stream._rescue_limit:
                self._finish(pieces)
            raise

    async def _hear_first(self) -> None:
        """Receive from the peer while it negotiates."""
        self._answer()
        if self._is_receiving or len(self._unread) >= PIECE:
            await self._received.next()
        else:
            await self._hear()
            self._keep_arrived()

    def _finish(self, pieces: Iterable[Buffer]) -> None:
        """Leave the rest of a cancelled send to C."""
        with contextlib.suppress(StreamBroken, StreamClosed, ssl.SSLError):
            self._is_cut = not all(map(self.session.encrypt, pieces))
            self._submit(self.session.take())

    def _submit(self, sealed: bytes) -> Ticket | None:
        """Queue records in C; no cancel of the waiting task can take them back."""
        return self._stream._put_now(self._stream._enter(), sealed)

    async def _hand_on(self) -> None:
        """Send OpenSSL's own records, and wait until they are out."""
        self._answer()
        if self._answered is not None:
            await self._answered
            self._answered = None

    # -- receiving ----------------------------------------------------------------

    async def receive(self, max_bytes: int = RECEIVE_SIZE) -> bytes:
        """Return the next 1 to ``max_bytes`` bytes.

        Raises:
            EndOfStream: the peer has ended the stream by close_notify.
            StreamBroken: it left without close_notify, or TLS has failed.
            StreamClosed, BusyResourceError: as `Stream.receive`.
        """
        if max_bytes < 1:
            raise ValueError(f"max_bytes must be a positive integer, not {max_bytes}")
        view = memoryview(bytearray(min(max_bytes, RECEIVE_SIZE)))
        return await self._receive(view, 1, lambda n: bytes(view[:n]))

    async def receive_into(self, buffer: AnyBuffer) -> int:
        """Receive at least one byte straight into ``buffer``; return how many.

        Raises: as `receive`; BufferError for memory that cannot be written.
        """
        return await self._receive(bytes_of(buffer, pin_writable), 1, int)

    async def receive_exactly(self, buffer: AnyBuffer) -> None:
        """Fill the whole ``buffer``; a cancelled call loses nothing.

        Raises:
            IncompleteReceive: the stream ended; ``received`` bytes are in place.
            others: as `receive_into`.
        """
        await self._receive(bytes_of(buffer, pin_writable), None, int)

    async def _receive(
        self, view: memoryview, least: int | None, result: Callable[[int], T]
    ) -> T:
        """Fill the view, or ``least`` bytes at least; if interrupted, release it."""
        need = view.nbytes if least is None else min(least, view.nbytes)
        is_mine, filled = False, 0

        async def receive() -> T:
            nonlocal is_mine, filled
            await enter()
            waiter = self._stream._enter()
            if self._is_receiving and self._is_discarding:
                raise StreamClosed("the stream is being closed")
            if self._is_receiving:
                raise anyio.BusyResourceError("reading from")
            if self._has_hole:
                raise StreamBroken("an exception interrupted a receive: bytes are lost")
            is_mine = self._is_receiving = True
            if self._stream._budget_is_spent(view.nbytes) or not need:
                await waiter.checkpoint()
                self._stream._enter()
            if self._unread:
                n = min(len(self._unread), view.nbytes)
                view[:n] = self._unread[:n]
                # (one statement: no signal handler runs between the two stores)
                filled, self._unread = n, self._unread[n:]
            while True:
                self._has_hole = True
                filled = self.session.decrypt_into(view, filled)
                self._has_hole = False
                self._answer()
                if filled >= need:
                    received = result(filled)
                    self._end_receive()
                    return received
                self._raise_at_end(filled, view.nbytes)
                await self._hear()

        async def keep(error: BaseException) -> None:
            nonlocal filled
            if filled and not (self._has_hole or isinstance(error, IncompleteReceive)):
                unread = bytes(view[:filled]) + self._unread
                filled, self._unread = 0, unread  # (one statement, as in `receive`)
            if is_mine:
                self._end_receive()
            view.release()

        return await or_undo(receive, keep)

    def _end_receive(self) -> None:
        self._is_receiving = False
        self._received.happen()

    def _raise_at_end(self, received: int, total: int) -> None:
        if self.session.failure is not None:
            failure = self.session.failure.again()
            raise StreamBroken(f"TLS: {failure}") from failure
        if self.session.ended:
            raise IncompleteReceive(received, total) if received else anyio.EndOfStream

    async def _hear(self) -> None:
        """Receive ciphertext from the peer, or wait until another task has."""
        if self.session.sealed.pending or self._answered is not None:
            await self._hand_on()  # (a peer that takes no answers is not heard)
        self._received.happen()
        if self._is_hearing:
            await self._received.next()
            return
        try:
            await and_end(self._feed, self._end_hearing)
        except anyio.EndOfStream:
            text = "the peer has closed the connection without TLS's close_notify"
            raise StreamBroken(text) from None

    async def _feed(self) -> None:
        self._is_hearing = True
        n = await self._stream.receive_into(self._arrived)
        self.session.feed(self._arrived[:n])

    def _end_hearing(self) -> None:
        self._is_hearing = False
        self._received.happen()

    def _answer(self) -> None:
        """Answer the peer without waiting; leave an error to the next send."""
        if self.session.sealed.pending:
            with contextlib.suppress(StreamBroken, StreamClosed):
                self._answered = self._submit(self.session.take())

    def _keep_arrived(self) -> None:
        """Decrypt what has arrived for the next receive, unless one is in progress."""
        while not self._is_receiving and self.session.has_arrived():
            room = memoryview(bytearray(max(RECORD, self.session.arrived.pending)))
            self._has_hole = True
            filled = self.session.decrypt_into(room)
            self._unread += room[:filled]
            self._has_hole = False
            if not filled:
                return

    def _has_unread(self) -> bool:
        """Return whether bytes are unread; a close_notify of at most `GOODBYE` bytes
        does not count."""
        below = self.session.has_arrived(GOODBYE) or self._stream._has_unread()
        return bool(self._unread) or below

    # -- the end ------------------------------------------------------------------

    @in_turn
    async def send_eof(self) -> None:
        """Send close_notify; receiving goes on.  Called again, it does nothing.

        (With TLS 1.2 the peer has to end its own side at once.)

        Raises: as `send`.
        """
        self._stream._enter()
        await self._say_goodbye()

    async def _say_goodbye(self) -> None:
        while self._is_receiving and self.session.has_arrived():
            await self._received.next()  # (OpenSSL would lose what has arrived)
        if not (self.session.said_goodbye or self._is_cut):
            self._keep_arrived()
            self.session.say_goodbye()
            await self._hand_on()

    async def aclose(self) -> None:
        """Send what was accepted, send close_notify, wait for the peer's, and close.

        It waits because bytes that arrive at a closed socket reset the connection, and
        the peer would lose what it has not received.  Cancelled, it closes at once.
        """
        try:
            if self.fileno() >= 0:
                await self._goodbyes()
        except BaseException:
            self.abort()
            raise
        await self._stream.aclose()

    @in_turn
    async def _goodbyes(self) -> None:
        with contextlib.suppress(StreamBroken, StreamClosed):
            await self._say_goodbye()
            if self._patience and self.session.said_goodbye:
                await self._wait_for_goodbye()

    async def _wait_for_goodbye(self) -> None:
        memory = bytearray(RECEIVE_SIZE)
        with (
            anyio.move_on_after(self._patience),
            contextlib.suppress(anyio.EndOfStream),
        ):
            while True:
                while self._is_receiving:  # (the goodbye may come to another task)
                    await self._received.next()
                self._is_discarding = True
                await self.receive_into(memory)

    async def __aexit__(self, *error: object) -> None:
        """Close; after an exception, within a second."""
        if error[0] is None:
            await self.aclose()
        else:
            with anyio.move_on_after(LINGER, shield=True):
                await self.aclose()

    def abort(self) -> None:
        """Close at once, without close_notify.  May be called from any thread."""
        self._stream.abort()

    # -- attributes ---------------------------------------------------------------

    def fileno(self) -> int:
        """Return the fd of the stream below; -1 if it is closed."""
        return self._stream.fileno()

    @property
    def _raw_socket(self) -> socket.socket:
        return self._stream._raw_socket

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        """The attributes of the stream below, and anyio's `TLSAttribute`."""
        it, of = self.session.ssl, TLSAttribute
        return {
            **self._stream.extra_attributes,
            of.alpn_protocol: it.selected_alpn_protocol,
            of.channel_binding_tls_unique: it.get_channel_binding,
            of.cipher: it.cipher,
            of.peer_certificate: lambda: it.getpeercert(False),
            of.peer_certificate_binary: lambda: it.getpeercert(True),
            of.server_side: lambda: it.server_side,
            of.shared_ciphers: it.shared_ciphers,
            of.ssl_object: lambda: it,
            of.standard_compatible: lambda: True,
            of.tls_version: it.version,
        }


def check_context(context: object, *, server_side: bool) -> None:
    """Raises: TypeError, ValueError: it is no context of this side, nor None."""
    if context is None:
        return
    if not isinstance(context, ssl.SSLContext):
        raise TypeError(
            f"ssl_context must be an ssl.SSLContext, or None, not {context!r}"
        )
    if server_side and context.protocol == ssl.PROTOCOL_TLS_CLIENT:
        raise ValueError(
            "ssl_context is for clients: write "
            "ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)"
        )
    if not server_side and context.protocol == ssl.PROTOCOL_TLS_SERVER:
        raise ValueError(
            "ssl_context is for servers: write ssl.create_default_context()"
        )


async def secure(
    stream: Stream,
    context: ssl.SSLContext,
    *,
    server_side: bool = False,
    hostname: str | None = None,
    patience: float = PATIENCE,
) -> TLSStream:
    """Do the handshake over a stream; if this raises, the caller must close the stream.

    Raises:
        ssl.SSLError: one of the two refuses the other.
        StreamBroken, StreamClosed: as sending and receiving.
    """
    session = Session(context, server_side=server_side, server_hostname=hostname)
    tls = TLSStream(stream, session, patience)
    try:
        while not session.shake():
            await tls._hear()
    except ssl.SSLError:
        with contextlib.suppress(StreamBroken):
            await tls._hand_on()  # the alert that tells the peer what is wrong
        raise
    await tls._hand_on()
    return tls
