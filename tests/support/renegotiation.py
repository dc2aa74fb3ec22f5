"""Calls of OpenSSL that Python's ssl lacks."""

import ctypes
import ssl
import sys
from typing import Any

import pytest

# The offset of OpenSSL's pointer in CPython's object: behind its head and its socket.
_POINTER = object.__basicsize__ + ctypes.sizeof(ctypes.c_void_p)


def _call(name: str, connection: ssl.SSLObject, *arguments: Any) -> None:
    if sys.implementation.name != "cpython" or "_ssl" not in sys.modules:
        pytest.skip("where this Python keeps OpenSSL's pointer is not known")
    library = ctypes.CDLL(sys.modules["_ssl"].__file__)
    inner: Any = connection._sslobj  # type: ignore[attr-defined]
    pointer = ctypes.c_void_p.from_address(id(inner) + _POINTER)
    assert getattr(library, name)(pointer, *arguments) == 1


def renegotiate(connection: ssl.SSLObject) -> None:
    """Begin a new handshake, in TLS 1.2."""
    _call("SSL_renegotiate", connection)
    connection.do_handshake()


def change_keys(connection: ssl.SSLObject) -> None:
    """Change the keys, and ask the peer for new ones, in TLS 1.3."""
    _call("SSL_key_update", connection, 1)
    connection.do_handshake()
