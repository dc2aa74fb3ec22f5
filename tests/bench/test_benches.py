"""Every bench runs in a small size, and what checks its bytes finds a wrong one."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import socket
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bench import (
    capture,
    dask,
    decode,
    encode,
    fanout,
    feeding,
    ffmpeg,
    pipes,
    relay,
    render,
    results,
    ring,
    sockets,
    transport,
)
from bench.__main__ import BENCHES
from bench.processes import Lab
from bench.race import Lacking, Race, Work, WrongBytes
from bench.video import waves
from bench.worker import Job

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

np = pytest.importorskip("numpy")  # whose threads begin when it is imported
TABLE = Path(__file__).parents[2] / "docs" / "pages" / "benchmarks.json"
pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab() as made:
        yield made


@pytest.mark.slow
@pytest.mark.parametrize("name", BENCHES)
def test_all_that_the_table_shows_runs(name: str, lab: Lab) -> None:
    try:
        races = [*importlib.import_module(f"bench.{name}").races(lab, True)]
        for race in [race.in_table() for race in races if not race.extra]:
            names = {one.name for one in race.contenders}
            for duel in race.duels:
                assert {duel.ours, duel.rival} <= names
            for contender in race.contenders:
                if not contender.missing:
                    assert contender.run(race.work, True).seconds > 0
    except Lacking as lack:
        pytest.skip(str(lack))


def test_benches_make_the_rows_of_the_table(lab: Lab) -> None:
    """With as many messages, so that a run can be compared with what is there."""
    made = set()
    for name in BENCHES:
        with contextlib.suppress(Lacking):
            for race in importlib.import_module(f"bench.{name}").races(lab, False):
                made.add((name, without_version(race.title), race.work.messages))
    names = {name for name, *_ in made}
    for one in results.from_json(TABLE.read_text()).results:
        row = (one.bench, without_version(one.title), one.messages)
        assert row in made or one.bench not in names


def without_version(title: str) -> str:
    return re.sub(r"FFmpeg [\d.]+", "FFmpeg", title)


def contender_of(races: Iterator[Race], name: str, at: int = 0) -> tuple[Any, Work]:
    race = [*races][at]
    work = replace(race.work, messages=min(race.work.messages, 2 * race.work.buffers))
    return next(one for one in race.contenders if one.name == name), work


def one_other_byte(pattern: Callable[..., str]) -> Callable[..., str]:
    """As `Lab.pattern`, whose file has another byte every second time."""
    calls = []

    def other(*args: Any) -> str:
        path = Path(pattern(*args))
        calls.append(path)
        if len(calls) % 2:
            return str(path)
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        wrong = path.with_name(f"{path.name}-wrong")
        wrong.write_bytes(data)
        return str(wrong)

    return other


@pytest.mark.parametrize(
    ("bench", "name", "at"),
    [
        (sockets, "C send loop", 1),
        pytest.param(sockets, "send, asyncio", 1, marks=pytest.mark.slow),
        pytest.param(relay, "relay, asyncio", 1, marks=pytest.mark.slow),
        pytest.param(pipes, "open_process, send, asyncio", 1, marks=pytest.mark.slow),
        pytest.param(ffmpeg, "put, asyncio", 0, marks=pytest.mark.slow),
    ],
)
def test_wrong_byte_is_found(
    bench: Any, name: str, at: int, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    contender, work = contender_of(bench.races(lab, True), name, at)
    monkeypatch.setattr(Lab, "pattern", one_other_byte(Lab.pattern))
    with pytest.raises(WrongBytes, match=r"the first wrong one is|other bytes"):
        contender.run(work, True)


def job(**told: Any) -> Job:
    return Job(check=True, **told)


def test_wrong_message_of_a_ring_is_found(lab: Lab) -> None:
    work = Work(1024, 300, warm=20, buffers=16)
    path = ring.pattern(lab, work)
    tally = ring.Tally(job(**work.told, pattern=path, means=False))
    rows = np.fromfile(path, "f4").reshape(16, -1)
    tally.take(rows)
    rows[5, 255] += 1
    tally.take(rows)
    assert (tally.count, tally.told()["wrong"]) == (32, 16 + 5)


def test_wrong_array_is_found(lab: Lab) -> None:
    work = Work(1000, 10, warm=2, buffers=2)
    path = lab.pattern(work)
    array = dask.make(path, work.size, 3).copy()
    assert not dask.is_wrong(array, path, 3, True)
    assert dask.is_wrong(array, path, 2, True)
    array[999] ^= 1
    assert dask.is_wrong(array, path, 3, True)


@pytest.mark.parametrize("sent", [b"picture", b"pictuRe"])
def test_wrong_byte_at_a_client_is_found(sent: bytes, tmp_path: Path) -> None:
    address = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(address)
        server.listen()
        told = {"size": 7, "warm": 0, "messages": 2, "framing": "wire", "path": address}
        client = fanout.Client(job(**told, address=address), bytearray(b"picture"))
        peer, _ = server.accept()
    with peer, client.socket:
        peer.sendall(bytes(128) + b"picture" + bytes(128) + sent)
        assert not client.read(bytearray(1000))
    assert client.is_wrong == (sent != b"picture")
    assert len(client.arrived) == 2


def test_wrong_answer_is_found(lab: Lab) -> None:
    work = Work(1000, 8, warm=4, buffers=2)
    ours, theirs = feeding.unix_link()
    told = {**work.told, "pattern": lab.pattern(work), "fd": ours}
    with socket.socket(fileno=theirs) as peer:
        data = Path(told["pattern"]).read_bytes()
        wrong = bytearray(data)
        wrong[5] ^= 1
        peer.sendall(data * 2 + wrong + data * 3)
        assert transport.ask(job(**told))["wrong"] == 4


def test_wrong_pixel_of_the_screen_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = capture.Desk.__new__(capture.Desk)
    desk._job = job()
    monkeypatch.setattr(capture, "SIZE", (8, 4))
    desk._at, desk._window_size = (2, 1), (2, 1)
    picture = np.full((4, 8), capture.BACKGROUND, "u4")
    picture[1, 2:4] = capture.WINDOW
    desk.look(picture)
    picture[3, 7] ^= 1
    with pytest.raises(WrongBytes, match="1 pixels"):
        desk.look(picture)


def test_wrong_frame_of_a_film_is_found(lab: Lab) -> None:
    path = waves(lab, (16, 9), 2)
    frames = np.fromfile(path, "u1").reshape(2, -1)
    told = {"size": frames.shape[1], "warm": 2, "messages": 8, "pictures": str(path)}
    watch = decode.Watch(job(**told))
    assert watch.take(frames[0])
    assert watch.told() == {"received": 1, "off": 0}
    assert watch.take(frames[0] ^ 128)  # where the second one is due
    assert watch.told()["off"] > decode.NEAR


def test_wrong_frame_of_a_scene_is_found(lab: Lab) -> None:
    work = Work(12, 2, warm=1, buffers=1)
    feeder = render.SceneFeeder(lab, "ours", {})
    (lab.path / "reference").write_bytes(bytes(36))
    checked = lab.path / "checked"
    checked.write_bytes(bytes(36))
    feeder.compare(work, checked)
    for wrong in (bytes(24) + b"\xff" * 12, bytes(35)):
        checked.write_bytes(wrong)
        with pytest.raises(WrongBytes, match=r"frame 2|35 bytes"):
            feeder.compare(work, checked)


@pytest.mark.slow
def test_wrong_film_is_found(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    contender, work = contender_of(encode.races(lab, True), "imageio-ffmpeg")
    pattern = one_other_byte(encode.Encoder.pattern)

    def noise(feeder: Any, work: Work) -> str:
        path = Path(pattern(feeder, work))
        if path.name.endswith("wrong"):
            path.write_bytes(os.urandom(path.stat().st_size))
        return str(path)

    monkeypatch.setattr(encode.Encoder, "pattern", noise)
    with pytest.raises(WrongBytes, match="a frame is off"):
        contender.run(work, True)
