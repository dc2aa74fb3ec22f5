"""Tensors: arrays that give their memory by DLPack alone, as those of torch do."""

from typing import Any

CUDA = 2  # DLPack's number


class Tensor:
    """An array that is no buffer."""

    def __init__(self, array: Any, device: int = 1) -> None:
        self.array = array
        self._device = device

    def __dlpack__(self, **wanted: Any) -> Any:
        return self.array.__dlpack__(**wanted)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device, 0


class OldTensor(Tensor):
    """One of DLPack before version 1.0, which did not tell what may be written."""

    def __dlpack__(self, **wanted: Any) -> Any:
        if wanted.keys() - {"stream"}:
            raise TypeError("unexpected keyword argument")
        return self.array.__dlpack__(**wanted)


class OldTensorWithArray(OldTensor):
    """NumPy can ask it for an array, too."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.array


class TensorThatCopies(OldTensorWithArray):
    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.array.copy()
