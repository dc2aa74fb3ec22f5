"""What this machine offers: each probe looks at one thing.

A probe returns a `Finding`, or raises; nothing here changes the machine, and no
optional package is imported into this process.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import importlib.util
import mmap
import os
import platform
import resource
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import anyio

from aiozerocopy._core import extras
from aiozerocopy._core.pipe_size import F_GETPIPE_SZ, F_SETPIPE_SZ
from aiozerocopy.ffmpeg.codecs import hardware_of

if TYPE_CHECKING:
    from collections.abc import Callable

Availability = Literal["ok", "limited", "missing", "unknown"]

MEBIBYTE = 1 << 20
SPLICE_F_NONBLOCK = 2
# Python has no names for these, or only where its own build machine had them.
RWF_NOWAIT = 0x8
RWF_NOSIGNAL = 0x100


@dataclass(frozen=True)
class Finding:
    """One row of the report; cost and remedy say more where something is missing."""

    name: str
    value: str
    verdict: Availability = "ok"
    cost: str = ""
    remedy: str = ""


# --- probes: Python and the kernel --------------------------------------------


def python() -> Finding:
    """Which interpreter this is."""
    return Finding("python", f"{platform.python_version()} ({sys.executable})")


def build() -> Finding:
    """Which of the two builds of the C part is installed."""
    from aiozerocopy._core import binding

    if not binding.PORTABLE:
        return Finding("build", f"{version('aiozerocopy')}, for Linux")
    return Finding(
        "build",
        f"{version('aiozerocopy')}, portable",
        "limited",
        "poll instead of epoll, and no fast path that only Linux has",
        "on Linux: install again without AZC_PORTABLE in the environment",
    )


def kernel() -> Finding:
    """Which system runs here."""
    system = platform.uname()
    value = f"{system.system} {system.release} {system.machine}"
    if sys.platform == "linux":
        return Finding("kernel", value)
    return Finding("kernel", value, "limited", "the fast paths need Linux", "use Linux")


def pipe_size() -> Finding:
    """How large a pipe may be, and what the kernel really gave when asked."""
    name = "pipe size"
    cost = "a big frame goes out in more pieces, with a wake-up for each"
    if sys.platform != "linux":
        return _not_here(name, cost)
    limit = int(Path("/proc/sys/fs/pipe-max-size").read_text())
    reader, writer = os.pipe()
    try:
        granted = _grow_pipe(writer, limit)
    finally:
        os.close(reader)
        os.close(writer)
    value = f"{_size(granted)} granted, the limit is {_size(limit)}"
    if granted >= MEBIBYTE:
        return Finding(name, value)
    if granted < limit:
        # A user's pipes share fs.pipe-user-pages-soft; beyond it none may grow.
        remedy = "sudo sysctl fs.pipe-user-pages-soft=65536, or close some pipes"
    else:
        remedy = f"sudo sysctl fs.pipe-max-size={MEBIBYTE}"
    return Finding(name, value, "limited", cost, remedy)


def rwf_nowait() -> Finding:
    """Whether one write may be non-blocking on a pipe that is not."""
    return _write_flag(
        "RWF_NOWAIT on pipes",
        RWF_NOWAIT,
        "a pipe that others hold too is served by a thread of its own",
        "Linux 6.4 or newer",
    )


def rwf_nosignal() -> Finding:
    """Whether a pipe write can be told not to raise SIGPIPE."""
    return _write_flag(
        "RWF_NOSIGNAL on pipes",
        RWF_NOSIGNAL,
        "where SIGPIPE is not ignored, each pipe write masks it: two more calls",
        "Linux 6.18 or newer",
    )


def vmsplice() -> Finding:
    """What vmsplice does with our pages: share them, copy them, or refuse."""
    name = "vmsplice"
    cost = "pool frames into a pipe are copied once, by the kernel"
    if sys.platform != "linux":
        return _not_here(name, cost)
    try:
        shared = _vmsplice_shares()
    except OSError as error:
        code = errno.errorcode.get(error.errno or 0, "?")
        return Finding(
            name, f"refused ({code})", "missing", cost, "a kernel that allows it"
        )
    if shared:
        return Finding(name, "shares pages with the reader")
    remedy = "nothing to do: this kernel copies, for safety"
    return Finding(name, "the kernel copies", "limited", cost, remedy)


def huge_pages() -> Finding:
    """Whether a pool may have transparent huge pages."""
    name = "huge pages"
    cost = "vmsplice of pool frames takes 4 KiB pages: up to half the speed"
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not setting.exists():
        return _not_here(name, cost)
    mode = setting.read_text().partition("[")[2].partition("]")[0]
    if mode in ("always", "madvise"):
        return Finding(name, mode)
    remedy = f"echo madvise | sudo tee {setting}"
    return Finding(name, mode, "limited", cost, remedy)


# --- probes: limits -----------------------------------------------------------


def open_files() -> Finding:
    """How many files, pipes and sockets may be open at once."""
    name = "open files"
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    value = f"{_limit(soft)}, at most {_limit(hard)}"
    if _at_least(soft, 4096):
        return Finding(name, value)
    cost = f"a server stops accepting at about {soft} connections"
    return Finding(name, value, "limited", cost, "ulimit -n 65536")


def socket_buffers() -> Finding:
    """How large a socket's send buffer may be made."""
    name = "socket buffers"
    cost = "a big message to a UNIX socket goes out in more pieces"
    setting = Path("/proc/sys/net/core/wmem_max")
    if not setting.exists():
        return _not_here(name, cost)
    limit = int(setting.read_text())
    if limit >= MEBIBYTE:
        return Finding(name, f"at most {_size(limit)}")
    remedy = f"sudo sysctl net.core.wmem_max={4 * MEBIBYTE}"
    return Finding(name, f"at most {_size(limit)}", "limited", cost, remedy)


# --- probes: other software ---------------------------------------------------


def uvloop() -> Finding:
    """Whether the faster event loop is installed."""
    return _package("uvloop", "asyncio's own loop is used: fewer small messages/s")


def trio() -> Finding:
    """Whether trio is installed."""
    return _package("trio", "streams can be used with asyncio only")


def numpy() -> Finding:
    """Whether numpy is installed."""
    return _package("numpy", "frames have .view, but no .array")


def ffmpeg() -> Finding:
    """Which FFmpeg would be started."""
    name = "FFmpeg"
    path, source = _find_ffmpeg()
    if path is None:
        remedy = f"apt or brew install ffmpeg, or {extras.command('ffmpeg')}"
        return Finding(
            name, "not found", "missing", "no aiozerocopy.ffmpeg, no video", remedy
        )
    first_line = _output([path, "-version"]).partition("\n")[0]
    release = first_line.removeprefix("ffmpeg version ").partition(" ")[0]
    return Finding(name, f"{release} from {source} ({path})")


def _find_ffmpeg() -> tuple[str | None, str]:
    """Its path, and where it is from."""
    if path := shutil.which("ffmpeg"):
        return path, "PATH"
    if importlib.util.find_spec("imageio_ffmpeg"):
        return _run_python(_IMAGEIO_FFMPEG), "imageio-ffmpeg"
    return None, ""


def hardware_encoder() -> Finding:
    """Which encoder in hardware has just encoded a few frames."""
    name = "H.264 in hardware"
    cost = 'the CPU encodes: codec="auto" takes libx264'
    path, _ = _find_ffmpeg()
    if path is None:
        return Finding(name, "no FFmpeg to ask", "missing", cost, "see FFmpeg")
    works = anyio.run(hardware_of, path)
    if not works:
        remedy = "a GPU that encodes, its driver, and an FFmpeg that knows it"
        return Finding(name, "none works here", "limited", cost, remedy)
    return Finding(name, f'{", ".join(works)}: codec="auto" takes {works[0]}')


def egl_renderer() -> Finding:
    """Which OpenGL renderer works without a screen."""
    name = "EGL renderer"
    cost = "no aiozerocopy.gl: frames cannot be read from OpenGL"
    if sys.platform != "linux":
        return _not_here(name, cost)
    if importlib.util.find_spec("moderngl") is None:
        remedy = extras.command("gl")
        return Finding(name, "moderngl is not installed", "missing", cost, remedy)
    try:
        renderer = _run_python(_EGL_RENDERER)  # a driver may crash: not in this process
    except (OSError, subprocess.SubprocessError, RuntimeError) as error:
        remedy = (
            "Debian: apt install libegl1 libgl1 libgl1-mesa-dri; or the GPU's driver"
        )
        return Finding(name, f"no context: {error}", "missing", cost, remedy)
    if not any(word in renderer for word in ("llvmpipe", "softpipe", "swrast")):
        return Finding(name, renderer)
    cost = "the CPU renders, and the colours are converted by the CPU too"
    return Finding(name, renderer, "limited", cost, "a GPU, with its driver's EGL")


PROBES: tuple[Callable[[], Finding], ...] = (
    python,
    build,
    kernel,
    pipe_size,
    rwf_nowait,
    rwf_nosignal,
    vmsplice,
    huge_pages,
    open_files,
    socket_buffers,
    uvloop,
    trio,
    numpy,
    ffmpeg,
    hardware_encoder,
    egl_renderer,
)

_IMAGEIO_FFMPEG = "import imageio_ffmpeg; print(imageio_ffmpeg.get_ffmpeg_exe())"
_EGL_RENDERER = """
import moderngl
context = moderngl.create_context(standalone=True, backend="egl")
version = context.version_code
print(f"{context.info['GL_RENDERER']}, OpenGL {version // 100}.{version % 100 // 10}")
"""


# --- what the probes share ----------------------------------------------------


def _not_here(name: str, cost: str) -> Finding:
    return Finding(name, "not on this system", "missing", cost, "Linux")


def _package(name: str, cost: str) -> Finding:
    if importlib.util.find_spec(name):
        return Finding(name, version(name))
    remedy = extras.command(name)
    return Finding(name, "not installed", "missing", cost, remedy)


def _write_flag(name: str, flag: int, cost: str, remedy: str) -> Finding:
    """Write one byte to a pipe of our own with that flag of pwritev2."""
    if sys.platform != "linux":
        return _not_here(name, cost)
    reader, writer = os.pipe()
    try:
        os.pwritev(writer, [b"x"], -1, flag)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise
        return Finding(name, "refused", "missing", cost, remedy)
    finally:
        os.close(reader)
        os.close(writer)
    return Finding(name, "works")


def _grow_pipe(fd: int, wanted: int) -> int:
    """Ask for a pipe of that size and return the size it has then."""
    try:
        fcntl.fcntl(fd, F_SETPIPE_SZ, wanted)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EBUSY, errno.ENOMEM):
            raise
    return fcntl.fcntl(fd, F_GETPIPE_SZ)


class _IOVec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def _vmsplice_shares() -> bool:
    """Change a byte between vmsplice and read: does the reader see the change?"""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    page = mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    first = ctypes.c_char.from_buffer(page)
    try:
        first.value = b"A"
        _vmsplice_page(writer, ctypes.addressof(first))
        first.value = b"B"
        return os.read(reader, mmap.PAGESIZE)[:1] == b"B"
    finally:
        # Once both ends are closed the kernel has let go of the page.
        os.close(reader)
        os.close(writer)
        del first
        page.close()


def _vmsplice_page(fd: int, address: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    vector = _IOVec(address, mmap.PAGESIZE)
    libc.vmsplice.restype = ctypes.c_ssize_t
    libc.vmsplice.argtypes = (
        ctypes.c_int,
        ctypes.POINTER(_IOVec),
        ctypes.c_size_t,
        ctypes.c_uint,
    )
    if libc.vmsplice(fd, ctypes.byref(vector), 1, SPLICE_F_NONBLOCK) < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _output(command: list[str]) -> str:
    """Run a command and return what it printed; its last words if it failed."""
    ended = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=20,
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


def _at_least(value: int, enough: int) -> bool:
    return value == resource.RLIM_INFINITY or value >= enough
