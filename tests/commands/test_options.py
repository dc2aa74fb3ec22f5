"""Texts on the command line, and messages about invalid ones."""

from argparse import ArgumentTypeError
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest

from aiozerocopy.commands import options
from aiozerocopy.commands.options import Address

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
    (options.host, "[::1]", "::1"),
    (options.words, "ffplay -i 'a b'", ["ffplay", "-i", "a b"]),
    (options.size, "63x1", (63, 1)),
    (options.output, "a-%03d.png", "a-%03d.png"),
    (options.address, "localhost:8000", Address("localhost", 8000)),
    (options.address, "10.0.0.1:1", Address("10.0.0.1", 1)),
    (options.address, "[::1]:8000", Address("::1", 8000)),
    (options.address, "frames.sock", Address("frames.sock")),
    (options.address, "/run/frames:80", Address("/run/frames:80")),
    (options.address, "./host:http", Address("./host:http")),
]

# Invalid texts, and a part of each message.
BAD: list[tuple[Callable[[str], Any], str, str]] = [
    (options.size, "|64|x64|axb|64x36x1|-2x4|0x0|64x0", "write WIDTHxHEIGHT, such as"),
    (options.size, "16385x2|99998x99998|1000000x2", "is too large: 16384 at most"),
    (options.region, "|64x36|0x0+0+0|64x36+0", "write WIDTHxHEIGHT+X+Y, such as"),
    (options.rate, "|0|-1|nan|inf|fast|1/0|1/|-1/2|1e300|1e-9", "30, 29.97 or 30000"),
    (options.rate, f"1e999999999|{10**400}/1", "is not a frame rate"),
    (
        options.seconds,
        "|0|-1|nan|1/2|long|inf|1e10",
        "write seconds, such as 10 or 0.5",
    ),
    (options.count, "|0|-1|1.5|nan|many|9999999999999", "a whole number, 1 or more"),
    (options.port, "|-1|65536|http|80.0", "write a number up to 65535"),
    (options.address, "|host:|host:http|:80|:", "HOST:PORT, such as localhost:8000"),
    (options.address, "localhost", "write localhost:PORT"),
    (options.address, "127.0.0.1", "write 127.0.0.1:PORT"),
    (options.address, "http://localhost:8000/", "write HOST:PORT"),
    (options.address, "::1|::1:8000", "write an IPv6 address in brackets"),
    (options.address, "host:0|host:65536", "write a port from 1 to 65535"),
    (options.host, "|a:80|a b|a/b", "without a port"),
    (options.output, "|-", "write a path or URL"),
    (options.output, "a.png", "write a film such as a.mp4, or a-%03d.png"),
    (options.output, "a.JPG", "write a film such as a.mp4, or a-%03d.JPG"),
    (options.source, "|-", "write a file, a URL, screen or demo"),
    (options.file, "", "write its path"),
    (options.words, "", "write some words"),
    (options.words, "'", "No closing quotation"),
]


def test_good() -> None:
    for parse, text, expected in GOOD:
        assert parse(text) == expected, text
        assert parse is not options.address or str(parse(text)) == text


def test_bad() -> None:
    for parse, texts, says in BAD:
        for text in texts.split("|"):
            with pytest.raises(ArgumentTypeError) as caught:
                parse(text)
            assert str(caught.value).startswith(repr(text))
            assert says in str(caught.value)


@pytest.mark.parametrize("text", ["", "x" * 1025])
def test_a_token_that_is_none_is_not_repeated(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match=r"^a token has 1 to 1024 bytes"):
        options.token(text)
