"""Python programs in processes of their own, for what would end or disturb this one."""

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
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.Popen(
        [*command, script, *(arguments or ("asyncio",))],
        env=environment,
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


def run(code: str, *arguments: str, under: Sequence[str] = ()) -> str:
    """What a program says that must end well and complain about nothing."""
    status, said, complained = finish(start(code, *arguments, under=under))
    assert (complained, status) == ("", 0)
    return said
