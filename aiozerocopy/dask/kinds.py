"""The comms of the three protocols: what each adds to a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distributed.comm.tcp import set_tcp_timeout

from aiozerocopy.dask.comm import StreamComm
from aiozerocopy.dask.secure import SecureStream

if TYPE_CHECKING:
    from aiozerocopy.streams import Stream


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
    """``azc+unix://``"""
