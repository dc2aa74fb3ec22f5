"""For every test: three event loops, and a check of what it left behind."""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import ssl
import time
import weakref
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import figures
import pytest
import sabotage
from inventory import FDS, Inventory, held
from part import part

from aiozerocopy._core import borrows, memory, pins, waiter

if TYPE_CHECKING:
    from links import Link  # (after the rewriting of its asserts is registered)

pytest.register_assert_rewrite("endings", "links", "loans", "oracle", "scripts")

LOOPS = {
    "asyncio": ("asyncio", {"debug": True}),
    "uvloop": ("asyncio", {"use_uvloop": True}),
    "trio": ("trio", {}),
}
PATIENCE = 10.0  # seconds for a thread that is just ending, and the like
STACKS = pytest.StashKey[int]()
# Larger numbers of examples take longer: this multiplies the time of each test.
MORE_TIME = float(os.environ.get("AZC_PATIENCE", "1"))
SLOW = f"{Path(__file__).parent}/slow/"
IMPLY_SLOW = ("builds", "quiet")
MANY = 8  # cases of one test


def pytest_configure(config: pytest.Config) -> None:
    config.stash[STACKS] = stacks = os.dup(2)  # output is not captured yet
    faulthandler.enable(stacks)
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        # Tests run in the background, but their programs must hear Ctrl-C.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in ("COLUMNS", "LINES"):  # from the terminal of the test run
        os.environ.pop(name, None)
    sabotage.apply(os.environ.get(sabotage.VARIABLE, ""))


def pytest_itemcollected(item: pytest.Item) -> None:
    """Tests in slow/ are slow, and so are those that build or need a quiet machine."""
    if str(item.path).startswith(SLOW) or any(map(item.get_closest_marker, IMPLY_SLOW)):
        item.add_marker(pytest.mark.slow)


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Of a slow test with many cases, try a part in CI."""
    cases: dict[object, list[pytest.Item]] = {}
    for item in items:
        is_slow = item.get_closest_marker("slow")
        if is_slow and not any(map(item.get_closest_marker, IMPLY_SLOW)):
            cases.setdefault(getattr(item, "function", None), []).append(item)
    left_out: set[pytest.Item] = set()
    for some in cases.values():
        if len(some) >= MANY:
            left_out.update(set(some).difference(part(some)))
    if left_out:
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=list(left_out))


def seconds_for(item: pytest.Item) -> float:
    """Return a test's time: more on a machine with more work than processors."""
    mark = item.get_closest_marker("timeout")
    seconds = float(mark.args[0] if mark else item.config.getini("timeout"))
    return seconds * MORE_TIME * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


@pytest.hookimpl(wrapper=True, tryfirst=True)  # before pytest-timeout asks
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Print every thread's stack and end the process if a test far outlives its time.

    At the end of its time a test is interrupted by an exception, after which its
    clean-up may still wait for ever.  The process is a worker (`-n`): the test has
    failed, and another worker goes on with the next.
    """
    seconds = seconds_for(item)
    item.add_marker(pytest.mark.timeout(seconds), append=False)
    stacks = item.config.stash[STACKS]
    patience = 2 * seconds + 30 * MORE_TIME
    faulthandler.dump_traceback_later(patience, exit=True, file=stacks)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test marked ``anyio`` on asyncio, and on every loop if it asks for that."""
    named = str([it.args[0] for it in metafunc.definition.iter_markers("parametrize")])
    if (
        "anyio_backend" in metafunc.fixturenames
        and "anyio_backend" not in named
        and not hasattr(metafunc.module, "anyio_backend")  # the module's own choice
    ):
        every = metafunc.definition.get_closest_marker("every_loop")
        loops = LOOPS if every else ["asyncio"]
        metafunc.parametrize("anyio_backend", list(loops), indirect=True)


@pytest.fixture
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """The loop of a test: asyncio in debug mode, uvloop or trio."""
    backend: tuple[str, dict[str, Any]] = LOOPS[request.param]
    if request.param == "uvloop":
        pytest.importorskip("uvloop")
    elif request.param == "trio":
        pytest.importorskip("trio")
    return backend


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[Link]:
    """A pipe, for tests of any kind of link."""
    from links import open_link

    with open_link("pipe", tmp_path) as opened:
        yield opened


@pytest.fixture
def deadly_sigpipe() -> Iterator[None]:
    """Let SIGPIPE end the process, as if Python had not disabled it."""
    before = signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    yield
    assert not signal.sigpending()
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, [])
    signal.signal(signal.SIGPIPE, before)


@pytest.fixture(scope="session")
def tls() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    from transports import tls_contexts

    return tls_contexts()


@pytest.fixture(scope="session", autouse=True)
def warm_loops() -> None:
    """Run each loop once, and exempt all present objects from collections.

    What a loop opens once for the process is no leak.  The exemption makes a
    collection take microseconds instead of 40 ms.
    """

    async def look_up() -> None:  # uvloop keeps threads for this
        await anyio.getaddrinfo("localhost", 1)

    for backend, options in LOOPS.values():
        try:
            anyio.run(look_up, backend=backend, backend_options=options)
        except ImportError:  # noqa: PERF203
            continue
    gc.collect()
    gc.freeze()


# ---- what is left behind ----------------------------------------------------------


class Pins:
    """All buffers that the package has borrowed and not given back."""

    def __init__(self, borrow: Any) -> None:
        self._borrow = borrow
        self._views: dict[int, weakref.ref[Any]] = {}  # only those alive

    def __call__(self, *args: Any, **options: Any) -> Any:
        view = self._borrow(*args, **options)
        key = id(view)
        self._views[key] = weakref.ref(view, lambda _: self._views.pop(key, None))
        return view

    def held(self) -> list[str]:
        views = [view() for view in list(self._views.values())]
        shown = [repr(view) for view in views if view is not None]
        return [text for text in shown if "RELEASED" not in text]


@pytest.fixture(autouse=True)
def nothing_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Compare fds, threads, children, borrowed buffers and open streams."""
    pinned = Pins(pins._from_buffer)
    monkeypatch.setattr(pins, "_from_buffer", pinned)
    if not FDS.exists():  # not Linux: there is nothing to compare
        yield
        return
    before = Inventory.take()
    known = set(waiter._waiters.values())
    yield
    deadline = time.monotonic() + PATIENCE
    while leaked := _leaks(before, pinned, known):
        if time.monotonic() > deadline:
            pytest.fail("left behind: " + "; ".join(leaked))
        time.sleep(0.001)
    figures.count("looks for leaks", 1)
    gc.freeze()  # exempt what pytest keeps


def _leaks(before: Inventory, pinned: Pins, known: set[Any]) -> list[str]:
    gc.collect()
    borrows.sweep()
    memory.sweep()
    waiters = set(waiter._waiters.values())
    return [
        *Inventory.take().leaked_since(before),
        *(f"pinned: {view}" for view in pinned.held()),
        *(f"borrowed: {view}" for view in held()),
        *(f"open: {waiter!r}" for waiter in waiters - known),
    ]
