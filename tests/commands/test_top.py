"""`publish_stats` tells what there is; `aiozerocopy top` shows it, and only looks."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from command import environment, start
from links import linux_only

import aiozerocopy as azc
from aiozerocopy import publishing
from aiozerocopy.commands import cli, programs, top
from aiozerocopy.commands.programs import Peers, ask_all

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform != "linux", reason="needs Linux"),
]

PROGRAM = """
import sys, anyio, aiozerocopy as azc
async def main():
    with azc.publish_stats("a program"):
        reader, writer = azc.pipe()
        async with reader, writer:
            await writer.send(bytes(1000))
            print("ready", flush=True)
            await anyio.to_thread.run_sync(sys.stdin.read)
anyio.run(main)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "stats"
    monkeypatch.setenv(publishing.VARIABLE, str(path))
    monkeypatch.setattr(programs, "PATIENCE", 10)  # this machine may be busy
    return path


@pytest.fixture
def program() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as started:
        assert started.stdout is not None
        try:
            assert started.stdout.readline() == "ready\n"
            yield started
        finally:
            started.kill()


def own_streams() -> list[dict[str, Any]]:
    [found] = ask_all()
    streams: list[dict[str, Any]] = found["streams"]
    return sorted(streams, key=lambda one: one["id"])


# ---- publishing ----------------------------------------------------------------------


async def test_every_direction_is_told() -> None:
    reader, writer = azc.pipe()
    async with reader, writer:
        with azc.publish_stats("tests"):
            await writer.send(bytes(3000))
            await writer.send(bytes(10))
            await reader.receive_exactly(bytearray(1000))
            here, there = azc.socketpair()  # opened later
            async with here, there:
                streams = own_streams()
                by_fd = {one["fd"]: one for one in streams}
                ends = [end.fileno() for end in (reader, writer, here, there)]
                assert sorted(by_fd) == sorted(ends)
                assert len(streams) == 6  # a socket has two directions
            assert len(own_streams()) == 2
    inward, outward = by_fd[ends[0]], by_fd[ends[1]]
    assert (inward["direction"], outward["direction"]) == ("in", "out")
    assert (inward["bytes"], outward["bytes"], outward["messages"]) == (1000, 3010, 2)
    assert inward["unread"] == outward["unread"] == 2010
    assert outward["lane"] == "copy"
    assert 0 < outward["age"] < 60
    assert outward["error"] == ""


async def test_what_waits_is_told() -> None:
    here, there = azc.socketpair()
    with azc.publish_stats():
        async with here, there:
            ticket = await here.put(bytes(20_000_000))
            queued = [one["queued_bytes"] for one in own_streams()]
            assert not ticket.done()
            assert 10_000_000 < max(queued) < 20_000_000
            here.abort()


def test_more_streams_than_expected() -> None:
    pipes = [azc.pipe() for _ in range(150)]
    with azc.publish_stats():
        assert len(own_streams()) == 300
    for end in (end for pair in pipes for end in pair):
        end.abort()


def test_twice_is_refused() -> None:
    with azc.publish_stats("first"):
        with pytest.raises(RuntimeError, match="as 'first'"):
            azc.publish_stats()
    azc.publish_stats().close()


def test_nothing_is_left(folder: Path) -> None:
    published = azc.publish_stats()
    assert [path.name for path in folder.iterdir()] == [f"{os.getpid()}.stats"]
    assert repr(published).startswith("<Publication")
    published.close()
    published.close()
    assert [*folder.iterdir()] == []
    assert ask_all() == []


@pytest.mark.parametrize("name", ["", "x" * 101, "two\nlines"])
def test_name_that_cannot_be_shown_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="1 to 100 characters"):
        azc.publish_stats(name)
    azc.publish_stats("another").close()


def test_folder_that_is_open_to_others_is_refused(folder: Path) -> None:
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    with pytest.raises(PermissionError, match="chmod 700"):
        azc.publish_stats()
    with pytest.raises(PermissionError, match="chmod 700"):
        ask_all()


def test_file_in_its_place_is_refused(folder: Path) -> None:
    folder.write_text("")
    with pytest.raises(NotADirectoryError):
        azc.publish_stats()


def test_path_that_is_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(publishing.VARIABLE, str(tmp_path / ("x" * 100)))
    with pytest.raises(OSError, match="too long"):
        azc.publish_stats()


def test_socket_of_a_dead_program_is_removed(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(folder / "99999999.stats"))
    with azc.publish_stats():
        assert [path.name for path in folder.iterdir()] == [f"{os.getpid()}.stats"]


def test_forked_child_publishes_itself() -> None:
    with azc.publish_stats("parent"):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            with azc.publish_stats("child"):
                names = {one["pid"]: one["name"] for one in ask_all()}
                os.write(writer, json.dumps(names).encode())
            os._exit(0)
        os.close(writer)
        with open(reader, "rb") as file:
            names = json.load(file)
        os.waitpid(child, 0)
        assert names == {str(os.getpid()): "parent", str(child): "child"}
        assert [one["name"] for one in ask_all()] == ["parent"]


def test_who_does_not_read_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """And holds up those who ask after him no longer than that."""
    monkeypatch.setattr(publishing, "PATIENCE", 0.5)
    with azc.publish_stats() as published:
        long = "x" * 1_000_000
        monkeypatch.setattr(published, "snapshot", lambda: {"time": 1, "name": long})
        with socket.socket(socket.AF_UNIX) as hung:
            hung.connect(str(published.path))
            assert ask_all()[0]["name"] == long
            got = 0
            while piece := hung.recv(1 << 20):
                got += len(piece)
            assert got < 1_000_000


@linux_only
async def test_rings_are_told(tmp_path: Path) -> None:
    from rings import SMALL, ring_pair  # (skips the test where there are none)

    async with ring_pair(tmp_path) as (producer, consumer):
        await producer.send(bytes(1000))
        await producer.send(bytes(2000))
        record = await consumer.receive()
        with azc.publish_stats():
            watch = top.Watch()
            [found] = watch.look()
            [inward], [outward] = (
                [one for one in found["rings"] if one["direction"] == direction]
                for direction in ("in", "out")
            )
            assert (inward["messages"], outward["messages"]) == (1, 2)
            assert (inward["bytes"], outward["bytes"]) == (1000, 3000)
            assert (inward["held"], outward["peer_pid"]) == (1, os.getpid())
            assert outward["peer"].endswith(f" {os.getpid()}")
            assert 3000 < outward["unread"] < outward["capacity"] == SMALL
            assert len(top.text([found], 0)) == 3
            producer.abort()
            await anyio.lowlevel.checkpoint()
            [after] = watch.look()
            assert {one["direction"] for one in after["rings"]} <= {"in"}
        record.release()


# ---- looking on ----------------------------------------------------------------------


def looked(*words: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert cli.main(["top", "--interval", "0.1", "--once", *words]) == 0
    return capsys.readouterr().out


@pytest.mark.usefixtures("program")
def test_table(capsys: pytest.CaptureFixture[str]) -> None:
    titles, *rows = looked(capsys=capsys).splitlines()
    assert titles.split()[0] == "program"
    assert set(titles.split()) <= {column.title for column in top.COLUMNS}
    assert len(rows) == 2
    assert all(row.startswith("a program ") for row in rows)


def test_json(
    program: subprocess.Popen[str], capsys: pytest.CaptureFixture[str]
) -> None:
    [found] = json.loads(looked("--json", capsys=capsys))
    assert (found["name"], found["pid"]) == ("a program", program.pid)
    sends = next(one for one in found["streams"] if one["direction"] == "out")
    assert (sends["bytes"], sends["rates"]["bytes"]) == (1000, 0)


def test_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    assert looked("--json", capsys=capsys) == "[]\n"
    assert cli.main(["top", "--interval", "0.1", "--once"]) == 1
    assert "azc.publish_stats()" in capsys.readouterr().err


def test_program_that_is_stopped_does_not_answer(
    program: subprocess.Popen[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(programs, "PATIENCE", 0.2)
    program.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    assert f"{program.pid} does not answer" in looked(capsys=capsys)
    assert time.monotonic() - began < 5
    program.send_signal(signal.SIGCONT)
    monkeypatch.setattr(programs, "PATIENCE", 10)
    assert ask_all()[0]["name"] == "a program"


def test_program_that_has_ended_is_gone(program: subprocess.Popen[str]) -> None:
    watch = top.Watch()
    assert len(watch.look()) == 1
    program.kill()
    program.wait()
    assert watch.look() == []
    assert top.text([], 0) == [top.NOBODY]


def test_program_that_has_no_stream() -> None:
    with azc.publish_stats("idle"):
        assert top.text(top.Watch().look(), 80) == [
            f"idle {os.getpid()} has no stream and no ring open"
        ]


async def test_rates() -> None:
    reader, writer = azc.pipe()
    async with reader, writer:
        with azc.publish_stats():
            watch = top.Watch()
            [before] = watch.look()
            assert {one["rates"]["bytes"] for one in before["streams"]} == {None}
            await writer.send(bytes(1000))
            [after] = watch.look()
            took = after["time"] - before["time"]
            sent = max(one["rates"]["bytes"] for one in after["streams"])
            assert sent == pytest.approx(1000 / took)


async def test_peers_have_names(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    async with azc.open_process(["cat"], stdout=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        await child.stdin.send(b"x")
        await child.stdout.receive()  # it runs, and has its name
        fd = child.stdin.fileno()
        assert Peers().of(os.getpid(), fd) == f"cat {child.pid}"
    for family, address in (
        (socket.AF_INET, ("127.0.0.1", 0)),
        (socket.AF_INET6, ("::1", 0)),
    ):
        with socket.create_server(address, family=family) as server:
            with socket.create_connection(server.getsockname()[:2]) as client:
                host, port = server.getsockname()[:2]
                shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
                assert Peers().of(os.getpid(), client.fileno()) == shown
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        assert Peers().of(os.getpid(), server.fileno()) == str(path)
    assert Peers().of(os.getpid(), 1 << 20) == ""


def test_peers_that_nobody_asks_for_are_forgotten() -> None:
    peers = Peers()
    with socket.socket(socket.AF_UNIX) as sock:
        for _ in range(3):
            peers.refresh()
            assert peers.of(os.getpid(), sock.fileno()) == "a UNIX socket"
    peers.refresh()
    peers.refresh()
    assert not peers._known


STREAM = {
    **{"id": 1, "fd": 7, "direction": "out", "lane": "copy", "age": 1.0, "bytes": 1},
    **{"messages": 1, "calls": 1, "waits": 0, "queued_bytes": 0, "queued": 0},
    "error": "",
}


def snapshot(**changes: Any) -> dict[str, Any]:
    one = {
        **STREAM,
        **{"peer": "/home/somebody/with/a/long/path/film.mp4", "age": 7300.0},
        **{"queued_bytes": 2_000_000, "queued": 1, "unread": 3, "capacity": 4},
        **{"rates": {"bytes": 1.5e9, "messages": 1234.0, "waits": 0.0}},
        **changes,
    }
    return {"pid": 12345, "name": "a-program-with-a-name.py", "streams": [one]}


def answering(where: Path, answers: list[bytes]) -> threading.Thread:
    """A program that gives these answers, one after the other."""
    where.mkdir(mode=0o700, exist_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(where / f"{os.getpid()}.stats"))
    listener.listen()

    def answer() -> None:
        with listener:
            for each in answers:
                asker, _ = listener.accept()
                with asker:
                    asker.sendall(each)

    thread = threading.Thread(target=answer)
    thread.start()
    return thread


def test_answers_that_are_wrong(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """None of them ends `top`, and it says whose they are."""

    def told(**changes: Any) -> dict[str, Any]:
        return {"name": "a", "time": 1.0, "streams": [STREAM]} | changes

    wrong: list[Any] = [
        *([], 5, None, {}, told(name=5), told(time="now"), told(streams=5)),
        *(told(streams=[5]), told(streams=[{}]), told(rings=[STREAM])),
        *(told(streams=[STREAM | {name: None}]) for name in STREAM),
        told(streams=[STREAM | {"bytes": 10**400}]),
        told(streams=[STREAM | {"capacity": "x"}]),
    ]
    answers = [json.dumps(each).encode() for each in wrong]
    thread = answering(folder, answers)
    for answer in answers:
        found = top.Watch().look()
        said = "\n".join(top.text(found, 0))
        assert f"{os.getpid()} tells nothing that can be shown" in said, answer
    thread.join()
    (folder / f"{os.getpid()}.stats").unlink()
    nested = b"[" * 1_000_000
    thread = answering(folder, [nested])
    assert top.Watch().look() == []
    thread.join()


def test_no_name_moves_the_cursor(folder: Path) -> None:
    name = "a\x1b[2J\x07\n"
    told = {"name": name, "time": 1.0, "streams": [STREAM | {"error": name}]}
    thread = answering(folder, [json.dumps(told).encode()])
    found = top.Watch().look()
    thread.join()
    _title, row = top.text(found, 0)
    assert row.isprintable()
    assert "a?[2J" in row
    assert all(line.isprintable() for line in top.notes([found[0] | {"streams": []}]))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to make another user's folder")
def test_folder_of_another_user_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(publishing.VARIABLE)
    monkeypatch.setattr(publishing, "RUNTIME", tmp_path / "none")
    monkeypatch.setattr(publishing, "SHARED", tmp_path)
    for name in ("aiozerocopy-0", "aiozerocopy-0-0"):
        (tmp_path / name).mkdir()
        os.chown(tmp_path / name, 12345, 12345)
    with azc.publish_stats("mine") as mine:
        assert mine.path.parent.name.startswith("aiozerocopy-0-")
        assert [each["name"] for each in ask_all()] == ["mine"]


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 120])
def test_table_fits_the_terminal(width: int) -> None:
    title, row = top.text([snapshot()], width)
    assert len(row) <= max(width, 24)
    assert "MB/s" in title
    assert "1,500.0" in row
    assert ("75%" in row) == (width >= 60)


def test_in_a_terminal_a_table_replaces_the_one_before(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    watch, looks = top.Watch(), iter([[snapshot()], []])
    monkeypatch.setattr(watch, "look", lambda: next(looks))
    with pytest.raises(StopIteration):
        top.show(watch, 0)
    first, second = capsys.readouterr().out.split("\x1b[2F\x1b[J")
    assert first.splitlines() == top.text([snapshot()], 60)
    assert second == f"{top.NOBODY[:60]}\n"


def test_broken_stream_says_why() -> None:
    assert top.text([snapshot(error="EPIPE")], 60)[1].endswith("EPIPE")


@pytest.mark.parametrize(
    ("age", "shown"),
    [(0.4, "0 s"), (119, "119 s"), (120, "2 min"), (7300, "2 h"), (200_000, "2 d")],
)
def test_duration(age: float, shown: str) -> None:
    assert top.duration(age) == shown


@pytest.mark.usefixtures("program")
@pytest.mark.parametrize(
    "words", [[], pytest.param(["--json"], marks=pytest.mark.slow)]
)
def test_ctrl_c_ends_it(words: list[str]) -> None:
    with start("top", "--interval", 0.1, *words) as watching:
        assert watching.stdout is not None
        try:  # (at its first look, a busy machine's program may not answer)
            assert any("a program" in line for line in watching.stdout)
        finally:
            watching.send_signal(signal.SIGINT)
        _, complained = watching.communicate(timeout=10)
    assert watching.returncode == 130
    assert complained == "aiozerocopy top: interrupted\n"


def test_many_ask_at_once() -> None:
    with azc.publish_stats("busy"):
        answers: list[Any] = []
        asking = [
            threading.Thread(target=lambda: answers.append(ask_all()))
            for _ in range(20)
        ]
        for thread in asking:
            thread.start()
        for thread in asking:
            thread.join()
        assert [answer[0]["name"] for answer in answers] == ["busy"] * 20
