"""The bench of the screen runs, looks at every pixel, and tells what it should."""

from __future__ import annotations

import json
import shutil
import sys
from typing import TYPE_CHECKING

import pytest

from aiozerocopy.bench import screens
from aiozerocopy.bench.capture import Camera, XServer
from aiozerocopy.bench.feeding import Lab
from aiozerocopy.bench.racing import Work, WrongBytes
from aiozerocopy.commands import bench

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest.importorskip("numpy")
pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.skipif(
        sys.platform != "linux" or shutil.which("Xvfb") is None, reason="needs Xvfb"
    ),
]
SIZE = (160, 90)
WORK = Work(160 * 90 * 4, 10, warm=4, buffers=1)


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab() as made:
        yield made


@pytest.mark.parametrize("way", screens.WAYS)
def test_every_way_sees_every_pixel(way: str, lab: Lab) -> None:
    needs = ("mss",) if way.startswith("mss") else ()
    for module in needs:
        pytest.importorskip(module)
    camera = Camera(way, XServer(lab, SIZE), lab, way, needs=needs)
    run = camera.run(WORK, check=True)
    assert run.seconds > 0
    assert run.sender_cpu > 0
    assert run.sink_cpu > 0


def test_wrong_pixel_is_found(lab: Lab) -> None:
    server = XServer(lab, SIZE).running()
    pid = server.process.pid
    job = screens.Job("grab", "asyncio", server.name, pid, SIZE, 0, 1, check=True)
    picture = bytearray(WORK.size)
    with pytest.raises(WrongBytes, match="grab: 14,400 pixels"):
        job.look(picture)
    job.close()


def test_bench_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["capture", "--quick", "--json"]) == 0
    [race] = json.loads(capsys.readouterr().out)["races"]
    assert race["title"] == "90p screen, a window moves"
    assert all(one["verified"] for one in race["contestants"])
    assert "of the X server's" in race["remarks"][0]
