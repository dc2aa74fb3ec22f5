"""A live MPEG-TS stream over HTTP to any number of clients, and into a file at once.

    python examples/stream_server.py --port 8000 --file film.ts
    ffplay http://127.0.0.1:8000/

FFmpeg encodes a test picture, or whatever else it reads (--input), to a pipe.  No
encoded byte comes into this program: tee brings it into a pipe for each client, and
splice from there to the socket, and into the file.  Needs h11 and ffmpeg.
"""

from __future__ import annotations

import argparse
import contextlib
import shlex
from functools import partial

import anyio
import h11

import aiozerocopy as azc
from aiozerocopy.ffmpeg import find_ffmpeg

TEST_PICTURE = "-re -f lavfi -i testsrc2=size=640x360:rate=25"
ENCODE = "-c:v libx264 -preset ultrafast -tune zerolatency -pix_fmt yuv420p -g 25"
PACKET = 188  # bytes of MPEG-TS: a client begins with a whole one
PATIENCE = 10  # seconds that a client may take nothing

# Without a length, for it has none: it ends with the connection.
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: video/mp2t\r\nConnection: close\r\n\r\n"
REFUSED = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\nonly GET / is known\n"


async def is_asked_for(stream: azc.Stream) -> bool:
    """Read a request: is it one for the film?"""
    http = h11.Connection(h11.SERVER)
    try:
        while (event := http.next_event()) is h11.NEED_DATA:
            http.receive_data(await stream.receive())
    except h11.RemoteProtocolError:
        return False
    return isinstance(event, h11.Request) and event.method == b"GET"


async def serve(splitter: azc.Splitter, stream: azc.Stream) -> None:
    if not await is_asked_for(stream):
        await stream.send(REFUSED)
        return
    await stream.send(HEAD)
    async with await splitter.join() as reader:
        relay = azc.relay(reader, stream)
        try:
            await relay
        finally:
            why = reader.ended or "left"
            print(f"a client: {relay.moved:,} bytes by {relay.lane}, {why}", flush=True)


async def main(port: int, seconds: float | None, source: str, file: str | None) -> None:
    duration = [] if seconds is None else ["-t", str(seconds)]
    encode = [*shlex.split(source), *duration, *ENCODE.split()]
    ffmpeg = [find_ffmpeg(), "-v", "error", *encode, "-f", "mpegts", "pipe:1"]
    async with azc.open_process(ffmpeg, stdin=False, stdout=True) as encoder:
        assert encoder.stdout is not None
        async with (
            azc.Splitter(encoder.stdout, file, unit=PACKET) as splitter,
            azc.serve_tcp(
                partial(serve, splitter), port=port, idle_timeout=PATIENCE
            ) as server,
        ):
            print(f"Watch at http://127.0.0.1:{server.port}/", flush=True)
            size = await splitter.wait()
        if code := await encoder.wait():
            why = f"FFmpeg exited with code {code} after {size:,} bytes"
            raise SystemExit(f"{why}\n{encoder.stderr_tail}".strip())
        print(f"{size:,} bytes; {splitter.dropped} clients were too slow")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--input", default=TEST_PICTURE, help="what FFmpeg is to read")
    parser.add_argument("--file", help="where the film goes too")
    options = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        anyio.run(main, options.port, options.seconds, options.input, options.file)
