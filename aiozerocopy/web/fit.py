"""How many bits a viewer gets: which rendition of the stream, and its bitrate.

There are three renditions, the last of them in half the size.  (With a third of the
bits, half the size was 0.4 dB better than the full size for a fractal, and 5 dB worse
for a test picture.)

A fall is a picture that is dropped when the one before it was not: a link that is too
slow has one fall after another.  Between two of them, `SPAN` to `WINDOW` seconds apart,
the bytes that arrive show which part of its rendition the link carries.  In an outage
nothing arrives, which shows nothing.  (The measured rate would not do: what a lost
packet has held up arrives at once, as if the link were fast.)

What follows from it
    no viewer's link carries `NEARLY` all of   its bitrate falls to what this one
    the rendition                              carries, down to the next rendition's
    else, and this link carries less than      the viewer moves to the next rendition
    `ENOUGH`

Back up
    Only a trial shows what a link can carry, as no more arrives than is sent.  A viewer
    moves up, or a bitrate rises by a quarter, after ``patience`` seconds; a viewer must
    have had no fall in the last `PATIENCE` of these.  If the step fails in less than
    `TRIAL` seconds, ``patience`` is doubled, up to `MAX_PATIENCE`; if not, the next
    step comes after `TRIAL` seconds at most.  When a viewer joins a rendition, its
    bitrate is full again: one slow viewer does not change what others see.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiozerocopy.web.link import Link

SHARES = (1.0, 1 / 3, 1 / 9)  # of the bitrate: the most that each rendition has
HALVED = 2  # the rendition of half the size
LEAST = 1 / 18  # the smallest share of all
SPAN, WINDOW = 0.7, 5.0
NEARLY, ENOUGH = 0.97, 2 / 3
PATIENCE, MAX_PATIENCE, TRIAL = 10.0, 160.0, 30.0  # seconds
RISE, ROOM = 1.25, 0.9  # of a bitrate; the part of what a link carries that is used


class Trials:
    """When to try more bits again."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._patience = PATIENCE
        self._rose = -math.inf  # when the last step up was
        self._due = math.inf

    @property
    def is_due(self) -> bool:
        return self._clock() >= self._due

    def fall(self) -> None:
        """Pictures are dropped: wait a little longer."""
        self._due = max(self._due, self._clock() + PATIENCE)

    def lower(self) -> None:
        """There are fewer bits from now on."""
        now = self._clock()
        longer = min(2 * self._patience, MAX_PATIENCE)
        self._patience = longer if now - self._rose < TRIAL else PATIENCE
        self._due = now + self._patience

    def rise(self, *, is_last: bool) -> None:
        """There are more bits; after the last step, as many as there can be."""
        self._rose = self._clock()
        self._due = math.inf if is_last else self._rose + min(self._patience, TRIAL)


class Fit:
    """One viewer's state."""

    def __init__(self, link: Link, last: int = len(SHARES) - 1) -> None:
        self.number: int = 0  # of the rendition that the viewer gets
        self._last = last
        self._link = link
        self._trials = Trials(link.clock)
        self._nbytes = 0  # of all pictures of the stream
        self._carried = (-math.inf, 1.0)  # when, and which part
        # A fall: when it was, and how many bytes there were then, and had arrived.
        self._fall = (-math.inf, 0, 0)

    def see(self, nbytes: int) -> None:
        """Note a picture of the stream, whether it is sent or not."""
        self._nbytes += nbytes
        if self.number and self._trials.is_due:
            self.number -= 1
            self._trials.rise(is_last=self.number == 0)
            self.settle()

    def fall(self) -> None:
        """Pictures are dropped from here on."""
        now = self._link.clock()
        self._trials.fall()
        when, nbytes, arrived = self._fall
        if now - when < SPAN:
            return
        self._fall = (now, self._nbytes, self._link.arrived)
        come, due = self._link.arrived - arrived, self._nbytes - nbytes
        if now - when <= WINDOW and 0 < come < due:
            self._carried = now, come / due

    @property
    def carried(self) -> float:
        """The part of the rendition that the link carries, by the last falls."""
        when, part = self._carried
        return part if self._link.clock() - when < WINDOW else 1.0

    def move_down(self) -> None:
        if self.number < self._last:
            self.number += 1
            self._trials.lower()
            self.settle()

    def settle(self) -> None:
        """Forget what was noted: it says nothing of the bits from now on."""
        self._carried = (-math.inf, 1.0)
        self._fall = (-math.inf, 0, 0)


class Rate:
    """The bits of one rendition, as a share of the stream's bitrate."""

    def __init__(self, number: int, clock: Callable[[], float]) -> None:
        self.most: float = SHARES[number]
        self.share: float = self.most
        self._least = (*SHARES, LEAST)[number + 1]
        self._trials = Trials(clock)

    def lower(self, carried: float) -> bool:
        """Take only this part of the bits, unless they are at their least."""
        if self.share <= self._least:
            return False
        self.share = max(self.share * carried * ROOM, self._least)
        self._trials.lower()
        return True

    def rise(self) -> bool:
        """Take more bits, if it is time."""
        if self.share == self.most or not self._trials.is_due:
            return False
        self.share = min(self.share * RISE, self.most)
        self._trials.rise(is_last=self.share == self.most)
        return True

    def reset(self) -> bool:
        """Take all bits again."""
        is_other, self.share = self.share != self.most, self.most
        return is_other
