"""Programs in processes of their own, also for what would end or disturb this one."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SECONDS = 15  # that a program may take


def environment(**settings: str) -> dict[str, str]:
    """Ours, as it is now, for a Python that finds what we find."""
    path = os.pathsep.join(filter(None, sys.path))
    return os.environ | {"PYTHONPATH": path} | settings


def ran(command: Sequence[object], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, and keep what it says."""
    words = [*map(str, command)]
    return subprocess.run(words, capture_output=True, text=True, check=False, **options)


def output(command: Sequence[object], **options: Any) -> str:
    """What a program says that must end well."""
    done = ran(command, **options)
    assert done.returncode == 0, (done.stdout + done.stderr)[-8000:]
    return done.stdout


# ---- programs that are written in a test --------------------------------------------

PRELUDE = """
import anyio, asyncio, gc, logging, os, signal, socket, sys, threading, time, warnings
import aiozerocopy as azc

logging.getLogger("asyncio").setLevel(logging.ERROR)  # no word about slow callbacks

LOOPS = {
    "asyncio": ("asyncio", {}),
    "uvloop": ("asyncio", {"use_uvloop": True}),
    "trio": ("trio", {}),
}

def run(main):
    backend, options = LOOPS[sys.argv[1]]
    return anyio.run(main, backend=backend, backend_options=options)

async def begun(stream):
    while not (stream.stats.bytes_sent and stream.stats.messages_queued):
        await anyio.lowlevel.checkpoint()

"""


def start(
    code: str,
    *arguments: str,
    warnings: str = "error",
    under: Sequence[str] = (),
    before: str = "",
    **options: Any,
) -> subprocess.Popen[str]:
    """Start a program, after `PRELUDE`, in development mode, and under another."""
    command = [*under, sys.executable, "-X", "dev", "-W", warnings, "-c"]
    script = before + PRELUDE + textwrap.dedent(code)
    return subprocess.Popen(
        [*command, script, *(arguments or ("asyncio",))],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Its exit status and what it said on stdout and stderr.

    A program that hangs is ended by SIGABRT, which makes it tell where each of its
    threads is (development mode has the fault handler).
    """
    with process:
        try:
            said, complained = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            _abort(process.pid)
            said, complained = process.communicate(timeout=SECONDS)
    return process.returncode, said, complained


def _abort(pid: int) -> None:
    """End a process by SIGABRT, after its children: under strace, it is one of them."""
    with contextlib.suppress(FileNotFoundError):
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        for child in children.split():
            _abort(int(child))
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGABRT)


def perturbed(code: str, *arguments: str) -> tuple[str, str]:
    """What a program says and complains of; what it frees is overwritten."""
    under = ("env", "MALLOC_PERTURB_=165")
    process = start(code, *arguments, warnings="always", under=under)
    status, said, complained = finish(process)
    assert status == 0, complained
    assert "Traceback" not in complained
    return said, complained


def run(code: str, *arguments: str, under: Sequence[str] = ()) -> str:
    """What a program says that must end well and complain about nothing."""
    status, said, complained = finish(start(code, *arguments, under=under))
    assert (complained, status) == ("", 0)
    return said
