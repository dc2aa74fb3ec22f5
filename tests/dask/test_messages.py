"""Dask messages as bytes: what is sent is received, and invalid data is refused."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import anyio
import pytest

pytest.importorskip("distributed", reason="needs Dask")
np = pytest.importorskip("numpy")


from distributed.protocol.utils import pack_frames_prelude, unpack_frames  # noqa: E402

from aiozerocopy.dask import messages  # noqa: E402
from aiozerocopy.dask.messages import NotAMessage, pack, receive_frames, unpack  # noqa: E402

if TYPE_CHECKING:
    from typing_extensions import Buffer


MOST = 1 << 24  # bytes of a message


class Bytes:
    """A source with all of these bytes, which notes the sizes of its receives."""

    def __init__(self, data: bytes) -> None:
        self.asked: list[int] = []
        self._data = data

    async def receive_exactly(self, buffer: Buffer) -> None:
        view = memoryview(buffer)
        self.asked.append(len(view))
        view[:], self._data = self._data[: len(view)], self._data[len(view) :]


def sent(frames: Sequence[Any]) -> bytes:
    buffers, nbytes = pack(frames)
    data = b"".join(buffers)
    assert len(data) == nbytes
    return data


def received(source: Bytes) -> list[memoryview]:
    return anyio.run(receive_frames, source, MOST)


def some_frames(seed: int) -> list[Any]:
    """Make bytes and arrays: empty, small and large ones."""
    chance = random.Random(seed)
    frames: list[Any] = []
    for _ in range(chance.randrange(1, 12)):
        data = chance.randbytes(chance.choice((0, 1, 100, 5000, 50_000)))
        array = np.frombuffer(data, "u1").copy().data
        frames.append(chance.choice((data, bytearray(data), array)))
    return frames


@pytest.mark.parametrize("seed", range(40))
def test_frames_arrive_as_they_were_here_and_at_tcp(seed: int) -> None:
    """Dask's own functions read our messages."""
    frames = some_frames(seed)
    wanted = [bytes(one) for one in frames]
    data = sent(frames)
    assert [bytes(one) for one in received(Bytes(data))] == wanted
    (block,) = struct.unpack_from("=Q", data)
    assert data[8:].startswith(pack_frames_prelude(frames))
    first, sizes = unpack_frames(data[8 : 8 + block], partial=True)
    rest = data[8 + block :]
    for size in sizes:
        first.append(memoryview(rest[:size]))
        rest = rest[size:]
    assert rest == b""
    assert [bytes(one) for one in first] == wanted


def test_large_frames_go_out_as_they_are() -> None:
    array = np.arange(100_000, dtype="u1")
    text = bytes(100_000)
    buffers, _ = pack([b"header", text, array.data])
    head, *large = (memoryview(buffer) for buffer in buffers)
    assert len(head) < messages.SMALL
    assert large[0].obj is text
    assert large[1].obj is array


def test_small_frames_go_out_together() -> None:
    buffers, _ = pack([b"a" * 100, *(np.full(200, n, "u1").data for n in range(50))])
    assert [type(buffer) for buffer in buffers] == [bytes]


def test_arrays_are_received_into_memory_of_their_own() -> None:
    arrays = [np.full(10_000 * n, n, "u1") for n in (1, 2, 3)]
    source = Bytes(sent([b"x" * 3000, *(array.data for array in arrays)]))
    _, *arrived = received(source)
    assert source.asked[2:] == [array.nbytes for array in arrays]
    bases = {id(one.obj) for one in arrived}
    assert len(bases) == 3
    assert not any(one.readonly for one in arrived)


@pytest.mark.parametrize(
    ("before", "size", "together"),
    [
        (0, 1, True),
        (2000, 1, True),
        (2100, 1, False),
        (9500, 200_000, True),
        (10_500, 200_000, False),
    ],
)
def test_first_array_shares_a_block_with_little(
    before: int, size: int, together: bool
) -> None:
    source = Bytes(sent([b"x" * before, np.zeros(size, "u1").data]))
    received(source)
    assert (len(source.asked) == 2) == together


def test_bytes_behind_an_array_share_its_block_while_they_are_few() -> None:
    frames = [b"header", np.zeros(100_000, "u1").data, b"x" * 3000, b"y" * 4000]
    source = Bytes(sent(frames))
    assert received(source) == frames
    assert source.asked[2:] == [4000]


def test_pieces_of_one_array_stay_together() -> None:
    view = np.zeros(100_000, "u1").data
    source = Bytes(sent([b"header", view[:60_000], view[60_000:]]))
    _, one, other = received(source)
    assert one.obj is other.obj


@pytest.mark.parametrize(
    "block",
    [
        b"",
        b"GET / HT",
        struct.pack("=Q", 1 << 63),
        struct.pack("=Q", 2) + bytes(8),
        struct.pack("=2Q", 1, 5) + b"four",
        struct.pack("=2Q", 1, 3) + b"four",
        struct.pack("=Q", 0) + b"more",
    ],
)
def test_nonsense_is_no_message(block: bytes) -> None:
    with pytest.raises(NotAMessage):
        unpack(memoryview(block))


@pytest.mark.parametrize("frames", [0, 1, 1000])
def test_no_memory_is_taken_for_what_is_too_much(frames: int) -> None:
    """The first block, one frame, or all frames together would be too large."""
    sizes = struct.pack(f"={1 + frames}Q", frames, *[MOST // (frames or 1)] * frames)
    source = Bytes(struct.pack("=Q", len(sizes)) + sizes if frames else b"GET / HT")
    with pytest.raises(NotAMessage, match="the peer is not Dask"):
        received(source)
    assert sum(source.asked) <= 8 + len(sizes)
