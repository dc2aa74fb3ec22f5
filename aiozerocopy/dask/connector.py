"""StreamConnector: one attempt to connect; Dask itself tries again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from distributed.comm.core import Connector

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
            ValueError: not an address.
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


def refuse_to_encrypt(prefix: str, connection_args: dict[str, Any]) -> None:
    """Raises: RuntimeError: Dask is told to encrypt."""
    if connection_args.get("require_encryption"):
        raise RuntimeError(
            f"Dask is told to require encryption, which {prefix} has not: use azc+tls://"
        )
