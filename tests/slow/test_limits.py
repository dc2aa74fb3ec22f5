"""Too few fds, threads, memory, or pipe pages: calls fail, and nothing else happens.

Under each limit, a process plays a scene of tests/support/fault_scenes.py, whose
receiver checks what arrives; then it plays the scene again without a limit, when no
call may fail.  AZC_LIMITS=all tries every step of each limit, instead of two or three.
"""

import os
import re
import sys
from pathlib import Path

import figures
import pytest
from fault_scenes import SCENES
from limited import HARMLESS, LIMITS
from links import linux_only
from scripts import environment, ran

from aiozerocopy._core.binding import PORTABLE

pytestmark = [
    linux_only,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(PORTABLE, reason="the scenes need the Linux build"),
]

PROGRAM = Path(__file__).parents[1] / "support" / "limited.py"
# Python's own `Thread.start` waits for ever for a thread that finds no memory.
STARTS_THREADS = ("tcp", "child")


@pytest.mark.parametrize(
    ("limit", "scene"),
    [
        (limit, scene)
        for limit in LIMITS
        for scene in SCENES
        if limit not in HARMLESS or scene in HARMLESS[limit]
    ],
)
def test_scene_under_a_limit(limit: str, scene: str) -> None:
    if limit not in ("fds", "memory") and os.getuid() != 0:
        pytest.skip("only root can become somebody else")
    if limit == "memory" and scene in STARTS_THREADS:
        pytest.skip("Python starts threads there, which hangs without memory")
    command = [sys.executable, PROGRAM, limit, scene]
    done = ran(command, timeout=280, env=environment())
    runs = re.fullmatch(r"runs (\d+)\n", done.stdout)
    assert runs, done.stdout + done.stderr[-3000:]
    figures.count("scenes played under a limit", int(runs[1]))
