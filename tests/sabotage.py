"""Deliberate faults, to see that the tests catch them (test_negative_controls.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiozerocopy import _azc, _native  # type: ignore[attr-defined]
from aiozerocopy._native import Operation

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from aiozerocopy._native import Channel

VARIABLE = "AZC_TEST_SABOTAGE"

# csrc/channel.h; compiled in with AZC_SABOTAGE=1 only
IN_C = {
    "order": 1,
    "tail": 2,
    "rescue": 4,
    "identity": 8,
    "loan": 16,
    "detach": 32,
}


def apply(fault: str) -> None:
    """Break the package in this process; with "" or "none" leave it as it is."""
    if fault in IN_C:
        _azc.lib.azc_sabotage = IN_C[fault]
    elif fault == "unpin":
        _unpin_early()
    elif fault not in ("", "none"):
        raise ValueError(f"no such fault: {fault}")


def _unpin_early() -> None:
    """Give the export back when the message is queued, not when it is out."""
    send = _native.Channel.send

    def send_and_unpin(self: Channel, data: Buffer) -> Operation | int:
        result = send(self, data)
        if isinstance(result, Operation):
            result.unpin()
        return result

    _native.Channel.send = send_and_unpin  # type: ignore[method-assign]
