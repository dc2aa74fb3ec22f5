"""Connectors: one attempt to connect each; Dask itself tries again."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any, ClassVar

import anyio
from distributed.comm.addressing import parse_host_port, unparse_host_port
from distributed.comm.core import CommClosedError, Connector, FatalCommClosedError

from aiozerocopy._net.connecting import connect_tcp
from aiozerocopy.dask.kinds import TCPComm, TLSComm, UnixComm
from aiozerocopy.dask.secure import SecureStream
from aiozerocopy.dask.unix import connect_named, location_of

if TYPE_CHECKING:
    from aiozerocopy.dask.comm import StreamComm
    from aiozerocopy.streams import Stream


class StreamConnector(Connector):
    """What the connectors of all our protocols share."""

    prefix: ClassVar[str]
    encrypted: ClassVar[bool] = False

    async def connect(
        self, address: str, deserialize: bool = True, **connection_args: Any
    ) -> StreamComm:
        """Connect; ``connection_args`` are those of Dask's `Security`.

        Raises:
            OSError: nobody answered.
            FatalCommClosedError: TLS failed, and would fail again.
            ValueError: the address is none.
            RuntimeError: this protocol has no TLS, and Dask is told to encrypt.
        """
        if not self.encrypted:
            refuse_to_encrypt(self.prefix, connection_args)
        stream = await self._open(address)
        try:
            return await self._comm(stream, address, deserialize, connection_args)
        except BaseException:
            stream.abort()
            raise

    async def _open(self, address: str) -> Stream:
        raise NotImplementedError

    async def _comm(
        self, stream: Stream, address: str, deserialize: bool, args: dict[str, Any]
    ) -> StreamComm:
        raise NotImplementedError


class TCPConnector(StreamConnector):
    prefix = "azc://"
    comm_class: type[TCPComm] = TCPComm

    async def _open(self, address: str) -> Stream:
        return await connect_tcp(*parse_host_port(address))

    async def _comm(
        self, stream: Stream, address: str, deserialize: bool, args: dict[str, Any]
    ) -> StreamComm:
        local = self.prefix + local_location(stream)
        return self.comm_class(stream, local, self.prefix + address, deserialize)


class TLSConnector(TCPConnector):
    prefix = "azc+tls://"
    comm_class: type[TLSComm] = TLSComm
    encrypted = True

    async def _comm(
        self, stream: Stream, address: str, deserialize: bool, args: dict[str, Any]
    ) -> StreamComm:
        local = self.prefix + local_location(stream)
        secure = SecureStream(
            stream,
            tls_context(self.prefix, args),
            server_side=False,
            server_hostname=args.get("server_hostname") or parse_host_port(address)[0],
        )
        try:
            await secure.handshake()
        except ssl.SSLError as error:
            raise FatalCommClosedError(
                f"TLS with {self.prefix}{address} failed: {error}"
            ) from error
        except (anyio.EndOfStream, anyio.BrokenResourceError) as error:
            raise CommClosedError(
                f"{self.prefix}{address} has closed the connection in TLS's handshake"
            ) from error
        return self.comm_class(secure, local, self.prefix + address, deserialize)


class UnixConnector(StreamConnector):
    prefix = "azc+unix://"

    async def _open(self, address: str) -> Stream:
        return await connect_named(address)

    async def _comm(
        self, stream: Stream, address: str, deserialize: bool, args: dict[str, Any]
    ) -> StreamComm:
        local = location_of(stream._raw_socket.getsockname())
        return UnixComm(stream, self.prefix + local, self.prefix + address, deserialize)


def local_location(stream: Stream) -> str:
    """The host and port on our side of a connection."""
    return unparse_host_port(*stream._raw_socket.getsockname()[:2])


def refuse_to_encrypt(prefix: str, connection_args: dict[str, Any]) -> None:
    """Raises: RuntimeError: Dask is told to encrypt."""
    if connection_args.get("require_encryption"):
        raise RuntimeError(
            f"Dask is told to require encryption, which {prefix} has not: use azc+tls://"
        )


def tls_context(prefix: str, connection_args: dict[str, Any]) -> ssl.SSLContext:
    """The context that Dask's `Security` has made.

    Raises: TypeError: it has made none.
    """
    context = connection_args.get("ssl_context")
    if not isinstance(context, ssl.SSLContext):
        raise TypeError(
            f"{prefix} needs an ssl_context, not {context!r}: give Dask certificates, "
            "by security=Security(...) or in its configuration"
        )
    return context
