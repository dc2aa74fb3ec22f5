"""Memory lent to the program until it releases it: frames, pictures, records."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias

from aiozerocopy._core import extras

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt
    from typing_extensions import Buffer, Self


class SupportsDLPack(Protocol):
    """A tensor: of PyTorch, JAX and others."""

    def __dlpack__(self, *args: Any, **wanted: Any) -> Any: ...
    def __dlpack_device__(self) -> tuple[Any, Any]: ...


# What is accepted as memory.
AnyBuffer: TypeAlias = "Buffer | SupportsDLPack"


class Lent:
    """Memory, yours until `release`; use it with ``with``.

    It is accepted wherever a buffer is.  (A Python class can be a buffer only from
    Python 3.12 on.)  The memory is free once this is released, and all views, arrays
    and sends of it are gone too.
    """

    __slots__ = ("_view",)
    KIND: ClassVar[str] = "memory"

    def __init__(self, view: memoryview) -> None:
        self._view: memoryview | None = view

    @property
    def view(self) -> memoryview:
        """The bytes.  Every view of them keeps the memory borrowed.

        Raises:
            ValueError: it was released.
        """
        if self._view is None:
            raise ValueError(f"the {self.KIND} was released")
        return self._view

    def __buffer__(self, flags: int) -> memoryview:
        return self.view

    def release(self) -> None:
        """Let go of the memory; may be called twice."""
        self._view = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.release()


class Lease(Lent):
    __slots__ = ("_array",)
    KIND: ClassVar[str] = "frame"

    if TYPE_CHECKING:

        @property
        def shape(self) -> tuple[int, ...]: ...
        @property
        def dtype(self) -> str: ...

    def __init__(self, view: memoryview) -> None:
        super().__init__(view)
        self._array: npt.NDArray[Any] | None = None

    @property
    def array(self) -> npt.NDArray[Any]:
        """The same memory as a NumPy array of its type and shape, without a copy.

        Raises:
            ValueError: it was released.
        """
        view = self.view
        if self._array is None:
            self._array = array_over(view, self.dtype, self.shape)
        return self._array

    def __dlpack__(self, **wanted: Any) -> Any:
        return self.array.__dlpack__(**wanted)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()

    def release(self) -> None:
        self._array = self._view = None


def memory_of(buffer: Any) -> Any:
    """Return the view of what was lent, or the buffer itself."""
    return buffer.view if isinstance(buffer, Lent) else buffer


def buffer_of(memory: Any, *, writable: bool = False) -> Any:
    """Return an object with the buffer protocol: the view of what was lent, an array
    over a tensor (which has DLPack instead), or the memory itself.

    Raises: TypeError: it has neither; others as `tensor_memory`.
    """
    memory = memory_of(memory)
    try:
        with memoryview(memory):
            return memory
    except TypeError:
        if not hasattr(memory, "__dlpack__"):
            raise
        return tensor_memory(memory, writable=writable)


def view_of(memory: Any) -> memoryview:
    """A view of any memory, contiguous or not.  Raises: as `buffer_of`."""
    return memoryview(buffer_of(memory))


_look: Callable[[memoryview], tuple[str, int, tuple[int, ...] | None]] = attrgetter(
    "format", "itemsize", "shape"
)


def look_at(memory: Any) -> tuple[str, int, tuple[int, ...]]:
    """The format, the item's size and the shape of any memory.  Raises: as `buffer_of`.

    (No variable refers to a view of it: a traceback would keep it.)
    """
    code, itemsize, shape = _look(view_of(memory))
    return code, itemsize, shape or ()


def array_over(
    view: memoryview, dtype: str, shape: tuple[int, ...]
) -> npt.NDArray[Any]:
    """A NumPy array over the bytes of a view, aligned or not."""
    with extras.optional("an array", "numpy"):
        import numpy

    return numpy.ndarray(shape, dtype, view)


_HOST = frozenset((1, 3, 11, 13))  # DLPack's numbers of memory that a CPU may read


def tensor_memory(tensor: Any, *, writable: bool = False) -> npt.NDArray[Any]:
    """The memory of a tensor, by DLPack and without a copy; this keeps the tensor.

    Raises:
        BufferError: it is a device's, or NumPy knows no such tensor.
        ModuleNotFoundError: there is no NumPy.
    """
    kind = type(tensor).__name__
    with extras.optional(f"the memory of a {kind}", "numpy"):
        import numpy

    try:
        device, _ = tensor.__dlpack_device__()
        if device in _HOST:
            array = numpy.from_dlpack(tensor)
            if writable and not array.flags.writeable and hasattr(tensor, "__array__"):
                # Before its version 1.0, DLPack did not tell.  Then NumPy says no.
                other = numpy.asarray(tensor)
                if _address(other) == _address(array):
                    return other
            return array
    except Exception as error:
        raise BufferError(f"the memory of this {kind} cannot be had: {error}") from None
    raise BufferError(
        f"this {kind} is in a device's memory: copy it to the host first, by "
        "tensor.cpu(), cupy.asnumpy(array) or jax.device_get(array)"
    )


def _address(array: Any) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
