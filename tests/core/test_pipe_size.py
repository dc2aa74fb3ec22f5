"""How much a pipe holds: as much as is wanted, or as the system allows."""

from __future__ import annotations

import errno
import fcntl
import os
from typing import TYPE_CHECKING

import pytest
from links import linux_only

from aiozerocopy._core.pipe_size import F_GETPIPE_SZ, capacity_of, enlarge_pipe

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = linux_only

PAGE = os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def pipe() -> Iterator[int]:
    fds = os.pipe()
    yield fds[1]
    for fd in fds:
        os.close(fd)


def test_what_is_no_pipe_has_no_size(pipe: int) -> None:
    assert capacity_of(pipe) == 16 * PAGE
    with open(os.devnull) as file:
        assert capacity_of(file.fileno()) is None
        enlarge_pipe(file.fileno(), 1 << 20)
    assert capacity_of(-1) is None


def test_it_only_grows(pipe: int) -> None:
    for wanted, holds in ((32, 32), (8, 32), (32, 32), (33, 64)):
        enlarge_pipe(pipe, wanted * PAGE)
        assert capacity_of(pipe) == holds * PAGE


@pytest.mark.parametrize("allowed", [1 << 30, 1 << 28, 100_000, 0])
def test_as_the_system_allows(allowed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def fcntl_of(_fd: int, what: int, size: int = 0) -> int:
        if what == F_GETPIPE_SZ:
            return 1 << 16
        asked.append(size)
        if size > allowed:
            raise PermissionError(errno.EPERM, "above the limit")
        return size

    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "fcntl", fcntl_of)
        enlarge_pipe(7, 1 << 40)  # more than the kernel's own number holds
    halves = [(1 << 30) >> n for n in range(30)]
    last = next((n for n, size in enumerate(halves) if size <= allowed), 13)
    assert asked == [size for size in halves[: last + 1] if size > 1 << 16]
