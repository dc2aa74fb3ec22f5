"""What viewers get: raw pixels, JPEGs and H.264, and the reasons why there is none."""

from __future__ import annotations

import logging
import threading
from functools import partial
from typing import Any

import numpy as np
import pytest
from links import until
from numpy.typing import NDArray
from web_client import (
    END_OF_JPEG,
    HEIGHT,
    WIDTH,
    asking,
    connected,
    needs_jpeg,
    picture,
    publishing,
    until_seen,
    watching,
    with_each_encoder,
    wsproto,
)

import aiozerocopy as azc
from aiozerocopy import web
from aiozerocopy.broadcast import Broadcast
from aiozerocopy.web import child, jpeg, modes, pixels, renditions, websocket

pytestmark = pytest.mark.anyio


def planes(number: int = 0) -> NDArray[np.uint8]:
    """The picture as YUV: rows of luma, and half as many of chroma."""
    return picture(number, 1).reshape(HEIGHT, WIDTH)[: HEIGHT // 2 * 3 // 2]


@pytest.mark.parametrize("name", [*pixels.FORMATS, "rgb0", "bgr0"])
async def test_raw_frames_arrive_as_they_were(hub: Broadcast, name: str) -> None:
    form = pixels.FORMATS[pixels._ALIASES.get(name, name)]
    height = HEIGHT // 2 if form.is_yuv else HEIGHT
    async with web.serve(hub) as to, watching(to) as viewer:
        for number in range(3):
            frame = planes(number) if form.is_yuv else picture(number, form.channels)
            await hub.publish(frame, pixel_format=name, timestamp_ns=5_000_000)
            header, payload = await viewer.message()
            size = WIDTH, height, len(payload)
            expected = (1, 0, form.code, 1, *size, number, 5_000)
            assert header == expected
            assert payload == frame.tobytes()


async def test_raw_copies_nothing(hub: Broadcast) -> None:
    seen: list[Any] = []

    def encode(frame: Any) -> Any:
        seen.append((frame.view, pixels.raw(frame)))
        return (b"",)

    send, receive = azc.socketpair()
    async with send, receive:
        client = hub.attach(send, encode=encode)
        await hub.publish(picture())
        client.detach()
    view, buffers = seen.pop()
    assert buffers[1] is view


@pytest.mark.parametrize("size", [0, 125, 126, 65535, 65536])
def test_binary_headers(size: int) -> None:
    ws = wsproto.connection.Connection(wsproto.ConnectionType.CLIENT)
    ws.receive_data(websocket.binary_header(size) + bytes(size))
    messages = list(ws.events())
    assert sum(len(message.data) for message in messages) == size
    assert messages[-1].message_finished


@needs_jpeg
async def test_a_frame_is_compressed_once_for_all(
    hub: Broadcast, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    compress = jpeg.find_compressor()
    assert compress is not None

    def counted(*args: Any) -> bytes:
        calls.append(1)
        return compress(*args)

    monkeypatch.setattr(jpeg, "find_compressor", lambda: counted)
    async with web.serve(hub) as to:
        async with connected(to) as one, connected(to) as two, connected(to) as old:
            for stream in (one, two):
                await stream.send(asking("/stream.mjpg"))
            await old.send(b"GET /stream.mjpg HTTP/1.0\r\nHost: localhost\r\n\r\n")
            await until(lambda: to.viewers == 3)
            await hub.publish(picture())
            for stream in (one, two, old):
                data = await until_seen(stream, END_OF_JPEG)
                assert (b"transfer-encoding" in data.lower()) == (stream is not old)
            assert len(calls) == 1


@pytest.mark.every_loop
@needs_jpeg
async def test_a_slow_compressor_delays_nobody_else(
    hub: Broadcast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others get every frame; frames that the compressor missed are never encoded."""
    calls: list[int] = []
    go = threading.Semaphore(0)

    def compress(array: Any, *_: Any) -> bytes:
        calls.append(int(array[0, 0, 0]))
        go.acquire()
        return b"jpeg %d" % calls[-1]

    monkeypatch.setattr(jpeg, "find_compressor", lambda: compress)
    async with web.serve(hub) as to, connected(to) as slow, watching(to) as raw:
        await slow.send(asking("/stream.mjpg"))
        await until(lambda: to.viewers == 2)
        with azc.FramePool((HEIGHT, WIDTH, 3), slots=3) as pool:
            for number in range(20):
                with await pool.acquire() as frame:
                    frame.array[:] = number
                    await hub.publish(frame)
                del frame
                header, payload = await raw.message()
                assert (header[7], payload[0]) == (number, number)
                await until(lambda: calls == [0])
        go.release()
        await until(lambda: calls == [0, 19])
        go.release()
        data = await until_seen(slow, b"jpeg 19")
        assert data.count(b"Content-Type: image/jpeg") == 2


@needs_jpeg
@pytest.mark.parametrize("name", ["simplejpeg", "PIL"])
@pytest.mark.parametrize("layout", ["gray8", *jpeg._COLOURS])
def test_compressors_agree_on_colours(name: str, layout: str) -> None:
    pytest.importorskip(name)
    image = pytest.importorskip("PIL.Image")
    import io

    form = pixels.FORMATS[layout]
    color = {"gray8": [90], "rgb24": [200, 40, 90], "bgr24": [90, 40, 200]}.get(
        layout, [200, 40, 90, 255] if layout == "rgba" else [90, 40, 200, 255]
    )
    frame = np.empty((HEIGHT, WIDTH, form.channels), np.uint8)
    frame[:] = color
    encoded = jpeg._COMPRESSORS[name](frame, form, 90)
    with image.open(io.BytesIO(encoded)) as decoded:
        seen = np.asarray(decoded.convert("RGB"))[HEIGHT // 2, WIDTH // 2]
    expected = [90] * 3 if layout == "gray8" else [200, 40, 90]
    assert np.abs(seen.astype(int) - expected).max() <= 4


@pytest.mark.parametrize(
    ("size", "megabits"),
    [((320, 180), 2), ((960, 540), 4), ((1920, 1080), 8), ((3840, 2160), 8)],
)
def test_bits_follow_from_the_size(size: tuple[int, int], megabits: int) -> None:
    assert renditions.bitrate(*size) == megabits * 1_000_000


@pytest.mark.every_loop
@with_each_encoder
async def test_h264_begins_anew_for_another_size(hub: Broadcast) -> None:
    async with web.serve(hub) as to, watching(to, "/h264") as viewer:
        for height in (48, 33):
            async with publishing(hub, height):
                while True:
                    header, _ = await viewer.message()
                    if header[1] == pixels.CONFIGURATION and header[5] == height:
                        break
                header, _ = await viewer.message()
                assert header[1] == pixels.CODED
                assert header[4:6] == (WIDTH, height)


@with_each_encoder
async def test_h264_begins_anew_when_a_still_picture_has_the_last_timestamp(
    hub: Broadcast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "LAST_FRAME", 1)
    async with web.serve(hub) as to, watching(to, "/h264") as first:
        await hub.publish(picture())
        while (await first.message())[0][1] != pixels.CODED:
            pass
        async with watching(to, "/h264") as late:
            for viewer in (late, first):
                while (await viewer.message())[0][1] != pixels.CODED:
                    pass


async def test_viewers_hear_that_h264_is_impossible(
    hub: Broadcast, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken = partial(child.by_ffmpeg, "/bin/false")
    monkeypatch.setattr(modes, "find_encoders", lambda *_, **__: broken)
    await hub.publish(picture())
    with caplog.at_level(logging.ERROR, "aiozerocopy"):
        async with web.serve(hub) as to, watching(to, "/h264") as viewer:
            assert await viewer.code() == 4406
            async with watching(to, "/raw") as other:
                assert (await other.message())[1] == picture().tobytes()
    assert "FFmpeg ended" in caplog.text


@needs_jpeg
async def test_what_is_no_picture_is_told_between_jpegs(hub: Broadcast) -> None:
    async with web.serve(hub) as to, connected(to) as stream:
        await stream.send(asking("/stream.mjpg"))
        await hub.publish(np.zeros((4, 4, 3), np.float32))
        data = await until_seen(stream, b"not uint8\r\n")
        assert b"Content-Type: text/plain" in data
        await hub.publish(picture())
        assert b"Content-Type: image/jpeg" in await until_seen(stream, END_OF_JPEG)


@needs_jpeg
async def test_what_no_jpeg_can_hold_is_told(hub: Broadcast) -> None:
    """And the viewer goes on with the next frame."""
    async with web.serve(hub) as to, watching(to, "/stream.mjpg") as viewer:
        for shape in ((1, 65_501), (65_501, 1)):
            await hub.publish(np.zeros((*shape, 3), np.uint8))
            header, payload = await viewer.message()
            size = f"{shape[1]}x{shape[0]}"
            assert header[1] == pixels.REASON
            assert payload.decode().startswith(f"its size is {size}: JPEG has at most")
        await hub.publish(np.zeros((1, 65_500, 3), np.uint8))
        assert (await viewer.message())[0][1] == pixels.JPEG


@with_each_encoder
async def test_what_is_no_picture_is_told_between_packets(hub: Broadcast) -> None:
    """Viewers are told even before the first packet, and if they come later."""
    async with web.serve(hub) as to, watching(to, "/h264") as viewer:
        for number in (0, 2):
            await hub.publish(np.zeros((4, 4, 3), np.float32))
            header, payload = await viewer.message()
            assert (header[1], header[7]) == (pixels.REASON, number)
            assert payload == b"its dtype is float32, not uint8"
            async with watching(to, "/h264") as late:
                while (await late.message())[0][1] != pixels.REASON:
                    pass
            await hub.publish(picture())
            while header[1] != pixels.CODED:
                header, _ = await viewer.message()
            assert header[7] == number + 1


@with_each_encoder
async def test_key_frames_come_when_they_are_needed(hub: Broadcast) -> None:
    """A newcomer needs one, even for a still picture; without need, none comes."""
    async with web.serve(hub) as to, watching(to, "/h264") as first:
        await hub.publish(picture())
        headers = [(await first.message())[0] for _ in range(2)]
        assert headers[1][3] & pixels.KEY
        async with watching(to, "/h264") as late:
            headers = [(await late.message())[0] for _ in range(2)]
            assert headers[1][3] & pixels.KEY
            assert headers[1][7] == 0
        header, _ = await first.message()
        assert (header[3] & pixels.KEY, header[7]) == (pixels.KEY, 0)
        for number in range(1, 40):
            await hub.publish(picture(number))
            header, _ = await first.message()
            assert (header[3] & pixels.KEY, header[7]) == (0, number)
