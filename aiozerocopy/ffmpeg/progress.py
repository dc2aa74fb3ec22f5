"""What FFmpeg reports while it works, and a watchdog for one that hangs."""

from __future__ import annotations

import math
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiozerocopy.process import Process

REPORT_BYTES = 4 << 10  # a report has about 300 bytes, more with many streams


@dataclass(frozen=True)
class Status:
    """FFmpeg's last report: two a second, and one at the end."""

    frames: int = 0  # that it has encoded
    fps: float = 0.0
    bitrate: float | None = None  # bits a second
    size: int | None = None  # bytes of output
    out_time: float = 0.0  # seconds of output
    duplicated: int = 0
    dropped: int = 0
    speed: float | None = None  # seconds of output in a second
    ended: bool = False  # it was the last report


def parse(text: str) -> Status:
    """The last whole report in FFmpeg's ``-progress`` output."""
    report: dict[str, str] = {}
    fields: dict[str, str] = {}
    for line in text.splitlines(keepends=True):
        name, _, value = line.partition("=")
        fields[name] = value.strip()
        if name == "progress" and line.endswith("\n"):
            report, fields = fields, {}
    return Status(
        frames=_whole(report.get("frame")) or 0,
        fps=_number(report.get("fps")) or 0.0,
        bitrate=_bits(report.get("bitrate")),
        size=_whole(report.get("total_size")),
        out_time=max(_number(report.get("out_time_us")) or 0.0, 0.0) / 1e6,
        duplicated=_whole(report.get("dup_frames")) or 0,
        dropped=_whole(report.get("drop_frames")) or 0,
        speed=_number(report.get("speed")),
        ended=report.get("progress") == "end",
    )


def _number(text: str | None) -> float | None:
    """A number, if it is one: FFmpeg says "N/A" and "inf" too."""
    try:
        value = float((text or "").removesuffix("x"))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _whole(text: str | None) -> int | None:
    value = _number(text)
    return None if value is None else int(value)


def _bits(text: str | None) -> float | None:
    value = _number((text or "").removesuffix("kbits/s"))
    return None if value is None else value * 1000


class Watchdog:
    """Kills a child that has done nothing for ``timeout`` seconds while we waited.

    A thread, so it works even if the event loop is blocked, and costs a send nothing.
    ``is_awaited`` tells whether anything waits for the child; what ``signs`` returns
    changes while the child works.
    """

    def __init__(
        self,
        process: Process,
        timeout: float,
        is_awaited: Callable[[], bool],
        signs: Callable[[], object],
    ) -> None:
        self.barked: bool = False
        self._process = process
        self.timeout = timeout
        self._is_awaited = is_awaited
        self._signs = signs
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name="aiozerocopy watchdog", daemon=True
        )
        self._thread.start()

    def _run(self) -> None:
        looked, silent = time.monotonic(), 0.0
        before, busy = self._signs(), self._cpu_seconds()
        while not self._stop.wait(self.timeout / 8):
            now, signs, cpu = time.monotonic(), self._signs(), self._cpu_seconds()
            # If this thread did not run for long, the child may not have run either.
            silent += min(now - looked, self.timeout / 4)
            looked = now
            # A child that waits for input still uses a little CPU time, by polling;
            # one that takes minutes to encode a frame uses much.
            works = signs != before or cpu - busy > self.timeout / 100
            if works or not self._is_awaited():
                silent, before, busy = 0.0, signs, cpu
            elif silent >= self.timeout:
                self.barked = True
                self._process.kill()
                return

    def _cpu_seconds(self) -> float:
        """The child's CPU time so far; 0 where that is not known."""
        try:
            stat = Path(f"/proc/{self._process.pid}/stat").read_text()
            fields = stat.rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        except (OSError, ValueError, IndexError):
            return 0.0

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        self._thread.join()
