"""subprocess_exec, subprocess_shell and create_subprocess_exec, as asyncio has them.

The states of a child
    running   its pipes are transports of ours; the protocol hears of each
    exited    process_exited was called; what it had written still comes
    over      it has exited and its pipes are lost: connection_lost was called
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import threading
from asyncio.subprocess import Process, SubprocessStreamProtocol
from functools import partial
from typing import IO, TYPE_CHECKING, Any, TypeVar

from aiozerocopy._core.channel import IN, OUT, OWN, Channel
from aiozerocopy._core.pipe_size import PIPE_SIZE, enlarge_pipe
from aiozerocopy.transport.asyncio_streams import LIMIT
from aiozerocopy.transport.lifetime import In, Out
from aiozerocopy.transport.pipe_transports import ReadPipeTransport, WritePipeTransport
from aiozerocopy.transport.readiness import readiness_in

if TYPE_CHECKING:
    from collections.abc import Callable

    PipeTransport = ReadPipeTransport | WritePipeTransport

P = TypeVar("P", bound=asyncio.SubprocessProtocol)

_PIPES: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)

# What asyncio refuses too: the pipes carry bytes.
_REFUSED = ("universal_newlines", "text", "encoding", "errors", "bufsize")


class _PipeProtocol(asyncio.Protocol):
    """Tells the child's protocol what happens to one of its pipes."""

    def __init__(self, child: SubprocessTransport, number: int) -> None:
        self._child = child
        self._number = number

    def data_received(self, data: bytes) -> None:
        self._child.protocol.pipe_data_received(self._number, data)

    def connection_lost(self, exc: Exception | None) -> None:
        try:
            self._child.protocol.pipe_connection_lost(self._number, exc)
        finally:
            self._child.pipe_lost(self._number)

    def pause_writing(self) -> None:
        self._child.protocol.pause_writing()

    def resume_writing(self) -> None:
        self._child.protocol.resume_writing()


class SubprocessTransport(asyncio.SubprocessTransport):
    """A child process: `asyncio.SubprocessTransport`, as documented there."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        popen: subprocess.Popen[bytes],
        protocol: asyncio.SubprocessProtocol,
    ) -> None:
        super().__init__({"subprocess": popen})
        self.protocol: Any = protocol
        self._loop = loop
        self._popen = popen
        self._pipes: dict[int, PipeTransport] = {}
        self._open: set[int] = set()
        self._pidfd = -1
        self._exit: asyncio.Future[int] = loop.create_future()
        self._closing = self._is_over = False

    def __repr__(self) -> str:
        code = self.get_returncode()
        state = "running" if code is None else f"returncode={code}"
        return f"<{type(self).__name__} pid={self.get_pid()} {state}>"

    # -- its life -----------------------------------------------------------------

    def begin(self) -> None:
        """Make its pipes, call connection_made, and listen."""
        files = (self._popen.stdin, self._popen.stdout, self._popen.stderr)
        for number, file in enumerate(files):
            if file is not None:
                self._pipes[number] = self._pipe(number, file)
                self._open.add(number)
        self.protocol.connection_made(self)
        for pipe in self._pipes.values():
            pipe.begin()
        self._watch()

    def _pipe(self, number: int, file: IO[bytes]) -> PipeTransport:
        """A transport over our end, which then is its own."""
        enlarge_pipe(file.fileno(), PIPE_SIZE)
        os.set_blocking(file.fileno(), False)
        kind: type[PipeTransport] = ReadPipeTransport if number else WritePipeTransport
        channel = Channel(os.dup(file.fileno()), OWN | (IN if number else OUT))
        stream = In(channel) if number else Out(channel)
        return kind.over(stream, _PipeProtocol(self, number), {"pipe": file}, file)

    def _watch(self) -> None:
        try:
            self._pidfd = os.pidfd_open(self._popen.pid)
        except (AttributeError, OSError):  # not Linux, or forbidden, or no fds
            name = f"waits for {self._popen.pid}"
            threading.Thread(target=self._wait_blocking, name=name, daemon=True).start()
        else:
            readiness_in(self._loop).watch(self._pidfd, self._exited)

    def _wait_blocking(self) -> None:
        self._popen.wait()
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._exited)

    def _exited(self) -> None:
        code = self._popen.wait()
        fd, self._pidfd = self._pidfd, -1
        if fd >= 0:
            readiness_in(self._loop).forget(fd)
            os.close(fd)
        if not self._exit.done():
            self._exit.set_result(code)
            self.protocol.process_exited()
            self._end_if_over()

    def pipe_lost(self, number: int) -> None:
        """One of its pipes was closed, by whichever side."""
        self._open.discard(number)
        self._end_if_over()

    def _end_if_over(self) -> None:
        if self._exit.done() and not self._open and not self._is_over:
            self._is_over = self._closing = True
            self._loop.call_soon(self.protocol.connection_lost, None)

    # -- what its owner may ask ---------------------------------------------------

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        protocol: asyncio.BaseProtocol = self.protocol
        return protocol

    def get_pid(self) -> int:
        return self._popen.pid

    def get_returncode(self) -> int | None:
        """Its exit code; None while it runs."""
        return self._exit.result() if self._exit.done() else None

    def get_pipe_transport(self, fd: int) -> PipeTransport | None:
        """Of its stdin (0), stdout (1) or stderr (2); None if that is not a pipe."""
        return self._pipes.get(fd)

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        """Close its pipes, and kill it if it runs."""
        if self._closing:
            return
        self._closing = True
        for pipe in self._pipes.values():
            pipe.close()
        if self._popen.poll() is None:
            self._popen.kill()

    def send_signal(self, number: int) -> None:
        """Raises: ProcessLookupError if it has exited."""
        if self._exit.done() or self._popen.poll() is not None:
            raise ProcessLookupError
        self._popen.send_signal(number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    async def _wait(self) -> int:
        """What asyncio's `Process.wait` calls."""
        return await asyncio.shield(self._exit)


async def subprocess_exec(
    protocol_factory: Callable[[], P],
    program: str | bytes | os.PathLike[str],
    *args: str | bytes | os.PathLike[str],
    **options: Any,
) -> tuple[SubprocessTransport, P]:
    """Start a program; its pipes are enlarged, and transports of ours.

    The arguments are those of `asyncio.loop.subprocess_exec`.

    Raises:
        OSError: it cannot be started.
        ValueError: options that are for text.
    """
    if options.pop("shell", False):
        raise ValueError("shell must be False: there is subprocess_shell")
    return await _started(protocol_factory, [program, *args], options)


async def subprocess_shell(
    protocol_factory: Callable[[], P], cmd: str | bytes, **options: Any
) -> tuple[SubprocessTransport, P]:
    """As `asyncio.loop.subprocess_shell`; raises what `subprocess_exec` does."""
    if not isinstance(cmd, (str, bytes)):
        raise ValueError("cmd must be a string")
    if not options.pop("shell", True):
        raise ValueError("shell must be True: there is subprocess_exec")
    return await _started(protocol_factory, cmd, options | {"shell": True})


async def create_subprocess_exec(
    program: str | bytes | os.PathLike[str],
    *args: str | bytes | os.PathLike[str],
    limit: int = LIMIT,
    **options: Any,
) -> Process:
    """As `asyncio.create_subprocess_exec`; raises what `subprocess_exec` does."""
    loop = asyncio.get_running_loop()
    factory = partial(SubprocessStreamProtocol, limit=limit, loop=loop)
    options = dict.fromkeys(_PIPES) | options
    transport, protocol = await subprocess_exec(factory, program, *args, **options)
    return Process(transport, protocol, loop)


async def _started(
    protocol_factory: Callable[[], P], command: Any, options: dict[str, Any]
) -> tuple[SubprocessTransport, P]:
    for name in _REFUSED:
        if options.pop(name, None):
            raise ValueError(f"{name} is for text: the pipes carry bytes")
    protocol = protocol_factory()
    options = _PIPES | options | {"bufsize": 0}
    popen = subprocess.Popen(command, **options)  # noqa: ASYNC220 - as asyncio does
    transport = SubprocessTransport(asyncio.get_running_loop(), popen, protocol)
    try:
        transport.begin()
        await asyncio.sleep(0)
    except BaseException:
        transport.close()
        popen.wait()
        raise
    return transport, protocol
