"""``azc://host:port``: the comms, connector, listener and backend over TCP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from distributed.comm.addressing import parse_host_port, unparse_host_port
from distributed.comm.tcp import BaseTCPBackend, set_tcp_timeout
from distributed.comm.utils import ensure_concrete_host

from aiozerocopy._net.connecting import connect_tcp
from aiozerocopy._net.listening import Listener, listen_tcp
from aiozerocopy.dask.comm import StreamComm, StreamConnector
from aiozerocopy.dask.listener import StreamListener

if TYPE_CHECKING:
    from aiozerocopy.dask.comm import Link
    from aiozerocopy.streams import Stream


class TCPComm(StreamComm):
    """``azc://``; a silent peer is given up after Dask's timeout."""

    def __init__(self, stream: Link, *args: Any) -> None:
        super().__init__(stream, *args)
        set_tcp_timeout(self)


class TCPConnector(StreamConnector):
    prefix = "azc://"
    comm_class: type[TCPComm] = TCPComm

    async def _open(self, address: str) -> Stream:
        return await connect_tcp(*parse_host_port(address), dead_after=None)


class TCPListener(StreamListener):
    prefix = "azc://"
    comm_class: type[TCPComm] = TCPComm

    def __init__(
        self, address: str, *args: Any, default_port: int = 0, **options: Any
    ) -> None:
        """Parse the address; ``default_port`` is for one without a port."""
        self._host, self._port = parse_host_port(address, default_port)
        super().__init__(address, *args, **options)

    async def _listen(self, backlog: int) -> list[Listener]:
        return await listen_tcp(self._host, self._port, backlog, reuse_port=False)

    def get_host_port(self) -> tuple[str, int]:
        """Return where it listens; of several addresses, preferably one of IPv4.

        Raises: ValueError: it is not listening.
        """
        self._require_started()
        assert self._sockets
        addresses = [each.address for each in self._sockets]
        host, port = min(addresses, key=lambda address: ":" in address[0])
        return host, port

    @property
    def listen_address(self) -> str:
        return self.prefix + unparse_host_port(*self.get_host_port())

    @property
    def contact_address(self) -> str:
        host, port = self.get_host_port()
        host = ensure_concrete_host(host, default_host=self.default_host)
        return self.prefix + unparse_host_port(host, port)


class TCPBackend(BaseTCPBackend):
    """``azc://host:port``, like Dask's ``tcp://``."""

    _connector_class: type[TCPConnector] = TCPConnector
    _listener_class: type[TCPListener] = TCPListener
