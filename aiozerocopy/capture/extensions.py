"""Which extensions of the X protocol a server has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiozerocopy.capture import messages

if TYPE_CHECKING:
    from aiozerocopy.capture.connection import Connection

NEEDED = {"RANDR": (1, 5), "XFIXES": (2, 0), "DAMAGE": (1, 1)}  # versions


async def extensions_of(connection: Connection) -> dict[str, tuple[int, int]]:
    """Those that we need and the server has: the numbers of requests and events."""
    queries = {
        name: connection.ask(messages.query_extension(name))
        for name in messages.EXTENSIONS
    }
    found = {}
    for name, query in queries.items():
        numbers = messages.extension(await connection.answer(query))
        if numbers is not None:
            found[name] = numbers
            connection.majors[numbers[0]] = name
    for name, needed in NEEDED.items():
        if name in found:
            asked = messages.version(found[name][0], *needed)
            reply = await connection.answer(connection.ask(asked))
            if messages.version_of(reply) < needed:
                del found[name]
    return found
