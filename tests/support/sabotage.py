"""Deliberate faults that tests must catch: see slow/test_negative_controls.py."""

import re
from pathlib import Path
from typing import Any

from aiozerocopy import _azc
from aiozerocopy._core.binding import IN_PROGRESS
from aiozerocopy._core.borrows import Operation, give_back
from aiozerocopy._core.channel import Channel
from aiozerocopy._core.failure import Failure
from aiozerocopy._core.sending import SendStream
from aiozerocopy._core.waiter import Waiter
from aiozerocopy.capture import damage
from aiozerocopy.capture.connection import Answer, Connection

VARIABLE = "AZC_TEST_SABOTAGE"

HEADER = Path(__file__).parents[2] / "csrc" / "sabotage.h"


def _unpin_early() -> None:
    """Give the export back when the message is queued, instead of when it is sent."""
    attend = SendStream._attend

    async def unpin_and_attend(
        self: SendStream, waiter: Waiter, operation: Operation, result: int
    ) -> None:
        if result == IN_PROGRESS:
            give_back(operation.token)
        await attend(self, waiter, operation, result)

    SendStream._attend = unpin_and_attend  # type: ignore[method-assign]


def _let_go_of_slots() -> None:
    """Treat a slot as free although an X server may still write to it."""
    ask = Connection.ask

    def ask_and_keep_nothing(
        self: Connection,
        request: bytes,
        into: memoryview | None = None,
        keeps: object = None,
        fd: int | None = None,
    ) -> Answer:
        return ask(self, request, into, fd=fd)

    Connection.ask = ask_and_keep_nothing  # type: ignore[method-assign]


def _keep_errors() -> None:
    """Remember the exception itself, with its traceback."""

    def keep(self: Failure[Any], error: BaseException) -> None:
        self._cause = error  # type: ignore[assignment]

    def again(self: Failure[Any]) -> Any:
        return self._cause

    Failure.__init__ = keep  # type: ignore[method-assign]
    Failure.again = again  # type: ignore[method-assign]


def _take_nothing_back() -> None:
    """Let an exception out of a call while C still has the buffers."""

    def take_back(*_: object) -> bool:
        return True

    Channel.take_back = take_back  # type: ignore[method-assign, assignment]


def _lack_no_rows() -> None:
    """Treat every slot of a screen's pictures as up to date."""
    damage.merged = lambda rows: []


IN_PYTHON = {
    "unpin": _unpin_early,
    "kept": _keep_errors,
    "take_back": _take_nothing_back,
    "slot": _let_go_of_slots,
    "stale": _lack_no_rows,
}


def apply(fault: str) -> None:
    """Break the package in this process; with "" or "none" leave it as it is.

    Faults in C are those of csrc/sabotage.h, compiled in with AZC_SABOTAGE=1 only.
    """
    if fault in IN_PYTHON:
        IN_PYTHON[fault]()
    elif fault not in ("", "none"):
        bits = dict(re.findall(r"SABOTAGE_(\w+) = (\d+)", HEADER.read_text()))
        bit = bits[fault.upper().removeprefix("SOCKET_")]  # (two tests use loan)
        _azc.lib.azc_sabotage = int(bit)
