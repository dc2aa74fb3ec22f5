"""P1: a receiver sees whole messages in order: a prefix of those that were sent.

After a close: test_p2_no_later_bytes.py; with broadcasts: ../core/test_sending.py.
"""

import random
import threading

import anyio
import pytest
from links import BIG, Link, begun, checked, reading, stuck, until
from oracle import Checker, message, poison

from aiozerocopy import SendStream

pytestmark = [pytest.mark.anyio, pytest.mark.every_loop]


async def test_fifty_tasks_and_four_threads(link: Link, ours: bool) -> None:
    largest = 20_000 if link.kind in ("pty", "fifo") else 3 << 20
    checker = Checker()
    rng = random.Random(50)

    def sizes(name: int) -> list[int]:
        small = [int(10 ** rng.uniform(0, 4)) for _ in range(3)]
        return [*small, largest] if name % 25 == 0 else small

    async def send_all(name: int, stream: SendStream) -> None:
        for sequence, size in enumerate(sizes(name)):
            data = message(name, sequence, size)
            await stream.send(data)
            poison(data)

    def send_all_from_thread(name: int, stream: SendStream) -> None:
        for sequence, size in enumerate((1, largest // 4, 70, 9_000)):
            data = message(name, sequence, size)
            stream.send_from_thread(data)
            poison(data)

    async with reading(link, checker.feed, ours=ours), link.sender() as stream:
        threads = [
            threading.Thread(target=send_all_from_thread, args=(name, stream))
            for name in range(100, 104)
        ]
        async with anyio.create_task_group() as tasks:
            for thread in threads:
                thread.start()
            for name in range(50):
                tasks.start_soon(send_all, name, stream)
        await until(lambda: not any(thread.is_alive() for thread in threads))
    checker.finish()
    assert sum(checker.counts.values()) == 50 * 3 + 2 + 4 * 4


async def test_order_of_calls_is_the_order_of_messages(clogged: Link) -> None:
    async with checked(clogged, {1: 10}) as (stream, reader):
        big = message(1, 0, BIG)
        async with stuck(stream, big) as tasks:
            tasks.start_soon(stream.send, message(1, 1, 10))
            await begun(stream, 2)
            await stream.put(message(1, 2, BIG))
            tasks.start_soon(stream.send_many, [message(1, n, n) for n in range(3, 9)])
            await begun(stream, 4)
            await stream.put(message(1, 9, 0))
            reader.start()
