"""A plugin for pytest: Dask's own tests of tcp:// and tls:// run against ours.

Dask's tests take the classes from ``distributed.comm.tcp``.  Put there, ours must use
its prefixes.
"""

from distributed.comm import registry, tcp

from aiozerocopy.dask import tcp as over_tcp
from aiozerocopy.dask import tls as over_tls


class TCP(over_tcp.TCPComm):
    pass


class TCPConnector(over_tcp.TCPConnector):
    prefix = "tcp://"
    comm_class = TCP


class TCPListener(over_tcp.TCPListener):
    prefix = "tcp://"
    comm_class = TCP


class TCPBackend(over_tcp.TCPBackend):
    _connector_class = TCPConnector
    _listener_class = TCPListener


class TLSConnector(over_tls.TLSConnector):
    prefix = "tls://"


class TLSListener(over_tls.TLSListener):
    prefix = "tls://"


class TLSBackend(over_tls.TLSBackend):
    _connector_class = TLSConnector
    _listener_class = TLSListener


OURS: tuple[type, ...] = (TCP, TCPConnector, TCPListener, TCPBackend)
for ours in (*OURS, TLSConnector, TLSListener, TLSBackend):
    setattr(tcp, ours.__name__, ours)
registry.backends.update(tcp=TCPBackend(), tls=TLSBackend())
