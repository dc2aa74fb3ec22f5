"""Builds aiozerocopy._azc from the C files beside this one (cffi, API mode).

cffi executes this file without importing the package, which does not exist yet.
AZC_PORTABLE=1 in the environment selects the build for any Unix; AZC_SABOTAGE=1
compiles deliberate faults in, for the tests that must catch them.
"""

import os
import sys
import sysconfig
from pathlib import Path

from cffi import FFI

HERE = Path(__file__).parent
SOURCE = Path("csrc")  # relative to setup.py, as setuptools wants it

# ("...": the compiler fills the layout in)
IOVEC = "struct iovec { void *iov_base; size_t iov_len; ...; };\n"

portable = os.environ.get("AZC_PORTABLE") == "1"
sabotage = os.environ.get("AZC_SABOTAGE") == "1"


# The kinds of processors; each has a file of its own, which is empty on the others.
KINDS = ("plain", "avx2", "neon")
RING = () if portable else ("ring",)
HEADERS = ("azc.h", *(f"{name}.h" for name in RING))
HEADERS += ("colour/yuv.h", "python/messages.h")


def declarations() -> str:
    """Return the C contract for cffi: the headers without the preprocessor's lines."""
    lines = [
        line for header in HEADERS for line in (HERE / header).read_text().splitlines()
    ]
    return IOVEC + "\n".join(line for line in lines if not line.startswith("#"))


# (the portable build has poll and pipes, and no call that only Linux has)
ours = f"enum {{ AZC_IS_PORTABLE = {int(portable)} }};\n"
ours += "extern int azc_sabotage;\n" if sabotage else ""


def sources() -> list[str]:
    names = ["sys", "handle", "port", "pool", "op", "queue", "lanes"]
    names += ["channel", "ending", "lender", "loop", "pump", "closing", "move"]
    names += ["submit", *RING]
    poller = "poller_poll" if portable else "poller_epoll"
    names += ["passing", "relay", "fork", poller]
    names += ["colour/yuv", *(f"colour/rows_{kind}" for kind in KINDS)]
    names += ["python/messages"]
    return [str(SOURCE / f"{name}.c") for name in names]


def macros() -> list[tuple[str, str]]:
    wanted = {"_GNU_SOURCE": True, "AZC_PORTABLE": portable, "AZC_SABOTAGE": sabotage}
    return [(name, "1") for name, on in wanted.items() if on]


# Debug information is four fifths of the file; CFLAGS=-g keeps it.
debug = "-g" in os.environ.get("CFLAGS", "").split()
strip = [] if debug or sys.platform == "darwin" else ["-Wl,-s"]

FLAGS = ["-std=c11", "-O2", "-Wall", "-Wextra", "-fvisibility=hidden"]
free_threaded = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
# (cffi defines it in the file that it writes, and again on the compiler's command line)
twice = ["-U_CFFI_NO_LIMITED_API"] if free_threaded else []

ffibuilder = FFI()
ffibuilder.cdef(declarations() + ours)
ffibuilder.set_source(
    "aiozerocopy._azc",
    "".join(f'#include "{header}"\n' for header in HEADERS) + ours,
    sources=sources(),
    include_dirs=[str(SOURCE)],
    depends=sorted(
        str(SOURCE / path.relative_to(HERE))
        for pattern in ("*.h", "*.c", "*.py")
        for path in HERE.rglob(pattern)
    ),
    define_macros=macros(),
    extra_compile_args=[*FLAGS, *twice],
    extra_link_args=strip,
    libraries=[] if sys.platform == "darwin" else ["pthread"],
    py_limited_api=not free_threaded,
)

if __name__ == "__main__":
    ffibuilder.compile(verbose=True)
