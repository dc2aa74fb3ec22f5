"""Figures that tests have counted, kept for the page that shows them (proof/).

A test calls for example ``count("kills of a reader", 20)``.  If AZC_FIGURES names a
file, each call appends a line of JSON to it; otherwise nothing happens.

Bytes have the unit "B".  "wrong bytes", "leaks" and "busy loops" must stay at zero;
also count how often they were looked for: "bytes compared", "looks for leaks", "looks
for busy loops".
"""

import json
import os

VARIABLE = "AZC_FIGURES"
_held: int | None = None  # the fd of the file, where it was opened in advance


def count(what: str, number: float, unit: str = "") -> None:
    """Add to a count; the page shows the sum."""
    _keep(kind="count", what=what, value=number, unit=unit)


def worst(what: str, value: float, unit: str = "") -> None:
    """Note a value; the page shows the largest."""
    _keep(kind="worst", what=what, value=value, unit=unit)


def remark(what: str, text: str) -> None:
    """Add a line of text, such as which case was left out and why."""
    _keep(kind="remark", what=what, value=text, unit="")


def hold() -> None:
    """Open the file now, before the process becomes a user who may not open it."""
    global _held
    if _held is None and os.environ.get(VARIABLE):
        _held = _opened()


def _keep(**line: object) -> None:
    if not os.environ.get(VARIABLE):
        return
    # (One write to a file opened for appending, so processes may share it.)
    fd = _opened() if _held is None else _held
    try:
        os.write(fd, json.dumps(line).encode() + b"\n")
    finally:
        if fd != _held:
            os.close(fd)


def _opened() -> int:
    path = os.environ[VARIABLE]
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
