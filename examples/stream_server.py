"""A live MPEG-TS stream over HTTP to any number of clients, and into a file at once.

    python examples/stream_server.py --port 8000 --file film.ts
    ffplay http://127.0.0.1:8000/

FFmpeg encodes a test picture, or whatever else it reads (--input).  Its output is read
once, and all clients share that memory.  Needs h11 and ffmpeg.
"""

from __future__ import annotations

import argparse
import contextlib
import shlex
from functools import partial
from typing import BinaryIO

import anyio
import h11

import aiozerocopy as azc
from aiozerocopy.ffmpeg import find_ffmpeg

TEST_PICTURE = "-re -f lavfi -i testsrc2=size=640x360:rate=25"
ENCODE = "-c:v libx264 -preset ultrafast -tune zerolatency -pix_fmt yuv420p -g 25"
PACKET = 188  # bytes of MPEG-TS: a client begins with a whole one
PATIENCE = 10  # seconds that a client may take nothing
# There is no length: the answer ends with the connection.
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: video/mp2t\r\nConnection: close\r\n\r\n"
REFUSED = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\nonly GET is known\n"


def as_it_is(piece: azc.broadcast.Published) -> list[memoryview]:
    return [piece.view]


async def is_asked_for(stream: azc.Stream) -> bool:
    """Read a request: is it one for the film?"""
    http = h11.Connection(h11.SERVER)
    with contextlib.suppress(h11.RemoteProtocolError):
        while (event := http.next_event()) is h11.NEED_DATA:
            http.receive_data(await stream.receive())
        return isinstance(event, h11.Request) and event.method == b"GET"
    return False


async def serve(hub: azc.Broadcast, stream: azc.Stream) -> None:
    if not await is_asked_for(stream):
        return await stream.send(REFUSED)
    await stream.send(HEAD)
    client = hub.attach(stream, policy="disconnect", limit=1 << 20, encode=as_it_is)
    await client.wait_closed()
    print(f"a client: {client.stats.bytes_sent:,} bytes, {client.error or 'end'}")


async def main(port: int, seconds: float | None, source: str, file: BinaryIO) -> None:
    duration = [] if seconds is None else ["-t", str(seconds)]
    encode = [*shlex.split(source), *duration, *ENCODE.split()]
    ffmpeg = [find_ffmpeg(), "-v", "error", *encode, "-f", "mpegts", "pipe:1"]
    async with (
        azc.open_writer(file) as writer,
        azc.open_process(ffmpeg, stdin=False, stdout=True) as encoder,
        azc.Broadcast() as hub,
        azc.serve_tcp(partial(serve, hub), port=port, idle_timeout=PATIENCE) as server,
    ):
        assert encoder.stdout is not None
        print(f"Watch at http://127.0.0.1:{server.port}/", flush=True)
        film = hub.attach(writer, policy="block", encode=as_it_is)
        async for data in encoder.stdout:
            rest = bytearray(-len(data) % PACKET)
            # (FFmpeg may be killed within a packet)
            with contextlib.suppress(anyio.EndOfStream, azc.IncompleteReceive):
                await encoder.stdout.receive_exactly(rest)
                await hub.publish(data + rest)
        await hub.aclose()
        if code := await encoder.wait():
            raise SystemExit(f"FFmpeg failed: {code}\n{encoder.stderr_tail}".strip())
        print(f"{film.stats.bytes_sent:,} bytes, {film.error or 'end'}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--input", default=TEST_PICTURE, help="for FFmpeg")
    parser.add_argument("--file", type=partial(open, mode="wb"), default="/dev/null")
    with contextlib.suppress(KeyboardInterrupt):
        anyio.run(main, *vars(parser.parse_args()).values())
