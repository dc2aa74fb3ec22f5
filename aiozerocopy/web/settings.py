"""What each setting of a page may be, checked when the page is made."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any

from aiozerocopy._net.admission import kind_of
from aiozerocopy._net.connecting import LAST_PORT
from aiozerocopy.broadcast import Broadcast

if TYPE_CHECKING:
    from collections.abc import Callable

MODES = ("h264", "mjpeg", "raw")  # those that are offered by default
KNOWN_MODES = (*MODES, "av1")
PATIENCE = 15.0  # seconds that sending a frame to a viewer may take
VIEWERS = 256

_NONE = type(None)
_MANY = (list, tuple, set, frozenset)


def _is_positive(value: float) -> bool:
    return value > 0


def _are_texts(value: Any) -> bool:
    return all(isinstance(each, str) and each for each in value)


def _are_modes(value: Any) -> bool:
    return bool(value) and all(each in KNOWN_MODES for each in value)


def _are_origins(value: Any) -> bool:
    return _are_texts(value) and all("://" in each for each in value)


# For each setting: its types, which values are right (None: all), and what an error
# says is expected.
CHECKS: dict[str, tuple[tuple[type, ...], Callable[[Any], bool] | None, str]] = {
    "hub": ((Broadcast,), None, "a Broadcast"),
    "host": ((str, _NONE), None, "a name or an address, or None for all addresses"),
    "port": ((int,), range(LAST_PORT + 1).__contains__, f"from 0 to {LAST_PORT}"),
    "token": ((str, list, tuple, _NONE), _are_texts, "a string or a list of strings"),
    "title": ((str,), None, "a string"),
    "modes": (_MANY, _are_modes, f"some of {', '.join(KNOWN_MODES)}"),
    "hardware": ((bool,), None, "True or False"),
    "hosts": (_MANY, _are_texts, 'a list of names, such as ["tv.example"]'),
    "origins": (_MANY, _are_origins, 'a list such as ["https://tv.example"]'),
    "quality": ((int,), range(1, 101).__contains__, "a whole number, 1 to 100"),
    "max_viewers": ((int,), _is_positive, "a whole number, 1 or more"),
    "max_per_address": ((int, _NONE), _is_positive, "a whole number, 1 or more"),
    "patience": ((int, float), _is_positive, "a number of seconds above 0"),
    "ssl_context": ((ssl.SSLContext, _NONE), None, "an ssl.SSLContext"),
}


def check(**settings: object) -> None:
    """Raises: TypeError or ValueError, which names the setting."""
    for name, value in settings.items():
        types, is_right, expected = CHECKS[name]
        is_of_type = isinstance(value, types) and isinstance(value, bool) is (
            bool in types
        )
        if not is_of_type or not (value is None or not is_right or is_right(value)):
            kind = ValueError if is_of_type else TypeError
            given = kind_of(value) if name == "token" else repr(value)  # (secret)
            raise kind(f"{name}= must be {expected}, not {given}")
