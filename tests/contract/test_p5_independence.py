"""P5: a stalled fd delays neither other fds nor the event loop."""

from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from links import BIG, Link, begun, cut_short, is_trio, open_link, reading
from oracle import Checker, message

pytestmark = [pytest.mark.anyio, pytest.mark.every_loop]


async def beat(beats: list[int]) -> None:
    while True:
        beats[0] += 1
        await anyio.lowlevel.checkpoint()


async def test_forty_nine_others_go_on(clogged: Link, tmp_path: Path) -> None:
    checkers = [Checker() for _ in range(49)]
    beats = [0]

    async def work(number: int, checker: Checker) -> None:
        with open_link(("pipe", "unix", "adopted")[number % 3], tmp_path) as link:
            async with reading(link, checker.feed, ours=True), link.sender() as one:
                await one.send(message(number, 0, 100_000))

    stalled = clogged.sender()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stalled.send, message(1, 0, BIG))
        await begun(stalled)
        tasks.start_soon(beat, beats)
        async with anyio.create_task_group() as others:
            for number, checker in enumerate(checkers):
                others.start_soon(work, number, checker)
        assert stalled.stats.messages_queued == 1
        tasks.cancel_scope.cancel()
    stalled.abort()
    for checker in checkers:
        checker.finish()
    assert [sum(checker.counts.values()) for checker in checkers] == [1] * 49
    assert beats[0] > 5


@pytest.mark.parametrize("kind", ["pipe", "file"])  # all of it fits into the pipe
@pytest.mark.parametrize("call", ["send", "put", "send_many"])
async def test_one_that_never_waits_lets_others_run(
    tmp_path: Path, call: str, kind: str
) -> None:
    beats, sends = [0], 2_000
    with open_link(kind, tmp_path) as link:
        async with link.sender() as stream, cut_short(beat, beats):
            for _ in range(sends):
                await (
                    stream.send_many([b"a", b"b"])
                    if call == "send_many"
                    else getattr(stream, call)(b"a")
                )
            seen = beats[0]
    assert seen >= (sends - 1 if is_trio() else sends // 512)
