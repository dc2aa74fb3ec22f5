"""Python has no memory for one object: a call says so, or does without.

The n-th allocation of every step of a call fails, for n from 0 on until none is left
that could.  A MemoryError is fine then.  A buffer that stays borrowed, a stream that
does not go on, or a wrong byte is not.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import types
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import figures
import pytest
from links import Link, linux_only, open_link
from oracle import Checker, message, payload, poison

import aiozerocopy as azc
from aiozerocopy._core import pins

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Iterator
    from pathlib import Path

testcapi = pytest.importorskip("_testcapi")
pytestmark = [
    linux_only,
    pytest.mark.slow,
    pytest.mark.anyio,
    pytest.mark.skipif(
        sys.version_info >= (3, 12),
        reason="3.12 and 3.13 crash by themselves if a coroutine has no memory",
    ),
    # Finalizers may be starved, too; and a stream that was half made was never closed.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    # asyncio's own C code is what stands between the steps of a call.
    pytest.mark.parametrize("anyio_backend", ["asyncio"]),
]

# (Some of Python's own C code forgets to say which exception it is.)
NO_MEMORY = (MemoryError, SystemError)
ENOUGH = 15  # times in a row that nothing failed
MOST = 400
SIZE = 200_000


@pytest.fixture(autouse=True)
def nothing_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """conftest.py counts borrows in Python, which is not what is to fail here."""
    borrow: Any = pins._from_buffer
    monkeypatch.setattr(pins, "_from_buffer", borrow._borrow)


@types.coroutine
def starved(call: Coroutine[Any, Any, Any], n: int) -> Generator[Any, Any, Any]:
    """Awaits a coroutine, whose every step lacks its n-th allocation."""
    step: Callable[[], Any] = partial(call.send, None)
    while True:
        try:
            awaited = _starved(step, n)
        except StopIteration as end:
            return end.value
        try:
            value = yield awaited
        except BaseException as error:
            step = partial(call.throw, error)
        else:
            step = partial(call.send, value)


def _starved(step: Callable[[], Any], n: int) -> Any:
    testcapi.set_nomemory(n, n + 1)
    try:
        return step()
    finally:
        testcapi.remove_mem_hooks()


async def has_memory(call: Coroutine[Any, Any, Any], n: int) -> bool:
    """Make the call; was it told of nothing?"""
    try:
        await starved(call, n)
    except NO_MEMORY:
        return False
    return True


@contextlib.contextmanager
def cat(link: Link, path: Path) -> Iterator[None]:
    """A reader in a process of its own: a thread of this one would be starved, too."""
    fd = link.take_read_fd()
    with path.open("wb") as file, subprocess.Popen(["cat"], stdin=fd, stdout=file):
        os.close(fd)
        yield


def call_of(stream: azc.SendStream, name: str, data: bytearray) -> Any:
    async def put() -> None:
        await (await stream.put(data))

    calls: dict[str, Callable[[], Any]] = {
        "send": partial(stream.send, data),
        "send of two": partial(stream.send, data, b""),
        "put": put,
        "send_many": partial(stream.send_many, [data]),
    }
    return calls[name]()


@pytest.mark.parametrize("kind", ["pipe", "unix"])
@pytest.mark.parametrize("size", [100, SIZE])
@pytest.mark.parametrize("name", ["send", "send of two", "put", "send_many"])
async def test_sending(kind: str, size: int, name: str, tmp_path: Path) -> None:
    checker = Checker()
    fine, failed, sent = 0, 0, set()
    with open_link(kind, tmp_path) as link, cat(link, tmp_path / "got"):
        async with link.sender() as stream:
            for n in range(MOST):
                data = message(n, 0, size)
                if await has_memory(call_of(stream, name, data), n):
                    sent.add(n)
                    fine += 1
                else:
                    fine, failed = 0, failed + 1
                if name == "put":  # what was put stays on its way, whoever heard of it
                    await stream.flush()
                poison(data)
                data.clear()
                await stream.send(message(MOST + n, 0, 100))
                if fine == ENOUGH:
                    break
    checker.feed((tmp_path / "got").read_bytes())
    checker.finish()
    assert failed
    assert fine == ENOUGH
    assert set(checker.counts.values()) == {1}
    assert sent <= set(checker.counts)
    assert set(range(MOST, MOST + n + 1)) <= set(checker.counts)
    figures.count("allocations that failed", failed)


@pytest.mark.parametrize("name", ["receive", "receive_into", "receive_exactly"])
async def test_receiving(name: str) -> None:
    """Nothing that came is lost."""
    want = payload(1, 1 << 20).tobytes()
    received = bytearray()
    fine = failed = 0
    async with azc.pipe() as (reader, writer), anyio.create_task_group() as tasks:
        tasks.start_soon(writer.send, want)
        for n in range(MOST):
            memory = bytearray(1000)
            try:
                if name == "receive":
                    received += await starved(reader.receive(1000), n)
                elif name == "receive_into":
                    got = await starved(reader.receive_into(memory), n)
                    received += memory[:got]
                else:
                    await starved(reader.receive_exactly(memory), n)
                    received += memory
                fine += 1
            except NO_MEMORY:
                fine, failed = 0, failed + 1
            poison(memory)
            memory.clear()
            if fine == ENOUGH:
                break
        rest = bytearray(len(want) - len(received))
        await reader.receive_exactly(rest)
    assert failed
    assert received + rest == want
    figures.count("allocations that failed", failed)
