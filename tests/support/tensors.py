"""Tensors: arrays that export their memory by DLPack only, like torch's."""

from typing import Any

CUDA = 2  # DLPack's number


class Tensor:
    """An array that is not a buffer."""

    def __init__(self, array: Any, device: int = 1) -> None:
        self.array = array
        self._device = device

    def __dlpack__(self, **wanted: Any) -> Any:
        return self.array.__dlpack__(**wanted)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device, 0


class OldTensor(Tensor):
    """A tensor of DLPack before 1.0, which did not say whether memory is writable."""

    def __dlpack__(self, **wanted: Any) -> Any:
        if wanted.keys() - {"stream"}:
            raise TypeError("unexpected keyword argument")
        return self.array.__dlpack__(**wanted)


class OldTensorWithArray(OldTensor):
    """An old tensor that NumPy can also ask for an array."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.array


class TensorThatCopies(OldTensorWithArray):
    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.array.copy()
