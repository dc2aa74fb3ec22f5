"""Runs each case of `fault_scenes` in a forked process: a fork takes milliseconds.

It reads lines from stdin.  For the name of a scene it prints the pid of a process that
waits to be traced.  For "go" it lets that process run, and prints its verdict as JSON.
"""

import contextlib
import faulthandler
import json
import mmap
import os
import resource
import signal
import struct
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor

import fault_scenes

SECONDS = 2 * fault_scenes.HANGS  # at most, for a case
CPU_SECONDS = 4  # at most, for a case while it is traced
_LENGTH = struct.Struct("<BxxxI")  # whether the case may go, and its verdict's length


class Case:
    """A process, and shared memory for its verdict.

    (Shared memory, because a system call could be the one that fails.)
    """

    def __init__(self, scene: str) -> None:
        self._memory = mmap.mmap(-1, 1 << 20)
        self._folder = tempfile.TemporaryDirectory(prefix="azc-scene-")
        is_ready, ready = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            try:
                os.close(is_ready)
                self._live(scene, ready)
            except BaseException:
                traceback.print_exc()
            finally:
                os.kill(os.getpid(), signal.SIGKILL)  # a call that never fails

        os.close(ready)
        os.read(is_ready, 1)  # the case has started its threads, which must not fail
        os.close(is_ready)

    def _live(self, scene: str, ready: int) -> None:
        os.setpgid(0, 0)
        faulthandler.dump_traceback_later(SECONDS - 2, exit=True)
        fault_scenes.THREAD.submit(id, None).result()
        os.close(ready)
        while not self._memory[0]:
            time.sleep(0.0005)
        played = fault_scenes.play(scene, self._folder.name)
        used = resource.getrusage(resource.RUSAGE_SELF)
        if used.ru_utime + used.ru_stime > CPU_SECONDS:
            played.complaints.append(f"the case was busy for {used.ru_utime:.1f} s")
        verdict = json.dumps([played.complaints, played.errors, len(played.sent)])
        data = verdict.encode()[: len(self._memory) - _LENGTH.size]
        self._memory[_LENGTH.size : _LENGTH.size + len(data)] = data
        self._memory[: _LENGTH.size] = _LENGTH.pack(1, len(data))

    def run(self) -> str:
        """Let the process run, and return its verdict as JSON when it has ended."""
        self._memory[0] = 1
        deadline = time.monotonic() + SECONDS
        while os.waitpid(self.pid, os.WNOHANG)[0] == 0:
            if time.monotonic() > deadline:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
                break
            time.sleep(0.002)
        with contextlib.suppress(ProcessLookupError):  # the processes that it started
            os.killpg(self.pid, signal.SIGKILL)
        _, length = _LENGTH.unpack(self._memory[: _LENGTH.size])
        data = self._memory[_LENGTH.size : _LENGTH.size + length]
        self._memory.close()
        self._folder.cleanup()
        return data.decode() or json.dumps([["the case hangs, or has crashed"], [], 0])


def main() -> None:
    for scene in fault_scenes.SCENES:  # do all late imports now
        with tempfile.TemporaryDirectory() as folder:
            fault_scenes.play(scene, folder)
    fault_scenes.THREAD.shutdown()
    fault_scenes.THREAD = ThreadPoolExecutor(1)  # for the forked processes
    print("ready", flush=True)
    case = None
    for line in sys.stdin:
        word = line.strip()
        if word == "go":
            assert case is not None
            print(case.run(), flush=True)
        else:
            case = Case(word)
            print(case.pid, flush=True)


if __name__ == "__main__":
    main()
