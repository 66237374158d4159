"""NetCDF of a table: `netcdf()`, by xarray and SciPy, as a file of version 3, which every reader of NetCDF has."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from himach.output.plain import plain
from himach.output.table import Table
from himach.output.table_files.columns import clean
from himach.output.table_files.data_arrays import to_xarray

if TYPE_CHECKING:
    import xarray

__all__ = ["netcdf"]

INT32 = np.iinfo(np.int32)
LARGEST_EXACT = 2**53  # integers up to it are float64, too
#: Words that are types in NetCDF's language, and what its names have not.
TYPES = {
    "byte",
    "char",
    "short",
    "ushort",
    "int",
    "uint",
    "int64",
    "uint64",
    "float",
    "real",
    "double",
    "bool",
    "string",
}
NOT_IN_NAMES = re.compile(r"[/\x00-\x1f\x7f]")


def netcdf(table: Table) -> bytes:
    """Return a table as NetCDF, laid out as `himach.output.table_files.data_arrays.to_xarray` does.

    The format has integers of 32 bits: larger ones are written as floats where these hold them, else as texts. None is
    an empty text. A name that NetCDF has not is changed, and stands whole in ``long_name``. Equal tables are equal
    bytes.
    """
    dataset = to_xarray(table)
    names = _names(dataset.variables)
    for name, variable in dataset.variables.items():
        if names[name] != name:
            variable.attrs["long_name"] = name
    stored = {name: _stored(variable) for name, variable in dataset.variables.items()}
    dataset = dataset.assign({name: stored[name] for name in dataset.data_vars})
    dataset = dataset.assign_coords({name: stored[name] for name in dataset.coords}).rename(names)
    # nan is nan without a value that stands for it.
    encoding = {name: {"_FillValue": None} for name in dataset.variables}
    return bytes(dataset.to_netcdf(engine="scipy", format="NETCDF3_64BIT", encoding=encoding))


def _stored(variable: xarray.Variable) -> xarray.Variable:
    """Return a variable of a type that the format has."""
    return type(variable)(variable.dims, _values(variable.values), variable.attrs)


def _values(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if values.dtype.kind in "iu" and values.size:
        least, largest = int(values.min()), int(values.max())
        if INT32.min <= least and largest <= INT32.max:
            return values if values.dtype.kind == "i" and values.itemsize < INT32.bits // 8 else values.astype(np.int32)
        return values.astype(np.float64) if max(-least, largest) <= LARGEST_EXACT else values.astype(str).astype(object)
    if values.dtype == np.float16:
        return values.astype(np.float32)
    if values.dtype.kind in "cO":
        # xarray makes nan of the None in texts, in which there are no other floats.
        texts = [
            "" if value is None or isinstance(value, float) else clean(str(plain(value))) for value in values.ravel()
        ]
        return np.array([*texts, ""], object)[:-1].reshape(values.shape)
    return values


def _names(names: Iterable[Any]) -> dict[str, str]:
    """Return a name that the format has for each, those that are given as they are."""
    names = list(names)
    found = {name: name for name in names if _name(name) == name}
    for name in names:
        wanted = _name(name)
        while name not in found:
            found |= {name: wanted} if wanted not in found.values() else {}
            wanted += "_"
    return {name: found[name] for name in names}


def _name(name: str) -> str:
    text = NOT_IN_NAMES.sub("_", clean(name)).rstrip()
    begins = text[:1].isalnum() or text[:1] == "_" or not text[:1].isascii()
    return text if text and begins and text not in TYPES else f"_{text}"
