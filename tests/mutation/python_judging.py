"""Which tests a fault in the Python core has to get past, and whether it does.

One pytest run collects the tests.  It does not run them itself: each fault gets a child
process, forked when all is imported, in which the functions of the file have the code
of the mutant.  A first child without a fault tells which lines each test reaches: a
fault has to get past those that reach its line, first those that reach little else.
(Programs that tests start find the mutant in a copy of the installed package, by
PYTHONPATH; but what only they reach, no test counts as reaching.)
"""

from __future__ import annotations

import ast
import contextlib
import ctypes
import faulthandler
import gc
import importlib.util
import inspect
import json
import os
import resource
import select
import shutil
import signal
import sys
from enum import Enum
from pathlib import Path
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

from trying import TESTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pytest
    from trying import Mutant

CORE = TESTS.parent / "aiozerocopy" / "_core"

MOST_TESTS = 500  # of those that reach a line
ORIGINAL = 1800  # seconds of CPU for all tests, without a fault
CPU_SECONDS = 30  # of a mutant that never ends,
PATIENCE = 8.0 * float(os.environ.get("AZC_PATIENCE", "1"))  # or waits in one test
# What a child leaves behind becomes ours, and no child outlives us.
SUBREAPER, DEATH_SIGNAL = 36, 1  # PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG

# Of the links and loops only these: they are enough for what Python does.
LINKS = {"asyncio": {"pipe", "unix"}, "trio": {"pipe"}}


class Verdict(Enum):
    IMPOSSIBLE = "cannot be tried"  # it has other variables in its closure
    KILLED = "killed"
    ENDLESS = "killed as it does not end"
    UNREACHED = "no test reaches it"
    SURVIVES = "survives"


LIVES = (Verdict.UNREACHED, Verdict.SURVIVES)


class Judge:
    """A plugin of pytest that forks, and runs tests, once for each mutant."""

    def __init__(
        self,
        folder: Path,
        mutants: Iterable[Mutant],
        note: Callable[[Mutant, Verdict], None],
    ) -> None:
        self._told = folder / "original"
        self._copy = folder / "package" / "aiozerocopy"
        self._mutants, self._note = mutants, note
        self._items: list[pytest.Item] = []
        self._reached: dict[str, list[int]] = {}  # by "file:line": tests
        self._functions: dict[str, list[FunctionType]] = {}
        self._progress = -1  # where a child tells that a test begins
        self._failed: list[str] = []

    # -- what pytest calls ----------------------------------------------------------

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if _is_quick(item)]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.append(f"{report.nodeid}\n{report.longreprtext}")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
        conftest = next(
            it
            for it in session.config.pluginmanager.get_plugins()
            if getattr(it, "__file__", None) == str(TESTS / "conftest.py")
        )
        for name in [name for name in conftest.LOOPS if name not in LINKS]:
            del conftest.LOOPS[name]  # (which are run once before the tests)
        self._items = session.items
        self._functions = _functions_of_core()
        package = importlib.util.find_spec("aiozerocopy")
        assert package is not None
        assert package.submodule_search_locations
        shutil.copytree(package.submodule_search_locations[0], self._copy)
        gc.collect()
        gc.freeze()  # no child writes to it
        if self._in_child(self._observe, ORIGINAL, 15 * PATIENCE) != 0:
            print("the tests do not get to an end without a mutant")
            return True
        self._note_what_is_reached()
        for mutant in self._mutants:
            self._note(mutant, self._judge(mutant))
        return True

    # -- the tests without a fault --------------------------------------------------

    def _observe(self) -> int:
        with self._told.open("w") as file:
            for n in range(len(self._items)):
                self._failed.clear()
                with lines_of_core() as reached:
                    self._run(n)
                failure = self._failed[0] if self._failed else ""
                print(json.dumps((failure, sorted(reached))), file=file, flush=True)
        return 0

    def _note_what_is_reached(self) -> None:
        """Which tests there are for each line, those that reach little else first."""
        reached = []
        for n, line in enumerate(self._told.read_text().splitlines()):
            failure, lines = json.loads(line)
            reached.append(len(lines))
            if failure:
                print(f"fails without a mutant: {failure}", flush=True)
                continue
            for each in lines:
                self._reached.setdefault(each, []).append(n)
        loops = [_parameters(item).get("anyio_backend") for item in self._items]
        for tests in self._reached.values():
            tests.sort(key=lambda n: (loops[n] == "trio", reached[n], n))

    # -- one fault ------------------------------------------------------------------

    def _judge(self, mutant: Mutant) -> Verdict:
        tests = self._tests_of(mutant)
        if not tests:
            return Verdict.UNREACHED
        source = (CORE / mutant.file).read_text()
        target = self._copy / "_core" / mutant.file
        target.write_text(mutant.applied(source))
        code = self._in_child(lambda: self._try(mutant, tests), CPU_SECONDS)
        target.write_text(source)
        known = {0: Verdict.SURVIVES, 2: Verdict.IMPOSSIBLE, None: Verdict.ENDLESS}
        return known.get(code, Verdict.KILLED)

    def _tests_of(self, mutant: Mutant) -> list[int]:
        first, last = _statement_at((CORE / mutant.file).read_text(), mutant.line)
        every = dict.fromkeys(
            n
            for line in (mutant.line, *range(first, last + 1))
            for n in self._reached.get(f"{mutant.file}:{line}", [])
        )
        return list(every)[:MOST_TESTS]

    def _try(self, mutant: Mutant, tests: Iterable[int]) -> int:
        try:
            self._put_in(mutant)
        except ValueError:
            return 2
        for n in tests:
            self._run(n)
            if self._failed:
                return 1
        return 0

    def _put_in(self, mutant: Mutant) -> None:
        """Give the file's functions the code of the mutant.

        Raises:
            ValueError: one of them would have other variables in its closure.
        """
        source = (CORE / mutant.file).read_text()
        before, after = map(_functions_in, (source, mutant.applied(source)))
        codes = {_place(it): new for it, new in zip(before, after, strict=True)}
        for function in self._functions[mutant.file]:
            place = _place(function.__code__)
            if place in codes:
                function.__code__ = codes[place]

    def _run(self, n: int) -> None:
        os.write(self._progress, b".")
        item = self._items[n]
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)

    # -- children -------------------------------------------------------------------

    def _in_child(
        self, work: Callable[[], int], cpu_seconds: int, patience: float = PATIENCE
    ) -> int | None:
        """What it returned; None if it did not get to its end."""
        told, self._progress = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                self._begin_child(cpu_seconds)
                os._exit(work())
            finally:
                os._exit(3)
        os.close(self._progress)
        try:
            code = _ended(pid, told, patience)
        finally:
            os.close(told)
            _end_all(pid)
        return None if code in (None, -signal.SIGXCPU, -signal.SIGKILL) else code

    def _begin_child(self, cpu_seconds: int) -> None:
        os.setsid()
        faulthandler.disable()
        ctypes.CDLL(None).prctl(DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        silence = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(silence, fd)
        os.close(silence)
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        sys.dont_write_bytecode = True
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        os.environ["PYTHONPATH"] = str(self._copy.parent)


@contextlib.contextmanager
def lines_of_core() -> Iterator[set[str]]:
    """Which lines of the core run meanwhile, in any thread, as "file:line"."""
    monitoring: Any = sys.monitoring
    tool, line_events = 4, monitoring.events.LINE
    reached: set[str] = set()

    def note(code: CodeType, line: int) -> Any:
        if name := _file_of_core(code):
            reached.add(f"{name}:{line}")
        return monitoring.DISABLE

    monitoring.use_tool_id(tool, "mutants")
    monitoring.register_callback(tool, line_events, note)
    monitoring.set_events(tool, line_events)
    monitoring.restart_events()
    try:
        yield reached
    finally:
        monitoring.set_events(tool, 0)
        monitoring.free_tool_id(tool)


def _file_of_core(code: CodeType) -> str:
    folder, _, name = code.co_filename.rpartition("/")
    return name if folder.endswith("aiozerocopy/_core") else ""


def _parameters(item: pytest.Item) -> dict[str, Any]:
    return getattr(getattr(item, "callspec", None), "params", {})


def _is_quick(item: pytest.Item) -> bool:
    if any(item.get_closest_marker(name) for name in ("slow", "builds", "quiet")):
        return False
    parameters = _parameters(item)
    links = [parameters[it] for it in ("link", "clogged", "some") if it in parameters]
    loop = parameters.get("anyio_backend", "asyncio")
    return loop in LINKS and LINKS[loop].issuperset(links)


def _functions_of_core() -> dict[str, list[FunctionType]]:
    """By file."""
    found: dict[str, list[FunctionType]] = {}
    for it in gc.get_objects():
        if type(it) is FunctionType and (name := _file_of_core(it.__code__)):
            found.setdefault(name, []).append(it)
    return found


def _functions_in(source: str) -> Iterator[CodeType]:
    """Those that stand in no other function."""

    def inside(code: CodeType) -> Iterator[CodeType]:
        for it in code.co_consts:
            if isinstance(it, CodeType):
                if it.co_flags & inspect.CO_OPTIMIZED:
                    yield it
                else:
                    yield from inside(it)  # a class

    return inside(compile(source, "mutant", "exec", dont_inherit=True))


def _place(code: CodeType) -> tuple[str, int]:
    return code.co_qualname, code.co_firstlineno


def _statement_at(source: str, line: int) -> tuple[int, int]:
    """The first and last line of the smallest statement there, without its body."""
    first = last = line
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            end = body[0].lineno - 1 if body else node.end_lineno or line
            if node.lineno <= line <= max(end, node.lineno):
                first, last = node.lineno, max(end, node.lineno)
    return first, last


def _ended(pid: int, progress: int, patience: float) -> int | None:
    """Its exit status; None if one of its tests takes too long."""
    fd = os.pidfd_open(pid)
    try:
        watched = [fd, progress]
        while ready := select.select(watched, [], [], patience)[0]:
            if fd in ready:
                return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            if not os.read(progress, 4096):
                watched.remove(progress)
        return None
    finally:
        os.close(fd)


def _end_all(pid: int) -> None:
    """Kill the child's group and whatever it has left to us."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    while True:
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        for child in map(int, children):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return
