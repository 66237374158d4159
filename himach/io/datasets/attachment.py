"""Attachments of a dataset in a store: the stamp of its origin, times, indexes and topologies."""

import contextlib
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from himach.errors import UsageError
from himach.io.datasets.origin_stamp import OriginStamp
from himach.io.server.survey import ServedStore
from himach.io.store.cached_frames import CachedFrames
from himach.io.store.store import Dataset, Store, StoreError
from himach.io.trajectories.origin import Origin
from himach.io.trajectories.timeline import Times
from himach.io.trajectories.urls.byte_file import local_path, read_status
from himach.io.trajectories.urls.url_names import absolute, is_url, local_file_name
from himach.io.trajectories.xdr_file import XdrFile
from himach.io.trajectories.xdr_index import (
    Content,
    XdrIndex,
    are_packed,
    load_indexes,
    load_times,
    pack_indexes,
    pack_times,
)
from himach.io.universe.topology import bundled_topology

STAMP, TIMES, INDEX = "origin.json", "times", "index"  # names of attachments
COPIES = "copies"  # number of native copies of each frame requested when it was staged
AUTHOR = "author"  # simulation that pushed the frames (native/store/author.c)
MAX_TOPOLOGY_BYTES = 256 << 20


@dataclass(frozen=True)
class OriginFiles:
    """Attachments of an origin other than its stamp."""

    times: Times | None
    topologies: dict[str, tuple[str, bytes]]


def read_stamp(dataset: CachedFrames) -> OriginStamp | None:
    """Return the stamp of a dataset's origin; None if it is missing or damaged."""
    return OriginStamp.parse(dataset.attachment(STAMP))


def has_stamp(dataset: CachedFrames) -> bool:
    """Tell whether a dataset ever had an origin, even if its stamp is damaged or of another version."""
    return dataset.attachment(STAMP) is not None


def attach_origin(
    dataset: Dataset, stamp: OriginStamp, origin: Origin, topology: str | os.PathLike[str] | None
) -> None:
    """Attach what a run without the origin needs, before frames are written: the stamp tells whether they match."""
    previous = read_stamp(dataset)
    if previous is not None and previous.sequence > stamp.sequence:
        return  # another run has since found the origin in a later state
    if previous is not None:
        stamp = replace(stamp, topologies=previous.topologies, seen=stamp.seen)
    if topology is None:
        with contextlib.suppress(UsageError):  # without one every analysis names its topology
            topology = bundled_topology(origin)
    if topology is not None:
        stamp = _attach_topology(dataset, stamp, absolute(topology))
    _attach_index(dataset, origin)
    if previous is None or replace(previous, seen=stamp.seen) != stamp or [*previous.topologies] != [*stamp.topologies]:
        dataset.attach(STAMP, stamp.encode())


def _attach_index(dataset: Dataset, origin: Origin) -> None:
    """Attach the indexes of files and the times of frames unless they are attached already."""
    indexes = {file.path: file.index for file in origin.files if isinstance(file, XdrFile)}
    if indexes and not are_packed(_read_content(dataset, INDEX), indexes):
        dataset.attach(INDEX, pack_indexes(indexes))
    times = origin.known_times
    if isinstance(times, np.ndarray) and dataset.attachment(TIMES) != (content := pack_times(times)):
        dataset.attach(TIMES, content)


def _read_content(dataset: CachedFrames, name: str) -> Content | None:
    """Return an attachment: its path, to be mapped, in this user's own store, else its bytes."""
    return f"{dataset.path}/x-{name}" if isinstance(dataset, Dataset) else dataset.attachment(name)


def _attach_topology(dataset: Dataset, stamp: OriginStamp, path: str) -> OriginStamp:
    """Attach a topology file unless it is attached already; return the updated stamp."""
    try:
        status = read_status(path)
        state = f"{path} {status.size} {status.modified}".encode(errors="surrogateescape")
        name = f"topology-{hashlib.sha256(state).hexdigest()[:16]}"
        if status.size > MAX_TOPOLOGY_BYTES:
            return stamp
        if stamp.topologies.get(path) != name:
            dataset.attach(name, Path(local_path(path)).read_bytes())
    except (OSError, StoreError):
        return stamp
    others = {other_path: attachment for other_path, attachment in stamp.topologies.items() if other_path != path}
    return replace(stamp, topologies={**others, path: name})  # the last entry is the one used last


def read_origin_files(store: Store | ServedStore, name: str, generation: bytes, stamp: OriginStamp) -> OriginFiles:
    """Return the attached times and topologies of a dataset."""
    dataset = store.dataset(name, generation, create=False)
    contents = {path: dataset.attachment(attachment) for path, attachment in stamp.topologies.items()}
    topologies = {path: (format_suffix(path), content) for path, content in contents.items() if content is not None}
    return OriginFiles(load_times(dataset.attachment(TIMES), stamp.n_frames), topologies)


def format_suffix(path: str) -> str:
    """Return the suffix by which MDAnalysis detects the format, including one for compression."""
    suffixes = Path(local_file_name(path) if is_url(path) else path).suffixes
    return "".join(suffixes[-2:] if suffixes[-1:] in (["." + "gz"], ["." + "bz2"]) else suffixes[-1:])


def read_indexes(store: Store | ServedStore, datasets: Sequence[tuple[str, bytes]]) -> dict[str, XdrIndex]:
    """Return the attached indexes of trajectory files by path; datasets are given by name and generation."""
    indexes: dict[str, XdrIndex] = {}
    for name, generation in datasets:
        with contextlib.suppress(StoreError):
            dataset = store.dataset(name, generation, create=False)
            for path, index in load_indexes(_read_content(dataset, INDEX)).items():
                if path not in indexes or index.is_current():  # clocks do not tell which is newer
                    indexes[path] = index
    return indexes
