"""Whole clusters of Dask over our protocols, in processes."""

import sys
from importlib.util import find_spec

import pytest
import scripts
from links import linux_only

pytest.importorskip("distributed", reason="needs Dask")
pytest.importorskip("numpy")

from pathlib import Path

pytestmark = [linux_only, pytest.mark.slow, pytest.mark.timeout(60)]

# At level info, Dask reports comms that it has itself closed too early.
QUIET = {"DASK_LOGGING__DISTRIBUTED": "warning"}

CLUSTERS = """
import asyncio, logging, sys
import numpy as np
from distributed import Client, LocalCluster, Security

# (If a heartbeat is under way when its worker closes, Dask logs an error.)
is_no_heartbeat = lambda record: "heartbeat" not in record.msg
logging.getLogger("distributed.worker").addFilter(is_no_heartbeat)

async def main(protocol, certificates, with_pandas):
    security = None
    if certificates:
        names = ("client", "scheduler", "worker")
        security = Security(
            require_encryption=True,
            tls_ca_file=f"{certificates}/ca.pem",
            **{f"tls_{name}_cert": f"{certificates}/cert.pem" for name in names},
            **{f"tls_{name}_key": f"{certificates}/key.pem" for name in names},
        )
    async with LocalCluster(
        protocol=protocol,
        security=security,
        processes=False,
        n_workers=2,
        threads_per_worker=1,
        dashboard_address=":0",
        asynchronous=True,
    ) as cluster:
        async with Client(cluster, asynchronous=True) as client:
            one, other = cluster.scheduler.workers
            for address in (one, other, cluster.scheduler_address):
                assert address.startswith(f"{protocol}://"), address
            await use(client, one, other, with_pandas)
    print(one.partition("://")[0] + "://")

async def use(client, one, other, with_pandas):
    # made at one worker, used at the other, and brought home
    array = client.submit(np.arange, 3_000_000, workers=one)
    double = client.submit(np.multiply, array, 2, workers=other)
    assert np.array_equal(await double, np.arange(3_000_000) * 2)
    many = client.map(lambda n: np.full(100, n), range(300), workers=one)
    total = client.submit(lambda parts: np.sum(np.stack(parts)), many, workers=other)
    assert await total == 100 * sum(range(300))
    [home] = await client.scatter([np.ones((500, 500))], workers=[one])
    assert await client.submit(np.sum, home, workers=other) == 250_000
    if with_pandas:
        import pandas as pd
        frame = pd.DataFrame({"n": range(100_000), "text": ["a", "b"] * 50_000})
        there = client.submit(lambda: frame, workers=one)
        sums = lambda frame: frame.groupby("text").n.sum().to_dict()
        assert await client.submit(sums, there, workers=other) == sums(frame)
        assert (await there).equals(frame)

certificates, with_pandas = sys.argv[1:]
asyncio.run(main("azc", "", with_pandas))
asyncio.run(main("azc+tls", certificates, with_pandas))
asyncio.run(main("azc+unix", "", with_pandas))
"""


def certificates(folder: Path) -> str:
    trustme = pytest.importorskip("trustme")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    issued = authority.issue_cert("localhost")
    issued.private_key_pem.write_to_path(str(folder / "key.pem"))
    for blob in issued.cert_chain_pems:
        blob.write_to_path(str(folder / "cert.pem"), append=True)
    return str(folder)


def test_clusters(tmp_path: Path) -> None:
    """All run in one process, one after the other, as imports take most of the time."""
    with_pandas = "pandas" if find_spec("pandas") else ""
    settings = QUIET | {"DASK_TEMPORARY_DIRECTORY": str(tmp_path)}
    done = scripts.ran(
        [sys.executable, "-c", CLUSTERS, certificates(tmp_path), with_pandas],
        cwd=tmp_path,
        env=scripts.environment(**settings),
    )
    assert (done.stderr, done.returncode) == ("", 0)
    assert done.stdout == "azc://\nazc+tls://\nazc+unix://\n"
