"""What the benches of the network share: starting processes, and their reports."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import TYPE_CHECKING, Any

from aiozerocopy.bench.frames import percentile

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence


def command(module: str, job: dict[str, Any]) -> list[str]:
    """The command that runs a module, which is told its job in JSON."""
    name = f"aiozerocopy.bench.{module}"
    return [sys.executable, "-m", name, json.dumps(job)]


def tell(report: dict[str, Any]) -> None:
    # (in one write, since other processes write to the same pipe)
    os.write(1, json.dumps(report).encode() + b"\n")


def run_on(loop: str, main: Coroutine[Any, Any, None]) -> None:
    if loop == "uvloop":
        import uvloop

        uvloop.run(main)
    else:
        asyncio.run(main)


def age_sentence(ages: Sequence[float]) -> str:
    half, most = (percentile([*ages], part) * 1e3 for part in (0.5, 0.99))
    return f"frames {half:.2f} ms old at the clients (99 of 100 within {most:.2f} ms)"
