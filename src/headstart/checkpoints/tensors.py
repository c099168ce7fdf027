"""One tensor of a checkpoint, with its type as the file has it: numpy knows no bfloat16, and a round trip may change no bit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["DTYPES", "Tensor"]

# safetensors' name → how numpy holds it; bfloat16 is held as the upper half of a float32.
DTYPES: Final = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1",
    "U8": "u1", "BOOL": "?",
}  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """`array` holds the bits; `dtype` says what they mean (one of `DTYPES`)."""

    array: NDArray[Any]
    dtype: str

    def __post_init__(self) -> None:
        assert self.array.dtype == np.dtype(DTYPES[self.dtype]), f"{self.dtype} in {self.array.dtype}"

    @staticmethod
    def of(array: NDArray[Any]) -> Tensor:
        """A tensor of a type numpy knows."""
        names = {np.dtype(form): name for name, form in DTYPES.items() if name != "BF16"}
        return Tensor(np.ascontiguousarray(array), names[array.dtype])

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes."""
        return self.array.shape

    def floats(self) -> NDArray[np.float32]:
        """The values in float32; of bfloat16 and float16 nothing is lost."""
        if self.dtype == "BF16":
            return (self.array.astype(np.uint32) << 16).view(np.float32)
        return self.array.astype(np.float32)

    def same_as(self, other: Tensor) -> bool:
        """Whether type, shape and every bit are equal."""
        return self.dtype == other.dtype and self.shape == other.shape and self.array.tobytes() == other.array.tobytes()
