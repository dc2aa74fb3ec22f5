"""Relays that are stopped, whose ends die and whose fds are taken: no byte is lost.

AZC_RELAY_GB in the environment says how many gigabytes are moved (1).  A failure prints
the seed of its round.
"""

from __future__ import annotations

import os
import random
import socket
from typing import Any

import anyio
import pytest
from links import linux_only
from oracle import payload

import aiozerocopy as azc

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600), linux_only]

TABLE = payload(5, 4 << 20)
WRAPPED = memoryview(bytes(TABLE) * 2)
GIGABYTES = float(os.environ.get("AZC_RELAY_GB", "1"))
KINDS = ("pipe", "small pipe", "unix", "tcp")


def stream_at(position: int, n: int) -> memoryview:
    """What the source's bytes are, up to 4 MiB of them."""
    start = position % len(TABLE)
    return WRAPPED[start : start + n]


def ends(kind: str) -> tuple[Any, Any]:
    """A reader and a writer."""
    if kind == "unix":
        one, other = azc.socketpair()
        return one, other
    if kind == "tcp":
        with socket.create_server(("127.0.0.1", 0)) as listener:
            near = socket.create_connection(listener.getsockname())
            far = listener.accept()[0]
        near.setblocking(False)
        far.setblocking(False)
        return azc.wrap_socket(far), azc.wrap_socket(near)
    reader, writer = azc.pipe(4096 if kind == "small pipe" else 1 << 20)
    return reader, writer


class Sink:
    """One sink, and the task that checks what arrives in it."""

    def __init__(self, kind: str, position: int) -> None:
        self.reader, self.stream = ends(kind)
        self.position = self.begin = position
        self.dead = False
        self.death, self.checked = anyio.Event(), anyio.Event()

    async def check(self) -> None:
        memory = bytearray(1 << 20)
        try:
            while True:
                n = await self.reader.receive_into(memory)
                if memoryview(memory)[:n] != stream_at(self.position, n):
                    raise AssertionError(f"a wrong byte after {self.position:,}")
                self.position += n
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            self.checked.set()
        except azc.StreamBroken:
            assert self.dead

    async def finish(self, position: int) -> None:
        """All that was relayed has arrived."""
        await self.stream.aclose()
        with anyio.fail_after(30):
            await self.checked.wait()
        assert self.position == position
        self.reader.abort()

    def die(self, how: str) -> None:
        """Its reader leaves, or its fd's number is given to another file."""
        self.dead = True
        self.death.set()
        if how == "reader":
            self.reader.abort()
            return
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, self.stream.fileno())
        os.close(null)


class Broken:
    """A relay may break if its sink dies, and then says what it has moved."""

    def __init__(self, relay: azc.Relay, sink: Sink) -> None:
        self._relay = relay
        self._sink = sink

    def __enter__(self) -> None:
        pass

    def __exit__(self, _type: object, error: BaseException | None, _: object) -> bool:
        if not isinstance(error, azc.StreamBroken):
            return False
        assert self._sink.dead
        assert error.bytes_sent == self._relay.moved == self._relay.taken
        return True


async def one_round(seed: int, total: int) -> int:
    chance = random.Random(seed)
    source, feeder = ends(chance.choice(KINDS))
    position = 0

    async def feed() -> None:
        fed = 0
        while fed < total:
            n = min(chance.randint(1, 4 << 20), total - fed)
            await feeder.send(stream_at(fed, n))
            fed += n
        await feeder.aclose()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(feed)
        sink = None
        while position < total:
            if sink is None:
                sink = Sink(chance.choice(KINDS), position)
                tasks.start_soon(sink.check)
            relay = azc.relay(source, sink.stream, chance.randint(1, 32 << 20))
            event = chance.choice(("none", "cancel", "cancel", "reader", "number"))
            number = sink.stream.fileno()
            broken = Broken(relay, sink)
            if event in ("cancel", "none"):
                seconds = chance.choice((0, 0.001, 0.01)) if event == "cancel" else None
                with anyio.move_on_after(seconds), broken:
                    await relay
            else:
                tasks.start_soon(_later, chance.random() / 200, sink, event)
                with broken:
                    await relay
            position += relay.taken
            if event in ("reader", "number"):
                await sink.death.wait()  # the relay may have been over before
                sink.stream.abort()
                sink.reader.abort()
                if event == "number":
                    os.close(number)
                sink = None
            elif chance.random() < 0.2:
                await sink.finish(position)
                sink = None
        if sink is not None:
            await sink.finish(position)
    source.abort()
    assert position == total
    return total


async def _later(seconds: float, sink: Sink, how: str) -> None:
    await anyio.sleep(seconds)
    sink.die(how)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_every_byte_is_accounted_for(loop: str) -> None:
    async def main() -> None:
        moved, seed = 0, 0
        while moved < GIGABYTES * 1e9 / 2:
            total = random.Random(-seed - 1).randint(1, 200 << 20)
            try:
                moved += await one_round(seed, total)
            except BaseException:
                print(f"seed {seed}, {total} bytes")
                raise
            seed += 1

    anyio.run(main, backend_options={"use_uvloop": True} if loop == "uvloop" else {})
