"""The viewer as an ASGI application: what it answers and sends, and whom it drops."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from asgi_server import HTTP, WEBSOCKET, Call, calling
from links import meanwhile, others_wait, until
from web_client import BIG, HEADER, needs_jpeg, number_of, picture

from aiozerocopy import web
from aiozerocopy._net.foreign_streams import PIECE
from aiozerocopy.broadcast import Broadcast

pytestmark = pytest.mark.anyio

SAYS_WHY: dict[str, Any] = {"extensions": {"websocket.http.response": {}}}


def kind_of(app: web.WebApp, path: str) -> dict[str, Any]:
    if path not in app._modes.routes:
        pytest.skip("needs a package or FFmpeg")
    return HTTP if path == "/stream.mjpg" else WEBSOCKET


# ---- answers ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("root", "prefix"),
    [
        ("", ""),
        ("/viewer", "/viewer"),
        ("/viewer/", "/viewer"),
        ("/a/b", "/a/b"),
        ("/viewer", ""),  # from servers that cut the prefix off
    ],
)
async def test_pages_wherever_mounted(hub: Broadcast, root: str, prefix: str) -> None:
    app = web.app(hub)
    for path in ("/", "/viewer.js", "/status?"):
        call = await Call(HTTP, prefix + path, root_path=root).run(app)
        assert call.status == 200
    other = await Call(HTTP, f"{prefix}x/", root_path=root).run(app)
    assert other.status == 404


@pytest.mark.parametrize(
    ("root", "path", "location"),
    [
        ("/viewer", "/viewer", "./viewer/"),
        ("/viewer", "/viewer?token=a%20b", "./viewer/?token=a%20b"),
        ("/viewer", "", "./viewer/"),
        ("/a/javascript:b", "/a/javascript:b", "./javascript%3Ab/"),
        ("/a\r\nb", "/a\r\nb", "./a%0D%0Ab/"),
    ],
)
async def test_its_place_without_the_slash(
    hub: Broadcast, root: str, path: str, location: str
) -> None:
    call = await Call(HTTP, path, root_path=root).run(web.app(hub))
    assert (call.status, call.headers["location"]) == (307, location)


async def test_its_place_beside_others(hub: Broadcast) -> None:
    """hypercorn mounts applications of any framework in this way."""
    middleware = pytest.importorskip("hypercorn.middleware")
    app = middleware.DispatcherMiddleware({"/viewer": web.app(hub)})
    for path, status in (("/viewer", 307), ("/viewer/", 200), ("/viewer/raw", 426)):
        call = await Call(HTTP, path, root_path="").run(app)
        assert call.status == status


async def test_websockets_that_are_refused(hub: Broadcast) -> None:
    """The client gets the reason, if the server can send it."""
    app = web.app(hub, token="a", hosts=["localhost"])
    for path, fields, status in (
        ("/raw?token=a", {"origin": "http://evil.example"}, 403),
        ("/raw?token=a", {"origin": "null"}, 403),
        ("/raw", {"host": "evil.example"}, 403),
        ("/raw", {}, 401),
        ("/?token=a", {}, 404),
        ("/nothing?token=a", {}, 404),
    ):
        call = await Call(WEBSOCKET, path, *fields.items(), **SAYS_WHY).run(app)
        assert (call.status, call.body != b"") == (status, True)
        call = await Call(WEBSOCKET, path, *fields.items()).run(app)
        assert call.kinds == ["websocket.close"]


async def test_who_leaves_before_the_answer(hub: Broadcast) -> None:
    call = Call(WEBSOCKET, "/raw", connects=False)
    call.tell("websocket.disconnect")
    assert (await call.run(web.app(hub))).said == []


async def test_scopes_that_are_unheard_of(hub: Broadcast) -> None:
    with pytest.raises(ValueError, match="'telepathy'"):
        await Call({"type": "telepathy"}, "/").run(web.app(hub))


async def test_scopes_without_what_is_optional(hub: Broadcast) -> None:
    app = web.app(hub)
    for query in ({}, {"query_string": None}):
        call = Call(WEBSOCKET, "/nothing", root_path=None, **SAYS_WHY)
        del call.scope["query_string"]
        call.scope.update(query)
        assert (await call.run(app)).status == 404
    call = Call(HTTP, "/healthz", root_path=None)
    assert (await call.run(app)).status == 200


async def test_all_names_are_for_who_is_around_it(hub: Broadcast) -> None:
    call = await Call(HTTP, "/", ("host", "testserver")).run(web.app(hub))
    assert call.status == 403
    call = Call(HTTP, "/", ("host", "testserver"))
    assert (await call.run(web.app(hub, hosts=["*"]))).status == 200


# ---- pictures --------------------------------------------------------------------


async def test_frames_arrive_as_they_were_in_one_copy_for_all(hub: Broadcast) -> None:
    app = web.app(hub)
    frame = picture()
    async with (
        calling(app, WEBSOCKET, "/raw") as one,
        calling(app, WEBSOCKET, "/raw") as two,
    ):
        for number in range(3):
            frame[:] = picture(number)
            await hub.publish(frame)
            await one.shows(number + 1)
            await two.shows(number + 1)
    for ours, theirs in zip(one.pictures, two.pictures, strict=True):
        assert type(ours) is bytes
        assert ours is theirs
    assert [number_of(message) for message in one.pictures] == [0, 1, 2]


@pytest.mark.every_loop
@pytest.mark.parametrize("path", ["/raw", "/stream.mjpg", "/h264"])
@pytest.mark.parametrize("reads_on", [True, False])
async def test_a_viewer_who_never_reads_is_let_go(
    hub: Broadcast, path: str, reads_on: bool
) -> None:
    """It gets no more; its seat is free when it has left, or has heard the end."""
    app = web.app(hub, patience=0.05, max_viewers=1)
    kind = kind_of(app, path)
    async with calling(app, kind, path) as stuck:
        stuck.stop_reading()
        while app.viewers:
            await hub.publish(BIG if path == "/raw" else picture())
            await anyio.lowlevel.checkpoint()
        await until(lambda: not hub.clients)
        await others_wait()
        assert (stuck.done, app._modes.crowd.has_seat("")) == (False, False)
        said = len(stuck.said)
        if reads_on:
            stuck.read_on()
        else:
            stuck.tell("http.disconnect" if kind is HTTP else "websocket.disconnect")
        await until(lambda: stuck.done)
        last = {"http": "http.response.body", "websocket": "websocket.close"}
        assert stuck.kinds[said:] == ([last[kind["type"]]] if reads_on else [])
        assert all(it.get("code", 1001) == 1001 for it in stuck.said[said:])
        assert app._modes.crowd.has_seat("")


async def test_a_long_frame_goes_out_in_pieces(hub: Broadcast) -> None:
    app = web.app(hub)
    async with calling(app, WEBSOCKET, "/raw") as call:
        await hub.publish(BIG)
        await until(lambda: sum(map(len, call.pictures)) == 32 + BIG.nbytes)
    assert max(map(len, call.pictures)) == PIECE
    header = HEADER.unpack(call.pictures[0][:32])
    assert (header[2:7], header[7]) == ((2, 1, 1024, 1024, BIG.nbytes), 0)


@pytest.mark.parametrize("failure", [OSError("gone"), RuntimeError("it is over")])
async def test_servers_error_ends_viewer(hub: Broadcast, failure: Exception) -> None:
    app = web.app(hub)
    async with calling(app, WEBSOCKET, "/raw") as call:
        call.failure = failure
        await hub.publish(picture())
        await until(lambda: call.done)
    assert (app.viewers, hub.clients) == (0, ())


@pytest.mark.every_loop
@pytest.mark.parametrize("path", ["/raw", "/h264"])
async def test_the_end_of_the_hub_is_told(path: str) -> None:
    hub = Broadcast()
    app = web.app(hub)
    async with anyio.create_task_group() as tasks:
        call = Call(kind_of(app, path), path)
        async with hub:
            tasks.start_soon(call.run, app)
            await hub.publish(picture())
            await call.shows(1)
    assert call.said[-1]["type"] == "websocket.close"
    assert call.said[-1]["code"] == 1001
    late = await Call(WEBSOCKET, path, **SAYS_WHY).run(app)
    assert (late.status, late.body) == (503, b"the stream has ended\n")


@needs_jpeg
async def test_a_hub_that_is_not_entered() -> None:
    with pytest.raises(RuntimeError, match="needs `async with` the broadcast"):
        await Call(HTTP, "/stream.mjpg").run(web.app(Broadcast()))


@pytest.mark.parametrize("path", ["/raw", "/h264", "/stream.mjpg"])
def test_it_can_be_made_before_there_is_a_loop(path: str) -> None:
    hub = Broadcast()
    app = web.app(hub)
    kind = kind_of(app, path)

    async def main() -> None:
        async with hub, calling(app, kind, path) as call:
            await hub.publish(picture())
            await call.shows(1)

    anyio.run(main)


# ---- who may watch, and how long --------------------------------------------------


@pytest.mark.every_loop
async def test_its_own_lifespan(hub: Broadcast) -> None:
    app = web.app(hub)
    life = Call({"type": "lifespan"}, "/")
    async with meanwhile(life.run, app):
        life.tell("lifespan.startup")
        await until(lambda: life.kinds == ["lifespan.startup.complete"])
        async with calling(app, WEBSOCKET, "/raw") as call:
            life.tell("lifespan.shutdown")
            await until(lambda: life.done and call.done)
            assert call.said[-1]["code"] == 1001
    assert life.kinds[-1] == "lifespan.shutdown.complete"
