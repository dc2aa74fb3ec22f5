"""The parser of the commands, and their options: sizes, rates, addresses, files, TLS.

A function that takes one text is a ``type`` for argparse, and raises `Refused`.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import re
import shlex
import sys
from argparse import SUPPRESS, Action, ArgumentParser, ArgumentTypeError, HelpFormatter
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from aiozerocopy._net.admission import MAX_TOKEN
from aiozerocopy._net.connecting import LAST_PORT, bracketed
from aiozerocopy.client import parse_address

if TYPE_CHECKING:
    import ssl
    from argparse import Namespace


LARGEST = 16384  # pixels: the most that libx264 accepts
FASTEST = 1_000_000  # frames a second
LONGEST = 1_000_000_000  # seconds
PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff")
NUMBER = re.compile(r"%(\d*)d")  # in a name such as out-%03d.png
TOKEN_VARIABLE = "AIOZEROCOPY_TOKEN"


# --- the parser ---------------------------------------------------------------


class Parser(ArgumentParser):
    """An ArgumentParser whose help shows defaults, and whose errors are one line."""

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=_Help, **options)

    def _print_message(self, message: str, file: Any = None) -> None:
        if (stream := file or sys.stderr) is not None:
            stream.write(message)  # (argparse's method hides an error of the stream)

    def error(self, message: str) -> NoReturn:
        about, said = message.partition("argument ")[::2]
        text = f"{message} (see {self.prog} --help)" if about else said
        self.exit(2, f"{self.prog}: {' '.join(text.split())}\n")


class _Help(HelpFormatter):
    """A formatter that keeps tables as they are written, and shows defaults."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return (
            text if text.startswith("  ") else super()._fill_text(text, width, indent)
        )

    def _get_help_string(self, action: Action) -> str:
        text = action.help or ""
        if action.default in (None, False, SUPPRESS, "") or action.default == []:
            return text
        return f"{text} (default: %(default)s)"


class Refused(ArgumentTypeError):
    """The error of a text: what is wrong with it, and what to write instead."""

    def __init__(self, text: str, why: str, instead: str = "") -> None:
        super().__init__(f"{text!r} {why}" + (f": write {instead}" if instead else ""))


# --- numbers ------------------------------------------------------------------


class Size(NamedTuple):
    """Width and height."""

    width: int
    height: int

    def __str__(self) -> str:
        return f"{self.width}x{self.height}"


def size(text: str) -> Size:
    """``1280x720``: width and height."""
    match = re.fullmatch(r"([0-9]{1,12})x([0-9]{1,12})", text)
    width, height = map(int, match.groups()) if match else (0, 0)
    if not (width and height):
        raise Refused(text, "is not a size: write WIDTHxHEIGHT, such as 1280x720")
    if max(width, height) > LARGEST:
        raise Refused(text, f"is too large: {LARGEST} at most")
    return Size(width, height)


def region(text: str) -> tuple[int, int, int, int]:
    """``640x480+10+20``: width, height, first column and first row."""
    match = re.fullmatch(
        r"([0-9]{1,5})x([0-9]{1,5})([+-][0-9]{1,5})([+-][0-9]{1,5})", text
    )
    width, height, x, y = map(int, match.groups()) if match else (0, 0, 0, 0)
    if not (width and height):
        raise Refused(text, "is not a region", "WIDTHxHEIGHT+X+Y, such as 640x480+0+0")
    return x, y, width, height


def rate(text: str) -> Fraction:
    """``30``, ``29.97`` or ``30000/1001``: frames a second."""
    try:
        value = Fraction(text if "/" in text else repr(float(text)))
    except (ValueError, ZeroDivisionError):
        value = Fraction()
    if not 1 / FASTEST <= value <= FASTEST:
        what = "write a number such as 30, 29.97 or 30000/1001"
        raise Refused(text, f"is not a frame rate: {what}")
    return value


def seconds(text: str) -> float:
    """``10`` or ``0.5``."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= LONGEST:
        raise Refused(text, "is not a length of time", "seconds, such as 10 or 0.5")
    return value


def count(text: str) -> int:
    """``1`` or more."""
    value = _whole_number(text)
    if not value:
        raise Refused(text, "is not a count: write a whole number, 1 or more")
    return value


def _whole_number(text: str) -> int | None:
    """Return the number; None unless it is whole and has up to twelve digits."""
    return int(text) if re.fullmatch("[0-9]{1,12}", text) else None


def ffmpeg_option(text: str) -> list[str]:
    """``crf=20``: an option of FFmpeg and its value, as FFmpeg takes them."""
    name, _, value = text.removeprefix("-").partition("=")
    if not (name and value):
        raise Refused(text, "is not an option: write NAME=VALUE, such as crf=20")
    return [f"-{name}", value]


def words(text: str) -> list[str]:
    """The words of a command line: ``"ffplay -v error -"``."""
    try:
        found = shlex.split(text)
    except ValueError as error:
        raise Refused(text, f"cannot be read: {error}") from None
    if not found:
        raise Refused(text, "is empty: leave it out, or write some words")
    return found


def token(text: str) -> str:
    """The token that a viewer sends to a server."""
    if not 0 < len(text.encode(errors="surrogateescape")) <= MAX_TOKEN:
        raise ArgumentTypeError(
            f"a token has 1 to {MAX_TOKEN} bytes: write one, or leave out --token"
        )
    return text


def add_token(parser: ArgumentParser) -> None:
    """Add ``--token`` and ``--token-file``: see `tokens`."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--token",
        type=token,
        help="the secret that the server asks for; as other users of this machine can "
        f"see it, prefer --token-file or the variable {TOKEN_VARIABLE}",
    )
    group.add_argument(
        "--token-file",
        type=file,
        metavar="FILE",
        help="a file with the token; for a server also with several, one on each line",
    )


def tokens(options: Namespace) -> list[str] | None:
    """Return the tokens of --token, --token-file or the environment; None without any.

    Raises: OSError, ValueError.
    """
    if options.token is not None:
        return [options.token]
    if options.token_file is not None:
        where, lines = options.token_file, options.token_file.read_text().splitlines()
        found = [line.strip() for line in lines if line.strip()]
    elif (given := os.environ.get(TOKEN_VARIABLE)) is not None:
        where, found = TOKEN_VARIABLE, [given] if given else []
    else:
        return None
    if not found:
        raise ValueError(f"{where} is empty: write a token there, or leave it out")
    return found


# --- files --------------------------------------------------------------------


def file(text: str) -> Path:
    """The path of a file."""
    if not text:
        raise Refused(text, "is not a file: write its path")
    return Path(text)


def output(text: str) -> str:
    """A path or a URL to which FFmpeg can write."""
    if text in ("", "-"):
        raise Refused(text, "cannot hold a film: write a path or URL")
    name, end = os.path.splitext(text)
    if end.lower() in PICTURES and "%" not in text:
        what = f"write a film such as {name}.mp4, or {name}-%03d{end} for all of them"
        raise Refused(text, f"is one picture: {what}")
    return text


def refuse_pictures(output: str) -> None:
    """Raises: FileExistsError: a picture that ``out-%03d.png`` names is there.

    (FFmpeg only looks for a file that is itself called so.)
    """
    path = Path(output.removeprefix("file:"))
    if path.suffix.lower() not in PICTURES:
        return
    pattern = NUMBER.sub(
        lambda number: rf"\d{{{int(number[1] or 1)},}}", re.escape(path.name)
    )
    for found in sorted(path.parent.glob("*")):
        if re.fullmatch(pattern, found.name):
            why = os.strerror(errno.EEXIST)
            raise FileExistsError(errno.EEXIST, why, str(found))


def source(text: str) -> str:
    """A path, a URL or a device that FFmpeg can read; or a source of our own."""
    if text in ("", "-"):
        raise Refused(text, "is not a source: write a file, a URL, screen or demo")
    return text


# --- addresses ----------------------------------------------------------------


class Address(NamedTuple):
    """The place of a server: a host and its port, or the path of a Unix socket."""

    host: str
    port: int | None = None

    def __str__(self) -> str:
        if self.port is None:
            return self.host
        return f"{bracketed(self.host)}:{self.port}"


def port(text: str) -> int:
    """``8000``; ``0`` means any free port."""
    value = _whole_number(text)
    if value is None or value > LAST_PORT:
        what = f"write a number up to {LAST_PORT}, or 0 for any that is free"
        raise Refused(text, f"is not a port: {what}")
    return value


def address(text: str) -> Address:
    """``localhost:8000``, ``[::1]:8000``, or the path of a Unix socket."""
    if url := re.match("([a-z]+)://", text):
        what = "is for browsers" if url[1] in ("http", "https") else "is a URL"
        raise Refused(text, what, "HOST:PORT as serve --tcp shows it")
    host, number = parse_address(text)
    if number is None:
        if host == "localhost" or _is_ip(host):
            raise Refused(text, f"has no port: write {bracketed(host)}:PORT")
        if host and (":" not in host or "/" in host):
            return Address(host)
        what = (
            "write HOST:PORT, such as localhost:8000, or the path of a Unix socket "
            "(with ./ in front if it has a colon)"
        )
        raise Refused(text, f"is not an address: {what}")
    if ":" in host and not text.startswith("["):
        what = "write an IPv6 address in brackets, such as [::1]:8000"
        raise Refused(text, f"has several colons: {what}")
    if not 0 < number <= LAST_PORT:
        raise Refused(text, "has no valid port", f"a port from 1 to {LAST_PORT}")
    return Address(host, number)


def host(text: str) -> str:
    """``127.0.0.1``, ``::1`` or a name, without a port."""
    name = text.removeprefix("[").removesuffix("]")
    if not _is_ip(name) and not re.fullmatch(r"[^\s:/]+", name):
        what = "write a name or address without a port, such as 127.0.0.1"
        raise Refused(text, f"is not a host: {what}")
    return name


def origin(text: str) -> str:
    """``https://tv.example``, without a path."""
    if not re.fullmatch(r"https?://[^\s/]+/?", text):
        what = "write a URL without a path, such as https://films.example.org"
        raise Refused(text, f"is not a page's origin: {what}")
    return text


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


# --- options ------------------------------------------------------------------


def add_picture(parser: ArgumentParser, default: Size, fps: int) -> None:
    """Add ``--size`` and ``--fps``."""
    parser.add_argument(
        "--size", type=size, default=default, metavar="WxH", help="size of the scene"
    )
    parser.add_argument(
        "--fps",
        type=rate,
        default=Fraction(fps),
        metavar="RATE",
        help="frames a second, such as 29.97 or 30000/1001",
    )


def add_film(parser: ArgumentParser) -> None:
    """Add ``--output``, ``--codec`` and ``--overwrite``."""
    parser.add_argument(
        "-o", "--output", type=output, required=True, help="the film: a file or URL"
    )
    parser.add_argument(
        "--codec",
        metavar="NAME",
        help="an encoder of FFmpeg, or auto: one in hardware, if one works here "
        "(default: by the film's name)",
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="replace an existing file"
    )


def add_screen(parser: ArgumentParser) -> None:
    """Add ``--display``, ``--region``, ``--monitor`` and ``--cursor``."""
    parser.add_argument(
        "--display", metavar="NAME", help="the X display, such as :0 (default: DISPLAY)"
    )
    part = parser.add_mutually_exclusive_group()
    part.add_argument(
        "--region", type=region, metavar="WxH+X+Y", help="only a part of the screen"
    )
    part.add_argument(
        "--monitor", metavar="NAME", help="only this monitor, by its name in xrandr"
    )
    parser.add_argument(
        "--cursor", action="store_true", help="include the mouse pointer"
    )


def add_server_tls(parser: ArgumentParser) -> None:
    """Add ``--tls-cert`` and ``--tls-key``."""
    parser.add_argument(
        "--tls-cert",
        type=file,
        metavar="FILE",
        help="a PEM file with the certificate (and its key): HTTPS for --web, TLS for "
        "--tcp",
    )
    parser.add_argument(
        "--tls-key",
        type=file,
        metavar="FILE",
        help="a PEM file with the key, if the certificate's file has none",
    )


def server_tls(options: Namespace) -> ssl.SSLContext | None:
    """Return the context for --tls-cert and --tls-key.

    Raises: OSError, ValueError; the text names the file that is missing or wrong.
    """
    if options.tls_cert is None:
        return None
    import ssl

    certificate: Path = options.tls_cert
    key: Path = options.tls_key or certificate
    _expect_pem(certificate, b"CERTIFICATE", "no certificate (PEM)")
    _expect_pem(key, b"PRIVATE KEY", "no private key (PEM): --tls-key names its file")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key)
    except ssl.SSLError as error:
        reason = (error.reason or "cannot be read").replace("_", " ").lower()
        raise ValueError(f"cannot use {certificate} with {key}: {reason}") from error
    return context


def _expect_pem(path: Path, kind: bytes, otherwise: str) -> None:
    """Raises: OSError or ValueError, with the path in its text."""
    if not re.search(rb"-----BEGIN [A-Z ]*%b-----" % kind, path.read_bytes()):
        raise ValueError(f"{path} holds {otherwise}")


def add_client_tls(parser: ArgumentParser) -> None:
    """Add ``--tls`` and ``--tls-ca``."""
    parser.add_argument(
        "--tls", action="store_true", help="use TLS, and trust the system's authorities"
    )
    parser.add_argument(
        "--tls-ca",
        type=file,
        metavar="FILE",
        help="use TLS, and trust this authority or this certificate (PEM)",
    )


def client_tls(options: Namespace) -> ssl.SSLContext | None:
    """Return the context for --tls and --tls-ca.

    Raises: as `server_tls`.
    """
    if not options.tls and options.tls_ca is None:
        return None
    import ssl

    if options.tls_ca is None:
        return ssl.create_default_context()
    return trust(options.tls_ca)


def trust(path: Path) -> ssl.SSLContext:
    """Return a context that trusts this authority, or this server's own certificate.

    Raises: as `server_tls`.
    """
    import ssl

    _expect_pem(path, b"CERTIFICATE", "no certificate (PEM)")
    try:
        context = ssl.create_default_context(cafile=path)
    except ssl.SSLError as error:
        raise ValueError(f"{path} holds no certificate that can be read") from error
    # The default from Python 3.13 on: the certificate need not be an authority's.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context
