"""A part of what there is too much of for CI, which tries another part each time.

AZC_PART is the number of the part; without it, all is tried.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

NUMBER = os.environ.get("AZC_PART")


def part(of: Sequence[T], share: float = 1 / 3) -> list[T]:
    """Return all, or some of them chosen at random: the same ones for each number."""
    if NUMBER is None:
        return list(of)
    count = math.ceil(len(of) * share)
    chosen = random.Random(NUMBER).sample(range(len(of)), count)
    return [of[index] for index in sorted(chosen)]
