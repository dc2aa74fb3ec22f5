"""The C helper's includes go one way, and its system calls through one table."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # the source is the same for every Python

CSRC = Path(__file__).parents[1] / "csrc"

# A header may include those before it; a C file its own header and those before it,
# and what it names below.
ORDER = (
    "azc_ring",  # for programs that know nothing of the others
    *("azc", "sys", "sabotage", "handle", "poller", "port", "pool", "op", "relay"),
    *("queue", "pace", "writer", "lane", "lender", "pump", "channel"),
    *("ending", "cancel", "move", "passing", "ring", "fork", "split"),
)
# Headers that belong to a C file of another name, or to none.
HEADER_OF = {
    "lanes": "lane",
    "poller_epoll": "poller",
    "poller_poll": "poller",
    "submit": "fork",  # the top: what is called for
    "relay": "fork",
    "census": "handle",
    "fds": "sys",
}
# These work on channels, whose parts they are.
ON_CHANNELS = {"lanes", "lender", "pump", "channel"}
# The only files that call the system; azc_ring.h is used without the helper, too.
SYSTEM = {"sys", "azc_ring"}
# Headers without calls: names, numbers and memory.
PLAIN = {
    *("errno.h", "stdatomic.h", "stdbool.h", "stddef.h", "stdint.h", "string.h"),
    *("pthread.h", "poll.h", "signal.h"),
    *("sys/stat.h", "sys/types.h", "sys/uio.h", "sys/epoll.h"),
}
CALLS = re.compile(
    r"(?<![.\w])(?:errno(?!\.h)|(?:open|close|read|write|writev|readv|send|recv|poll|pipe"
    r"|fcntl|ioctl|fstat|mmap|madvise|munmap|malloc|free|usleep|isatty|setsockopt"
    r"|epoll_\w+|eventfd\w*)\()"
)

FILES = sorted([*CSRC.glob("*.c"), *CSRC.glob("*.h")])


def includes(path: Path) -> tuple[set[str], set[str]]:
    """Our headers, by their names, and the system's."""
    text = path.read_text()
    ours = set(re.findall(r'^ *# *include "([^"]+)\.h"', text, re.MULTILINE))
    system = set(re.findall(r"^ *# *include <([^>]+)>", text, re.MULTILINE))
    return ours, system


def code(path: Path) -> str:
    """Without comments."""
    return re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.DOTALL)


def allowed(path: Path) -> set[str]:
    name = path.stem
    if path.suffix == ".h":
        return set(ORDER[: ORDER.index(name)])
    last = ORDER.index(HEADER_OF.get(name, name))
    if name in ON_CHANNELS:  # and they may end what they have found to be at its end
        last = ORDER.index("ending")
    return set(ORDER[: last + 1])


def test_every_header_has_its_place() -> None:
    assert {path.stem for path in CSRC.glob("*.h")} == set(ORDER)


def test_includes_go_one_way() -> None:
    wrong = [
        f"{path.name} includes {name}.h"
        for path in FILES
        for name in includes(path)[0] - allowed(path)
    ]
    assert wrong == []


def test_only_sys_calls_the_system() -> None:
    wrong = []
    for path in FILES:
        _, system = includes(path)
        if path.stem in SYSTEM:
            assert "errno.h" in system or path.suffix == ".h"
            continue
        wrong += [f"{path.name} includes {name}" for name in system - PLAIN]
        wrong += [f"{path.name} calls {call}" for call in CALLS.findall(code(path))]
    assert wrong == []


def test_a_c_file_uses_what_it_includes() -> None:
    """Each header of ours offers something that is used (or it is its own)."""
    unused = []
    for path in CSRC.glob("*.c"):
        text = code(path)
        own = HEADER_OF.get(path.stem, path.stem)
        unused += [
            f"{path.name} includes {name}.h"
            for name in includes(path)[0] - {own, "azc", "sys"}
            if not any(re.search(rf"\b{word}\b", text) for word in offered(name))
        ]
    assert unused == []


def offered(name: str) -> set[str]:
    """What a header declares: functions, types, macros, and members of enums."""
    text = code(CSRC / f"{name}.h")
    words = set(re.findall(r"\b(azc__?\w+|[A-Z][A-Z_0-9]{3,})\b", text))
    return words | {f"azc_{name}"}
