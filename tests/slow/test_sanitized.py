"""The tests again, with checks of every memory access and of data races.

With AddressSanitizer and UndefinedBehaviorSanitizer Python's own objects come from
malloc, so that a read of a freed one by our C is found, too.  ThreadSanitizer watches
only our C, as Python itself is not built for it.  It watches Python, too, if
`.make/python-t --tsan` has built one without the GIL.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import figures
import pytest
import trees
from part import part

# One link of each kind of fd and one loop, without tests that need no C of ours.  (A
# sanitizer takes far more address space than a limit would leave.)
CHOSEN = (
    "not trio and not uvloop and not tcp and not [pty and not [cat and not [fifo "
    "and not check_stream and not faulty_streams and not memory_pair "
    "and not degradation and not without_room"
)


@dataclass(frozen=True)
class Sanitizer:
    library: str  # Python has to load it first
    flags: str
    mark: bytes  # a function that builds with it call
    settings: Mapping[str, str]
    tests: Sequence[str]
    chosen: str = CHOSEN
    program: Sequence[str] = ()  # a program that starts the tests


MEMORY = Sanitizer(
    library="libasan.so",
    flags="-fsanitize=address,undefined -fno-sanitize-recover=undefined -g",
    mark=b"__asan_report_load",
    settings={
        "ASAN_OPTIONS": "detect_leaks=0",  # Python's own leaks at its end
        "PYTHONMALLOC": "malloc",
    },
    tests=part(
        [
            "contract/test_p0_done_means_yours.py",
            "contract/test_p2_no_later_bytes.py",
            "contract/test_p3_no_leak.py",
            "core/test_ahead.py",
            "core/test_channel.py",
            "core/test_fds.py",
            "core/test_finalizers.py",
            "core/test_sending.py",
            "core/test_interruptions.py",
            "core/test_lending.py",
            "core/test_lifetime.py",
            "core/test_pool.py",
            "core/test_relay.py",
        ],
        1 / 2,
    ),
    # (A fork copies locks of the sanitizer's allocator in any state, so one of many
    # children forked beside busy threads would hang.)
    chosen=f"{CHOSEN} and not fork_from_c",
)

THREADS = Sanitizer(
    library="libtsan.so",
    flags="-fsanitize=thread -g",
    mark=b"__tsan_read8",
    settings={
        "TSAN_OPTIONS": "halt_on_error=1:ignore_noninstrumented_modules=1"
        ":report_thread_leaks=0"
    },
    # (Without tests that count threads or fork beside them, as the sanitizer has
    # threads of its own.)
    tests=[
        "contract",
        "core/test_ahead.py",
        "core/test_channel.py",
        "core/test_fds.py",
        "core/test_sending.py",
        "core/test_lending.py",
        "core/test_pool.py",
        "core/test_relay.py",
        "core/test_to_all.py",
    ],
    program=("setarch", "-R"),
)

pytestmark = [pytest.mark.slow, pytest.mark.builds, pytest.mark.timeout(600)]


def path_of(library: str) -> str:
    """Return the path of the sanitizer's library, or "" if the compiler has none."""
    if not shutil.which("cc"):
        return ""
    command = ["cc", f"-print-file-name={library}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    path = done.stdout.strip()
    return path if Path(path).is_absolute() else ""


@pytest.mark.parametrize("sanitizer", [MEMORY, THREADS], ids=["memory", "threads"])
def test_sanitized(sanitizer: Sanitizer, tmp_path: Path) -> None:
    if not path_of(sanitizer.library):
        pytest.skip(f"this compiler has no {sanitizer.library}")
    if missing := [name for name in sanitizer.program[:1] if not shutil.which(name)]:
        pytest.skip(f"needs {missing[0]}")
    flags = sanitizer.flags
    tree = trees.build(tmp_path, CFLAGS=flags, LDFLAGS=flags)
    (built,) = (tree / "aiozerocopy").glob("_azc*.so")
    assert sanitizer.mark in built.read_bytes()
    process = trees.start_tests(
        tree,
        *("-m", "not slow and not builds and not quiet", "-k", sanitizer.chosen),
        *(f"tests/{name}" for name in sanitizer.tests),
        python=(*sanitizer.program, sys.executable),
        LD_PRELOAD=path_of(sanitizer.library),
        AZC_PATIENCE="4",  # every access takes longer
        **sanitizer.settings,
    )
    with process:
        said, _ = process.communicate()
    assert process.returncode == 0, said[-8000:]
    passed = re.search(r"^(\d{3,}) passed", said, re.MULTILINE)
    assert passed, said[-8000:]
    figures.count("tests with sanitizers", int(passed[1]))


WITHOUT_GIL = trees.ROOT / ".python-tsan"


def test_without_the_gil(tmp_path: Path) -> None:
    """The threads that share a pool, in a Python that is built for ThreadSanitizer."""
    python = WITHOUT_GIL / "bin/python3.14t"
    if not python.exists():
        pytest.skip("needs .make/python-t --tsan")
    start = (*THREADS.program, str(python))
    flags, no_report = THREADS.flags, "report_bugs=0"
    settings = {"CFLAGS": flags, "LDFLAGS": flags, "TSAN_OPTIONS": no_report}
    tree = trees.build(tmp_path / "tree", start, **settings)
    known, reports = tmp_path / "known", tmp_path / "reports"
    ours = Path(__file__).with_name("tsan_known.txt").read_text()
    known.write_text((WITHOUT_GIL / "known.txt").read_text() + ours)
    process = trees.start_tests(
        tree,
        "tests/slow/test_threads.py",
        python=start,
        PYTHONPATH=str(tree),
        AZC_PATIENCE="10",
        AZC_THREADS_SECONDS="20",
        TSAN_OPTIONS=f"suppressions={known}:log_path={reports}:history_size=7"
        ":exitcode=0:report_thread_leaks=0",
    )
    with process:
        said, _ = process.communicate()
    found = [path.read_text() for path in tmp_path.glob("reports.*")]
    assert not found, found[0][:8000]
    assert process.returncode == 0, said[-8000:]
    assert re.search(r"^2 passed", said, re.MULTILINE), said[-8000:]
