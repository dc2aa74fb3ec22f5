"""A file to download, whole or in part, which goes out without passing through Python.

The kernel moves it from the file to the socket (`relay`); only TLS copies it.  If the
file becomes shorter meanwhile, or the client takes nothing for too long, the connection
ends, and the client sees that bytes are missing.
"""

from __future__ import annotations

import mimetypes
import os
import re
import stat
from email.utils import formatdate
from functools import partial
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import anyio
import anyio.to_thread

from aiozerocopy._net.admission import Crowd
from aiozerocopy.relays import relay
from aiozerocopy.web.exchange import first_to_end
from aiozerocopy.web.modes import seated
from aiozerocopy.web.request import Refused

if TYPE_CHECKING:
    from aiozerocopy.relays import Relay
    from aiozerocopy.web.http import HttpConnection
    from aiozerocopy.web.request import Request

PATH = "/file"
DOWNLOADS = 32
KINDS = {".mkv": "video/x-matroska", ".ts": "video/mp2t"}  # not known everywhere

_ONE_RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})")


class Download:
    """Answers with the file at ``path``, as it is then; to `DOWNLOADS` clients at once.

    A client that takes nothing for ``patience`` seconds is let go.

    Raises: FileNotFoundError, PermissionError.
    """

    def __init__(self, path: str | os.PathLike[str], patience: float) -> None:
        self._path = Path(path).absolute()
        self._patience = patience
        self._crowd = Crowd(DOWNLOADS)  # each takes a thread and five fds
        _open(self._path).close()

    async def send(self, http: HttpConnection, request: Request) -> None:
        """Raises: Refused."""
        try:
            file = await anyio.to_thread.run_sync(_open, self._path)
        except OSError as error:
            raise Refused(404, "the file is not there any more") from error
        with file:
            status = os.fstat(file.fileno())
            headers = self._headers(status)
            whole = range(status.st_size)
            part = wanted(request, headers, status.st_size)
            if part != whole:
                last = f"{part.start}-{part.stop - 1}"
                headers["Content-Range"] = f"bytes {last}/{status.st_size}"
            begin = partial(
                http.begin, 200 if part == whole else 206, headers, len(part)
            )
            if request.method == "HEAD" or not part:
                await begin()
                return
            with seated(self._crowd, self._crowd.enter(request.peer)):
                await begin()
                await self._pass_on(http, file, part)

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

    async def _pass_on(self, http: HttpConnection, file: FileIO, part: range) -> None:
        moving = relay(file, http.stream, len(part), offset=part.start)

        await first_to_end(lambda: moving, lambda: self._until_stalled(moving))
        if moving.moved < len(part):
            http.stream.abort()

    async def _until_stalled(self, moving: Relay) -> None:
        moved = -1
        while moving.moved > moved:
            moved = moving.moved
            await anyio.sleep(self._patience)


def _open(path: Path) -> FileIO:
    """Raises: OSError, also if it is not a file."""
    # O_NONBLOCK: a FIFO that was put there meanwhile must not hold us up.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return FileIO(fd)
    os.close(fd)
    raise FileNotFoundError(f"{path} is no regular file")


def _named(name: str) -> str:
    """The file's name: in ASCII for old clients, and in UTF-8."""
    plain = re.sub(r"[^ -~]|[\"\\%]", "_", name)
    return f"filename=\"{plain}\"; filename*=UTF-8''{quote(os.fsencode(name))}"


def wanted(request: Request, headers: dict[str, str], size: int) -> range:
    """The bytes to send: all, unless exactly one part of this version is asked for.

    Raises: Refused, if that part begins behind the end.
    """
    found = _ONE_RANGE.fullmatch(request.headers.get("range", "").replace(" ", ""))
    version = request.headers.get("if-range", headers["ETag"])
    if found is None or version not in (headers["ETag"], headers["Last-Modified"]):
        return range(size)
    first, last = (int(number) if number else None for number in found.groups())
    if first is None:
        part = range(size - min(last, size), size) if last is not None else None
    elif last is None or last >= first:
        part = range(first, size if last is None else min(last + 1, size))
    else:
        part = None  # an invalid range, which a server ignores
    if part is None:
        return range(size)
    if not part:
        raise Refused(
            416, "the file has no such part", {"Content-Range": f"bytes */{size}"}
        )
    return part
