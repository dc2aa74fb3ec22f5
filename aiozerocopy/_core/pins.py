"""A caller's buffer as memory that C may use, and copies between such memory.

A pin is a cffi object that holds the buffer's export: until it is released or deleted,
the memory stays where it is, and a bytearray cannot be resized.
"""

from __future__ import annotations

import array
import errno
import mmap
from typing import TYPE_CHECKING, Any

from aiozerocopy._core.binding import ffi, lib, made_by_c
from aiozerocopy._core.errors import error_of
from aiozerocopy._core.leases import memory_of, tensor_memory

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiozerocopy._core.leases import AnyBuffer

_STRIDED = (
    "the memory is not C-contiguous (a strided, transposed or Fortran-ordered view): "
)
_SEND_A_COPY = _STRIDED + "send numpy.ascontiguousarray(...) or another contiguous copy"
_RECEIVE_ELSEWHERE = _STRIDED + "receive into contiguous memory, then copy it there"

_from_buffer = ffi.from_buffer
_allocate = ffi.new_allocator(should_clear_after_alloc=False)


# The memory of these types can always be read.  Other memory may be that of a truncated
# file: the kernel returns EFAULT where a copy in user space would kill the process.
_STEADY = (bytes, bytearray, array.array)
# csrc/python/messages.h describes these.
steady_total: Callable[[object], int]
send_at_once: Callable[..., Any]
receive_at_once: Callable[..., Any]
unpin: Callable[[list[Any]], None]
steady_total, send_at_once, receive_at_once, unpin = made_by_c(
    "azc_messages", _STEADY, ffi.release
)

# These types hold nothing but bytes.
_PLAIN = frozenset((bytes, bytearray, mmap.mmap))


def _refuse_objects(data: object) -> None:
    """Refuse an array of Python objects, which consists of addresses."""
    if type(data) is memoryview:
        holds_objects = data.itemsize > 1 and "O" in data.format
    else:
        holds_objects = getattr(getattr(data, "dtype", None), "hasobject", False)
    if holds_objects:
        raise TypeError("an array of Python objects has no bytes of its own to move")


def pin(data: AnyBuffer) -> Any:
    """Borrow the memory of ``data`` until the result is released.

    Raises:
        TypeError: not a bytes-like object, or one that holds Python objects.
        BufferError: its memory is not C-contiguous.
        ValueError: a released memoryview.
    """
    is_bytes = type(data) is memoryview and data.itemsize == 1
    if not is_bytes and type(data) not in _PLAIN:
        data = memory_of(data)
        _refuse_objects(data)
    try:
        return _from_buffer(data)
    except (TypeError, ValueError, BufferError) as error:
        if _is_tensor(data, error):
            return pin(tensor_memory(data))
        raise _refusal(data, error, _SEND_A_COPY) from None


def pin_writable(data: AnyBuffer) -> Any:
    """Borrow memory to receive into, until the result is released.

    Raises: as `pin`; BufferError for read-only memory, too.
    """
    if type(data) is not bytearray:
        data = memory_of(data)
        _refuse_objects(data)
    try:
        return _from_buffer(data, require_writable=True)
    except (TypeError, ValueError, BufferError) as error:
        if _is_tensor(data, error):
            return pin_writable(tensor_memory(data, writable=True))
        raise _refusal(data, error, _RECEIVE_ELSEWHERE) from None


class Pins(tuple[Any, ...]):
    """Several pins, which are released when nobody holds them any more.

    If they are garbage in a cycle, they are released before the collector clears the
    memory that they pin.  It clears a memoryview even if that is exported, and then
    Python may crash (its issue 77894; fixed in 3.12.7).
    """

    __slots__ = ()

    # (a default argument is still there at interpreter exit, when globals are gone)
    def release(self, release: Callable[[Any], object] = ffi.release) -> None:
        """Release the pins now; may be called again after an interruption."""
        for one in self:
            release(one)

    __del__ = release


def _is_tensor(data: object, error: Exception) -> bool:
    """Return whether this is no buffer (a strided array is one), but has DLPack."""
    return isinstance(error, TypeError) and hasattr(data, "__dlpack__")


def _refusal(data: object, error: Exception, strided: str) -> Exception:
    """Return an error that says what to do about a buffer that cffi refused."""
    if "contiguous" in str(error):
        return BufferError(strided)
    if "read-only" in str(error) or "writable" in str(error):  # NumPy: a ValueError
        return BufferError("the memory is read-only: nothing can be received there")
    if not isinstance(error, TypeError):
        return error
    hint = ""
    if isinstance(data, str):
        hint = " (encode it first)"
    elif isinstance(data, int) and strided is _RECEIVE_ELSEWHERE:
        hint = f" (for that many bytes, give bytearray({data}))"
    elif isinstance(data, (list, tuple)):
        hint = " (for several buffers write *buffers)"
    kind = type(data).__name__
    return TypeError(f"a bytes-like object is required, not {kind!r}{hint}")


def bytes_of(data: AnyBuffer, borrow: Callable[[AnyBuffer], Any] = pin) -> memoryview:
    """Borrow the bytes of any buffer, until the view and its slices are released.

    Raises: as `pin`, or `pin_writable`.
    """
    if type(data) is bytearray or (type(data) is bytes and borrow is pin):
        return memoryview(data)
    return memoryview(ffi.buffer(borrow(data)))


def nbytes(data: AnyBuffer) -> int:
    """Return the bytes of a bytes-like object; ``len`` would count rows or items."""
    if type(data) is bytes or type(data) is bytearray:
        return len(data)
    if type(data) is memoryview and data.itemsize == 1 and data.c_contiguous:
        return data.nbytes
    return len(pin(data))  # memoryview would refuse an array of datetime64


# ---- copies ---------------------------------------------------------------------


def scratch(n: int) -> Any:
    """Return new memory to receive into; it is not cleared."""
    return _allocate("char[]", n)


def content(view: Any, n: int) -> bytes:
    """Return the first n bytes of a pin or of scratch memory."""
    return bytes(ffi.buffer(view, n))


def fill(view: Any, data: memoryview) -> None:
    """Copy received bytes into a pin.

    Raises:
        BufferError: its memory cannot be written.
    """
    if lib.azc_copy(view, ffi.from_buffer(data), len(data)) < 0:
        raise error_of(-errno.EFAULT, broken=False, received=True)


def copy_into(target: AnyBuffer, source: AnyBuffer) -> None:
    """Copy the bytes of any contiguous buffer into another of that size or more.

    Raises: as `pin` and `pin_writable`.
    """
    with pin(source) as data, pin_writable(target) as memory:
        ffi.memmove(memory, data, len(data))


def overlap(one: AnyBuffer, other: AnyBuffer) -> bool:
    """Return whether the two have a byte in common.

    Raises: as `pin`.
    """
    with pin(one) as first, pin(other) as second:
        return bool(first < second + len(second) and second < first + len(first))
