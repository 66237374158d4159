"""What lies in a store beside the frames of a dataset: the stamp of its origin, times, indexes and topologies.

`attach_origin()` puts it there, `origin_files()` gets it for a run whose origin is away.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from himach.errors import UsageError
from himach.io.dataset.kept_index import (
    are_packed,
    indexes_in,
    newer_index,
    pack_indexes,
    pack_times,
    times_are_packed,
    times_in,
)
from himach.io.dataset.origin_stamp import OriginStamp
from himach.io.remote.byte_file import local_path, status_of
from himach.io.remote.url import absolute, is_url, suffixed
from himach.io.store.store import Dataset, Store, StoreError
from himach.io.trajectory.index.timeline import Timeline
from himach.io.trajectory.index.walk import taken
from himach.io.trajectory.index.xdr_index import Stored, XdrIndex
from himach.io.trajectory.origin import Origin
from himach.io.trajectory.xdr_file import XdrFile
from himach.io.universe.topology import own_topology

if TYPE_CHECKING:
    from himach.io.server.served_store import ServedStore
    from himach.io.store.cached_frames import CachedFrames

STAMP, TIMES, INDEX = "origin.json", "times", "index"  # names of attachments
COPIES = "copies"  # of each frame, natively, that were asked for when it was staged
AUTHOR = "author"  # of what was pushed: which simulation (native/store/author.c)
MAX_TOPOLOGY_BYTES = 256 << 20


@dataclass(frozen=True)
class OriginFiles:
    """What a store has of an origin beside its stamp.

    `times` are those of all frames, ps; None where a format does not tell them without reading
    frames. `topologies` are suffix and content of each topology file, by its absolute path; the one used last comes
    last.
    """

    times: Timeline | None
    topologies: dict[str, tuple[str, bytes]]


def attached_stamp(dataset: CachedFrames) -> OriginStamp | None:
    """Return the stamp of a dataset's origin; None if there is none, or it is damaged."""
    return OriginStamp.parse(dataset.attachment(STAMP))


def has_stamp(dataset: CachedFrames) -> bool:
    """Tell whether a dataset ever had an origin, even if its stamp is damaged or of another version."""
    return dataset.attachment(STAMP) is not None


def attach_origin(
    dataset: Dataset, stamp: OriginStamp, origin: Origin, topology: str | os.PathLike[str] | None
) -> None:
    """Attach to a dataset what a run without the origin needs.

    This must be done before frames are written: the stamp tells whether they are still those of the origin.

    Parameters
    ----------
    dataset
        Of the node's store; one rank of a node does this.
    stamp
        Of the origin as it is.
    origin
        Can be reached.
    topology
        The topology file that is used with it; None for the dataset's own, if it has one.

    Raises
    ------
    StoreError
        If the stamp could not be attached; nothing is said of a topology that could not.
    """
    before = attached_stamp(dataset)
    if before is not None and before.sequence > stamp.sequence:
        return  # another run has found the origin in a later state since this one opened it
    if before is not None:
        stamp = replace(stamp, topologies=before.topologies, seen=stamp.seen)
    if topology is None:
        with contextlib.suppress(UsageError):  # it has none: then every analysis names one
            topology = own_topology(origin)
    if topology is not None:
        stamp = _attach_topology(dataset, stamp, absolute(topology))
    _attach_index(dataset, origin)
    if before is None or replace(before, seen=stamp.seen) != stamp or [*before.topologies] != [*stamp.topologies]:
        dataset.attach(STAMP, stamp.encode())


def _attach_index(dataset: Dataset, origin: Origin) -> None:
    """Attach where the frames begin and when they were taken, unless that is there already."""
    indexes = {file.path: file.index for file, _ in origin.files() if isinstance(file, XdrFile)}
    if indexes and not are_packed(_content(dataset, INDEX), indexes):
        dataset.attach(INDEX, pack_indexes(indexes))
    times = origin.known_times
    if times is not None and not times_are_packed(_content(dataset, TIMES), times):
        dataset.attach(TIMES, pack_times(times))


def _content(dataset: CachedFrames, name: str) -> Stored | bytes | None:
    """Return what is attached: of this user's own store it is read where it is needed, else it is all brought."""
    if not isinstance(dataset, Dataset):
        return dataset.attachment(name)
    path = dataset.path / f"x-{name}"
    try:
        return Stored(os.fspath(path), 0, path.stat().st_size)
    except OSError:
        return None


def _attach_topology(dataset: Dataset, stamp: OriginStamp, path: str) -> OriginStamp:
    """Attach a topology file unless it is there already; return the stamp that says so."""
    try:
        status = status_of(path)
        state = f"{path} {status.size} {status.modified}".encode(errors="surrogateescape")
        name = f"topology-{hashlib.sha256(state).hexdigest()[:16]}"
        if status.size > MAX_TOPOLOGY_BYTES:
            return stamp
        if stamp.topologies.get(path) != name:
            dataset.attach(name, Path(local_path(path)).read_bytes())
    except (OSError, StoreError):
        return stamp
    return stamp.with_topology(path, name)


def origin_files(store: Store | ServedStore, name: str, generation: bytes, stamp: OriginStamp) -> OriginFiles:
    """Return what is attached to a dataset beside its stamp."""
    dataset = store.dataset(name, generation, create=False)
    contents = {path: dataset.attachment(attached) for path, attached in stamp.topologies.items()}
    topologies = {path: (suffix_of(path), content) for path, content in contents.items() if content is not None}
    times = times_in(dataset.attachment(TIMES), stamp.n_frames, lambda: indexes_in(_content(dataset, INDEX)))
    return OriginFiles(times, topologies)


def suffix_of(path: str) -> str:
    """Return the suffix by which MDAnalysis tells the format, with that of a compression."""
    suffixes = Path(suffixed(path) if is_url(path) else path).suffixes
    return "".join(suffixes[-2:] if suffixes[-1:] in (["." + "gz"], ["." + "bz2"]) else suffixes[-1:])


def attached_indexes(store: Store | ServedStore, datasets: Sequence[tuple[str, bytes]]) -> dict[str, XdrIndex]:
    """Return the indexes of trajectory files that are attached to datasets, given by name and generation, by path."""
    known: dict[str, XdrIndex] = {}
    for name, generation in datasets:
        with contextlib.suppress(StoreError):
            dataset = store.dataset(name, generation, create=False)
            content = _content(dataset, INDEX)
            newer = partial(newer_index, content.path) if isinstance(content, Stored) else _none
            for path, index in indexes_in(content).items():
                if path not in known or index.is_of(path):  # clocks do not tell which is newer
                    known[path] = taken(index, path, partial(newer, path))
    return known


def _none(path: str) -> None:
    """Return nothing: what a server keeps by now is not asked for."""
