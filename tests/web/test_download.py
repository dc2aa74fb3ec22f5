"""The web server's file: whole, in parts, while it changes, to clients that leave."""

from __future__ import annotations

import contextlib
import os
import random
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from links import attempt, until
from web_client import Answer, ask, asking, connected, rest, say

import aiozerocopy as azc
from aiozerocopy import web
from aiozerocopy.broadcast import Broadcast
from aiozerocopy.relays import Relay, relay
from aiozerocopy.web import download
from aiozerocopy.web.request import Refused, Request

pytestmark = pytest.mark.anyio

DATA = random.Random(9).randbytes(3_000_000)


@pytest.fixture
def film(tmp_path: Path) -> Path:
    path = tmp_path / "a night & a day.mp4"
    path.write_bytes(DATA)
    return path


@asynccontextmanager
async def serving(
    film: Path, patience: float = 15, ssl_context: ssl.SSLContext | None = None
) -> AsyncIterator[web.WebServer]:
    async with (
        Broadcast() as hub,
        web.serve(
            hub, modes=["raw"], file=film, patience=patience, ssl_context=ssl_context
        ) as server,
    ):
        yield server


@pytest.mark.every_loop
async def test_whole_file(film: Path) -> None:
    async with serving(film) as server:
        assert server.file_url == f"http://127.0.0.1:{server.port}/file"
        answer = await ask(server, "/file")
        head = await ask(server, "/file", method="HEAD")
    assert (answer.status, answer.body) == (200, DATA)
    assert answer.headers["content-type"] == "video/mp4"
    assert answer.headers["content-length"] == str(len(DATA))
    assert answer.headers["accept-ranges"] == "bytes"
    assert answer.headers["content-disposition"] == (
        'attachment; filename="a night & a day.mp4"; '
        "filename*=UTF-8''a%20night%20%26%20a%20day.mp4"
    )
    assert (head.status, head.headers, head.body) == (200, answer.headers, b"")


async def test_part(film: Path) -> None:
    end = len(DATA)
    async with serving(film) as server:
        for asked, first, stop in (
            ("bytes=0-0", 0, 1),
            ("bytes=100-", 100, end),
            ("bytes=100-199", 100, 200),
            ("bytes = 100 - 199", 100, 200),
            ("bytes=-5", end - 5, end),
            ("bytes=2999999-99999999", end - 1, end),
        ):
            answer = await ask(server, "/file", f"Range: {asked}")
            told = f"bytes {first}-{stop - 1}/{end}"
            assert (answer.status, answer.headers["content-range"]) == (206, told)
            assert answer.body == DATA[first:stop]
        answer = await ask(server, "/file", "Range: bytes=-9999999")
        assert (answer.status, answer.body) == (200, DATA)


HEADERS = {"ETag": '"1-a"', "Last-Modified": "Sat, 21 Nov 2026 10:00:00 GMT"}


def part(asked: str, version: str | None = None, size: int = 100) -> range:
    headers = {"range": asked} | ({} if version is None else {"if-range": version})
    return download.wanted(Request("GET", "", "/", {}, headers), HEADERS, size)


@pytest.mark.parametrize(
    "asked",
    ["", "bytes=-", "bytes=9-5", "bytes=1-2,4-5", "lines=1-2", f"bytes=0-{'9' * 19}"],
)
def test_what_is_no_single_part_gets_all(asked: str) -> None:
    assert part(asked) == range(100)


@pytest.mark.parametrize("asked", ["bytes=100-", "bytes=100-200", "bytes=-0"])
async def test_part_behind_the_end(film: Path, asked: str) -> None:
    with pytest.raises(Refused) as told:
        part(asked)
    assert told.value.headers["Content-Range"] == "bytes */100"
    os.truncate(film, 100)
    async with serving(film) as server:
        answer = await ask(server, "/file", f"Range: {asked}")
    assert (answer.status, answer.headers["content-range"]) == (416, "bytes */100")


def test_part_of_another_version_is_the_whole_of_this_one() -> None:
    assert part("bytes=1-2", '"1-b"') == range(100)
    for version in HEADERS.values():
        assert part("bytes=1-2", version) == range(1, 3)


async def test_empty_file(film: Path) -> None:
    os.truncate(film, 0)
    async with serving(film) as server:
        answer = await ask(server, "/file")
    assert (answer.status, answer.body) == (200, b"")


async def test_connection_goes_on_after_a_file(film: Path) -> None:
    async with serving(film) as server, connected(server) as stream:
        for method in ("GET", "HEAD", "GET"):
            await stream.send(asking("/file", "Range: bytes=7-8", method=method))
        await stream.send(asking("/healthz", "Connection: close"))
        received = await rest(stream)
    assert received.count(b"HTTP/1.1 206") == 3
    assert received.count(b"\r\n\r\n" + DATA[7:9] + b"HTTP/1.1") == 2
    assert received.endswith(b"ok\n")


@pytest.mark.every_loop
async def test_over_tls(
    film: Path,
    tls: tuple[ssl.SSLContext, ssl.SSLContext],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In small pieces, if the client is slow: it must take one within its patience."""
    sizes: list[int] = []

    def noted(source: Any, sink: Any, nbytes: int, *, offset: int) -> Relay:
        sizes.append(nbytes)
        return relay(source, sink, nbytes, offset=offset)

    monkeypatch.setattr(download, "relay", noted)
    server_side, client_side = tls
    async with serving(film, ssl_context=server_side) as server:
        for turn, largest in ((10, download.TLS_PIECE), (0, download.FIRST_PIECE)):
            monkeypatch.setattr(download, "TURN", turn)
            request = asking("/file", "Connection: close")
            answer = Answer(await say(server, request, client_side))
            assert answer.body == DATA
            assert max(sizes) == largest
            sizes.clear()


# ---- what goes wrong ---------------------------------------------------------------


@pytest.mark.every_loop
async def test_file_that_shrinks_ends_the_connection(film: Path) -> None:
    async with serving(film) as server, connected(server) as stream:
        os.truncate(film, 1 << 30)
        await stream.send(asking("/file"))
        received = bytearray(await stream.receive())
        os.truncate(film, 1_000_000)
        with contextlib.suppress(azc.StreamBroken):
            async for data in stream:
                received += data
    answer = Answer(bytes(received))
    assert int(answer.headers["content-length"]) == 1 << 30
    assert 1_000_000 <= len(answer.body) < 1 << 30
    assert answer.body[:1_000_000] == DATA[:1_000_000]


async def test_file_that_is_gone(film: Path) -> None:
    async with serving(film) as server:
        os.unlink(film)
        assert (await ask(server, "/file")).status == 404
        os.mkfifo(film)
        assert (await ask(server, "/file")).status == 404


@pytest.mark.every_loop
async def test_client_that_takes_nothing_is_let_go(film: Path) -> None:
    os.truncate(film, 1 << 30)
    async with serving(film, patience=0.5) as server, connected(server) as stream:
        await stream.send(asking("/file", "Connection: close"))
        await until(lambda: server._server.connections == 1)
        await until(lambda: server._server.connections == 0)
        assert (await ask(server, "/file", "Range: bytes=0-9")).body == DATA[:10]


@pytest.mark.every_loop
async def test_who_is_stuck_has_no_thread_and_gets_all_in_the_end(
    film: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More clients are stuck than there are movers; another one still gets the file."""
    relays: list[Relay] = []

    def noted(*arguments: Any, **options: Any) -> Relay:
        relays.append(relay(*arguments, **options))
        return relays[-1]

    monkeypatch.setattr(download, "relay", noted)
    monkeypatch.setattr(download, "MOVERS", 2)
    monkeypatch.setattr(download, "TURN", 0.05)
    os.truncate(film, 8 * len(DATA))
    whole = film.read_bytes()  # noqa: ASYNC240
    async with serving(film) as server, contextlib.AsyncExitStack() as clients:
        stuck = [await clients.enter_async_context(connected(server)) for _ in range(5)]
        for stream in stuck:
            await stream.send(asking("/file", "Connection: close"))
        await until(lambda: len(relays) >= 5 and not any(it._goes_on for it in relays))
        assert (await ask(server, "/file")).body == whole
        await until(lambda: server._server.connections == 5)
        for stream in stuck:
            assert Answer(await rest(stream)).body == whole


async def test_who_waits_for_others_to_move_is_not_let_go(film: Path) -> None:
    async with (
        serving(film, patience=0.2) as server,
        anyio.create_task_group() as tasks,
    ):
        assert server._download is not None
        movers = server._download._movers = anyio.Semaphore(1)
        await movers.acquire()
        asking_one = attempt(tasks, ask, server, "/file")
        await until(lambda: movers.statistics().tasks_waiting)
        await anyio.sleep(0.5)  # longer than `patience`
        movers.release()
    assert asking_one.result.body == DATA


async def test_a_name_that_headers_cannot_hold(film: Path) -> None:
    name = os.fsdecode(b'f\xff"\\\r\n%.mkv')
    os.rename(film, film.parent / name)
    async with (
        Broadcast() as hub,
        web.serve(hub, title=name, file=film.parent / name) as server,
    ):
        assert "f?&quot;" in (await ask(server, "/")).body.decode()
        assert (await ask(server, "/status")).status == 200
        answer = await ask(server, "/file")
        named = answer.headers["content-disposition"]
        plain = 'filename="f______.mkv"'
        assert named.endswith(f"{plain}; filename*=UTF-8''f%FF%22%5C%0D%0A%25.mkv")
        assert answer.body == DATA


async def test_file_that_cannot_be_served(tmp_path: Path) -> None:
    async with Broadcast() as hub:
        for wrong in (tmp_path / "nothing", tmp_path):
            with pytest.raises(FileNotFoundError):
                web.serve(hub, file=wrong)
