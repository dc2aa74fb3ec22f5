"""Other ways to show pictures in a browser, each as its own examples have it.

multipart JPEG   each picture a JPEG, in one endless answer to an <img>
WebRTC           aiortc, with its defaults: VP8 with 0.5 to 1.5 Mbit/s
fragmented MP4   FFmpeg's, over a WebSocket, for Media Source Extensions

pixelflux is not here: it shows the screen of an X server or of Wayland, not pictures.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from fractions import Fraction
from functools import partial
from typing import Any

from bench.video import raw_video
from bench.watching import FPS, Source, paint, start
from bench.worker import Job

IMAGE = "<img src=pictures>"
# It follows each picture: Chromium shows a picture when the next one begins.
HEAD = b"\r\n--frame\r\nContent-Type: image/jpeg\r\n\r\n"
PEER = """<video autoplay muted></video><script type=module>
    const peer = new RTCPeerConnection();
    peer.addTransceiver("video", { direction: "recvonly" });
    peer.ontrack = (event) =>
        document.querySelector("video").srcObject = event.streams[0];
    await peer.setLocalDescription();
    while (peer.iceGatheringState !== "complete")
        await new Promise((done) => peer.onicegatheringstatechange = done);
    const body = JSON.stringify(peer.localDescription);
    const answer = await fetch("pictures", { method: "POST", body });
    await peer.setRemoteDescription(await answer.json());
</script>"""
# The page jumps to the newest picture when that is over 0.1 seconds ahead.
MEDIA = """<video autoplay muted></video><script type=module>
    const video = document.querySelector("video");
    const media = new MediaSource();
    video.src = URL.createObjectURL(media);
    await new Promise((done) => media.onsourceopen = done);
    const buffer = media.addSourceBuffer('video/mp4; codecs="avc1.42c01f"');
    const pieces = [];
    const next = () => {
        const { buffered, currentTime } = video;
        const end = buffered.length ? buffered.end(buffered.length - 1) : 0;
        if (end - currentTime > 0.1) video.currentTime = end;
        if (!buffer.updating && pieces.length) buffer.appendBuffer(pieces.shift());
    };
    buffer.onupdateend = next;
    const socket = new WebSocket(new URL("pictures", location.href));
    socket.binaryType = "arraybuffer";
    socket.onmessage = ({ data }) => { pieces.push(data); next(); };
</script>"""


def bitrate(width: int, height: int) -> int:
    """The bitrate of our H.264 for this size, in bits a second."""
    return round(8e6 * math.sqrt(width * height / (1920 * 1080)))


async def shown(
    page: str, answer: Any, source: Source, publish: Callable[[], Awaitable[None]]
) -> dict[str, Any]:
    """Serve a page and its pictures while the browser paints them."""
    from aiohttp import web

    async def index(request: web.Request) -> web.Response:
        return web.Response(text=f"<!doctype html>{page}", content_type="text/html")

    application = web.Application()
    application.router.add_get("/", index)
    application.router.add_route("*", "/pictures", answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
    browser = start(paint, url=url, script=source.job.script)
    found = await source.watched(publish, browser=browser)
    await runner.cleanup()
    return found


async def multipart_jpeg(job: Job) -> dict[str, Any]:
    import simplejpeg
    from aiohttp import web

    source, viewers = Source(job), list[Any]()
    encode = partial(simplejpeg.encode_jpeg, quality=80, colorsubsampling="420")

    async def answer(request: web.Request) -> None:
        response = web.StreamResponse()
        response.content_type = "multipart/x-mixed-replace;boundary=frame"
        await response.prepare(request)
        await response.write(HEAD)
        viewers.append(response)
        await asyncio.Event().wait()

    async def publish() -> None:
        data = await asyncio.to_thread(encode, source.draw())
        for response in viewers:
            await response.write(data + HEAD)

    return await shown(IMAGE, answer, source, publish)


async def webrtc(job: Job) -> dict[str, Any]:
    import aiortc
    from aiohttp import web
    from av import VideoFrame

    source, pictures = Source(job), asyncio.Queue[VideoFrame](1)
    peer = aiortc.RTCPeerConnection(aiortc.RTCConfiguration([]))

    class Track(aiortc.VideoStreamTrack):  # type: ignore[misc, unused-ignore]
        async def recv(self) -> Any:
            return await pictures.get()

    async def answer(request: web.Request) -> web.Response:
        peer.addTrack(Track())
        offer = aiortc.RTCSessionDescription(**await request.json())
        await peer.setRemoteDescription(offer)
        await peer.setLocalDescription(await peer.createAnswer())
        local = peer.localDescription
        return web.json_response({"sdp": local.sdp, "type": local.type})

    async def publish() -> None:
        frame = VideoFrame.from_ndarray(source.draw(), format="rgb24")
        frame.pts, frame.time_base = len(source.published), Fraction(1, FPS)
        if pictures.full():
            pictures.get_nowait()
        pictures.put_nowait(frame)

    found = await shown(PEER, answer, source, publish)
    await peer.close()
    return found


async def fragmented_mp4(job: Job) -> dict[str, Any]:
    from aiohttp import web

    source, encoders = Source(job), list[Any]()
    height, width, _ = job.shape
    rate, pipe = str(bitrate(width, height)), asyncio.subprocess.PIPE
    command = [
        *(job.ffmpeg, "-loglevel", "error", *raw_video((width, height))),
        *("-r", str(FPS), "-probesize", "32", "-i", "-", "-pix_fmt", "yuv420p"),
        *("-c:v", "libx264", "-preset", "ultrafast", "-tune", "zerolatency"),
        *("-b:v", rate, "-maxrate", rate, "-bufsize", rate, "-g", str(FPS)),
        *("-movflags", "empty_moov+default_base_moof+frag_every_frame"),
        *("-f", "mp4", "-"),
    ]

    async def answer(request: web.Request) -> None:
        response = web.WebSocketResponse(compress=False)
        await response.prepare(request)
        start = asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
        encoders.append(encoder := await start)
        while data := await encoder.stdout.read(1 << 20):  # type: ignore[union-attr]
            await response.send_bytes(data)

    async def publish() -> None:
        picture = source.draw()
        for encoder in encoders:
            encoder.stdin.write(picture.tobytes())
            await encoder.stdin.drain()

    found = await shown(MEDIA, answer, source, publish)
    for encoder in encoders:
        encoder.kill()
        await encoder.wait()
    return found


RIVALS = {
    "multipart JPEG, aiohttp": (multipart_jpeg, ("aiohttp", "simplejpeg")),
    "WebRTC, aiortc": (webrtc, ("aiohttp", "aiortc")),
    "fragmented MP4, FFmpeg": (fragmented_mp4, ("aiohttp",)),
}
