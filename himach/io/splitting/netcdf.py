"""Writing AMBER NetCDF trajectories a record at a time: `AmberWriter`.

The header is scipy's; the records, which in the classic format follow one another at the file's end, are appended as
they come. Neither scipy nor MDAnalysis (without netCDF4) can do that: both write the whole file anew for each frame.
Format: https://ambermd.org/netcdf/nctraj.xhtml, version 1.0.
"""

from __future__ import annotations

import os
import struct
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from himach.frame import RawFrame

__all__ = ["AmberWriter"]

_RECORDS_AT = 4  # byte of the number of records in a classic NetCDF file


class AmberWriter:
    """An AMBER NetCDF file that grows by whole frames.

    Parameters
    ----------
    path
        The file; one that is there is overwritten.
    like
        A frame that says which of box, velocities and forces every frame has.
    """

    def __init__(self, path: str, like: RawFrame) -> None:
        self._has = _what(like)
        self._n_frames = 0
        _write_header(path, len(like.positions), *self._has)
        self._file: BinaryIO = open(path, "r+b")  # noqa: SIM115 (closed by close())
        self._file.seek(-_record_bytes(len(like.positions), *self._has), os.SEEK_END)

    def __enter__(self) -> AmberWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def write(self, frame: RawFrame) -> None:
        """Append a frame; raises ValueError if it differs from the first in having a box, velocities or forces."""
        if _what(frame) != self._has:
            raise ValueError("it differs from the first frame in having a box, velocities or forces")
        put = self._file.write
        put(struct.pack(">f", frame.time))
        put(_big(frame.positions, "f4"))
        if frame.box is not None:
            put(_big(frame.box, "f8"))
        if frame.velocities is not None:
            put(_big(frame.velocities, "f4"))
        if frame.forces is not None:
            put(_big(frame.forces / np.float32(4.184), "f4"))  # kJ to kcal
        self._n_frames += 1

    def close(self) -> None:
        """Note the number of records and close the file."""
        if not self._file.closed:
            self._file.seek(_RECORDS_AT)
            self._file.write(struct.pack(">i", self._n_frames))
            self._file.close()


def _what(frame: RawFrame) -> tuple[bool, bool, bool]:
    return frame.box is not None, frame.velocities is not None, frame.forces is not None


def _big(array: npt.NDArray[np.float32], kind: str) -> bytes:
    return array.astype(f">{kind}").tobytes()


def _write_header(path: str, n_atoms: int, box: bool, velocities: bool, forces: bool) -> None:
    """Write a file of one empty frame; the record variables are defined in the order in which `write()` puts them.

    One frame, because scipy learns the sizes of the variables from it.
    """
    from scipy.io import netcdf_file  # type: ignore[import-untyped]

    with netcdf_file(path, "w", version=2) as file:
        for name, text in _ATTRIBUTES.items():
            setattr(file, name, text)
        for name, length in {**_DIMENSIONS, "atom": n_atoms}.items():
            file.createDimension(name, length)
        file.createVariable("spatial", "c", ("spatial",))[:] = list("xyz")
        _variable(file, "time", "f4", ("frame",), "picosecond")
        _variable(file, "coordinates", "f4", ("frame", "atom", "spatial"), "angstrom")
        if box:
            file.createVariable("cell_spatial", "c", ("cell_spatial",))[:] = list("abc")
            file.createVariable("cell_angular", "c", ("cell_angular", "label"))[:] = [
                list("alpha"),
                list("beta "),
                list("gamma"),
            ]
            _variable(file, "cell_lengths", "f8", ("frame", "cell_spatial"), "angstrom")
            _variable(file, "cell_angles", "f8", ("frame", "cell_angular"), "degree")
        if velocities:
            _variable(file, "velocities", "f4", ("frame", "atom", "spatial"), "angstrom/picosecond")
        if forces:
            _variable(file, "forces", "f4", ("frame", "atom", "spatial"), "kilocalorie/mole/angstrom")


_ATTRIBUTES = {
    "Conventions": "AMBER",
    "ConventionVersion": "1.0",
    "application": "himach",
    "program": "himach",
    "programVersion": "1",
    "title": "frames of a himach frame directory",
}
_DIMENSIONS = {"frame": None, "spatial": 3, "cell_spatial": 3, "cell_angular": 3, "label": 5}


def _variable(file: Any, name: str, kind: str, dimensions: tuple[str, ...], units: str) -> None:
    variable = file.createVariable(name, kind, dimensions)
    variable.units = units
    variable[0] = 0


def _record_bytes(n_atoms: int, box: bool, velocities: bool, forces: bool) -> int:
    return 4 + 48 * box + 12 * n_atoms * (1 + velocities + forces)
