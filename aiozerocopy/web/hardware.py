"""H.264 in hardware, by FFmpeg as a child, if the encoder holds no frame back.

Encoders in hardware, and their drivers, differ in what they hold back and in whether
they make a key frame on demand.  So each is tried first, once for each size.  If the
one that passed ends by itself, the next one is tried.  If none passes, the CPU encodes.
"""

from __future__ import annotations

import contextlib
import logging
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import anyio

from aiozerocopy._core.change import Change, Turns, in_turn
from aiozerocopy._core.errors import StreamBroken
from aiozerocopy.ffmpeg.codecs import hardware_of
from aiozerocopy.web.child import by_ffmpeg
from aiozerocopy.web.exchange import first_to_end

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from typing_extensions import Buffer

    from aiozerocopy.web.codecs import Encoder, Encoders, Made, Task, Tell

PATIENCE = 5.0  # seconds for a trial
KEYS = (True, False, False, True)  # the frames of a trial

log: logging.Logger = logging.getLogger("aiozerocopy")


class Hardware:
    """The encoders of a page: in hardware, or ``otherwise`` those of the CPU."""

    def __init__(self, ffmpeg: str, otherwise: Encoders) -> None:
        self._ffmpeg = ffmpeg
        self._otherwise = otherwise
        self._passed: dict[tuple[str, object], bool] = {}
        self._turns = Turns()

    @asynccontextmanager
    async def __call__(self, task: Task, tell: Tell) -> AsyncIterator[Encoder]:
        """Raises: OSError."""
        name = await self._find(task)
        if name is None:
            async with self._otherwise(task, tell) as encoder:
                yield encoder
            return
        async with by_ffmpeg(self._ffmpeg, task, tell, name) as encoder:
            yield _Replaceable(encoder, partial(self._give_up, name, task))

    @in_turn
    async def _find(self, task: Task) -> str | None:
        """Return the first encoder that passes its trial."""
        names: tuple[str, ...] = ()
        with contextlib.suppress(OSError, StreamBroken):  # FFmpeg does not answer
            names = await hardware_of(self._ffmpeg)
        for name in names:
            key = name, task.size
            if key not in self._passed:
                encoders = partial(by_ffmpeg, self._ffmpeg, codec=name)
                self._passed[key] = await is_live(encoders, task)
            if self._passed[key]:
                log.info("H.264 is encoded by %s", name)
                return name
        return None

    def _give_up(self, name: str, task: Task, why: str) -> None:
        log.warning("%s: %s; another encoder goes on", name, why)
        self._passed[name, task.size] = False


class _Replaceable:
    """An encoder that may end by itself: then another one goes on."""

    def __init__(self, encoder: Encoder, on_end: Callable[[str], object]) -> None:
        self.last: float = encoder.last
        self._encoder = encoder
        self._on_end = on_end

    async def encode(self, planes: Buffer, number: int, *, is_key: bool) -> None:
        await self._encoder.encode(planes, number, is_key=is_key)

    async def wait(self) -> str:
        self._on_end(await self._encoder.wait())
        return ""

    def follow(self, bitrate: int) -> bool:
        return self._encoder.follow(bitrate)


async def is_live(encoders: Encoders, task: Task) -> bool:
    """Does each frame come out before the next goes in, and key frames as asked?"""
    made: list[Made] = []
    came = Change()

    def take(each: Made) -> None:
        if each.number >= 0:
            made.append(each)
            came.happen()

    async def feed() -> None:
        grey = b"\x80" * (task.planes.width * task.planes.height * 3 // 2)
        for number, is_key in enumerate(KEYS):
            await encoder.encode(grey, number, is_key=is_key)
            while len(made) <= number:
                await came.next()

    with contextlib.suppress(OSError), anyio.move_on_after(PATIENCE):
        async with encoders(task, take) as encoder:
            await first_to_end(encoder.wait, feed)
    return [(each.number, each.is_key) for each in made] == list(enumerate(KEYS))
