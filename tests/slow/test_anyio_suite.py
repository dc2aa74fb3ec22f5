"""anyio's own tests of sockets, TLS and buffered streams, with our streams.

These tests are not part of our tree.  They run if AZC_ANYIO_TESTS names an unpacked
source archive of anyio, of the installed version; docs/pages/anyio-and-trio.md has the
commands.
"""

import os
import re
import socket
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from scripts import environment, ran

SUITE = os.environ.get("AZC_ANYIO_TESTS", "")
FILES = ("test_sockets.py", "streams/test_tls.py", "streams/test_buffered.py")
OURS = "TestTCP or TestUNIXStream or TestUNIXListener or test_multi_listener or streams"

# Tests that need not pass, and why; docs/pages/anyio-and-trio.md lists them, too.
IS_CLOSED = "on asyncio, a close that need not wait is not a checkpoint"
MOVES_ON = "bytes go out while all tasks wait: the send may end before the close"
BY_DESIGN = {
    r"TestTCPStream::test_happy_eyeballs\[": "the resolver's order is kept",
    r"test_aclose_in_cancelled_scope_raises_cancelled_exc\[asyncio": IS_CLOSED,
    "test_close_during_send": MOVES_ON,
    "test_reset_during_send": MOVES_ON,
    "test_send_receive_seqsocket": "SOCK_SEQPACKET is not a stream of bytes",
    "test_connect_tcp_closes_winner": "it tests the inside of anyio's connect_tcp",
    "test_cancelled_receive_pauses_reading": "it tests asyncio's transports",
}


def has_ipv6() -> bool:
    """Whether localhost has ::1.  Otherwise many tests fail and leave sockets open."""
    try:
        return bool(socket.getaddrinfo("localhost", 0, socket.AF_INET6))
    except OSError:
        return False


def run_tests(root: Path, *options: str) -> tuple[int, set[str]]:
    """Run the tests; return how many passed, and which failed."""
    chosen = f"({OURS})" if has_ipv6() else f"({OURS}) and not ipv6"
    # (a test must not fail for objects that an earlier test left open)
    ignored = "ignore::pytest.PytestUnraisableExceptionWarning"
    command = [sys.executable, "-m", "pytest", *options, "-q", "-k", chosen]
    command += ["-W", ignored, *(f"tests/{name}" for name in FILES)]
    alone = environment(PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    done = ran(command, cwd=root, env=alone)
    print(done.stdout)
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    return int(passed[1]), set(failed)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(not SUITE, reason="AZC_ANYIO_TESTS names no source of anyio")
def test_anyios_own_tests() -> None:
    """Tests that pass with anyio's streams pass with ours."""
    root = Path(SUITE)
    assert root.name == f"anyio-{version('anyio')}", (
        "AZC_ANYIO_TESTS is of another version of anyio than the installed one"
    )
    _, fail_anyway = run_tests(root)
    passed, failed = run_tests(root, "-p", "anyio_with_ours")
    worse = {
        name
        for name in failed - fail_anyway
        if not any(re.search(pattern, name) for pattern in BY_DESIGN)
    }
    assert worse == set()
    assert passed > 400
