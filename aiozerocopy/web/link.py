"""What is on its way to one viewer, and whether a picture sent now would be too old.

The page acknowledges pictures when it has painted them, or a newer one: each time
with the sequence of the newest, at most 25 times a second.  From that follow

    rate   how many bytes a second arrive: the most between two acknowledgements, lately
    delay  how long the link itself takes: the least from sending to acknowledgement in
           the last seconds, less what the picture's own bytes take at that rate

States, and what `Link.takes` says
    silent   nothing was ever acknowledged (a script, a plain JPEG stream): yes.  For
             such a viewer the limits are the kernel's buffers, and the time that
             pictures may wait here
    idle     all that was sent is acknowledged: yes, as no picture would arrive earlier
    busy     something is on its way: yes for a picture that would be acknowledged
             `LATE` seconds after the link's delay at most
    late     something sent before is later than that: no, until it is acknowledged
    probing  late or busy, and nothing was sent for `PROBE` seconds: yes, for one
             picture.  An acknowledgement of it stands for all before it, which the page
             may have lost; without one, the link is late again, and the next probe
             waits twice as long, up to `MAX_PROBE`

Owners: each viewer has one `Link`, and all of this happens in its loop's thread.  The
viewer's server calls `hear`.  The viewer's feed calls `send` and `takes`; it sets
``on_change``, which is called when ``takes`` may have another answer: at
acknowledgements, and by `tick`, which runs as long as the feed does, while time alone
may change it.
"""

from __future__ import annotations

import collections
import math
import time
from typing import TYPE_CHECKING, NamedTuple

import anyio

if TYPE_CHECKING:
    from collections.abc import Callable

LATE, PROBE, MAX_PROBE, TICK = 0.1, 1.0, 16.0, 0.5  # seconds
# Seconds after which a value no longer counts, once there are newer ones.
RATE_MEMORY, DELAY_MEMORY = 1.0, 10.0
# The link may be faster than was measured, as it was not always busy.
GAIN = 1.25
KEPT = 256  # pictures that may be acknowledged: the last that were sent
_DIGITS = 20  # of a sequence, at most


class _Sent(NamedTuple):
    sequence: int
    since: float
    nbytes: int
    total: int  # bytes sent, this picture's included


class _Best:
    """The best value of the last ``memory`` seconds, or of up to twice as many."""

    def __init__(
        self, choose: Callable[[float, float], float], worst: float, memory: float
    ) -> None:
        self._choose, self._worst, self._memory = choose, worst, memory
        self._old = self._new = worst
        self._since = 0.0

    def add(self, value: float, now: float) -> None:
        if now - self._since > self._memory:
            self._old, self._new, self._since = self._new, self._worst, now
        self._new = self._choose(self._new, value)

    @property
    def value(self) -> float:
        return self._choose(self._old, self._new)


class Link:
    """The link to one viewer, by what its page acknowledges."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock: Callable[[], float] = clock
        self.acknowledges: bool = False
        # Called when perhaps more may be sent.
        self.on_change: Callable[[], object] = lambda: None
        self._sent: collections.deque[_Sent] = collections.deque(maxlen=KEPT)
        self._total = 0  # bytes sent
        self.arrived: int = 0  # of these
        # The sequence of a picture that was acknowledged before `send` noted it.
        self._early = -1
        self._was_idle = True  # since the last acknowledgement
        self._probe = PROBE
        self._arrived_at = clock()
        self._delay = _Best(min, math.inf, DELAY_MEMORY)
        self._rate = _Best(max, 0.0, RATE_MEMORY)

    def send(self, sequence: int, nbytes: int) -> None:
        """Note a picture that is being sent."""
        if sequence == self._early:
            self._early = -1
            return
        now = self.clock()
        if self._sent and now - self._sent[-1].since >= PROBE / 2:
            self._probe = min(2 * self._probe, MAX_PROBE)
        if not self._sent:
            self.arrived, self._arrived_at = self._total, now
            self._was_idle = True
        self._total += nbytes
        self._sent.append(_Sent(sequence, now, nbytes, self._total))

    def hear(self, words: str | bytes) -> None:
        """Take what the viewer says: the sequence of a picture that it is done with."""
        if isinstance(words, str) and len(words) <= _DIGITS and words.isdecimal():
            self._acknowledge(int(words))

    def _acknowledge(self, sequence: int) -> None:
        newest = None
        while self._sent and self._sent[0].sequence <= sequence:
            newest = self._sent.popleft()
        is_early = newest is None or newest.sequence < sequence
        self._early = sequence if is_early else -1
        if newest is None:
            return
        self.acknowledges, self._probe = True, PROBE
        now = self.clock()
        arrived, seconds = newest.total - self.arrived, now - self._arrived_at
        self.arrived, self._arrived_at = newest.total, now
        rate = arrived / seconds if seconds > 0 else 0.0
        # After idleness the rate includes the delay: it counts only if it is higher.
        least = self._rate.value or math.inf if self._was_idle else 0.0
        if rate > least:
            self._rate.add(rate, now)
        self._was_idle = False
        own = newest.nbytes / self._rate.value if self._rate.value else 0.0
        self._delay.add(max(now - newest.since - own, 0.0), now)
        self.on_change()

    def takes(self, nbytes: int, share: float = 1.0) -> bool:
        """Would a picture of this size arrive in time, or is it one to probe with?

        (A probe is due after this ``share`` of the usual time.)
        """
        if not self.acknowledges or not self._sent:
            return True
        now = self.clock()
        if now - self._sent[-1].since >= share * self._probe:
            return True
        latest, rate = self._delay.value + LATE, self._rate.value
        waiting = self._total - self.arrived + nbytes
        lasts = waiting / (GAIN * rate) if rate else 0.0
        age = now - self._sent[0].since
        return max(lasts - (now - self._arrived_at), age) <= latest

    async def tick(self) -> None:
        """Call ``on_change`` now and then, also if nothing is heard or published."""
        while True:
            await anyio.sleep(TICK)
            if self.acknowledges and self._sent:
                self.on_change()
