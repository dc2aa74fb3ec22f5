"""The monitors of a display, by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aiozerocopy.capture import x11
from aiozerocopy.capture.connection import Connection
from aiozerocopy.capture.display import Display

if TYPE_CHECKING:
    from aiozerocopy.capture.x11 import Rectangle


@dataclass(frozen=True)
class Monitor:
    """A monitor's name, and where on the screen it is."""

    name: str
    place: Rectangle
    is_primary: bool = False


async def monitors(display: str | None = None) -> list[Monitor]:
    """The monitors of a display, by default of the one that DISPLAY names.

    If the server knows no monitor there is one, "screen", for all of it.

    Raises:
        ScreenError: there is no X server, or it lets nobody in.
        ValueError: that is no display.
    """
    connection = await Connection.open(Display.named(display))
    try:
        extensions = await connection.extensions()
        geometry = await connection.query(x11.get_geometry(connection.setup.root))
        return await list_monitors(connection, extensions, x11.geometry(geometry))
    finally:
        connection.close()


async def list_monitors(
    connection: Connection, extensions: dict[str, tuple[int, int]], whole: Rectangle
) -> list[Monitor]:
    """The monitors that RANDR tells of; without it, the whole screen as one."""
    found = []
    if "RANDR" in extensions:
        request = x11.get_monitors(extensions["RANDR"][0], connection.setup.root)
        entries = x11.monitors(await connection.query(request))
        names = [connection.ask(x11.get_atom_name(atom)) for atom, *_ in entries]
        for (_, is_primary, place), asked in zip(entries, names, strict=True):
            name = x11.atom_name(await connection.answer(asked))
            found.append(Monitor(name, place, is_primary))
    return found or [Monitor("screen", whole, is_primary=True)]
