"""Rpc over two rings: answers in any order, errors, deadlines, cancels and deaths."""

import asyncio
import math
import re
import struct
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from links import attempt, cancelled_at, linux_only, others_wait, until
from rings import SMALL, opened

from aiozerocopy import StreamBroken, StreamClosed
from aiozerocopy.shm import RemoteError, Request, Ring, Rpc

np = pytest.importorskip("numpy")
pytestmark = [linux_only, pytest.mark.anyio]

ECHO, FAIL, WAIT, NOTHING, HUGE, ODD, MUTE, STRAY = range(1, 9)


class MuteError(Exception):
    def __str__(self) -> str:
        raise ValueError


class Handler:
    """Answers by method, and notes which waiting requests began and were cancelled."""

    def __init__(self) -> None:
        self.begun: list[bytes] = []
        self.cancelled: list[bytes] = []
        self.deadlines: list[float | None] = []
        self.gates: dict[bytes, anyio.Event] = {}

    async def __call__(self, request: Request) -> Any:
        said = bytes(request)
        self.deadlines.append(request.deadline)
        if request.method == ECHO:
            return request.view  # (a view of the other ring)
        if request.method == FAIL:
            raise KeyError("no such thing")
        if request.method == MUTE:
            raise MuteError
        if request.method == HUGE:
            return bytes(2 * SMALL)
        if request.method == ODD:
            return ["text"]
        if request.method == NOTHING:
            return None
        if request.method == STRAY:  # as if it awaited what somebody has cancelled
            raise asyncio.CancelledError
        self.begun.append(said)
        gate = self.gates[said] = anyio.Event()
        try:
            await gate.wait()
        except BaseException:
            self.cancelled.append(said)
            raise
        return b"after all: ", said


async def rings(folder: Path) -> tuple[Ring, Ring, Ring, Ring]:
    """Make two rings; return both ends of each."""
    (folder / "there").mkdir()
    (folder / "back").mkdir()
    return *await opened(folder / "there"), *await opened(folder / "back")


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[tuple[Rpc, Rpc, Handler]]:
    """A caller, a server, and the server's handler."""
    out, requests, replies, back = await rings(folder)
    handler = Handler()
    async with Rpc(out, back) as rpc, Rpc(requests, replies) as server:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.serve, handler)
            yield rpc, server, handler
            await rpc.aclose()


async def text(call: Awaitable[Any]) -> bytes:
    with await call as answer:
        return bytes(answer)


# ---- answers -------------------------------------------------------------------------


async def test_call_is_answered(tmp_path: Path) -> None:
    async with served(tmp_path) as (rpc, _, _):
        for data in (b"", b"x", bytes(40_000)):
            assert await text(rpc.call(ECHO, data)) == data
        assert await text(rpc.call(ECHO, b"of ", bytearray(b"two"))) == b"of two"
        assert await text(rpc.call(NOTHING)) == b""
        with await rpc.call(ECHO, np.arange(12.0)) as answer:
            assert answer.type_id == ECHO
            assert (answer.array("float64") == np.arange(12.0)).all()
            assert answer.array().ctypes.data % 32 == 0


async def test_answers_come_in_any_order(tmp_path: Path) -> None:
    async with served(tmp_path) as (rpc, _, handler):
        async with anyio.create_task_group() as tasks:
            names = [b"%d" % n for n in range(20)]
            calls = {name: attempt(tasks, text, rpc.call(WAIT, name)) for name in names}
            await until(lambda: len(handler.begun) == 20)
            for name in (*names[1::2], *names[::2][::-1]):
                handler.gates[name].set()
                await until(partial(calls[name].__getattribute__, "done"))
                assert calls[name].result == b"after all: " + name
            assert [call.done for call in calls.values()] == [True] * 20


# ---- errors --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "kind", "says"),
    [
        (FAIL, "KeyError", "no such thing"),
        (HUGE, "ValueError", "does not fit this ring"),
        (ODD, "TypeError", "bytes-like object is required"),
        (MUTE, "MuteError", "str() failed"),
        (STRAY, "CancelledError", ""),
    ],
)
async def test_error_is_told(method: int, kind: str, says: str, tmp_path: Path) -> None:
    async with served(tmp_path) as (rpc, _, _):
        with pytest.raises(RemoteError, match=re.escape(says or kind)) as caught:
            await rpc.call(method)
        assert caught.value.kind == kind
        assert says in caught.value.text
        assert await text(rpc.call(ECHO, b"goes on")) == b"goes on"


async def test_call_that_cannot_be_sent(tmp_path: Path) -> None:
    async with served(tmp_path) as (rpc, _, _):
        with pytest.raises(ValueError, match="does not fit"):
            await rpc.call(ECHO, bytes(2 * SMALL))
        with pytest.raises(TypeError, match="bytes-like"):
            bad: Any = "text"
            await rpc.call(ECHO, bad)
        with pytest.raises(ValueError, match="32 bits"):
            await rpc.call(1 << 32)
        assert await text(rpc.call(ECHO, b"goes on")) == b"goes on"


async def test_two_rings_of_one_direction_are_refused(tmp_path: Path) -> None:
    four = await rings(tmp_path)
    with pytest.raises(ValueError, match="receives on the other"):
        Rpc(four[0], four[2])
    for ring in four:
        await ring.aclose()


async def test_each_side_has_its_part(tmp_path: Path) -> None:
    async with served(tmp_path) as (rpc, server, handler):
        with pytest.raises(TypeError, match="does not call"):
            await server.call(ECHO)
        with pytest.raises(TypeError, match="does not serve"):
            await rpc.serve(handler)
        assert repr(rpc) == "<Rpc calls, 0 on their way>"
        assert repr(server).startswith("<Rpc serves")


# ---- deadlines and cancels -----------------------------------------------------------


async def test_deadline_is_kept_on_both_sides(tmp_path: Path) -> None:
    async with served(tmp_path) as (rpc, _, handler):
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            await rpc.call(WAIT, b"slow", timeout=0.05)
        assert time.monotonic() - began < 5
        await until(lambda: handler.cancelled == [b"slow"])
        [deadline] = handler.deadlines
        assert deadline is not None
        assert 0 < deadline - began < 5
        assert await text(rpc.call(ECHO, b"x", timeout=10)) == b"x"


@pytest.mark.every_loop
@pytest.mark.parametrize("seconds", [1e12, math.inf])
async def test_timeout_that_never_ends(seconds: float, tmp_path: Path) -> None:
    async with served(tmp_path) as (rpc, _, handler):
        assert await text(rpc.call(ECHO, b"x", timeout=seconds)) == b"x"
        assert handler.deadlines == [None]


@pytest.mark.parametrize("seconds", [0, -1])
async def test_deadline_that_is_over(seconds: float, tmp_path: Path) -> None:
    async with served(tmp_path) as (rpc, _, handler):
        with pytest.raises(TimeoutError):
            await rpc.call(WAIT, b"late", timeout=seconds)
        assert await text(rpc.call(ECHO, b"x")) == b"x"
        assert handler.begun in ([], [b"late"])
        await until(lambda: handler.cancelled == handler.begun)


async def test_cancelled_call_is_forgotten(tmp_path: Path) -> None:
    async with served(tmp_path) as (rpc, server, handler):
        async with anyio.create_task_group() as tasks:
            other = attempt(tasks, text, rpc.call(WAIT, b"other"))
            async with anyio.create_task_group() as short:
                short.start_soon(rpc.call, WAIT, b"short")
                await until(lambda: len(handler.begun) == 2)
                short.cancel_scope.cancel()
            await until(lambda: handler.cancelled == [b"short"])
            handler.gates[b"other"].set()
        assert other.result == b"after all: other"
        assert not rpc._calls
        assert not server._scopes


@pytest.mark.parametrize("cancelled", [[b"reader"], [b"reader", b"next"]])
async def test_reader_that_is_cancelled_lets_another_read(
    cancelled: list[bytes], tmp_path: Path
) -> None:
    """The next reader may also be cancelled, after it was woken."""
    async with served(tmp_path) as (rpc, _, handler):
        async with anyio.create_task_group() as tasks:
            async with anyio.create_task_group() as short:
                for name in cancelled:
                    short.start_soon(rpc.call, WAIT, name)
                    await until(partial(handler.gates.__contains__, name))
                names = [b"%d" % n for n in range(3)]
                others = [attempt(tasks, text, rpc.call(WAIT, name)) for name in names]
                await until(lambda: len(handler.begun) == 3 + len(cancelled))
                await others_wait()
                short.cancel_scope.cancel()
            for gate in handler.gates.values():
                gate.set()
        results = [other.result for other in others]
        assert results == [b"after all: " + name for name in names]


async def test_cancel_at_every_await(tmp_path: Path) -> None:
    async with served(tmp_path) as (rpc, _, _):
        for n in (1, 2, 3, 4, 5, 6):
            cancelled, answer = await cancelled_at(text(rpc.call(ECHO, b"a")), n)
            assert cancelled or answer == b"a"
            assert await text(rpc.call(ECHO, b"b")) == b"b"
        assert not rpc._calls


# ---- the end -------------------------------------------------------------------------


async def test_answers_that_nobody_reads_hold_their_caller_up(tmp_path: Path) -> None:
    """The server takes no more calls; otherwise it would keep ever more answers."""
    out, requests, replies, back = await rings(tmp_path)
    most = 2 * SMALL // 1000 + 200  # the capacity of both rings, and some answers
    async with out, back, Rpc(requests, replies) as server:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.serve, Handler())
            for number in range(most):
                call = struct.pack("<QQI12x", number, 0, 1), bytes(1000)
                if not out._try_send(call, ECHO):
                    await others_wait()
                    if not out._try_send(call, ECHO):
                        break
            else:
                pytest.fail("the server still takes calls")
            tasks.cancel_scope.cancel()


async def test_cancelled_calls_do_not_hold_the_next_one_up(tmp_path: Path) -> None:
    """Their answers fill the ring; a caller that waits for room reads them."""
    async with served(tmp_path) as (rpc, _, _):
        for _ in range(150):
            with anyio.move_on_after(0):
                await rpc.call(ECHO, bytes(10_000))
        assert await text(rpc.call(ECHO, b"hello")) == b"hello"


@pytest.mark.parametrize("who", ["the server", "this side"])
async def test_end_of_a_ring_fails_all_calls(who: str, tmp_path: Path) -> None:
    """The server ends by an abort, as if it had died."""
    error = StreamBroken if who == "the server" else StreamClosed
    async with served(tmp_path) as (rpc, server, handler):
        async with anyio.create_task_group() as tasks:
            calls = [attempt(tasks, rpc.call, WAIT, b"%d" % n) for n in range(5)]
            await until(lambda: len(handler.begun) == 5)
            if who == "the server":
                server._replies.abort()
            else:
                await rpc.aclose()
            await until(lambda: all(call.done for call in calls))
        assert [type(call.error) for call in calls] == [error] * 5
        with pytest.raises(error):
            await rpc.call(ECHO)
        await rpc.aclose()
        await until(lambda: len(handler.cancelled) == 5)


async def test_caller_that_dies_ends_serve(tmp_path: Path) -> None:
    out, requests, replies, back = await rings(tmp_path)
    handler = Handler()
    async with Rpc(out, back) as rpc, Rpc(requests, replies) as server:
        async with anyio.create_task_group() as tasks:
            serving = attempt(tasks, server.serve, handler)
            calling = attempt(tasks, rpc.call, WAIT, b"x")
            await until(lambda: handler.begun)
            out.abort()
            back.abort()
            await until(lambda: serving.done and calling.done)
    assert isinstance(serving.error, StreamBroken)
    assert handler.cancelled == [b"x"]


CALL_7 = struct.pack("<QQI12x", 7, 0, 1)  # number, no deadline, a call


@pytest.mark.parametrize(
    ("data", "says"),
    [
        *((each, "not a call") for each in (b"", b"short", bytes(32), b"\xff" * 40)),
        (CALL_7, "used the number 7 for two calls"),
    ],
)
async def test_record_that_is_no_call_ends_serve(
    data: bytes, says: str, tmp_path: Path
) -> None:
    out, requests, replies, back = await rings(tmp_path)
    handler = Handler()
    async with out, back, Rpc(requests, replies) as server:
        await out.send(CALL_7, b"x", type_id=WAIT)
        await out.send(data)
        with pytest.raises(StreamBroken, match=says):
            await server.serve(handler)
    assert handler.cancelled == handler.begun  # the first call may not have begun


async def test_record_that_is_no_answer_fails_the_calls(tmp_path: Path) -> None:
    out, requests, replies, back = await rings(tmp_path)
    async with requests, replies, Rpc(out, back) as rpc:
        await replies.send(b"nonsense")
        with pytest.raises(StreamBroken, match="not an answer"):
            await rpc.call(ECHO)
