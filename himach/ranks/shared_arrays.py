"""Arrays that ranks of a node read from the memory of one of them: `SharedArrays`, and `SharedObject`, made of some.

Ranks of other machines get them `by_value()`.
"""

import contextlib
import mmap
import os
import pickle
import weakref
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from himach.ranks.collective import run_collectively
from himach.ranks.communicator import World

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


class _Place(NamedTuple):
    """A memory file of a process, and the dtype, shape and position of each array in it."""

    path: str
    layout: dict[str, tuple[str, tuple[int, ...], int]]


class SharedArrays:
    """Arrays by name, written once: pickling puts them into a memory file of this process.

    Other processes of the same user map the same memory read-only through this process's folder in /proc. The file ends
    with this object or with the process, however that ends. Existing maps stay valid until they are released.
    """

    def __init__(self, arrays: Arrays) -> None:
        self._arrays: Arrays | None = arrays
        self._place: _Place | None = None
        self._file: int | None = None  # its descriptor

    @property
    def arrays(self) -> Arrays:
        """The arrays; in another process, mapped on first use."""
        if self._arrays is None:
            self._arrays = self._map(mmap.ACCESS_READ)
        return self._arrays

    def copies(self) -> Arrays:
        """Return copies of the arrays, which take memory where they are written."""
        if self._place is None:
            return {name: array.copy() for name, array in self.arrays.items()}
        return self._map(mmap.ACCESS_COPY)

    def __getstate__(self) -> dict[str, Any]:
        if _by_value.get():
            return {"_arrays": dict(self.arrays), "_place": None, "_file": None}
        if self._place is None:
            self._place, self._arrays = self._put(self.arrays), None
        return {"_arrays": None, "_place": self._place, "_file": None}

    def _put(self, arrays: Arrays) -> _Place:
        self._file = os.memfd_create("himach-arrays")
        weakref.finalize(self, os.close, self._file)
        layout, position = {}, 0
        with open(self._file, "wb", closefd=False) as file:
            for name, array in arrays.items():
                file.seek(position)
                file.write(memoryview(np.ascontiguousarray(array)).cast("B") if array.size else b"")
                layout[name] = (array.dtype.str, array.shape, position)
                position = -(-(position + array.nbytes) // ALIGNED) * ALIGNED
        os.ftruncate(self._file, max(1, position))
        return _Place(f"/proc/{os.getpid()}/fd/{self._file}", layout)

    def _map(self, access: int) -> Arrays:
        assert self._place is not None
        if self._file is None:
            self._file = os.open(self._place.path, os.O_RDONLY | os.O_CLOEXEC)
            weakref.finalize(self, os.close, self._file)
        memory = mmap.mmap(self._file, 0, access=access)
        places = self._place.layout.items()
        return {name: np.ndarray(shape, dtype, memory, offset) for name, (dtype, shape, offset) in places}


class SharedObject:
    """An object whose arrays lie once in a node's memory: each copy maps them, and what it writes is its own."""

    def __init__(self, value: Any) -> None:
        buffers: list[pickle.PickleBuffer] = []
        content = pickle.dumps(value, pickle.HIGHEST_PROTOCOL, buffer_callback=buffers.append)
        contents: list[Any] = [content, *(buffer.raw() for buffer in buffers)]
        arrays = [np.frombuffer(part, np.uint8) for part in contents]
        self.parts = SharedArrays({str(i): array for i, array in enumerate(arrays)})

    def copy(self) -> Any:
        """Return a copy of the object."""
        content, *buffers = self.parts.copies().values()
        return pickle.loads(content, buffers=buffers)


def share_object(world: World, shared: SharedObject | None) -> SharedObject:
    """Return the first rank's object on all ranks; its arrays go once to each node (collective)."""
    root, leaders = world.comm.bcast(world.node_index), world.leaders
    if leaders is not None and leaders.size > 1:
        with by_value():
            shared = leaders.bcast(shared, root=root)
    if world.node.size == 1:
        return cast(SharedObject, shared)
    mapped = world.node.bcast(shared)
    run_collectively(world.node, lambda: mapped.parts.arrays)  # opens the memory file while its process waits
    return cast(SharedObject, shared if world.node.rank == 0 else mapped)
