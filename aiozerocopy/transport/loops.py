"""Event loops whose connections and servers are this package's.

They are asyncio's own loop, or uvloop's, with the methods below in the place of theirs.
So code that knows nothing of this package uses its transports: asyncio's streams,
aiohttp, websockets, uvicorn, asyncpg and redis-py among others.
"""

from __future__ import annotations

import asyncio
import functools
import sys
from typing import TYPE_CHECKING, Any

from aiozerocopy._core.extras import optional
from aiozerocopy.transport import connections, files, server

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


def _method(function: Callable[..., Awaitable[Any]]) -> Any:
    """Return a function of ours as a method of a running loop."""

    @functools.wraps(function)
    async def method(self: object, *args: Any, **options: Any) -> Any:
        return await function(*args, **options)

    return method


class _WithTransports(asyncio.AbstractEventLoop):
    """The methods that replace those of a loop."""

    create_connection: Any = _method(connections.create_connection)
    create_unix_connection: Any = _method(connections.create_unix_connection)
    connect_accepted_socket: Any = _method(connections.connect_accepted_socket)
    create_server: Any = _method(server.create_server)
    create_unix_server: Any = _method(server.create_unix_server)
    start_tls: Any = _method(connections.start_tls)

    async def sendfile(self, transport: Any, *args: Any, **options: Any) -> int:
        send: Any = files.sendfile if files.takes(transport) else super().sendfile
        sent: int = await send(transport, *args, **options)
        return sent


class EventLoop(_WithTransports, asyncio.SelectorEventLoop):
    """asyncio's loop for Unix, with the transports of this package."""


@functools.cache
def _uvloop_class() -> type[asyncio.AbstractEventLoop]:
    with optional("an event loop with uvloop=True", "uvloop"):
        import uvloop

    return type("UvloopEventLoop", (_WithTransports, uvloop.Loop), {})


def new_event_loop(*, uvloop: bool = False) -> asyncio.AbstractEventLoop:
    """Make an event loop that uses this package's transports.

    Give it to ``asyncio.run(main(), loop_factory=aiozerocopy.new_event_loop)``, to
    `asyncio.Runner`, or to anything else that takes a function that makes loops.  The
    loop is asyncio's `SelectorEventLoop` or, with ``uvloop=True``, uvloop's.

    Raises:
        ModuleNotFoundError: uvloop is asked for, and not installed.
    """
    return _uvloop_class()() if uvloop else EventLoop()


def install(*, uvloop: bool = False) -> None:
    """Have `asyncio.run` and others make such loops, by an event loop policy.

    Raises:
        ModuleNotFoundError: uvloop is asked for, and not installed.
        RuntimeError: Python 3.14 or later, which deprecates policies; use
            ``asyncio.run(main(), loop_factory=aiozerocopy.new_event_loop)`` there.
    """
    if sys.version_info >= (3, 14):
        raise RuntimeError(
            "Python 3.14 deprecates event loop policies: use "
            "asyncio.run(main(), loop_factory=aiozerocopy.new_event_loop)"
        )
    if uvloop:
        _uvloop_class()

    class Policy(asyncio.DefaultEventLoopPolicy):
        def new_event_loop(self) -> asyncio.AbstractEventLoop:
            return new_event_loop(uvloop=uvloop)

    asyncio.set_event_loop_policy(Policy())
