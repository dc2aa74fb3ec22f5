"""Memory lent to the program until it releases it: frames, pictures, records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from aiozerocopy._core import extras

if TYPE_CHECKING:
    import numpy.typing as npt
    from typing_extensions import Self


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
    """The same, with a type and a shape."""

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

    def release(self) -> None:
        self._array = self._view = None


def memory_of(buffer: Any) -> Any:
    """The view of what was lent, or the buffer itself: what has the buffer protocol."""
    return buffer.view if isinstance(buffer, Lent) else buffer


def array_over(
    view: memoryview, dtype: str, shape: tuple[int, ...]
) -> npt.NDArray[Any]:
    """A NumPy array over the bytes of a view, aligned or not."""
    with extras.optional("an array", "numpy"):
        import numpy

    return numpy.ndarray(shape, dtype, view)
