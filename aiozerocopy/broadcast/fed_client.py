"""A client of a broadcast whose stream is not ours, such as TLS."""

from __future__ import annotations

import time
from functools import cached_property
from typing import TYPE_CHECKING

import anyio

from aiozerocopy._core.errors import StreamBroken
from aiozerocopy._net.foreign_streams import drop_stream, whole_sender
from aiozerocopy.broadcast.clients import Client, ClientTooSlow

if TYPE_CHECKING:
    from aiozerocopy._net.foreign_streams import MessageStream
    from aiozerocopy.broadcast.published import Message
    from aiozerocopy.streams import SendStream


class FedClient(Client):
    """Over a stream that is not ours: the task in `wait_closed` sends copies to it."""

    _scope: anyio.CancelScope | None = None

    @cached_property
    def _sender(self) -> SendStream | MessageStream:
        return whole_sender(self._stream)

    def _offer(self, message: Message) -> None:
        super()._offer(message)
        self._change.happen()

    def _send(self, message: Message) -> None:
        message.keep()
        self._current, self._since = message, time.monotonic()

    async def wait_closed(self) -> None:
        while not self._closed:
            if self._current is None:
                await self._change.next()
            else:
                await self._feed(self._current)

    async def _feed(self, message: Message) -> None:
        is_out = False
        try:
            with anyio.CancelScope() as self._scope:
                await self._sender.send(*message.buffers)
                is_out = True
        except Exception as error:
            self._fail(error)
        except BaseException:
            self._fail(
                StreamBroken("a frame was cut off: whoever fed it was cancelled")
            )
            raise
        finally:
            self._current = None
            if is_out:
                self._done(message, time.monotonic_ns())
            else:
                self._drop(message)
        if isinstance(self.error, ClientTooSlow):
            await drop_stream(self._stream)
        self._advance()

    def _stop_borrowing(self) -> None:
        """Nothing is borrowed: `_send` has copied it."""

    def _abort(self) -> None:
        if self._scope is not None:
            self._scope.cancel()
