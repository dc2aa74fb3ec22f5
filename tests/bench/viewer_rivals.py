"""Other ways to show pictures in a browser, each as its own examples have it.

multipart JPEG   each picture is a JPEG, in one endless answer to an <img>
WebRTC           aiortc, with its defaults: VP8, 0.5 to 1.5 Mbit/s
fragmented MP4   FFmpeg's, over a WebSocket, for Media Source Extensions

pixelflux is not here: it takes what an X server or Wayland shows, and no pictures.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from bench.video import raw_video
from bench.watching import FPS, Source, paint, start
from bench.worker import Job

IMAGE = "<img src=pictures>"
BOUNDARY = b"--frame\r\n"
PEER = """<video autoplay muted></video><script type=module>
    const peer = new RTCPeerConnection();
    peer.addTransceiver("video", { direction: "recvonly" });
    peer.ontrack = ({ streams }) => document.querySelector("video").srcObject = streams[0];
    await peer.setLocalDescription();
    if (peer.iceGatheringState !== "complete")
        await new Promise((done) => peer.onicegatheringstatechange = () =>
            peer.iceGatheringState === "complete" && done());
    const { sdp, type } = peer.localDescription;
    const body = JSON.stringify({ sdp, type });
    await peer.setRemoteDescription(await (await fetch("pictures", { method: "POST", body })).json());
</script>"""
# It goes to the newest picture as soon as it is 0.1 seconds behind.
MEDIA = """<video autoplay muted></video><script type=module>
    const video = document.querySelector("video");
    const media = new MediaSource();
    video.src = URL.createObjectURL(media);
    await new Promise((done) => media.onsourceopen = done);
    const buffer = media.addSourceBuffer('video/mp4; codecs="avc1.42c01f"');
    const pieces = [];
    const next = () => {
        if (buffer.updating || !pieces.length) return;
        buffer.appendBuffer(pieces.shift());
    };
    buffer.onupdateend = () => {
        const { buffered } = video;
        const end = buffered.length ? buffered.end(buffered.length - 1) : 0;
        if (end - video.currentTime > 0.1) video.currentTime = end;
        next();
    };
    const socket = new WebSocket(new URL("pictures", location.href));
    socket.binaryType = "arraybuffer";
    socket.onmessage = ({ data }) => { pieces.push(data); next(); };
</script>"""


def bitrate(width: int, height: int) -> int:
    """That of our H.264, in bits a second."""
    return round(8e6 * (width * height / (1920 * 1080)) ** 0.5)


@contextlib.asynccontextmanager
async def serving(page: str, answer: Any, method: str = "GET") -> AsyncIterator[str]:
    """A page, and what it asks for; the page's address."""
    from aiohttp import web

    async def index(request: web.Request) -> web.Response:
        return web.Response(text=f"<!doctype html>{page}", content_type="text/html")

    application = web.Application()
    application.router.add_get("/", index)
    application.router.add_route(method, "/pictures", answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/"
    finally:
        await runner.cleanup()


def empty(job: Job) -> Any:
    import numpy

    return numpy.empty(job.shape, "u1")


async def multipart_jpeg(job: Job) -> dict[str, Any]:
    """The boundary follows each picture: Chromium shows a picture when it has come."""
    import simplejpeg
    from aiohttp import web

    source, picture = Source(job), empty(job)
    viewers: list[web.StreamResponse] = []
    encode = partial(simplejpeg.encode_jpeg, quality=80, colorsubsampling="420")

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.content_type = "multipart/x-mixed-replace;boundary=frame"
        await response.prepare(request)
        await response.write(BOUNDARY)
        viewers.append(response)
        await asyncio.Event().wait()
        return response

    async def publish() -> None:
        source.draw(picture)
        data = await asyncio.to_thread(encode, picture)
        for response in viewers:
            head = f"Content-Type: image/jpeg\r\nContent-Length: {len(data)}\r\n\r\n"
            await response.write(head.encode() + data + b"\r\n" + BOUNDARY)

    async with serving(IMAGE, answer) as url:
        return await source.watched(
            publish, browser=start(paint, url=url, script=job.script)
        )


async def webrtc(job: Job) -> dict[str, Any]:
    from fractions import Fraction

    import aiortc
    from aiohttp import web
    from av import VideoFrame

    source = Source(job)
    pictures: asyncio.Queue[Any] = asyncio.Queue(1)
    peers: list[aiortc.RTCPeerConnection] = []

    class Track(aiortc.VideoStreamTrack):  # type: ignore[misc]
        async def recv(self) -> VideoFrame:
            return await pictures.get()

    async def answer(request: web.Request) -> web.Response:
        peers.append(peer := aiortc.RTCPeerConnection(aiortc.RTCConfiguration([])))
        peer.addTrack(Track())
        offer = aiortc.RTCSessionDescription(**await request.json())
        await peer.setRemoteDescription(offer)
        await peer.setLocalDescription(await peer.createAnswer())
        told = peer.localDescription
        return web.json_response({"sdp": told.sdp, "type": told.type})

    async def publish() -> None:
        picture = empty(job)
        source.draw(picture)
        frame = VideoFrame.from_ndarray(picture, format="rgb24")
        frame.pts, frame.time_base = len(source.published), Fraction(1, FPS)
        if pictures.full():
            pictures.get_nowait()
        pictures.put_nowait(frame)

    async with serving(PEER, answer, "POST") as url:
        told = await source.watched(
            publish, browser=start(paint, url=url, script=job.script)
        )
        await asyncio.gather(*(peer.close() for peer in peers))
        return told


def fragmented(job: Job) -> list[str]:
    """FFmpeg's arguments; with the bitrate of our H.264 in this size."""
    height, width, _ = job.shape
    rate = str(bitrate(width, height))
    return [
        *(job.ffmpeg, "-loglevel", "error", *raw_video((width, height))),
        *("-r", str(FPS), "-probesize", "32", "-i", "-", "-pix_fmt", "yuv420p"),
        *("-c:v", "libx264", "-preset", "ultrafast", "-tune", "zerolatency"),
        *(
            "-b:v",
            rate,
            "-maxrate",
            rate,
            "-bufsize",
            rate,
            "-g",
            str(FPS),
            "-f",
            "mp4",
        ),
        *("-movflags", "empty_moov+default_base_moof+frag_every_frame", "-"),
    ]


async def fragmented_mp4(job: Job) -> dict[str, Any]:
    from aiohttp import web

    source, picture = Source(job), empty(job)
    encoders: list[asyncio.subprocess.Process] = []

    async def answer(request: web.Request) -> web.WebSocketResponse:
        response = web.WebSocketResponse(compress=False)
        await response.prepare(request)
        pipe = asyncio.subprocess.PIPE
        command = fragmented(job)
        encoder = await asyncio.create_subprocess_exec(
            *command, stdin=pipe, stdout=pipe
        )
        encoders.append(encoder)
        assert encoder.stdout is not None
        while data := await encoder.stdout.read(1 << 20):
            await response.send_bytes(data)
        return response

    async def publish() -> None:
        source.draw(picture)
        for encoder in encoders:
            assert encoder.stdin is not None
            encoder.stdin.write(picture.tobytes())
            await encoder.stdin.drain()

    async with serving(MEDIA, answer) as url:
        told = await source.watched(
            publish, browser=start(paint, url=url, script=job.script)
        )
        for encoder in encoders:
            encoder.kill()
            await encoder.wait()
        return told


RIVALS = {
    "multipart JPEG, aiohttp": (multipart_jpeg, ("aiohttp", "simplejpeg")),
    "WebRTC, aiortc": (webrtc, ("aiohttp", "aiortc")),
    "fragmented MP4, FFmpeg": (fragmented_mp4, ("aiohttp",)),
}
