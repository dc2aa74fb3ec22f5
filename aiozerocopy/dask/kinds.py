"""The comms of the three protocols: what each adds to a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from distributed.comm.tcp import set_tcp_timeout

from aiozerocopy.dask.comm import StreamComm
from aiozerocopy.dask.loan import CAN_LEND
from aiozerocopy.dask.local import LocalStream
from aiozerocopy.dask.secure import SecureStream
from aiozerocopy.streams import UnixStream

if TYPE_CHECKING:
    from aiozerocopy.dask.messages import Frame
    from aiozerocopy.streams import Stream


# In the handshake: does a process take the pipes of `LocalStream`?
PIPES = "aiozerocopy-pipes"


class TCPComm(StreamComm):
    """``azc://``; a peer that is silent for too long is given up, as Dask says."""

    stream: Stream | SecureStream

    def __init__(
        self,
        stream: Stream | SecureStream,
        local_address: str,
        peer_address: str,
        deserialize: bool = True,
    ) -> None:
        super().__init__(stream, local_address, peer_address, deserialize)
        set_tcp_timeout(self)


class TLSComm(TCPComm):
    """``azc+tls://``"""

    stream: SecureStream
    _goodbye = SecureStream.goodbye

    def __init__(
        self,
        stream: SecureStream,
        local_address: str,
        peer_address: str,
        deserialize: bool = True,
    ) -> None:
        super().__init__(stream, local_address, peer_address, deserialize)
        self._extra = stream.extra


class UnixComm(StreamComm):
    """``azc+unix://``; large messages go by pipes, if both sides know how."""

    stream: LocalStream

    def __init__(
        self,
        stream: Stream,
        local_address: str,
        peer_address: str,
        deserialize: bool = True,
    ) -> None:
        assert isinstance(stream, UnixStream)
        local = LocalStream(stream)
        super().__init__(local, local_address, peer_address, deserialize)

    def handshake_info(self) -> dict[str, Any]:
        """What the peer is told of us when both have connected."""
        return super().handshake_info() | {PIPES: CAN_LEND}

    async def _send(self, buffers: list[Frame], nbytes: int) -> None:
        takes_pipes = CAN_LEND and self.remote_info.get(PIPES) is True
        await self.stream.send_message(buffers, nbytes, takes_pipes)

    async def _receive(self) -> list[memoryview]:
        return await self.stream.receive_frames()
