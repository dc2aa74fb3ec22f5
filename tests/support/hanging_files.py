"""A file whose file system does not answer, served through /dev/fuse.

The server is a process in a mount namespace of its own, so nothing stays mounted.  It
answers every request until "hold"; from then on GETATTR and FLUSH wait for "go", or for
the end of the server.
"""

import contextlib
import ctypes
import os
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

SIZE = 8 << 20
PATIENCE = 8.0  # seconds after which a hanging caller is let go

_CLONE_NEWNS = 0x20000
_PRIVATE = 0x4000 | 1 << 18  # MS_REC | MS_PRIVATE
_LOOKUP, _FORGET, _GETATTR, _SETATTR, _OPEN, _READ, _WRITE = 1, 2, 3, 4, 14, 15, 16
_RELEASE, _FLUSH, _INIT, _INTERRUPT, _FORGETS = 18, 25, 26, 36, 42
_ENOSYS = 38


class HangingFile:
    """A file's path, and control over the answers of its file system."""

    def __init__(self, server: subprocess.Popen[bytes], folder: Path) -> None:
        self._server = server
        self.serves = _told(server) == "serves"
        self.path = f"/proc/{server.pid}/root{folder}/file"

    def hold(self) -> None:
        """Answer no GETATTR and no FLUSH from now on."""
        self._say(b"hold\n")

    def release(self) -> None:
        """Answer again, and answer the waiting requests."""
        self._say(b"go\n")

    def _say(self, word: bytes) -> None:
        assert self._server.stdin is not None
        self._server.stdin.write(word)
        self._server.stdin.flush()
        assert _told(self._server) == word.decode().strip()

    @property
    def answers(self) -> bool:
        """False once the server was killed to let a caller go."""
        return self._server.poll() is None


def _told(server: subprocess.Popen[bytes]) -> str:
    assert server.stdout is not None
    return server.stdout.readline().decode().strip()


@contextlib.contextmanager
def hanging_file(folder: Path) -> Iterator[HangingFile]:
    """Serve a file, or skip the test where this is not possible."""
    command = [sys.executable, __file__, str(folder)]
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
        ) as server,
    ):
        timer = threading.Timer(PATIENCE, server.kill)
        try:
            file = HangingFile(server, folder)
            if not file.serves:
                server.wait()
                errors.seek(0)
                why = errors.read().decode().strip().splitlines()[-1:]
                pytest.skip(f"no file system can be served here: {why}")
            timer.start()
            yield file
        finally:
            timer.cancel()
            server.kill()


# ---- the server ----------------------------------------------------------------------


def _mount(at: str) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    fuse = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={fuse},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}"
    if (
        libc.unshare(_CLONE_NEWNS)
        or libc.mount(None, b"/", None, ctypes.c_ulong(_PRIVATE), None)
        or libc.mount(b"held", at.encode(), b"fuse", 0, options.encode())
    ):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return fuse


def _attributes(node: int) -> bytes:
    """Return the attributes of the folder, which is node 1, or of the file."""
    mode, size = (0o40755, 0) if node == 1 else (0o100666, SIZE)
    owner = os.getuid(), os.getgid()
    return struct.pack("<6Q10I", node, size, 0, *[0] * 6, mode, 1, *owner, 0, 4096, 0)


class _Server:
    def __init__(self, fuse: int) -> None:
        self._fuse = fuse
        self._lock = threading.Lock()
        self._waiting: list[bytes] | None = None

    def run(self) -> None:
        while True:
            self._serve(os.read(self._fuse, 1 << 18))

    def _serve(self, request: bytes) -> None:
        _, operation, unique, node = struct.unpack_from("<IIQQ", request)
        if operation in (_FORGET, _FORGETS, _INTERRUPT):
            return
        body = self._answer(operation, node, request[40:])
        error = -_ENOSYS if body is None else 0
        data = body or b""
        answer = struct.pack("<IiQ", 16 + len(data), error, unique) + data
        with self._lock:
            if self._waiting is not None and operation in (_GETATTR, _FLUSH):
                self._waiting.append(answer)
                return
        self._write(answer)

    def _write(self, answer: bytes) -> None:
        with contextlib.suppress(OSError):  # the request was given up
            os.write(self._fuse, answer)

    def _answer(self, operation: int, node: int, body: bytes) -> bytes | None:
        if operation == _INIT:
            limits = struct.pack("<HHII", 16, 12, 128 << 10, 1)
            return struct.pack("<4I", 7, 31, 128 << 10, 0) + limits + bytes(36)
        if operation == _LOOKUP:
            # (Valid for 0 seconds, so that the kernel asks again each time.)
            return struct.pack("<4Q2I", 2, 0, 0, 0, 0, 0) + _attributes(2)
        if operation in (_GETATTR, _SETATTR):
            return struct.pack("<QII", 0, 0, 0) + _attributes(node)
        if operation == _OPEN:
            return struct.pack("<QII", 1, 1, 0)  # FOPEN_DIRECT_IO
        if operation == _READ:
            _, offset, n = struct.unpack_from("<QQI", body)
            return bytes(max(0, min(n, SIZE - offset)))
        if operation == _WRITE:
            return body[16:20] + bytes(4)  # all bytes were written
        return b"" if operation in (_FLUSH, _RELEASE) else None

    def hold(self) -> None:
        with self._lock:
            self._waiting = []

    def release(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, None
        for answer in waiting or ():
            self._write(answer)


def _main() -> None:
    server = _Server(_mount(sys.argv[1]))
    threading.Thread(target=server.run, daemon=True).start()
    print("serves", flush=True)
    for line in sys.stdin:
        server.hold() if line == "hold\n" else server.release()
        print(line, end="", flush=True)


if __name__ == "__main__":
    _main()
