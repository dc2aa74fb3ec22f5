"""What can be written on the command line, and what is said where it cannot."""

from __future__ import annotations

from argparse import ArgumentTypeError
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pytest

from aiozerocopy.commands import options
from aiozerocopy.commands.options import Address

if TYPE_CHECKING:
    from collections.abc import Callable

GOOD: list[tuple[Callable[[str], Any], str, Any]] = [
    (options.size, "1280x720", (1280, 720)),
    (options.size, "2x2", (2, 2)),
    (options.rate, "30", 30),
    (options.rate, "29.97", Fraction(2997, 100)),
    (options.rate, "30000/1001", Fraction(30000, 1001)),
    (options.seconds, "0.5", 0.5),
    (options.seconds, "1e3", 1000.0),
    (options.count, "1", 1),
    (options.count, "999999999999", 999999999999),
    (options.port, "0", 0),
    (options.port, "65535", 65535),
    (options.address, "localhost:8000", Address("localhost", 8000)),
    (options.address, "10.0.0.1:1", Address("10.0.0.1", 1)),
    (options.address, "[::1]:8000", Address("::1", 8000)),
    (options.address, "frames.sock", Address("frames.sock")),
    (options.address, "/run/frames:80", Address("/run/frames:80")),
    (options.address, "./host:http", Address("./host:http")),
]

BAD: list[tuple[Callable[[str], Any], str, str]] = [
    *(
        (options.size, text, "write WIDTHxHEIGHT, such as 1280x720")
        for text in ("", "64", "x64", "64x", "axb", "64x36x1", "-2x4", "123456x2")
    ),
    *(
        (options.size, text, "write an even width and height, 2 or more")
        for text in ("0x0", "63x36", "64x35", "00x2")
    ),
    *(
        (options.rate, text, "write one such as 30, 29.97 or 30000/1001")
        for text in ("", "0", "-1", "nan", "inf", "fast", "1/0", "1/", "-1/2")
    ),
    (options.rate, "1e999999999", "is not a positive number"),
    (options.rate, f"{10**400}/1", "is not a positive number"),
    *(
        (options.seconds, text, "write seconds, such as 10 or 0.5")
        for text in ("", "0", "-1", "nan", "inf", "1/2", "long")
    ),
    *(
        (options.count, text, "write a whole number, 1 or more")
        for text in ("", "0", "-1", "1.5", "many", "9" * 13)
    ),
    *(
        (options.port, text, "write a number up to 65535")
        for text in ("", "-1", "65536", "http", "80.0")
    ),
    *(
        (options.address, text, "write HOST:PORT, such as localhost:8000")
        for text in ("", "host:", "host:http", ":80", ":")
    ),
    *(
        (options.address, text, "write an IPv6 address in brackets")
        for text in ("::1", "::1:8000")
    ),
    *(
        (options.address, text, "write one from 1 to 65535 after the colon")
        for text in ("host:0", "host:65536")
    ),
]


@pytest.mark.parametrize(("parse", "text", "expected"), GOOD)
def test_good(parse: Callable[[str], Any], text: str, expected: Any) -> None:
    assert parse(text) == expected


@pytest.mark.parametrize(("parse", "text", "says"), BAD)
def test_bad(parse: Callable[[str], Any], text: str, says: str) -> None:
    with pytest.raises(ArgumentTypeError) as caught:
        parse(text)
    assert str(caught.value).startswith(repr(text))
    assert says in str(caught.value)


@pytest.mark.parametrize("text", ["localhost:8000", "[::1]:8000", "/run/frames:80"])
def test_an_address_reads_as_it_is_written(text: str) -> None:
    assert str(options.address(text)) == text
