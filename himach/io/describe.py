"""What a dataset is, in plain values: `describe()`, for ``himach info``."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from himach.errors import UsageError
from himach.io.cache import find
from himach.io.kept import Note, dataset_name
from himach.io.origin import Origin, open_origin
from himach.io.store import Store, StoreError, StoreNotFoundError, default_place
from himach.io.topology import load_topology, own_topology

__all__ = ["as_text", "describe"]


def describe(
    trajectories: Sequence[str | os.PathLike[str]],
    topology: str | os.PathLike[str] | None = None,
    keywords: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Describe a dataset.

    Parameters
    ----------
    trajectories
        Files that follow one another, or a frame directory.
    topology
        A topology file, which is checked to fit.
    keywords
        Keywords of MDAnalysis.Universe.

    Returns
    -------
    dict
        ``format`` (one name, or one for each file where they differ), ``files``, ``frames``, ``atoms``, ``first_time``,
        ``last_time`` and ``dt`` (ps; dt None where uneven), ``box`` (of the first frame: Å and degrees, or None),
        ``velocities``, ``forces``, ``topology`` (the file that was given or that the dataset brings, or None),
        ``fingerprint``, ``warnings`` (what there is to say about the files), ``cached`` (what this node's store at its
        default place holds of it).

    Raises
    ------
    UsageError, TrajectoryError
        As `open_origin` and `load_topology` do.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # they are told in the answer
        origin = open_origin(trajectories, topology, keywords)
        if topology is not None:
            load_topology(topology, origin, keywords)
    (first,) = origin.read([0])
    kinds = list(dict.fromkeys(origin.kinds))
    return {
        "format": kinds[0] if len(kinds) == 1 else kinds,
        "files": list(origin.paths),
        "frames": origin.n_frames,
        "atoms": origin.n_atoms,
        "first_time": first.time,
        "last_time": float(origin.times([origin.n_frames - 1])[0]),
        "dt": origin.dt(range(origin.n_frames)),
        "box": None if first.box is None else [float(value) for value in first.box],
        "velocities": origin.has_velocities,
        "forces": origin.has_forces,
        "topology": _own_topology(origin) if topology is None else os.path.abspath(topology),
        "fingerprint": origin.fingerprint,
        "warnings": list(origin.warnings),
        "cached": _cached(origin, keywords or {}),
    }


def as_text(facts: Mapping[str, Any]) -> str:
    """Return what `describe` tells as lines for a terminal, with units."""
    box, dt = facts["box"], facts["dt"]
    held = ["positions", *(name for name in ("velocities", "forces") if facts[name])]
    formats = facts["format"] if isinstance(facts["format"], list) else [facts["format"]]
    lines = [
        ("format", ", ".join(formats)),
        *(("file", str(path)) for path in facts["files"]),
        ("topology", facts["topology"] or "none: give --topology"),
        ("frames", f"{facts['frames']:,}"),
        ("atoms", f"{facts['atoms']:,}"),
        ("holds", ", ".join(held)),
        ("time", f"{facts['first_time']:.7g} to {facts['last_time']:.7g} ps"),
        ("between frames", "uneven" if dt is None else f"{dt:.7g} ps"),
        ("box", "none" if box is None else "{:.5g} x {:.5g} x {:.5g} Å, {:.5g} {:.5g} {:.5g} degrees".format(*box)),
        ("cached", facts["cached"]),
        ("fingerprint", facts["fingerprint"]),
        *(("warning", text) for text in dict.fromkeys(facts["warnings"])),
    ]
    width = max(len(name) for name, _ in lines)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in lines)


def _cached(origin: Origin, keywords: Mapping[str, Any]) -> str:
    """Say what is cached on this node, and where."""
    place = default_place()
    try:
        store = Store(create=False, read_only=True)
        found = find(store, [dataset_name(origin.paths)])
        note = Note.of(origin, keywords, [one.note for one in found])
        valid = [one for one in found if one.note.verdict(note) != "changed"]
        if not valid:
            return f"nothing in {place}"
        facts = store.dataset(valid[0].name, valid[0].generation, create=False).facts()
    except StoreNotFoundError:
        return f"nothing: there is no store at {place}"
    except StoreError as error:
        return f"nothing: {error}"
    return f"{facts['native']} native, {facts['alien']} alien frames ({facts['bytes']} bytes) in {place}"


def _own_topology(origin: Origin) -> str | None:
    try:
        return own_topology(origin)
    except UsageError:
        return None
