"""`bench ring` runs, sees every byte, and tells what it should."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from links import linux_only

from aiozerocopy._core.binding import PORTABLE
from aiozerocopy.bench import racing, ring
from aiozerocopy.bench.feeding import Lab
from aiozerocopy.bench.racing import Options, Work, WrongBytes
from aiozerocopy.bench.ring import Pair, TripRace, TripRun, Trips
from aiozerocopy.bench.ring_peers import Job, Tally
from aiozerocopy.commands import bench

if TYPE_CHECKING:
    from collections.abc import Iterator

np = pytest.importorskip("numpy")
pytestmark = [
    pytest.mark.timeout(60),
    linux_only,
    pytest.mark.skipif(PORTABLE, reason="the portable build has no rings"),
]

NEEDED = {"tachyon": "tachyon", "zmq": "zmq"}


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab() as made:
        yield made


def job(lab: Lab, work: Work) -> Job:
    return Job(
        role="consume",
        way="ring",
        loop="asyncio",
        folder="",
        library="",
        pattern=ring.pattern(lab, work),
        size=work.size,
        buffers=work.buffers,
        warm=work.warm,
        messages=work.messages,
        means=False,
        check=True,
        spin=0,
    )


def need(way: str) -> None:
    for word, module in NEEDED.items():
        if word in way:
            pytest.importorskip(module, reason=f"{module} is not installed")


@pytest.mark.parametrize("size", [32, 1024, 100_000])
@pytest.mark.parametrize("way", ["ring", "pipe", "unix", "tachyon"])
def test_every_way_carries_every_byte(way: str, size: int, lab: Lab) -> None:
    need(way)
    work = Work(size, 300, warm=20, buffers=16)
    run = Pair(way, lab, way, means=size == 1024).run(work, check=True)
    assert run.seconds > 0
    assert run.sender_cpu > 0


def test_wrong_message_is_found(lab: Lab, capfd: pytest.CaptureFixture[str]) -> None:
    work = Work(1024, 300, warm=20, buffers=16)
    tally = Tally(job(lab, work))
    rows = np.fromfile(ring.pattern(lab, work), "f4").reshape(16, -1)
    tally.take(rows)
    rows[5, 255] += 1
    tally.take(rows)
    tally.report()
    told = json.loads(capfd.readouterr().out)
    assert (told["count"], told["wrong"]) == (32, 16 + 5)


@pytest.mark.parametrize(("count", "wrong"), [(320, 7), (319, -1)])
def test_wrong_report_ends_the_bench(
    count: int, wrong: int, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {"sink": {"count": count, "wrong": wrong}, "sender": {}}
    monkeypatch.setattr(Pair, "_start", lambda *_: told)
    with pytest.raises(WrongBytes, match=f"{count} messages came"):
        Pair("ring", lab, "ring").run(Work(1024, 300, warm=20, buffers=16), check=True)


@pytest.mark.parametrize(
    "way",
    [
        *("ring", "pipe", "unix", "zmq", "blocking_zmq", "blocking_tachyon"),
        *("c_ring", "c_pipe", "c_unix", "c_tachyon"),
    ],
)
def test_every_way_goes_there_and_back(way: str, lab: Lab) -> None:
    need(way)
    work = Work(64, 50, warm=5, buffers=1)
    run: Any = Trips(way, lab, way, roles=("ask", "echo")).run(work, check=True)
    assert len(run.times) == 50
    assert run.seconds == pytest.approx(sum(run.times) / 1e9)


def test_percentiles_are_told() -> None:
    times = range(1000, 1_001_000, 1000)
    run = TripRun(1, 1, 1, None, times)
    contestant: Any = type("Named", (), {"name": "ours"})()
    entry = racing.Entry(contestant, Work(64, 1000, 0, 1), [run])
    race = TripRace("trips", entry.work, [], [])
    assert race.remarks([entry]) == [
        "ours: half of the round trips within 500.0 us, 99 of 100 within 990.0, 999 of "
        "1,000 within 999.0"
    ]


def test_sizes_then_round_trips(lab: Lab) -> None:
    first, *between, last = ring.races(lab, Options())
    assert (first.work.messages, first.work.size) == (500_000, 1024)
    assert [race.work.size for race in between] == [*ring.SIZES.values()]
    assert isinstance(last, TripRace)


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_bench_ring_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["ring", "--quick", "--json"]) == 0
    vectors, one_way, trips = json.loads(capsys.readouterr().out)["races"]
    for race, count in ((vectors, 4), (one_way, 4), (trips, 13)):
        entries = race["contestants"]
        assert len(entries) + len(race["not_installed"]) == count
        assert all(one["verified"] for one in entries)
    assert len(trips["remarks"]) == len(trips["contestants"])
