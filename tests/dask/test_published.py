"""The tests that Dask publishes for its own comms, run against ours.

Only its repository has them.  To run them, with the version that is installed here:

    git clone --depth 1 --branch VERSION https://github.com/dask/distributed
    AZC_DASK_SOURCE=$PWD/distributed pytest dask/test_published.py
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("distributed", reason="needs Dask")

SOURCE = os.environ.get("AZC_DASK_SOURCE", "")
TESTS = Path(SOURCE, "distributed", "comm", "tests", "test_comms.py")

# These cannot pass: docs/pages/clusters.md says why, and what is tested in their place.
BY_DESIGN = (
    "test_comm_closed_on_write_error",
    "test_stop_listener_during_handle_stream",
    "test_tcp_deserialize_roundtrip",
)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(not TESTS.is_file(), reason="AZC_DASK_SOURCE has no tests of Dask")
def test_published_tests_pass() -> None:
    support = Path(__file__).parents[1] / "support"
    skipped = " or ".join(BY_DESIGN)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", str(TESTS), "-q", "--runslow"),
            *("-p", "azc_as_tcp", "-p", "no:cacheprovider", "-k", f"not ({skipped})"),
            *("-W", "ignore:get_ipv6 is deprecated"),  # they call it themselves
        ],
        cwd=SOURCE,
        env=os.environ
        | {"PYTHONPATH": os.pathsep.join([SOURCE, str(support), *sys.path])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) > 50
