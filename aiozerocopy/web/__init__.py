"""A page that shows the frames of a `Broadcast` live, in any browser.

    async with azc.web.serve(hub, port=8000) as server:
        print(server.url)

The page takes the best of three ways that server and browser share: H.264 over a
WebSocket (FFmpeg encodes it once for all), JPEG in a multipart stream (encoded once a
frame), or the pixels themselves over a WebSocket (sent as they are, without a copy).
"""

from aiozerocopy._core import extras

with extras.optional("aiozerocopy.web", "web"):
    from aiozerocopy.web.server import WebServer as WebServer
    from aiozerocopy.web.server import serve as serve
