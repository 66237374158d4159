"""Descriptions of datasets for ``himach info``, in plain values: `describe()`."""

import contextlib
import os
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from himach.errors import TrajectoryError, UsageError
from himach.io.datasets.lookup import open_cache
from himach.io.datasets.opening import open_dataset
from himach.io.datasets.request import FramesRequest
from himach.io.datasets.subsets import list_subsets
from himach.io.server.survey import ServedStore
from himach.io.store.cached_frames import CachedFrames
from himach.io.store.quota import open_store, store_place
from himach.io.store.sizes import show_size
from himach.io.store.store import Dataset, Store, StoreError, StoreNotFoundError
from himach.io.trajectories.origin import Origin
from himach.io.trajectories.urls.url_names import absolute, strip_scheme
from himach.io.universe.topology import bundled_topology, load_topology
from himach.ranks.communicator import alone
from himach.selection import Selected

NO_ORIGIN = "away; this is what was noted when it was last seen, "


def describe(
    trajectory: str | os.PathLike[str],
    topology: str | os.PathLike[str] | None = None,
    keywords: Mapping[str, Any] | None = None,
    cache: str | None = None,
) -> dict[str, Any]:
    """Describe a dataset, from this node's store if its origin is away.

    `dict`: ``format``, ``files``, ``origin`` (a text if it is away, or None),
    ``frames``, ``atoms``, ``first_time``, ``last_time`` (ps; None if the frames that give them are missing), ``dt``
    (ps; None if uneven), ``box`` (of the first frame: Å and degrees, or None), ``velocities``, ``forces``,
    ``topology`` (the file given or the dataset's own, or None), ``fingerprint``, ``warnings`` (about the files),
    and ``cached`` (a text about the store).
    """
    place, store, nothing = _open_store(cache)
    topology_file = None if topology is None else Path(strip_scheme(topology))
    request = FramesRequest([Path(strip_scheme(trajectory))], topology_file, keywords or {}, cache="off")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the result lists them
        opened = open_dataset(alone(), request, store=(store, 0))
        origin, away, topology_path = opened.origin, None, None
        if opened.files is None:
            with contextlib.suppress(UsageError):
                topology_path = bundled_topology(origin)
        else:
            topology_path, date = next(reversed(opened.files.topologies), None), opened.stamp.seen
            away = NO_ORIGIN + time.strftime("%Y-%m-%d %H:%M", time.localtime(date)) if date else "none: it was pushed"
        if topology is not None:
            load_topology(topology, origin, keywords)
            topology_path = absolute(topology)
        times = _times(origin, opened.frames)
    return {
        "format": ", ".join(dict.fromkeys(origin.kinds)),
        "files": list(origin.paths),
        "origin": away,
        "frames": origin.n_frames,
        "atoms": origin.n_atoms,
        **times,
        "velocities": origin.has_velocities,
        "forces": origin.has_forces,
        "topology": topology_path,
        "fingerprint": origin.fingerprint,
        "warnings": list(origin.warnings),
        "cached": _cached_frames(opened.cached, origin.n_frames, place, nothing),
    }


def as_text(facts: Mapping[str, Any]) -> str:
    """Return the result of `describe` as lines for a terminal, with units."""
    box, dt = facts["box"], facts["dt"]
    fields = ["positions", *(name for name in ("velocities", "forces") if facts[name])]
    lines = [
        ("format", facts["format"]),
        *(("file", str(path)) for path in facts["files"]),
        *([("origin", facts["origin"])] if facts["origin"] else []),
        ("topology", facts["topology"] or "none: name a topology file"),
        ("frames", f"{facts['frames']:,}"),
        ("atoms", f"{facts['atoms']:,}"),
        ("holds", ", ".join(fields)),
        ("time", f"{_format_time(facts['first_time'])} to {_format_time(facts['last_time'])} ps"),
        ("between frames", "uneven or unknown" if dt is None else f"{_format_time(dt)} ps"),
        ("box", "none" if box is None else "{:.5g} x {:.5g} x {:.5g} Å, {:.5g} {:.5g} {:.5g} degrees".format(*box)),
        ("cached", facts["cached"]),
        ("fingerprint", facts["fingerprint"]),
        *(("warning", text) for text in dict.fromkeys(facts["warnings"])),
    ]
    width = max(len(name) for name, _ in lines)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in lines)


def _open_store(cache: str | None) -> tuple[Path | str, Store | ServedStore | None, str]:
    """Open the store read-only; return its place, the store, and the text for a dataset that it does not have."""
    place: Path | str = store_place(cache)
    try:
        if cache is None or not cache.startswith("tcp://"):
            return place, open_store(cache, create=False, read_only=True), f"nothing in {place}"
        place = cache.partition("?")[0]
        store, reason = open_cache(cache)
        if reason:
            warnings.warn(reason, stacklevel=3)
        return place, store, f"nothing in {place}"
    except StoreNotFoundError:
        return place, None, f"nothing: there is no store at {place}"
    except StoreError as error:
        return place, None, f"nothing: {error}"


def _cached_frames(cached: CachedFrames | None, n_frames: int, place: Path | str, nothing: str) -> str:
    """Return a text about the dataset's cached frames."""
    if cached is None:
        return nothing
    try:
        native, alien, nbytes = cached.native, cached.alien, cached.facts()["bytes"]
    except StoreError as error:
        return f"nothing: {error}"
    count = len(native | alien)
    share = "all" if count == n_frames else f"{count:,}"
    extra = "".join(
        f"; {len(sub.atoms):,} atoms of {len(sub.dataset.alien):,} frames ({show_size(sub.dataset.facts()['bytes'])})"
        for sub in (list_subsets(cached) if isinstance(cached, Dataset) else ())
    )
    return (
        f"{share} of {n_frames:,} frames ({len(native):,} native, {len(alien):,} alien, {show_size(nbytes)}){extra} in "
        f"{place}"
    )


def _times(origin: Origin, frames: Selected) -> dict[str, Any]:
    """Return times and the first box, as far as available frames give them."""
    result: dict[str, Any] = dict.fromkeys(("first_time", "last_time", "dt", "box"))
    try:
        (first,) = origin.read([0])
        result["first_time"] = first.time
        result["box"] = None if first.box is None else [float(value) for value in first.box]
        result["last_time"] = float(origin.times([origin.n_frames - 1])[0])
        result["dt"] = origin.dt(frames)
    except TrajectoryError:
        if origin.present:
            raise
    return result


def _format_time(picoseconds: float | None) -> str:
    """Return a time rounded to 0.1 fs, which hides errors of float32."""
    return "unknown" if picoseconds is None else f"{round(picoseconds, 4):.10g}"
