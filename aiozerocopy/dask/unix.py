"""``azc+unix:///path``: between processes of one machine, and of one user.

A location with a slash is the path of the listening socket; a port at its end is left
out, since Dask's commands add one to every address.  Any other location, such as a host
and port, stands for a new path, in a folder of its own that only this user can enter.
A process that is killed leaves its folder; the next process that makes one removes it.

A client of a Unix socket has no address unless it binds one.  We have Linux choose a
unique name, which both sides can see: ``azc+unix://@0a1b2``.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from distributed.comm.tcp import BaseTCPBackend

from aiozerocopy._net.connecting import connected_unix
from aiozerocopy._net.listening import Listener, listen_unix, remove_stale
from aiozerocopy.dask.comm import StreamComm, StreamConnector
from aiozerocopy.dask.listener import StreamListener
from aiozerocopy.dask.loan import CAN_LEND
from aiozerocopy.dask.local import LocalStream
from aiozerocopy.opening import stream_over
from aiozerocopy.streams import Stream, UnixStream

if TYPE_CHECKING:
    from aiozerocopy.dask.comm import Link
    from aiozerocopy.dask.messages import Frame

MODE = 0o600  # of a socket's file: only this user may connect

PREFIX = "aiozerocopy-dask-"  # of the folders
FRESH = 60.0  # seconds after which the owner of a folder must be listening

# The key in the handshake for "takes the pipes of `LocalStream`".
PIPES = "aiozerocopy-pipes"


class UnixComm(StreamComm):
    """``azc+unix://``; large messages go by pipes, if both sides can."""

    stream: LocalStream

    def __init__(self, stream: Link, *args: Any) -> None:
        assert isinstance(stream, UnixStream)
        super().__init__(LocalStream(stream), *args)

    def handshake_info(self) -> dict[str, Any]:
        """Return the facts about us for the peer."""
        return super().handshake_info() | {PIPES: CAN_LEND}

    async def _send(self, buffers: list[Frame], nbytes: int) -> None:
        takes_pipes = CAN_LEND and self.remote_info.get(PIPES) is True
        await self.stream.send_message(buffers, nbytes, takes_pipes)

    async def _receive(self) -> list[memoryview]:
        return await self.stream.receive_frames(self._most)


class UnixConnector(StreamConnector):
    prefix = "azc+unix://"
    comm_class: type[UnixComm] = UnixComm

    async def _open(self, address: str) -> Stream:
        with await connected_unix(address, with_name=True) as sock:
            return stream_over(sock)


class UnixListener(StreamListener):
    prefix = "azc+unix://"
    comm_class: type[UnixComm] = UnixComm

    def __init__(self, address: str, *args: Any, **options: Any) -> None:
        super().__init__(address, *args, **options)
        self._location = address
        self._path = re.sub(r":[0-9]+$", "", address)
        self._folder = ""  # the folder that was made for the socket, if any

    async def _listen(self, backlog: int) -> list[Listener]:
        if "/" not in self._location:
            _remove_dead()
            self._folder = tempfile.mkdtemp(prefix=PREFIX)
            self._path = os.path.join(self._folder, "socket")
        try:
            return [listen_unix(self._path, MODE, backlog)]
        except BaseException:
            self._remove_folder()
            raise

    def _close(self) -> None:
        super()._close()
        self._remove_folder()

    def _remove_folder(self) -> None:
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def listen_address(self) -> str:
        self._require_started()
        return self.prefix + self._path

    @property
    def contact_address(self) -> str:
        return self.listen_address


def _remove_dead() -> None:
    """Remove the folders of processes that were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # another user's folder, or just removed
            status = folder.lstat()
            is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
            if is_ours and time.time() - status.st_mtime > FRESH:
                remove_stale(str(folder / "socket"))
                folder.rmdir()  # fails unless it is empty now


class UnixBackend(BaseTCPBackend):
    """``azc+unix:///path``: all processes on one machine, and of one user."""

    _connector_class: type[UnixConnector] = UnixConnector
    _listener_class: type[UnixListener] = UnixListener

    def get_address_host(self, loc: str) -> str:
        return "127.0.0.1"

    def get_address_host_port(self, loc: str) -> NoReturn:
        raise NotImplementedError

    def resolve_address(self, loc: str) -> str:
        return loc

    def get_local_address_for(self, loc: str) -> str:
        return ""
