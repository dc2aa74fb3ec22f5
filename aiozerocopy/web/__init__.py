"""A page that shows the frames of a `Broadcast` live, in any browser.

    async with azc.web.serve(hub, port=8000) as server:
        print(server.url)

The page uses the best mode that server and browser share.  Each goes over a WebSocket:
H.264 or, if you ask for it, AV1 (encoded once for all, and again with fewer bits for
slow links), JPEG (encoded once for all), or the pixels themselves (as they are;
`serve` sends them without a copy).

`app` is the same page as an ASGI application, `aiohttp_app` as one of aiohttp.

server     our own server                 asgi, on_aiohttp  under other servers
site       what is offered                guard      which requests are refused, and why
modes      the ways to watch, and feeds   assets     the files of the page
settings   what each setting may be
renditions of H.264 and AV1, and queues   fit        how many bits a viewer gets
encoding   one encoder at work            encoders   which are installed
codecs     what an encoder is asked for   pyav       encoders in this process
child      FFmpeg as a child              hardware   the GPU's encoders, if live
planes     frames converted for encoders  matroska   frames as FFmpeg gets them
jpeg       one picture for all viewers    pixels     what can be shown, messages
link       what is new enough to send     download   a film's file
exchange   the seam: requests, viewers    request    a request, a refusal
websocket  a viewer on our connection     http       HTTP on our connection
"""

from typing import TYPE_CHECKING, Any

from aiozerocopy._core import extras

with extras.optional("aiozerocopy.web", "web"):
    from aiozerocopy.web.asgi import WebApp as WebApp
    from aiozerocopy.web.asgi import app as app
    from aiozerocopy.web.server import WebServer as WebServer
    from aiozerocopy.web.server import serve as serve

if TYPE_CHECKING:
    from aiozerocopy.web.on_aiohttp import aiohttp_app as aiohttp_app
else:

    def __getattr__(name: str) -> Any:
        """Import aiohttp only where it is used: it is optional."""
        if name != "aiohttp_app":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        with extras.optional("aiozerocopy.web.aiohttp_app", "aiohttp"):
            from aiozerocopy.web.on_aiohttp import aiohttp_app
        return aiohttp_app
