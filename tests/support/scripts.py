"""Run programs in processes of their own, as some would end or disturb ours."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SECONDS = 15  # at most, for a program


def environment(**settings: str) -> dict[str, str]:
    """Return our environment, with a path on which a Python finds our modules."""
    path = os.pathsep.join(filter(None, sys.path))
    return os.environ | {"PYTHONPATH": path} | settings


def ran(command: Sequence[object], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, and capture its output."""
    words = [*map(str, command)]
    return subprocess.run(words, capture_output=True, text=True, check=False, **options)


def output(command: Sequence[object], **options: Any) -> str:
    """Run a program that must exit with 0; return its stdout."""
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
    """Start a program with `PRELUDE`, in development mode, under another program."""
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
    """Return a program's exit status, stdout and stderr.

    A program that hangs gets SIGABRT.  In development mode, a fault handler then prints
    where each thread is.
    """
    with process:
        try:
            said, complained = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            _abort(process.pid)
            said, complained = process.communicate(timeout=SECONDS)
    return process.returncode, said, complained


def _abort(pid: int) -> None:
    """Send SIGABRT to a process, but first to its children: one may be under strace."""
    with contextlib.suppress(FileNotFoundError):
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        for child in children.split():
            _abort(int(child))
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGABRT)


def perturbed(code: str, *arguments: str) -> tuple[str, str]:
    """Run a program whose freed memory is overwritten; return stdout and stderr."""
    under = ("env", "MALLOC_PERTURB_=165")
    process = start(code, *arguments, warnings="always", under=under)
    status, said, complained = finish(process)
    assert status == 0, complained
    assert "Traceback" not in complained
    return said, complained


def run(code: str, *arguments: str, under: Sequence[str] = ()) -> str:
    """Run a program that must exit with 0 and an empty stderr; return its stdout."""
    status, said, complained = finish(start(code, *arguments, under=under))
    assert (complained, status) == ("", 0)
    return said
