"""Addresses of ``azc+unix://``: a path, or the name of a client.

A location with a slash is the path of the listening socket; a port at its end is left
out, since Dask's commands add one to whatever they are given.  Any other location, such
as a host and port, stands for a new path, in a folder of its own into which only this
user can look.

A client of a Unix socket has no address unless it takes one.  Linux gives it a name
that no other has, which both sides know then: ``azc+unix://@0a1b2``.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import sys
import tempfile
from typing import TYPE_CHECKING

import anyio

from aiozerocopy._net.connecting import BACKLOG_IS_FULL, located
from aiozerocopy._net.listening import listen_unix
from aiozerocopy.opening import stream_over

if TYPE_CHECKING:
    from aiozerocopy._net.listening import Listener
    from aiozerocopy.streams import Stream

MODE = 0o600  # of a socket's file: only this user may connect
UNNAMED = "@"


def location_of(address: str | bytes) -> str:
    """What a socket says of its own address or of its peer's, as text."""
    if isinstance(address, str):
        return address or UNNAMED
    return UNNAMED + os.fsdecode(address[1:])


async def connect_named(path: str) -> Stream:
    """Connect to a path, as a client that has a name.

    Raises: OSError: nobody listens there; the path is in the text.
    """
    with socket.socket(socket.AF_UNIX) as sock:
        sock.setblocking(False)
        if sys.platform == "linux":
            sock.bind("")
        while True:
            try:
                sock.connect(path)
            except BlockingIOError:  # noqa: PERF203
                # The server's backlog is full; no fd tells when there is room.
                await anyio.sleep(BACKLOG_IS_FULL)
            except OSError as error:
                raise located(error, f"cannot connect to {path!r}") from error
            else:
                return stream_over(sock)


class Place:
    """Where a listener is: a path, and the folder that was made for it, if any."""

    def __init__(self, location: str) -> None:
        self._folder = ""
        self.path: str = re.sub(r":[0-9]+$", "", location)
        if "/" not in location:
            self._folder = tempfile.mkdtemp(prefix="aiozerocopy-dask-")
            self.path = os.path.join(self._folder, "socket")

    def listen(self, backlog: int) -> Listener:
        """Raises: OSError: with the path in its text."""
        try:
            return listen_unix(self.path, MODE, backlog)
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
