"""`bench dask` runs, and sees every byte."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from links import linux_only

from aiozerocopy.bench import dask
from aiozerocopy.bench.dask import Pair
from aiozerocopy.bench.feeding import Lab
from aiozerocopy.bench.racing import Options, Work, WrongBytes
from aiozerocopy.commands import bench

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest.importorskip("distributed", reason="needs Dask")
np = pytest.importorskip("numpy")
pytestmark = [pytest.mark.timeout(120), linux_only]


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab() as made:
        yield made


def test_wrong_arrays_are_found(lab: Lab) -> None:
    from aiozerocopy.bench import dask_peers

    pattern = lab.pattern(Work(1000, 1, warm=0, buffers=2))
    array = dask_peers.make(pattern, 1000, 3).copy()
    assert not dask_peers.is_wrong(array, pattern, 3, check=True)
    assert dask_peers.is_wrong(array, pattern, 2, check=True)
    array[999] ^= 1
    assert dask_peers.is_wrong(array, pattern, 3, check=True)


def test_wrong_report_ends_the_bench(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[str, Any] = {"sink": {"wrong": 2}, "sender": {"cpu": 1.0}}
    monkeypatch.setattr("aiozerocopy.bench.dask.Crew.start", lambda *_: None)
    monkeypatch.setattr("aiozerocopy.bench.dask.Crew.finish", lambda _: told)
    with pytest.raises(WrongBytes, match="azc://: 2 arrays came out wrong"):
        Pair("azc://", lab).run(Work(1000, 1, warm=0, buffers=2), check=True)


def test_arrays_of_64_mb(lab: Lab) -> None:
    [race] = dask.races(lab, Options())
    assert (race.work.messages, race.work.size) == (100, 64_000_000)


@pytest.mark.slow
def test_bench_dask_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["dask", "--quick", "--json"]) == 0
    [race] = json.loads(capsys.readouterr().out)["races"]
    assert len(race["contestants"]) == 3
    assert all(one["verified"] for one in race["contestants"])
