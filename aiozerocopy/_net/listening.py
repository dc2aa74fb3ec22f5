"""Listening sockets for `serving`, and the file of a UNIX socket."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket
import stat
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aiozerocopy._core import fork_and_exit
from aiozerocopy._core.failure import Failure
from aiozerocopy._net.connecting import bracketed, limit_silence, located, look_up

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiozerocopy._net.connecting import Candidate

# errno of accept, when there are no fds or no memory: pause, and try again.
EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}

PORTS = 20  # attempts to find a port that is free on all addresses


@dataclass
class Listener:
    """A listening socket, and the file that it would leave behind."""

    sock: socket.socket
    address: Any
    file: str | bytes | None = None  # a UNIX socket's, absolute
    inode: tuple[int, int] | None = None
    # The generation of the process that owns the file.
    generation: int = field(default_factory=lambda: fork_and_exit.generation)

    def __str__(self) -> str:
        """Return host:port, or the path in quotes."""
        if not isinstance(self.address, tuple):
            return repr(self.address)
        host, port = self.address
        return f"{bracketed(host)}:{port}"

    @property
    def is_exposed(self) -> bool:
        """Whether other machines can reach it."""
        if not isinstance(self.address, tuple):
            return False
        return not ipaddress.ip_address(self.address[0].partition("%")[0]).is_loopback

    def own_file(self) -> None:
        """Own the file at its address, which `close` will remove."""
        file = os.path.abspath(self.address)
        self.file, self.inode = file, _inode(file)

    def close(self) -> None:
        """Stop listening, and remove the file unless another server has replaced it, or
        this is a forked child."""
        is_ours = self.generation == fork_and_exit.generation
        if self.file is not None and is_ours and self.sock.fileno() >= 0:
            with contextlib.suppress(OSError):
                if _inode(self.file) == self.inode:
                    os.unlink(self.file)
        self.sock.close()


def _inode(path: str | bytes) -> tuple[int, int]:
    status = os.lstat(path)
    return status.st_dev, status.st_ino


async def listen_tcp(
    host: str | Sequence[str] | None,
    port: int | str,
    backlog: int,
    reuse_port: bool,
    *,
    dead_after: float | None = None,
    reuse_address: bool = True,
    family: int = socket.AF_UNSPEC,
    flags: int = socket.AI_PASSIVE,
) -> list[Listener]:
    """Listen on one port of all addresses of a host, or of several; 0 is a free port.

    ``dead_after`` is for the accepted sockets: see `limit_silence`.

    Raises: OSError, with host and port in its text.
    """
    hosts = [host or ""] if host is None or isinstance(host, str) else host
    found: list[Candidate] = []
    try:
        for each in hosts:
            found += await look_up(each, port, 0, family=family, flags=flags)
        options = [socket.SO_REUSEADDR] * reuse_address
        options += [socket.SO_REUSEPORT] * reuse_port
        places = list(dict.fromkeys(found))
        for _ in range(PORTS if any(at[1] == 0 for _, at in places) else 0):
            with contextlib.suppress(OSError):
                return _listen_on_all(places, backlog, options, dead_after)
        return _listen_on_all(places, backlog, options, dead_after)
    except OSError as error:
        where = ", ".join(f"{bracketed(each or '*')}:{port}" for each in hosts)
        raise located(error, f"cannot listen on {where}") from error


def _listen_on_all(
    places: list[Candidate],
    backlog: int,
    options: list[int],
    dead_after: float | None,
) -> list[Listener]:
    """Listen on one port of all addresses that this machine has."""
    listeners: list[Listener] = []
    chosen = 0  # the port, once it is known
    missing: Failure[OSError] | None = None
    with contextlib.ExitStack() as undo:
        for family, (host, port, *scope) in places:
            try:
                sock = _bound(family, (host, chosen or port, *scope), options)
            except OSError as error:  # noqa: PERF203
                if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                    raise
                missing = Failure(error)  # no IPv6 here, say
            else:
                undo.callback(sock.close)
                limit_silence(sock, dead_after)
                sock.listen(backlog)
                chosen = sock.getsockname()[1]
                listeners.append(Listener(sock, sock.getsockname()[:2]))
        if missing is not None and not listeners:
            raise missing.again()
        undo.pop_all()
    return listeners


def _bound(
    family: socket.AddressFamily, address: tuple[Any, ...], options: list[int]
) -> socket.socket:
    sock = socket.socket(family)
    try:
        sock.setblocking(False)
        for option in options:
            sock.setsockopt(socket.SOL_SOCKET, option, 1)
        # (accepted sockets inherit it)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
    except BaseException:
        sock.close()
        raise
    return sock


def listen_unix(
    path: str | bytes,
    mode: int | None,
    backlog: int,
    kind: socket.SocketKind = socket.SOCK_STREAM,
) -> Listener:
    """Listen at a path, or at a name in the abstract name space.

    Raises: OSError, with the path in its text.
    """
    sock = socket.socket(socket.AF_UNIX, kind)
    listener = Listener(sock, path)
    try:
        sock.setblocking(False)
        if not path:  # (Linux would choose a name)
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        if path[:1] in ("\0", b"\0"):
            sock.bind(path)
        else:
            remove_stale(path)
            sock.bind(path)
            listener.own_file()
            if mode is not None:
                os.chmod(path, mode)  # before anybody can connect
        sock.listen(backlog)
    except BaseException as error:
        listener.close()
        if isinstance(error, OSError):
            raise located(error, f"cannot listen on {path!r}") from error
        raise
    return listener


def remove_stale(path: str | bytes) -> None:
    """Remove a socket's file if nobody listens there."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            return
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            with contextlib.suppress(FileNotFoundError):  # (another process was first)
                os.unlink(path)  # (a socket of any type: nobody listens)
        except OSError:
            pass  # somebody listens there, or we may not connect: bind will say so
