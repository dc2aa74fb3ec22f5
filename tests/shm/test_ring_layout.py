"""The layout of a ring is that of docs/pages/ring-layout.md, byte for byte.

AZC_WRITE_VECTORS=1 in the environment rewrites ring-layout-vectors.json.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from links import attempting, linux_only
from ring_peer import ANSWER, ASK, OFFER, PAGE, PRODUCER, facing, hello
from rings import SMALL

pytestmark = [
    linux_only,
    pytest.mark.anyio,
    pytest.mark.skipif(
        sys.byteorder != "little", reason="the vectors are little-endian"
    ),
]

VECTORS = Path(__file__).parents[2] / "docs" / "pages" / "ring-layout-vectors.json"
WORDS = {  # name: offset, bytes
    "magic": (0, 8),
    "version": (8, 4),
    "page_bytes": (12, 4),
    "capacity": (16, 8),
    "producer.index": (128, 8),
    "producer.left": (264, 4),
    "consumer.index": (384, 8),
    "consumer.left": (520, 4),
}
RECORDS = [
    (b"", 0),
    (b"hello", 7),
    (bytes(range(48)), 1),
    (bytes(range(49)), 0xFFFFFFFF),
    (b"\xaa" * (SMALL - 4096), 2),  # almost to the end of the data
    (b"\xbb" * 8000, 3),  # continues at the beginning
]


def read(fd: int, position: int, n: int) -> bytes:
    """Read this many bytes of the data at a position."""
    start = position % SMALL
    first = os.pread(fd, min(n, SMALL - start), PAGE + start)
    return first + os.pread(fd, n - len(first), PAGE)


def shown(data: bytes) -> str:
    """Return data in hexadecimal, and long runs of one byte as "4000 x aa"."""
    if len(data) > 64 and len(set(data)) == 1:
        return f"{len(data)} x {data[:1].hex()}"
    return data.hex()


async def vectors(folder: Path) -> dict[str, Any]:
    """Return what our producer writes."""
    async with facing(folder, sends=True) as (ring, peer):
        records, position = [], 0
        for payload, type_id in RECORDS:
            if position + len(payload) + 80 > SMALL:
                peer.put(WORDS["consumer.index"][0], position)  # everything is released
            await ring.send(payload, type_id=type_id)
            index = int.from_bytes(os.pread(peer.fd, 8, 128), "little")
            records.append(
                {
                    "payload": shown(payload),
                    "type_id": type_id,
                    "position": position,
                    "header_at": PAGE + (position + 48) % SMALL,
                    "header": read(peer.fd, position + 48, 16).hex(),
                    "payload_at": PAGE + (position + 64) % SMALL,
                    "index": index,
                }
            )
            assert read(peer.fd, position + 64, len(payload)) == payload
            position = index
        await ring.aclose()
        page = {
            name: os.pread(peer.fd, size, at).hex()
            for name, (at, size) in WORDS.items()
        }
    offer = hello(OFFER, PRODUCER, SMALL).hex()
    messages = {"ask": hello(ASK).hex(), "offer": offer, "answer": hello(ANSWER).hex()}
    return {"version": 1, "messages": messages, "page": page, "records": records}


async def test_producer_writes_the_vectors(tmp_path: Path) -> None:
    text = json.dumps(await vectors(tmp_path), indent=1) + "\n"
    if os.environ.get("AZC_WRITE_VECTORS") == "1":
        VECTORS.write_text(text)
    assert VECTORS.read_text() == text


def unshown(text: str) -> bytes:
    if " x " in text:
        count, byte = text.split(" x ")
        return bytes.fromhex(byte) * int(count)
    return bytes.fromhex(text)


async def test_consumer_reads_the_vectors(tmp_path: Path) -> None:
    known = json.loads(VECTORS.read_text())
    async with facing(tmp_path, sends=False) as (ring, peer):
        for vector in known["records"]:
            payload = unshown(vector["payload"])
            header = bytes.fromhex(vector["header"])
            os.pwrite(peer.fd, header, vector["header_at"])
            room = PAGE + SMALL - vector["payload_at"]
            os.pwrite(peer.fd, payload[:room], vector["payload_at"])
            os.pwrite(peer.fd, payload[room:], PAGE)
            async with attempting(ring.receive) as received:
                peer.put(WORDS["producer.index"][0], vector["index"])
                peer.ring()
            with received.result as record:
                assert bytes(record) == payload
                assert record.type_id == vector["type_id"]
            index = os.pread(peer.fd, 8, WORDS["consumer.index"][0])
            assert int.from_bytes(index, "little") == vector["index"]
            received.result.release()
