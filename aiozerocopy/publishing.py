"""`publish_stats`: this program's streams, told to `aiozerocopy top` and to scripts.

The listening socket has a path in a folder that only this user can enter, and a thread
of its own, which answers each connection of this user (or of root) with one JSON object
and closes it.  The thread reads counters, by numbers: it refers to no stream, takes no
part in any send, and cannot see the data.  A reader that does not take the answer is
dropped after a second, and holds up only that thread.

`close`, or the program's exit, ends the thread and removes the path.  A forked child
has neither, and may publish its own.  After SIGKILL the path stays until the next
program that publishes removes it.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import json
import os
import secrets
import socket
import stat
import struct
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiozerocopy._core import census
from aiozerocopy._net.listening import remove_stale

if TYPE_CHECKING:
    from typing_extensions import Self

VARIABLE = "AZC_STATS_FOLDER"  # in the environment; for containers, which share one
SUFFIX = ".stats"
RUNTIME, SHARED = Path("/run/user"), Path("/tmp")
PATIENCE = 1.0  # seconds, for a reader
LONGEST_NAME = 100


def folder() -> Path:
    """Where the sockets of this user's programs are.

    (Not in $XDG_RUNTIME_DIR: a service has none, and must be found too.)
    """
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named)
    runtime = RUNTIME / str(os.geteuid())
    if runtime.is_dir() and os.access(runtime, os.W_OK):
        return runtime / "aiozerocopy"
    # Others may have made one of that name first; nobody can make all of them.
    usual = SHARED / f"aiozerocopy-{os.geteuid()}"
    for path in (usual, *sorted(SHARED.glob(f"{usual.name}-*"))):
        if _is_mine_or_free(path):
            return path
    return SHARED / f"{usual.name}-{secrets.token_hex(4)}"


def _is_mine_or_free(path: Path) -> bool:
    try:
        return path.lstat().st_uid == os.geteuid()
    except FileNotFoundError:
        return True


def check_folder(path: Path) -> None:
    """Raises: OSError: it is not there, or others may enter it."""
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, "it is not a folder", str(path))
    if found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise PermissionError(
            errno.EPERM, "it must be yours, and closed to others (chmod 700)", str(path)
        )


def publish_stats(name: str | None = None) -> Publication:
    """Let this user's `aiozerocopy top` see the streams of this program.

    ``name`` is what it calls the program, by default after the file that was started.
    It can be called at any time, with or without an event loop, and once in a process;
    it ends with `Publication.close` or with the program.

    A thread answers with counters, never with data.  It slows down no stream; it only
    takes the GIL, for some microseconds a stream.

    Raises:
        RuntimeError: this process does so already.
        ValueError: an empty name, or one of more than 100 characters.
        OSError: no socket can be made; or its folder is not this user's alone.
    """
    global _current
    if _current is not None:
        raise RuntimeError(
            f"this process already publishes its stats as {_current.name!r}"
        )
    _current = Publication(_default_name() if name is None else name)
    return _current


def _default_name() -> str:
    started = Path(sys.argv[0] if sys.argv else "").name
    return started[:LONGEST_NAME] if started not in ("", "-c") else "python"


class Publication:
    """What `publish_stats` has begun; `close` it, or use it with ``with``."""

    def __init__(self, name: str) -> None:
        if not isinstance(name, str):
            raise TypeError(f"name must be a string, not {name!r}")
        if not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
            raise ValueError(
                f"name must have 1 to {LONGEST_NAME} characters and no line breaks"
            )
        self.name = name
        self.path: Path = folder() / f"{os.getpid()}{SUFFIX}"
        self._process = os.getpid()
        self._began = time.time()
        self._ended = threading.Event()
        self._socket = _listen(self.path)
        self._thread = threading.Thread(
            target=self._serve, name="aiozerocopy stats", daemon=True
        )
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                reader, _ = self._socket.accept()
            except OSError:  # closed; or there is no fd left, say
                if self._ended.wait(PATIENCE):
                    return
                continue
            with reader, contextlib.suppress(OSError):
                reader.settimeout(PATIENCE)
                if _may_ask(reader):
                    reader.sendall(json.dumps(self.snapshot()).encode())

    def snapshot(self) -> dict[str, Any]:
        """What is told now: the program, and a dict for each stream's direction."""
        return {
            "pid": os.getpid(),
            "name": self.name,
            "age": time.time() - self._began,
            "time": time.monotonic(),
            "streams": census.streams(),
            "rings": census.rings(),
        }

    def close(self) -> None:
        """Publish no more; may be called twice."""
        global _current
        if self._ended.is_set():
            return
        self._ended.set()
        if _current is self:
            _current = None
        if os.getpid() == self._process:
            self.path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # ends the accept
            self._thread.join(2 * PATIENCE)
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._ended.is_set() else str(self.path)
        return f"<Publication {self.name!r} {state}>"


_current: Publication | None = None


def _listen(path: Path) -> socket.socket:
    """Nobody meets a socket there that does not listen yet: it is made beside it."""
    with contextlib.suppress(FileExistsError):
        path.parent.mkdir(mode=0o700)
    check_folder(path.parent)
    for left in path.parent.glob(f"*{SUFFIX}"):
        remove_stale(str(left))
    made = path.with_suffix(".new")
    made.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.settimeout(None)
        listener.bind(str(made))
        listener.listen()
        made.rename(path)
    except BaseException as error:
        listener.close()
        made.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is None:  # "path too long"
            raise OSError(errno.ENAMETOOLONG, str(error), str(path)) from None
        raise
    return listener


def _may_ask(reader: socket.socket) -> bool:
    """Is it this user's, or root's?  (The folder lets no others in anyway.)"""
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    size = struct.calcsize("3i")
    told = reader.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    return struct.unpack("3i", told)[1] in (os.geteuid(), 0)


def _forget() -> None:
    """In a forked child: the thread is not here, and the socket must not live on."""
    global _current
    if _current is not None:
        _current._ended.set()  # (nobody waits for it here)
        _current._socket.close()
        _current = None


def _close_at_exit() -> None:
    if _current is not None:
        _current.close()


os.register_at_fork(after_in_child=_forget)
atexit.register(_close_at_exit)
