"""One split, step by step: whose fds are whose, who joins, and how it ends."""

from __future__ import annotations

import errno
import math
import os
from typing import TYPE_CHECKING, Any

import pytest
from answering import Answering
from links import linux_only, until

import aiozerocopy as azc
from aiozerocopy import StreamClosed
from aiozerocopy._core import fork_and_exit, splitting
from aiozerocopy._core.binding import ffi
from aiozerocopy._core.pipe_size import PIPE_SIZE, capacity_of
from aiozerocopy._core.splitting import Split, SplitterReader

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = [pytest.mark.anyio, linux_only]

SMALL = 1 << 16  # bytes that a pipe holds


class Source:
    """A pipe of which the read end is to be a split's."""

    def __init__(self) -> None:
        self.read_fd, self.fd = os.pipe()
        self.splits: list[Split] = []
        self.readers: list[SplitterReader] = []

    def split(self, patience: float = math.inf) -> Split:
        """It runs."""
        self.splits.append(Split(self.read_fd, -1, patience, 1))
        return self.splits[0]

    def end(self) -> None:
        fd, self.fd = self.fd, -1
        os.close(fd)

    async def close(self) -> None:
        os.close(self.read_fd)
        if self.fd >= 0:
            self.end()
        for split in self.splits:
            split.stop()
            await split.wait()
            split.close()
        for reader in self.readers:
            reader.abort()


@pytest.fixture
async def source() -> AsyncIterator[Source]:
    made = Source()
    yield made
    await made.close()


async def until_begun(split: Split, n: int) -> None:
    """Let others run until so many readers have begun."""
    await until(lambda: split.state().readers + split.state().dropped >= n)


async def content(reader: azc.ReceiveStream) -> bytes:
    data = bytearray()
    async with reader:
        async for piece in reader:
            data += piece
    return bytes(data)


class TestBegins:
    @pytest.mark.parametrize("with_file", [False, True])
    async def test_or_leaves_no_trace(
        self,
        source: Source,
        with_file: bool,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Whatever it is that stops it.  (conftest looks for what is left.)"""

        def interrupt(*_: object) -> Any:
            raise KeyboardInterrupt

        answering = Answering("azc_split_open", interrupt)
        monkeypatch.setattr(splitting, "lib", answering)
        with (tmp_path / "film").open("wb") as file:
            fd = file.fileno() if with_file else -1
            with pytest.raises(KeyboardInterrupt):
                Split(source.read_fd, fd, 1, 1)
            assert file.write(b"it is still ours") == 16

    async def test_if_there_is_memory(
        self, source: Source, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        answering = Answering("azc_split_open", -errno.ENOMEM)
        monkeypatch.setattr(splitting, "lib", answering)
        with pytest.raises(OSError, match=os.strerror(errno.ENOMEM)):
            Split(source.read_fd, -1, 1, 1)

    @pytest.mark.parametrize(
        ("patience", "us"),
        [(0, 0), (2, 2_000_000), (math.inf, 2**64 - 1), (1e300, 2**64 - 1)],
    )
    async def test_how_patient_it_is(
        self,
        source: Source,
        patience: float,
        us: int,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        told: list[int] = []

        def note(*arguments: Any) -> int:
            told.append(arguments[0].patience_us)
            return -errno.EPERM

        monkeypatch.setattr(splitting, "lib", Answering("azc_split_open", note))
        with pytest.raises(PermissionError):
            Split(source.read_fd, -1, patience, 1)
        assert told == [us]


class TestJoins:
    @pytest.mark.parametrize("size", [SMALL, PIPE_SIZE])
    async def test_a_pipe_of_that_size(self, source: Source, size: int) -> None:
        """It does not block, and is the smallest if that is enough."""
        async with source.split().join(size) as reader:
            assert capacity_of(reader.fileno()) == size
            assert not os.get_blocking(reader.fileno())

    @pytest.mark.parametrize("code", [errno.ESHUTDOWN, errno.ENOMEM])
    async def test_it_cannot(
        self, source: Source, code: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Then nothing is left open."""
        split = source.split()
        monkeypatch.setattr(splitting, "lib", Answering("azc_split_join", -code))
        if code == errno.ESHUTDOWN:
            with pytest.raises(StreamClosed, match="come to its end"):
                split.join(SMALL)
        else:
            with pytest.raises(OSError, match=os.strerror(code)):
                split.join(SMALL)

    async def test_a_forked_child_does_not(
        self, source: Source, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        split = source.split()
        reader = split.join(SMALL)
        assert (split.inherited, reader.ended) == (False, None)
        with monkeypatch.context() as patched:
            following = fork_and_exit.generation + 1
            patched.setattr(fork_and_exit, "generation", following)
            assert (split.inherited, reader.ended) == (True, "stopped")
            with pytest.raises(StreamClosed, match="parent"):
                split.join(SMALL)
        await reader.aclose()


class TestEnds:
    @pytest.mark.parametrize("patience", [2**64 / 1e9, 1e300, math.inf])
    async def test_not_for_who_is_slow_in_the_end(
        self, source: Source, patience: float
    ) -> None:
        """However long a time it was promised."""
        split = source.split(patience)
        reader = split.join(SMALL)
        await until(lambda: split.state().readers)
        os.write(source.fd, bytes(SMALL))
        await until(lambda: split.state().taken == SMALL)
        os.write(source.fd, b"x")
        for n in (2, 3):  # (before the third begins, it has looked who is slow)
            source.readers.append(split.join(SMALL))
            await until_begun(split, n)
        assert split.state().dropped == 0
        source.end()
        assert await content(reader) == bytes(SMALL) + b"x"
        assert reader.ended == "end"

    async def test_what_nobody_was_given(
        self, source: Source, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        kept = ffi.from_buffer(b"abcdef")

        def get(_: Any, state: Any) -> int:
            state.bytes, state.rest = kept, 3
            return 0

        split = source.split()
        monkeypatch.setattr(splitting, "lib", Answering("azc_split_get", get))
        assert split.rest() == b"abc"
