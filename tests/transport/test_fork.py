"""Transports and forks: a child's are dead and touch nothing; the parent's stay usable.

The kernel shares much with a child: a loop's epolls, where a child could cancel what
its parent has requested, and a Unix server's file.
"""

from pathlib import Path
from typing import Any

import pytest
import scripts
from links import linux_only

pytestmark = linux_only


def on_loops(children: dict[str, str], *hardest: str) -> pytest.MarkDecorator:
    """Run each child on asyncio's loop, and the hardest ones on uvloop, too."""
    cases: list[Any] = [(child, "asyncio") for child in children]
    slow = pytest.mark.slow
    cases += [pytest.param(child, "uvloop", marks=slow) for child in hardest]
    return pytest.mark.parametrize(("child", "loop"), cases)


# The actions of a child, in the middle of the parent's work.
CHILDREN = {
    "tries everything": "attempted(world.disturb)",
    "tries everything and drops it": "attempted(world.disturb, world.drop, gc.collect)",
    "drops it": "attempted(world.drop, gc.collect)",
    "lives on a loop of its own": "attempted(lambda: run(live(folder), loop))",
    "tries everything and lives": (
        "attempted(world.disturb, lambda: run(live(folder), loop))"
    ),
    # This one runs in its copy of the parent's loop.  (It must not close the copy: the
    # loops of asyncio and uvloop would remove the parent's wake-ups from the shared
    # epoll.)
    "stays": "await world.stay()",
}


def run(code: str, loop: str, folder: Path) -> None:
    prelude = "from fork_world import *\nloop, folder = sys.argv[1:]\n"
    scripts.run(prelude + code, loop, str(folder))


@on_loops(CHILDREN, "tries everything and lives", "stays")
def test_child_of_a_running_loop(child: str, loop: str, tmp_path: Path) -> None:
    run(
        f"""
async def main():
    world = World(folder)
    await world.begin()
    pid = fork()
    if pid == 0:
        try:
            os._exit({CHILDREN[child]} or 0)
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


# The loop does not run during the fork; the child ends like any program.
ENDING = {
    "at once": "",
    "after it has tried everything": "world.disturb",
    "after it has lived": "lambda: run(live(folder), loop)",
}


@on_loops(ENDING, "after it has tried everything")
def test_child_that_ends_as_usual(child: str, loop: str, tmp_path: Path) -> None:
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
