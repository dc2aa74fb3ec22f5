"""H.264 in hardware, which libx264 plays here: taken if it is live, left if it ends."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ffmpegs
import pytest
from ffmpegs import pretend as pretend
from links import until
from web_client import publishing, watching

from aiozerocopy import web
from aiozerocopy.broadcast import Broadcast
from aiozerocopy.ffmpeg.codecs import KNOWN
from aiozerocopy.web import encoders, hardware, pixels
from aiozerocopy.web.child import ffmpeg_command
from aiozerocopy.web.codecs import Task

np = pytest.importorskip("numpy")
pytestmark = pytest.mark.anyio

# Runs FFmpeg with libx264 in place of NVENC, without the options that only NVENC has.
GPU = """
echo "$*" >>{log}
case "$*" in
    *lavfi*h264_nvenc*) exit 0;;
    *lavfi*) exit 1;;
    *-encoders*) {real} -hide_banner -encoders; echo " V..... h264_nvenc x"; exit;;
    *h264_nvenc*) ;;
    *) exec {real} "$@";;
esac
skip=
for word; do
    shift
    [ -z "$skip" ] || {{ skip=; continue; }}
    case $word in
        h264_nvenc) set -- "$@" libx264 {more};;
        ull) set -- "$@" {tune};;
        -zerolatency|-delay|-rc|{without}) skip=1;;
        *) set -- "$@" "$word";;
    esac
done
exec {real} "$@"
"""


@pytest.fixture
def gpu(
    pretend: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Any:
    """Return a function that makes an FFmpeg with hardware, and returns its log."""

    def make(more: str = "", tune: str = "zerolatency", without: str = "-") -> Path:
        log = tmp_path / "log"
        real = ffmpegs.needed("packaged")
        fake = pretend(
            GPU.format(log=log, real=real, more=more, tune=tune, without=without)
        )
        monkeypatch.setattr(encoders, "ffmpeg_if_any", lambda: fake)
        return log

    return make


def picture(number: int) -> Any:
    return np.full((64, 64, 3), number % 256, np.uint8)


async def show(hub: Broadcast, pictures: int) -> list[bool]:
    """Publish and watch this many pictures; return which were key frames."""
    keys: list[bool] = []
    async with web.serve(hub, hardware=True) as to, watching(to, "/h264") as viewer:
        for number in range(pictures):
            await hub.publish(picture(number))
            header, _ = await viewer.message()
            while header[1] != pixels.CODED:
                header, _ = await viewer.message()
            keys.append(bool(header[3] & 1))
    return keys


async def test_hardware_that_is_live_encodes(
    hub: Broadcast, gpu: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    log = gpu()
    assert await show(hub, 10) == [True] + [False] * 9
    assert "H.264 is encoded by h264_nvenc" in caplog.text
    assert "libx264" not in log.read_text()


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param({"tune": "film"}, id="holds frames back"),
        pytest.param({"without": "-force_key_frames"}, id="makes no key frames"),
        pytest.param({"more": "-x264-params keyint=1"}, id="only key frames"),
        pytest.param({"more": "-no_such_option 1"}, id="does not start"),
    ],
)
async def test_hardware_that_is_not_live_is_left(
    hub: Broadcast,
    gpu: Any,
    fault: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(hardware, "PATIENCE", 1.0)
    caplog.set_level(logging.INFO)
    gpu(**fault)
    assert await show(hub, 3) == [True, False, False]
    assert "is encoded by" not in caplog.text


async def test_hardware_that_ends_is_replaced(
    hub: Broadcast, gpu: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The viewer goes on with a key frame by the CPU, which encodes from then on."""
    log = gpu(more="-frames:v 20")
    async with web.serve(hub, hardware=True) as to:
        # (Not a frame for each message: on a busy machine the server drops pictures.)
        async with watching(to, "/h264") as viewer, publishing(hub):
            kinds: list[int] = []
            while kinds.count(pixels.CONFIGURATION) < 2 or kinds[-1] != pixels.CODED:
                header, _ = await viewer.message()
                kinds.append(header[1])
        assert "another encoder goes on" in caplog.text
        assert "is not encoded" not in caplog.text  # (so no other rendition took over)
        asked = log.read_text()
        await until(lambda: not hub.clients)
        async with watching(to, "/h264") as viewer:
            while (await viewer.message())[0][1] != pixels.CODED:
                pass
    assert log.read_text() == asked


async def test_without_an_answer_it_is_the_cpu(
    hub: Broadcast, pretend: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoders, "ffmpeg_if_any", lambda: pretend("exit 1"))
    pytest.importorskip("av")
    assert await show(hub, 2) == [True, False]


@pytest.mark.parametrize("codec", [name for name in KNOWN if name.startswith("h264_")])
def test_each_encoder_gets_its_own_words(codec: str) -> None:
    """They name its device and its upload, hold no frame back, and limit the bits."""
    shape = pixels.PictureFormat(64, 64, pixels.FORMATS["nv12"])
    words = ffmpeg_command("ffmpeg", Task(shape, 1_000_000, is_half=True), codec)
    asked = " ".join(words)
    known = KNOWN[codec]
    for part in (known.before, known.low_delay, ("-b:v", "1000000", "-maxrate:v")):
        assert " ".join(part) in asked
    assert not known.filters or f"bt709,{known.filters} -c:v {codec}" in asked
    assert "x264" not in asked
    assert "ultrafast" not in asked
