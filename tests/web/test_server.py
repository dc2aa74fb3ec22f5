"""The web server: its pages, its streams, and what hostile clients get."""

from __future__ import annotations

import json
import logging
import os
import random
import re
import socket
import struct
import threading
from contextlib import asynccontextmanager
from http import HTTPStatus
from importlib import resources
from typing import TYPE_CHECKING, Any

import anyio
import numpy as np
import pytest
from anyio.streams.tls import TLSStream

pytest.importorskip("h11")
wsproto = pytest.importorskip("wsproto")

from links import until  # noqa: E402
from wsproto import events  # noqa: E402

import aiozerocopy as azc  # noqa: E402
from aiozerocopy import web  # noqa: E402
from aiozerocopy.broadcast import Broadcast  # noqa: E402
from aiozerocopy.web import (  # noqa: E402
    assets,
    h264,
    http,
    jpeg,
    modes,
    websocket,
)
from aiozerocopy.web import pixels as pictures  # noqa: E402
from aiozerocopy.web.request import Refused, Request  # noqa: E402

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator

    from numpy.typing import NDArray

pytestmark = [pytest.mark.anyio, pytest.mark.every_loop]

HEIGHT, WIDTH = 48, 64
HEADER = struct.Struct("<BBBBIIIQq")
END_OF_JPEG = b"\xff\xd9"

needs_ffmpeg = pytest.mark.skipif(h264.ffmpeg_if_any() is None, reason="needs FFmpeg")
needs_jpeg = pytest.mark.skipif(
    jpeg.find_compressor() is None, reason="needs simplejpeg or Pillow"
)


@pytest.fixture
async def hub() -> AsyncIterator[Broadcast]:
    async with Broadcast() as hub:
        yield hub


def picture(number: int = 0, channels: int = 3) -> NDArray[np.uint8]:
    frame = np.arange(HEIGHT * WIDTH * channels, dtype=np.uint32) + number
    return (frame & 0xFF).astype(np.uint8).reshape(HEIGHT, WIDTH, channels)


# ---- a client that may be rude ---------------------------------------------------


class Answer:
    """A whole HTTP answer, of one request."""

    def __init__(self, data: bytes) -> None:
        head, _, self.body = data.partition(b"\r\n\r\n")
        line, *fields = head.decode().split("\r\n")
        self.status = int(line.split()[1])
        self.headers = {
            name.lower(): value.strip()
            for name, _, value in (field.partition(":") for field in fields)
        }


def asking(path: str = "/healthz", *fields: str, method: str = "GET") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", *fields]
    return "\r\n".join([*lines, "", ""]).encode()


@asynccontextmanager
async def connected(
    to: web.WebServer, trust: ssl.SSLContext | None = None
) -> AsyncIterator[Any]:
    """A stream to it; with ``trust`` over TLS, which ends without a goodbye."""
    async with azc.connect_tcp("127.0.0.1", to.port) as stream:
        if trust is None:
            yield stream
        else:
            yield await TLSStream.wrap(stream, hostname="localhost", ssl_context=trust)


async def until_seen(stream: Any, end: bytes, times: int = 1) -> bytes:
    """What arrives, until it has this end so many times."""
    data = b""
    while data.count(end) < times:
        data += await stream.receive()
    return data


async def rest(stream: anyio.abc.ByteReceiveStream) -> bytes:
    return b"".join([piece async for piece in stream])


async def say(
    to: web.WebServer, data: bytes, trust: ssl.SSLContext | None = None
) -> bytes:
    """All that comes back until the server closes."""
    async with connected(to, trust) as stream:
        await stream.send(data)
        return await rest(stream)


async def ask(to: web.WebServer, path: str = "/healthz", *fields: str) -> Answer:
    return Answer(await say(to, asking(path, "Connection: close", *fields)))


_OPEN = wsproto.connection.ConnectionState.OPEN


class Viewer:
    """A client of a WebSocket, which checks with wsproto what it gets."""

    def __init__(self, stream: anyio.abc.ByteStream) -> None:
        self.stream = stream
        self.ws = wsproto.WSConnection(wsproto.ConnectionType.CLIENT)
        self._events: list[Any] = []

    async def send(self, event: events.Event) -> None:
        await self.stream.send(self.ws.send(event))

    async def next_event(self) -> Any:
        while not self._events:
            self.ws.receive_data(await self.stream.receive())
            self._events.extend(self.ws.events())
        return self._events.pop(0)

    async def next_of(self, kind: type) -> Any:
        while not isinstance(event := await self.next_event(), kind):
            if isinstance(event, events.Ping) and self.ws.state is _OPEN:
                await self.send(event.response())
        return event

    async def message(self) -> tuple[tuple[int, ...], bytes]:
        """Header and payload of the next message."""
        data = bytearray()
        while True:
            event = await self.next_of(events.BytesMessage)
            data += event.data
            if event.message_finished:
                return HEADER.unpack(data[:32]), bytes(data[32:])


KEY = b"AAAAAAAAAAAAAAAAAAAAAA=="
BAD_KEYS = (b"", b"AAAA", b"A" * 24, b"*" * 22 + b"==", KEY + b" " + KEY)


def upgrade(path: str, *fields: str) -> bytes:
    return asking(
        path,
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Version: 13",
        f"Sec-WebSocket-Key: {KEY.decode()}",
        *fields,
    )


@asynccontextmanager
async def watching(
    to: web.WebServer, path: str = "/raw", trust: ssl.SSLContext | None = None
) -> AsyncIterator[Viewer]:
    async with connected(to, trust) as stream:
        viewer = Viewer(stream)
        target = f"{path}?{to.url.partition('?')[2]}"
        request = events.Request(host=f"localhost:{to.port}", target=target)
        await viewer.send(request)
        assert isinstance(await viewer.next_event(), events.AcceptConnection)
        yield viewer


@asynccontextmanager
async def publishing(hub: Broadcast, height: int = HEIGHT) -> AsyncIterator[None]:
    """Frames one after the other, each as soon as the hub has the last."""

    async def publish() -> None:
        frame = np.zeros((height, WIDTH, 3), np.uint8)
        while True:
            frame[:] = hub.sequence & 0xFF
            await hub.publish(frame)
            await anyio.sleep(0.001)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(publish)
        yield
        tasks.cancel_scope.cancel()


# ---- pages -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "text/html"),
        ("/?mode=raw", "text/html"),
        ("/viewer.js", "text/javascript"),
        ("/viewer.css", "text/css"),
        ("/icon.svg", "image/svg+xml"),
        ("/healthz", "text/plain"),
        ("/status", "application/json"),
        ("/metrics", "text/plain; version=0.0.4"),
    ],
)
async def test_pages(hub: Broadcast, path: str, kind: str) -> None:
    async with web.serve(hub) as to:
        answer = await ask(to, path)
    assert answer.status == 200
    assert answer.headers["content-type"].startswith(kind)
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert int(answer.headers["content-length"]) == len(answer.body)
    assert answer.body
    if kind == "text/html":
        assert "default-src 'none'" in answer.headers["content-security-policy"]


async def test_the_page_needs_nothing_from_elsewhere(hub: Broadcast) -> None:
    async with web.serve(hub) as to:
        for path in ("/", *assets.PARTS):
            body = (await ask(to, path)).body
            body = body.replace(b'xmlns="http://www.w3.org/2000/svg"', b"")
            for elsewhere in (b"http://", b"https://", b'"//', b"@import", b"eval("):
                assert elsewhere not in body


async def test_the_page_is_served_as_a_whole(hub: Broadcast) -> None:
    """Every file that is packaged, and every file that one of them names."""
    packaged = {path.name for path in (resources.files(web) / "page").iterdir()}
    assert set(assets.PARTS.values()) == packaged - {assets.PAGE, assets.TOKEN_PAGE}
    named = rb'(?:href|script src)="([\w.]+)"|from "\./([\w.]+)"'
    for name in packaged:
        for found in re.findall(named, assets.content(name)):
            assert b"".join(found).decode() in assets.PARTS.values()


async def test_the_title_is_text_whatever_is_in_it(hub: Broadcast) -> None:
    async with web.serve(hub, title="Tea & <b>milk</b>") as to:
        body = (await ask(to, "/")).body
    assert body.count(b">Tea &amp; &lt;b&gt;milk&lt;/b&gt;</") == 2


async def test_status(hub: Broadcast) -> None:
    await hub.publish(picture())
    async with web.serve(hub, title="Tea", modes=["raw"]) as to:
        async with watching(to):
            status = json.loads((await ask(to, "/status")).body)
    assert (status["title"], status["modes"]) == ("Tea", ["raw"])
    assert (status["sequence"], status["viewers"]) == (1, 1)


async def test_requests_on_one_connection(hub: Broadcast) -> None:
    async with web.serve(hub) as to:
        data = await say(to, asking() + asking() + asking("/", "Connection: close"))
    assert data.count(b"HTTP/1.1 200 OK") == 3


async def test_head_has_no_body(hub: Broadcast) -> None:
    async with web.serve(hub) as to:
        streams = ["/stream.mjpg"] if "mjpeg" in to.modes else []
        for path in ["/", "/healthz", *streams]:
            request = asking(path, "Connection: close", method="HEAD")
            answer = Answer(await say(to, request))
            assert (answer.status, answer.body) == (200, b"")
            # A stream has no length that could be told.
            assert ("content-length" in answer.headers) == (path not in streams)


async def test_empty_lines_before_a_request(hub: Broadcast) -> None:
    async with web.serve(hub) as to:
        data = await say(
            to,
            b"\r\n" + asking() + b"\r\n\n\r\n" + asking("/", "Connection: close"),
        )
    assert data.count(b"HTTP/1.1 200 OK") == 2


async def test_lines_may_end_without_cr(hub: Broadcast) -> None:
    request = asking("/healthz", "Connection: close").replace(b"\r\n", b"\n")
    async with web.serve(hub) as to:
        assert Answer(await say(to, request)).status == 200


async def test_http_1_0_keeps_the_connection_if_asked(hub: Broadcast) -> None:
    def old(*fields: str) -> bytes:
        return asking("/healthz", *fields).replace(b"1.1", b"1.0")

    async with web.serve(hub) as to, connected(to) as stream:
        for _ in range(2):
            await stream.send(old("Connection: Keep-Alive"))
            answer = Answer(await until_seen(stream, b"ok\n"))
            assert answer.headers["connection"] == "keep-alive"
        await stream.send(old() + old())
        last = Answer(await rest(stream))
        assert last.headers["connection"] == "close"
        assert last.body == b"ok\n"


async def test_metrics_are_what_prometheus_reads(hub: Broadcast) -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    async with web.serve(hub) as to:
        async with watching(to) as viewer:
            await hub.publish(picture())
            await viewer.message()
            await ask(to, "/nothing")
            text = (await ask(to, "/metrics")).body.decode()
        values = {
            (sample.name, *sample.labels.values()): sample.value
            for family in parser.text_string_to_metric_families(text)
            for sample in family.samples
        }
        assert values["aiozerocopy_frames_published_total",] == 1
        assert values["aiozerocopy_web_viewers", "raw"] == 1
        assert values["aiozerocopy_web_frames_sent_total", "raw"] == 1
        assert values["aiozerocopy_web_sent_bytes_total", "raw"] > picture().nbytes
        assert values["aiozerocopy_web_responses_total", "404"] == 1


def test_urls() -> None:
    def url(host: str | None, token: str | None = None) -> str:
        made = web.serve(Broadcast(), host, token=token)
        made._server._listeners = [_Listening()]  # type: ignore[list-item]
        text = made.url
        made._server._listeners = []
        return text

    assert url("127.0.0.1") == "http://127.0.0.1:80/"
    assert url("::1") == "http://[::1]:80/"
    assert url("0.0.0.0") == "http://localhost:80/"
    assert url(None, "a b") == "http://localhost:80/?token=a+b"


class _Listening:
    address = ("127.0.0.1", 80)


def test_modes_that_do_not_exist() -> None:
    with pytest.raises(ValueError, match="modes are some of h264, mjpeg, raw"):
        web.serve(Broadcast(), modes=["telepathy"])
    with pytest.raises(ValueError, match="modes are some of"):
        web.serve(Broadcast(), modes=[])


# ---- streams ---------------------------------------------------------------------


def planes(number: int = 0) -> NDArray[np.uint8]:
    """The same as YUV: rows of luma, and half as many of the rest."""
    return picture(number, 1).reshape(HEIGHT, WIDTH)[: HEIGHT // 2 * 3 // 2]


@pytest.mark.parametrize("name", pictures.FORMATS)
async def test_raw_frames_arrive_as_they_were(hub: Broadcast, name: str) -> None:
    form = pictures.FORMATS[name]
    height = HEIGHT // 2 if form.is_yuv else HEIGHT
    async with web.serve(hub) as to, watching(to) as viewer:
        for number in range(3):
            frame = planes(number) if form.is_yuv else picture(number, form.channels)
            await hub.publish(frame, pixel_format=name, timestamp_ns=5_000_000)
            header, payload = await viewer.message()
            expected = (1, 0, form.code, 1, WIDTH, height, 0, number, 5_000)
            assert header == expected
            assert payload == frame.tobytes()


async def test_raw_copies_nothing(hub: Broadcast) -> None:
    seen: list[Any] = []

    def encode(frame: Any) -> Any:
        seen.append((frame.view, pictures.raw(frame)))
        return (b"",)

    send, receive = azc.socketpair()
    async with send, receive:
        client = hub.attach(send, encode=encode)
        await hub.publish(picture())
        client.detach()
    view, buffers = seen.pop()
    assert buffers[1] is view


async def test_who_comes_late_sees_the_last_frame(hub: Broadcast) -> None:
    await hub.publish(picture(7))
    async with web.serve(hub) as to, watching(to) as viewer:
        assert (await viewer.message())[1] == picture(7).tobytes()


@pytest.mark.parametrize("size", [0, 125, 126, 65535, 65536])
def test_binary_headers(size: int) -> None:
    ws = wsproto.connection.Connection(wsproto.ConnectionType.CLIENT)
    ws.receive_data(websocket.binary_header(size) + bytes(size))
    messages = list(ws.events())
    assert sum(len(message.data) for message in messages) == size
    assert messages[-1].message_finished


@needs_jpeg
@pytest.mark.parametrize("version", ["1.0", "1.1"])
async def test_multipart_stream(hub: Broadcast, version: str) -> None:
    request = asking("/stream.mjpg").replace(b"HTTP/1.1", f"HTTP/{version}".encode())
    async with web.serve(hub) as to, connected(to) as stream:
        await stream.send(request)
        data = b""
        for number in range(2):
            await hub.publish(picture(number))
            data += await until_seen(stream, END_OF_JPEG)
        answer = Answer(data)
    assert answer.headers["content-type"] == jpeg.CONTENT_TYPE
    assert ("transfer-encoding" in answer.headers) == (version == "1.1")
    first, second = answer.body.split(f"--{jpeg.BOUNDARY}\r\n".encode())[1:]
    assert b"X-Sequence: 0\r\n" in first
    assert b"X-Sequence: 1\r\n" in second
    head, _, content = first.partition(b"\r\n\r\n")
    length = int(head.partition(b"Content-Length: ")[2].split(b"\r\n")[0])
    assert content[:2] == b"\xff\xd8"
    assert content[length - 2 : length] == END_OF_JPEG


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
                await until_seen(stream, END_OF_JPEG)
            assert len(calls) == 1


@needs_jpeg
async def test_a_slow_compressor_delays_nobody_else(
    hub: Broadcast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frames go on to the others meanwhile; what it missed is never encoded."""
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
@pytest.mark.parametrize("pixels", ["gray8", *jpeg._COLOURS])
def test_compressors_agree_on_colours(name: str, pixels: str) -> None:
    pytest.importorskip(name)
    image = pytest.importorskip("PIL.Image")
    import io

    form = pictures.FORMATS[pixels]
    color = {"gray8": [90], "rgb24": [200, 40, 90], "bgr24": [90, 40, 200]}.get(
        pixels, [200, 40, 90, 255] if pixels == "rgba" else [90, 40, 200, 255]
    )
    frame = np.empty((HEIGHT, WIDTH, form.channels), np.uint8)
    frame[:] = color
    encoded = jpeg._COMPRESSORS[name](frame, form, 90)
    with image.open(io.BytesIO(encoded)) as decoded:
        seen = np.asarray(decoded.convert("RGB"))[HEIGHT // 2, WIDTH // 2]
    expected = [90] * 3 if pixels == "gray8" else [200, 40, 90]
    assert np.abs(seen.astype(int) - expected).max() <= 4


@needs_ffmpeg
async def test_h264_begins_with_a_key_frame_and_keeps_numbers(hub: Broadcast) -> None:
    async with web.serve(hub) as to, publishing(hub):
        async with watching(to, "/h264") as first:
            header, avcc = await first.message()
            assert header[1] == pictures.H264_CONFIGURATION
            assert avcc[0] == 1
            header, _ = await first.message()
            assert header[1] == pictures.H264
            assert header[3] & pictures.KEY
            numbers = [header[7]] + [(await first.message())[0][7] for _ in range(5)]
            assert numbers == sorted(set(numbers))
            async with watching(to, "/h264") as late:
                kinds = [(await late.message())[0][1] for _ in range(2)]
                assert kinds == [pictures.H264_CONFIGURATION, pictures.H264]


@needs_jpeg
async def test_the_end_of_the_server_ends_the_jpegs(hub: Broadcast) -> None:
    async with web.serve(hub) as to, connected(to) as stream:
        await stream.send(asking("/stream.mjpg"))
        await hub.publish(picture())
        await until_seen(stream, END_OF_JPEG)
        await to.aclose()
        assert (await rest(stream)).endswith(b"0\r\n\r\n")


@pytest.mark.parametrize(
    ("size", "megabits"),
    [((320, 180), 2), ((960, 540), 4), ((1920, 1080), 8), ((3840, 2160), 8)],
)
def test_bits_follow_from_the_size_of_the_picture(
    size: tuple[int, int], megabits: int
) -> None:
    assert h264.bitrate(*size) == megabits * 1_000_000


@needs_ffmpeg
@pytest.mark.parametrize("kind", ["waves", "noise"])
async def test_h264_takes_the_bits_that_it_has(kind: str) -> None:
    """A second in soft colours has as many as it may; noise is kept in bounds."""
    y, x = np.mgrid[:512, :512]
    random = np.random.default_rng(1)

    def drawn(number: int) -> bytes:
        waves = 60 * np.sin(x / 20 + number / 3) * np.sin(y / 15 - number / 4)
        slow = 40 * np.sin((x + y) / 50 + number / 5)
        noise = random.integers(0, 255, (512, 512))
        scene = noise if kind == "noise" else 128 + waves + slow
        return scene.astype(np.uint8).tobytes()

    form = pictures.PictureFormat(512, 512, pictures.FORMATS["gray8"])
    ffmpeg = h264.ffmpeg_if_any()
    assert ffmpeg is not None
    command = h264.ffmpeg_command(ffmpeg, form)
    done = await anyio.run_process(command, input=b"".join(map(drawn, range(h264.FPS))))
    assert 0.8 < 8 * len(done.stdout) / h264.bitrate(512, 512) < 2


@needs_ffmpeg
async def test_h264_begins_anew_for_another_size(hub: Broadcast) -> None:
    async with web.serve(hub) as to, watching(to, "/h264") as viewer:
        for height in (48, 33):
            async with publishing(hub, height):
                while True:
                    header, _ = await viewer.message()
                    if header[1] == pictures.H264_CONFIGURATION and header[5] == height:
                        break
                header, _ = await viewer.message()
                assert header[1] == pictures.H264
                assert header[4:6] == (WIDTH, height)


async def test_viewers_hear_that_h264_is_impossible(
    hub: Broadcast, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(modes, "ffmpeg_if_any", lambda: "/bin/false")
    await hub.publish(picture())
    with caplog.at_level(logging.ERROR, "aiozerocopy"):
        async with web.serve(hub) as to, watching(to, "/h264") as viewer:
            assert (await viewer.next_of(events.CloseConnection)).code == 4406
            async with watching(to, "/raw") as other:
                assert (await other.message())[1] == picture().tobytes()
    assert "FFmpeg ended" in caplog.text


async def test_pings_are_answered_between_frames(hub: Broadcast) -> None:
    async with web.serve(hub) as to, publishing(hub), watching(to) as viewer:
        await viewer.message()
        await viewer.send(events.Ping(b"you"))
        assert bytes((await viewer.next_of(events.Pong)).payload) == b"you"


async def test_the_end_of_the_server_is_told(
    hub: Broadcast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket, "CLOSE_SECONDS", 60.0)  # nobody is waited for
    async with web.serve(hub) as to, publishing(hub), watching(to) as viewer:
        await viewer.message()
        await to.aclose()
        assert (await viewer.next_of(events.CloseConnection)).code == 1001


async def test_viewers_who_leave_are_forgotten(hub: Broadcast) -> None:
    async with web.serve(hub) as to, publishing(hub):
        for path in ("/raw", "/h264") if "h264" in to.modes else ("/raw",):
            async with watching(to, path) as viewer:
                await viewer.message()
                await viewer.send(events.CloseConnection(1000))
                await viewer.next_of(events.CloseConnection)
            await until(lambda: to.viewers == 0)
    await until(lambda: hub.clients == ())


UNSHOWABLE = [
    (np.zeros((4, 4, 3), np.float32), "", "its dtype is float32, not uint8"),
    (np.zeros((4, 4), np.uint16), "gray16le", "its pixel format is 'gray16le', which"),
    (np.zeros((4, 4), np.uint16), "", "its dtype is uint16, not uint8"),
    (np.zeros((4, 4, 2), np.uint8), "", "its shape is (4, 4, 2), not (height, width,"),
    (np.zeros((4, 4), np.uint8), "rgb24", "its shape of rgb24 is (4, 4), not"),
    (np.zeros((0, 4, 3), np.uint8), "", "its shape is (0, 4, 3): it has no pixels"),
    (np.zeros((6, 5), np.uint8), "yuv420p", "its shape of yuv420p is (6, 5), not"),
    (np.zeros((7, 4), np.uint8), "nv12", "its shape of nv12 is (7, 4), not"),
    (np.zeros(99, np.uint8), "nv12", "its shape of nv12 is (99,), not"),
]


@pytest.mark.parametrize(("frame", "name", "reason"), UNSHOWABLE, ids=str)
async def test_what_is_no_picture_is_told(
    hub: Broadcast, frame: Any, name: str, reason: str
) -> None:
    async with web.serve(hub) as to, watching(to) as viewer:
        await hub.publish(frame, pixel_format=name)
        header, payload = await viewer.message()
        assert (header[1], header[7]) == (pictures.REASON, 0)
        assert payload.decode().startswith(reason)
        await hub.publish(picture())
        assert (await viewer.message())[1] == picture().tobytes()


@needs_jpeg
async def test_what_is_no_picture_is_told_between_jpegs(hub: Broadcast) -> None:
    async with web.serve(hub) as to, connected(to) as stream:
        await stream.send(asking("/stream.mjpg"))
        await hub.publish(np.zeros((4, 4, 3), np.float32))
        data = await until_seen(stream, b"not uint8\r\n")
        assert b"Content-Type: text/plain" in data
        await hub.publish(picture())
        assert b"Content-Type: image/jpeg" in await until_seen(stream, END_OF_JPEG)


@needs_ffmpeg
async def test_what_is_no_picture_is_told_between_packets(hub: Broadcast) -> None:
    """Also before the first one, and to those who come later."""
    async with web.serve(hub) as to, watching(to, "/h264") as viewer:
        for number in (0, 2):
            await hub.publish(np.zeros((4, 4, 3), np.float32))
            header, payload = await viewer.message()
            assert (header[1], header[7]) == (pictures.REASON, number)
            assert payload == b"its dtype is float32, not uint8"
            async with watching(to, "/h264") as late:
                while (await late.message())[0][1] != pictures.REASON:
                    pass
            await hub.publish(picture())
            while header[1] != pictures.H264:
                header, _ = await viewer.message()
            assert header[7] == number + 1


@needs_ffmpeg
@pytest.mark.parametrize("name", ["yuv420p", "nv12"])
async def test_h264_of_yuv(hub: Broadcast, name: str) -> None:
    async with web.serve(hub) as to, watching(to, "/h264") as viewer:
        await hub.publish(planes(), pixel_format=name)
        kinds = [(await viewer.message())[0] for _ in range(2)]
        assert [header[1] for header in kinds] == [2, 1]
        assert kinds[1][4:6] == (WIDTH, HEIGHT // 2)


# ---- bad input -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),  # TLS
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),  # no Host
        (b"GET /\x00 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET http://[/ HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nA: b\rC: d\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\nHost: localhost\r\n\r\n", 505),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (b"GET / HTTP/0.9\r\n\r\n", 505),
        (b"GET http://evil.example/ HTTP/1.1\r\nHost: localhost\r\n\r\n", 403),
        (b"GET /?a&" + b"a=1&" * 99 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nA: " + b"x" * 30_000, 431),
        (b"G" * 30_000, 431),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 10_000, 431),
        (asking("/", method="POST"), 405),
        (asking("/", method="BREW"), 405),
        (asking("/raw", method="DELETE"), 405),
        (asking("/", "Content-Length: 5") + b"hello", 413),
        (asking("/", "Transfer-Encoding: chunked") + b"0\r\n\r\n", 413),
        (asking("/raw"), 426),
        (asking("/raw", "Upgrade: websocket", "Connection: Upgrade"), 426),
        (upgrade("/raw").replace(b"Version: 13", b"Version: 7"), 426),
        (upgrade("/raw", "Origin: http://evil.example"), 403),
        (upgrade("/raw", "Origin: null"), 403),
        (upgrade("/raw").replace(b"1.1", b"1.0"), 426),
        (upgrade("/raw").replace(b"Connection: Upgrade", b"Connection: close"), 426),
        *((upgrade("/raw").replace(KEY, key), 400) for key in BAD_KEYS),
        (asking("/").replace(b"localhost", b"evil.example"), 403),
        (asking("/").replace(b"localhost", b"[::1"), 403),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_refusals(hub: Broadcast, request_: bytes, status: int) -> None:
    async with web.serve(hub) as to:
        answer = Answer(await say(to, request_))
        assert answer.status == status
        assert answer.headers["connection"] == "close"
        assert answer.body
        assert (await ask(to)).status == 200


@pytest.mark.parametrize(
    "path",
    [
        "/../../../../etc/passwd",
        "/..%2f..%2fetc/passwd",
        "/page/index.html",
        "/index.html",
        "/viewer.js/",
        "/./viewer.js",
        "//viewer.js",
        "//[",
        "/server.py",
        "/%00",
        "*",
    ],
)
async def test_no_other_file_is_served(hub: Broadcast, path: str) -> None:
    async with web.serve(hub) as to:
        assert (await ask(to, path)).status == 404


async def test_slow_requests_run_out_of_time(
    hub: Broadcast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "HEADER_SECONDS", 0.1)
    async with web.serve(hub) as to, connected(to) as stream:
        await stream.send(b"GET / HTTP/1.1\r\n")

        async def drip() -> None:
            with pytest.raises((azc.StreamBroken, azc.StreamClosed)):
                while True:  # each byte is progress, but the time is up
                    await stream.send(b"a")
                    await anyio.sleep(0.01)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(drip)
            answer = Answer(await stream.receive())
            await stream.aclose()
        assert answer.status == 408


async def test_who_asks_for_nothing_is_let_go(
    hub: Broadcast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "IDLE_SECONDS", 0.05)
    async with web.serve(hub) as to:
        assert await say(to, b"") == b""


async def test_more_connections_than_allowed(hub: Broadcast) -> None:
    async with web.serve(hub, connections=2) as to:
        async with watching(to), watching(to):
            async with connected(to) as third:
                assert Answer(await rest(third)).status == 503
        await until(lambda: to._open == 0)
        assert (await ask(to)).status == 200


BIG = np.zeros((1024, 1024, 4), np.uint8)


async def publish_big(hub: Broadcast) -> None:
    """Once somebody has all before it: the patience is not for the good one."""
    await until(lambda: any(not client.stats.queued for client in hub.clients))
    await hub.publish(BIG)


async def outlast(hub: Broadcast, to: web.WebServer, good: Viewer) -> int:
    """Once there are two, publish until one is let go; the other gets every frame."""
    await until(lambda: to.viewers == 2)
    number = 0
    while to.viewers == 2:
        await publish_big(hub)
        header, _ = await good.message()
        assert header[7] == number
        number += 1
    return number


async def test_a_viewer_who_never_reads_is_let_go_and_harms_nobody(
    hub: Broadcast,
) -> None:
    async with web.serve(hub, patience=0.3) as to:
        async with connected(to) as stuck, watching(to) as good:
            await stuck.send(upgrade("/raw"))
            number = await outlast(hub, to, good)
            assert number >= 2
            await publish_big(hub)
            assert (await good.message())[0][7] == number


async def test_half_of_a_connection(
    hub: Broadcast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket, "PING_SECONDS", 0.3)
    async with web.serve(hub) as to, connected(to) as silent, watching(to) as good:
        await silent.send(upgrade("/raw"))
        await until(lambda: to.viewers == 2)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(good.next_of, events.BytesMessage)  # answers pings
            await until(lambda: to.viewers == 1)
            await hub.publish(picture())


@pytest.mark.parametrize(
    ("rude", "code"),
    [
        (b"\x81\xfe\xff\xff\0\0\0\0" + b"x" * 65535, 1009),  # a long message
        (b"\x81\x05hello", 1002),  # without a mask
        (b"\xff\x80\0\0\0\0", 1002),  # of a kind that is not
        (b"\x81\x82\0\0\0\0\xff\xff", 1007),  # no UTF-8
        # of which the header alone says that they are too long
        (b"\x82\xff" + (1 << 62).to_bytes(8, "big") + b"\0\0\0\0", 1009),
        (b"\x01\x81\0\0\0\0a\x80\xfe\x10\1\0\0\0\0", 1009),
    ],
)
async def test_rude_viewers(hub: Broadcast, rude: bytes, code: int) -> None:
    async with web.serve(hub) as to, watching(to) as other:
        async with watching(to) as viewer:
            await viewer.stream.send(rude)
            assert (await viewer.next_of(events.CloseConnection)).code == code
        await hub.publish(picture())
        assert (await other.message())[1] == picture().tobytes()


async def test_resets_at_any_byte(hub: Broadcast) -> None:
    whole = upgrade("/raw") + b"\x89\x80\0\0\0\0" + b"\x81\x85\0\0\0\0hello"
    no_linger = struct.pack("ii", 1, 0)
    async with web.serve(hub) as to, publishing(hub):
        for end in range(0, len(whole) + 1, 3):
            with socket.create_connection(("127.0.0.1", to.port)) as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, no_linger)
                sock.sendall(whole[:end])
        await until(lambda: to._open == 0)
        assert to.viewers == 0
        assert (await ask(to)).status == 200


async def test_many_who_come_and_go(hub: Broadcast) -> None:
    async with web.serve(hub) as to:
        for _ in range(300):
            socket.create_connection(("127.0.0.1", to.port)).close()
        assert (await ask(to)).status == 200
        await until(lambda: to._open == 0)


def mutated(data: bytes, chance: random.Random) -> bytes:
    """With up to five changes, each of which may add or remove bytes."""
    changed = bytearray(data)
    for _ in range(chance.randrange(1, 6)):
        at = chance.randrange(len(changed))
        changed[at : at + chance.randrange(3)] = chance.randbytes(chance.randrange(4))
    return bytes(changed)


def scripted(data: bytes) -> http.HttpConnection:
    """A connection of which this is all that the client says."""
    script: Any = _Script(data)
    return http.HttpConnection(script, lambda status: None)


async def test_mutated_requests_never_get_through_the_parser() -> None:
    chance = random.Random(4)
    for _ in range(400):
        connection = scripted(mutated(upgrade("/raw?token=a"), chance))
        outcome: Request | Refused | None
        try:
            outcome = await connection.next_request()
        except Refused as refusal:
            outcome = refusal
        status = outcome.status if isinstance(outcome, Refused) else 200
        assert HTTPStatus(status).phrase


@pytest.mark.timeout(900)
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_random_frames_only_end_the_websocket() -> None:
    """AZC_FUZZ=1000000 for more of them."""
    chance = random.Random(5)
    good = b"\x81\x85\0\0\0\0hello\x89\x80\0\0\0\0\x88\x82\0\0\0\0\3\xe8"
    for _ in range(int(os.environ.get("AZC_FUZZ", "2000"))):
        connection = scripted(upgrade("/raw") + mutated(good, chance))
        request = await connection.next_request()
        assert request is not None
        viewer = await websocket.WebSocket.accept(connection, request)
        await viewer.listen()


GOOD = (
    asking("/stream.mjpg?token=a&mode=raw", "Connection: close"),
    asking("/", "Accept: */*") + asking("/metrics"),
    upgrade("/raw", "Origin: http://localhost"),
    b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n",
)
WORDS = (
    b"\r\n",
    b":",
    b" ",
    b"\0",
    b"HTTP/1.1",
    b"Content-Length: 9" * 9,
    b"%ff",
    b"\xff",
)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_fuzz_requests() -> None:
    """AZC_FUZZ=1000000 for more of them."""
    chance = random.Random(7)
    seen = set()
    for _ in range(int(os.environ.get("AZC_FUZZ", "30000"))):
        data = bytearray(chance.choice(GOOD))
        for _ in range(chance.randrange(5)):
            at = chance.randrange(len(data) + 1)
            new = chance.choice((chance.choice(WORDS), chance.randbytes(3)))
            data[at : at + chance.randrange(4)] = new
        connection = scripted(bytes(data))
        try:
            request = await connection.next_request()
        except Refused as refusal:
            seen.add(refusal.status)
            await connection.refuse(refusal)
        else:
            seen.add(0 if request is None else 200)
    assert {0, 200, 400} <= seen <= {0, 200, 400, 413, 431, 501, 505}


class _Script:
    """A stream that has some bytes, then ends."""

    async def send(self, *_: Any) -> None:
        """Nobody reads it."""

    async def send_eof(self) -> None:
        """Nor this."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def receive(self, n: int) -> bytes:
        if not self._data:
            raise anyio.EndOfStream
        data, self._data = self._data[:n], self._data[n:]
        return data


# ---- who may ask -----------------------------------------------------------------

TOKEN = "sesame öffne dich"


@pytest.mark.parametrize(
    ("path", "fields", "status"),
    [
        ("/", (), 401),
        ("/?token=", (), 401),
        ("/?token=sesame", (), 401),
        ("/?token=sesame+%C3%B6ffne+dich", (), 200),
        ("/?token=%ff", (), 401),
        ("/metrics", ("Authorization: Bearer sesame",), 401),
        ("/metrics", ("Authorization: Basic c2VzYW1l",), 401),
        ("/status", (), 401),
        ("/stream.mjpg", (), 401),
        ("/raw", (), 401),
        ("/nothing", (), 401),
        ("/healthz", (), 200),
        ("/viewer.css", (), 200),
    ],
)
async def test_tokens(
    hub: Broadcast, path: str, fields: tuple[str, ...], status: int
) -> None:
    async with web.serve(hub, token=TOKEN) as to:
        assert (await ask(to, path, *fields)).status == status


@pytest.mark.parametrize(
    ("query", "line", "page"),
    [
        ("", b"a token is needed: /?token=...\n", b"<h1>A token is needed</h1>"),
        ("?token=", b"a token is needed: /?token=...\n", b"<h1>A token is needed</h1>"),
        ("?token=x", b"this token is wrong\n", b"<h1>This token is wrong</h1>"),
    ],
)
async def test_who_has_no_token_hears_so(
    hub: Broadcast, query: str, line: bytes, page: bytes
) -> None:
    """A program gets a line, a browser a page."""
    async with web.serve(hub, token=TOKEN) as to:
        answer = await ask(to, f"/{query}")
        assert (answer.status, answer.body) == (401, line)
        answer = await ask(to, f"/{query}", "Accept: text/html,*/*;q=0.8")
        assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert answer.headers["content-type"].startswith("text/html")
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert page in answer.body
        assert TOKEN.encode() not in answer.body


async def test_an_empty_token_lets_nobody_in(hub: Broadcast) -> None:
    async with web.serve(hub, token="") as to:
        for path in ("/", "/?token="):
            assert (await ask(to, path)).status == 401


async def test_a_token_as_header_and_for_viewers(hub: Broadcast) -> None:
    async with web.serve(hub, token="sesame") as to, watching(to) as viewer:
        answer = await ask(to, "/metrics", "Authorization: Bearer sesame")
        assert answer.status == 200
        await hub.publish(picture())
        assert (await viewer.message())[1] == picture().tobytes()


@pytest.mark.parametrize(
    "origin", ["http://localhost", "https://LOCALHOST", "https://friend.example"]
)
async def test_origins_that_may(hub: Broadcast, origin: str) -> None:
    async with web.serve(hub, origins=["https://friend.example"]) as to:
        async with connected(to) as stream:
            await stream.send(upgrade("/raw", f"Origin: {origin}"))
            assert b" 101 " in await stream.receive()


@pytest.mark.parametrize("name", ["127.0.0.1", "[::1]:80", "a.localhost", "tv.example"])
async def test_names_that_it_answers_to(hub: Broadcast, name: str) -> None:
    async with web.serve(hub, hosts=["tv.example"]) as to:
        request = asking("/", "Connection: close").replace(b"localhost", name.encode())
        assert Answer(await say(to, request)).status == 200


@asynccontextmanager
async def on_all_addresses(hub: Broadcast, **options: Any) -> AsyncIterator[Any]:
    """A function that returns the status which who asks for this host gets."""
    async with web.serve(hub, "0.0.0.0", **options) as to:

        async def status(host: str, path: str = "/healthz") -> int:
            request = asking(path, "Connection: close")
            request = request.replace(b"localhost", host.encode())
            return Answer(await say(to, request)).status

        yield status


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:80", 200),
        ("127.0.0.1", 200),
        ("192.0.2.7:8000", 200),
        ("[2001:db8::1]:80", 200),
        (socket.gethostname().upper(), 200),
        (f"{socket.gethostname().partition('.')[0]}.local:8000", 200),
        ("evil.example", 403),
        ("127.0.0.1.evil.example", 403),
    ],
)
async def test_names_that_it_answers_to_everywhere(
    hub: Broadcast, host: str, status: int
) -> None:
    async with on_all_addresses(hub) as status_for:
        assert await status_for(host) == status


async def test_hosts_hold_everywhere(hub: Broadcast) -> None:
    async with on_all_addresses(hub, hosts=["TV.example"]) as status_for:
        assert await status_for("tv.example:8000") == 200
        assert await status_for("localhost") == 200
        assert await status_for("192.0.2.7") == 403
        assert await status_for("evil.example") == 403


async def test_who_knows_the_token_may_use_any_name(hub: Broadcast) -> None:
    async with on_all_addresses(hub, token="sesame") as status_for:
        assert await status_for("tv.example", "/?token=sesame") == 200
        assert await status_for("tv.example", "/") == 401
    async with on_all_addresses(hub, token="sesame", hosts=["a"]) as status_for:
        assert await status_for("tv.example", "/?token=sesame") == 403


@pytest.mark.parametrize(
    ("target", "host", "status"),
    [
        ("http://localhost/healthz", "evil.example", 200),
        ("http://localhost", "localhost", 200),
        ("http://evil.example/healthz", "localhost", 403),
        ("http://localhost@evil.example/healthz", "localhost", 403),
    ],
)
async def test_the_authority_of_a_target_counts(
    hub: Broadcast, target: str, host: str, status: int
) -> None:
    request = asking(target, "Connection: close").replace(
        b"Host: localhost", f"Host: {host}".encode()
    )
    async with web.serve(hub) as to:
        assert Answer(await say(to, request)).status == status


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://192.0.2.7:8000", 101),
        ("http://192.0.2.7:8001", 403),
        ("http://evil.example:8000", 403),
        ("null", 403),
    ],
)
async def test_origins_hold_everywhere(
    hub: Broadcast, origin: str, status: int
) -> None:
    request = upgrade("/raw", f"Origin: {origin}")
    request = request.replace(b"Host: localhost", b"Host: 192.0.2.7:8000")
    async with web.serve(hub, "0.0.0.0") as to, connected(to) as stream:
        await stream.send(request)
        assert Answer(await stream.receive()).status == status


async def test_an_origin_without_a_host_is_refused(
    hub: Broadcast, caplog: pytest.LogCaptureFixture
) -> None:
    async with web.serve(hub, "0.0.0.0") as to:
        for origin in (b"http://localhost", b"null", b""):
            request = (
                b"GET /raw HTTP/1.0\r\nUpgrade: websocket\r\n"
                b"Origin: " + origin + b"\r\n\r\n"
            )
            assert Answer(await say(to, request)).status == 403
        page = await say(to, b"GET / HTTP/1.0\r\nOrigin: http://localhost\r\n\r\n")
        assert Answer(page).status == 200
    # (asyncio tells of slow callbacks)
    ours = [record for record in caplog.records if record.name != "asyncio"]
    assert ours == []


# ---- over TLS --------------------------------------------------------------------


async def test_pages_and_pictures_over_tls(
    hub: Broadcast, tls: tuple[ssl.SSLContext, ssl.SSLContext]
) -> None:
    server, trust = tls
    big = np.arange(1 << 20, dtype=np.uint32).view(np.uint8).reshape(1024, 1024, 4)
    async with web.serve(hub, ssl_context=server) as to:
        assert to.url == f"https://127.0.0.1:{to.port}/"
        page = Answer(await say(to, asking("/", "Connection: close"), trust))
        assert page.status == 200
        assert b"<html" in page.body
        refused = Answer(await say(to, b"GET / HTTP/1.1\r\n\r\n", trust))
        assert refused.status == 400
        async with watching(to, trust=trust) as viewer:
            for number in range(3):
                await hub.publish(big)
                # what is said in between does not cut a message into two
                await viewer.send(events.Ping(b"you"))
                header, payload = await viewer.message()
                assert (header[7], payload) == (number, big.tobytes())
            await viewer.send(events.CloseConnection(1000))
            await viewer.next_of(events.CloseConnection)
        await until(lambda: to.viewers == 0)


@needs_jpeg
@needs_ffmpeg
async def test_every_way_over_tls(
    hub: Broadcast, tls: tuple[ssl.SSLContext, ssl.SSLContext]
) -> None:
    server, trust = tls
    async with web.serve(hub, ssl_context=server) as to, publishing(hub):
        async with watching(to, "/h264", trust) as viewer:
            kinds = [(await viewer.message())[0][1] for _ in range(3)]
            assert kinds == [pictures.H264_CONFIGURATION, pictures.H264, pictures.H264]
        async with connected(to, trust) as stream:
            await stream.send(asking("/stream.mjpg"))
            await until_seen(stream, END_OF_JPEG, 2)
        await until(lambda: to.viewers == 0)


async def test_who_does_not_speak_tls_harms_nobody(
    hub: Broadcast,
    tls: tuple[ssl.SSLContext, ssl.SSLContext],
    caplog: pytest.LogCaptureFixture,
) -> None:
    server, trust = tls
    garbage = (
        asking("/"),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(600),
    )
    async with web.serve(hub, ssl_context=server) as to:
        async with watching(to, trust=trust) as viewer:
            for rude in garbage:
                assert b"HTTP" not in await say(to, rude)
            async with connected(to):  # says nothing
                await hub.publish(picture())
                assert (await viewer.message())[1] == picture().tobytes()
            # In the middle of a frame, what follows is no TLS; or nothing does.
            for rude in (b"garbage", b""):
                async with connected(to, trust) as stream:
                    await stream.send(upgrade("/raw"))
                    await until(lambda: to.viewers == 2)
                    if rude:
                        await stream.transport_stream.send(rude * 99)
                    stream.transport_stream.abort()
                await until(lambda: to.viewers == 1)
        await until(lambda: to._open == 0)
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def test_a_viewer_who_never_reads_tls_is_let_go(
    hub: Broadcast, tls: tuple[ssl.SSLContext, ssl.SSLContext]
) -> None:
    server, trust = tls
    async with web.serve(hub, patience=0.3, ssl_context=server) as to:
        async with connected(to, trust) as stuck, watching(to, trust=trust) as good:
            await stuck.send(upgrade("/raw"))
            await outlast(hub, to, good)
