"""The functions of C's headers, as Python calls them: the only file that sees cffi."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    from collections.abc import Callable

try:
    import aiozerocopy._azc as _azc
except ModuleNotFoundError as error:
    if error.name != "aiozerocopy._azc":
        raise  # it is there, but it imports a module that is missing
    raise ImportError(
        f"The C part of aiozerocopy is not built in {Path(__file__).parents[2]}: "
        "run `pip install -e .` there, or start Python from another folder to use "
        "an installed aiozerocopy.",
        name="aiozerocopy",  # (`python -m aiozerocopy` then prints it in one line)
    ) from error


class _Lib(Protocol):
    """Functions that return an int, for the type checker.

    C declares their arguments, and cffi checks each call.
    """

    def azc_pool_slot(self, pool: int, slot: int) -> Any: ...
    def __getattr__(self, name: str) -> Callable[..., int]: ...


class Counters(Protocol):
    """A struct in C whose fields are integers."""

    def __getattr__(self, name: str) -> int: ...


ffi: Any = _azc.ffi
lib: _Lib = cast("_Lib", _azc.lib)
constants: Counters = cast("Counters", _azc.lib)

for _name in ffi.list_types()[1]:
    # (cffi completes a struct at its first use: here, before threads could race to it)
    _ = ffi.typeof(f"struct {_name}").fields

PORTABLE: bool = bool(constants.AZC_IS_PORTABLE)

# The results of functions that send, besides 0, 1 and errors.
IN_PROGRESS = -errno.EINPROGRESS
BUSY = -errno.EBUSY

# (used directly: a Python function in between would slow `ReceiveStream._receive` down)
receive_now = lib.azc_recv_now


def made_by_c(name: str, *arguments: object) -> Any:
    """Call a C function with the GIL, and return the Python object that it makes."""
    address = ffi.cast("uintptr_t", ffi.addressof(_azc.lib, name))
    kinds = [ctypes.py_object] * (1 + len(arguments))
    return ctypes.PYFUNCTYPE(*kinds)(int(address))(*arguments)


def check(result: int) -> int:
    """Return the result.

    Raises:
        OSError: it is an error (-errno).
    """
    if result < 0:
        raise OSError(-result, os.strerror(-result))
    return result
