"""The benches of the network run, see every byte, and tell what they should."""

from __future__ import annotations

import importlib
import io
import json
import socket
from array import array
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from aiozerocopy.bench import chart, clients, fanout, racing, rate
from aiozerocopy.bench.clients import Sink
from aiozerocopy.bench.fan_servers import Job
from aiozerocopy.bench.fanout import Crowd, Fan, FanRace, FanRun
from aiozerocopy.bench.feeding import Lab
from aiozerocopy.bench.racing import Comparison, Options, Race, Run, Work, WrongBytes
from aiozerocopy.bench.rate import Inspector, Paced, RateRace, RateRun
from aiozerocopy.commands import bench

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.timeout(60)

QUICK = Options(rounds=1, quick=True)
# 4 frames to 3 clients, 2 before
WORK = Work(fanout.FRAME, 3 * 4, warm=3 * 2, buffers=1)


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab() as made:
        yield made


def entry(name: str, *runs: Run, work: Work = WORK) -> racing.Entry:
    contestant: Any = type("Named", (), {"name": name})()
    return racing.Entry(contestant, work, [*runs])


# ---- the fan -------------------------------------------------------------------------


@pytest.mark.parametrize("link", ["tcp", "unix"])
@pytest.mark.parametrize(
    ("way", "loop"),
    [
        ("broadcast", "asyncio"),
        ("broadcast", "uvloop"),
        ("websockets", "asyncio"),
        ("aiohttp", "uvloop"),
        ("c_loop", "asyncio"),
    ],
)
def test_every_way_carries_every_byte(lab: Lab, way: str, loop: str, link: str) -> None:
    for module in {way, loop} - {"broadcast", "c_loop", "asyncio"}:
        pytest.importorskip(module)
    run = Fan(way, lab, way, Crowd(3, link), loop).run(WORK, check=True)
    assert run.seconds > 0
    assert 0 <= run.memory < 100e6
    assert len(run.ages) == WORK.messages
    assert all(0 < age < 60 for age in run.ages)


def test_frames_are_published_in_time(lab: Lab) -> None:
    run = Fan("ours", lab, "broadcast", Crowd(3, fps=100)).run(WORK, check=True)
    assert run.seconds >= 3 / 100


def test_bytes_that_are_missing_are_found(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(clients.PREFIX, "wire", 129)
    with pytest.raises(WrongBytes, match="bytes came and not"):
        Fan("ours", lab, "broadcast", Crowd(3)).run(WORK, check=False)


@pytest.mark.parametrize("wrong", [False, True])
def test_sink_compares_and_takes_the_time(tmp_path: Path, wrong: bool) -> None:
    pattern = tmp_path / "pattern"
    pattern.write_bytes(b"picture")
    told = {"framing": "wire", "pattern": str(pattern), "check": True}
    told |= {"size": 7, "warm": 0, "frames": 2, "clients": 1}
    with socket.create_server(("127.0.0.1", 0)) as server:
        sink = Sink({**told, "address": server.getsockname()})
        peer, _ = server.accept()
    [(fd, sock)] = sink.sockets.items()
    with sock, peer:
        peer.sendall((bytes(128) + b"picture") + bytes(128))
        peer.sendall(b"pictuRe" if wrong else b"picture")
        sink.run()
    assert sink.wrong == ({fd} if wrong else set())
    assert sink.received[fd] == 2 * (128 + 7)
    assert len(sink.arrived[fd]) == 2


def test_age_is_from_published_to_arrived(tmp_path: Path) -> None:
    published, arrived = array("q", [0, 10, 20]), array("q", [9, 11, 22, 9, 13, 24])
    (tmp_path / "published").write_bytes(published)
    (tmp_path / "arrived").write_bytes(arrived)
    job = Job("broadcast", "asyncio", 2, "tcp", 7, 1, 2, 0, "", False, str(tmp_path))
    assert [round(age * 1e9) for age in job.ages()] == [1, 2, 3, 4]


def test_memory_and_age_are_told() -> None:
    runs = [FanRun(1, 1, 1, None, kb * 1e3, [0.001, 0.002, 0.003]) for kb in (1, 9, 4)]
    race = FanRace("one", WORK, [], [])
    assert race.remarks([entry("ours", *runs)]) == [
        "ours: 4 KB of memory for each client, "
        "frames 2.00 ms old at the clients (99 of 100 within 3.00 ms)"
    ]


def test_more_and_more_clients_then_the_rate(lab: Lab) -> None:
    *fans, last = fanout.races(lab, Options())
    assert [race.count for race in fans] == [1, 10, 100, 1000, *[None] * 6]
    assert [race.title for race in fans[4:]] == [
        "100 KB to 100 clients over UNIX sockets",
        "100 KB to 1,000 clients over UNIX sockets",
        "100 KB to 100 clients, 30 times a second",
        "100 KB to 1,000 clients, 3 times a second",
        "100 KB to 100 clients over UNIX sockets, 30 times a second",
        "100 KB to 1,000 clients over UNIX sockets, 3 times a second",
    ]
    assert all(one.by_cpu for race in fans for one in race.comparisons)
    assert last.title.startswith("rate")
    assert (last.work.messages, last.rounds) == (1200, 1)


# ---- the rate ------------------------------------------------------------------------


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_frames_come_in_time(lab: Lab, loop: str) -> None:
    if loop == "uvloop":
        pytest.importorskip("uvloop")
    work = Work(320 * 180 * 3, 6, warm=0, buffers=1)
    run = Paced("ours", lab, loop).run(work, check=True)
    assert len(run.ages) + run.dropped == 6
    assert run.seconds >= 5 / rate.FPS - 0.002  # (uvloop counts milliseconds)


@pytest.fixture
def inspector(tmp_path: Path) -> Inspector:
    pattern = tmp_path / "pattern"
    pattern.write_bytes(bytes(100))
    return Inspector(rate.Job("asyncio", 100, 9, str(pattern), compared=2))


def frame(number: int) -> bytearray:
    made = bytearray(100)
    rate.mark(made, number)
    return made


def test_right_frames_are_right_though_some_are_missing(inspector: Inspector) -> None:
    for number in (0, 1, 2, 5, 8):
        inspector.look(number, memoryview(frame(number)))
    assert inspector.wrong == 0


@pytest.mark.parametrize("number", [3, 4])
def test_frame_made_of_two_is_found(inspector: Inspector, number: int) -> None:
    torn = frame(number)[:60] + frame(number - 1)[60:]
    inspector.look(number, memoryview(torn))
    assert inspector.wrong == 1


def test_frame_that_comes_twice_is_found(inspector: Inspector) -> None:
    inspector.look(3, memoryview(frame(3)))
    inspector.look(3, memoryview(frame(3)))
    assert inspector.wrong == 1


def test_wrong_byte_is_found(inspector: Inspector) -> None:
    wrong = frame(4)
    wrong[20] ^= 1
    inspector.look(4, memoryview(wrong))
    assert inspector.wrong == 1


@pytest.mark.parametrize("dropped", [0, 2])
def test_dropped_frames_are_told(dropped: int) -> None:
    run = RateRun(20.0, 3.0, 2.0, None, dropped, [0.004])
    race = RateRace("rate", WORK, [], [])
    assert race.remarks([entry("ours", run)]) == [
        f"rate: ours, {dropped} of 12 frames dropped, "
        "frames 4.00 ms old at the clients (99 of 100 within 4.00 ms), "
        "server at 15% and client at 10% of a core"
    ]


# ---- the chart -----------------------------------------------------------------------


def series() -> list[racing.Result]:
    """Of two counts, the greater first; ours costs 100 and 50 us, theirs twice that."""
    results = []
    for count, cpu in ((100, 0.5), (1, 1.0)):
        work = Work(100_000, 10_000, warm=0, buffers=1)  # 1 GB
        ours, theirs = (
            entry(name, Run(1, cpu * factor, 1, None), work=work)
            for name, factor in (("ours, uvloop", 1), ("theirs, asyncio", 2))
        )
        comparison = Comparison(ours.name, [theirs.name], by_cpu=True)
        verdict = racing.Verdict(ours.name, theirs.name, 1.0, 0.5)
        race = Race("fakes", work, [], [comparison], count=count)
        results.append(racing.Result(race, [ours, theirs], [verdict], []))
    return results


def test_cost_is_cpu_for_each_message() -> None:
    assert chart.costs(series()) == {
        "ours, uvloop": [(1, 100.0), (100, 50.0)],
        "theirs, asyncio": [(1, 200.0), (100, 100.0)],
    }


def test_loops_of_one_library_share_a_color() -> None:
    names = ["ours, a", "ours, b", "one, a", "two, a", "one, b"]
    colors = chart.colors_of(names, {"ours, a"})
    assert colors == {"ours": "tab:green", "one": "tab:blue", "two": "tab:orange"}


@pytest.fixture(scope="module")
def fonts() -> None:
    """matplotlib looks for all fonts once, and keeps those that it uses open."""
    pytest.importorskip("matplotlib")
    figure: Any = importlib.import_module("matplotlib.figure").Figure()
    chart.draw_lines(figure, series())
    with closing(io.BytesIO()) as file:
        figure.savefig(file)


def test_chart_of_counts_is_a_picture(fonts: None, tmp_path: Path) -> None:
    path = tmp_path / "chart.png"
    results = series()
    beside = replace(results[0], race=replace(results[0].race, count=None))
    chart.draw([*results, beside], path)
    assert path.read_bytes().startswith(b"\x89PNG")


# ---- the bench -----------------------------------------------------------------------


@pytest.mark.slow
def test_bench_fanout_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["fanout", "--quick", "--json"]) == 0
    fan, paced = json.loads(capsys.readouterr().out)["races"]
    assert fan["title"] == "100 KB to 100 clients"
    assert paced["title"].startswith("rate: 180p60")
    for race, count in ((fan, 7), (paced, 2)):
        entries = race["contestants"]
        assert len(entries) + len(race["not_installed"]) == count
        assert len(race["remarks"]) == len(entries)
        assert all(one["verified"] for one in entries)
    assert all(told["cpu_ratio"] > 0 for told in fan["comparisons"])
