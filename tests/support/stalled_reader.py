"""A pipe's reader that stops inside of the kernel's copy, for as long as a test likes.

It reads fd 0 into memory whose pages it must provide itself (userfaultfd), and provides
none when the kernel touches them.  It prints "stalled", and waits for a line on the fd
in its argument.  Then it provides the memory, reads to the end, and prints the size.
"""

import ctypes
import errno
import fcntl
import mmap
import os
import select
import struct
import sys
import threading

SYS_USERFAULTFD = 323  # on x86-64
SIZE = 4 << 20
_API = 0xC018AA3F
_REGISTER = 0xC020AA00
_ZEROPAGE = 0xC020AA04


def watched(memory: mmap.mmap) -> tuple[int, int]:
    """Register the memory; return its address, and an fd that reports a first touch."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.syscall(SYS_USERFAULTFD, os.O_CLOEXEC | os.O_NONBLOCK)
    if fd < 0:
        raise OSError(ctypes.get_errno(), "no userfaultfd")
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    fcntl.ioctl(fd, _API, struct.pack("QQQ", 0xAA, 0, 0))
    fcntl.ioctl(fd, _REGISTER, struct.pack("QQQQ", address, SIZE, 1, 0))
    return address, fd


def main() -> None:
    memory = mmap.mmap(-1, SIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        address, fault = watched(memory)
    except OSError as error:
        print("refused", errno.errorcode.get(error.errno or 0), flush=True)
        return
    total = [0]

    def read() -> None:
        while n := os.readv(0, [memory]):
            total[0] += n

    reading = threading.Thread(target=read, daemon=True)
    reading.start()
    select.select([fault], [], [])
    print("stalled", flush=True)
    os.read(int(sys.argv[1]), 1)
    fcntl.ioctl(fault, _ZEROPAGE, struct.pack("QQQq", address, SIZE, 0, 0))
    reading.join()
    print(total[0], flush=True)


if __name__ == "__main__":
    main()
