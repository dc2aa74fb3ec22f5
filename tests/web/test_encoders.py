"""The encoders of H.264: what they make, and of which planes."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any
from unittest.mock import Mock

import anyio
import anyio.to_thread
import numpy as np
import pytest
from links import cut_short, until
from numpy.typing import NDArray

from aiozerocopy.broadcast import Broadcast
from aiozerocopy.frames import to_rgb
from aiozerocopy.web import encoders as web_encoders
from aiozerocopy.web import jpeg, modes, pixels
from aiozerocopy.web.child import by_ffmpeg
from aiozerocopy.web.codecs import AV1, H264, Made, Task
from aiozerocopy.web.encoding import Run
from aiozerocopy.web.planes import Planes
from aiozerocopy.web.pyav import in_process

pytestmark = pytest.mark.anyio

av = pytest.importorskip("av")

SIZE = 512


def task(form: str = "yuv420p", *, bits: int = 4_000_000, **more: Any) -> Task:
    picture = pixels.PictureFormat(SIZE, SIZE, pixels.FORMATS[form])
    return Task(picture, bits, **more)


def scene(number: int) -> NDArray[np.uint8]:
    """Draw the planes of a picture with soft colours, which move with the number."""
    y, x = np.mgrid[: SIZE * 3 // 2, :SIZE]
    waves = 60 * np.sin(x / 20 + number / 3) * np.sin(y / 15 - number / 4)
    drawn = 110 + waves + 40 * np.sin((x + y) / 50 + number / 5)
    return np.asarray(drawn, np.uint8)


async def encoded(
    encoders: Any,
    of: Task,
    planes: Iterable[NDArray[np.uint8]],
    keys: Sequence[int] = (),
) -> list[Made]:
    """Return the configuration, and what is made of each frame."""
    made: list[Made] = []
    async with encoders(of, made.append) as encoder, cut_short(encoder.wait):
        for number, frame in enumerate(planes):
            await encoder.encode(frame.tobytes(), number, is_key=number in keys)
        await until(lambda: len(made) == number + 2)
    assert [each.number for each in made] == [*range(-1, number + 1)]
    return made


def nbytes(made: Made) -> int:
    return memoryview(made.payload).nbytes


def decoded(made: Sequence[Made], codec: str = "h264") -> list[Any]:
    context: Any = av.CodecContext.create(codec, "r")
    if codec == "h264":
        context.extradata = bytes(made[0].payload)
    packets = [av.Packet(bytes(each.payload)) for each in made[1:]]
    return [frame for packet in (*packets, None) for frame in context.decode(packet)]


@pytest.mark.parametrize("form", ["yuv420p", "nv12"])
async def test_the_pictures_are_those_and_in_their_colours(
    encoders: Any, form: str
) -> None:
    planes = [np.full((SIZE * 3 // 2, SIZE), 90 + n, np.uint8) for n in range(4)]
    for plane in planes:
        plane[SIZE:] = 60
    frames = decoded(await encoded(encoders, task(form), planes))
    assert len(frames) == 4
    for number, frame in enumerate(frames):
        assert (frame.width, frame.height) == (SIZE, SIZE)
        array = frame.to_ndarray(format="yuv420p").astype(int)
        assert np.abs(array[:SIZE] - 90 - number).max() <= 2
        assert np.abs(array[SIZE:] - 60).max() <= 2
        assert (frame.colorspace, frame.color_range) == (1, 1)  # BT.709, limited


@pytest.mark.parametrize("is_half", [False, True])
@pytest.mark.parametrize("height", [2, 6, 34, 64])
@pytest.mark.parametrize("form", ["yuv420p", "nv12"])
async def test_planes_of_any_even_height_stay_apart(
    encoders: Any, form: str, height: int, is_half: bool
) -> None:
    picture = pixels.PictureFormat(70, height, pixels.FORMATS[form])
    planes = np.full((height * 3 // 2, 70), 90, np.uint8)
    planes[:height] = 180
    made = await encoded(encoders, Task(picture, 2_000_000, is_half), [planes])
    frame = decoded(made)[0]
    array = frame.to_ndarray(format="yuv420p").astype(int)
    assert np.abs(array[: frame.height] - 180).max() <= 2
    assert np.abs(array[frame.height :] - 90).max() <= 2


async def test_key_frames_come_when_they_are_asked_for(encoders: Any) -> None:
    made = await encoded(encoders, task(), map(scene, range(30)), keys=[10, 11, 25])
    assert [each.number for each in made if each.is_key] == [-1, 0, 10, 11, 25]


async def test_no_other_key_frames_are_made(encoders: Any) -> None:
    picture = pixels.PictureFormat(64, 64, pixels.FORMATS["yuv420p"])
    planes = [np.full((96, 64), n % 200, np.uint8) for n in range(600)]
    made = await encoded(encoders, Task(picture, 2_000_000), planes)
    assert [each.number for each in made if each.is_key] == [-1, 0]


async def test_half_the_size_is_the_same_picture(encoders: Any) -> None:
    frame = decoded(await encoded(encoders, task(is_half=True), [scene(0)]))[0]
    assert (frame.width, frame.height) == (SIZE // 2, SIZE // 2)
    luma = frame.to_ndarray(format="yuv420p")[: SIZE // 2].astype(int)
    whole = scene(0)[:SIZE].reshape(SIZE // 2, 2, SIZE // 2, 2).mean(axis=(1, 3))
    assert np.abs(luma - whole).mean() < 3


@pytest.mark.parametrize("kind", ["waves", "noise"])
async def test_it_takes_the_bits_that_it_has(encoders: Any, kind: str) -> None:
    """A second of pictures takes 0.8 to 2 times its bits, even if they are noise."""
    random = np.random.default_rng(1)
    shape = (SIZE * 3 // 2, SIZE)
    frames = [
        scene(number) if kind == "waves" else random.integers(0, 255, shape, np.uint8)
        for number in range(31)
    ]
    made = await encoded(encoders, task(bits=2_000_000), frames)
    bits = 8 * sum(map(nbytes, made))
    assert 0.8 < bits / 2_000_000 < 2


async def test_the_bitrate_changes_while_it_runs() -> None:
    """The encoder in this process needs no key frame for that."""
    made: list[Made] = []
    async with in_process(H264, task(), made.append) as encoder:
        for number in range(90):
            if number == 45 and not encoder.follow(1_000_000):
                pytest.skip("this PyAV cannot change a bitrate")
            await encoder.encode(scene(number).tobytes(), number, is_key=False)
    sizes = [nbytes(each) for each in made[1:]]
    assert sum(sizes[60:]) < 0.4 * sum(sizes[15:45])
    assert [each.number for each in made if each.is_key] == [-1, 0]


@pytest.mark.skipif(not web_encoders.find_encoders(AV1), reason="needs SVT-AV1")
@pytest.mark.parametrize("is_half", [False, True])
@pytest.mark.parametrize("form", ["yuv420p", "nv12"])
async def test_av1_is_the_same_picture_by_the_same_rules(
    form: str, is_half: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    frames = [scene(number) for number in range(20)]
    for frame in frames:
        frame[SIZE:] = 90
    of = task(form, bits=2_000_000, is_half=is_half)
    encoders = partial(in_process, AV1)
    made = await encoded(encoders, of, frames, keys=[10])
    assert capfd.readouterr().err == ""  # (SVT-AV1 would print there)
    assert [each.number for each in made if each.is_key] == [-1, 0, 10]
    part = 2 if is_half else 1
    shape = (SIZE // part, part, SIZE // part, part)
    shown = decoded(made, "libdav1d")
    assert len(shown) == 20
    for seen, meant in zip(shown, frames, strict=True):
        assert (seen.width, seen.height) == (SIZE // part, SIZE // part)
        assert (seen.colorspace, seen.color_range) == (1, 1)  # BT.709, limited
        array = seen.to_ndarray(format="yuv420p").astype(int)
        luma = meant[:SIZE].reshape(shape).mean(axis=(1, 3))
        assert np.abs(array[: seen.height] - luma).mean() < 3
        assert np.abs(array[seen.height :] - 90).max() <= 2


async def test_what_cannot_be_encoded_is_an_oserror() -> None:
    picture = pixels.PictureFormat(20_000, 2, pixels.FORMATS["yuv420p"])
    huge = Task(picture, 2_000_000)
    with pytest.raises(OSError, match="PyAV: "):
        async with in_process(H264, huge, lambda _: None):
            pass


async def test_without_pyav_it_is_ffmpeg(monkeypatch: pytest.MonkeyPatch) -> None:
    found: Any = web_encoders.find_encoders()
    assert found.func is in_process
    monkeypatch.setattr(av, "Codec", None)
    found = web_encoders.find_encoders()
    assert found is None or found.func is by_ffmpeg
    assert web_encoders.find_encoders(AV1) is None
    monkeypatch.setattr(web_encoders, "ffmpeg_if_any", lambda: None)
    assert web_encoders.find_encoders() is None
    async with Broadcast() as hub:
        offered = modes.Modes(hub, ["h264", "raw"], 80, 1, 1, None).modes
    assert offered == ("raw",)


def test_without_numpy_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    known = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: name != "numpy" and known(name)
    )
    assert web_encoders.find_encoders() is None
    assert jpeg.find_compressor() is None


async def test_frames_are_encoded_in_turn() -> None:
    """A wish for a key frame waits while a frame is in a thread."""
    begun: list[int] = []
    go_on = anyio.Event()

    async def encode(planes: Any, number: int, *, is_key: bool) -> None:
        begun.append(number)
        await go_on.wait()

    run = Run(lambda _: None)
    run._encoder = Mock(last=math.inf, encode=encode)
    run._ready.set()
    picture = task().picture
    frame = pixels.websocket_message(b"", pixels.PIXELS, picture, 0, 0, key=True)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run.send, *frame)
        await anyio.wait_all_tasks_blocked()
        run._wants_key = True
        tasks.start_soon(partial(run._encode, if_wanted=True))
        await anyio.wait_all_tasks_blocked()
        assert begun == [0]
        go_on.set()
    assert begun == [0, 1]


# ---- planes --------------------------------------------------------------------------


async def planes_of(array: NDArray[np.uint8], form: str) -> tuple[Any, NDArray[Any]]:
    """Return the header, and the planes as RGB of an even size."""
    async with Broadcast() as hub:
        await hub.publish(array, pixel_format=form)
        assert hub._last is not None
        made: Any = await Planes().message(hub._last)
    header = pixels.Header.of(made[0])
    assert all(type(each) is bytes for each in made)
    width, height = (n + n % 2 for n in (header.picture.width, header.picture.height))
    assert len(made[1]) == width * height * 3 // 2
    return header, to_rgb(made[1], (width, height), source=header.picture.form.name)


async def test_frames_are_converted_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rendition that starts again asks for a frame while another is in a thread."""
    begun: list[Any] = []
    go_on = anyio.Event()

    async def run_sync(call: Any, *args: Any) -> Any:
        begun.append(args)
        await go_on.wait()
        return call(*args)

    monkeypatch.setattr(anyio.to_thread, "run_sync", run_sync)
    planes = Planes()
    async with Broadcast() as hub, anyio.create_task_group() as tasks:
        await hub.publish(np.zeros((4, 4, 3), np.uint8))
        assert hub._last is not None
        for _ in range(2):
            tasks.start_soon(planes.message, hub._last)
        await anyio.wait_all_tasks_blocked()
        assert len(begun) == 1
        go_on.set()
    assert len(begun) == 2


@pytest.mark.parametrize("size", [(16, 32), (15, 33), (1, 1), (15, 32)])
@pytest.mark.parametrize("form", ["rgb24", "bgr24", "rgba", "bgra", "gray8"])
async def test_planes_are_of_an_even_size(form: str, size: tuple[int, int]) -> None:
    colour = {"gray8": [90], "bgr24": [90, 40, 200], "bgra": [90, 40, 200, 7]}
    of_it = colour.get(form, [200, 40, 90, 7][: pixels.FORMATS[form].channels])
    array = np.empty((*size, len(of_it)), np.uint8)
    array[:] = of_it
    header, rgb = await planes_of(array, form)
    assert header.picture == pixels.PictureFormat(
        *size[::-1], pixels.FORMATS["yuv420p"]
    )
    seen = rgb[: max(size[0] - 1, 1), : max(size[1] - 1, 1)].astype(int)
    expected = [90] * 3 if form == "gray8" else [200, 40, 90]
    if min(size) > 1:
        assert np.abs(seen - expected).max() <= 4


@pytest.mark.parametrize("height", [16, 15])
@pytest.mark.parametrize("form", ["yuv420p", "nv12"])
async def test_yuv_stays_what_it_is(form: str, height: int) -> None:
    rows = height + (height + 1) // 2
    array = np.full((rows, 32), 128, np.uint8)
    array[:height] = 100
    header, rgb = await planes_of(array, form)
    assert header.picture == pixels.PictureFormat(32, height, pixels.FORMATS[form])
    assert np.ptp(rgb[:height]) == 0
    assert height % 2 == 0 or rgb[height].max() == 0
