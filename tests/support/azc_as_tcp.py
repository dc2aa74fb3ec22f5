"""A plugin for pytest: Dask's own tests of tcp:// and tls:// run against ours.

Dask's tests take the classes from ``distributed.comm.tcp``.  Put there, ours must use
its prefixes.
"""

from __future__ import annotations

from distributed.comm import registry, tcp

from aiozerocopy.dask import backends, connecting, kinds, listening


class TCP(kinds.TCPComm):
    pass


class TCPConnector(connecting.TCPConnector):
    prefix = "tcp://"
    comm_class = TCP


class TCPListener(listening.TCPListener):
    prefix = "tcp://"
    comm_class = TCP


class TCPBackend(backends.TCPBackend):
    _connector_class = TCPConnector
    _listener_class = TCPListener


class TLSConnector(connecting.TLSConnector):
    prefix = "tls://"


class TLSListener(listening.TLSListener):
    prefix = "tls://"


class TLSBackend(backends.TLSBackend):
    _connector_class = TLSConnector
    _listener_class = TLSListener


OURS: tuple[type, ...] = (TCP, TCPConnector, TCPListener, TCPBackend)
for ours in (*OURS, TLSConnector, TLSListener, TLSBackend):
    setattr(tcp, ours.__name__, ours)
registry.backends.update(tcp=TCPBackend(), tls=TLSBackend())
