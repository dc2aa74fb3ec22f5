"""The errors of a stream, and the exception for each errno of one.

Closed means that this program closed it.  Broken means that something else did, and the
operating system's own error is the ``__cause__``.
"""

from __future__ import annotations

import errno
import os

import anyio


class StreamClosed(anyio.ClosedResourceError):
    """The stream was closed on this side, before or during the call."""


class StreamBroken(anyio.BrokenResourceError, ConnectionError):
    """The stream cannot go on: the peer left, or the operating system failed.

    ``bytes_sent`` of the message's ``total`` bytes had gone out; of a receive, had
    come.  For a stream to a child process ``returncode`` and ``stderr`` (its last
    lines) say why it left.
    """

    def __init__(self, message: str, bytes_sent: int = 0, total: int = 0) -> None:
        super().__init__(message)
        self.bytes_sent = bytes_sent
        self.total = total
        self.returncode: int | None = None
        self.stderr = ""

    def __str__(self) -> str:
        text = str(self.args[0])
        if self.returncode is not None:
            text += f"; the child exited with code {self.returncode}"
        if self.stderr:
            text += f"; its last words:\n{self.stderr}"
        return text


class IncompleteReceive(anyio.IncompleteRead):
    """The stream ended within the bytes that were to be received.

    The first ``received`` of the ``total`` bytes are in the caller's buffer; those of a
    record (see `ReceiveStream.batches`) are in ``rest``.
    """

    def __init__(self, received: int, total: int, rest: bytes = b"") -> None:
        Exception.__init__(
            self, f"the stream ended after {received:,} of {total:,} bytes"
        )
        self.received = received
        self.total = total
        self.rest = rest


BAD_MEMORY = "the buffer's memory cannot be used (a mapping beyond its file's end?)"

_CLOSED = {
    errno.ESHUTDOWN: "the stream is closed",
    errno.ECHILD: (
        "the stream belongs to the parent process, and this is a forked child: "
        "open a stream of its own here"
    ),
}

_BROKEN = {
    errno.EPIPE: "the reader is gone",
    errno.ECONNRESET: "the peer reset the connection",
    errno.ENOTCONN: "the peer has left",
    errno.EBADF: "the fd was closed, or given to another file, behind our back",
    errno.EFAULT: BAD_MEMORY,
    errno.ENOSPC: "the disk is full",
    errno.ENOMEM: "there was no memory for a copy of the unsent rest",
    errno.ECANCELED: (
        "a cancelled send left more unsent bytes than rescue_limit allows to copy"
    ),
}


def error_of(
    status: int,
    sent: int = 0,
    total: int = 0,
    *,
    broken: bool = True,
    at_least: bool = False,
    received: bool = False,
) -> Exception:
    """Return the exception for a ``-errno`` of the C helper.

    ``broken`` says that the stream itself failed, not only this call; ``at_least``
    that more than ``sent`` bytes may have gone out; ``received`` that they came in.
    """
    code = -status
    if code in _CLOSED:
        return StreamClosed(_CLOSED[code])
    if code == errno.EFAULT and not broken:
        done = "received" if received else "sent"
        return BufferError(f"{BAD_MEMORY}; nothing was {done}")
    if code == errno.ETOOMANYREFS and not broken:
        return OSError(code, "too many fds are in flight; nothing was sent")
    if code == errno.ENOMEM and not broken:
        return MemoryError("no memory to queue the operation")
    text = _BROKEN.get(code) or os.strerror(code)
    if total:
        count = f"at least {sent:,}" if at_least else f"{sent:,}"
        done = "were received" if received else "of this message were sent"
        text = f"{text}: {count} of {total:,} bytes {done}"
    return broken_by(code, text, sent, total)


def broken_by(code: int, text: str, sent: int = 0, total: int = 0) -> StreamBroken:
    error = StreamBroken(text, sent, total)
    error.errno, error.__cause__ = code, OSError(code, os.strerror(code))
    return error
