"""What tests have counted, kept for the page that shows it (proof/).

A test says ``count("kills of a reader", 20)`` and the like wherever it stands.  If
AZC_FIGURES names a file, each call appends a line of JSON to it; else nothing happens.

Bytes have the unit "B".  "wrong bytes", "leaks" and "busy loops" must stay at zero; say
how often they were looked for: "bytes compared", "looks for leaks", "looks for busy
loops".
"""

import json
import os

VARIABLE = "AZC_FIGURES"
_held: int | None = None  # the file, where it has to be open already


def count(what: str, number: float, unit: str = "") -> None:
    """So many more of it; the page shows the sum."""
    _keep(kind="count", what=what, value=number, unit=unit)


def worst(what: str, value: float, unit: str = "") -> None:
    """The page shows the largest of all."""
    _keep(kind="worst", what=what, value=value, unit=unit)


def remark(what: str, text: str) -> None:
    """A line of text, as which case was left out here and why."""
    _keep(kind="remark", what=what, value=text, unit="")


def hold() -> None:
    """Before a process becomes somebody else, who may not open the file."""
    global _held
    if _held is None and os.environ.get(VARIABLE):
        _held = _opened()


def _keep(**line: object) -> None:
    if not os.environ.get(VARIABLE):
        return
    # (One write of a file that is open to append: processes may share it.)
    fd = _opened() if _held is None else _held
    try:
        os.write(fd, json.dumps(line).encode() + b"\n")
    finally:
        if fd != _held:
            os.close(fd)


def _opened() -> int:
    path = os.environ[VARIABLE]
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
