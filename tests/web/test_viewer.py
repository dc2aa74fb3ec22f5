"""The viewer is the same under every server: its answers, its pictures, its limits."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
from typing import Any

import anyio
import numpy as np
import pytest
from links import is_trio, meanwhile, until
from web_client import (
    BIG,
    END_OF_JPEG,
    Answer,
    ask,
    asking,
    connected,
    needs_jpeg,
    outlast,
    picture,
    until_seen,
    upgrade,
    watching,
)
from web_servers import Place, each_way, everywhere, foreign, serving
from wsproto import events

from aiozerocopy.broadcast import Broadcast
from aiozerocopy.web import guard, jpeg, link, pixels, request

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]

TOKEN = "sesame öffne dich"
GIVEN = "?token=sesame+%C3%B6ffne+dich"


async def status_of(to: Place) -> dict[str, object]:
    status: dict[str, object] = json.loads((await ask(to, "/status")).body)
    return status


async def until_viewers(to: Place, count: int) -> None:
    while (await status_of(to))["viewers"] != count:
        pass


async def answer_to(to: Place, request: bytes, end: bytes = b"\r\n\r\n") -> Answer:
    """Return an answer up to ``end``, as some answers never end."""
    async with connected(to) as stream:
        await stream.send(request)
        return Answer(await until_seen(stream, end))


# ---- answers ---------------------------------------------------------------------


@each_way
async def test_pages(hub: Broadcast, server: str) -> None:
    async with serving(server, hub, title="Tea & <b>milk</b>") as to:
        for path, kind in (
            ("/", "text/html"),
            ("/?mode=raw", "text/html"),
            ("/viewer.js", "text/javascript"),
            ("/viewer.css", "text/css"),
            ("/icon.svg", "image/svg+xml"),
            ("/healthz", "text/plain"),
            ("/status", "application/json"),
            ("/metrics", "text/plain; version=0.0.4"),
        ):
            answer = await ask(to, path)
            assert answer.status == 200
            assert answer.headers["content-type"].startswith(kind)
            for name, value in request.COMMON_HEADERS.items():
                assert answer.headers[name.lower()] == value
            assert int(answer.headers["content-length"]) == len(answer.body) > 0
            if kind == "text/html":
                policy = answer.headers["content-security-policy"]
                assert "default-src 'none'" in policy
                assert answer.body.count(b">Tea &amp; &lt;b&gt;milk&lt;/b&gt;</") == 2
            head = await ask(to, path, method="HEAD")
            assert (head.status, head.body) == (200, b"")
        if "mjpeg" in (await status_of(to))["modes"]:  # type: ignore[operator]
            stream = await ask(to, "/stream.mjpg", method="HEAD")
            assert (stream.status, stream.body) == (200, b"")
            assert "content-length" not in stream.headers


@foreign
async def test_its_place_without_the_slash(hub: Broadcast, server: str) -> None:
    async with serving(server, hub, token="a b") as to:
        answer = await ask(to, "?token=a%20b")
        assert answer.status == 307
        place = "./viewer/" if server == "aiohttp" else "/viewer/"
        assert answer.headers["location"].endswith(f"{place}?token=a%20b")


@each_way
async def test_refusals(hub: Broadcast, server: str) -> None:
    async with serving(server, hub, hosts=["TV.example"]) as to:
        for status, path, fields, method, body in (
            (404, "/nothing", (), "GET", b""),
            (405, "/", (), "POST", b""),
            (413, "/", ("Content-Length: 5",), "GET", b"hello"),
            (400, "/?" + "a=1&" * 99, (), "GET", b""),
            (426, "/raw", (), "GET", b""),
            (403, "/", ("Host: evil.example",), "GET", b""),
            (403, "/", ("Host: 192.0.2.7:80",), "GET", b""),
            (200, "/", ("Host: tv.example",), "GET", b""),
        ):
            answer = await ask(to, path, *fields, method=method, body=body)
            assert answer.status == status
            assert answer.body


@each_way
async def test_tokens(
    hub: Broadcast, server: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with serving(server, hub, token=TOKEN) as to:
        for path, fields, status in (
            ("/", (), 401),
            ("/?token=", (), 401),
            ("/?token=sesame", (), 401),
            (f"/{GIVEN}", (), 200),
            (f"/{GIVEN}", ("Host: tv.example",), 403 if to.is_ours else 200),
            ("/?token=%ff", (), 401),
            ("/metrics", ("Authorization: Bearer sesame",), 401),
            ("/metrics", ("Authorization: Basic c2VzYW1l",), 401),
            ("/status", (), 401),
            ("/stream.mjpg", (), 401),
            ("/raw", (), 401),
            ("/nothing", (), 401),
            ("/healthz", (), 200),
            ("/viewer.css", (), 200),
        ):
            assert (await ask(to, path, *fields)).status == status
        assert (await answer_to(to, upgrade(f"{to.prefix}/raw"))).status == 401
        await hub.publish(picture())
        async with watching(to, f"/raw{GIVEN}&more=") as viewer:
            assert await viewer.number() == 0
        # As curl sends it, and as Python's clients and browsers do.
        asked = asking(f"{to.prefix}/metrics", f"Authorization: Bearer {TOKEN}")
        for encoding in ("utf-8", "latin-1"):
            sent = asked.decode().encode(encoding)
            assert (await answer_to(to, sent)).status == 200
    async with serving(server, hub, token="sesame") as to:
        answer = await ask(to, "/metrics", "Authorization: Bearer sesame")
        assert answer.status == 200
    said = [it.getMessage() for it in caplog.records if it.name == "aiozerocopy"]
    assert "refused 127.0.0.1: its token is wrong" in said
    assert not any(token in text for text in said for token in (TOKEN, "sesame"))


@each_way
async def test_a_cookie_takes_the_tokens_place(
    hub: Broadcast,
    server: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    page = "Accept: text/html"
    async with serving(server, hub, token=["new", "old"]) as to:

        async def cookie_for(token: str) -> str:
            answer = await ask(to, f"/?token={token}&mode=raw", page)
            assert (answer.status, answer.headers["location"]) == (303, "./?mode=raw")
            cookie, _, terms = answer.headers["set-cookie"].partition("; ")
            assert terms == f"Max-Age={guard.SESSION_SECONDS}; HttpOnly; SameSite=Lax"
            assert token not in cookie
            return f"Cookie: other=1; {cookie}"

        cookie = await cookie_for("old")
        assert cookie != await cookie_for("new")
        for path in ("/", "/status", "/metrics", "/stream.mjpg"):
            assert (await ask(to, path, cookie, method="HEAD")).status == 200
        for origin, status in (("localhost", 101), ("evil.example", 403)):
            fields = (cookie, f"Origin: http://{origin}")
            asked = upgrade(f"{to.prefix}/raw", *fields)
            assert (await answer_to(to, asked)).status == status
        assert (await ask(to, "/?token=wrong", cookie)).status == 401
        assert (await ask(to, "/?token=new")).status == 200  # a program's request
        begin, _, end = cookie.rpartition("=")
        forged = (f"{begin}=9{end}", f"{begin}={end[:-1]}", f"{begin}=", f"{begin}=a.b")
        for wrong in (*forged, cookie.replace("-", "-0")):
            assert (await ask(to, "/status", wrong)).body == b"this token is wrong\n"
        # The page asks for the status, which renews a session that is half over.
        assert "set-cookie" not in (await ask(to, "/status", cookie)).headers
        monkeypatch.setattr(guard, "SESSION_SECONDS", 25 * 3600)
        renewed = (await ask(to, "/status", cookie)).headers["set-cookie"]
        assert "Max-Age=90000" in renewed
        bearer = "Authorization: Bearer new"
        assert "set-cookie" not in (await ask(to, "/status", cookie, bearer)).headers
        monkeypatch.setattr(guard, "SESSION_SECONDS", -1)
        assert (await ask(to, "/status", await cookie_for("new"))).status == 401
        refused = b"\naiozerocopy_web_refused_total 8\n"
        assert refused in (await ask(to, "/metrics?token=old")).body
    assert [text for text in caplog.messages if text.startswith("refused")] == [
        "refused 127.0.0.1: its page is not among origins= ('http://evil.example')",
        "refused 127.0.0.1: its token is wrong",
        "refused 127.0.0.1: it has no token",
    ]


@each_way
async def test_a_token_that_is_no_text(hub: Broadcast, server: str) -> None:
    async with serving(server, hub, token=TOKEN) as to:
        link = await ask(to, f"/{GIVEN}", "Accept: text/html")
        cookie = link.headers["set-cookie"].partition(";")[0]
        for asked, status in (
            (asking(f"{to.prefix}/metrics", "Authorization: Bearer ?"), 401),
            (asking(f"{to.prefix}/metrics", f"Cookie: {cookie}?"), 401),
            (upgrade(f"{to.prefix}/raw", f"Cookie: {cookie}", "Origin: ?"), 403),
        ):
            for byte in (b"\xff", b"\xc3\xb6"):
                answer = await answer_to(to, asked.replace(b"?", byte))
                assert answer.status == status


@each_way
async def test_a_client_without_a_token_hears_so(hub: Broadcast, server: str) -> None:
    """A program gets a line, a browser a page."""
    async with serving(server, hub, token=TOKEN) as to:
        for query, line, headline in (
            ("", b"a token is needed: /?token=...\n", b"A token is needed"),
            ("?token=", b"a token is needed: /?token=...\n", b"A token is needed"),
            ("?token=x", b"this token is wrong\n", b"This token is wrong"),
        ):
            answer = await ask(to, f"/{query}")
            assert (answer.status, answer.body) == (401, line)
            answer = await ask(to, f"/{query}", "Accept: text/html,*/*;q=0.8")
            assert answer.status == 401
            assert answer.headers["www-authenticate"] == "Bearer"
            assert answer.headers["content-type"].startswith("text/html")
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert b"<h1>%b</h1>" % headline in answer.body
            assert TOKEN.encode() not in answer.body


@each_way
async def test_origins(hub: Broadcast, server: str) -> None:
    """A page that may not watch can ask why: its browser does not say."""
    async with serving(server, hub, origins=["https://friend.example/"]) as to:
        for origin, status in (
            ("http://localhost", 101),
            ("https://LOCALHOST", 101),
            ("http://localhost:8001", 403),
            ("https://friend.example", 101),
            ("http://evil.example", 403),
            ("null", 403),
        ):
            asked = upgrade(f"{to.prefix}/raw", f"Origin: {origin}")
            assert (await answer_to(to, asked)).status == status
            why = f"this page's address, {origin}, is not among origins="
            told = json.loads((await ask(to, f"/status?origin={origin}")).body)
            assert told["refused"] == ("" if status == 101 else why)
        assert (await answer_to(to, upgrade(f"{to.prefix}/nothing"))).status == 404


@each_way
async def test_metrics_are_what_prometheus_reads(hub: Broadcast, server: str) -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    async with serving(server, hub) as to:
        async with watching(to) as viewer:
            await hub.publish(picture())
            await viewer.message()
            await ask(to, "/nothing")
            text = (await ask(to, "/metrics")).body.decode()
    values = {
        (each.name.removeprefix("aiozerocopy_"), *each.labels.values()): each.value
        for family in parser.text_string_to_metric_families(text)
        for each in family.samples
    }
    assert values["frames_published_total",] == 1
    assert values["web_viewers", "raw"] == 1
    assert values["web_frames_sent_total", "raw"] == 1
    assert values["web_sent_bytes_total", "raw"] > picture().nbytes
    assert values["web_responses_total", "101"] == 1
    assert values["web_responses_total", "404"] == 1
    assert (("web_connections",) in values) == to.is_ours


# ---- pictures --------------------------------------------------------------------


@everywhere
async def test_frames_arrive_as_they_were(hub: Broadcast, server: str) -> None:
    """Several may watch, and one who comes late gets the last frame."""
    async with serving(server, hub, title="Tea", max_viewers=4) as to:
        async with watching(to) as one, watching(to) as two:
            for number in range(3):
                await hub.publish(picture(number))
                assert await one.number() == await two.number() == number
            async with watching(to) as late:
                assert await late.number() == 2
            await until(lambda: len(hub.clients) == 2)
            status = await status_of(to)
            assert (status["title"], status["sequence"]) == ("Tea", 3)
            assert (status["viewers"], status["full"]) == (2, False)
            await one.leave()
        await until(lambda: hub.clients == ())


@everywhere
async def test_more_viewers_than_allowed(hub: Broadcast, server: str) -> None:
    async with serving(server, hub, max_viewers=1) as to:
        async with watching(to) as first:
            asked = upgrade(f"{to.prefix}/raw")
            refused = await answer_to(to, asked, b"too many are watching\n")
            assert refused.status == 503
            assert "retry-after" in refused.headers
            assert (await status_of(to))["full"]
            for path in ("/healthz", "/", "/viewer.js"):
                assert (await ask(to, path)).status == 200
            await first.leave()
        await until_viewers(to, 0)
        assert not (await status_of(to))["full"]
        async with watching(to) as second:
            await hub.publish(picture())
            assert await second.number() == 0


@needs_jpeg
@everywhere
async def test_jpegs_until_the_viewer_leaves_or_the_server_ends(
    hub: Broadcast, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if server == "aiohttp":
        from aiozerocopy.web import on_aiohttp

        monkeypatch.setattr(on_aiohttp, "LOOK_SECONDS", 0.01)
    async with serving(server, hub) as to:
        async with connected(to) as stream:
            await stream.send(asking(f"{to.prefix}/stream.mjpg"))
            data = b""
            for number in range(2):
                await hub.publish(picture(number))
                data += await until_seen(stream, END_OF_JPEG)
            await until_viewers(to, 1)
        await until(lambda: hub.clients == ())
        await until_viewers(to, 0)
        async with connected(to) as stream, anyio.create_task_group() as tasks:
            await stream.send(asking(f"{to.prefix}/stream.mjpg"))
            await until_seen(stream, END_OF_JPEG)
            tasks.start_soon(to.close)
            await until_seen(stream, b"0\r\n\r\n")
    answer = Answer(data)
    assert answer.headers["content-type"] == jpeg.CONTENT_TYPE
    assert "content-length" not in answer.headers
    first, second = answer.body.split(f"--{jpeg.BOUNDARY}\r\n".encode())[1:]
    assert b"X-Sequence: 0\r\n" in first
    assert b"X-Sequence: 1\r\n" in second
    head, _, content = first.partition(b"\r\n\r\n")
    length = int(head.partition(b"Content-Length: ")[2].split(b"\r\n")[0])
    assert content[:2] == b"\xff\xd8"
    assert content[length - 2 : length] == END_OF_JPEG


@pytest.mark.parametrize(
    "path", ["/raw", pytest.param("/stream.mjpg", marks=needs_jpeg)]
)
@each_way
async def test_frames_wait_for_who_has_not_acknowledged(
    hub: Broadcast, server: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a second, another frame is sent: the page may have lost the last one."""
    now = 0.0
    monkeypatch.setattr(link.Link.__init__, "__defaults__", (lambda: now,))

    async with serving(server, hub) as to, watching(to, path) as viewer:
        await until(lambda: hub.clients)
        [client] = hub.clients

        async def publish(number: int) -> None:
            await hub.publish(picture(number))
            await until(lambda: sum(_fates(client)) > number)

        async def gets(number: int, sent: int) -> None:
            assert (await viewer.message())[0][7] == number
            await until(lambda: client.stats.sent == sent)

        await publish(0)
        await gets(0, sent=1)
        await viewer.send(events.TextMessage("0"))
        await until(lambda: _link_of(client).acknowledges)
        await publish(1)
        await gets(1, sent=2)
        now += 2 * link.LATE
        _link_of(client).on_change()
        for number in range(2, 6):
            await publish(number)
        assert _fates(client) == (2, 1, 3)
        await viewer.send(events.TextMessage("1"))
        await gets(5, sent=3)
        now += 2 * link.LATE
        _link_of(client).on_change()
        await publish(6)
        assert _fates(client) == (3, 1, 3)
        now += link.PROBE  # `Link.tick` notices, though nothing comes
        await gets(6, sent=4)


def _fates(client: Any) -> tuple[int, int, int]:
    stats = client.stats
    return stats.sent, stats.queued, stats.dropped


def _link_of(client: Any) -> Any:
    return client._on_event.__self__._link


UNSHOWABLE: list[tuple[Any, str, str]] = [
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


@each_way
async def test_what_is_no_picture_is_told(hub: Broadcast, server: str) -> None:
    async with serving(server, hub) as to, watching(to) as viewer:
        for number, (frame, name, reason) in enumerate(UNSHOWABLE):
            await hub.publish(frame, pixel_format=name)
            header, payload = await viewer.message()
            assert (header[1], header[7]) == (pixels.REASON, number)
            assert payload.decode().startswith(reason)
        await hub.publish(picture(len(UNSHOWABLE)))
        assert await viewer.number() == len(UNSHOWABLE)


# ---- who may watch, and how long --------------------------------------------------


@everywhere
async def test_viewers_who_say_too_much(hub: Broadcast, server: str) -> None:
    async with serving(server, hub) as to, watching(to) as other:
        for length, times, code in ((5000, 1, 1009), (5, 200, 1008)):
            if times > 1 and server == "hypercorn":
                continue  # it stops reading before it sends what the viewer must hear
            for said in (
                events.TextMessage("x" * length),
                events.BytesMessage(b"x" * length),
            ):
                async with watching(to) as viewer:
                    words = b"".join(viewer.ws.send(said) for _ in range(times))
                    await viewer.stream.send(words)
                    assert await viewer.code() == code
        await hub.publish(picture())
        assert await other.number() == 0


@everywhere
async def test_the_end_is_told(hub: Broadcast, server: str) -> None:
    async with serving(server, hub) as to, watching(to) as viewer:
        await hub.publish(picture())
        assert await viewer.number() == 0
        async with meanwhile(to.close):
            assert await viewer.code() == 1001


@everywhere
async def test_a_viewer_who_never_reads_is_let_go_and_harms_nobody(
    hub: Broadcast, server: str
) -> None:
    limits = {"patience": 0.3, "max_viewers": 2}
    async with serving(server, hub, **limits) as to, watching(to) as good:
        with socket.create_connection(("127.0.0.1", to.port)) as stuck:
            stuck.sendall(upgrade(f"{to.prefix}/raw"))
            await until(lambda: len(hub.clients) == 2)
            number = await outlast(hub, good)
            assert number >= 2
            await hub.publish(BIG)
            assert (await good.message())[0][7] == number
            if not is_trio() or to.is_ours:  # (hypercorn's sends cannot be cancelled)
                await until_viewers(to, 1)
            if server in ("ours", "aiohttp"):  # whose connections we can drop
                stuck.settimeout(10)
                await anyio.to_thread.run_sync(until_dropped, stuck)
            else:  # others keep the connection: the viewer counts until it has left
                assert (await status_of(to))["full"]
        while (await status_of(to))["full"]:
            pass


def until_dropped(sock: socket.socket) -> None:
    with contextlib.suppress(ConnectionResetError):
        while sock.recv(1 << 20):
            pass
