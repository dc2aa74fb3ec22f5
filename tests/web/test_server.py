"""The web server: its pages, its streams, and what hostile clients get."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import json
import re
import socket
import ssl
import struct
from collections.abc import AsyncIterator
from functools import partial
from http.client import HTTPConnection
from importlib import resources
from typing import Any

import anyio
import numpy as np
import pytest
from links import meanwhile, until
from web_client import (
    KEY,
    Answer,
    ask,
    asking,
    connected,
    outlast,
    picture,
    publishing,
    rest,
    say,
    until_seen,
    upgrade,
    watching,
)
from wsproto import events

import aiozerocopy as azc
from aiozerocopy import web
from aiozerocopy._net import admission
from aiozerocopy.broadcast import Broadcast
from aiozerocopy.web import assets, http, websocket

pytestmark = pytest.mark.anyio


@pytest.fixture
async def to(hub: Broadcast) -> AsyncIterator[web.WebServer]:
    async with web.serve(hub) as server:
        yield server


BAD_KEYS = (b"", b"AAAA", b"A" * 24, b"*" * 22 + b"==", KEY + b" " + KEY, b"\xff" * 24)


# ---- pages -----------------------------------------------------------------------


async def test_the_page_needs_nothing_from_elsewhere(to: web.WebServer) -> None:
    for path in ("/", *assets.PARTS):
        body = (await ask(to, path)).body
        body = body.replace(b'xmlns="http://www.w3.org/2000/svg"', b"")
        for elsewhere in (b"http://", b"https://", b'"//', b"@import", b"eval("):
            assert elsewhere not in body


async def test_the_page_is_served_as_a_whole(hub: Broadcast) -> None:
    """Every packaged file is served, and every file that one of them names."""
    packaged = {path.name for path in (resources.files(web) / "page").iterdir()}
    assert set(assets.PARTS.values()) == packaged - {assets.PAGE, assets.TOKEN_PAGE}
    named = rb'(?:href|script src)="([\w.]+)"|from "\./([\w.]+)"'
    for name in packaged:
        for found in re.findall(named, assets.content(name)):
            assert b"".join(found).decode() in assets.PARTS.values()


async def test_requests_with_empty_lines_before_them(to: web.WebServer) -> None:
    """The last request's lines end without CR."""
    last = asking("/", "Connection: close").replace(b"\r\n", b"\n")
    requests = b"\r\n" + asking() + b"\r\n" + asking() + b"\r\n\n\r\n" + last
    assert (await say(to, requests)).count(b"HTTP/1.1 200 OK") == 3


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


# ---- bad input -------------------------------------------------------------------

MANY = ["A: b"] * (http.MAX_LINES - 3)  # with these there is a line too many

REFUSED = [
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
    (b"GET / HTTP/1.1\r\nHost: localhost\r\nA: " + b"x" * 30_000, 431),
    (b"G" * 30_000, 431),
    (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 10_000, 431),
    (asking("/", "Connection: close", *MANY[:-1]), 200),
    (asking("/", "Connection: close", *MANY), 431),
    (asking("/", method="BREW"), 405),
    (asking("/raw", method="DELETE"), 405),
    (asking("/", "Transfer-Encoding: chunked") + b"0\r\n\r\n", 413),
    (asking("/raw", "Upgrade: websocket", "Connection: Upgrade"), 426),
    (upgrade("/raw").replace(b"Version: 13", b"Version: 7"), 426),
    (upgrade("/raw").replace(b"1.1", b"1.0"), 426),
    (upgrade("/raw").replace(b"Connection: Upgrade", b"Connection: close"), 426),
    *((upgrade("/raw").replace(KEY, key), 400) for key in BAD_KEYS),
    (asking("/").replace(b"localhost", b"[::1"), 403),
]


async def test_refusals(to: web.WebServer) -> None:
    for request, status in REFUSED:
        answer = Answer(await say(to, request))
        assert answer.status == status, request
        assert answer.headers["connection"] == "close"
        assert answer.body
    assert (await ask(to)).status == 200


async def test_no_other_file_is_served(to: web.WebServer) -> None:
    for path in (
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
    ):
        assert (await ask(to, path)).status == 404, path


@pytest.mark.every_loop
@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.7"])
async def test_a_full_server_answers_an_address_only_so_often(
    hub: Broadcast, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    """Its next request waits; 127.0.0.1's do not, and neither does the server's end."""
    monkeypatch.setattr(admission, "AT_ONCE", 2)
    monkeypatch.setattr(admission, "A_SECOND", 1e-6)
    async with web.serve(hub) as to:
        to._site.modes.crowd._room = 1
        answers = to._site._answers
        where = ("127.0.0.1", to.port)
        with socket.create_connection(where, source_address=(host, 0)) as sock:
            sock.sendall(asking() * 8)
            wanted = 8 if host == "127.0.0.1" else 3
            await until(lambda: answers[200] == wanted and len(to._idle) == 1)
    assert answers[200] == wanted


async def test_a_request_must_come_soon(
    to: web.WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "ADMISSION_SECONDS", 0.05)
    assert await say(to, b"") == b""
    monkeypatch.setattr(http, "ADMISSION_SECONDS", 1)  # for its first bytes to come
    assert Answer(await say(to, b"GET / HTTP/1.1\r\n")).status == 408
    monkeypatch.setattr(http, "ADMISSION_SECONDS", 60)
    with monkeypatch.context() as patch:
        patch.setattr(http, "HEADER_SECONDS", 0.05)
        assert Answer(await say(to, b"GET / HTTP/1.1\r\n")).status == 408
    monkeypatch.setattr(http, "IDLE_SECONDS", 0.05)
    assert await say(to, b"") == b""


@pytest.mark.every_loop
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


async def test_rude_viewers(hub: Broadcast) -> None:
    async with web.serve(hub) as to, watching(to) as other:
        for rude, code in (
            (b"\x81\xfe\xff\xff\0\0\0\0" + b"x" * 65535, 1009),  # a long message
            (b"\x81\x05hello", 1002),  # without a mask
            (b"\xff\x80\0\0\0\0", 1002),  # of a kind that does not exist
            (b"\x81\x82\0\0\0\0\xff\xff", 1007),  # not UTF-8
            # too long, as the header alone shows
            (b"\x82\xff" + (1 << 62).to_bytes(8, "big") + b"\0\0\0\0", 1009),
            (b"\x01\x81\0\0\0\0a\x80\xfe\x10\1\0\0\0\0", 1009),
        ):
            async with watching(to) as viewer:
                await viewer.stream.send(rude)
                assert await viewer.code() == code, rude[:9]
        await hub.publish(picture())
        assert await other.number() == 0


async def test_resets_and_ends_at_any_byte(hub: Broadcast) -> None:
    whole = upgrade("/raw") + b"\x89\x80\0\0\0\0" + b"\x81\x85\0\0\0\0hello"
    no_linger = struct.pack("ii", 1, 0)
    async with web.serve(hub) as to, publishing(hub):
        for end in range(0, len(whole) + 1, 3):
            with socket.create_connection(("127.0.0.1", to.port)) as sock:
                if end % 2:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, no_linger)
                sock.sendall(whole[:end])
        await until(lambda: to._server.connections == 0)
        assert to.viewers == 0
        assert (await ask(to)).status == 200


# ---- who may ask -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("token", "", ValueError),
        ("token", ["a", ""], ValueError),
        ("token", b"secret", TypeError),
        ("token", 5, TypeError),
        ("token", ["a", 5], ValueError),
        ("host", 3, TypeError),
        ("host", b"::1", TypeError),
        ("port", "80", TypeError),
        ("port", 70_000, ValueError),
        ("title", 5, TypeError),
        ("modes", "raw", TypeError),
        ("modes", ["telepathy"], ValueError),
        ("modes", [[]], ValueError),
        ("modes", [], ValueError),
        ("hardware", 1, TypeError),
        ("hosts", "tv.example", TypeError),
        ("hosts", [""], ValueError),
        ("origins", "https://tv.example", TypeError),
        ("origins", ["tv.example"], ValueError),
        ("quality", 300, ValueError),
        ("quality", 80.0, TypeError),
        ("patience", -1, ValueError),
        ("patience", "5", TypeError),
        ("max_viewers", 0, ValueError),
        ("max_viewers", True, TypeError),
        ("max_per_address", 0, ValueError),
        ("ssl_context", True, TypeError),
        ("hub", "x", TypeError),
    ],
)
def test_settings_are_looked_at_where_they_are_given(
    name: str, value: object, kind: type[Exception]
) -> None:
    faces: dict[str, Any] = {"serve": web.serve, "app": web.app}
    if importlib.util.find_spec("aiohttp"):
        faces["aiohttp_app"] = web.aiohttp_app
    for face, make in faces.items():
        given = {"hub": Broadcast(), name: value}
        if name in inspect.signature(make).parameters:
            with pytest.raises(kind, match=f"^{name}= ") as refused:
                make(**given)
            assert "secret" not in str(refused.value)
        else:
            assert face != "serve"
            assert name in ("host", "port", "ssl_context")


async def test_the_hub_is_entered_first() -> None:
    with pytest.raises(RuntimeError, match="enter the hub first: `async with hub"):
        await web.serve(Broadcast()).serve_forever()
    async with web.serve(Broadcast(), modes=["raw"]) as server:  # needs no encoder
        assert (await ask(server)).status == 200


@pytest.mark.parametrize(
    ("host", "options", "lacks", "url"),
    [
        ("0.0.0.0", {}, "a token or TLS", "http://localhost:{}/"),
        (None, {"token": "a b"}, "TLS", "http://localhost:{}/?token=a+b"),
        ("127.0.0.1", {}, "", "http://127.0.0.1:{}/"),
        ("::1", {}, "", "http://[::1]:{}/"),
    ],
)
async def test_its_url_and_a_warning_if_others_can_reach_it(
    hub: Broadcast,
    caplog: pytest.LogCaptureFixture,
    host: str | None,
    options: dict[str, str],
    lacks: str,
    url: str,
) -> None:
    async with web.serve(hub, host, **options) as page:  # type: ignore[arg-type]
        assert page.url == url.format(page.port)
    async with azc.serve_tcp(anyio.sleep, host, **options):  # type: ignore[arg-type]
        for said in caplog.messages:
            assert said.startswith("other machines can reach ")
            assert said.endswith(f", without {lacks}")
        assert len(caplog.messages) == (2 if lacks else 0)


HERE = socket.gethostname()


@pytest.mark.parametrize(
    ("options", "statuses"),
    [
        (
            {"host": "127.0.0.1", "hosts": ["tv.example"]},
            {"127.0.0.1": 200, "[::1]:80": 200, "a.localhost": 200, "tv.example": 200},
        ),
        (
            {"host": "0.0.0.0"},
            {
                "localhost:80": 200,
                "127.0.0.1": 200,
                "192.0.2.7:8000": 200,
                "[2001:db8::1]:80": 200,
                HERE.upper(): 200,
                f"{HERE.partition('.')[0]}.local:8000": 200,
                "evil.example": 403,
                "127.0.0.1.evil.example": 403,
            },
        ),
        (
            {"host": "0.0.0.0", "hosts": ["TV.example"]},
            {
                "tv.example:8000": 200,
                "localhost": 200,
                "192.0.2.7": 403,
                "evil.example": 403,
            },
        ),
        # A client who knows the token may use any name, unless names are given.
        ({"host": "0.0.0.0", "token": "a"}, {"tv.example": 200}),
        ({"host": "0.0.0.0", "token": "a", "hosts": ["b"]}, {"tv.example": 403}),
    ],
    ids=str,
)
async def test_names_that_it_answers_to(
    hub: Broadcast, options: dict[str, Any], statuses: dict[str, int]
) -> None:
    async with web.serve(hub, **options) as to:
        for name, status in statuses.items():
            answer = await ask(to, "/?token=a", f"Host: {name}")
            assert answer.status == status, name


async def test_the_authority_of_a_target_counts(to: web.WebServer) -> None:
    for target, host, status in (
        ("http://localhost/healthz", "evil.example", 200),
        ("http://localhost", "localhost", 200),
        ("http://evil.example/healthz", "localhost", 403),
        ("http://localhost@evil.example/healthz", "localhost", 403),
    ):
        assert (await ask(to, target, f"Host: {host}")).status == status


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
    exposed, refused = caplog.messages
    assert exposed.startswith("other machines can reach 0.0.0.0:")
    assert refused.endswith("its page is not among origins= ('http://localhost')")


# ---- over TLS --------------------------------------------------------------------


@pytest.mark.every_loop
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
                # the answer to a ping does not cut a message into two
                await viewer.send(events.Ping(b"you"))
                header, payload = await viewer.message()
                assert (header[7], payload) == (number, big.tobytes())
            await viewer.send(events.CloseConnection(1000))
            await viewer.next_of(events.CloseConnection)
        await until(lambda: to.viewers == 0)


@pytest.mark.every_loop
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
            # In mid-frame the client leaves, perhaps after something that is not TLS.
            for rude in (b"garbage", b""):
                async with connected(to, trust) as stream:
                    await stream.send(upgrade("/raw"))
                    await until(lambda: to.viewers == 2)
                    if rude:
                        await stream.transport_stream.send(rude * 99)
                    stream.transport_stream.abort()
                await until(lambda: to.viewers == 1)
        await until(lambda: to._server.connections == 0)
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def test_a_viewer_who_never_reads_tls_is_let_go(
    hub: Broadcast, tls: tuple[ssl.SSLContext, ssl.SSLContext]
) -> None:
    server, trust = tls
    async with web.serve(hub, patience=0.3, ssl_context=server) as to:
        async with connected(to, trust) as stuck, watching(to, trust=trust) as good:
            await stuck.send(upgrade("/raw"))
            await until(lambda: to.viewers == 2)
            await outlast(hub, good)


async def test_the_end_of_who_is_not_heard_is_no_reset(
    hub: Broadcast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a reset, a browser would not read why the stream has ended."""
    monkeypatch.setattr(
        websocket.WebSocket, "wait_left", lambda _: anyio.sleep_forever()
    )
    async with web.serve(hub) as server, watching(server) as viewer:
        await viewer.send(events.TextMessage("0"))
        async with meanwhile(server.aclose):
            assert await viewer.code() == 1001
            assert not await rest(viewer.stream)
            await viewer.stream.aclose()


async def test_it_is_full_for_an_address_that_has_its_share(hub: Broadcast) -> None:
    """The page of another viewer at that address then says so, and tries again."""
    local = ("127.0.0.2", 0)  # (only 127.0.0.1 is without a limit)

    def is_full(port: int, source: tuple[str, int] | None) -> bool:
        to = HTTPConnection("127.0.0.1", port, source_address=source)
        with contextlib.closing(to):
            to.request("GET", "/status")
            full: bool = json.load(to.getresponse())["full"]
            return full

    async with web.serve(hub, max_per_address=1) as server:
        there = ("127.0.0.1", server.port)
        with socket.create_connection(there, source_address=local) as viewer:
            viewer.sendall(upgrade("/raw"))
            await until(lambda: len(hub.clients) == 1)
            asked = partial(is_full, server.port)
            assert await anyio.to_thread.run_sync(asked, local)
            assert not await anyio.to_thread.run_sync(asked, None)
        await until(lambda: not hub.clients)
        assert not await anyio.to_thread.run_sync(asked, local)
