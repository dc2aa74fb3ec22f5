"""What an error is, and what it says: of each errno that C returns."""

from __future__ import annotations

import errno
import os

import pytest

from aiozerocopy import IncompleteReceive, StreamBroken, StreamClosed
from aiozerocopy._core.errors import error_of

UNKNOWN = errno.EXDEV  # of which nothing better is known than what the system says


def test_how_a_child_ended() -> None:
    error = StreamBroken("gone", 3, 5)
    assert str(error) == "gone"
    assert (error.bytes_sent, error.total) == (3, 5)
    error.returncode = 0
    assert str(error) == "gone; the child exited with code 0"
    error.stderr = "no\nfilm"
    assert str(error).endswith("code 0; its last words:\nno\nfilm")
    error.args = ("the sink broke: gone", "more")
    assert str(error).startswith("the sink broke: gone;")


def test_an_incomplete_receive() -> None:
    error = IncompleteReceive(1000, 5000, b"ab")
    assert str(error) == "the stream ended after 1,000 of 5,000 bytes"
    assert (error.received, error.total, error.rest) == (1000, 5000, b"ab")


@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize(
    ("code", "words"),
    [(errno.ESHUTDOWN, "the stream is closed"), (errno.ECHILD, "forked child")],
)
def test_closed(code: int, words: str, broken: bool) -> None:
    error = error_of(-code, 1, 2, broken=broken)
    assert type(error) is StreamClosed
    assert words in str(error)


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (errno.EFAULT, BufferError, "cannot be read"),
        (errno.ETOOMANYREFS, OSError, "too many fds"),
        (errno.ENOMEM, MemoryError, "no memory to queue"),
    ],
)
def test_only_the_call_failed(code: int, kind: type[Exception], words: str) -> None:
    error = error_of(-code, 0, 5, broken=False)
    assert type(error) is kind
    assert words in str(error)
    assert type(error_of(-code, 0, 5)) is StreamBroken


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (errno.EPIPE, "the reader is gone"),
        (errno.ECONNRESET, "reset"),
        (errno.EBADF, "behind our back"),
        (errno.ENOSPC, "the disk is full"),
        (errno.ECANCELED, "rescue_limit"),
        (UNKNOWN, os.strerror(UNKNOWN)),
    ],
)
@pytest.mark.parametrize("broken", [False, True])
def test_broken(code: int, words: str, broken: bool) -> None:
    error = error_of(-code, 3000, 5000, broken=broken)
    assert isinstance(error, StreamBroken)
    assert words in str(error)
    assert str(error).endswith(": 3,000 of 5,000 bytes of this message were sent")
    assert (error.errno, error.bytes_sent, error.total) == (code, 3000, 5000)
    assert isinstance(error.__cause__, OSError)
    assert error.__cause__.errno == code


def test_what_is_not_known_exactly() -> None:
    assert "at least 3 of 5 bytes" in str(error_of(-errno.EPIPE, 3, 5, at_least=True))
    assert str(error_of(-errno.EPIPE)) == "the reader is gone"
