"""How long a client waits before it comes again."""

from __future__ import annotations

import random
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Backoff:
    """How long to wait before the next attempt: longer each time, and partly random.

    The wait is ``first * factor ** attempt`` seconds, at most ``longest``, less a
    random part of it, at most the share ``jitter``: a thousand clients of a server that
    comes back should not come all at once.  ``attempts`` in a row may fail (None: any
    number).
    """

    first: float = 0.1
    factor: float = 2.0
    longest: float = 10.0
    jitter: float = 0.5
    attempts: int | None = None
    rng: random.Random = field(default_factory=random.Random, repr=False)

    def seconds(self, attempt: int) -> float:
        """The wait after the attempt of that number, from 0 on."""
        wait = self.first
        for _ in range(attempt):  # factor ** attempt could overflow
            wait *= self.factor
            if wait >= self.longest:
                break
        return min(wait, self.longest) * (1 - self.jitter * self.rng.random())
