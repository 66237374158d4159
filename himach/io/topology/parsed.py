"""A topology as it was parsed and guessed, as bytes: `encode()`, `decode()`; and `copy_topology()`, which is quick.

An .npz file without pickles: numpy arrays, and a member ``meta`` of JSON that says which attribute of which class they
make. Objects (names, types of bonds, ...) are a table of distinct values in JSON and an array of places in it.
`docs/formats.md` describes it. What comes back is compared with what went in before it is kept, so that a topology that
this form cannot tell exactly is not kept at all.
"""

from __future__ import annotations

import importlib
import io
import json
import re
import zipfile
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from MDAnalysis.core.topology import Topology

__all__ = ["copy_topology", "decode", "encode", "same"]

VERSION = 1
#: Made anew by every Topology.
_CORE = frozenset({"Atomindices", "Resindices", "Segindices"})
#: The topology that an attribute belongs to, and what is computed from the rest when it is asked for.
_DERIVED = frozenset({"top", "_cache"})
_PLAIN = (str, int, float, bool, type(None))


class _UnencodableError(Exception):
    """A value has no form here."""


def encode(topology: Topology, facts: dict[str, Any]) -> bytes | None:
    """Return a topology and some facts on it as bytes, or None where it would not come back as it is.

    Parameters
    ----------
    topology
        As MDAnalysis made it.
    facts
        What JSON can hold; `decode` gives it back.
    """
    arrays: dict[str, npt.NDArray[Any]] = {}
    try:
        meta = {
            "version": VERSION,
            "facts": facts,
            "sizes": [int(size) for size in (topology.n_atoms, topology.n_residues, topology.n_segments)],
            "residues": _put(arrays, topology.tt._AR),
            "segments": _put(arrays, topology.tt._RS),
            "attributes": [_describe(arrays, attribute) for attribute in _attributes(topology)],
        }
        content = _pack(arrays, json.dumps(meta).encode())
        back, _ = decode(content)
    except (_UnencodableError, ValueError, TypeError):
        return None
    return content if same(back, topology) else None


def decode(content: bytes) -> tuple[Topology, dict[str, Any]]:
    """Return the topology that `encode` encoded, and the facts on it.

    Raises
    ------
    ValueError
        If the bytes are damaged, or of another version.
    """
    from MDAnalysis.core.topology import Topology

    try:
        with zipfile.ZipFile(io.BytesIO(content)) as file:
            meta = json.loads(file.read("meta"))
            if meta["version"] != VERSION:
                raise ValueError(f"version {meta['version']}")
            arrays = _Arrays(file)
            n_atoms, n_residues, n_segments = meta["sizes"]
            residues = _within(arrays[meta["residues"]], n_atoms, n_residues)
            segments = _within(arrays[meta["segments"]], n_residues, n_segments)
            topology = Topology(n_atoms, n_residues, n_segments, None, residues, segments)
            for described in meta["attributes"]:
                topology.add_TopologyAttr(_make(arrays, described))
        return topology, meta["facts"]
    except ValueError:
        raise
    except Exception as error:  # whatever the bytes lead to
        raise ValueError(f"damaged: {error!r}") from error


def same(one: Topology, other: Topology) -> bool:
    """Tell whether two topologies are equal to the last bit, values and their types."""
    tables = [(topology.tt._AR, topology.tt._RS) for topology in (one, other)]
    states = [
        {attribute.attrname: _state(attribute) for attribute in _attributes(topology)} for topology in (one, other)
    ]
    classes = [{type(attribute) for attribute in topology.attrs} for topology in (one, other)]
    sizes = [(topology.n_atoms, topology.n_residues, topology.n_segments) for topology in (one, other)]
    return sizes[0] == sizes[1] and classes[0] == classes[1] and _equal(tables[0], tables[1]) and _equal(*states)


def copy_topology(topology: Topology) -> Topology:
    """Return a copy that shares nothing that can be changed, as Topology.copy() does, without looking at each name."""
    from MDAnalysis.core.topology import Topology

    table = topology.tt
    new = Topology(table.n_atoms, table.n_residues, table.n_segments, None, table._AR, table._RS)
    for attribute in _attributes(topology):
        state = {name: value.copy() if hasattr(value, "copy") else value for name, value in _state(attribute).items()}
        new.add_TopologyAttr(_restore(type(attribute), state))
    return new


# -- attributes --------------------------------------------------------------------------------------------------------


def _attributes(topology: Topology) -> list[Any]:
    return [attribute for attribute in topology.attrs if type(attribute).__name__ not in _CORE]


def _state(attribute: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(attribute).items() if name not in _DERIVED}


def _describe(arrays: dict[str, npt.NDArray[Any]], attribute: Any) -> dict[str, Any]:
    kind = type(attribute)
    if _class(kind.__module__, kind.__qualname__) is not kind:
        raise _UnencodableError(kind)
    return {
        "class": [kind.__module__, kind.__qualname__],
        "state": {name: _value(arrays, value) for name, value in _state(attribute).items()},
    }


def _make(arrays: _Arrays, described: dict[str, Any]) -> Any:
    kind = _class(*described["class"])
    if kind is None:
        raise ValueError(f"{described['class']} is no attribute of MDAnalysis")
    return _restore(kind, {name: _back(arrays, value) for name, value in described["state"].items()})


def _restore(kind: Any, state: dict[str, Any]) -> Any:
    from MDAnalysis.core.topologyattrs import _Connection

    attribute = kind.__new__(kind)
    attribute.__dict__.update(state)
    if issubclass(kind, _Connection):
        attribute._cache = {}
    return attribute


def _class(module: str, name: str) -> Any:
    """Return MDAnalysis's class of an attribute, of all or of one parser; None for anything else."""
    from MDAnalysis.core import topologyattrs

    if not re.fullmatch(r"MDAnalysis\.(core\.topologyattrs|topology\.\w+)", module):
        return None
    kind = getattr(importlib.import_module(module), name, None)
    return kind if isinstance(kind, type) and issubclass(kind, topologyattrs.TopologyAttr) else None


# -- values ------------------------------------------------------------------------------------------------------------


def _value(arrays: dict[str, npt.NDArray[Any]], value: Any) -> dict[str, Any]:
    """Return how a value is told: as a constant, an array, objects of a table, tuples of integers, or a dict."""
    if isinstance(value, np.ndarray) and value.dtype != object:
        return {"array": _put(arrays, value)}
    if isinstance(value, np.ndarray) and value.ndim == 1:
        return {"objects": _put_objects(arrays, value)}
    if type(value) is dict:
        return {"dict": [_plain(list(value)), _plain(list(value.values()))]}
    if type(value) in (list, tuple):
        form = type(value).__name__
        width = len(value[0]) if value and type(value[0]) is tuple else 0
        types = {type(item) for row in value for item in row} if width and _all_tuples(value, width) else set()
        if types in ({int}, {np.int64}):
            rows = np.array(value, dtype=np.int64).reshape(-1, width)
            return {"tuples": _put(arrays, rows), "form": form, "numpy": types == {np.int64}}
        return {"items": _put_objects(arrays, value), "form": form}
    return {"constant": _plain(value)}


def _back(arrays: _Arrays, told: dict[str, Any]) -> Any:
    forms: dict[str, Any] = {"list": list, "tuple": tuple}
    if "array" in told:
        return arrays[told["array"]]
    if "objects" in told:
        return _objects(arrays, told["objects"])
    if "dict" in told:
        keys, values = (_unplain(part) for part in told["dict"])
        return dict(zip(keys, values, strict=True))
    if "tuples" in told:
        rows = arrays[told["tuples"]]
        return forms[told["form"]](map(tuple, rows if told["numpy"] else rows.tolist()))
    if "items" in told:
        return forms[told["form"]](_objects(arrays, told["items"]).tolist())
    return _unplain(told["constant"])


def _all_tuples(rows: Iterable[Any], width: int) -> bool:
    return all(type(row) is tuple and len(row) == width for row in rows)


def _put_objects(arrays: dict[str, npt.NDArray[Any]], values: Iterable[Any]) -> dict[str, Any]:
    """Keep objects as a table of distinct ones and each one's place in it."""
    table: dict[Any, int] = {}
    distinct: list[Any] = []
    places = []
    for value in values:
        key = value if type(value) is str else (type(value), repr(value))  # -0.0 is not 0.0, and nan is nan
        if key not in table:
            table[key] = len(table)
            distinct.append(_plain(value))
        places.append(table[key])
    return {"table": distinct, "places": _put(arrays, np.array(places, dtype=np.int64))}


def _objects(arrays: _Arrays, told: dict[str, Any]) -> npt.NDArray[Any]:
    table = np.empty(len(told["table"]), dtype=object)
    for place, value in enumerate(told["table"]):
        table[place] = _unplain(value)
    objects: npt.NDArray[Any] = table[arrays[told["places"]]]
    return objects


def _plain(value: Any) -> Any:
    """Return a value as JSON tells it; lists are lists, tuples and numpy's scalars are marked as such."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, np.generic) and value.dtype.kind in "biufU":
        return {"numpy": [value.dtype.str, value.item()]}
    if type(value) is list:
        return [_plain(item) for item in value]
    if type(value) is tuple:
        return {"tuple": [_plain(item) for item in value]}
    raise _UnencodableError(type(value))


def _unplain(value: Any) -> Any:
    if isinstance(value, list):
        return [_unplain(item) for item in value]
    if isinstance(value, dict) and "numpy" in value:
        dtype, item = value["numpy"]
        return np.dtype(dtype).type(item)
    if isinstance(value, dict):
        return tuple(_unplain(item) for item in value["tuple"])
    return value


def _equal(one: Any, other: Any) -> bool:
    """Tell whether two values are the same, and of the same types all the way down."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        if one.dtype != other.dtype or one.shape != other.shape:
            return False
        return _equal(one.tolist(), other.tolist()) if one.dtype == object else one.tobytes() == other.tobytes()
    if isinstance(one, dict):
        return list(one) == list(other) and all(map(_equal, one.values(), other.values()))
    if isinstance(one, list) and one == other and {*map(type, one), *map(type, other)} == {str}:
        return True
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_equal, one, other))
    return bool(one == other or (isinstance(one, float) and np.isnan([one, other]).all()))


# -- arrays ------------------------------------------------------------------------------------------------------------


class _Arrays:
    """The arrays of a file, by number and the type that they had."""

    def __init__(self, file: zipfile.ZipFile) -> None:
        self._file = file

    def __getitem__(self, told: Sequence[Any]) -> npt.NDArray[Any]:
        name, dtype = told
        if np.dtype(dtype).hasobject:
            raise ValueError(f"{name} would be objects")
        with self._file.open(name) as member:
            array: npt.NDArray[Any] = np.lib.format.read_array(io.BytesIO(member.read()), allow_pickle=False)
        return array.astype(np.dtype(dtype), copy=False)


def _put(arrays: dict[str, npt.NDArray[Any]], array: npt.NDArray[Any]) -> list[str]:
    """Keep an array, integers in as few bytes as they need; return its name and type."""
    name = f"{len(arrays)}.npy"
    narrow = array
    if array.dtype.kind == "i" and array.size:
        narrow = array.astype(np.result_type(np.min_scalar_type(array.min()), np.min_scalar_type(array.max())))
    arrays[name] = np.ascontiguousarray(narrow)
    return [name, array.dtype.str]


def _pack(arrays: dict[str, npt.NDArray[Any]], meta: bytes) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as file:
        file.writestr("meta", meta)
        for name, array in arrays.items():
            with file.open(name, "w") as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
    return target.getvalue()


def _within(places: npt.NDArray[Any], size: int, limit: int) -> npt.NDArray[Any]:
    if places.shape != (size,) or (size and not 0 <= places.min() <= places.max() < limit):
        raise ValueError("residues or segments lie out of range")
    return places
