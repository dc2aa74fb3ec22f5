"""What the benches of the network share: how their processes start and report."""

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
    """Of a process of that module, which is told the job in JSON."""
    name = f"aiozerocopy.bench.{module}"
    return [sys.executable, "-m", name, json.dumps(job)]


def tell(report: dict[str, Any]) -> None:
    os.write(1, json.dumps(report).encode() + b"\n")  # in one piece


def run_on(loop: str, main: Coroutine[Any, Any, None]) -> None:
    if loop == "uvloop":
        import uvloop

        uvloop.run(main)
    else:
        asyncio.run(main)


def age_sentence(ages: Sequence[float]) -> str:
    half, most = (percentile([*ages], part) * 1e3 for part in (0.5, 0.99))
    return f"frames {half:.2f} ms old at the clients (99 of 100 within {most:.2f} ms)"
