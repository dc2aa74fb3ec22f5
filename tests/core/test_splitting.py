"""One split, by hand: whose fds are whose, how patient it is, and a fork."""

from __future__ import annotations

import errno
import math
import os
from typing import TYPE_CHECKING, Any

import pytest
from answering import Answering
from links import linux_only

from aiozerocopy import StreamClosed
from aiozerocopy._core import fork_and_exit, splitting
from aiozerocopy._core.splitting import Split

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.anyio, linux_only]

SMALL = 1 << 16  # bytes that a pipe holds


class Source:
    """A pipe of which the read end is to be a split's."""

    def __init__(self) -> None:
        self.read_fd, self.fd = os.pipe()


@pytest.fixture
def source() -> Iterator[Source]:
    made = Source()
    yield made
    os.close(made.fd)


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


class TestBegins:
    @pytest.mark.parametrize("with_file", [False, True])
    @pytest.mark.parametrize("what", ["azc_split_open", "open"])
    def test_or_closes_what_it_was_given(
        self,
        source: Source,
        with_file: bool,
        what: str,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Whatever it is that stops it."""
        path = tmp_path / "film"
        file = os.open(path, os.O_CREAT | os.O_WRONLY) if with_file else -1

        def interrupt(*_: object) -> Any:
            raise KeyboardInterrupt

        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            if what == "open":
                patched.setattr(os, "open", interrupt)
            else:
                patched.setattr(splitting, "lib", Answering(what, interrupt))
            Split(source.read_fd, file, 1, 1)
        assert not is_open(source.read_fd)
        assert file == -1 or not is_open(file)

    @pytest.mark.parametrize(
        ("patience", "us"),
        [(0, 0), (2, 2_000_000), (math.inf, 2**64 - 1), (1e300, 2**64 - 1)],
    )
    def test_how_patient_it_is(
        self,
        source: Source,
        patience: float,
        us: int,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        told: list[int] = []

        def note(*arguments: int) -> int:
            told.append(arguments[3])
            return -errno.EPERM

        monkeypatch.setattr(splitting, "lib", Answering("azc_split_open", note))
        with pytest.raises(PermissionError):
            Split(source.read_fd, -1, patience, 1)
        assert told == [us]


class TestJoins:
    async def test_a_forked_child_does_not(
        self, source: Source, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        split = Split(source.read_fd, -1, math.inf, 1)
        split.start()
        reader = split.join(SMALL)
        assert (split.inherited, reader.ended) == (False, None)
        with monkeypatch.context() as patched:
            following = fork_and_exit.generation + 1
            patched.setattr(fork_and_exit, "generation", following)
            assert (split.inherited, reader.ended) == (True, "stopped")
            with pytest.raises(StreamClosed, match="parent"):
                split.join(SMALL)
        await reader.aclose()
        split.stop()
        await split.wait()
