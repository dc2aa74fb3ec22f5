"""What several commands are told in the same words: sizes, rates, addresses, TLS.

Each parser is a ``type`` for argparse; its error says what to write instead.
"""

from __future__ import annotations

import math
import re
from argparse import ArgumentTypeError
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from aiozerocopy.client import parse_address

if TYPE_CHECKING:
    import ssl
    from argparse import ArgumentParser, Namespace

LAST_PORT = 65535


# --- numbers ------------------------------------------------------------------


def size(text: str) -> tuple[int, int]:
    """``1280x720``: width and height, both even, as most video formats need it."""
    match = re.fullmatch(r"([0-9]{1,5})x([0-9]{1,5})", text)
    if match is None:
        raise ArgumentTypeError(
            f"{text!r} is not a size: write WIDTHxHEIGHT, such as 1280x720"
        )
    width, height = int(match[1]), int(match[2])
    if min(width, height) < 2 or width % 2 or height % 2:
        raise ArgumentTypeError(
            f"{text!r} cannot be encoded: write an even width and height, 2 or more"
        )
    return width, height


def rate(text: str) -> Fraction:
    """``30``, ``29.97`` or ``30000/1001``: frames a second."""
    try:
        value = Fraction(text if "/" in text else repr(float(text)))
        float(value)
    except (ValueError, ZeroDivisionError, OverflowError):
        value = Fraction()
    if value <= 0:
        raise ArgumentTypeError(
            f"{text!r} is not a positive number: write one such as 30, 29.97 or "
            "30000/1001"
        )
    return value


def seconds(text: str) -> float:
    """``10`` or ``0.5``."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < math.inf:
        raise ArgumentTypeError(
            f"{text!r} is not a positive number: write seconds, such as 10 or 0.5"
        )
    return value


def count(text: str) -> int:
    """``1`` or more."""
    value = _whole_number(text)
    if not value:
        raise ArgumentTypeError(
            f"{text!r} is not a count: write a whole number, 1 or more"
        )
    return value


def _whole_number(text: str) -> int | None:
    """None if it is no whole number of up to twelve digits."""
    return int(text) if re.fullmatch("[0-9]{1,12}", text) else None


def ffmpeg_option(text: str) -> tuple[str, str]:
    """``crf=20``: an option of FFmpeg's and its value."""
    name, found, value = text.partition("=")
    name = name.removeprefix("-")
    if not (found and name and value):
        raise ArgumentTypeError(
            f"{text!r} is not an option: write NAME=VALUE, such as crf=20"
        )
    return name, value


# --- addresses ----------------------------------------------------------------


class Address(NamedTuple):
    """Where a server is: a host and its port, or the path of a Unix socket."""

    host: str
    port: int | None = None

    def __str__(self) -> str:
        if self.port is None:
            return self.host
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def port(text: str) -> int:
    """``8000``; ``0`` is any free one."""
    value = _whole_number(text)
    if value is None or value > LAST_PORT:
        raise ArgumentTypeError(
            f"{text!r} is not a port: write a number up to {LAST_PORT}, or 0 for any "
            "that is free"
        )
    return value


def address(text: str) -> Address:
    """``localhost:8000``, ``[::1]:8000``, or the path of a Unix socket."""
    host, number = parse_address(text)
    if number is None and host and (":" not in host or "/" in host):
        return Address(host)
    if number is None:
        raise ArgumentTypeError(
            f"{text!r} is not an address: write HOST:PORT, such as localhost:8000, or "
            "the path of a Unix socket (with ./ in front if it has a colon)"
        )
    if ":" in host and not text.startswith("["):
        raise ArgumentTypeError(
            f"{text!r} has several colons: write an IPv6 address in brackets, such as "
            "[::1]:8000"
        )
    if not 0 < number <= LAST_PORT:
        raise ArgumentTypeError(
            f"{text!r} has no port: write one from 1 to {LAST_PORT} after the colon"
        )
    return Address(host, number)


# --- options ------------------------------------------------------------------


def add_picture(parser: ArgumentParser, default: tuple[int, int], fps: int) -> None:
    """Add ``--size`` and ``--fps``."""
    width, height = default
    parser.add_argument(
        "--size",
        type=size,
        default=default,
        metavar="WxH",
        help=f"{width}x{height}, if not said",
    )
    parser.add_argument(
        "--fps",
        type=rate,
        default=Fraction(fps),
        metavar="RATE",
        help=f"frames a second: {fps}, if not said; or a fraction such as 30000/1001",
    )


def add_server_tls(parser: ArgumentParser) -> None:
    """Add ``--tls-cert`` and ``--tls-key``."""
    parser.add_argument(
        "--tls-cert",
        type=Path,
        metavar="FILE",
        help="PEM with the certificate (and its key): HTTPS for --web, TLS for --tcp",
    )
    parser.add_argument("--tls-key", type=Path, metavar="FILE", help="PEM with its key")


def server_tls(options: Namespace) -> ssl.SSLContext | None:
    """What --tls-cert and --tls-key ask for.

    Raises: OSError, if one of them cannot be read, or they do not fit (ssl.SSLError).
    """
    if options.tls_cert is None:
        return None
    import ssl

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(options.tls_cert, options.tls_key)
    return context


def add_client_tls(parser: ArgumentParser) -> None:
    """Add ``--tls`` and ``--tls-ca``."""
    parser.add_argument("--tls", action="store_true", help="encrypted")
    parser.add_argument(
        "--tls-ca", metavar="FILE", help="the same, and trust this authority (PEM)"
    )


def client_tls(options: Namespace) -> ssl.SSLContext | None:
    """What --tls and --tls-ca ask for.

    Raises: OSError, if that cannot be read (ssl.SSLError: it is no certificate).
    """
    if not options.tls and options.tls_ca is None:
        return None
    import ssl

    return ssl.create_default_context(cafile=options.tls_ca)
