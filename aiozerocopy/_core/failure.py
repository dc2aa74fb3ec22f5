"""A failure that is remembered, to be raised again later.

An exception that is kept keeps its traceback, and so the frames that it went through,
with their slots and buffers.  If a frame refers to the object that keeps the exception,
this is a cycle, which only the collector ends.  So an object that must fail again keeps
a `Failure`: the type, the arguments and the attributes of the exception and its causes.
"""

from __future__ import annotations

import contextlib
import types
from typing import Any, Generic, TypeVar

E = TypeVar("E", bound=BaseException)


class Failure(Generic[E]):
    """The contents of an exception; `again` makes a new one, without a traceback."""

    __slots__ = ("_arguments", "_attributes", "_cause", "_kind")

    def __init__(self, error: E) -> None:
        self._kind: type[E] = type(error)
        self._arguments = _kept(error.args)
        self._attributes: dict[str, Any] = {
            name: _kept(value)
            for base in self._kind.__mro__
            for name, known in vars(base).items()
            if isinstance(known, types.MemberDescriptorType)  # (errno, filename, ...)
            and (value := getattr(error, name, None)) is not None
        }
        self._attributes.update((name, _kept(it)) for name, it in vars(error).items())
        cause = error.__cause__
        # (``raise error from error`` is allowed)
        self._cause = None if cause is None or cause is error else Failure(cause)

    def again(self) -> E:
        arguments = _anew(self._arguments)
        try:
            error = self._kind.__new__(self._kind)
        except TypeError:  # a group
            error = self._kind.__new__(self._kind, *arguments)
        error.args = arguments
        if self._cause is not None:
            error.__cause__ = self._cause.again()
        for name, value in self._attributes.items():
            with contextlib.suppress(AttributeError):  # one that cannot be set
                setattr(error, name, _anew(value))
        return error


def _kept(value: Any) -> Any:
    """Return the value with a `Failure` for each exception (a group has several)."""
    if isinstance(value, BaseException):
        return Failure(value)
    return type(value)(map(_kept, value)) if type(value) in (tuple, list) else value


def _anew(value: Any) -> Any:
    if isinstance(value, Failure):
        return value.again()
    return type(value)(map(_anew, value)) if type(value) in (tuple, list) else value
