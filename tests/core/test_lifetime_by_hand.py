"""One stream's tie to its loop, and its end, step by step."""

from __future__ import annotations

import asyncio
import gc
import warnings
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from anyio.streams.file import FileStreamAttribute
from unread import is_open

import aiozerocopy as azc
from aiozerocopy import StreamClosed
from aiozerocopy._core import fork_and_exit, lifetime
from aiozerocopy._core.channel import Channel
from aiozerocopy._core.waiter import Waiter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiozerocopy import ReceiveStream, SendStream

pytestmark = pytest.mark.anyio


@pytest.fixture
def ends() -> Iterator[tuple[ReceiveStream, SendStream]]:
    made = azc.pipe()
    yield made
    for stream in made:
        stream.abort()


@pytest.fixture
def stream(ends: tuple[ReceiveStream, SendStream]) -> SendStream:
    return ends[1]


class TestBinding:
    async def test_what_it_tells_of_itself(self, stream: SendStream) -> None:
        assert stream.extra(FileStreamAttribute.fileno) == stream.fileno()
        assert stream.lane == "copy"
        assert repr(stream) == f"<SendStream fd={stream.fileno()}>"

    def test_it_joins_after_an_interruption_and_be_it_another_loop(
        self, stream: SendStream, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def interrupt(*_: object) -> Any:
            raise KeyboardInterrupt

        async def enter() -> None:
            with monkeypatch.context() as patched:
                patched.setattr(Waiter, "join", interrupt)
                with pytest.raises(KeyboardInterrupt):
                    stream._enter()

        async def enter_twice() -> None:
            await enter()
            assert stream._enter()._users == {stream._key}
            await stream.send(b"x")

        asyncio.run(enter())
        asyncio.run(enter_twice())
        assert stream.stats.messages_sent == 1

    async def test_the_child_of_a_fork_has_none(
        self, stream: SendStream, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        following = fork_and_exit.generation + 1
        with monkeypatch.context() as patched:
            patched.setattr(fork_and_exit, "generation", following)
            with pytest.raises(StreamClosed, match="forked child: open"):
                stream._enter()
        assert stream._waiter is None

    async def test_its_budget_is_of_calls_and_of_pages(
        self, stream: SendStream
    ) -> None:
        stream._enter()
        stream._budget = 4
        spent = [stream._budget_is_spent(0) for _ in range(8)]
        assert spent == [*(False, False, False, True)] * 2
        spent = [stream._budget_is_spent(n) for n in (4095, 4096, 4096)]
        assert spent == [False, False, True]
        assert stream._budget_is_spent(3 * 4096)


class TestTheEnd:
    async def test_from_another_loop(
        self, stream: SendStream, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It is not waited for there."""
        await stream.send(b"x")
        fd = stream.fileno()
        with monkeypatch.context() as patched:
            patched.setattr(Channel, "close", None)
            await anyio.to_thread.run_sync(asyncio.run, stream._close())
        assert not is_open(fd)
        assert stream._has_ended

    @pytest.mark.parametrize("name", ["aclose", "abort"])
    async def test_who_else_uses_its_fd_lets_go_before(
        self, stream: SendStream, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stream._enter()
        fd, were_open = stream.fileno(), list[bool]()
        monkeypatch.setattr(stream, "_let_go", lambda: were_open.append(is_open(fd)))
        if (result := getattr(stream, name)()) is not None:
            await result
        assert were_open == [True]

    async def test_all_its_channels_are_closed_before_the_first_is_waited_for(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ours, peer = azc.socketpair()
        waiter = ours._enter()
        fds = {channel.fileno() for channel in ours._channels}
        waits: list[tuple[bool, float]] = []

        async def wait(_operation: object, seconds: float) -> None:
            waits.append((any(map(is_open, fds)), seconds))
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(waiter, "wait_shielded", wait)
            with pytest.raises(KeyboardInterrupt):
                await ours._close()
        assert waits == [(False, ours._channels[0].patience())]
        assert ours._has_ended
        peer.abort()

    @pytest.mark.parametrize("stage", ["open", "closed", "ended", "inherited"])
    async def test_who_forgets_it_is_warned(
        self, stage: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        receiver, sender = azc.pipe()
        fd = sender.fileno()
        if stage == "ended":
            await sender.aclose()
        sender._closed = stage != "open"
        told = repr(sender)
        with (
            monkeypatch.context() as patched,
            warnings.catch_warnings(record=True) as caught,
        ):
            warnings.simplefilter("always")
            if stage == "inherited":
                following = fork_and_exit.generation + 1
                patched.setattr(fork_and_exit, "generation", following)
            sender.__del__()
        assert sender._has_ended is (stage != "inherited")
        assert is_open(fd) is (stage == "inherited")
        expected = [f"unclosed {told}"] if stage == "open" else []
        assert [str(each.message) for each in caught] == expected
        sender.abort()
        receiver.abort()

    async def test_one_that_was_never_made_ends_without_a_word(self) -> None:
        lifetime.Bound.__new__(lifetime.Bound).__del__()
        gc.collect()
