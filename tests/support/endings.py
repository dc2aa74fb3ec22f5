"""Ways to end a stream while a message is being sent on it."""

import contextlib

import anyio
from links import cut_short, others_wait
from oracle import poison

from aiozerocopy import SendStream


async def _abort(stream: SendStream) -> None:
    stream.abort()


async def _cancelled_aclose(stream: SendStream) -> None:
    with anyio.CancelScope() as scope:
        scope.cancel()
        await stream.aclose()


async def _cancelled_aclose_while_it_flushes(stream: SendStream) -> None:
    async with cut_short(stream.aclose):
        await others_wait()


ENDS = {
    "abort": _abort,
    "cancelled aclose": _cancelled_aclose,
    "aclose cancelled later": _cancelled_aclose_while_it_flushes,
}


async def send_and_poison(
    stream: SendStream, data: bytearray, error: type[Exception]
) -> None:
    """Send; however that ends, poison and resize the buffer at once."""
    with contextlib.suppress(error):
        try:
            await stream.send(data)
        finally:
            poison(data)
            data.clear()
