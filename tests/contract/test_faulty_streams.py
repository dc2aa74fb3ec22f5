"""check_stream names the clause that a stream breaks: each has one deliberate fault."""

import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest

import aiozerocopy as azc
from aiozerocopy.testing import (
    MemoryEnds,
    MemoryStream,
    _check,
    check_stream,
    memory_pair,
)

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

FAULTS: dict[str, type[MemoryStream]] = {}


def breaks(said: str) -> Callable[[type[MemoryStream]], type[MemoryStream]]:
    """Register a stream for which check_stream's error begins like this."""

    def note(fault: type[MemoryStream]) -> type[MemoryStream]:
        FAULTS[said] = fault
        return fault

    return note


@breaks("P1 integrity: messages were changed, mixed, or in the wrong order")
class Mixes(MemoryStream):
    async def send(self, *buffers: Any) -> None:
        for each in buffers:
            await super().send(each)


@breaks("P1 integrity: what was sent before a close did not all arrive")
class Drops(MemoryStream):
    async def send(self, *buffers: Any) -> None:
        if sum(map(len, buffers)) != 18:
            await super().send(*buffers)


@breaks("P0 done means yours: 369,652 bytes were sent, and 369,635 arrived")
class DropsAtClose(MemoryStream):
    async def aclose(self, **_: Any) -> None:
        del self._out.out[-17:]
        self.abort()


@breaks("P0 done means yours: byte 0 of 369,652 was stored after send had ended")
class ReadsLater(MemoryStream):
    async def send(self, *buffers: Any) -> None:
        now = [
            bytes([_check.POISON]) * len(each) if isinstance(each, bytearray) else each
            for each in buffers
        ]
        await super().send(*now)


@breaks("P0 done means yours: the buffer was still held")
class Holds(MemoryStream):
    async def send(self, *buffers: Any) -> None:
        self.held = [memoryview(each) for each in buffers]
        await super().send(*buffers)


@breaks("P0 done means yours: byte 1 of 369,652 was never sent so")
class SaysNothing(MemoryStream):
    async def send(self, *buffers: Any) -> None:
        await super().send(*(b"".join(buffers) or b"\0",))


@breaks("P2 no later bytes: byte 131,072 of 2,098,152 was never sent so")
class DropsTheTail(MemoryStream):
    async def send(self, *buffers: Any) -> None:
        message = self._out.submit(buffers)
        try:
            await self._out.wait(message)
        finally:
            if not message.done:
                self._out.queue.remove(message)
                message.end()


@breaks("P2 no later bytes: the buffer was still held")
class HoldsWhenCancelled(MemoryStream):
    async def send(self, *buffers: Any) -> None:
        await self._out.wait(self._out.submit(buffers))


@breaks("P2 no later bytes: byte 2,097,152 of 2,098,152 was never sent so")
class SendsTwice(MemoryStream):
    async def send(self, *buffers: Any) -> None:
        copy = b"".join(buffers)
        try:
            await super().send(*buffers)
        except anyio.get_cancelled_exc_class():
            self._out.submit((copy,))
            raise


@breaks("P4 backpressure: 8,388,608 bytes were sent, and nobody had received any")
class TakesAll(MemoryStream):
    async def send(self, *buffers: Any) -> None:
        await self.put(b"".join(buffers))


@breaks("P6 exact failure: the receiver has closed, and send got None")
class HidesErrors(MemoryStream):
    async def send(self, *buffers: Any) -> None:
        with contextlib.suppress(azc.StreamBroken):
            await super().send(*buffers)


@breaks("P6 exact failure: 0 of 0 bytes were sent, says the error, of 8,388,608, and ")
class LosesCount(MemoryStream):
    async def send(self, *buffers: Any) -> None:
        try:
            await super().send(*buffers)
        except azc.StreamBroken:
            raise azc.StreamBroken("somehow") from None


@breaks("Closing: RuntimeError was not expected here: closed already")
class ClosesOnce(MemoryStream):
    has_closed = False

    async def aclose(self, **options: Any) -> None:
        if self.has_closed:
            raise RuntimeError("closed already")
        self.has_closed = True
        await super().aclose(**options)


@breaks("Closing: the sender was closed, and ClosedResourceError was due: not StreamBr")
class ConfusesTheEnds(MemoryStream):
    async def send(self, *buffers: Any) -> None:
        try:
            await super().send(*buffers)
        except azc.StreamClosed:
            raise azc.StreamBroken("the reader is gone") from None


@breaks("Closing: BusyResourceError was not expected here")
class ClosesAlone(MemoryStream):
    is_closing = False

    async def aclose(self, **options: Any) -> None:
        if self.is_closing:
            raise anyio.BusyResourceError("closing")
        self.is_closing = True
        try:
            await super().aclose(**options)
        finally:
            self.is_closing = False


@breaks("Closed while it receives: it was not over after")
class SleepsOn(MemoryStream):
    async def receive(self, max_bytes: int = 65_536) -> bytes:
        is_open = self._in.ended is None
        try:
            return await super().receive(max_bytes)
        except azc.StreamClosed:
            if is_open:
                await anyio.sleep_forever()
            raise


@breaks("Closed while it sends: it was closed while it sent, and ClosedResourceError")
class EndsInSilence(MemoryStream):
    async def send(self, *buffers: Any) -> None:
        is_open = not self._out.refused
        try:
            await super().send(*buffers)
        except azc.StreamClosed:
            if not is_open:
                raise


@breaks("Closing: the sender has closed, and EndOfStream was due: not StreamBroken")
class EndsOnce(MemoryStream):
    has_ended = False

    async def receive(self, max_bytes: int = 65_536) -> bytes:
        try:
            return await super().receive(max_bytes)
        except anyio.EndOfStream:
            if self.has_ended:
                raise azc.StreamBroken("it has ended") from None
            self.has_ended = True
            raise


@breaks("Receives of any size: receive(7) returned 65536 bytes")
class GivesTooMuch(MemoryStream):
    async def receive(self, max_bytes: int = 65_536) -> bytes:
        return await super().receive(65_536)


@breaks("Receives of any size: byte ")
class ForgetsWhenCancelled(MemoryStream):
    async def receive(self, max_bytes: int = 65_536) -> bytes:
        piece = await super().receive(max_bytes)
        await anyio.lowlevel.checkpoint()
        return piece


@breaks("Both ways at once: it was not over after")
class OneWayAtATime(MemoryStream):
    async def receive(self, max_bytes: int = 65_536) -> bytes:
        while self._out.queue:
            await anyio.lowlevel.checkpoint()
        return await super().receive(max_bytes)


@asynccontextmanager
async def faulty(*faults: type[MemoryStream]) -> AsyncIterator[MemoryEnds]:
    """A pair of streams with these faults."""
    ends = memory_pair()
    for each, fault in zip(ends, faults, strict=True):
        each.__class__ = fault
    try:
        yield ends
    finally:
        for each in ends:
            each.abort()


@pytest.mark.parametrize("said", FAULTS)
async def test_fault_is_named(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if "not over" in said:
        monkeypatch.setattr(_check, "PATIENCE", 2.0)
    with pytest.raises(AssertionError) as caught:
        await check_stream(partial(faulty, FAULTS[said], FAULTS[said]))
    assert str(caught.value).startswith(said)
    assert caught.value.__cause__ is not None


async def test_both_directions_are_tried() -> None:
    for faults in ((Holds, MemoryStream), (MemoryStream, Holds)):
        with pytest.raises(AssertionError, match="still held"):
            await check_stream(partial(faulty, *faults))


class TakesBytes(Holds):
    async def send(self, *buffers: Any) -> None:
        assert all(type(each) is bytes for each in buffers)
        await super().send(*buffers)


async def test_what_keeps_bytes_breaks_nothing() -> None:
    await check_stream(partial(faulty, TakesBytes, TakesBytes), only_bytes=True)


async def test_what_is_not_promised_is_not_asked_for() -> None:
    await check_stream(partial(faulty, Mixes, EndsInSilence), exact=False)
    await check_stream(partial(faulty, EndsInSilence, Mixes), exact=False)


class Crosses(MemoryStream):
    """Returns wrong data from a receive during a send."""

    async def receive(self, max_bytes: int = 65_536) -> bytes:
        piece = await super().receive(max_bytes)
        return bytes(len(piece)) if self._out.queue else piece


async def test_each_of_both_ways_is_compared() -> None:
    for faults in ((Crosses, MemoryStream), (MemoryStream, Crosses)):
        with pytest.raises(AssertionError, match=r"Both ways at once: byte 0 of 1,00"):
            await check_stream(partial(faulty, *faults))


def test_of_a_groups_errors_the_checks_own_is_told() -> None:
    inner, outer = OSError(), OSError()
    inner.exceptions = (ValueError("a consequence"), AssertionError("why"))  # type: ignore[attr-defined]
    outer.exceptions = (inner,)  # type: ignore[attr-defined]
    assert _check._said(outer) == "why"
    inner.exceptions = (ValueError("why"),)  # type: ignore[attr-defined]
    assert _check._said(outer) == "ValueError was not expected here: why"
