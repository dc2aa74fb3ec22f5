"""A client of a broadcast whose stream is ours: it needs no task."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from aiozerocopy.broadcast.clients import Client

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiozerocopy._core.borrows import Operation
    from aiozerocopy.broadcast.published import Message
    from aiozerocopy.streams import SendStream


class DirectClient(Client):
    """Over a stream of ours: the queue in C takes the message, and no task is needed.

    How the operation of the message in flight ends (`_on_end`)
        all is out    the next message is sent
        rescued       some was out when the memory was asked back: C has copied the
                      rest, and an empty operation behind it ends when that is out
        dropped       nothing was out then: the message waits again, or is dropped
    """

    _stream: SendStream
    _operation: Operation | None = None
    _was_asked_back = False

    def _send(self, message: Message) -> None:
        self._submit(message, message.buffers)

    def _submit(self, message: Message, buffers: Sequence[Any]) -> None:
        stream = self._stream
        try:
            operation = stream._out.send_now(stream._enter().port, buffers)
        except Exception as error:
            self._drop(message)
            self._fail(error)
            return
        if operation.done:
            self._done(message)
            return
        self._current, self._operation, self._was_asked_back = message, operation, False
        if not self._since:
            self._since = time.monotonic()
        operation.listen(self._on_end)

    def _on_end(self) -> None:
        """The operation in flight has ended."""
        operation, message = self._operation, self._current
        if operation is None or message is None:
            return
        self._operation = self._current = None
        if operation.status == 0:
            self._since = 0.0
            self._done(message)
        elif operation.was_dropped:
            self._send_later(message)
        elif not operation.was_rescued:
            self._drop(message)
            self._fail(operation.failure())
        elif self._closed:
            self._done(message)  # its rest will go out
        else:
            self._submit(message.without_memory(), (b"",))
            self._was_asked_back = True
        if self._current is None:
            self._advance()

    def _send_later(self, message: Message) -> None:
        """Not a byte of it was out: a newer one may take its place, or it waits."""
        if self._closed or (self.policy == "latest" and self._pending):
            self._drop(message)
            self._drop_all(self._pending.skip_to_key())
        else:
            message.keep()
            self._pending.put_back(message)

    def _stop_borrowing(self) -> None:
        waiter, operation = self._stream._waiter, self._operation
        if waiter is None or operation is None or self._was_asked_back:
            return
        self._was_asked_back = True
        self._stream._out.take_back(waiter.port, operation, operation.total)

    def _abort(self) -> None:
        self._stream.abort()
