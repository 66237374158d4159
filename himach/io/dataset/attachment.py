"""What lies in a store beside the frames of a dataset: the stamp of its origin, times, indexes and topologies.

`attach_origin()` puts it there, `origin_files()` gets it for a run whose origin is away.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from himach.errors import UsageError
from himach.io.dataset.origin_stamp import OriginStamp
from himach.io.store.store import Dataset, Store, StoreError
from himach.io.topology.loading import own_topology
from himach.io.trajectory.origin import Origin, Times
from himach.io.trajectory.xdr_file import XdrFile
from himach.io.trajectory.xdr_index import XdrIndex, decode, encode

if TYPE_CHECKING:
    from himach.io.server.client import Client
    from himach.io.server.served_store import ServedStore

STAMP, TIMES, INDEX = "origin.json", "times", "index"  # names of attachments
AUTHOR = "author"  # of what was pushed: which simulation (native/store/author.c)
MAX_TOPOLOGY_BYTES = 256 << 20


@dataclass(frozen=True)
class OriginFiles:
    """What a store has of an origin beside its stamp.

    `times` are those of all frames, float64 (n_frames,), ps; None where a format does not tell them without reading
    frames. `topologies` are suffix and content of each topology file, by its absolute path; the one used last comes
    last.
    """

    times: Times | None
    topologies: dict[str, tuple[str, bytes]]


def attached_stamp(dataset: Dataset | Client) -> OriginStamp | None:
    """Return the stamp of a dataset's origin; None if there is none, or it is damaged."""
    return OriginStamp.parse(dataset.attachment(STAMP))


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
    if before is not None:
        stamp = replace(stamp, topologies=before.topologies, seen=stamp.seen)
    if topology is None:
        with contextlib.suppress(UsageError):  # it has none: then every analysis names one
            topology = own_topology(origin)
    if topology is not None:
        stamp = _attach_topology(dataset, stamp, os.path.abspath(os.path.expanduser(topology)))
    indexes = {file.path: file.index for file, _ in origin.files() if isinstance(file, XdrFile)}
    for name, content in ((INDEX, encode(indexes) if indexes else None), (TIMES, _encode_times(origin))):
        if content is not None and dataset.attachment(name) != content:
            dataset.attach(name, content)
    if before is None or replace(before, seen=stamp.seen) != stamp or [*before.topologies] != [*stamp.topologies]:
        dataset.attach(STAMP, stamp.encode())


def _attach_topology(dataset: Dataset, stamp: OriginStamp, path: str) -> OriginStamp:
    """Attach a topology file unless it is there already; return the stamp that says so."""
    try:
        status = os.stat(path)
        state = f"{path} {status.st_size} {status.st_mtime_ns}".encode(errors="surrogateescape")
        name = f"topology-{hashlib.sha256(state).hexdigest()[:16]}"
        if status.st_size > MAX_TOPOLOGY_BYTES:
            return stamp
        if stamp.topologies.get(path) != name:
            dataset.attach(name, Path(path).read_bytes())
    except (OSError, StoreError):
        return stamp
    return stamp.with_topology(path, name)


def origin_files(store: Store | ServedStore, name: str, generation: bytes, stamp: OriginStamp) -> OriginFiles:
    """Return what is attached to a dataset beside its stamp."""
    dataset = store.dataset(name, generation, create=False)
    contents = {path: dataset.attachment(attached) for path, attached in stamp.topologies.items()}
    topologies = {path: (_suffix(path), content) for path, content in contents.items() if content is not None}
    return OriginFiles(_decode_times(dataset.attachment(TIMES), stamp.n_frames), topologies)


def _suffix(path: str) -> str:
    """Return the suffix by which MDAnalysis tells the format, with that of a compression."""
    suffixes = Path(path).suffixes
    return "".join(suffixes[-2:] if suffixes[-1:] in (["." + "gz"], ["." + "bz2"]) else suffixes[-1:])


def attached_indexes(store: Store | ServedStore, datasets: Sequence[tuple[str, bytes]]) -> dict[str, XdrIndex]:
    """Return the indexes of trajectory files that are attached to datasets, given by name and generation, by path."""
    known: dict[str, XdrIndex] = {}
    for name, generation in datasets:
        with contextlib.suppress(StoreError):
            dataset = store.dataset(name, generation, create=False)
            for path, index in decode(dataset.attachment(INDEX)).items():
                if path not in known or index.changed > known[path].changed:
                    known[path] = index
    return known


def _encode_times(origin: Origin) -> bytes | None:
    """Return the times of all frames as they are attached, or None where a format does not tell them."""
    return None if origin.known_times is None else np.ascontiguousarray(origin.known_times, dtype="<f8").tobytes()


def _decode_times(content: bytes | None, n_frames: int) -> Times | None:
    """Return the times that `_encode_times` encoded, or None."""
    if content is None or len(content) != 8 * n_frames:
        return None
    return np.frombuffer(content, dtype="<f8").astype(np.float64)
