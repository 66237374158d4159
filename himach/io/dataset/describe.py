"""What a dataset is, in plain values: `describe()`, for ``himach info``."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from himach.errors import TrajectoryError, UsageError
from himach.io.dataset.attachment import origin_files
from himach.io.dataset.lookup import Candidate, deputy, find, names_of, read_some, stand_in, wanted_frames
from himach.io.dataset.origin_stamp import OriginStamp
from himach.io.server.served_store import ServedStore
from himach.io.store.place import open_store, store_place
from himach.io.store.sizes import show_size
from himach.io.store.store import Dataset, Store, StoreError, StoreNotFoundError
from himach.io.timemajor.holding import frames_held
from himach.io.topology.loading import load_topology, own_topology
from himach.io.trajectory.origin import Origin, open_origin

NO_ORIGIN = "away; this is what was noted when it was last seen, "


def describe(
    trajectories: Sequence[str | os.PathLike[str]],
    topology: str | os.PathLike[str] | None = None,
    keywords: Mapping[str, Any] | None = None,
    cache: str | None = None,
) -> dict[str, Any]:
    """Describe a dataset, or what this node's store knows of one whose origin is away.

    Parameters
    ----------
    trajectories
        Files that follow one another, a frame directory, or the name of a staged or pushed dataset.
    topology
        A topology file, which is checked to fit.
    keywords
        Keywords of MDAnalysis.Universe.
    cache
        Directory of this node's store, ``{node}`` standing for the node's name; None: its default place.

    Returns
    -------
    dict
        ``format`` (one name, or one for each file where they differ), ``files``, ``origin`` (what there is to say of an
        origin that is away, or None), ``frames``, ``atoms``, ``first_time``, ``last_time`` (ps; None if only frames
        tell that are not there) and ``dt`` (ps; None where uneven), ``box`` (of the first frame: Å and degrees, or
        None), ``velocities``, ``forces``, ``topology`` (the file that was given or that the dataset brings, or None),
        ``fingerprint``, ``warnings`` (what there is to say about the files), ``cached`` (what the store holds of it).

    Raises
    ------
    UsageError, TrajectoryError
        As `open_origin` and `load_topology` do.
    """
    paths = [Path(os.path.expanduser(path)) for path in trajectories]
    cached = _Cached(cache, paths, keywords or {})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # they are told in the answer
        if cached.found and not all(path.exists() for path in paths):
            origin, shown, away = cached.stand_in(topology)
        else:
            origin, away = open_origin(trajectories, topology, keywords), None
            shown = _own_topology(origin)
            cached.choose(origin)
        if topology is not None:
            load_topology(topology, origin, keywords)
            shown = os.path.abspath(os.path.expanduser(topology))
        times = _times(origin)
    kinds = list(dict.fromkeys(origin.kinds))
    return {
        "format": kinds[0] if len(kinds) == 1 else kinds,
        "files": list(origin.paths),
        "origin": away,
        "frames": origin.n_frames,
        "atoms": origin.n_atoms,
        **times,
        "velocities": origin.has_velocities,
        "forces": origin.has_forces,
        "topology": shown,
        "fingerprint": origin.fingerprint,
        "warnings": list(origin.warnings),
        "cached": cached.text(origin.n_frames),
    }


def as_text(facts: Mapping[str, Any]) -> str:
    """Return what `describe` tells as lines for a terminal, with units."""
    box, dt = facts["box"], facts["dt"]
    fields = ["positions", *(name for name in ("velocities", "forces") if facts[name])]
    formats = facts["format"] if isinstance(facts["format"], list) else [facts["format"]]
    lines = [
        ("format", ", ".join(formats)),
        *(("file", str(path)) for path in facts["files"]),
        *([("origin", facts["origin"])] if facts["origin"] else []),
        ("topology", facts["topology"] or "none: name a topology file"),
        ("frames", f"{facts['frames']:,}"),
        ("atoms", f"{facts['atoms']:,}"),
        ("holds", ", ".join(fields)),
        ("time", f"{_shown(facts['first_time'])} to {_shown(facts['last_time'])} ps"),
        ("between frames", "uneven or unknown" if dt is None else f"{_shown(dt)} ps"),
        ("box", "none" if box is None else "{:.5g} x {:.5g} x {:.5g} Å, {:.5g} {:.5g} {:.5g} degrees".format(*box)),
        ("cached", facts["cached"]),
        ("fingerprint", facts["fingerprint"]),
        *(("warning", text) for text in dict.fromkeys(facts["warnings"])),
    ]
    width = max(len(name) for name, _ in lines)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in lines)


class _Cached:
    """What this node's store holds of a trajectory.

    Attributes
    ----------
    found
        Datasets in the store that may be it; the first is the one that counts.
    """

    def __init__(self, cache: str | None, paths: Sequence[Path], keywords: Mapping[str, Any]) -> None:
        self._place: Path | str = store_place(cache)
        self._keywords = keywords
        self._store: Store | ServedStore | None = None
        self._nothing = f"nothing in {self._place}"
        self.found: list[Candidate] = []
        try:
            self._store = self._open(cache)
            self.found = find(self._store, names_of(paths))
        except StoreNotFoundError:
            self._nothing = f"nothing: there is no store at {self._place}"
        except StoreError as error:
            self._nothing = f"nothing: {error}"

    def _open(self, cache: str | None) -> Store | ServedStore:
        if cache is None or not cache.startswith("tcp://"):
            return open_store(cache, create=False, read_only=True)
        from himach.io.dataset.lookup import open_cache

        store, reason = open_cache(cache)
        assert store is not None
        self._place = cache.partition("?")[0]
        if reason:
            warnings.warn(reason, stacklevel=2)
        return store

    def choose(self, origin: Origin) -> None:
        """Leave out what is not of the origin as it is now."""
        if self.found:
            stamp = OriginStamp.of(origin, self._keywords, [one.stamp for one in self.found])
            self.found = [one for one in self.found if one.stamp.compare(stamp) != "changed"]

    def stand_in(self, topology: str | os.PathLike[str] | None) -> tuple[Origin, str | None, str]:
        """Return what stands for an origin that is away, its topology, and what to say of it."""
        assert self._store is not None
        chosen = deputy(self.found, self._keywords)
        assert chosen is not None
        best, _ = chosen
        self.found = [best]
        files = origin_files(self._store, best.name, best.generation, best.stamp)
        wanted = wanted_frames(best.stamp, files.times, range(best.stamp.n_frames))
        frames = read_some(self._store.dataset(best.name, best.generation, create=False), wanted)
        origin = stand_in(best.stamp, files.times, self._keywords, frames, topology)
        seen = best.stamp.seen
        away = NO_ORIGIN + time.strftime("%Y-%m-%d %H:%M", time.localtime(seen)) if seen else "none: it was pushed"
        used = next(reversed(files.topologies), None)
        return origin, used, away

    def text(self, n_frames: int) -> str:
        """Say what is cached of the dataset's frames, and where."""
        if self._store is None or not self.found:
            return self._nothing
        try:
            dataset = self._store.dataset(self.found[0].name, self.found[0].generation, create=False)
            native = frames_held(dataset) if isinstance(dataset, Dataset) else dataset.native
            alien, nbytes = dataset.alien, dataset.facts()["bytes"]
        except StoreError as error:
            return f"nothing: {error}"
        cached = len(native | alien)
        share = "all" if cached == n_frames else f"{cached:,}"
        return (
            f"{share} of {n_frames:,} frames ({len(native):,} native, {len(alien):,} alien, {show_size(nbytes)}) "
            f"in {self._place}"
        )


def _times(origin: Origin) -> dict[str, Any]:
    """Return times and the first box, as far as frames that can be had tell them."""
    known: dict[str, Any] = dict.fromkeys(("first_time", "last_time", "dt", "box"))
    try:
        (first,) = origin.read([0])
        known["first_time"] = first.time
        known["box"] = None if first.box is None else [float(value) for value in first.box]
        known["last_time"] = float(origin.times([origin.n_frames - 1])[0])
        known["dt"] = origin.dt(range(origin.n_frames))
    except TrajectoryError:
        if origin.present:
            raise
    return known


def _shown(picoseconds: float | None) -> str:
    """Return a time to a tenth of a femtosecond, so that what went through float32 reads as it was meant."""
    return "unknown" if picoseconds is None else f"{round(picoseconds, 4):.10g}"


def _own_topology(origin: Origin) -> str | None:
    try:
        return own_topology(origin)
    except UsageError:
        return None
