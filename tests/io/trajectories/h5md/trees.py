"""H5MD trees of small trajectories, written to HDF5 by h5py and to Zarr by zarr, and what MDAnalysis reads of them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from MDAnalysis.coordinates.H5MD import H5MDReader

from ..trajectory_formats import read_by_mdanalysis

BASE = "particles/all"
#: Names of files of each kind.
KINDS = ("a.h5md", "a.2.zarrmd", "a.3.zarr")

Attributes = dict[str, Any]
#: Arrays and groups (None) by path, each with its attributes.
Tree = dict[str, tuple[Any, Attributes]]


def tree(
    n_frames: int = 12,
    n_atoms: int = 7,
    dtype: str = "f4",
    units: Mapping[str, str | None] | None = None,
    box: str = "matrix",
) -> Tree:
    """Return a tree of positions, velocities, forces, a box, and two observables."""
    random = np.random.default_rng(5)
    units = {"time": "fs", "position": "nm", "velocity": "nm ns-1", "force": "kJ mol-1 nm-1", **(units or {})}
    ticks = {
        "step": (np.arange(n_frames, dtype="i4") * 50, {}),
        "time": ((np.arange(n_frames) * 0.7 + 3).astype("f4"), _unit(units["time"])),
    }
    found: Tree = {"h5md": (None, {"version": [1, 1]}), BASE: (None, {})}
    for name in ("position", "velocity", "force"):
        values = random.normal(size=(n_frames, n_atoms, 3)).astype(dtype)
        found[f"{BASE}/{name}/value"] = (values, _unit(units[name]))
        found.update({f"{BASE}/{name}/{tick}": array for tick, array in ticks.items()})
    found[f"{BASE}/box"] = (None, {"dimension": 3, "boundary": ["none" if box == "none" else "periodic"] * 3})
    if box != "none":
        lengths = (random.random((n_frames, 3)) + 4).astype(dtype)
        edges = lengths if box == "lengths" else lengths[:, None] * np.eye(3, dtype=dtype)
        if box == "triclinic":
            edges[:, 1, 0] = edges[:, 2, 1] = 1.5
        found[f"{BASE}/box/edges/value"] = (edges, _unit(units["position"]))
        found.update({f"{BASE}/box/edges/{tick}": array for tick, array in ticks.items()})
    for name in ("lambda", "more/energy"):
        found[f"observables/{name}/value"] = (random.random(n_frames), {})
        found.update({f"observables/{name}/{tick}": array for tick, array in ticks.items()})
    return found


def _unit(unit: str | None) -> Attributes:
    return {} if unit is None else {"unit": unit}


def write(path: Path, content: Tree, rows: int = 5, atoms: int = 100, **how: Any) -> Path:
    """Write a tree, in chunks of so many rows and atoms; `how` are keywords of h5py, or of zarr, for arrays of vectors.

    The suffix tells the format, of Zarr also its version.
    """
    if path.suffix == ".h5md":
        import h5py

        with h5py.File(path, "w") as root:
            _fill(root, content, root.create_dataset, rows, atoms, how)
    else:
        import zarr

        root = zarr.open_group(path, mode="w", zarr_format=2 if ".2." in path.name else 3)
        _fill(root, content, root.create_array, rows, atoms, how)
    return path


def _fill(root: Any, content: Tree, create: Any, rows: int, atoms: int, how: Attributes) -> None:
    for name, (given, attributes) in content.items():
        if given is None:
            node = root.require_group(name)
        else:
            values = np.asarray(given)
            sizes = (rows, atoms, 3)[: values.ndim]
            chunks = tuple(map(min, values.shape, sizes)) if values.size and values.ndim else None
            own = {"chunks": chunks} if chunks else {}
            node = create(name, data=values, **{**own, **(how if values.ndim == 3 and values.shape[-2] > 3 else {})})
        for key, value in attributes.items():
            node.attrs[key] = value


def theirs(path: Path, **keywords: Any) -> list[tuple[Any, ...]]:
    """Return the frames of an HDF5 file as MDAnalysis reads them: see `seen`."""
    return read_by_mdanalysis(H5MDReader, path, **keywords)
