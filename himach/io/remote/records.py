"""Where a NetCDF file has what of its frames: `Records`, by which no more of one elsewhere is read than needed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from himach.io.remote.mirror import Mirror

__all__ = ["Records", "records_of"]

HEAD_BYTES = 1 << 16  # in which the header of a trajectory lies
VECTORS = ("coordinates", "velocities", "forces")
VECTOR_BYTES = 12


class Part(NamedTuple):
    """A variable's bytes in a record: where they begin, how many they are, and whether they are of atoms."""

    begin: int
    n_bytes: int
    of_atoms: bool


class Records(NamedTuple):
    """Where a file's records are: of `size` bytes, the first at byte `begin`; `time` is the part that says when."""

    begin: int
    size: int
    n_records: int
    parts: tuple[Part, ...]
    time: Part | None

    def places(self, index: int, needed: int | None = None) -> Iterator[tuple[int, int]]:
        """Yield the stretches of a frame: all of it, or of atoms so many from the first on."""
        start = self.begin + self.size * index
        for part in self.parts:
            some = needed is not None and part.of_atoms
            n_bytes = min(part.n_bytes, VECTOR_BYTES * (needed or 0)) if some else part.n_bytes
            yield start + part.begin, start + part.begin + n_bytes

    def left(self, needed: int | None) -> int:
        """Return how many bytes of a frame are not asked for then."""
        if needed is None:
            return 0
        return sum(max(0, part.n_bytes - VECTOR_BYTES * needed) for part in self.parts if part.of_atoms)

    def times(self) -> Iterator[tuple[int, int]]:
        """Yield the stretches that have the times of all frames."""
        if self.time is not None:
            for index in range(self.n_records):
                start = self.begin + self.size * index + self.time.begin
                yield start, start + self.time.n_bytes


def records_of(mirror: Mirror) -> Records | None:
    """Return where the records of a NetCDF file are; None if it is none, or has another form."""
    from scipy.io import netcdf_file

    mirror.ensure(0, HEAD_BYTES)
    try:
        file = netcdf_file(mirror.path, mmap=True)
    except Exception:  # whoever reads the whole of it tells
        return None
    variables = {name: one for name, one in file.variables.items() if one.isrec}
    if file._recs <= 0 or not variables:
        return None
    places = {name: one.data.__array_interface__["data"][0] for name, one in variables.items()}
    start = file._mm_buf.__array_interface__["data"][0]
    size = next(iter(variables.values())).data.strides[0]
    begin = min(places.values()) - start
    if begin > HEAD_BYTES or begin + size * file._recs > mirror.state.size + 4:
        return None
    parts = {
        name: Part(places[name] - start - begin, one.data[0].nbytes if one.data.ndim > 1 else one.itemsize(), False)
        for name, one in variables.items()
    }
    for name in parts.keys() & set(VECTORS):
        parts[name] = parts[name]._replace(of_atoms=True)
    found = tuple(sorted(parts.values()))
    count = int(file._recs)
    del variables
    return Records(int(begin), int(size), count, found, parts.get("time"))
