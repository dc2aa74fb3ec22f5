"""What every test gets: three event loops, and a look at what it left behind."""

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

from aiozerocopy._core import borrows, memory, pins, waiter

if TYPE_CHECKING:
    from links import Link  # (its asserts are to be rewritten)

pytest.register_assert_rewrite("endings", "links", "loans", "oracle", "scripts")

LOOPS = {
    "asyncio": ("asyncio", {"debug": True}),
    "uvloop": ("asyncio", {"use_uvloop": True}),
    "trio": ("trio", {}),
}
PATIENCE = 10.0  # seconds for a thread that is just ending, and its like
STACKS = pytest.StashKey[int]()
# Raised numbers take longer: by how much the time that each test has is multiplied.
MORE_TIME = float(os.environ.get("AZC_PATIENCE", "1"))
SLOW = f"{Path(__file__).parent}/slow/"
IMPLY_SLOW = ("builds", "quiet")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[STACKS] = stacks = os.dup(2)  # nothing is captured yet
    faulthandler.enable(stacks)
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        # Started in the background; but the programs that we start must hear Ctrl-C.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in ("COLUMNS", "LINES"):  # of the terminal that tests run in, if at all
        os.environ.pop(name, None)
    sabotage.apply(os.environ.get(sabotage.VARIABLE, ""))


def pytest_itemcollected(item: pytest.Item) -> None:
    """Everything in slow/ is slow, and so is what builds or needs a quiet machine."""
    if str(item.path).startswith(SLOW) or any(map(item.get_closest_marker, IMPLY_SLOW)):
        item.add_marker(pytest.mark.slow)


def seconds_for(item: pytest.Item) -> float:
    """The time that a test has: more on a machine with more to do than processors."""
    mark = item.get_closest_marker("timeout")
    seconds = float(mark.args[0] if mark else item.config.getini("timeout"))
    return seconds * MORE_TIME * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


@pytest.hookimpl(wrapper=True, tryfirst=True)  # before pytest-timeout asks
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """End the process, with every thread's stack, if a test outlives its time by far.

    At the end of its time a test is interrupted by an exception; but what cleans up
    after it may then wait for ever.  The process is a worker (`-n`): the test has
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
        and not hasattr(metafunc.module, "anyio_backend")  # its own choice of loops
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
    """A pipe, for what does not depend on the kind of link."""
    from links import open_link

    with open_link("pipe", tmp_path) as opened:
        yield opened


@pytest.fixture
def deadly_sigpipe() -> Iterator[None]:
    """Let SIGPIPE end the process, as where Python has not turned it off."""
    before = signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    yield
    assert not signal.sigpending()
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, [])
    signal.signal(signal.SIGPIPE, before)


@pytest.fixture(scope="session")
def tls() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Of a server here, by name or address, and of a client that trusts it."""
    trustme = pytest.importorskip("trustme")
    authority = trustme.CA()
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost", "127.0.0.1").configure_cert(server)
    client = ssl.create_default_context()
    authority.configure_trust(client)
    return server, client


@pytest.fixture(scope="session", autouse=True)
def warm_loops() -> None:
    """Run each loop once, and exempt all that exists by then from collections.

    What a loop opens once a process is no leak, and a collection takes microseconds
    where it took 40 ms.
    """

    async def look_up() -> None:  # for which uvloop keeps threads
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
    """Every buffer that the package has borrowed and not given back."""

    def __init__(self, borrow: Any) -> None:
        self._borrow = borrow
        self._views: dict[int, weakref.ref[Any]] = {}  # as many as are alive

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
    if not FDS.exists():  # not Linux: there is nothing to look at
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
    gc.freeze()  # what pytest keeps need not be looked at again


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
