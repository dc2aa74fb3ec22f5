"""Encoder: the film that it makes, who waits for whom, and one film for many clients.

Most tests run with the FFmpeg on PATH and with the one of imageio-ffmpeg, which differ
by years.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import numpy as np
import pytest
from ffmpegs import (
    HEIGHT,
    SHAPE,
    SIZE,
    WIDTH,
    frames_of,
    is_gone,
    needed,
    picture,
    seen,
)
from ffmpegs import quick_ffmpeg as quick_ffmpeg
from interruption import Interruption, Lines, hit_each_line, shown
from links import attempting, meanwhile, until
from numpy.typing import NDArray

import aiozerocopy as azc
from aiozerocopy.broadcast import ClientTooSlow
from aiozerocopy.ffmpeg import Audio, Encoder, FFmpegError, Subscription, codecs
from aiozerocopy.ffmpeg.cutters import (
    Cutter,
    MKVClusters,
    MP4Fragments,
    Piece,
    TSPackets,
)

pytestmark = pytest.mark.anyio

CUTTERS: dict[str, Callable[[], Cutter]] = {
    "mp4": MP4Fragments,
    "mov": MP4Fragments,
    "mpegts": TSPackets,
    "webm": MKVClusters,
    "mkv": MKVClusters,
}
GROUP = 5
DRAWN = [(0, 200, 0), (255, 0, 0), (0, 0, 255), (255, 255, 255), (120, 60, 200)]
IN_GROUPS: dict[str, Any] = {"fps": 30, "group": GROUP, "preset": "ultrafast"}
RAW: dict[str, Any] = {"format": "mkv", "codec": "ffv1"}  # large, and without delay
each_format = pytest.mark.parametrize("format", CUTTERS)
each_delay = pytest.mark.parametrize("low_delay", [False, True], ids=["usual", "low"])


async def send_all(encoder: Encoder, pictures: Iterable[Any]) -> None:
    for one in pictures:
        await encoder.put(one)
    await encoder.finish()


async def film_of(encoder: Encoder, pictures: Iterable[Any]) -> bytes:
    """Return the chunks of the film, joined."""
    async with encoder, meanwhile(send_all, encoder, pictures):
        film = b"".join([chunk async for chunk in encoder])
    return film


async def take(subscription: Subscription, pieces: list[bytes]) -> None:
    async with subscription:
        async for piece in subscription:
            pieces.append(piece)  # noqa: PERF401 - others read the list meanwhile


def pictures(count: int) -> list[NDArray[np.uint8]]:
    return [picture(number) for number in range(count)]


def played(film: bytes, ffmpeg: str, *options: str) -> list[str]:
    """Play a film without an error; return a line for each picture."""
    done = subprocess.run(
        [
            *(ffmpeg, "-v", "warning", *options, "-i", "-", "-map", "0:v"),
            *("-fps_mode", "passthrough", "-f", "framemd5", "-"),
        ],
        input=film,
        capture_output=True,
    )
    assert (done.stderr.decode(), done.returncode) == ("", 0)
    lines = done.stdout.decode().splitlines()
    return [line.split(",")[-1] for line in lines if line[0] != "#"]


# ---- the film ----------------------------------------------------------------------


async def test_film_goes_to_a_socket_and_a_file(ffmpeg: str, tmp_path: Path) -> None:
    """The encoder's output, here MPEG-TS, is read once for both."""
    path = tmp_path / "film.ts"
    there, client = azc.socketpair()
    encoder = Encoder(SIZE, 25, format="mpegts", ffmpeg=ffmpeg)
    received = bytearray()

    async def collect() -> None:
        async for data in client:
            received.extend(data)

    async with client, encoder, anyio.create_task_group() as tasks:
        tasks.start_soon(collect)
        tasks.start_soon(send_all, encoder, pictures(10))
        file = azc.open_writer(path.open("wb"))
        async with there, file, azc.Broadcast() as hub:
            for sink in (there, file):
                hub.attach(sink, policy="block", encode=lambda it: [it.view])
            async for data in encoder.output:
                await hub.publish(data)
        await encoder.wait()
        assert encoder.frames_written == 10
    assert received == path.read_bytes()
    assert len(played(bytes(received), ffmpeg)) == 10


@pytest.mark.every_loop
@each_delay
@each_format
async def test_round_trip(format: str, low_delay: bool, ffmpeg: str) -> None:  # noqa: A002
    size = (320, 240)
    shown = [np.full((240, 320, 3), rgb, "u1") for rgb in DRAWN for _ in range(3)]
    options: dict[str, Any] = {"quality": "high", "low_delay": low_delay}
    encoder = Encoder(size, 30, format=format, ffmpeg=ffmpeg, **options)
    film = await film_of(encoder, shown)
    assert encoder.frames_written == len(shown)
    assert encoder.returncode == 0
    for player in {ffmpeg, needed("path"), needed("packaged")}:
        colours = seen(film, size, player)
        assert np.abs(colours - np.repeat(DRAWN, 3, axis=0)).max() <= 6


async def test_all_that_a_writer_takes(ffmpeg: str, tmp_path: Path) -> None:
    """A pool, tickets, `send`, upside-down frames, a sound of our own, and a format
    that cannot be cut."""
    sound = Audio("s16le", 48_000, channels=1)
    encoder = Encoder(SIZE, 25, format="flv", audio=sound, flip=True, ffmpeg=ffmpeg)
    black_above = np.repeat(np.array([[[255]], [[0]]], "u1"), HEIGHT // 2, axis=0)

    async def send_sound() -> None:
        await encoder.send_audio(np.zeros(48_000, "i2"))
        await encoder.close_audio()

    async def send_pictures() -> None:
        with azc.FramePool(encoder.layout.shape, encoder.layout.dtype) as pool:
            for number in range(10):
                with await pool.acquire() as frame:
                    frame.array[:] = picture(number)
                    ticket = await encoder.put(frame)
            await ticket
        await encoder.send(np.broadcast_to(black_above, SHAPE))
        await encoder.finish()

    async with encoder, anyio.create_task_group() as tasks:
        tasks.start_soon(send_sound)
        tasks.start_soon(send_pictures)
        with pytest.raises(ValueError, match=r"supports mp4, mov, .* not 'flv'"):
            encoder.clients()
        film = b"".join([chunk async for chunk in encoder])
        with pytest.raises(anyio.EndOfStream):
            await encoder.receive()
        with pytest.raises(azc.StreamClosed):
            await encoder.put(picture(0))
    assert len(played(film, ffmpeg)) == 11
    (path := tmp_path / "a.flv").write_bytes(film)
    last = (await frames_of(path, "gray", ffmpeg=ffmpeg))[-1]
    assert max(last[: 20 * WIDTH]) < 20 < 200 < min(last[-20 * WIDTH :])
    with pytest.raises(azc.StreamClosed):
        await encoder.receive()


@pytest.mark.parametrize("bad", [{"group": 0}, {"fps": 0}, {"codec": "copy"}])
async def test_bad_arguments(bad: dict[str, Any], ffmpeg: str) -> None:
    with pytest.raises(ValueError, match=r"group|fps|copy"):
        await Encoder(SIZE, **bad, ffmpeg=ffmpeg)


# ---- who waits for whom ------------------------------------------------------------


async def test_a_slow_taker_is_waited_for(ffmpeg: str) -> None:
    """FFmpeg stops reading, `put` waits, and the watchdog lets FFmpeg live."""
    sent = 0
    async with Encoder(SIZE, 25, **RAW, timeout=0.2, ffmpeg=ffmpeg) as encoder:
        with anyio.move_on_after(1.5) as waited:
            for number in itertools.count():
                await encoder.put(picture(number))
                sent += 1
        assert waited.cancelled_caught
        assert encoder.returncode is None
        async with meanwhile(encoder.finish):
            film = b"".join([chunk async for chunk in encoder])
    assert len(played(film, ffmpeg)) == sent


async def test_one_that_hangs_is_killed(pretend: Callable[[str], str]) -> None:
    encoder = Encoder(
        SIZE, format="rawvideo", timeout=0.2, ffmpeg=pretend("exec sleep 60")
    )
    async with encoder:
        with pytest.raises(FFmpegError, match=r"did nothing for 0\.2 s"):
            await send_all(encoder, itertools.repeat(picture(0)))
        with pytest.raises(FFmpegError, match=r"did nothing for 0\.2 s"):
            await encoder.receive()


async def test_one_that_is_done_does_not_hang(pretend: Callable[[str], str]) -> None:
    """FFmpeg's output is taken later than the timeout."""
    done = pretend("cat >&2; echo film; exit 1")
    async with Encoder(SIZE, format="rawvideo", timeout=1, ffmpeg=done) as encoder:
        await encoder.put(picture(0))
        await encoder.finish()
        await until(lambda: encoder.returncode is not None)
        await anyio.sleep(1.5)  # longer than the timeout
        assert await encoder.receive() == b"film\n"
        with pytest.raises(FFmpegError, match="FFmpeg failed"):
            await encoder.receive()


async def test_interrupted_receive_loses_nothing(
    pretend: Callable[[str], str],
) -> None:
    done = pretend("cat >&2; echo film")

    async def play(lines: Lines) -> bytes:
        async with Encoder(SIZE, format="rawvideo", ffmpeg=done) as encoder:
            await encoder.put(picture(0))
            await encoder.finish()
            await until(lambda: encoder.returncode is not None)
            film = b""
            with contextlib.suppress(Interruption), lines:
                film = await encoder.receive()
            return film + b"".join([chunk async for chunk in encoder])

    lines = Lines(rooms=("ffmpeg.encoder",), withs=True)
    assert await play(lines) == b"film\n"
    assert lines.seen
    for place in lines.seen:
        hit = Lines(place, ("ffmpeg.encoder",), withs=True)
        assert await play(hit) == b"film\n", shown(place)


@pytest.mark.every_loop
async def test_interrupted_subscription_loses_nothing() -> None:
    cutter = TSPackets()
    cutter.header = b"tables"
    latest = [Piece(b"one", key=True), Piece(b"two", key=False)]
    clients: Any = SimpleNamespace(_latest=latest, _limit=10, _cutter=cutter)

    async def play(lines: Lines) -> list[str]:
        subscription, film = Subscription(clients, "skip"), b""
        while subscription._pieces:
            with contextlib.suppress(Interruption), lines:
                film += await subscription.receive()
        waiting = subscription._waiting
        ok = (film, waiting) == (b"tablesonetwo", 0)
        return [] if ok else [f"{film!r}, and {waiting} bytes seem to wait"]

    await hit_each_line(play, ("ffmpeg.encoder", "broadcast.frame_queue"))


# ---- the end -----------------------------------------------------------------------


async def test_no_frame_at_all(ffmpeg: str) -> None:
    async with Encoder(SIZE, ffmpeg=ffmpeg) as encoder:
        await encoder.finish()
        for _ in range(2):
            with pytest.raises(FFmpegError, match="no frame was sent"):
                async for _ in encoder:
                    pass


@pytest.mark.every_loop
async def test_killed(ffmpeg: str) -> None:
    """The sender, the taker and all clients get the error, after what was encoded."""
    encoder = Encoder(SIZE, 25, **RAW, group=1, low_delay=True, ffmpeg=ffmpeg)
    pieces: list[bytes] = []
    async with encoder, encoder.clients() as clients:
        async with attempting(take, clients.subscribe(), pieces) as taking:
            with pytest.raises(FFmpegError, match="SIGKILL"):
                for number in itertools.count():
                    await encoder.put(picture(number))
                    if len(pieces) >= 5 and encoder.returncode is None:
                        os.kill(encoder.pid, signal.SIGKILL)
        assert isinstance(taking.error, FFmpegError)
        assert "SIGKILL" in str(taking.error)
        with pytest.raises(FFmpegError, match="SIGKILL"):
            await encoder.receive()
        late = clients.subscribe()
        pieces = [await late.receive(), await late.receive()]
        with pytest.raises(FFmpegError, match="SIGKILL"):
            await late.receive()
    assert len(played(b"".join(pieces), ffmpeg)) == 1


@pytest.mark.every_loop
async def test_taker_leaves(ffmpeg: str) -> None:
    """The end of the block ends FFmpeg, even in the middle of its work."""
    async with Encoder(SIZE, 25, **RAW, ffmpeg=ffmpeg) as encoder:
        pid = encoder.pid
        ticket = await encoder.put(picture(0))
        while not ticket.done():
            ticket = await encoder.put(picture(0))
        assert await encoder.receive(1) == b"\x1a"  # as every Matroska file begins
    assert is_gone(pid)
    await encoder.aclose()


async def test_aborted(ffmpeg: str) -> None:
    encoder = await Encoder(SIZE, 25, ffmpeg=ffmpeg)
    await encoder.put(picture(0))
    pid = encoder.pid
    encoder.abort()
    assert is_gone(pid)
    for call in (encoder.receive, encoder.finish):
        with pytest.raises(azc.StreamClosed):
            await call()
    await encoder.aclose()


# ---- one film to many clients ------------------------------------------------------


@each_delay
@each_format
@pytest.mark.parametrize(
    "has_sound",
    [
        pytest.param(False, id="mute"),
        pytest.param(True, id="sound", marks=pytest.mark.slow),
    ],
)
async def test_late_client(
    format: str,  # noqa: A002
    low_delay: bool,
    has_sound: bool,
    ffmpeg: str,
) -> None:
    """The late client's film equals the last part of the first client's film."""
    sine = ["-f", "lavfi", "-i", "sine=duration=1"] if has_sound else None
    options = {**IN_GROUPS, "audio": sine, "low_delay": low_delay, "ffmpeg": ffmpeg}
    encoder = Encoder(SIZE, format=format, **options)
    early: list[bytes] = []
    late: list[bytes] = []
    async with encoder, anyio.create_task_group() as tasks:
        async with encoder.clients() as clients:
            tasks.start_soon(take, clients.subscribe(), early)
            numbers = itertools.count()
            # (sound is in pieces of its own)
            while len(early) < 10 or not begins_later(clients, early):
                await encoder.put(picture(next(numbers)))
                await anyio.lowlevel.checkpoint()
            tasks.start_soon(take, clients.subscribe(), late)
            for number in itertools.islice(numbers, 12):
                await encoder.put(picture(number))
            await encoder.finish()
    all_frames = played(b"".join(early), ffmpeg)
    frames = played(b"".join(late), ffmpeg)
    assert len(all_frames) == next(numbers)
    assert 12 <= len(frames) < len(all_frames)
    assert frames == all_frames[-len(frames) :]


def begins_later(clients: Any, early: list[bytes]) -> bool:
    """Whether a new client would begin with a key frame other than the first one."""
    newest = next(iter(clients._latest), None)
    return newest is not None and newest.data not in early[:2]


@each_format
async def test_slow_client(format: str, ffmpeg: str) -> None:  # noqa: A002
    """The slow client continues at a key frame, and its film plays; or it is ended."""
    options = {**IN_GROUPS, "low_delay": True, "ffmpeg": ffmpeg}
    encoder = Encoder(SIZE, format=format, **options)
    quick: list[bytes] = []
    slow: list[bytes] = []
    async with encoder, anyio.create_task_group() as tasks:
        async with encoder.clients(limit=40_000) as clients:
            lazy, strict = clients.subscribe(), clients.subscribe(when_slow="end")
            tasks.start_soon(take, clients.subscribe(), quick)
            for number in range(8 * GROUP + 2):
                await encoder.put(picture(number))
                await until(lambda sent=number: len(quick) > sent - 8)  # type: ignore[misc]
            await encoder.finish()
        assert lazy.skipped
        with pytest.raises(ClientTooSlow, match="more than 40,000 bytes"):
            await strict.receive()
        tasks.start_soon(take, lazy, slow)
    all_frames = played(b"".join(quick), ffmpeg)
    frames = played(b"".join(slow), ffmpeg)
    assert len(all_frames) == 8 * GROUP + 2
    assert frames == all_frames[-len(frames) :]
    assert len(frames) < len(all_frames)
    if format == "mpegts":
        assert all(is_told for _, is_told in gaps(b"".join(slow)))


def gaps(film: bytes) -> list[tuple[int, bool]]:
    """Return each gap in the packets of a kind: the kind, and whether it is marked.

    The packets' counters show gaps; packets of tables have no room for a mark.
    """
    found = []
    counters: dict[int, int] = {}
    for at in range(0, len(film), 188):
        packet = film[at : at + 188]
        pid = (packet[1] & 0x1F) << 8 | packet[2]
        if not packet[3] & 0x10 or pid < 0x100 or pid == 0x1000:
            continue
        counter = packet[3] & 0x0F
        if counter != (counters.get(pid, counter - 1) + 1) & 0x0F:
            has_field = packet[3] & 0x20 and packet[4] > 0
            found.append((pid, bool(has_field and packet[5] & 0x80)))
        counters[pid] = counter
    return found


async def test_gap_is_told(ffmpeg: str) -> None:
    """In a transport stream: the first packets of pictures and of sound have a mark."""
    sine = ["-f", "lavfi", "-i", "sine=duration=3"]
    options = {**IN_GROUPS, "audio": sine, "ffmpeg": ffmpeg}
    encoder = Encoder(SIZE, format="mpegts", **options)
    film = await film_of(encoder, pictures(8 * GROUP))
    cutter = TSPackets()
    pieces = cut(cutter, film, [len(film)])
    keys = [at for at, piece in enumerate(pieces) if piece.key]
    assert gaps(film) == []
    before, after = pieces[: keys[1] + 1], pieces[keys[3] :]
    mark = cutter.gap()
    shown = [piece.data for piece in before] + [mark(piece.data) for piece in after]
    cut_out = b"".join(piece.data for piece in before + after)
    assert gaps(cut_out) == [(0x100, False), (0x101, False)]
    assert sorted(gaps(b"".join(shown))) == [(0x100, True), (0x101, True)]
    assert len(b"".join(shown)) == len(cut_out)


async def test_av1_gives_frames_at_once(ffmpeg: str) -> None:
    """Without ``low_delay``, SVT-AV1 delays dozens of frames."""
    if "libsvtav1" not in await codecs.encoders_of(ffmpeg):
        pytest.skip("this FFmpeg has no SVT-AV1")
    av1: dict[str, Any] = {"codec": "av1", "preset": "ultrafast", "low_delay": True}
    encoder = Encoder((128, 96), 30, format="mkv", ffmpeg=ffmpeg, **av1)
    pieces: list[bytes] = []
    async with encoder, anyio.create_task_group() as tasks:
        async with encoder.clients() as clients:
            tasks.start_soon(take, clients.subscribe(), pieces)
            for number in range(12):
                await encoder.put(picture(number, (96, 128, 3)))
            await until(lambda: len(pieces) >= 8)
            await encoder.finish()


@pytest.mark.parametrize("codec", sorted(codecs.KNOWN))
def test_options_for_low_delay_are_ffmpegs(codec: str, ffmpeg: str) -> None:
    """For each encoder that this FFmpeg has."""
    command = [ffmpeg, "-hide_banner", "-h"]
    told = subprocess.run(
        [*command, f"encoder={codec}"], capture_output=True, text=True, check=True
    ).stdout
    if "Encoder" not in told:
        pytest.skip(f"this FFmpeg has no {codec}")
    names = {name for name in codecs.KNOWN[codec].low_delay if name.startswith("-")}
    for name in names - {"-bf"}:
        assert re.search(rf"^ *{name} ", told, re.MULTILINE), name


@pytest.mark.every_loop
async def test_client_leaves(ffmpeg: str) -> None:
    async with Encoder(SIZE, 25, **RAW, ffmpeg=ffmpeg) as encoder:
        async with encoder.clients() as clients, anyio.create_task_group() as tasks:
            stays: list[bytes] = []
            tasks.start_soon(take, clients.subscribe(), stays)
            async with clients.subscribe() as leaves:
                assert len(clients) == 2
            assert len(clients) == 1
            with pytest.raises(azc.StreamClosed):
                await leaves.receive()
            await send_all(encoder, pictures(3))
    assert len(played(b"".join(stays), ffmpeg)) == 3


async def test_an_error_in_the_block_is_itself(ffmpeg: str) -> None:
    """The error is raised unchanged, and the clients' streams end."""
    with pytest.raises(KeyError):
        async with Encoder(SIZE, 25, ffmpeg=ffmpeg) as encoder:
            async with encoder.clients() as clients:
                subscription = clients.subscribe()
                raise KeyError
    with pytest.raises(anyio.EndOfStream):
        await subscription.receive()


@pytest.mark.parametrize("what", ["limit", "when_slow"])
async def test_bad_arguments_of_clients(what: str) -> None:
    encoder = Encoder(SIZE)
    with pytest.raises(ValueError, match=what):
        if what == "limit":
            encoder.clients(0)
        encoder.clients().subscribe("later")  # type: ignore[arg-type]


# ---- where a film is cut -----------------------------------------------------------


def cut(cutter: Cutter, film: bytes, sizes: Sequence[int]) -> list[Piece]:
    """Cut a film, fed in chunks of these sizes in turn."""
    pieces: list[Piece] = []
    at = 0
    for size in itertools.cycle(sizes):
        if at >= len(film):
            return [*pieces, *cutter.feed(b""), *cutter.rest()]
        pieces += cutter.feed(film[at : at + size])
        at += size
    raise AssertionError


def key_frames(film: bytes, ffmpeg: str) -> int:
    """Count the key frames that FFmpeg sees; it marks the packets of all others."""
    command = [ffmpeg, "-v", "error", "-i", "-", "-c", "copy", "-f", "framecrc", "-"]
    told = subprocess.run(command, input=film, capture_output=True, check=True)
    lines = told.stdout.decode().splitlines()
    return sum(line[0] != "#" and "F=0x" not in line for line in lines)


@each_delay
@each_format
async def test_cuts(format: str, low_delay: bool, ffmpeg: str) -> None:  # noqa: A002
    """Wherever chunks end, nothing is lost, and the key frames are known."""
    encoder = Encoder(
        SIZE, 30, format=format, group=GROUP, low_delay=low_delay, ffmpeg=ffmpeg
    )
    film = await film_of(encoder, pictures(4 * GROUP))
    whole = CUTTERS[format]()
    pieces = cut(whole, film, [len(film)])
    for sizes in ([1], [7, 300, 188], [4096]):
        cutter = CUTTERS[format]()
        assert cut(cutter, film, sizes) == pieces
        assert cutter.header == whole.header
    body = b"".join(data for data, _ in pieces)
    assert film == (body if format == "mpegts" else whole.header + body)
    assert sum(key for _, key in pieces) == key_frames(film, ffmpeg) >= 4


@pytest.mark.parametrize("cutter", CUTTERS.values(), ids=CUTTERS)
def test_not_such_a_container(cutter: Callable[[], Cutter]) -> None:
    with pytest.raises(ValueError, match="not a"):
        cutter().feed(bytes(1000))


async def test_options_that_make_no_pieces(ffmpeg: str) -> None:
    """The clients get an error, and nobody waits for ever."""
    options = {"mpegts_m2ts_mode": 1}  # packets of another length
    encoder = Encoder(SIZE, 25, format="mpegts", options=options, ffmpeg=ffmpeg)
    async with encoder:
        async with encoder.clients() as clients:
            subscription = clients.subscribe()
            with pytest.raises((azc.StreamClosed, azc.StreamBroken)):
                await send_all(encoder, itertools.repeat(picture(0)))
            with pytest.raises(ValueError, match="not an MPEG"):
                await subscription.receive()
