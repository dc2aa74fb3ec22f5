"""aiozerocopy.transport: child processes."""

import asyncio
import os
import signal
from subprocess import DEVNULL, PIPE
from typing import Any

import pytest
from links import BIG, until
from oracle import payload
from transports import both_loops

from aiozerocopy import transport as azt

pytestmark = pytest.mark.anyio


class Recorder(asyncio.SubprocessProtocol):
    """Notes what it is told."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.data = {1: bytearray(), 2: bytearray()}
        self.lost = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self.events.append("made")

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self.data[fd] += data

    def pipe_connection_lost(self, fd: int, exc: BaseException | None) -> None:
        self.events.append(fd)

    def process_exited(self) -> None:
        self.events.append("exited")

    def connection_lost(self, exc: BaseException | None) -> None:
        self.events.append("lost")
        self.lost.set_result(exc)


@both_loops
async def test_from_its_start_to_its_end() -> None:
    transport, protocol = await azt.subprocess_exec(
        Recorder, "sh", "-c", "read line; echo got $line; echo bad >&2; exit 3"
    )
    assert transport.get_returncode() is None
    assert transport.get_pid() > 0
    assert transport.get_extra_info("subprocess").pid == transport.get_pid()
    stdin: Any = transport.get_pipe_transport(0)
    stdin.write(b"it\n")
    await protocol.lost
    assert transport.get_returncode() == 3
    assert protocol.data == {1: b"got it\n", 2: b"bad\n"}
    assert (protocol.events[0], protocol.events[-1]) == ("made", "lost")
    assert set(protocol.events[1:-1]) == {0, 1, 2, "exited"}
    for call in (transport.kill, transport.terminate):
        with pytest.raises(ProcessLookupError):
            call()
    transport.close()


@both_loops
async def test_much_through_it_and_back() -> None:
    data = bytes(payload(3, 3 * BIG))
    process = await azt.create_subprocess_exec("cat", stdin=PIPE, stdout=PIPE)
    out, err = await process.communicate(data)
    assert (out, process.returncode) == (data, 0)
    assert not err
    assert await process.wait() == 0


async def test_only_some_are_pipes() -> None:
    transport, protocol = await azt.subprocess_exec(
        Recorder, "cat", stdin=DEVNULL, stderr=DEVNULL
    )
    assert transport.get_pipe_transport(0) is None
    await protocol.lost
    assert protocol.events[0::3] == ["made", "lost"]
    assert {*protocol.events[1:3]} == {1, "exited"}


async def test_shell() -> None:
    _, protocol = await azt.subprocess_shell(Recorder, "echo $((20 + 3))")
    await protocol.lost
    assert protocol.data[1] == b"23\n"


@both_loops
async def test_close_kills() -> None:
    transport, protocol = await azt.subprocess_exec(Recorder, "sleep", "60")
    assert "running" in repr(transport)
    transport.close()
    transport.close()
    assert transport.is_closing()
    await protocol.lost
    assert transport.get_returncode() == -signal.SIGKILL
    assert "returncode=-9" in repr(transport)


async def test_signals() -> None:
    transport, protocol = await azt.subprocess_exec(Recorder, "sleep", "60")
    transport.terminate()
    await protocol.lost
    assert transport.get_returncode() == -signal.SIGTERM


@both_loops
async def test_without_pidfds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    transport, protocol = await azt.subprocess_exec(Recorder, "true")
    await protocol.lost
    assert transport.get_returncode() == 0


async def test_what_cannot_be() -> None:
    with pytest.raises(FileNotFoundError):
        await azt.subprocess_exec(Recorder, "/no/such/program")
    wrong: list[dict[str, Any]] = [{"text": True}, {"encoding": "ascii"}]
    for options in (*wrong, {"shell": True}):
        with pytest.raises(ValueError, match=r"is for text|must be False"):
            await azt.subprocess_exec(Recorder, "true", **options)
    with pytest.raises(ValueError, match="must be True"):
        await azt.subprocess_shell(Recorder, "true", shell=False)
    with pytest.raises(ValueError, match="must be a string"):
        await azt.subprocess_shell(Recorder, ["true"])  # type: ignore[arg-type]


async def test_the_reader_of_its_stdin_is_gone() -> None:
    transport, protocol = await azt.subprocess_exec(Recorder, "head", "-c1")
    stdin: Any = transport.get_pipe_transport(0)
    stdin.write(bytearray(3 * BIG))
    with pytest.raises(BrokenPipeError):
        await stdin.drained()
    await protocol.lost
    await until(lambda: transport.get_returncode() == 0)
