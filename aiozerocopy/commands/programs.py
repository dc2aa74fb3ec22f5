"""The programs that publish their stats: all are asked at once, for half a second."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiozerocopy.publishing import SUFFIX, check_folder, folder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PATIENCE = 0.5  # seconds for all of them together
MOST_BYTES = 64 << 20  # of an answer
MOST_COUNTED = 1 << 64
NUMBERS = (
    *("id", "fd", "age", "bytes", "messages", "calls", "waits"),
    *("queued_bytes", "queued"),
)
TEXTS = ("direction", "lane", "error")  # what each stream and ring has, too

Snapshot = dict[str, Any]


def ask_all() -> list[Snapshot]:
    """What each program tells, in the order of pids; "silent" is true if it does not.

    Raises:
        OSError: the folder of their sockets is open to others, so anybody may answer.
    """
    where = folder()
    with contextlib.suppress(FileNotFoundError):
        check_folder(where)
    deadline = time.monotonic() + PATIENCE
    with contextlib.ExitStack() as stack:
        # (all are asked before the first is waited for)
        asked = [
            (pid, stack.enter_context(contextlib.closing(asked)))
            for pid, asked in _connections(where)
        ]
        answers = [
            (pid, _answer(connection, pid, deadline)) for pid, connection in asked
        ]
    return [
        answer or {"pid": pid, "name": _command(pid), "silent": True}
        for pid, answer in answers
        if answer is not None
    ]


def _connections(where: Path) -> Iterator[tuple[int, socket.socket]]:
    paths = [path for path in where.glob(f"*{SUFFIX}") if path.stem.isdecimal()]
    for path in sorted(paths, key=lambda path: int(path.stem)):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.setblocking(False)
        try:
            connection.connect(str(path))
        except BlockingIOError:  # its line is full: it has not answered others either
            pass
        except OSError:  # it has ended
            connection.close()
            continue
        yield int(path.stem), connection


def _answer(connection: socket.socket, pid: int, deadline: float) -> Snapshot | None:
    """What one program tells; empty if it is silent, None if it has ended."""
    said = bytearray()
    try:
        while len(said) < MOST_BYTES:
            connection.settimeout(max(deadline - time.monotonic(), 0.001))
            piece = connection.recv(1 << 20)
            if not piece:
                return _checked(json.loads(said), pid)
            said += piece
    except TimeoutError:
        return {}
    except (OSError, ValueError, RecursionError):
        return None
    return {}


def _checked(said: Any, pid: int) -> Snapshot:
    """The answer, if it has all that is shown; else "odd" is true.

    It may come from another version, or from a program that only pretends.
    """
    odd = {"pid": pid, "name": _command(pid), "odd": True}
    if not isinstance(said, dict):
        return odd
    kinds = [said.setdefault(kind, []) for kind in ("streams", "rings")]
    if not all(isinstance(kind, list) for kind in kinds):
        return odd
    if not _has(said, ("time",), ("name",)):
        return odd
    for one in (*kinds[0], *kinds[1]):
        has_all = isinstance(one, dict) and _has(one, NUMBERS, TEXTS)
        if not has_all or (one in kinds[1] and not _has(one, ("peer_pid",), ())):
            return odd
        if one.get("capacity") and not _has(one, ("capacity", "unread"), ()):
            return odd
    return said | {"pid": pid}


def _has(one: dict[str, Any], numbers: Sequence[str], texts: Sequence[str]) -> bool:
    return all(isinstance(one.get(name), str) for name in texts) and all(
        isinstance(one.get(name), (int, float)) and abs(one[name]) < MOST_COUNTED
        for name in numbers
    )


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def process_name(pid: int) -> str:
    """``cat 123``; "" if the number is not known, as of a process elsewhere."""
    return f"{_command(pid)} {pid}".lstrip() if pid else ""


# ---- what is behind an fd -----------------------------------------------------------


class Peers:
    """Who is at the other end of an fd, as far as /proc tells."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, str], str] = {}
        self._used: dict[tuple[int, str], str] = {}  # of these, since the last refresh
        self._holders: dict[str, set[int]] | None = None
        self._addresses: dict[int, dict[str, str]] = {}

    def refresh(self) -> None:
        """Look again for what was not found, and forget what nobody asks for."""
        self._known, self._used = self._used, {}
        self._holders, self._addresses = None, {}

    def of(self, pid: int, fd: int) -> str:
        """A process, an address, a path; "" if it is not known."""
        try:
            link = os.readlink(f"/proc/{pid}/fd/{fd}")
        except OSError:
            return ""
        found = self._known.get((pid, link)) or self._look(pid, link)
        self._used[pid, link] = found
        return found

    def _look(self, pid: int, link: str) -> str:
        if link.startswith("pipe:"):
            if self._holders is None:
                self._holders = _pipes()
            others = sorted(self._holders.get(link, set()) - {pid})
            return ", ".join(map(process_name, others))
        if link.startswith("socket:["):
            if pid not in self._addresses:
                self._addresses[pid] = dict(_sockets(pid))
            return self._addresses[pid].get(link[len("socket:[") : -1], "")
        return link


def _pipes() -> dict[str, set[int]]:
    """The processes that have each pipe, of those that may be looked into."""
    holders: dict[str, set[int]] = {}
    for fds in Path("/proc").glob("[0-9]*/fd"):
        with contextlib.suppress(OSError):
            for entry in os.scandir(fds):
                with contextlib.suppress(OSError):
                    link = os.readlink(entry.path)
                    if link.startswith("pipe:"):
                        holders.setdefault(link, set()).add(int(fds.parts[2]))
    return holders


def _sockets(pid: int) -> Iterator[tuple[str, str]]:
    """The other ends of all sockets that this process may have, by their inodes."""
    for name, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for words in _table(pid, name):
            if len(words) > 9:
                yield words[9], _host_and_port(words[2], family)
    for words in _table(pid, "unix"):
        if len(words) > 6:
            yield words[6], words[7] if len(words) > 7 else "a UNIX socket"


def _table(pid: int, name: str) -> Iterator[list[str]]:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
            yield line.split()


def _host_and_port(text: str, family: int) -> str:
    """Of ``0100007F:1F90``: words of four bytes, each as this machine has a number."""
    host, port = text.split(":")
    words = [int(host[at : at + 8], 16) for at in range(0, len(host), 8)]
    raw = b"".join(word.to_bytes(4, sys.byteorder) for word in words)
    name = socket.inet_ntop(family, raw)
    name = name.removeprefix("::ffff:")
    return f"[{name}]:{int(port, 16)}" if ":" in name else f"{name}:{int(port, 16)}"
