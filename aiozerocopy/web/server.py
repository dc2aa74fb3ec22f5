"""The web server: it takes connections, checks requests and has them answered."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import anyio

from aiozerocopy._net.admission import Admission
from aiozerocopy._net.block import Service
from aiozerocopy._net.connecting import DEAD_AFTER, bracketed
from aiozerocopy._net.listening import listen_tcp
from aiozerocopy._net.serving import BACKLOG, GRACE, Server
from aiozerocopy.web.download import PATH, Download
from aiozerocopy.web.exchange import PEER_LEFT
from aiozerocopy.web.guard import Guard
from aiozerocopy.web.http import HttpConnection
from aiozerocopy.web.modes import Modes, seated
from aiozerocopy.web.request import Refused
from aiozerocopy.web.settings import MODES, PATIENCE, VIEWERS, check
from aiozerocopy.web.site import Site

if TYPE_CHECKING:
    import os
    import ssl
    from collections.abc import Iterator, Sequence

    from aiozerocopy._net.admission import Guest
    from aiozerocopy.broadcast import Broadcast
    from aiozerocopy.web.exchange import HttpStream
    from aiozerocopy.web.request import Request


def serve(
    hub: Broadcast,
    host: str | None = "127.0.0.1",
    port: int = 0,
    *,
    token: str | Sequence[str] | None = None,
    title: str = "aiozerocopy",
    modes: Sequence[str] = MODES,
    hardware: bool = False,
    hosts: Sequence[str] = (),
    origins: Sequence[str] = (),
    quality: int = 80,
    max_viewers: int = VIEWERS,
    max_per_address: int | None = None,
    patience: float = PATIENCE,
    file: str | os.PathLike[str] | None = None,
    ssl_context: ssl.SSLContext | None = None,
) -> WebServer:
    """Serve a page that shows what is published to ``hub``, inside ``async with``.

    With a ``token``, everything that shows something needs it: as ``?token=...``, or in
    the header ``Authorization: Bearer ...``.  ``modes`` are the ways to offer: "h264"
    needs PyAV or FFmpeg, "av1" PyAV, "mjpeg" simplejpeg or Pillow.  AV1 is offered only
    if you ask for it, as it takes three times the CPU of H.264.  With ``hardware``, the
    GPU encodes H.264, if FFmpeg has an encoder for it that works, holds no frame back
    and makes key frames on demand.  ``quality`` is that of JPEG, from 1 to 100.
    Requests for a loopback name or for one of ``hosts`` are answered, others are not:
    this keeps out pages that point their own name at this machine.  Without ``hosts``,
    a server that listens on other than loopback addresses also answers to any address
    and to this machine's name, and with a token to every name.  Of pages, only this
    server's own and those of ``origins`` may open a WebSocket.

    At most ``max_viewers`` watch or download at a time, and from one address (other
    than 127.0.0.1 and ::1) at most ``max_per_address``, by default half of them.
    Twice ``max_viewers`` and 64 more may be connected; if even more come, one that only
    waits is disconnected.  A viewer is disconnected if one frame takes it more than
    ``patience`` seconds.

    A ``file`` is offered for download at `WebServer.file_url`, whole or in parts.  It
    goes from the file to the socket without a copy in user space; a client that takes
    nothing of it for ``patience`` seconds (over HTTPS, less than 256 KiB) is
    disconnected.

    With an ``ssl_context``, page and pictures go over HTTPS.  That takes copies: every
    byte is encrypted again for each viewer.

    Raises:
        TypeError, ValueError: a wrong setting, or no mode that can be offered here.
        FileNotFoundError, PermissionError: of the ``file``.
        OSError: as `serve_tcp`, when the server is entered.
        RuntimeError: the hub was not entered before the server, and an encoder needs
            that.
    """
    check(host=host, port=port, ssl_context=ssl_context)
    limits = max_viewers, max_per_address
    ways = Modes(hub, modes, quality, patience, *limits, hardware=hardware)
    return WebServer(
        Site(hub, ways, Guard(host, token, hosts, origins), title),
        (host, port),
        token if token is None or isinstance(token, str) else token[0],
        None if file is None else Download(file, patience),
        ssl_context,
    )


class WebServer(Service):
    """What `serve` returns: it serves inside ``async with``.

    `serve_forever` serves until cancelled.  Like a `Server`, it logs where it listens.
    At the end of the block viewers hear that the stream ends; the hub stays open.
    """

    def __init__(
        self,
        site: Site,
        address: tuple[str | None, int],
        token: str | None,
        download: Download | None,
        ssl_context: ssl.SSLContext | None,
    ) -> None:
        self._site = site
        self._host = address[0]
        self._token = token
        self._scheme = "https" if ssl_context else "http"
        self._server = Server(
            self._serve_client,
            partial(listen_tcp, *address, BACKLOG, False, dead_after=DEAD_AFTER),
            Admission(ssl_context, is_guarded=token is not None),
            site.modes.crowd,
            seats_itself=True,
        )
        self._closing = False
        self._idle: set[anyio.CancelScope] = set()  # connections without a request now
        self._download = download
        site.connections = lambda: self._server.connections

    # -- its life -----------------------------------------------------------------

    @property
    def port(self) -> int:
        """The TCP port."""
        return self._server.port

    @property
    def url(self) -> str:
        """What to open in a browser, with the token if there is one."""
        return self._url("/")

    @property
    def file_url(self) -> str:
        """Where the file is, if one is offered."""
        return self._url(PATH)

    def _url(self, path: str) -> str:
        host = self._host or "localhost"
        host = {"0.0.0.0": "localhost", "::": "localhost"}.get(host, host)
        query = f"?{urlencode({'token': self._token})}" if self._token else ""
        return f"{self._scheme}://{bracketed(host)}:{self.port}{path}{query}"

    @property
    def viewers(self) -> int:
        """How many watch now."""
        return self._site.modes.viewers

    @property
    def modes(self) -> tuple[str, ...]:
        """The modes that are offered, the best first."""
        return self._site.modes.modes

    async def _begin(self, undo: contextlib.AsyncExitStack) -> None:
        self._site.modes.check_hub()
        await undo.enter_async_context(self._server)
        self._ended = self._server._ended

    async def aclose(self, grace: float | None = GRACE) -> None:
        """Stop accepting, end the streams, disconnect all after ``grace`` seconds."""
        self._closing = True
        self._site.modes.close()
        for scope in self._idle:
            scope.cancel()
        await self._server.aclose(grace)

    # -- one connection -----------------------------------------------------------

    async def _serve_client(self, stream: HttpStream, guest: Guest) -> None:
        http = HttpConnection(stream, self._site.count, guest)
        try:
            await self._answer_all(http)
        except PEER_LEFT:
            stream.abort()

    async def _answer_all(self, http: HttpConnection) -> None:
        try:
            while (request := await self._next_request(http)) is not None:
                await self._answer(http, request)
                if delay := self._site.modes.crowd.delay(http.guest):
                    with self._waiting():
                        await anyio.sleep(delay)
        except Refused as refusal:
            await http.refuse(refusal)

    async def _next_request(self, http: HttpConnection) -> Request | None:
        """Return the next request or None; closing the server does not wait for one."""
        if self._closing:
            return None
        with self._waiting():
            return await http.next_request()
        return None

    @contextlib.contextmanager
    def _waiting(self) -> Iterator[None]:
        """A block that closing the server does not wait for."""
        with anyio.CancelScope() as scope:
            self._idle.add(scope)
            try:
                yield
            finally:
                self._idle.discard(scope)

    async def _answer(self, http: HttpConnection, request: Request) -> None:
        """Raises: Refused."""
        if self._download is not None and request.path == PATH:
            self._site.check(request)
            with seated(self._site.modes.crowd, http.guest):
                await self._download.send(http, request)
        else:
            await self._site.answer(http, request)
            await http.part()
