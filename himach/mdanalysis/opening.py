"""How one process opens a dataset for MDAnalysis: `open_dataset()`, what is cached of it and where the rest comes from.

It is what the ranks of a run do together (`himach.runner.opening`), by one process for itself: a script that reads
frames by MDAnalysis has no other ranks.
"""

from __future__ import annotations

import json
import os
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from himach.errors import TrajectoryError, UsageError
from himach.io.dataset.attachment import OriginFiles, attach_origin, attached_indexes, origin_files
from himach.io.dataset.lookup import (
    Candidate,
    deputy,
    find,
    kept_otherwise,
    match,
    names_of,
    open_cache,
    own_generation,
    read_some,
    server_of,
    stand_in,
    times_between,
    wanted_frames,
)
from himach.io.dataset.origin_stamp import OriginStamp
from himach.io.dataset.origin_watch import OriginNote, OriginWatch, at_rest
from himach.io.dataset.source import Source
from himach.io.store.quota import set_chosen_quota
from himach.io.store.store import Dataset, Store, StoreError, StoreNotFoundError
from himach.io.trajectory.origin import Origin, open_origin

if TYPE_CHECKING:
    from MDAnalysis.core.topology import Topology

    from himach.io.server.client import Client
    from himach.io.server.served_store import ServedStore

__all__ = ["OpenDataset", "open_dataset"]


@dataclass
class OpenDataset:
    """A dataset, open in this process; in another one, where it comes as a pickle, its store is opened anew.

    Attributes
    ----------
    origin
        Where it is stored for good, or what a store knows of it (`origin.present` is false).
    cache
        As `open_dataset` got it.
    name, generation
        Of the dataset in the store; the name is empty where there is no store.
    keep
        Whether frames that are read from the origin are kept there.
    note
        Of the origin as it was found; None where it is away.
    attached
        Suffix and content of the topology files that the store has, by path.
    cached
        What the store holds; None without a store.
    """

    origin: Origin
    cache: str
    name: str = ""
    generation: bytes = b""
    keep: bool = False
    note: OriginNote | None = None
    attached: dict[str, tuple[str, bytes]] | None = None
    cached: Dataset | Client | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "cached": None, "attached": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.name:
            store, quota = _open_store(self.cache)
            self.cached = None if store is None else _dataset(store, self.name, self.generation, quota > 0)
            self.keep = self.keep and self.cached is not None

    def source(self) -> Source:
        """Return where frames come from: the store, else the origin; what is read there is kept."""
        watch = None if self.note is None else OriginWatch(self.note, self.origin, "this process", leads=True)
        return Source(self.origin, self.cached, self.keep, server_of(self.cached), watch=watch)

    def topology(self, keywords: Mapping[str, Any]) -> Topology | None:
        """Return the topology that the dataset brings, or that was used with it last; None if it is not known."""
        from himach.io.topology.loading import load_topology

        own = self.cached if isinstance(self.cached, Dataset) else None
        attached = self.attached or {}
        used = next(reversed(attached), None)
        try:
            if used is None:
                return load_topology(None, self.origin, keywords, own)
        except UsageError:  # it brings none
            return None
        if os.path.exists(used):
            return load_topology(used, self.origin, keywords, own)
        suffix, content = attached[used]
        with tempfile.TemporaryDirectory(prefix="himach-") as folder:
            file = Path(folder, f"topology{suffix}")
            file.write_bytes(content)
            return load_topology(file, self.origin, keywords, own, attach=False)


def open_dataset(
    trajectories: Sequence[str | os.PathLike[str]],
    cache: str = "auto",
    keywords: Mapping[str, Any] | None = None,
    named: bool = False,
) -> OpenDataset:
    """Open a dataset.

    Parameters
    ----------
    trajectories
        A trajectory file, several that follow one another, a frame directory, or the name of a staged or pushed
        dataset.
    cache
        ``"auto"``, ``"off"``, or the directory of a store.
    keywords
        Keywords of MDAnalysis for it: dt, time_offset, format.
    named
        It is the name of a dataset in the store, whatever else is called so.

    Raises
    ------
    UsageError
        There is no such dataset, or it cannot be opened in this way.
    TrajectoryError
        It cannot be read.
    """
    paths = [Path(path) for path in trajectories]
    keywords = dict(keywords or {})
    store, quota = _open_store(cache)
    found = [] if store is None else find(store, list(map(str, trajectories)) if named else names_of(paths))
    if store is not None and (named or not all(os.path.exists(os.path.expanduser(path)) for path in paths)):
        chosen = deputy(found, keywords)
        if chosen is not None:
            return _open_named(store, cache, found, *chosen, keywords, quota)
    return at_rest(paths, lambda: _open_files(store, cache, found, paths, keywords, quota))


def _open_store(cache: str) -> tuple[Store | ServedStore | None, int]:
    """Open the store that the user chose; return also how many bytes it may hold, 0 where nothing is kept."""
    if cache == "off":
        return None, 0
    store, reason = open_cache(cache)
    if reason:
        warnings.warn(reason, stacklevel=2)
    if not isinstance(store, Store):  # none, or another user's
        return store, 0
    quota, reason = set_chosen_quota(store)
    if reason:
        warnings.warn(reason, stacklevel=2)
    return store, quota


def _dataset(store: Store | ServedStore, name: str, generation: bytes, create: bool) -> Dataset | Client | None:
    """Open a dataset of a store; None, with a warning, where it cannot be: then frames come from the origin."""
    try:
        return store.dataset(name, generation, create=create)
    except StoreNotFoundError:  # there is no room to make it
        return None
    except StoreError as error:
        warnings.warn(f"no frames are cached: {error}", stacklevel=2)
        return None


def _open_files(
    store: Store | ServedStore | None,
    cache: str,
    found: Sequence[Candidate],
    paths: Sequence[Path],
    keywords: Mapping[str, Any],
    quota: int,
) -> OpenDataset:
    """Open trajectory files that can be reached, and what the store has of them."""
    name = names_of(paths)[0]
    mine = [one for one in found if one.name == name]
    if store is None:
        origin = open_origin(paths, None, keywords, {})
        return OpenDataset(origin, cache, note=OriginNote.of(origin))
    origin = open_origin(paths, None, keywords, attached_indexes(store, [(one.name, one.generation) for one in mine]))
    stamp, generations = match(origin, keywords, mine)
    generation = own_generation(mine, generations)
    opened = OpenDataset(origin, cache, note=OriginNote.of(origin, stamp))
    opened.cached = _dataset(store, name, generation, quota > 0)
    if opened.cached is None:
        return opened
    opened.name, opened.generation, opened.keep = name, generation, quota > 0
    if opened.keep and isinstance(opened.cached, Dataset):
        try:
            attach_origin(opened.cached, stamp, origin, None)
        except StoreError as error:
            warnings.warn(f"no frames are kept in the cache: {error}", stacklevel=2)
            opened.keep = False
    known = next((one.stamp for one in mine if one.generation == generation), stamp)
    opened.attached = origin_files(store, name, generation, known).topologies
    return opened


def _open_named(
    store: Store | ServedStore,
    cache: str,
    found: Sequence[Candidate],
    best: Candidate,
    generations: Sequence[bytes],
    keywords: Mapping[str, Any],
    quota: int,
) -> OpenDataset:
    """Open a dataset that goes by its name, or whose files are away; its files are read where they are as they were."""
    if reason := kept_otherwise(best, keywords):
        warnings.warn(reason, stacklevel=2)
    generation = own_generation([one for one in found if one.name == best.name], generations)
    cached = _dataset(store, best.name, generation, quota > 0)
    if cached is None:
        raise TrajectoryError(f"{best.name} is not in the cache any more, and there is no file of that name")
    files = origin_files(store, best.name, best.generation, best.stamp)
    opened = OpenDataset(_stand_in(best.stamp, files, keywords, cached), cache, best.name, generation)
    opened.cached, opened.attached = cached, files.topologies
    if not best.stamp.is_pushed and all(map(os.path.exists, best.stamp.paths)):
        given = {**json.loads(best.stamp.keywords), **keywords}
        origin = open_origin(best.stamp.paths, None, given, attached_indexes(store, [(best.name, best.generation)]))
        stamp, valid = match(origin, given, [one for one in found if one.name == best.name])
        if generation in valid:  # else the cache has it as it was when it was staged
            opened.origin, opened.note, opened.keep = origin, OriginNote.of(origin, stamp), quota > 0
    return opened


def _stand_in(stamp: OriginStamp, files: OriginFiles, keywords: Mapping[str, Any], cached: Dataset | Client) -> Origin:
    """Return what stands in for an origin that is away; of a pushed dataset, the frames that are there tell times."""
    from himach.zazen.anywhere import describe, mark_all

    frames = range(stamp.n_frames)
    wanted = wanted_frames(stamp, files.times, frames)
    times = files.times
    if stamp.is_pushed:
        wanted = sorted({*wanted, *describe(mark_all(cached, frames), len(frames)).some})
    some = [replace(frame, box=None if frame.box is None else frame.box.copy()) for frame in read_some(cached, wanted)]
    if times is None and some:
        times = times_between(stamp.n_frames, some)
    return stand_in(stamp, times, keywords, some)
