"""Child processes: their pipes, their last words and their end."""

import errno
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
import scripts
from interruption import Interruption, hit_after_each_call
from links import begun, everything, is_gone, linux_only, meanwhile, others_wait

import aiozerocopy as azc
from aiozerocopy import process as module
from aiozerocopy._core.channel import own_pipe
from aiozerocopy._process import pipes
from aiozerocopy._process.child import ChildProcess, Tail

pytestmark = pytest.mark.anyio

MEBIBYTE = 1 << 20


def python(script: str) -> list[str]:
    """Return the command for a Python child that starts in 15 ms."""
    return [sys.executable, "-SIc", script]


@pytest.fixture(autouse=True)
def patient_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that has closed its pipe may need a moment to end."""
    for name in ("LAST_WORDS", "EXITS"):
        monkeypatch.setattr(f"aiozerocopy._process.child.{name}", 15.0)


# ---- pipes ---------------------------------------------------------------------


async def test_what_was_put_is_sent_before_the_end(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("wb") as file:
        async with azc.open_process(["cat"], stdout=file) as child:
            assert child.stdin
            assert child.stdout is None
            await child.stdin.put(bytes(4 * MEBIBYTE))
    assert path.stat().st_size == 4 * MEBIBYTE


@linux_only
async def test_size_of_the_pipes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipes, "PIPE_SIZE", 1 << 18)
    async with azc.open_process(["cat"], stdout=True) as child:
        assert child.stdin
        assert child.stdout
        assert azc.pipe_capacity(child.stdin) == 1 << 18
        assert azc.pipe_capacity(child.stdout) == 1 << 18


_LOOK = """
import json, os
fds = [int(name) for name in os.listdir("/proc/self/fd")]
print(json.dumps({
    "files": {fd: os.readlink(f"/proc/self/fd/{fd}") for fd in fds
              if os.path.lexists(f"/proc/self/fd/{fd}")},
    "blocking": [os.get_blocking(fd) for fd in (0, 1, 2)],
}))
"""


async def look(**options: Any) -> Any:
    async with azc.open_process(python(_LOOK), stdout=True, **options) as child:
        return json.loads(await everything(child.stdout))


@linux_only
async def test_the_child_has_its_own_ends_what_it_was_passed_and_nothing_else() -> None:
    fd = os.open(os.devnull, os.O_RDONLY)
    os.set_inheritable(fd, True)  # even this one is hidden from the child
    read_fd, write_fd = os.pipe()
    with os.fdopen(read_fd) as file:
        seen = await look(pass_fds=[write_fd, write_fd, file])
        assert not os.get_inheritable(write_fd)  # unchanged
    for each in (fd, write_fd):
        os.close(each)
    assert set(seen["files"]) == {"0", "1", "2", str(write_fd), str(read_fd)}
    assert all(target.startswith("pipe:") for target in seen["files"].values())
    assert seen["blocking"] == [True, True, True]


@linux_only
@pytest.mark.parametrize("given", [False, None])
async def test_dev_null_and_our_own(given: bool | None) -> None:
    seen = await look(stdin=given, stderr=given)
    for fd in "0", "2":
        ours = os.readlink(f"/proc/self/fd/{fd}")
        assert seen["files"][fd] == ("/dev/null" if given is False else ours)


async def test_given_fd_stays_the_callers(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w+b") as file:
        async with azc.open_process(
            "echo out; echo err >&2",
            stdin=False,
            stdout=file.fileno(),
            stderr=subprocess.STDOUT,
        ) as child:
            assert child.stdin is None
        file.seek(0)
        assert file.read() == b"out\nerr\n"


DAEMON = """
async def main():
    os.close(0)
    os.close(2)
    async with azc.open_process(["cat"], stdout=True) as child:
        print(child.stdin.fileno() > 2, child.stdout.fileno() > 2)
        await child.stdin.send(b"hello")
        print(await child.stdout.receive())

run(main)
"""


def test_program_without_standard_files() -> None:
    assert scripts.run(DAEMON) == "True True\nb'hello'\n"


async def test_passed_fd_that_is_not_open() -> None:
    with pytest.raises(OSError, match="fd 99999 in pass_fds is not open"):
        azc.open_process(["cat"], pass_fds=[99_999])


async def test_environment_and_folder(tmp_path: Path) -> None:
    async with azc.open_process(
        'echo "$X in $PWD"', stdout=True, cwd=tmp_path, env={"X": "set"}
    ) as child:
        text = await everything(child.stdout)
    assert text == f"set in {tmp_path}\n".encode()


async def test_group_of_its_own() -> None:
    """Ctrl-C in our terminal does not reach the child."""
    async with azc.open_process(["cat"], start_new_group=True) as child:
        assert os.getpgid(child.pid) == child.pid
        needs_session = sys.version_info < (3, 11)
        assert (os.getsid(child.pid) == child.pid) is needs_session


async def test_untrusted_peer() -> None:
    async with azc.open_process(["cat"], peer="untrusted") as child:
        assert child.stdin
        await child.stdin.send(b"hello")
        assert child.stdin.stats.sent_at_once == 0


# ---- what is refused -----------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"command": []}, "command is empty"),
        ({"stdin": "tail"}, "stdin must be True, False, None, an fd"),
        ({"stdin": subprocess.PIPE}, "stdin must be True"),
        ({"stdout": subprocess.STDOUT}, "stdout must be True"),
        ({"stdout": 1.5}, "stdout must be True"),
        ({"stderr": "head"}, "stderr must be 'tail', False"),
        ({"stderr": True}, "stderr must be 'tail', False"),
        ({"peer": "nice"}, "peer must be one of"),
        ({"pass_fds": [-1]}, "pass_fds must be fds above 2"),
        ({"pass_fds": [2]}, "up to 2 are stdin, stdout and stderr"),
        ({"pass_fds": [True]}, "pass_fds must be fds above 2"),
    ],
)
def test_arguments_that_mean_nothing(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        azc.open_process(**{"command": ["cat"], **options})


def test_arguments_that_are_no_text() -> None:
    with pytest.raises(TypeError, match="not int"):
        azc.open_process(["head", "-c", 5])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("command", "options", "kind", "text"),
    [
        (["nonesuch"], {}, FileNotFoundError, "'nonesuch'"),
        (["cat"], {"cwd": "nonesuch"}, FileNotFoundError, "'nonesuch'"),
        (["./nonesuch/cat"], {}, FileNotFoundError, "'./nonesuch/cat'"),
        (["nonesuch\0"], {}, ValueError, "embedded null"),
    ],
)
async def test_spawn_that_fails_leaves_nothing(
    command: list[str], options: dict[str, Any], kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text):
        await azc.open_process(command, stdout=True, **options)


@pytest.mark.parametrize(
    "name",
    [
        *("_process.pipes.OwnFd.end", "_process.pipes.Tail"),
        *("process.subprocess.Popen.__init__", "process.ChildProcess"),
        "_process.pipes.ChildPipes.keep",
    ],
)
async def test_failure_on_the_way_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def fail(*_given: Any, **_: object) -> None:
        raise OSError(errno.EMFILE, "no more")

    monkeypatch.setattr(f"aiozerocopy.{name}", fail)
    with pytest.raises(OSError, match="no more"):
        await azc.open_process(["cat"], stdout=True)


async def test_interruption_after_the_start_leaves_no_child(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[Any] = []
    start: Any = subprocess.Popen.__init__

    def interrupted(popen: Any, *given: Any, **options: Any) -> None:
        start(popen, *given, **options)
        started.append(popen)
        raise Interruption

    monkeypatch.setattr(subprocess.Popen, "__init__", interrupted)
    with pytest.raises(Interruption):
        await azc.open_process(["sleep", "60"])
    assert started[0].returncode == -signal.SIGKILL


@pytest.mark.every_loop
@pytest.mark.filterwarnings("ignore:unclosed")
async def test_interrupted_wait_leaves_no_fd() -> None:
    async def wait() -> None:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await child._child.wait()

    async with azc.open_process(["cat"]) as child:
        await hit_after_each_call(wait, "_process.child")


# ---- stderr --------------------------------------------------------------------


async def test_last_words() -> None:
    async with azc.open_process("printf 'words \\377' >&2") as child:
        await child.wait()
        # Immediately, even if its thread has had no turn.
        assert child.stderr_tail == "words \ufffd"
    assert child.stderr_tail == "words \ufffd"


async def test_tail_is_bounded_and_begins_with_a_line() -> None:
    script = "import sys; sys.stderr.writelines(f'line {i}\\n' for i in range(9_000))"
    async with azc.open_process(python(script), tail_bytes=100) as child:
        await child.wait()
        tail = child.stderr_tail
    assert 50 < len(tail) <= 100
    assert tail.startswith("line ")
    assert tail.endswith("line 8999\n")


async def test_stderr_is_drained_while_the_loop_is_busy() -> None:
    script = "import sys; sys.stderr.write('x' * 1_000_000); print('done')"
    async with azc.open_process(python(script), stdout=True) as child:
        assert child.stdout
        # This blocks the loop's thread until the child has written everything.
        os.set_blocking(child.stdout.fileno(), True)
        assert os.read(child.stdout.fileno(), 10) == b"done\n"


async def test_grandchild_that_holds_stderr_open() -> None:
    async with azc.open_process("sleep 60 <&- & echo $!", stdout=True) as child:
        assert child.stdout
        grandchild = int(await child.stdout.receive())
        try:
            await child.aclose()
            assert child.returncode == 0
        finally:
            os.kill(grandchild, signal.SIGKILL)


def test_tail_without_a_thread_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    (end, write_end), (other, other_end) = own_pipe(), own_pipe()
    Tail(other, 100)  # a dropped Tail ends when the last writer closes
    monkeypatch.setattr(threading.Thread, "start", fail)
    with pytest.raises(RuntimeError, match="new thread"):
        Tail(end, 100)
    assert end.fd == -1
    write_end.close()
    other_end.close()


# ---- a child that leaves -------------------------------------------------------


async def test_broken_stream_tells_why() -> None:
    command = "head -c 5; echo words >&2; exit 3"
    async with azc.open_process(command, stdout=True) as child:
        assert child.stdin
        with pytest.raises(azc.StreamBroken) as caught:
            await child.stdin.send(b"hello" * MEBIBYTE)
        assert await everything(child.stdout) == b"hello"
    assert caught.value.returncode == 3
    assert caught.value.stderr == "words\n"
    assert "exited with code 3" in str(caught.value)


@pytest.mark.every_loop
@pytest.mark.parametrize("size", [5, 9])
async def test_the_end_of_its_output_tells_why(size: int) -> None:
    command = "printf hello; echo no camera >&2; exit 3"
    async with azc.open_process(command, stdin=False, stdout=True) as child:
        assert child.stdout
        with pytest.raises((anyio.EndOfStream, azc.IncompleteReceive)) as caught:
            while True:
                await child.stdout.receive_exactly(bytearray(size))
    begin = "the child's output has ended" if size == 5 else "the stream ended after 5"
    assert str(caught.value).startswith(begin)
    told = "; the child exited with code 3; its last words:\nno camera\n"
    assert str(caught.value).endswith(told)


@pytest.mark.every_loop
@pytest.mark.parametrize("script", ["", "exec >&-; echo words >&2; exec sleep 60"])
async def test_the_end_of_its_output_without_a_failure(
    script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if script:
        monkeypatch.setattr("aiozerocopy._process.child.EXITS", 0.01)
    async with azc.open_process(f":;{script}", stdout=True) as child:
        assert child.stdout
        with pytest.raises(anyio.EndOfStream) as caught:
            await child.stdout.receive()
        assert str(caught.value) == ""
        child.kill()


@pytest.mark.every_loop
async def test_cancel_at_the_end_of_its_output_loses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits = anyio.Event()

    async def wait(_: ChildProcess) -> int:
        waits.set()
        await anyio.sleep_forever()
        return 0

    async with azc.open_process("printf hello", stdin=False, stdout=True) as child:
        assert child.stdout
        with monkeypatch.context() as patch:
            patch.setattr(ChildProcess, "wait", wait)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(child.stdout.receive_exactly, bytearray(9))
                await waits.wait()
                tasks.cancel_scope.cancel()
        assert await everything(child.stdout) == b"hello"


@pytest.mark.every_loop
async def test_child_closes_stdin_and_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiozerocopy._process.child.LAST_WORDS", 0.01)
    script = "exec <&-; echo words >&2; echo ready; exec sleep 60"
    async with azc.open_process(script, stdout=True) as child:
        assert child.stdin
        assert child.stdout
        await child.stdout.receive()
        with pytest.raises(azc.StreamBroken) as caught:
            await child.stdin.send(b"hello")
        assert caught.value.returncode is None
        assert caught.value.stderr == "words\n"
        child.kill()


@pytest.mark.every_loop
async def test_end_says_what_could_not_be_sent() -> None:
    # On USR1, the child reads a part of its input; then it ends within its grace.
    script = "trap 'head -c 5; exit 3' USR1; echo ready; while :; do sleep 0.01; done"
    child = await azc.open_process(script, stdout=True)
    assert child.stdin
    assert child.stdout
    assert await child.stdout.receive() == b"ready\n"
    await child.stdin.put(bytes(4 * MEBIBYTE))

    async def close() -> None:
        with pytest.raises(azc.StreamBroken) as caught:
            await child.aclose()
        assert caught.value.returncode == 3

    async with meanwhile(close):
        await begun(child.stdin, 2)  # the second message is the flush
        child.send_signal(signal.SIGUSR1)
    assert child.returncode == 3


# ---- the end -------------------------------------------------------------------


async def test_signals() -> None:
    async with azc.open_process(["sleep", "60"]) as child:
        child.terminate()
        assert await child.wait() == -signal.SIGTERM
        child.terminate()
        child.kill()
        child.send_signal(signal.SIGINT)
        assert repr(child) == f"<Process {child.pid} exited with code -15>"


@pytest.mark.every_loop
async def test_many_may_wait() -> None:
    codes: list[int] = []

    async def wait(child: azc.Process) -> None:
        codes.append(await child.wait())

    async with azc.open_process(["cat"]) as child:
        assert child.stdin
        assert repr(child) == f"<Process {child.pid} running>"
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(wait, child)
            await anyio.lowlevel.checkpoint()
            await child.stdin.aclose()
    assert codes == [0, 0, 0]


@pytest.mark.every_loop
@pytest.mark.parametrize("answer", [None, OSError(errno.ENOSYS, "forbidden")])
async def test_wait_without_pidfd(
    monkeypatch: pytest.MonkeyPatch, answer: OSError | None
) -> None:
    def refuse(_pid: int) -> int:
        assert answer
        raise answer

    if answer is None:
        monkeypatch.delattr(os, "pidfd_open", raising=False)
    else:
        monkeypatch.setattr(os, "pidfd_open", refuse, raising=False)
    async with azc.open_process("exit 3") as child:
        assert await child.wait() == 3
    with anyio.CancelScope() as scope:
        async with azc.open_process(["sleep", "60"]) as child:
            scope.deadline = anyio.current_time() + 0.01
            await child.wait()
    assert child.returncode == -signal.SIGTERM


STUBBORN = python(
    "import signal, time\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "print('ready', flush=True)\n"
    "time.sleep(60)\n"
)


async def test_child_that_does_not_end_is_terminated() -> None:
    child = await azc.open_process(["sleep", "60"])
    await child.aclose(grace=0.01)
    assert child.returncode == -signal.SIGTERM
    assert is_gone(child.pid)


@pytest.mark.every_loop
async def test_child_that_does_not_read_is_terminated() -> None:
    child = await azc.open_process(["sleep", "60"])
    assert child.stdin
    await child.stdin.put(bytes(4 * MEBIBYTE))
    with pytest.raises(azc.StreamBroken, match="bytes were not sent within"):
        await child.aclose(grace=0.01)
    assert child.returncode == -signal.SIGTERM
    assert is_gone(child.pid)


@pytest.mark.every_loop
async def test_child_that_does_not_heed_is_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "AFTER_TERMINATE", 0.01)
    child = await azc.open_process(STUBBORN, stdout=True)
    assert child.stdout
    await child.stdout.receive()
    await child.aclose(grace=0.01)
    assert child.returncode == -signal.SIGKILL
    assert is_gone(child.pid)


@pytest.mark.every_loop
async def test_abort() -> None:
    child = await azc.open_process(STUBBORN, stdout=True)
    assert child.stdin
    ticket = await child.stdin.put(bytes(4 * MEBIBYTE))
    child.abort()
    assert child.returncode == -signal.SIGKILL
    assert is_gone(child.pid)
    with pytest.raises((azc.StreamClosed, azc.StreamBroken)):
        await ticket
    child.abort()
    await child.aclose()


@pytest.mark.every_loop
async def test_block_that_fails_terminates() -> None:
    children: list[azc.Process] = []

    async def fail() -> None:
        async with azc.open_process(["cat"], stdout=True) as child:
            children.append(child)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    # Terminated before its stdin ended, so it did not take a part for the whole.
    assert children[0].returncode == -signal.SIGTERM
    assert is_gone(children[0].pid)


@pytest.mark.every_loop
async def test_block_that_is_cancelled() -> None:
    script = "trap 'sleep 0.1; exit 3' TERM; echo ready; while :; do sleep 0.01; done"
    with anyio.CancelScope() as scope:
        async with azc.open_process(script, stdout=True) as child:
            assert child.stdout
            await child.stdout.receive()
            scope.cancel()
            await everything(child.stdout)
    assert scope.cancelled_caught
    assert child.returncode == 3  # it was given time to end
    assert is_gone(child.pid)


@pytest.mark.every_loop
async def test_aclose_that_is_cancelled() -> None:
    child = await azc.open_process(["sleep", "60"])
    with anyio.move_on_after(0.01) as scope:
        await child.aclose(grace=None)
    assert scope.cancelled_caught
    assert is_gone(child.pid)


def test_native_cancel_during_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """asyncio's own cancel ignores anyio's shield; the child still ends."""
    import asyncio

    monkeypatch.setattr(module, "AFTER_TERMINATE", 60)  # longer than a test may take

    async def main() -> azc.Process:
        child = await azc.open_process(STUBBORN, stdout=True)
        assert child.stdout
        await child.stdout.receive()
        task = asyncio.create_task(child._end())
        await others_wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return child

    child = asyncio.run(main())
    assert is_gone(child.pid)
