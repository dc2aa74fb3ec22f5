"""Dask over streams of ours: ``azc://``, ``azc+tls://`` and ``azc+unix://``.

    client = Client("azc://scheduler:8786")
    cluster = LocalCluster(protocol="azc")

Dask finds these by the entry points of this package, so a program needs no import.  All
processes of a cluster must have the package.

Unlike with Dask's own ``tcp://``, ``write`` returns only when the bytes are out: a slow
reader slows its writer, and does not fill the writer's memory.  Except under TLS, large
buffers are sent uncopied and arrive in place, without the event loop or the GIL.

tcp, tls, unix  the three protocols         comm      a connection, and how it is made
messages        a message as bytes          listener  accepts connections as comms
local           the stream of azc+unix://   loan      its pipe for large messages
"""

from aiozerocopy._core import extras

with extras.optional("aiozerocopy.dask", "dask"):
    from aiozerocopy.dask.tcp import TCPBackend as TCPBackend
    from aiozerocopy.dask.tls import TLSBackend as TLSBackend
    from aiozerocopy.dask.unix import UnixBackend as UnixBackend
