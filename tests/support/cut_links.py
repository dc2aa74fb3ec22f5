"""Two hosts, as network namespaces of their own, and a link that can be cut or shaped.

A socket belongs for good to the namespace in which its thread made it; an accepted
socket belongs to the listening socket's namespace.
"""

import contextlib
import ctypes
import fcntl
import os
import struct
import subprocess
from collections.abc import Callable, Iterator

import pytest

SERVER, CLIENT = "10.77.0.1", "10.77.0.2"
_NEW_NETWORK = 0x40000000
_TUNSETIFF = 0x400454CA
_TUN = 0x1001  # without a header before each packet


class Hosts:
    """The two hosts.  This thread begins on the server; ``go_to`` moves it."""

    def __init__(self, names: dict[str, str]) -> None:
        self._names = names

    def go_to(self, host: str) -> None:
        """From now on, this thread makes its sockets on that host."""
        _enter(f"/run/netns/{self._names[host]}")

    def cut(self) -> None:
        """Take the link down; neither side is notified."""
        _ip(f"-n {self._names[CLIENT]} link set wire down")

    def open_tun(self, host: str) -> int:
        """Open a host's end of a `tun` link, and leave this thread on the server."""
        self.go_to(host)
        try:
            fd = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
            fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH", b"wire", _TUN))
        finally:
            self.go_to(SERVER)
        return fd

    def set(self, host: str, setting: str) -> None:
        """Do `sysctl -w` on that host."""
        command = f"netns exec {self._names[host]} sysctl -qw {setting}"
        _ip(command)


def veth(one: str, other: str) -> None:
    """Lay a link whose packets the kernel carries."""
    _ip(f"-n {one} link add wire type veth peer name wire netns {other}")


def tun(one: str, other: str) -> None:
    """Lay a link; the program that opens both ends (`open_tun`) carries the packets."""
    for name in (one, other):
        _ip(f"-n {name} tuntap add dev wire mode tun")


@contextlib.contextmanager
def two_hosts(lay: Callable[[str, str], None] = veth) -> Iterator[Hosts]:
    """Make two hosts and, by ``lay``, their link; skip where this is not permitted."""
    names = {host: f"azc-{os.getpid()}-{host[-1]}" for host in (SERVER, CLIENT)}
    with contextlib.ExitStack() as undo:
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        undo.callback(os.close, home)
        try:
            for name in names.values():
                _ip(f"netns add {name}")
                undo.callback(_ip, f"netns del {name}")
            one, other = names.values()
            lay(one, other)
            for host, name in names.items():
                _ip(f"-n {name} addr add {host}/24 dev wire")
                _ip(f"-n {name} link set wire up")
                _ip(f"-n {name} link set lo up")
            undo.callback(_enter, f"/proc/self/fd/{home}")
            _enter(f"/run/netns/{one}")
        except FileNotFoundError:
            pytest.skip("iproute2 is not installed")
        except (OSError, subprocess.CalledProcessError) as error:
            why = getattr(error, "stderr", None) or error
            pytest.skip(f"no network namespaces here: {why}")
        yield Hosts(names)


def _ip(arguments: str) -> None:
    command = ["ip", *arguments.split()]
    subprocess.run(command, check=True, capture_output=True, text=True)


def _enter(path: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.setns(fd, _NEW_NETWORK):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    finally:
        os.close(fd)
