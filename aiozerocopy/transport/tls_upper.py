"""The protocol above a TLS connection, and what it was told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio


class Upper:
    """Calls a program's protocol; each thing is told once, and in order."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        protocol: Any,
        ready: asyncio.Future[None] | None,
        *,
        is_made: bool,
    ) -> None:
        self._loop = loop
        self._ready = ready  # who waits for the handshake
        self._is_made = is_made
        self._is_paused = False
        self._has_ended = False
        self.protocol: Any = protocol

    def made(self, transport: asyncio.BaseTransport) -> None:
        """It has a transport, if it has not heard of one before."""
        if not self._is_made:
            self._is_made = True
            self.protocol.connection_made(transport)
        ready, self._ready = self._ready, None
        if ready is not None and not ready.done():
            ready.set_result(None)

    def lost(self, error: BaseException | None) -> None:
        """It has none any more."""
        ready, self._ready = self._ready, None
        if ready is not None and not ready.done():
            ready.set_exception(error or ConnectionAbortedError("it was closed"))
        if self._is_made:
            self.protocol.connection_lost(error)

    def ended(self) -> bool:
        """The peer sends nothing more; false if that shall be the end of all."""
        if self._has_ended:
            return True
        self._has_ended = True
        return bool(self.protocol.eof_received())

    def pause(self) -> None:
        """It shall write no more for now."""
        if self._is_made and not self._is_paused:
            self._is_paused = True
            self._tell_writer("pause_writing")

    def resume(self) -> None:
        """It may write again."""
        if self._is_paused:
            self._is_paused = False
            self._tell_writer("resume_writing")

    def _tell_writer(self, what: str) -> None:
        try:
            getattr(self.protocol, what)()
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            self.complain(f"protocol.{what}() failed", error)

    def complain(self, message: str, error: BaseException) -> None:
        """Tell the loop what the protocol did wrong."""
        context = {"message": message, "exception": error, "protocol": self.protocol}
        self._loop.call_exception_handler(context)
