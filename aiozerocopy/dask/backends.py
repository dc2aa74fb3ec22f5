"""The backends that Dask finds by this package's entry points."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from distributed.comm.registry import Backend
from distributed.comm.tcp import BaseTCPBackend

from aiozerocopy.dask.connecting import TCPConnector, TLSConnector, UnixConnector
from aiozerocopy.dask.listening import TCPListener, TLSListener, UnixListener

if TYPE_CHECKING:
    from collections.abc import Callable


class TCPBackend(BaseTCPBackend):
    """``azc://host:port``: as Dask's ``tcp://``."""

    _connector_class: type[TCPConnector] = TCPConnector
    _listener_class: type[TCPListener] = TCPListener


class TLSBackend(BaseTCPBackend):
    """``azc+tls://host:port``: as Dask's ``tls://``."""

    _connector_class: type[TLSConnector] = TLSConnector
    _listener_class: type[TLSListener] = TLSListener


class UnixBackend(Backend):
    """``azc+unix:///path``: all processes on one machine, and of one user."""

    def get_connector(self) -> UnixConnector:
        return UnixConnector()

    def get_listener(
        self,
        loc: str,
        handle_comm: Callable[..., object],
        deserialize: bool,
        **connection_args: Any,
    ) -> UnixListener:
        return UnixListener(loc, handle_comm, deserialize, **connection_args)

    def get_address_host(self, loc: str) -> str:
        return "127.0.0.1"

    def resolve_address(self, loc: str) -> str:
        return loc

    def get_local_address_for(self, loc: str) -> str:
        return ""
