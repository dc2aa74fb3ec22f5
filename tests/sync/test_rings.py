"""Rings for threads."""

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
import scripts
from interruption import HandedOver
from links import begun_in_thread

from aiozerocopy import StreamBroken, StreamClosed, sync
from aiozerocopy._core.binding import PORTABLE
from aiozerocopy._core.ring_end import Taken

pytestmark = pytest.mark.skipif(PORTABLE, reason="the portable build has no rings")

CAPACITY = 64 << 10


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[tuple[sync.Ring, sync.Ring]]:
    """A ring side that sends, and one that receives."""
    path, listening = tmp_path / "ring", []
    thread = threading.Thread(
        target=lambda: listening.append(sync.listen_ring(path, CAPACITY))
    )
    thread.start()
    with sync.connect_ring(path, timeout=10) as sender:
        thread.join()
        with listening[0] as receiver:
            yield sender, receiver


def test_records_come_in_order(ends: tuple[sync.Ring, sync.Ring]) -> None:
    sender, receiver = ends
    data = bytearray(b"a record of two pieces")

    def send() -> None:
        for number in range(500):  # more than the ring holds
            sender.send(number.to_bytes(2, "big"), bytes(1000))
        sender.close()

    sender.send(data[:8], data[8:])
    data[:] = bytes(len(data))
    with receiver.receive() as record:
        assert bytes(record.view) == b"a record of two pieces"
    sender.send(b"", type_id=7)
    with receiver.receive() as record:
        assert (len(record), record.type_id) == (0, 7)
    thread = threading.Thread(target=send)
    thread.start()
    numbers = []
    for record in receiver:
        with record:
            numbers.append(int.from_bytes(record.view[:2], "big"))
    thread.join()
    assert numbers == list(range(500))
    assert receiver.stats.records == 502
    with pytest.raises(anyio.EndOfStream):
        receiver.receive()
    with pytest.raises(StreamClosed):
        sender.send(b"late")


@pytest.mark.skipif(
    sys.version_info < (3, 11),
    reason="a signal may come between a call's return and the store of its result",
)
def test_storm_of_signals_loses_no_record(tmp_path: Path) -> None:
    code = """
        warnings.filterwarnings("ignore", message=".*never awaited")
        from aiozerocopy import sync
        def interrupt(*_):
            raise KeyboardInterrupt
        signal.signal(signal.SIGALRM, interrupt)
        sys.unraisablehook = lambda _: None  # a finalizer is hit, too
        path, ends = sys.argv[1], []
        listening = lambda: ends.append(sync.listen_ring(path, 1 << 16))
        listen = threading.Thread(target=listening)
        listen.start()
        sender = sync.connect_ring(path, timeout=10)
        listen.join()
        def send():
            for number in range(5000):
                sender.send(number.to_bytes(2, "big"))
            sender.close()
        threading.Thread(target=send).start()
        got, turn = [], 0
        with ends[0] as ring:
            while got[-1:] != [4999]:
                turn, come = turn + 1, ()
                late = turn // 100  # on a slow machine some calls must end, too
                try:
                    signal.setitimer(signal.ITIMER_REAL, (turn % 50 + 2 + late) / 1e6)
                    come = ring.receive_batch() if turn % 3 else [ring.receive()]
                    signal.setitimer(signal.ITIMER_REAL, 0)
                except KeyboardInterrupt:
                    pass
                got += [int.from_bytes(each.view, "big") for each in come]
            print(got == list(range(5000)), ring.stats.records)
    """
    assert scripts.run(code, str(tmp_path / "ring")) == "True 5000\n"


@pytest.mark.parametrize("receive", [sync.Ring.receive, sync.Ring.receive_batch])
def test_record_that_came_late_goes_back_when_it_is_released(
    ends: tuple[sync.Ring, sync.Ring], receive: Callable[[sync.Ring], Any]
) -> None:
    """Without the GIL the portal would have to run first, if it had made the record."""
    sender, receiver = ends

    def send_late() -> None:
        while not receiver.stats.waits:
            pass
        sender.send(b"late")

    end = begun_in_thread(send_late)
    with receive(receiver) as received:
        assert bytes(received.view) == b"late"
        assert receiver.stats.held == 1
    assert receiver.stats.held == receiver.stats.bytes_used == 0
    assert receiver.stats.records == 1
    assert end() is None


def interrupted(taken: Taken) -> None:
    del taken
    raise KeyboardInterrupt


def test_record_that_is_lost_to_an_exception_comes_again(
    ends: tuple[sync.Ring, sync.Ring],
) -> None:
    """A signal handler may raise when the record has been made, but not returned."""
    sender, receiver = ends
    sender.send(b"one")
    with pytest.raises(KeyboardInterrupt):
        receiver._receive(1, interrupted)
    with receiver.receive() as record:
        assert bytes(record.view) == b"one"
    assert receiver.stats.records == 1


def test_record_that_is_lost_comes_again_in_the_thread_that_is_next(
    ends: tuple[sync.Ring, sync.Ring],
) -> None:
    sender, receiver = ends
    got = []

    def receive() -> None:
        with receiver.receive() as record:
            got.append(bytes(record.view))

    sender.send(b"one")
    sender.send(b"two")
    receiver._turn = cast("Any", HandedOver(receive))
    with pytest.raises(KeyboardInterrupt):
        receiver._receive(1, interrupted)
    receive()
    assert got == [b"one", b"two"]


def test_ctrl_c_ends_a_wait_for_the_turn(ends: tuple[sync.Ring, sync.Ring]) -> None:
    """At once: a thread that receives may have its turn for ever."""
    waits = []

    class Turn:
        def __enter__(self) -> None:
            waits.append(self)
            raise KeyboardInterrupt

        def __exit__(self, *_: object) -> None: ...

    ends[1]._turn = cast("Any", Turn())
    with pytest.raises(KeyboardInterrupt):
        ends[1].receive()
    assert len(waits) == 1


def test_death_is_noticed_while_there_is_room(
    ends: tuple[sync.Ring, sync.Ring],
) -> None:
    sender, receiver = ends
    sender.send(b"early")
    receiver.abort()
    while not sender._it._end.stats().gone:
        pass
    with pytest.raises(StreamBroken, match="the consumer died"):
        sender.send(b"late")


def test_no_batch_of_none(ends: tuple[sync.Ring, sync.Ring]) -> None:
    with pytest.raises(ValueError, match="most must be at least 1, not 0"):
        ends[1].receive_batch(0)


def test_batch_of_more_than_can_be_there(ends: tuple[sync.Ring, sync.Ring]) -> None:
    sender, receiver = ends
    sender.send(b"one")
    with receiver.receive_batch(10**20) as batch:
        assert [bytes(record) for record in batch] == [b"one"]


def test_nobody_listens(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nobody listens"):
        sync.connect_ring(tmp_path / "ring")


def test_abort_ends_a_receive(ends: tuple[sync.Ring, sync.Ring]) -> None:
    _, receiver = ends
    end = begun_in_thread(receiver.receive)
    while not receiver.stats.waits:
        pass
    receiver.abort()
    assert isinstance(end(), StreamClosed)
