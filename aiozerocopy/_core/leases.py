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

    Every function of this package that accepts a buffer accepts it.  (For others it is
    a buffer from Python 3.12 on.)  The memory is free once this is released, and all
    views, arrays and sends of it are gone, too.
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
        """The memory as a NumPy array of its type and shape, without a copy.

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
    """Return the view if the memory was lent, or else the buffer itself."""
    return buffer.view if isinstance(buffer, Lent) else buffer


def buffer_of(memory: Any, *, writable: bool = False) -> Any:
    """Return an object with the buffer protocol: the view of lent memory, an array
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
    """Return a view of any memory, contiguous or not.  Raises: as `buffer_of`."""
    return memoryview(buffer_of(memory))


_look: Callable[[memoryview], tuple[str, int, tuple[int, ...] | None]] = attrgetter(
    "format", "itemsize", "shape"
)


def look_at(memory: Any) -> tuple[str, int, tuple[int, ...]]:
    """Return the format, item size and shape of any memory.  Raises: as `buffer_of`.

    (No variable refers to the view, which a traceback would keep.)
    """
    code, itemsize, shape = _look(view_of(memory))
    return code, itemsize, shape or ()


def array_over(
    view: memoryview, dtype: Any, shape: tuple[int, ...]
) -> npt.NDArray[Any]:
    """Return a NumPy array over the bytes of a view, aligned or not.

    Raises:
        ValueError: a dtype of Python objects; it is not of that type and shape.
    """
    with extras.optional("an array", "numpy"):
        import numpy

    kind = numpy.dtype(dtype)
    if kind.hasobject:  # (NumPy would take the bytes for pointers)
        raise ValueError(f"the bytes of a buffer cannot be an array of {kind}")
    return numpy.ndarray(shape, kind, view)


_HOST = frozenset((1, 3, 11, 13))  # DLPack's numbers for memory that a CPU may read


def tensor_memory(tensor: Any, *, writable: bool = False) -> npt.NDArray[Any]:
    """Return the memory of a tensor, by DLPack, without a copy.  It keeps the tensor.

    Raises:
        BufferError: the memory is a device's, or NumPy cannot use the tensor.
        ModuleNotFoundError: NumPy is missing.
    """
    kind = type(tensor).__name__
    with extras.optional(f"the memory of a {kind}", "numpy"):
        import numpy

    try:
        device, _ = tensor.__dlpack_device__()
        if device in _HOST:
            array = numpy.from_dlpack(tensor)
            if writable and not array.flags.writeable and hasattr(tensor, "__array__"):
                # (DLPack before 1.0 cannot say that memory is writable)
                other = numpy.asarray(tensor)
                if _address(other) == _address(array):
                    return other
            return array
    except Exception as error:
        raise BufferError(f"the memory of this {kind} is not usable: {error}") from None
    raise BufferError(
        f"this {kind} is in a device's memory: copy it to the host first, by "
        "tensor.cpu(), cupy.asnumpy(array) or jax.device_get(array)"
    )


def _address(array: Any) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
