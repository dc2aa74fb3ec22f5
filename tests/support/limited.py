"""Plays a scene of `fault_scenes` under each of the limits of one kind.

Arguments: a limit of `LIMITS`, and a scene.  It prints each complaint, and the number
of runs.  After each run under a limit, the scene is played without one in the same
process, and must work as if nothing had happened.
"""

import contextlib
import faulthandler
import fcntl
import os
import resource
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import fault_scenes
import figures
from inventory import open_files
from limits import limited

NOBODY = 65534
ALL = os.environ.get("AZC_LIMITS") == "all"
SPARE_FDS = range(24) if ALL else (0, 7, 14)
SPARE_THREADS = range(8) if ALL else (0, 4)
SPARE_BYTES: tuple[int, ...] = (0, 9 << 20)
if ALL:
    SPARE_BYTES += (100_000, 1 << 20, 4 << 20, 20 << 20, 40 << 20)
MEMLOCK = (65_536, 0)


def fds() -> Iterator[contextlib.AbstractContextManager[None]]:
    for spare in SPARE_FDS:
        yield few_fds(spare)


@contextlib.contextmanager
def few_fds(spare: int) -> Iterator[None]:
    """Use up the lower numbers, as the limit is on an fd's number, not on a count."""
    with contextlib.ExitStack() as taken:
        highest = max(map(int, open_files()))
        while (fd := os.dup(0)) < highest:
            taken.callback(os.close, fd)
        os.close(fd)
        with limited(resource.RLIMIT_NOFILE, max(highest, fd) + spare):
            yield


def threads() -> Iterator[contextlib.AbstractContextManager[None]]:
    """Limit the threads of another user, as root has no such limit."""
    become_nobody()
    for spare in SPARE_THREADS:
        yield limited(resource.RLIMIT_NPROC, threads_of_nobody() + spare)


def become_nobody() -> None:
    figures.hold()
    os.setgid(NOBODY)
    os.setuid(NOBODY)


def threads_of_nobody() -> int:
    count = 0
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if process.stat().st_uid == NOBODY:
                count += len(os.listdir(process / "task"))
    return count


def memory() -> Iterator[contextlib.AbstractContextManager[None]]:
    for spare in SPARE_BYTES:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        yield limited(resource.RLIMIT_AS, pages * os.sysconf("SC_PAGESIZE") + spare)


def memlock() -> Iterator[contextlib.AbstractContextManager[None]]:
    """Allow 64 KiB, then no locked memory: our code must not need any."""
    become_nobody()
    for most in MEMLOCK:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (most, most))
        yield contextlib.nullcontext()


def pipe_pages() -> Iterator[contextlib.AbstractContextManager[None]]:
    """Use up all pages of this user's pipes: a new pipe gets two pages, or one."""
    become_nobody()
    hoard = [os.pipe()]
    while fcntl.fcntl(hoard[-1][1], fcntl.F_GETPIPE_SZ) > 8192:
        with contextlib.suppress(OSError):
            fcntl.fcntl(hoard[-1][1], fcntl.F_SETPIPE_SZ, 1 << 20)
        hoard.append(os.pipe())
    yield contextlib.nullcontext()


LIMITS: dict[str, Callable[[], Iterator[contextlib.AbstractContextManager[None]]]] = {
    each.__name__: each for each in (fds, threads, memory, memlock, pipe_pages)
}
# Limits under which nothing may fail, and the scenes that such a limit could affect.
HARMLESS = {
    "memlock": ("lending", "lending_unix", "rings", "broadcast"),
    "pipe_pages": ("adopted_pipe", "lending", "relayed", "child"),
}


def played(
    scene: str,
    what: str,
    *,
    under: contextlib.AbstractContextManager[None] | None = None,
    must_work: bool = True,
) -> None:
    faulthandler.dump_traceback_later(60, exit=True)
    with tempfile.TemporaryDirectory() as folder:
        ended = fault_scenes.play(scene, folder, under)
    for complaint in ended.complaints:
        print(f"{what}: {complaint}", flush=True)
    for error in ended.errors if must_work else ():
        print(f"{what}, a call failed: {error}", flush=True)


def main(limit: str, scene: str) -> None:
    played(scene, "before")
    runs = 0
    for runs, moment in enumerate(LIMITS[limit](), start=1):
        must_work = limit in HARMLESS
        played(scene, f"run {runs}", under=moment, must_work=must_work)
        played(scene, f"after run {runs}")
    print("runs", runs)


if __name__ == "__main__":
    main(*sys.argv[1:])
