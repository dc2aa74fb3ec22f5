"""A file to download, whole or in part, which goes out without passing through Python.

The kernel moves it from the file to the socket (`relay`); only TLS copies it.  If the
file becomes shorter meanwhile, or the client takes nothing for too long, the connection
ends, and the client sees that bytes are missing.

A relay takes a thread and some fds while it runs.  So each one moves one piece, for a
turn at most, once the socket has room: a client that does not read takes neither.
The states of a download
    waits   for room in its socket, and then for one of the `MOVERS`
    moves   a piece, until its turn is over.  If it took longer, the next one is half as
            big as what went out (`FIRST_PIECE` at least), otherwise twice as big.  Over
            TLS a piece is moved to its end, and has `TLS_PIECE` bytes at most: patience
            is counted anew for each
"""

from __future__ import annotations

import math
import mimetypes
import os
import re
import stat
from email.utils import formatdate
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import anyio
import anyio.to_thread

from aiozerocopy._net.tls import TLSStream
from aiozerocopy.relays import relay
from aiozerocopy.web.request import Refused

if TYPE_CHECKING:
    from aiozerocopy.relays import Relay
    from aiozerocopy.web.exchange import HttpStream
    from aiozerocopy.web.http import HttpConnection
    from aiozerocopy.web.request import Request

PATH = "/file"
MOVERS = 8  # pieces that are being moved at a time
TURN = 0.5  # seconds that one may take
FIRST_PIECE = 64 << 10  # bytes, which mostly fit if there is room
TLS_PIECE = 256 << 10  # bytes
KINDS = {".mkv": "video/x-matroska", ".ts": "video/mp2t"}  # not known on every machine

_ONE_RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})")


class Download:
    """Answers with the file at ``path``, as it is then.

    A client that takes nothing for ``patience`` seconds is disconnected; over TLS, one
    that takes less than a piece.

    Raises: FileNotFoundError, PermissionError.
    """

    def __init__(self, path: str | os.PathLike[str], patience: float) -> None:
        self._path = Path(path).absolute()
        self._patience = patience
        self._movers: anyio.Semaphore | None = None  # (made in the event loop)
        _open(self._path).close()

    async def send(self, http: HttpConnection, request: Request) -> None:
        """Raises: Refused."""
        try:
            file = await anyio.to_thread.run_sync(_open, self._path)
        except OSError as error:
            raise Refused(404, "the file is no longer available") from error
        with file:
            status = os.fstat(file.fileno())
            headers = self._headers(status)
            whole = range(status.st_size)
            part = wanted(request, headers, status.st_size)
            if part != whole:
                last = f"{part.start}-{part.stop - 1}"
                headers["Content-Range"] = f"bytes {last}/{status.st_size}"
            await http.begin(200 if part == whole else 206, headers, len(part))
            if request.method != "HEAD":
                await self._pass_on(http.stream, file, part)

    def _headers(self, status: os.stat_result) -> dict[str, str]:
        name = self._path.name
        known = KINDS.get(self._path.suffix.lower()) or mimetypes.guess_type(name)[0]
        return {
            "Accept-Ranges": "bytes",
            "Content-Disposition": f"attachment; {_named(name)}",
            "Content-Type": known or "application/octet-stream",
            "ETag": f'"{status.st_mtime_ns:x}-{status.st_size:x}"',
            "Last-Modified": formatdate(status.st_mtime, usegmt=True),
        }

    async def _pass_on(self, sink: HttpStream, file: FileIO, part: range) -> None:
        at, size, taken = part.start, FIRST_PIECE, 1
        with anyio.CancelScope() as patience:
            while at < part.stop:
                if taken:
                    patience.deadline = anyio.current_time() + self._patience
                await anyio.wait_writable(sink._raw_socket)
                moving = relay(file, sink, min(size, part.stop - at), offset=at)
                is_whole = await self._move(moving, sink, patience)
                taken = moving.taken
                at += taken
                if is_whole and not taken:
                    break  # the file has become shorter
                size = 2 * size if is_whole else max(FIRST_PIECE, taken // 2)
                if isinstance(sink, TLSStream):
                    size = min(size, TLS_PIECE)
        if at < part.stop:
            sink.abort()

    async def _move(
        self, moving: Relay, sink: HttpStream, patience: anyio.CancelScope
    ) -> bool:
        """Move a piece; False if its turn ended first."""
        if isinstance(sink, TLSStream):  # (no thread waits; a stop would cut it off)
            begun = anyio.current_time()
            await moving
            return anyio.current_time() - begun < TURN
        if self._movers is None:
            self._movers = anyio.Semaphore(MOVERS)
        left = patience.deadline - anyio.current_time()
        patience.deadline = math.inf  # (waiting for others is not the client's fault)
        async with self._movers:
            patience.deadline = anyio.current_time() + left
            with anyio.move_on_after(TURN) as turn:
                await moving
        return not turn.cancelled_caught


def _open(path: Path) -> FileIO:
    """Raises: OSError, also if it is not a file."""
    # O_NONBLOCK: a FIFO that was put there meanwhile must not hold us up.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return FileIO(fd)
    os.close(fd)
    raise FileNotFoundError(f"{path} is not a regular file")


def _named(name: str) -> str:
    """Return the file's name: in ASCII for old clients, and in UTF-8."""
    plain = re.sub(r"[^ -~]|[\"\\%]", "_", name)
    return f"filename=\"{plain}\"; filename*=UTF-8''{quote(os.fsencode(name))}"


def wanted(request: Request, headers: dict[str, str], size: int) -> range:
    """The bytes to send: all, unless exactly one part of this version is asked for.

    Raises: Refused, if that part begins past the end.
    """
    found = _ONE_RANGE.fullmatch(request.headers.get("range", "").replace(" ", ""))
    version = request.headers.get("if-range", headers["ETag"])
    if found is None or version not in (headers["ETag"], headers["Last-Modified"]):
        return range(size)
    first, last = (int(number) if number else None for number in found.groups())
    if first is None and last is not None:
        part = range(size - min(last, size), size)
    elif first is not None and (last is None or last >= first):
        part = range(first, size if last is None else min(last + 1, size))
    else:  # an invalid range, which a server ignores
        return range(size)
    if not part:
        raise Refused(
            416, "the file has no such part", {"Content-Range": f"bytes */{size}"}
        )
    return part
