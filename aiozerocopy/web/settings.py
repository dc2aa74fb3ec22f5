"""What may be said of a page, looked at where it is said."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any

from aiozerocopy.broadcast import Broadcast

if TYPE_CHECKING:
    from collections.abc import Callable

_NOTHING = type(None)
_MANY = (list, tuple, set, frozenset)
_COUNT = ((int,), lambda value: value > 0, "a whole number, 1 or more")


def _any(_value: object) -> bool:
    return True


def _is_share(value: Any) -> bool:
    return value is None or value > 0


def _are_texts(value: Any) -> bool:
    return all(isinstance(each, str) and each for each in value)


def _are_origins(value: Any) -> bool:
    return _are_texts(value) and all("://" in each for each in value)


# Of each: its types, which of their values, and what an error says of both.
CHECKS: dict[str, tuple[tuple[type, ...], Callable[[Any], bool], str]] = {
    "hub": ((Broadcast,), _any, "a Broadcast"),
    "token": ((str, list, tuple, _NOTHING), _any, "a text or a list of texts"),
    "title": ((str,), _any, "a text"),
    "modes": (_MANY, _are_texts, 'a list of texts, such as ["raw"]'),
    "hosts": (_MANY, _are_texts, 'a list of names, such as ["tv.example"]'),
    "origins": (_MANY, _are_origins, 'a list such as ["https://tv.example"]'),
    "quality": ((int,), lambda value: 1 <= value <= 100, "a whole number, 1 to 100"),
    "connections": _COUNT,
    "max_viewers": _COUNT,
    "max_per_address": ((int, _NOTHING), _is_share, "a whole number, 1 or more"),
    "patience": ((int, float), lambda value: value > 0, "seconds, more than 0"),
    "ssl_context": ((ssl.SSLContext, _NOTHING), _any, "an ssl.SSLContext"),
}


def check(**settings: object) -> None:
    """Raises: TypeError or ValueError, which names the setting."""
    for name, value in settings.items():
        types, is_right, expected = CHECKS[name]
        is_of_type = isinstance(value, types) and not isinstance(value, bool)
        if not is_of_type or not is_right(value):
            kind = ValueError if is_of_type else TypeError
            given = type(value).__name__ if name == "token" else repr(value)  # (secret)
            raise kind(f"{name}= must be {expected}, not {given}")
