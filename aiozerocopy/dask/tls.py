"""``azc+tls://host:port``: like ``azc://``, under TLS."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any

import anyio
from distributed.comm.addressing import parse_host_port
from distributed.comm.core import CommClosedError, FatalCommClosedError
from distributed.comm.tcp import BaseTCPBackend

from aiozerocopy._net.tls import GOODBYE, TLSStream, secure
from aiozerocopy.dask.comm import ENCRYPTED, LOST, logger, timeout
from aiozerocopy.dask.tcp import TCPComm, TCPConnector, TCPListener

if TYPE_CHECKING:
    from aiozerocopy.dask.comm import Link
    from aiozerocopy.streams import Stream


class TLSComm(TCPComm):
    """``azc+tls://``"""

    stream: TLSStream
    _goodbye = GOODBYE

    def __init__(self, stream: TLSStream, *args: Any) -> None:
        super().__init__(stream, *args)
        known = stream.session.ssl
        self._extra = {"peercert": known.getpeercert(), "cipher": known.cipher()}


class TLSConnector(TCPConnector):
    prefix = ENCRYPTED
    comm_class: type[TLSComm] = TLSComm

    async def _link(self, stream: Stream, address: str, args: dict[str, Any]) -> Link:
        context = tls_context(self.prefix, args)
        host = args.get("server_hostname") or parse_host_port(address)[0]
        try:
            return await secure(stream, context, hostname=host, patience=0)
        except ssl.SSLError as error:
            raise FatalCommClosedError(
                f"TLS with {self.prefix}{address} failed: {error}"
            ) from error
        except (anyio.EndOfStream, anyio.BrokenResourceError) as error:
            raise CommClosedError(
                f"{self.prefix}{address} has closed the connection in TLS's handshake"
            ) from error


class TLSListener(TCPListener):
    prefix = ENCRYPTED
    comm_class: type[TLSComm] = TLSComm

    def __init__(self, *args: Any, **connection_args: Any) -> None:
        """Set up TLS too; raise TypeError if Dask was given no certificates."""
        super().__init__(*args, **connection_args)
        self._context = tls_context(self.prefix, connection_args)

    async def _link(self, stream: Stream, peer: str) -> Link | None:
        options: dict[str, Any] = {"server_side": True, "patience": 0}
        try:
            with anyio.fail_after(timeout("connect")):
                return await secure(stream, self._context, **options)
        except (*LOST, TimeoutError) as error:
            logger.warning(
                "TLS with %s failed: %s", peer, str(error) or "the client has left"
            )
            return None


class TLSBackend(BaseTCPBackend):
    """``azc+tls://host:port``, like Dask's ``tls://``."""

    _connector_class: type[TLSConnector] = TLSConnector
    _listener_class: type[TLSListener] = TLSListener


def tls_context(prefix: str, connection_args: dict[str, Any]) -> ssl.SSLContext:
    """Return the context that Dask's `Security` made; TypeError if there is none."""
    context = connection_args.get("ssl_context")
    if not isinstance(context, ssl.SSLContext):
        raise TypeError(
            f"{prefix} needs an ssl_context, not {context!r}: give Dask certificates, "
            "by security=Security(...) or in its configuration"
        )
    return context
