"""P7: where the kernel lacks or forbids a fast path, the result is the same.

All tests on the portable build (make portable-test), and the faults of
../slow/test_simulation.py, show that only speed differs.  Pages that a kernel does not
lend: ../core/test_lending.py.
"""

from pathlib import Path

import pytest
import scripts
from links import BIG, EACH_WAY, open_link, reading, refusing, stuck
from oracle import Checker, message, poison

import aiozerocopy as azc

pytestmark = pytest.mark.anyio


TRANSFER = """
import links, oracle, pathlib, sabotage

sabotage.apply(os.environ.get(sabotage.VARIABLE, ""))

async def transfer(link, checker):
    async with links.reading(link, checker.feed, ours=True, start=False) as reader:
        async with link.sender() as stream:
            data = oracle.message(1, 0, links.BIG)
            async with links.stuck(stream, data) as tasks:
                tasks.cancel_scope.cancel()
            oracle.poison(data)
            data.clear()
            reader.start()
            await stream.send(oracle.message(1, 1, 30_000))
            await stream.send_many([oracle.message(1, n, 5_000) for n in range(2, 10)])

async def pass_on(film):
    "By a relay's thread, and as lent pages."
    film.write_bytes(data := os.urandom(4 * links.BIG))
    frame = azc.FramePool(len(data)).acquire_nowait()
    frame.view[:] = data
    ends = os.pipe()
    lent, lender = azc.open_reader(ends[0]), azc.open_writer(ends[1], peer="reads")
    async with azc.pipe() as (source, feed), azc.socketpair() as (near, far):
        async with lent, lender, anyio.create_task_group() as tasks:
            tasks.start_soon(far.receive_exactly, got := bytearray(2 * len(data)))
            tasks.start_soon(lent.receive_exactly, seen := bytearray(len(data)))
            tasks.start_soon(feed.send, data)
            await near.send_file(film)
            await azc.relay(source, near, len(data))
            await lender.send(frame)
        assert got == data + data
        assert seen == data

async def main():
    await pass_on(pathlib.Path(sys.argv[2]) / "film")
    for kind in sys.argv[3:]:
        (folder := pathlib.Path(sys.argv[2]) / kind).mkdir()
        checker = oracle.Checker()
        with links.open_link(kind, folder) as link:
            await transfer(link, checker)
        checker.finish()
        assert checker.counts == {1: 10}
        print(kind)

run(main)
"""


# Calls in C's threads that a signal can interrupt; without close, which is not
# repeated, and read, without which no program can be loaded.
INTERRUPTED = (
    "write,writev,pwritev2,readv,preadv2,sendto,sendmsg,recvfrom,recvmsg,vmsplice,"
    "splice,sendfile,process_vm_readv,poll,ppoll,epoll_wait,epoll_pwait"
)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize(
    "fault",
    [
        "pwritev2,preadv2:error=EOPNOTSUPP",  # an old kernel, a FIFO
        "pwritev2,preadv2:error=ENOSYS",  # an emulator
        "process_vm_readv:error=EPERM",  # a sandbox
        "process_vm_readv:error=ENOSYS",
        f"{INTERRUPTED}:error=EINTR:when=2+2",
        "epoll_wait:error=EINTR:when=3+2",  # each of our calls, in turn with asyncio's
        "pwritev2,writev,sendmsg:error=ENOBUFS:when=3+9",
    ],
)
async def test_without_a_system_call(fault: str, tmp_path: Path) -> None:
    said = scripts.run(
        TRANSFER, "asyncio", str(tmp_path), *EACH_WAY, under=refusing(fault)
    )
    assert said.split() == list(EACH_WAY)


async def test_untrusted_peer(tmp_path: Path) -> None:
    checker = Checker()
    with open_link("adopted", tmp_path) as link:
        stream = azc.open_writer(link.take_write_fd(), peer="untrusted")
        async with reading(link, checker.feed, start=False) as reader, stream:
            data = message(1, 0, BIG)
            async with stuck(stream, data) as tasks:
                tasks.cancel_scope.cancel()
            poison(data)
            data.clear()
            reader.start()
            await stream.send(message(1, 1, BIG))
    checker.finish()
    assert checker.counts == {1: 2}
