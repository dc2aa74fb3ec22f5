"""Every bench runs in a small size, and what checks its bytes finds a wrong one."""

import contextlib
import importlib
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench import encode, ffmpeg, pipes, receive, relay, results, ring, sockets, viewer
from bench.__main__ import BENCHES
from bench.processes import Lab
from bench.race import Lacking, Race, Work, WrongBytes
from bench.watching import Source

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
    """Each contender once, in the first of its races."""
    tried: set[str] = set()
    try:
        races = [*importlib.import_module(f"bench.{name}").races(lab, True)]
        for race in [race.in_table() for race in races if not race.extra]:
            names = {one.name for one in race.contenders}
            for duel in race.duels:
                assert {duel.ours, *(duel.among or [duel.rival])} <= names
            for contender in race.contenders:
                if not contender.missing and contender.name not in tried:
                    assert contender.run(race.work, True).seconds > 0
            tried |= names
    except Lacking as lack:
        pytest.skip(str(lack))


def test_benches_make_the_rows_of_the_table(lab: Lab) -> None:
    """And with as many messages, so that a run can be compared with the table."""
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
    """Wrap `Lab.pattern`: at every second call, its file has a wrong byte."""
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
        (receive, "receive_exactly, asyncio", 1),
        pytest.param(relay, "relay, asyncio", 1, marks=pytest.mark.slow),
        pytest.param(ring, "ring", 0, marks=pytest.mark.slow),
        pytest.param(pipes, "open_process, send, asyncio", 0, marks=pytest.mark.slow),
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


@pytest.mark.slow
@pytest.mark.parametrize("what", ["figures", "painted$", "8 viewers", "newcomers"])
def test_viewers_see_the_pictures(what: str, lab: Lab) -> None:
    """In a browser, here and over a slow link; the bench is not in the table."""
    try:
        [race] = [one for one in viewer.races(lab, True) if re.search(what, one.title)]
        run = race.contenders[0].run(race.work, True)
    except Lacking as lack:
        pytest.skip(str(lack))
    assert run.more is not None
    assert min(run.more.values()) > 0


@pytest.mark.parametrize(("number", "when"), [(1, 1030.0), (2, 1070.0)])
def test_picture_that_was_not_yet_published_is_found(number: int, when: float) -> None:
    source: Any = SimpleNamespace(published=[1000.0, 1033.0])
    told = {"seen": [[0, 1010.0], [number, when]], "viewers": 1}
    with pytest.raises(WrongBytes, match="seen before it was published"):
        Source._found(source, told, range(2))
