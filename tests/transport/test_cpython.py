"""CPython's own tests of streams, servers, files and TLS, against our transports.

These tests come with Python, except in some distributions.  docs/pages/transports.md
says why some cannot pass.
"""

import json
import sys
from importlib.util import find_spec as find
from pathlib import Path

import pytest
import scripts
from links import linux_only

pytestmark = [linux_only, pytest.mark.slow, pytest.mark.timeout(300)]

RUNNER = Path(__file__).parents[1] / "support" / "cpython.py"

# For each module: words in tests' names, words not in them, least number of tests.
SUITES: dict[str, tuple[list[str], list[str], int]] = {
    "test_streams": ([""], [], 60),
    "test_ssl": ([""], ["create_connection_memory_leak"], 18),
    "test_sslproto": (["StartTLS"], [], 8),
    "test_server": (
        [""],
        ["test_start_server_1", "test_start_unix_server_1"],
        5 if sys.version_info >= (3, 12) else 0,  # earlier versions have other tests
    ),
    "test_buffered_proto": ([""], [], 1),
    "test_sendfile": (
        ["EPoll"],
        ["sock_sendfile", "force_unsupported_native", "prevents_bare_write"],
        7,
    ),
    "test_events": (
        [
            f"EPollEventLoopTests.test_{name}"
            for name in (
                *("create_connection", "create_unix_connection", "connect_accepted"),
                *("create_server", "create_unix_server", "server_close"),
                "prompt_cancellation",
            )
        ],
        ["multiple_hosts"],
        20,
    ),
}


@pytest.mark.parametrize("module", SUITES)
def test_module(module: str) -> None:
    if not (find("test.test_asyncio") and find(f"test.test_asyncio.{module}")):
        pytest.skip("this Python comes without these tests")
    wanted, left_out, least = SUITES[module]
    job = json.dumps([f"test.test_asyncio.{module}", wanted, left_out])
    done = scripts.ran([sys.executable, "-W", "ignore", RUNNER, job])
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["failed"] == [], done.stderr
    assert told["passed"] >= least, done.stderr
