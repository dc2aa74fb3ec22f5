"""Transports and forks: the child's are dead and touch nothing; the parent goes on.

The kernel shares much with a child: the epolls of a loop, where a child could cancel
what its parent has asked for, the flags of a pipe, the file of a Unix server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import scripts
from links import linux_only

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = linux_only

every_loop = pytest.mark.parametrize(
    "loop", ["asyncio", pytest.param("uvloop", marks=pytest.mark.slow)]
)


def on_loops(children: dict[str, str], hardest: str) -> pytest.MarkDecorator:
    """Each child on asyncio's loop, and the one that does most on uvloop too."""
    cases = [(child, "asyncio") for child in children]
    hard = pytest.param(hardest, "uvloop", marks=pytest.mark.slow)
    return pytest.mark.parametrize(("child", "loop"), [*cases, hard])


# What a child does, in the middle of the parent's work, before os._exit.
CHILDREN = {
    "tries everything": "world.disturb",
    "tries everything and drops it": "world.disturb, world.drop, gc.collect",
    "drops it": "world.drop, gc.collect",
    "lives on a loop of its own": "lambda: run(live(folder), loop)",
    "tries everything and lives": "world.disturb, lambda: run(live(folder), loop)",
}


def run(code: str, loop: str, folder: Path) -> None:
    prelude = "from fork_world import *\nloop, folder = sys.argv[1:]\n"
    scripts.run(prelude + code, loop, str(folder))


@on_loops(CHILDREN, "tries everything and lives")
def test_child_of_a_running_loop(child: str, loop: str, tmp_path: Path) -> None:
    run(
        f"""
async def main():
    world = World(folder)
    await world.begin()
    pid = fork()
    if pid == 0:
        os._exit(attempted({CHILDREN[child]}))
    assert ends_well(pid)
    await world.go_on()
    await world.end()

run(main(), loop)
""",
        loop,
        tmp_path,
    )


# The loop does not run while it forks; the child ends as any program does.
ENDING = {
    "at once": "",
    "after it has tried everything": "world.disturb",
    "after it has lived": "lambda: run(live(folder), loop)",
}


@on_loops(ENDING, "after it has tried everything")
def test_child_that_ends_in_the_usual_way(
    child: str, loop: str, tmp_path: Path
) -> None:
    run(
        f"""
if loop == "uvloop":
    from uvloop import new_event_loop
else:
    from asyncio import new_event_loop
world, parents = World(folder), new_event_loop()
parents.run_until_complete(world.begin())
pid = fork()
if pid == 0:
    warnings.simplefilter("ignore")
    sys.exit(attempted({ENDING[child]}))
assert ends_well(pid)
parents.run_until_complete(world.go_on())
parents.run_until_complete(world.end())
parents.close()
""",
        loop,
        tmp_path,
    )


@every_loop
def test_child_that_stays_in_the_loop(loop: str, tmp_path: Path) -> None:
    """It goes on in its copy of the parent's loop.  (It must not close that: asyncio's
    loop and uvloop's take out of the shared epoll what wakes the parent's.)"""
    run(
        """
async def main():
    world = World(folder)
    await world.begin()
    pid = fork()
    if pid == 0:
        try:
            await world.stay()
            os._exit(0)
        finally:
            os._exit(1)
    assert ends_well(pid)
    await world.go_on()
    await world.end()

run(main(), loop)
""",
        loop,
        tmp_path,
    )
