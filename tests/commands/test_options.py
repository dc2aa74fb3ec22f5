"""What can be written on the command line, and what is said where it cannot."""

from argparse import ArgumentTypeError
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
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
    (options.film, "a.MP4", Path("a.MP4")),
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
        for text in (
            "",
            "64",
            "x64",
            "axb",
            "nanxnan",
            "64x36x1",
            "-2x4",
            "0x0",
            "64x0",
        )
    ),
    *(
        (options.size, text, "is too large: 16384 at most")
        for text in ("16385x2", "99998x99998", "1000000x2")
    ),
    *(
        (options.rate, text, "write one such as 30, 29.97 or 30000/1001")
        for text in ("", "0", "-1", "nan", "inf", "fast", "1/0", "1/", "-1/2")
    ),
    (options.rate, "1e999999999", "is not a positive number"),
    (options.rate, f"{10**400}/1", "is not a positive number"),
    *(
        (options.seconds, text, "write seconds, such as 10 or 0.5")
        for text in ("", "0", "-1", "nan", "1/2", "long")
    ),
    *((options.seconds, text, "too long") for text in ("inf", "1e10")),
    *((options.rate, text, "write one such as 30") for text in ("1e300", "1e-9")),
    *(
        (options.count, text, "write a whole number, 1 or more")
        for text in ("", "0", "-1", "1.5", "nan", "inf", "many", "9" * 13)
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
        (options.address, text, f"write {text}:PORT")
        for text in ("localhost", "127.0.0.1")
    ),
    (options.address, "http://localhost:8000/", "write HOST:PORT"),
    *((options.host, text, "without a port") for text in ("", "a:80", "a b", "a/b")),
    *((options.film, text, "write a name such as") for text in ("", "-", "film.png")),
    *((options.output, text, "write a path or URL") for text in ("", "-")),
    *(
        (options.output, f"a{end}", f"write a film such as a.mp4, or a-%03d{end}")
        for end in (".png", ".JPG", ".tiff")
    ),
    *((options.source, text, "write a file, a URL or demo") for text in ("", "-")),
    (options.file, "", "write its path"),
    (options.words, "", "write some words"),
    (options.words, "'", "No closing quotation"),
    *(
        (options.address, text, "write an IPv6 address in brackets")
        for text in ("::1", "::1:8000")
    ),
    *(
        (options.address, text, "write one from 1 to 65535 after the colon")
        for text in ("host:0", "host:65536")
    ),
]


def test_good() -> None:
    for parse, text, expected in GOOD:
        assert parse(text) == expected, text


def test_bad() -> None:
    for parse, text, says in BAD:
        with pytest.raises(ArgumentTypeError) as caught:
            parse(text)
        assert str(caught.value).startswith(repr(text))
        assert says in str(caught.value)


@pytest.mark.parametrize("text", ["", "x" * 1025])
def test_a_token_that_is_none_is_not_repeated(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match=r"^a token has 1 to 1024 bytes"):
        options.token(text)


@pytest.mark.parametrize("text", ["localhost:8000", "[::1]:8000", "/run/frames:80"])
def test_an_address_reads_as_it_is_written(text: str) -> None:
    assert str(options.address(text)) == text
