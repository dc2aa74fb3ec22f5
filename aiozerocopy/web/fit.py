"""Which rendition of the stream a viewer gets: the first, or the one with fewer bits.

The second has a third of the first's bits in the same size.  (Half the size was 0.4 dB
better for a fractal, and 5 dB worse for a test picture with sharp edges.)

States
    first   the viewer gets the first rendition.  It moves to the second at a fall, if
            there was another `SPAN` to `WINDOW` seconds before, and less than `ENOUGH`
            of the stream's bytes has arrived between the two
    second  it gets the second.  It moves up after ``patience`` seconds, of which the
            last `PATIENCE` were without a fall: only a trial shows what a link can
            carry, as no more arrives than is sent.  If it is back in less than `TRIAL`
            seconds, its ``patience`` is doubled, up to `MAX_PATIENCE`

A fall is a picture that is dropped when the one before it was not: if the link is too
slow there is one after the other.  In an outage nothing arrives at all, so it is waited
for.  (The measured rate would not do: what a lost packet has held up arrives at once,
as if the link were fast.)
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiozerocopy.web.link import Link

SHARES = (1.0, 1 / 3)  # of the bitrate, that the renditions have
SPAN, WINDOW, ENOUGH = 0.7, 5.0, 2 / 3
PATIENCE, MAX_PATIENCE, TRIAL = 10.0, 160.0, 30.0  # seconds


class Fit:
    """One viewer's state."""

    def __init__(self, link: Link) -> None:
        self.number: int = 0  # of the rendition that the viewer gets
        self._link = link
        self._patience = PATIENCE
        self._moved = -math.inf  # when that was
        self._trial = math.inf  # when it is due
        self._nbytes = 0  # of all pictures of the stream
        # A fall: when it was, and how many bytes there were then, and had arrived.
        self._fall = (-math.inf, 0, 0)

    def see(self, nbytes: int) -> None:
        """Note a picture of the stream, which may be sent or not."""
        self._nbytes += nbytes
        if self.number and self._link.clock() >= self._trial:
            self._move(0)

    def fall(self) -> None:
        """Note that pictures are dropped from here on."""
        now = self._link.clock()
        if self.number:
            self._trial = max(self._trial, now + PATIENCE)
            return
        when, nbytes, arrived = self._fall
        if now - when < SPAN:
            return
        self._fall = (now, self._nbytes, self._link.arrived)
        come, due = self._link.arrived - arrived, self._nbytes - nbytes
        if now - when <= WINDOW and 0 < come < ENOUGH * due:
            is_soon = now - self._moved < TRIAL
            longer = min(2 * self._patience, MAX_PATIENCE)
            self._patience = longer if is_soon else PATIENCE
            self._move(1)

    def _move(self, number: int) -> None:
        self.number, self._moved = number, self._link.clock()
        self._trial = self._moved + self._patience
        self._fall = (-math.inf, 0, 0)
