"""Bytes that are only passed on: a file to TCP, pipe to pipe, FFmpeg's output to TCP.

The source is the relay's standard input: a file, or a pipe that another process fills
with as many bytes as are to be moved.  The CPU time is that of the relay alone.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiozerocopy._core.pipe_size import PIPE_SIZE
from aiozerocopy.bench import network
from aiozerocopy.bench.feeding import (
    Crew,
    Feeder,
    Lab,
    Task,
    check_sink,
    pipe_link,
    tcp_link,
)
from aiozerocopy.bench.racing import Comparison, Headline, Options, Race, Work
from aiozerocopy.bench.relaying import Job
from aiozerocopy.bench.video import ffmpegs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

SIDE = 1024  # pixels of a grey picture: FFmpeg's is a message
MIB = SIDE * SIDE
C_LOOP, RECEIVE = "C splice loop", "receive and send, asyncio"
OURS = "relay, asyncio"


def races(lab: Lab, options: Options) -> Iterator[Race]:
    to_pipe = pipe_link(PIPE_SIZE)
    yield race("file to TCP", 1024, options, Source(lab), tcp_link, ["sendfile"])
    yield race("pipe to pipe", 2048, options, Feed(lab), to_pipe)
    [ffmpeg, *_] = ffmpegs(options).values()
    # (the summary makes do with the first two)
    last = race("FFmpeg to TCP", 512, options, FFmpeg(lab, ffmpeg), tcp_link)
    yield replace(last, headlines=())


def race(
    title: str,
    messages: int,
    options: Options,
    source: Source,
    link: Callable[[], tuple[int, int]],
    others: Sequence[str] = (),
) -> Race:
    relayer = partial(Relayer, lab=source.lab, link=link, source=source)
    contestants = [
        relayer(OURS, command=in_python("relay")),
        relayer("relay, uvloop", command=in_python("relay", "uvloop"), needs=UVLOOP),
        relayer(C_LOOP, command=in_c),
        *(relayer(f"loop.{way}", command=in_python(way)) for way in others),
        relayer("shutil.copyfileobj", command=in_python("copyfileobj")),
        relayer(RECEIVE, command=in_python("receive_and_send")),
        relayer("anyio receive and send", command=in_python("anyio_receive_and_send")),
    ]
    names = [one.name for one in contestants[2:]]
    comparisons = [Comparison(OURS, [name]) for name in names]
    messages //= 64 if options.quick else 1
    work = Work(MIB, messages, warm=4, buffers=4)
    headlines = [
        Headline(
            OURS,
            [rival],
            work=f"{title}: relay",
            against=against,
            front=rival == "loop.sendfile",
        )
        for rival, against in (
            (C_LOOP, "C loop of sendfile" if others else "C loop of splice"),
            ("loop.sendfile", ""),
            (RECEIVE, "receive and send"),
        )
        if rival in names
    ]
    return Race(title, work, contestants, comparisons, headlines=headlines, brief=512)


UVLOOP = ("uvloop",)


# ---- where the bytes come from ------------------------------------------------------


@dataclass(frozen=True)
class Source:
    """A file."""

    lab: Lab

    def open(self, crew: Crew, work: Work) -> int:
        """An fd to read from; what fills it, if it is a pipe, is of the crew."""
        return os.open(self.file(work), os.O_RDONLY)

    def file(self, work: Work) -> Path:
        """The pattern, over and over, and no byte more: some copy a whole file."""
        path = self.lab.path / f"source-{work.warm + work.messages}"
        if not path.exists():
            data = Path(self.lab.pattern(work)).read_bytes()
            with path.open("wb") as file:
                for _ in range((work.warm + work.messages) // work.buffers):
                    file.write(data)
        return path


@dataclass(frozen=True)
class Feed(Source):
    """A C loop of writes, which fills a pipe."""

    def open(self, crew: Crew, work: Work) -> int:
        writer, reader = pipe_link(PIPE_SIZE)()
        numbers = (writer, work.size, work.warm, work.messages, 0)
        feed = [self.lab.program("feed"), *map(str, numbers), self.lab.pattern(work)]
        try:
            crew.start(feed, keep=(writer,), stdout=subprocess.DEVNULL)
        finally:
            os.close(writer)
        return reader


@dataclass(frozen=True)
class FFmpeg(Source):
    """FFmpeg, which copies raw pictures from the file to its standard output."""

    path: str

    def open(self, crew: Crew, work: Work) -> int:
        writer, reader = pipe_link(PIPE_SIZE)()
        pictures = ["-f", "rawvideo", "-pix_fmt", "gray", "-s", f"{SIDE}x{SIDE}"]
        count = ["-frames:v", str(work.warm + work.messages)]
        ffmpeg = [self.path, "-v", "error", "-nostdin", *pictures]
        ffmpeg += ["-i", str(self.file(work)), *count, "-c", "copy"]
        try:
            crew.start([*ffmpeg, "-f", "rawvideo", "pipe:1"], stdout=writer)
        finally:
            os.close(writer)
        return reader


# ---- contestants --------------------------------------------------------------------


@dataclass(frozen=True)
class Relayer(Feeder):
    """A process that moves what its source has to the C sink."""

    source: Source = field(kw_only=True)

    def count_calls(self, work: Work) -> float | None:
        """None: they are as many as the pipe is found with more or less in it."""
        return None

    def _feed(
        self, work: Work, check: bool, tracer: Sequence[str] = ()
    ) -> dict[str, dict[str, Any]]:
        pattern = self.lab.pattern(work)
        warm, total = work.size * work.warm, work.size * (work.warm + work.messages)
        sink = [self.lab.program("sink"), str(warm), str(total), str(self.read_size)]
        sink += [pattern] if check else []
        with Crew(self.lab.path / "stderr") as crew, contextlib.ExitStack() as fds:
            assert self.link is not None
            fd, sink_fd = self.link()
            fds.callback(os.close, fd)
            fds.callback(os.close, sink_fd)
            command = self.command(self.lab, Task(work, fd, pattern, sink))
            crew.start(sink, stdin=sink_fd)
            source = self.source.open(crew, work)
            fds.callback(os.close, source)
            crew.start([*tracer, *command], stdin=source, keep=(fd,))
            fds.close()
            told = crew.finish()
        check_sink(self.name, told["sink"], total)
        return told


def total_of(task: Task) -> int:
    return task.work.size * (task.work.warm + task.work.messages)


def in_c(lab: Lab, task: Task) -> list[str]:
    """The loop that calls sendfile or splice."""
    return [lab.program("splice"), str(task.fd), str(total_of(task))]


def in_python(way: str, loop: str = "asyncio") -> Callable[[Lab, Task], list[str]]:
    """A function of `relaying`, on that event loop."""

    def command(lab: Lab, task: Task) -> list[str]:
        job = Job(way, loop, task.fd, total_of(task))
        return network.command("relaying", asdict(job))

    return command
