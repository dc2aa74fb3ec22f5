"""Has the peer hung up?  Asked of the kernel, and without receiving anything.

Dask keeps comms for later, and asks ``closed()`` before it takes one of them.
"""

from __future__ import annotations

import fcntl
import select
import termios
from array import array

# macOS says POLLHUP where Linux says POLLRDHUP.
_GONE = select.POLLHUP | select.POLLERR | getattr(select, "POLLRDHUP", 0)


def has_hung_up(fd: int, goodbye: int = 0) -> bool:
    """Will nothing more come over this socket but ``goodbye`` bytes at most?"""
    poll = select.poll()
    poll.register(fd, _GONE)
    if not poll.poll(0):
        return False
    unread = array("i", [0])
    try:
        fcntl.ioctl(fd, termios.FIONREAD, unread)
    except OSError:  # another thread has closed it
        return True
    return unread[0] <= goodbye
