"""``aiozerocopy serve``: show the screen, a scene, or a film to viewers."""

from __future__ import annotations

import contextlib
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

import aiozerocopy as azc
from aiozerocopy import broadcast
from aiozerocopy.commands import scenes
from aiozerocopy.commands.capture import open_screen
from aiozerocopy.commands.options import (
    Address,
    Parser,
    Size,
    add_picture,
    add_screen,
    add_server_tls,
    add_token,
    count,
    file,
    host,
    origin,
    port,
    server_tls,
    source,
    tokens,
    trust,
    words,
)
from aiozerocopy.ffmpeg import Reader

if TYPE_CHECKING:
    import argparse
    import ssl
    from collections.abc import AsyncIterator, Callable, Sequence

    from aiozerocopy.broadcast import Broadcast

SLOTS = 4
SECOND = 1.0
FOREVER = 1 << 40  # frames
OWN = ("demo", "screen")  # sources that FFmpeg does not read
SCENE = Size(1280, 720)  # of the demo


class FrameSource:
    """Frames as fast as they are taken, and the name of their pixel format."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self.pixel_format: str = "rgb24"

    async def frames(self) -> AsyncIterator[azc.Frame]:
        """Yield all frames; the receiver releases each."""
        source = self._options.source
        while True:
            shown = 0
            own = {"demo": self._scene, "screen": self._screen}.get(source)
            frames = own() if own is not None else self._video(source)
            async for frame in frames:
                shown += 1
                yield frame
            if not shown:
                raise ValueError(f"{source} has no frames")
            if self._options.once:
                return

    async def _scene(self) -> AsyncIterator[azc.Frame]:
        scene = scenes.demo_scene(self._options.size, float(self._options.fps), "rgba")
        self.pixel_format = scene.pix_fmt
        try:
            with scene.new_pool(SLOTS) as pool:
                async for frame in scene.frames(pool, FOREVER):
                    yield frame
        finally:
            scene.close()

    async def _screen(self) -> AsyncIterator[azc.Frame]:
        async with open_screen(self._options, SLOTS) as screen:
            self.pixel_format = screen.pix_fmt
            async for frame in screen.frames():
                yield frame

    async def _video(self, source: str) -> AsyncIterator[azc.Frame]:
        arguments: Any = source
        if self._options.ffmpeg_input:
            arguments = [*self._options.ffmpeg_input, "-i", source]
        async with Reader(arguments, "rgb24", fps=self._options.fps) as video:
            async for frame in video:
                yield frame


async def publish(hub: Broadcast, source: FrameSource, fps: float) -> None:
    """Publish every frame at its time; a late frame at once."""
    due = anyio.current_time()
    async for frame in source.frames():
        with frame:
            await anyio.sleep_until(due)
            await hub.publish(frame, pixel_format=source.pixel_format)
        due = max(due + 1 / fps, anyio.current_time() - 1 / fps)


async def tell_viewers(count: Callable[[], int]) -> None:
    """Print how many viewers watch, when that changes; once a second at most."""
    before = 0
    while True:
        if (now := count()) != before:
            print(f"watching       {now}", flush=True)
            before = now
        await anyio.sleep(SECOND)


async def run(options: argparse.Namespace) -> None:
    """Serve until the source ends, or Ctrl-C."""

    async def give_frames(stream: azc.Stream) -> None:
        client = hub.attach(stream, policy="latest")
        with contextlib.suppress(azc.StreamBroken, azc.StreamClosed):
            await client.wait_closed()

    async with contextlib.AsyncExitStack() as stack:
        enter = stack.enter_async_context
        hub = await enter(broadcast.Broadcast())
        encryption = server_tls(options)
        counts: list[Callable[[], int]] = []  # of viewers, for each server
        settings = {"max_connections": options.max_clients, "token": tokens(options)}
        if options.web is not None:
            from aiozerocopy import web

            page = web.serve(
                *(hub, options.host, options.web),
                token=settings["token"],
                title=title_of(options.source),
                hardware=options.hardware,
                hosts=options.name,
                origins=options.origin,
                file=options.source if options.file else None,
                ssl_context=encryption,
            )
            await enter(page)
            counts.append(lambda: page.viewers)
            # (the token may be shown to a person at a terminal, but not in a log)
            link = page.url if sys.stdout.isatty() else page.url.partition("?")[0]
            print(f"in a browser   {link}", flush=True)
            if options.file:
                print(f"for download   {page.file_url.partition('?')[0]}", flush=True)
        if options.tcp is not None:
            place = (options.host, options.tcp)
            server = azc.serve_tcp(
                give_frames, *place, ssl_context=encryption, **settings
            )
            await enter(server)
            name = _name_for(options.host, encryption, options.tls_cert)
            counts.append(lambda: server.connections)
            print(to_copy(options, Address(name, server.port)), flush=True)
        if options.unix is not None:
            local = await enter(azc.serve_unix(give_frames, options.unix, **settings))
            counts.append(lambda: local.connections)
            print(to_copy(options, options.unix), flush=True)
        tasks = await enter(anyio.create_task_group())
        tasks.start_soon(tell_viewers, lambda: sum(count() for count in counts))
        await publish(hub, FrameSource(options), float(options.fps))
        tasks.cancel_scope.cancel()


def title_of(source: str) -> str:
    """Return the page's title: the film's name, or the last part of a URL."""
    return Path(source.partition("?")[0]).name or "aiozerocopy"


def to_copy(options: argparse.Namespace, place: Address | Path) -> str:
    """Return the command of a viewer for this place, to be copied to a shell."""
    is_found = shutil.which("aiozerocopy") is not None
    view = ["aiozerocopy"] if is_found else [sys.executable, "-m", "aiozerocopy"]
    view += ["view", str(place.absolute() if isinstance(place, Path) else place)]
    if options.tls_cert is not None and isinstance(place, Address):
        view.append(f"--tls-ca={options.tls_cert.absolute()}")
    if options.token_file is not None:
        view.append(f"--token-file={options.token_file.absolute()}")
    rest = "" if options.token is None else "   (and its token)"
    return f"by a program   {shlex.join(view)}{rest}"


def _name_for(host: str, encryption: ssl.SSLContext | None, certificate: Path) -> str:
    """Return the server's name for local programs: one in its certificate, if any."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    names = [] if encryption is None else _names_in(certificate, encryption)
    plain = [name for name in names if not name.startswith("*")]
    return host if host in names or not plain else plain[0]


def _names_in(certificate: Path, server: ssl.SSLContext) -> list[str]:
    """Return the names in a certificate, which Python reads only in a handshake."""
    import ssl

    try:
        trusting = trust(certificate)
        trusting.check_hostname = False
        there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
        caller = trusting.wrap_bio(back, there)
        answering = server.wrap_bio(there, back, server_side=True)
        for side in (caller, answering, caller):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
        shown: Any = caller.getpeercert() or {}
    except (ssl.SSLError, ValueError):  # e.g. expired: viewers will report that
        return []
    return [name for _, name in shown.get("subjectAltName", ())]


def _parser() -> Parser:
    parser = Parser(
        prog="aiozerocopy serve",
        description="Show a scene, the screen, or anything that FFmpeg reads, to "
        "browsers (--web; port 8000 without --web, --tcp and --unix) and to programs "
        "such as aiozerocopy view (--tcp, --unix). Each viewer gets the newest whole "
        "frame; a slow viewer misses frames, and does not slow the others. A video "
        "begins again at its end; Ctrl-C ends the command.",
    )
    add = parser.add_argument
    add(
        "source",
        nargs="?",
        type=source,
        help="demo (a scene), screen (the X11 screen), or anything that FFmpeg reads: "
        "a file, a URL, /dev/video0 (default: demo)",
    )
    add(
        "--source",
        dest="named",
        type=source,
        metavar="SOURCE",
        help="the source, as an option",
    )
    add(
        "--ffmpeg-input",
        type=words,
        metavar="OPTIONS",
        help='options of FFmpeg before -i, such as "-f v4l2" or "-re -stream_loop -1"',
    )
    add("--once", action="store_true", help="stop at the end of the video")
    add_picture(parser, SCENE, 30)
    add_screen(parser)
    add(
        "--host",
        type=host,
        default="127.0.0.1",
        help="the address to listen on; 0.0.0.0 lets other machines connect",
    )
    add("--web", type=port, metavar="PORT", help="serve browsers on this port")
    add(
        "--hardware",
        action="store_true",
        help="with --web, encode H.264 on the GPU, if one of its encoders (see doctor) "
        "holds back no frames",
    )
    add(
        "--name",
        type=host,
        action="append",
        default=[],
        help="a public name of this server, such as films.example.org",
    )
    add(
        "--origin",
        type=origin,
        action="append",
        default=[],
        metavar="URL",
        help="the page's address at a proxy, such as https://films.example.org, if the "
        "proxy changes the Host header",
    )
    add(
        "--file",
        action="store_true",
        help="with --web, offer the film's file for download too",
    )
    add("--tcp", type=port, metavar="PORT", help="serve programs on this port")
    add(
        "--unix",
        type=file,
        metavar="PATH",
        help="serve local programs on this Unix socket",
    )
    add_token(parser)
    add_server_tls(parser)
    add(
        "--max-clients",
        type=count,
        default=1000,
        metavar="N",
        help="how many clients --tcp and --unix each accept",
    )
    return parser


def main(argv: Sequence[str]) -> int:
    """Serve until the source ends; return 0 or raise."""
    parser = _parser()
    options = parser.parse_args(argv)
    if options.tls_key is not None and options.tls_cert is None:
        parser.error("--tls-key needs --tls-cert")
    if options.source and options.named:
        parser.error("SOURCE and --source are the same: write one of them")
    options.source = options.source or options.named or "demo"
    if options.ffmpeg_input is not None and options.source in OWN:
        parser.error(
            f"--ffmpeg-input is for sources that FFmpeg reads, not for {options.source}"
        )
    if options.size is not SCENE and options.source != "demo":
        parser.error(f"--size is for the scene demo, not for {options.source}")
    asked = (options.display, options.region, options.monitor, options.cursor or None)
    if options.source != "screen" and any(one is not None for one in asked):
        parser.error("--display, --region, --monitor, --cursor need the source screen")
    if options.web is options.tcp is options.unix is None:
        options.web = 8000
    is_film = options.source != "demo" and Path(options.source).is_file()
    if options.file and not is_film:
        parser.error(f"--file needs a source that is a file, not {options.source}")
    if options.file and options.web is None:
        parser.error("--file needs --web, where it is offered")
    if options.hardware and options.web is None:
        parser.error("--hardware needs --web, whose H.264 it is")
    if options.tls_cert is not None and options.web is options.tcp is None:
        parser.error("--tls-cert is for --web and --tcp: --unix is not encrypted")
    anyio.run(run, options)
    return 0
