"""Layout of an H5MD tree: `read_layout()` finds its arrays, the rows of frames, and units.

`Rows` reads whole chunks of an array by row, several in sequence at once.
The rules are those of H5MD 1.1; units and their conversion are those of MDAnalysis's reader.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.io.frame_source import Numbers
from himach.io.trajectories.timeline import Times, even_times

#: Bytes of consecutive small chunks read at once.
BLOCK_BYTES = 1 << 20


class Rows:
    """Rows of an array, for one thread."""

    def __init__(self, array: Any, chunk_rows: int = 1) -> None:
        self.array = array
        self.chunk_rows = chunk_rows
        self._chunk_bytes = chunk_rows * prod(array.shape[1:]) * array.dtype.itemsize
        self._first, self._block = -1, np.empty(0, array.dtype)
        self._columns: int | None = None  # of the block's second axis; None: all
        self._chunks = 1

    def __len__(self) -> int:
        return int(self.array.shape[0])

    def at(self, row: int, columns: int | None = None) -> Any:
        """Return a row, or its first `columns`; an array is valid until the next call."""
        has_columns = self._columns is None or (columns is not None and columns <= self._columns)
        if not 0 <= row - self._first < len(self._block) or not has_columns:
            self._load(row, columns)
        values = self._block[row - self._first]
        return values if columns is None else values[:columns]

    def _load(self, row: int, columns: int | None) -> None:
        first = row // self.chunk_rows * self.chunk_rows
        max_chunks = max(1, BLOCK_BYTES // max(1, self._chunk_bytes))
        self._chunks = min(max_chunks, 2 * self._chunks) if first == self._first + len(self._block) else 1
        self._block = self._block[:0]  # free the old block before reading the new one
        try:
            self._block = self._read_chunks(first, columns)
        except Exception:
            if self._chunks == 1:
                raise
            self._chunks = 1  # another of the chunks may be the damaged one
            self._block = self._read_chunks(first, columns)
        self._first, self._columns = first, columns

    def _read_chunks(self, first: int, columns: int | None) -> npt.NDArray[Any]:
        return self.read(first, min(len(self), first + self._chunks * self.chunk_rows), columns)

    def read(self, first: int, stop: int, columns: int | None) -> npt.NDArray[Any]:
        """Read rows from `first` on, before `stop`."""
        if stop <= first:
            raise IndexError(f"the array has {len(self)} rows, and none of number {first}")
        span = slice(first, stop)
        return np.asarray(self.array[span] if columns is None else self.array[span, :columns])


#: Arrays with a vector per atom, and MDAnalysis's kinds of their units.
VECTORS = {"position": "length", "velocity": "velocity", "force": "force"}
_SPEEDS = {"velocity": "speed"}  # MDAnalysis's name for the conversion


@dataclass(frozen=True)
class Element:
    """Element of H5MD: values sampled in time, or one for all frames."""

    path: str  # of its array in the tree
    rows: Numbers | None = None  # the row of each frame, int64 (n_frames,), -1 for a frame that has none
    factor: float = 1.0  # of the values, for MDAnalysis's units
    value: npt.NDArray[Any] | None = None  # of all frames, if it is fixed

    def row(self, frame: int) -> int:
        """Return the row of a frame; -1 if it has none."""
        return frame if self.rows is None else int(self.rows[frame])


@dataclass(frozen=True)
class H5mdLayout:
    """Arrays of an H5MD tree."""

    n_frames: int
    n_atoms: int
    vectors: Mapping[str, Element]  # by name in `VECTORS`, if they exist
    edges: Element | None  # box vectors or lengths; None without a box
    observables: Mapping[str, Element]  # by MDAnalysis's names
    steps: str | tuple[Any, Any]  # path of the frames' integration steps, or the first and the distance
    times: Times | None  # ps; None if the tree has none


class _Tree:
    """An open tree, whose arrays are read by `rows`."""

    def __init__(self, root: Any, rows: Callable[[str], Rows], converted: bool) -> None:
        self.root, self.rows, self.converted = root, rows, converted

    def group(self, path: str) -> Any:
        """Return a group; raises ValueError if it is missing."""
        return self._node(path, "group")

    def array(self, path: str) -> Any:
        """Return an array; raises ValueError if it is missing."""
        return self._node(path, "array")

    def _node(self, path: str, kind: str) -> Any:
        node = self.root.get(path)
        if node is None or is_array(node) != (kind == "array"):
            raise ValueError(f"it has no {kind} {path}, which H5MD asks for")
        return node

    def ticks(self, path: str, count: int) -> npt.NDArray[Any] | tuple[Any, Any]:
        """Return steps or times as an array, or as the first and the distance."""
        array = self.array(path)
        if array.shape == ():
            return array.attrs.get("offset", 0), array[()]
        if len(array.shape) != 1:
            raise ValueError(f"{path} has {len(array.shape)} axes instead of one")
        return self.rows(path).read(0, min(count, array.shape[0]), None) if array.shape[0] else np.empty(0)

    def steps(self, path: str) -> npt.NDArray[Any]:
        """Return the step of each row of an element."""
        count = int(self.array(f"{path}/value").shape[0])
        ticks = self.ticks(f"{path}/step", count)
        return ticks[0] + ticks[1] * np.arange(count) if isinstance(ticks, tuple) else ticks

    def factor(self, path: str, kind: str, otherwise: str | None = None) -> float:
        """Return the factor from an array's unit to MDAnalysis's; without a unit, take that of `otherwise`."""
        if not self.converted:
            return 1.0
        from MDAnalysis.coordinates.H5MD import H5MDReader
        from MDAnalysis.units import MDANALYSIS_BASE_UNITS, get_conversion_factor

        unit = self.array(path).attrs.get("unit")
        if unit is None and otherwise is not None:
            return self.factor(otherwise, kind)
        units = H5MDReader._unit_translation[kind]
        unit = unit.decode(errors="replace") if isinstance(unit, bytes) else unit
        if unit not in units:
            what = f"{path} has no unit" if unit is None else f"{path} has the unit {unit!r}, which MDAnalysis has not"
            raise ValueError(
                f"{what}; it has {', '.join(units)}. The universe keyword convert_units=False takes all numbers as in "
                "Å, ps, Å/ps and kJ/(mol Å)"
            )
        kind = _SPEEDS.get(kind, kind)
        return float(get_conversion_factor(kind, units[unit], MDANALYSIS_BASE_UNITS[kind]))


def is_array(thing: Any) -> bool:
    """Return whether this is an array, not a group."""
    return hasattr(thing, "shape")


def read_layout(root: Any, rows: Callable[[str], Rows], group: str | None, converted: bool) -> H5mdLayout:
    """Return the layout of an H5MD tree."""
    tree = _Tree(root, rows, converted)
    base = _particles(tree, group)
    dimension = tree.group(f"{base}/box").attrs.get("dimension", 3)
    if dimension != 3:
        raise ValueError(f"its box has {dimension} dimensions; himach reads those of 3")
    value = tree.array(f"{base}/position/value")
    if len(value.shape) != 3 or value.shape[2] != 3:
        raise ValueError(f"{base}/position/value has the shape {value.shape}; it should be (frames, atoms, 3)")
    n_atoms = int(value.shape[1])
    steps = tree.steps(f"{base}/position")
    ticks = tree.ticks(f"{base}/position/time", value.shape[0]) if f"{base}/position/time" in root else None
    n_frames = min(len(steps), len(steps) if ticks is None or isinstance(ticks, tuple) else len(ticks))
    if n_frames < value.shape[0]:
        warnings.warn(
            f"positions of {value.shape[0]} frames, but steps and times of {n_frames}; only these frames are used",
            stacklevel=2,
        )
    steps = steps[:n_frames]
    vectors = {}
    for name, kind in VECTORS.items():
        if name in tree.group(base):
            vectors[name] = _vectors(tree, f"{base}/{name}", kind, steps, n_atoms)
    step = tree.ticks(f"{base}/position/step", 1)
    return H5mdLayout(
        n_frames,
        n_atoms,
        vectors,
        _edges(tree, base, steps),
        dict(_observables(tree, steps)),
        step if isinstance(step, tuple) else f"{base}/position/step",
        _times(tree, f"{base}/position/time", ticks, n_frames),
    )


def _particles(tree: _Tree, group: str | None) -> str:
    names = sorted(tree.group("particles"))
    if group is None and len(names) > 1:
        raise ValueError(
            f"it has several groups of particles: {', '.join(names)}; name one by the universe keyword group, for "
            f"example group={names[0]}"
        )
    if not names or (group is not None and group not in names):
        raise ValueError(f"it has no group particles/{group or '...'}; there are: {', '.join(names) or 'none'}")
    return f"particles/{group or names[0]}"


def _times(tree: _Tree, path: str, ticks: Any, n_frames: int) -> Times | None:
    if ticks is None:
        return None
    factor = tree.factor(path, "time")
    if isinstance(ticks, tuple):
        return even_times(n_frames, float(ticks[1]) * factor, 0.0, float(ticks[0]) * factor)
    times = ticks[:n_frames]
    return np.asarray(times if factor == 1 else times * factor, dtype=np.float64)  # as precise as the file is


def _vectors(tree: _Tree, path: str, kind: str, steps: npt.NDArray[Any], n_atoms: int) -> Element:
    shape = tree.array(f"{path}/value").shape
    if shape[1:] != (n_atoms, 3):
        raise ValueError(f"{path}/value has the shape {shape}; it should be (frames, {n_atoms}, 3), as positions are")
    return Element(f"{path}/value", _rows(tree.steps(path), steps), tree.factor(f"{path}/value", kind))


def _edges(tree: _Tree, base: str, steps: npt.NDArray[Any]) -> Element | None:
    path = f"{base}/box/edges"
    if "edges" not in tree.group(f"{base}/box"):
        return None
    fixed = is_array(tree.root[path])
    array = tree.array(path if fixed else f"{path}/value")
    where = path if fixed else f"{path}/value"
    shape = tuple(array.shape if fixed else array.shape[1:])
    if shape not in ((3,), (3, 3)):
        raise ValueError(f"{where} has the shape {array.shape}; a box has 3 lengths, or 3 x 3 numbers")
    factor = tree.factor(where, "length", otherwise=f"{base}/position/value")
    if fixed:
        return Element(path, factor=factor, value=np.asarray(array[()]))
    rows = _rows(tree.steps(path), steps)
    if rows is not None and (rows < 0).any():
        raise ValueError(f"{path} has no box at step {steps[np.argmin(rows)]}, where there are positions")
    return Element(where, rows, factor)


def _observables(tree: _Tree, steps: npt.NDArray[Any]) -> Iterator[tuple[str, Element]]:
    """Yield the observables by name; a group without values contains several."""
    if "observables" not in tree.root:
        return
    for name in tree.group("observables"):
        observable = tree.root[f"observables/{name}"]
        names = [name] if is_array(observable) or "value" in observable else [f"{name}/{inner}" for inner in observable]
        for full_name in names:
            path = f"observables/{full_name}"
            node = tree.root[path]
            if is_array(node):
                yield full_name, Element(path, value=np.asarray(node[()]))
            elif "value" in node:
                own_steps = tree.steps(path) if "step" in node else steps[: node["value"].shape[0]]
                yield full_name, Element(f"{path}/value", _rows(own_steps, steps))


def _rows(own_steps: npt.NDArray[Any], steps: npt.NDArray[Any]) -> Numbers | None:
    """Return the rows with the frames' steps; None if they are the first rows in order."""
    if np.array_equal(own_steps[: len(steps)], steps):
        return None
    if not len(own_steps):
        return np.full(len(steps), -1)
    order = np.argsort(own_steps, kind="stable")
    places = np.minimum(np.searchsorted(own_steps, steps, sorter=order), len(own_steps) - 1)
    rows = order[places]
    return np.where(own_steps[rows] == steps, rows, -1).astype(np.int64)
