"""The probes of doctor: each looks at one thing that this machine may offer.

A probe returns what it has found, or raises.  It changes nothing on the machine, and
imports no optional package into this process.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import importlib.util
import mmap
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import anyio

from aiozerocopy._core import extras
from aiozerocopy._core.pipe_size import F_GETPIPE_SZ, F_SETPIPE_SZ
from aiozerocopy.ffmpeg.codecs import hardware_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Seen: TypeAlias = "str | Lack | None"

Availability = Literal["ok", "limited", "missing", "unknown"]

PATIENCE = 20.0  # seconds until a program must have ended
MEBIBYTE = 1 << 20
SPLICE_F_NONBLOCK = 2
# Python lacks these names, or has them only if its own build machine did.
RWF_NOWAIT = 0x8
RWF_NOSIGNAL = 0x100


@dataclass(frozen=True)
class Finding:
    """One row of the report; if something is missing, with its cost and a remedy."""

    name: str
    value: str
    verdict: Availability = "ok"
    cost: str = ""
    remedy: str = ""


class Lack(NamedTuple):
    """The result of a probe that could be better."""

    value: str
    verdict: Availability
    remedy: str
    cost: str = ""  # if it is not the probe's own


PROBES: list[Callable[[], Finding]] = []  # in the order of the report


def _probe(
    name: str, cost: str = "", *, of_linux: bool = False
) -> Callable[[Callable[[], Seen]], Callable[[], Finding]]:
    """Make a function a probe: a row of the report, with the cost of a lack.

    The function returns what is there, a `Lack`, or None if this system cannot have it.
    """

    def add(look: Callable[[], Seen]) -> Callable[[], Finding]:
        def find() -> Finding:
            seen = None if of_linux and sys.platform != "linux" else look()
            if isinstance(seen, str):
                return Finding(name, seen)
            lack = seen or Lack("not on this system", "missing", "Linux")
            return Finding(
                name, lack.value, lack.verdict, lack.cost or cost, lack.remedy
            )

        find.__name__ = name
        PROBES.append(find)
        return find

    return add


# --- probes: Python and the kernel --------------------------------------------


@_probe("python")
def python() -> Seen:
    return f"{platform.python_version()} ({sys.executable})"


@_probe("build", "poll instead of epoll, and no fast path that only Linux has")
def build() -> Seen:
    from aiozerocopy._core import binding

    if not binding.PORTABLE:
        return f"{version('aiozerocopy')}, for Linux"
    remedy = "on Linux: install again without AZC_PORTABLE in the environment"
    return Lack(f"{version('aiozerocopy')}, portable", "limited", remedy)


@_probe("kernel", "the fast paths need Linux")
def kernel() -> Seen:
    system = platform.uname()
    value = f"{system.system} {system.release} {system.machine}"
    return value if sys.platform == "linux" else Lack(value, "limited", "use Linux")


@_probe(
    "pipe size",
    "a big frame goes out in more pieces, with a wake-up for each",
    of_linux=True,
)
def pipe_size() -> Seen:
    """How large may a pipe be, and how large did the kernel make one?"""
    limit = int(Path("/proc/sys/fs/pipe-max-size").read_text())
    with _own_pipe() as (_, writer):
        granted = _grow_pipe(writer, limit)
    value = f"{_size(granted)} granted, the limit is {_size(limit)}"
    if granted >= MEBIBYTE:
        return value
    if granted < limit:
        # A user's pipes share fs.pipe-user-pages-soft; beyond it no pipe may grow.
        remedy = "sudo sysctl fs.pipe-user-pages-soft=65536, or close some pipes"
    else:
        remedy = f"sudo sysctl fs.pipe-max-size={MEBIBYTE}"
    return Lack(value, "limited", remedy)


@_probe(
    "RWF_NOWAIT on pipes",
    "messages to a pipe that others hold too go through a thread, 4 KiB at a time",
    of_linux=True,
)
def rwf_nowait() -> Seen:
    """Can one write be non-blocking on a blocking pipe?"""
    return _write_with(RWF_NOWAIT, "Linux 6.4 or newer")


@_probe(
    "RWF_NOSIGNAL on pipes",
    "where SIGPIPE is not ignored, each pipe write masks it: two more calls",
    of_linux=True,
)
def rwf_nosignal() -> Seen:
    """Can a pipe be written to without SIGPIPE?"""
    return _write_with(RWF_NOSIGNAL, "Linux 6.18 or newer")


@_probe(
    "vmsplice", "pool frames into a pipe are copied once, by the kernel", of_linux=True
)
def vmsplice() -> Seen:
    """Does vmsplice share our pages, copy them, or refuse them?"""
    try:
        shared = _vmsplice_shares()
    except OSError as error:
        code = errno.errorcode.get(error.errno or 0, "?")
        return Lack(f"refused ({code})", "missing", "a kernel that allows it")
    if shared:
        return "shares pages with the reader"
    remedy = "nothing to do: this kernel copies, for safety"
    return Lack("the kernel copies", "limited", remedy)


@_probe("huge pages", "vmsplice of pool frames takes 4 KiB pages: up to half the speed")
def huge_pages() -> Seen:
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not setting.exists():
        return None
    mode = setting.read_text().partition("[")[2].partition("]")[0]
    if mode in ("always", "madvise"):
        return mode
    return Lack(mode, "limited", f"echo madvise | sudo tee {setting}")


# --- probes: limits -----------------------------------------------------------


@_probe("open files")
def open_files() -> Seen:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    value = f"{_limit(soft)}, at most {_limit(hard)}"
    if soft == resource.RLIM_INFINITY or soft >= 4096:
        return value
    cost = f"a server stops accepting at about {soft} connections"
    return Lack(value, "limited", "ulimit -n 65536", cost)


@_probe("socket buffers", "a big message to a UNIX socket goes out in more pieces")
def socket_buffers() -> Seen:
    setting = Path("/proc/sys/net/core/wmem_max")
    if not setting.exists():
        return None
    limit = int(setting.read_text())
    value = f"at most {_size(limit)}"
    if limit >= MEBIBYTE:
        return value
    return Lack(value, "limited", f"sudo sysctl net.core.wmem_max={4 * MEBIBYTE}")


# --- probes: other software ---------------------------------------------------


def _package(name: str, cost: str) -> Callable[[], Finding]:
    @_probe(name, cost)
    def look() -> Seen:
        if importlib.util.find_spec(name):
            return version(name)
        return Lack("not installed", "missing", extras.command(name))

    return look


uvloop: Callable[[], Finding] = _package(
    "uvloop", "asyncio's own loop is used: fewer small messages/s"
)
trio: Callable[[], Finding] = _package("trio", "streams can be used with asyncio only")
numpy: Callable[[], Finding] = _package("numpy", "frames have .view, but no .array")


@_probe("web page", "no aiozerocopy.web: nothing can be shown in a browser")
def web_page() -> Seen:
    if lacking := extras.lacking("web"):
        names = ", ".join(re.split("[<>=]", each)[0] for each in lacking)
        return Lack(f"not installed: {names}", "missing", extras.command("web"))
    return "all of its packages are installed"


@_probe("FFmpeg", "no aiozerocopy.ffmpeg, no video")
def ffmpeg() -> Seen:
    path, source = _find_ffmpeg()
    if path is None:
        remedy = f"apt or brew install ffmpeg, or {extras.command('ffmpeg')}"
        return Lack("not found", "missing", remedy)
    first_line = _output([path, "-version"]).partition("\n")[0]
    release = first_line.removeprefix("ffmpeg version ").partition(" ")[0]
    return f"{release} from {source} ({path})"


def _find_ffmpeg() -> tuple[str | None, str]:
    """Return FFmpeg's path, and where it was found."""
    if path := shutil.which("ffmpeg"):
        return path, "PATH"
    if importlib.util.find_spec("imageio_ffmpeg"):
        return _run_python(_IMAGEIO_FFMPEG), "imageio-ffmpeg"
    return None, ""


@_probe("H.264 in hardware", 'the CPU encodes, also for codec="auto"')
def hardware_encoder() -> Seen:
    """Which hardware encoders can encode a few frames?"""
    path, _ = _find_ffmpeg()
    if path is None:
        return Lack("no FFmpeg to ask", "missing", "see FFmpeg")
    works = anyio.run(_hardware_of, path)
    if works:
        return f'{", ".join(works)}: codec="auto" and --hardware take {works[0]}'
    remedy = "a GPU that encodes, its driver, and an FFmpeg that knows it"
    return Lack("none works here", "limited", remedy)


async def _hardware_of(path: str) -> tuple[str, ...]:
    with anyio.fail_after(PATIENCE):
        return await hardware_of(path)


@_probe(
    "EGL renderer",
    "no aiozerocopy.gl: frames cannot be read from OpenGL",
    of_linux=True,
)
def egl_renderer() -> Seen:
    if importlib.util.find_spec("moderngl") is None:
        return Lack("moderngl is not installed", "missing", extras.command("gl"))
    try:
        renderer = _run_python(_EGL_RENDERER)  # a driver may crash: not in this process
    except (OSError, subprocess.SubprocessError, RuntimeError) as error:
        remedy = (
            "Debian: apt install libegl1 libgl1 libgl1-mesa-dri; or the GPU's driver"
        )
        return Lack(f"no context: {error}", "missing", remedy)
    if not any(word in renderer for word in ("llvmpipe", "softpipe", "swrast")):
        return renderer
    cost = "the CPU renders, and the colours are converted by the CPU too"
    return Lack(renderer, "limited", "a GPU, with its driver's EGL", cost)


_IMAGEIO_FFMPEG = "import imageio_ffmpeg; print(imageio_ffmpeg.get_ffmpeg_exe())"
_EGL_RENDERER = """
import moderngl
context = moderngl.create_context(standalone=True, backend="egl")
version = context.version_code
print(f"{context.info['GL_RENDERER']}, OpenGL {version // 100}.{version % 100 // 10}")
"""


# --- helpers of the probes ----------------------------------------------------


@contextlib.contextmanager
def _own_pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    with open(reader, "rb", 0), open(writer, "wb", 0):
        yield reader, writer


def _write_with(flag: int, remedy: str) -> Seen:
    """Write one byte to a pipe of our own with this flag of pwritev2."""
    with _own_pipe() as (_, writer):
        try:
            os.pwritev(writer, [b"x"], -1, flag)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise
            return Lack("refused", "missing", remedy)
    return "works"


def _grow_pipe(fd: int, wanted: int) -> int:
    """Ask for a pipe of this size, and return the size that it has then."""
    try:
        fcntl.fcntl(fd, F_SETPIPE_SZ, wanted)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EBUSY, errno.ENOMEM):
            raise
    return fcntl.fcntl(fd, F_GETPIPE_SZ)


def _vmsplice_shares() -> bool:
    """Change a byte between vmsplice and read: does the reader see the change?"""
    page = mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with page, _own_pipe() as (reader, writer):  # (closing it frees the page)
        os.set_blocking(reader, False)
        first = ctypes.c_char.from_buffer(page)
        try:
            first.value = b"A"
            _vmsplice_page(writer, ctypes.addressof(first))
            first.value = b"B"
            return os.read(reader, mmap.PAGESIZE)[:1] == b"B"
        finally:
            del first


def _vmsplice_page(fd: int, address: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    iovec = (ctypes.c_size_t * 2)(address, mmap.PAGESIZE)
    if libc.vmsplice(fd, iovec, ctypes.c_size_t(1), SPLICE_F_NONBLOCK) < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _output(command: list[str]) -> str:
    """Run a command and return its output; raise its last line if it failed."""
    ended = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=PATIENCE,
        check=False,
    )
    if ended.returncode:
        words = ended.stderr.strip().rpartition("\n")[2]
        raise RuntimeError(words or f"exit status {ended.returncode}")
    return ended.stdout.strip()


def _run_python(code: str) -> str:
    """Run Python code in a process of its own."""
    return _output([sys.executable, "-c", code])


def _size(count: int) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1024 or count % 1024:
            return f"{count} {unit}"
        count //= 1024
    return f"{count} GiB"


def _limit(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else str(value)
