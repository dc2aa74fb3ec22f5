"""Event loops whose connections and servers are this package's.

They are asyncio's own loop, or uvloop's, with the methods below put in the place of
theirs; whatever else a program asks for is theirs.  Programs that know nothing of this
package use its transports so: asyncio's streams, aiohttp, websockets, uvicorn, asyncpg
and redis-py among them.
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
    """A function of ours, as the method of a loop that is running."""

    @functools.wraps(function)
    async def method(self: object, *args: Any, **options: Any) -> Any:
        return await function(*args, **options)

    return method


class _WithTransports(asyncio.AbstractEventLoop):
    """What stands before the methods of a loop."""

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

    It is for ``asyncio.run(main(), loop_factory=aiozerocopy.new_event_loop)``, for
    `asyncio.Runner`, and for whatever else takes a function that makes loops.  The loop
    is asyncio's `SelectorEventLoop` or, with ``uvloop=True``, uvloop's.

    Raises:
        ModuleNotFoundError: uvloop is asked for, and not installed.
    """
    return _uvloop_class()() if uvloop else EventLoop()


def install(*, uvloop: bool = False) -> None:
    """Let `asyncio.run` and its like make such loops, by asyncio's event loop policy.

    Raises:
        ModuleNotFoundError: uvloop is asked for, and not installed.
        RuntimeError: Python 3.14 or later, which gives up policies; use
            ``asyncio.run(main(), loop_factory=aiozerocopy.new_event_loop)`` there.
    """
    if sys.version_info >= (3, 14):
        raise RuntimeError(
            "Python 3.14 gives up event loop policies: use "
            "asyncio.run(main(), loop_factory=aiozerocopy.new_event_loop)"
        )
    if uvloop:
        _uvloop_class()

    class Policy(asyncio.DefaultEventLoopPolicy):
        def new_event_loop(self) -> asyncio.AbstractEventLoop:
            return new_event_loop(uvloop=uvloop)

    asyncio.set_event_loop_policy(Policy())
