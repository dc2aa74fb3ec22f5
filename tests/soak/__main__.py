"""Run a soak, watch its processes, and report what was found."""

import argparse
import asyncio
import json
import os
import signal
import socket
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import figures

from .samples import Sample, grown

SENDERS = ("asyncio", "uvloop")
RECEIVERS = ("plain", "ours")
PATIENCE = 90.0  # seconds for all processes to end after the last second
# While nobody receives, senders must wait.  A process that uses more than this share of
# a second is busy, if it still does so after a while.
IDLE = 0.15
SETTLES = 30.0
WORST = (
    ("memory", 1e-6, "MB"),
    ("fds", 1, ""),
    ("threads", 1, ""),
    ("late", 1e3, "ms"),
)


@dataclass
class Child:
    """One of the processes, and its output."""

    name: str
    process: asyncio.subprocess.Process
    samples: list[Sample] = field(default_factory=list)
    end: dict[str, int] = field(default_factory=dict)
    wrong: str = ""

    async def listen(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            said = json.loads(line)
            if "sample" in said:
                self.samples.append(said["sample"])
            self.end = said.get("end", self.end)
            self.wrong = said.get("wrong", self.wrong)
        if status := await self.process.wait():
            raise RuntimeError(f"{self.name} ended with status {status}")

    def seconds(self) -> float:
        """Return how many seconds of a processor it has used so far."""
        with open(f"/proc/{self.process.pid}/stat") as file:
            parts = file.read().rpartition(")")[2].split()
        return (int(parts[11]) + int(parts[12])) / os.sysconf("SC_CLK_TCK")


async def start(name: str, words: list[str], ends: list[socket.socket]) -> Child:
    fds = [end.fileno() for end in ends]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", f"soak.{words[0]}", *words[1:], *map(str, fds)),
        cwd=Path(__file__).parents[1],
        stdout=asyncio.subprocess.PIPE,
        pass_fds=fds,
    )
    for end in ends:
        end.close()
    return Child(name, process)


class Soak:
    """The four processes, from their start to the verdict."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.children: list[Child] = []
        self.found: list[str] = []
        self.looks = self.busy = 0

    async def run(self) -> None:
        began, options = time.time(), self.options
        pairs = {
            (s, r): socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            for s in SENDERS
            for r in RECEIVERS
        }
        try:
            for r in RECEIVERS:
                ends = [pairs[s, r][1] for s in SENDERS]
                self.children.append(await start(r, ["receiver", r], ends))
            for n, s in enumerate(SENDERS):
                numbers = (n, options.streams // 2, options.seconds, options.seed)
                ends = [pairs[s, r][0] for r in RECEIVERS]
                words = ["sender", s, *map(str, numbers)]
                self.children.append(await start(s, words, ends))
            await self.watch()
        finally:
            self.signal(SENDERS + RECEIVERS, signal.SIGKILL)
            for child in self.children:
                await child.process.wait()
        self.judge(began)

    async def watch(self) -> None:
        listening = [asyncio.create_task(child.listen()) for child in self.children]
        stalls = asyncio.create_task(self.stalls())
        limit = self.options.seconds + PATIENCE
        try:
            done, left = await asyncio.wait(
                listening, timeout=limit, return_when=asyncio.FIRST_EXCEPTION
            )
            # (When one fails, the others lack a peer.)
            failed = [str(task.exception()) for task in done if task.exception()]
            if left and not failed:
                names = [c.name for c in self.children if c.process.returncode is None]
                failed = [f"hang: {names} have not ended"]
            self.found += failed
        finally:
            for task in (stalls, *listening):
                task.cancel()
            await asyncio.gather(stalls, *listening, return_exceptions=True)

    def signal(self, names: tuple[str, ...], number: signal.Signals) -> None:
        for child in self.children:
            if child.name in names and child.process.returncode is None:
                child.process.send_signal(number)

    # -- busy loops -----------------------------------------------------------------

    async def stalls(self) -> None:
        """Now and then, stop the receivers for a while."""
        every = min(60.0, self.options.seconds / 2)
        for _ in range(int(self.options.seconds / every - 0.5)):
            await asyncio.sleep(every)
            self.signal(RECEIVERS, signal.SIGSTOP)
            try:
                busy = await self.settle()
            finally:
                self.signal(RECEIVERS, signal.SIGCONT)
            self.looks += len(SENDERS)
            self.busy += len(busy)
            self.found += [f"busy loop: {name} while nobody receives" for name in busy]

    async def settle(self) -> list[str]:
        """Return the names of senders that do not come to rest."""
        busy = [child for child in self.children if child.name in SENDERS]
        deadline = time.monotonic() + SETTLES
        while busy and time.monotonic() < deadline:
            before = [child.seconds() for child in busy]
            await asyncio.sleep(1)
            used = [child.seconds() for child in busy]
            pairs = zip(busy, before, used, strict=True)
            busy = [child for child, then, now in pairs if now - then > IDLE]
        return [child.name for child in busy]

    # -- the verdict ------------------------------------------------------------------

    def judge(self, began: float) -> None:
        seconds, over = time.time() - began, began + self.options.seconds
        for child in self.children:
            if child.wrong:
                self.found.append(f"wrong bytes: {child.name}: {child.wrong}")
            # (While the last streams end, all figures fall.)
            busy = [sample for sample in child.samples if sample["at"] < over]
            lines = grown(busy) if not self.found else []
            self.found += [f"{child.name}: {line}" for line in lines]
        receivers, senders = self.children[:2], self.children[2:]

        def total(children: list[Child], what: str) -> int:
            return sum(child.end.get(what, 0) for child in children)

        arrived = total(receivers, "bytes")
        figures.count("bytes compared", arrived, "B")
        figures.count("wrong bytes", sum(bool(child.wrong) for child in receivers))
        figures.count("looks for busy loops", self.looks)
        figures.count("busy loops", self.busy)
        for what in ("messages", "streams", "cancels", "aborts"):
            figures.count(what, total(senders, what))
        figures.count("streams whose reader left", total(receivers, "left"))
        figures.count("cancelled without a trace", total(receivers, "missing"))
        for child in self.children:
            for what, scale, unit in WORST if child.samples else ():
                worst = scale * max(sample[what] for sample in child.samples)
                figures.worst(f"{what}: {child.name}", worst, unit)
        print(f"{arrived / 1e9:.1f} GB in {seconds:.0f} s, and compared")
        if arrived < self.options.gigabytes * 1e9:
            self.found.append(f"only {arrived / 1e9:.1f} GB came")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--hours", type=float, help="instead of --seconds")
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument(
        "--gigabytes", type=float, default=0, help="how much must arrive, at least"
    )
    options = parser.parse_args()
    if options.hours is not None:
        options.seconds = 3600 * options.hours
    print(f"seed {options.seed}")
    soak = Soak(options)
    asyncio.run(soak.run())
    for line in soak.found:
        print(line)
    return 1 if soak.found else 0


if __name__ == "__main__":
    sys.exit(main())
