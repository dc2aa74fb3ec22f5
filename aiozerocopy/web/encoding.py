"""One encoder at work: it makes `Packet` of the frames that a hub's client is sent.

Key frames are made on demand, for a new viewer and for one that has missed frames, as
each is several times as large as another frame; no others are made.  A restart instead
would cost every viewer 0.1 seconds of frames; short groups, or refreshing in stripes,
would cost bits all the time.  If no new frame comes, the newest one is encoded again: a
still picture has new viewers, too.
"""

from __future__ import annotations

import collections
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

from aiozerocopy._core.change import Change, Turns, in_turn
from aiozerocopy._net.foreign_streams import MessageStream
from aiozerocopy.web.exchange import first_to_end
from aiozerocopy.web.pixels import (
    CODED,
    CONFIGURATION,
    REASON,
    Header,
    websocket_message,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import Buffer

    from aiozerocopy.web.codecs import Encoder, Encoders, Made, Task
    from aiozerocopy.web.pixels import PictureFormat

KEYS, KEY_SECONDS = 2, 0.5  # at most 2 key frames on demand in 0.5 s, for all viewers
HOLD_SECONDS = 0.05  # that the demand waits for a new frame
LATER_SECONDS = 0.05  # that a frame waits at most for the runs that come first


@dataclass(frozen=True)
class Packet:
    """One message for the viewers, shared by all."""

    buffers: Sequence[Buffer]
    kind: int  # of its payload: see `pixels`
    key: bool
    sequence: int

    @property
    def nbytes(self) -> int:
        return sum(len(memoryview(buffer)) for buffer in self.buffers)

    @property
    def is_picture(self) -> bool:
        return self.kind == CODED


class Run(MessageStream):
    """One encoder: the picture it was started for, and the frames inside of it.

    It is the stream of a hub's client, which sends it the messages of `Planes`.  It
    encodes a frame after the runs of ``first``, whose encoders would else be slower.
    """

    def __init__(
        self,
        tell: Callable[[Packet], object],
        first: Callable[[], Sequence[Run]] = tuple,
    ) -> None:
        self.picture: PictureFormat | None = None
        self.begun: anyio.Event = anyio.Event()  # the picture is known
        self.changed: anyio.Event = anyio.Event()  # another encoder is needed
        self.failure: str = ""
        self._tell = tell  # sends a packet to all viewers
        self._first = first
        self._done = -1  # sequence of the last message
        self._progress = Change()
        self._encoder: Encoder | None = None
        self._ready = anyio.Event()  # there is an encoder
        self._turns = Turns()
        self._newest: tuple[Header, Buffer] | None = None  # its header and planes
        self._wishes = Change()  # for a key frame
        self._wants_key = False
        # When the last key frames were encoded, and the number of the very last.
        self._keys_at = collections.deque([-math.inf] * KEYS, KEYS)
        self._key_number = 0
        self._configuration: list[Packet] = []
        self._reason: list[Packet] = []  # why the newest frame cannot be shown
        self._frames = 0  # that were encoded
        # The frames that may still come out, by their number: sequence and timestamp.
        self._inside: dict[int, tuple[int, int]] = {}

    def ask(self) -> None:
        """Make the next frame a key frame, unless one is about to come out."""
        if self._key_number not in self._inside:
            self._wants_key = True
            self._wishes.happen()

    def _is_key_due(self) -> bool:
        is_due = time.monotonic() - self._keys_at[0] >= KEY_SECONDS
        return self._wants_key and is_due and not self._reason

    # -- frames --------------------------------------------------------------------

    async def aclose(self) -> None:
        """Do nothing: the run is over when its task is."""

    async def send(self, item: Buffer = b"", *more: Buffer) -> None:
        """Encode a message of `Planes`."""
        header = Header.of(item)
        try:
            if header.kind == REASON:
                self._say_why(header, item, *more)
            else:
                await self._show(header, *more)
        finally:
            self._done = header.sequence
            self._progress.happen()

    def _say_why(self, header: Header, *message: Buffer) -> None:
        packet = Packet(message, REASON, key=False, sequence=header.sequence)
        self._reason = [packet]
        self._tell(packet)

    async def _show(self, header: Header, planes: Buffer) -> None:
        self._reason = []
        if self.picture is None:
            self.picture = header.picture
            self.begun.set()
        if self.picture == header.picture:
            self._newest = header, planes
            await self._ready.wait()
            await self._until_first_are_done(header.sequence)
            await self._encode()
        else:
            self.changed.set()

    async def _until_first_are_done(self, sequence: int) -> None:
        """Wait, but not for long: a run may end, and its encoder may hang."""
        with anyio.move_on_after(LATER_SECONDS):
            for run in self._first():
                while run._done < sequence:
                    await run._progress.next()

    @in_turn
    async def _encode(self, *, if_wanted: bool = False) -> None:
        """Encode the newest frame; ``if_wanted``: only if it is to be a key frame."""
        assert self._encoder is not None
        assert self._newest is not None
        (header, planes), number = self._newest, self._frames
        is_key = number == 0 or self._is_key_due()
        if if_wanted and not is_key:
            return
        if number > self._encoder.last:
            self.changed.set()
            return
        if is_key:
            self._wants_key, self._key_number = False, number
            self._keys_at.append(time.monotonic())
        self._inside[number] = header.sequence, header.timestamp_ns
        self._frames = number + 1
        try:
            await self._encoder.encode(planes, number, is_key=is_key)
        except OSError as error:
            self.failure = str(error)
            self.changed.set()

    async def _repeat(self) -> None:
        """Encode the newest frame again if a key frame is wanted and no frame comes."""
        while True:
            if not self._wants_key:
                await self._wishes.next()
            await anyio.sleep(HOLD_SECONDS)
            await self._encode(if_wanted=True)

    def _take(self, made: Made) -> None:
        """Send to the viewers what the encoder has made."""
        assert self.picture is not None
        number, key, payload = made
        if number < 0:
            kind = CONFIGURATION
            message = websocket_message(payload, kind, self.picture, 0, 0, key=True)
            self._configuration = [Packet(message, kind, key=True, sequence=0)]
            self._tell(self._configuration[0])
        elif number in self._inside:
            sequence, when = self._inside[number]
            for older in [each for each in self._inside if each <= number]:
                del self._inside[older]
            named = self.picture, sequence, when
            message = websocket_message(payload, CODED, *named, key=key)
            self._tell(Packet(message, CODED, key, sequence))

    def packets_so_far(self) -> list[Packet]:
        """What a newcomer needs to decode what follows."""
        return [*self._configuration, *self._reason]

    # -- the encoder ---------------------------------------------------------------

    async def serve(
        self, encoders: Encoders, task: Callable[[PictureFormat], Task]
    ) -> None:
        """Run an encoder, until it ends or another one is needed."""
        await self.begun.wait()
        assert self.picture is not None
        begun = task(self.picture)
        try:
            async with encoders(begun, self._take) as self._encoder:
                self._ready.set()
                if task(self.picture) != begun:  # (changed meanwhile)
                    self.follow(task)
                await first_to_end(self._watch, self._repeat, self.changed.wait)
        except OSError as error:
            self.failure = str(error)

    async def _watch(self) -> None:
        assert self._encoder is not None
        self.failure = await self._encoder.wait()

    def follow(self, task: Callable[[PictureFormat], Task]) -> None:
        """Encode with another bitrate from now on."""
        encoder, picture = self._encoder, self.picture
        if encoder and picture and not encoder.follow(task(picture).bitrate):
            self.changed.set()
