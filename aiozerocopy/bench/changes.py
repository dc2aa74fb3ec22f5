"""What has changed since an earlier run, beyond noise.

The ratios of the rounds then and now are compared by their ranks (Mann and Whitney's
test, exact).  It is a change if chance alone would part them so far less often than
once in a hundred times, and the medians differ by more than runs of the same program
do from one another, `SMALL`.
"""

from __future__ import annotations

import itertools
import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aiozerocopy.bench import tables
from aiozerocopy.bench.summary import number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiozerocopy.bench.outcome import Outcome, Row

RARE = 0.01
SMALL = 0.05  # of the ratio
HEADER = ("work", "against", "ratio", "now", "CPU", "now", "")
TOO_FEW = "too few rounds"
LEGEND = (
    "the same: within noise. faster, slower, less or more CPU: beside the same rival, "
    f"by more than {SMALL:.0%}, and by a rank test of the rounds (p < {RARE}, which "
    "takes five on each side). other work, other rival: not to be compared."
)


@dataclass(frozen=True)
class Change:
    """One row, then and now; the verdict is in words."""

    now: Row
    then: Row
    said: str

    @property
    def is_slower(self) -> bool:
        return "slower" in self.said

    def cells(self) -> tuple[str, ...]:
        pairs = (
            (self.then.ratio, self.now.ratio),
            (self.then.cpu_ratio, self.now.cpu_ratio),
        )
        numbers = ["" if one is None else number(one) for pair in pairs for one in pair]
        return (self.now.work, self.now.against, *numbers, self.said)


def changes(then: Outcome, now: Outcome) -> list[Change]:
    """Of all that is in both."""
    before = {row.key: row for row in then.rows}
    return [
        Change(row, old, verdict(old, row))
        for row in now.rows
        if (old := before.get(row.key)) is not None
    ]


def verdict(then: Row, now: Row) -> str:
    if then.messages != now.messages:
        return "other work"
    if then.against != now.against:
        return "other rival"
    rate = direction(then.ratios, now.ratios)
    if rate is None:
        return TOO_FEW
    cpu = direction(then.cpu_ratios, now.cpu_ratios)
    words = [
        ("slower", "", "faster")[rate + 1],
        ("less CPU", "", "more CPU")[(cpu or 0) + 1],
    ]
    return ", ".join(filter(None, words)) or "the same"


def direction(then: Sequence[float], now: Sequence[float]) -> int | None:
    """1: greater now; -1: less; 0: the same; None: nobody could tell."""
    if 2 / math.comb(len(then) + len(now), len(now)) > RARE:
        return None
    factor = statistics.median(now) / statistics.median(then)
    if abs(math.log(factor)) < math.log1p(SMALL) or chance(then, now) > RARE:
        return 0
    return 1 if factor > 1 else -1


def chance(a: Sequence[float], b: Sequence[float]) -> float:
    """How often the ranks of two samples of one kind would lie so far apart."""
    less = sum((x < y) + (x == y) / 2 for x, y in itertools.product(a, b))
    ways = ways_of(len(a), len(b))
    extreme = math.floor(min(less, len(a) * len(b) - less))
    tail = sum(ways[: extreme + 1]) / sum(ways)
    return min(1.0, 2 * tail)


def ways_of(m: int, n: int) -> list[int]:
    """In how many orders of m and n values just u of the m * n pairs are the wrong way
    round, for every u: the coefficients of a Gaussian binomial."""
    ways = [1] + [0] * (m * n)
    for i in range(1, m + 1):
        for u in range(m * n, n + i - 1, -1):
            ways[u] -= ways[u - n - i]
        for u in range(i, m * n + 1):
            ways[u] += ways[u - i]
    return ways


# ---- what is said -------------------------------------------------------------------


def show(then: Outcome, now: Outcome) -> list[Change]:
    found = changes(then, now)
    print(f"\nSince {then.machine['date'][:10]}:")
    tables.say(*elsewhere(then.machine, now.machine))
    groups = [
        (bench, [one.cells() for one in some])
        for bench, some in itertools.groupby(found, key=lambda one: one.now.bench)
    ]
    if found:
        tables.show(HEADER, groups)
    else:
        print("nothing can be compared: no race is in both")
    tables.say(*unpaired(then, now))
    return found


def elsewhere(then: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What was another machine, or another program on it."""
    names = {"cpu": "CPU", "cpus": "cores", "system": "system", "python": "Python"}
    pairs = [(title, then[name], now[name]) for name, title in names.items()]
    versions = then["versions"], now["versions"]
    pairs += [
        (name, *(some.get(name, "not installed") for some in versions))
        for name in sorted({*versions[0], *versions[1]})
    ]
    return [f"{name}: {a} then, {b} now" for name, a, b in pairs if a != b]


def unpaired(then: Outcome, now: Outcome) -> list[str]:
    """What only one of them has, of the benches that are in both."""
    benches = set.intersection(
        *({row.bench for row in one.rows} for one in (then, now))
    )
    said = []
    for when, one, other in (("only then", then, now), ("only now", now, then)):
        keys = {row.key for row in other.rows}
        said += [
            f"{when}: {row.work}"
            for row in one.rows
            if row.key not in keys and row.bench in benches
        ]
    return list(dict.fromkeys(said))
