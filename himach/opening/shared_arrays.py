"""Arrays that ranks of this machine read from the memory of the sending process: `SharedArrays`.

Ranks of other machines get them `by_value()`.
"""

from __future__ import annotations

import contextlib
import math
import os
import weakref
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any

import numpy as np
import numpy.typing as npt

Arrays = Mapping[str, npt.NDArray[Any]]
ALIGNED = 64  # bytes

_by_value = ContextVar("by_value", default=False)


@contextlib.contextmanager
def by_value(enabled: bool = True) -> Iterator[None]:
    """Pickle the arrays themselves within the context, for processes that cannot see this one's memory."""
    token = _by_value.set(enabled)
    try:
        yield
    finally:
        _by_value.reset(token)


class SharedArrays:
    """Arrays by name, written once: pickling puts them into a memory file of this process.

    Other processes of the same user map the same memory read-only through this process's folder in /proc. The file ends
    with this object or with the process, however that ends. Existing maps stay valid until they are released.
    """

    def __init__(self, arrays: Arrays) -> None:
        self._arrays: Arrays | None = arrays
        self._place: tuple[str, dict[str, tuple[str, tuple[int, ...], int]]] | None = None

    @property
    def arrays(self) -> Arrays:
        """The arrays; in another process, mapped on first use."""
        if self._arrays is None:
            assert self._place is not None
            path, layout = self._place
            self._arrays = {name: _map_array(path, *location) for name, location in layout.items()}
        return self._arrays

    def __getstate__(self) -> dict[str, Any]:
        if _by_value.get():
            return {"_arrays": dict(self.arrays), "_place": None}
        if self._place is None:
            assert self._arrays is not None
            self._place = self._put(self._arrays)
        return {"_arrays": None, "_place": self._place}

    def _put(self, arrays: Arrays) -> tuple[str, dict[str, tuple[str, tuple[int, ...], int]]]:
        descriptor = os.memfd_create("himach-arrays")
        weakref.finalize(self, os.close, descriptor)
        layout, position = {}, 0
        with open(descriptor, "wb", closefd=False) as file:
            for name, array in arrays.items():
                file.seek(position)
                file.write(memoryview(np.ascontiguousarray(array)).cast("B") if array.size else b"")
                layout[name] = (array.dtype.str, array.shape, position)
                position = -(-(position + array.nbytes) // ALIGNED) * ALIGNED
        os.ftruncate(descriptor, position)
        return f"/proc/{os.getpid()}/fd/{descriptor}", layout


def _map_array(path: str, dtype: str, shape: tuple[int, ...], offset: int) -> npt.NDArray[Any]:
    if math.prod(shape) == 0:
        return np.empty(shape, dtype)
    return np.memmap(path, dtype=dtype, mode="r", offset=offset, shape=shape).view(np.ndarray)
