"""A node's store as a run uses it: which store, which datasets in it fit a trajectory, and what is kept beside frames.

`open_store()` finds the store that the user chose, `find()` what it holds of a trajectory, `match()` what of that is
the trajectory as it is now. `keep_note()` keeps with the frames a note on the origin, the times of its frames, and the
topology.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from himach.errors import UsageError
from himach.frame import RawFrame
from himach.io.dataset.kept import FILE, INDEX_FILE, TIMES_FILE, Note, dataset_name, times_of
from himach.io.store.store import Dataset, Store, StoreError, default_place
from himach.io.topology.loading import own_topology
from himach.io.trajectory.origin import Origin
from himach.io.trajectory.xdr_file import XdrFile
from himach.io.trajectory.xdr_index import XdrIndex, decode, encode
from himach.parallel.communicator import node_name

if TYPE_CHECKING:
    from himach.io.server.client import Client

__all__ = [
    "Found",
    "Package",
    "find",
    "keep_note",
    "known_indexes",
    "match",
    "names_of",
    "open_store",
    "own_generation",
    "package",
    "read_some",
    "server_of",
]

MAX_TOPOLOGY_BYTES = 256 << 20
AUTO, OFF = "auto", "off"


@dataclass(frozen=True)
class Found:
    """A dataset in a node's store that goes by the name of a trajectory.

    Attributes
    ----------
    name, generation
        What the store knows it by.
    note
        What is kept of its origin.
    frames
        How many frames of it are cached there.
    """

    name: str
    generation: bytes
    note: Note
    frames: int


@dataclass(frozen=True)
class Package:
    """What is kept of an origin beside its note.

    Attributes
    ----------
    times
        See `himach.io.dataset.kept.times_of`.
    topologies
        Suffix and content of each topology file, by its absolute path; the one used last comes last.
    """

    times: bytes | None
    topologies: dict[str, tuple[str, bytes]]


def open_store(choice: str) -> tuple[Store | None, str]:
    """Open the store that the user chose.

    Parameters
    ----------
    choice
        ``"auto"``, ``"off"``, or a directory, in which ``{node}`` stands for the node's name.

    Returns
    -------
    Store or None
        None if there is to be no cache.
    str
        Why there is none although ``"auto"`` asked for it at its default place.

    Raises
    ------
    UsageError
        If a directory that the user named, also by ``$HIMACH_CACHE``, cannot hold a store.
    """
    if choice == OFF:
        return None, ""
    named = "--cache" if choice != AUTO else "$HIMACH_CACHE" if os.environ.get("HIMACH_CACHE") else None
    place = default_place() if choice == AUTO else Path(choice.replace("{node}", node_name()))
    try:
        return Store(place if named else None), ""
    except (StoreError, OSError) as error:
        reason = str(error) if isinstance(error, StoreError) else f"{place}: {error.strerror}"
        if named is None:
            return None, f"no frames are cached: {reason}; name a directory on a local disk with --cache"
        raise UsageError(
            f"{named} names {place}, which cannot hold the cache: {reason}; name a directory of your own on a local "
            "disk, or turn the cache off with --cache off"
        ) from error


def names_of(trajectories: Sequence[Path]) -> list[str]:
    """Return the names that the dataset of these trajectories may have: by its path, or as the user gave it."""
    names = [dataset_name(trajectories)]
    if len(trajectories) == 1:
        names.append(os.fspath(trajectories[0]))
    return list(dict.fromkeys(names))


def find(store: Store, names: Sequence[str]) -> list[Found]:
    """Return what a store holds under these names, the generations with most frames first."""
    found = []
    for name in names:
        for generation in store.generations(name):
            try:
                dataset = store.dataset(name, generation, create=False)
                facts = dataset.facts()
            except StoreError:
                continue
            note = Note.parse(dataset.kept_file(FILE)) or _pushed(dataset)
            if note is not None:
                found.append(Found(name, generation, note, facts["native"] + facts["alien"]))
    return sorted(found, key=lambda one: -one.frames)


def _pushed(dataset: Dataset) -> Note | None:
    """Return a note on a dataset that was never an origin's; None if it was, or if it holds nothing."""
    native = dataset.native
    if os.path.isabs(dataset.name) or not native:
        return None
    first = native.min()
    frames = read_some(dataset, [number for number in (first, first + 1) if number in native])
    return Note.pushed(dataset.name, dataset.generation, native.max() + 1, frames) if frames else None


def known_indexes(store: Store, found: Sequence[Found]) -> dict[str, XdrIndex]:
    """Return the indexes of trajectory files that are kept with datasets, by path."""
    known: dict[str, XdrIndex] = {}
    for one in found:
        with contextlib.suppress(StoreError):
            dataset = store.dataset(one.name, one.generation, create=False)
            for path, index in decode(dataset.kept_file(INDEX_FILE)).items():
                if path not in known or index.changed > known[path].changed:
                    known[path] = index
    return known


def match(origin: Origin, keywords: Mapping[str, Any], found: Sequence[Found]) -> tuple[Note, list[bytes]]:
    """Return a note on an origin, and the generations under which stores have its frames, or else may keep them.

    Parameters
    ----------
    origin
        Can be reached.
    keywords
        Keywords of MDAnalysis.
    found
        What stores hold under its name; generations of what it was before are left out.
    """
    note = Note.of(origin, keywords, [one.note for one in found])
    valid = [one.generation for one in found if one.note.verdict(note) != "changed"]
    return note, list(dict.fromkeys(valid)) or [_unused(note, found)]


def _unused(note: Note, found: Sequence[Found]) -> bytes:
    """Return a generation that no store has."""
    used = {one.generation for one in found}
    generation = note.generation
    while generation in used:
        generation += b"'"
    return generation


def own_generation(held: Sequence[Found], generations: Sequence[bytes]) -> bytes:
    """Return which of the generations a store uses, given what it holds: the one that it holds most of."""
    return next((one.generation for one in held if one.generation in generations), generations[0])


def keep_note(dataset: Dataset, note: Note, origin: Origin, topology: str | os.PathLike[str] | None) -> None:
    """Keep with a dataset what a run without the origin needs.

    This must be done before frames are kept: the note tells whether they are still those of the origin.

    Parameters
    ----------
    dataset
        Of the node's store; one rank of a node keeps notes.
    note
        On the origin as it is.
    origin
        Can be reached.
    topology
        The topology file that is used with it; None for the dataset's own, if it has one.

    Raises
    ------
    StoreError
        If the note could not be kept; nothing is said of a topology that could not.
    """
    before = Note.parse(dataset.kept_file(FILE))
    if before is not None:
        note = replace(note, topologies=before.topologies, seen=note.seen)
    if topology is None:
        with contextlib.suppress(UsageError):  # it has none: then every analysis names one
            topology = own_topology(origin)
    if topology is not None:
        note = _keep_topology(dataset, note, os.path.abspath(os.path.expanduser(topology)))
    indexes = {file.path: file.index for file, _ in origin.files() if isinstance(file, XdrFile)}
    for name, content in ((INDEX_FILE, encode(indexes) if indexes else None), (TIMES_FILE, times_of(origin))):
        if content is not None and dataset.kept_file(name) != content:
            dataset.keep(name, content)
    if before is None or replace(before, seen=note.seen) != note or [*before.topologies] != [*note.topologies]:
        dataset.keep(FILE, note.encode())


def _keep_topology(dataset: Dataset, note: Note, path: str) -> Note:
    """Keep a topology file unless it is kept already; return the note that says so."""
    try:
        status = os.stat(path)
        state = f"{path} {status.st_size} {status.st_mtime_ns}".encode(errors="surrogateescape")
        name = f"topology-{hashlib.sha256(state).hexdigest()[:16]}"
        if status.st_size > MAX_TOPOLOGY_BYTES:
            return note
        if note.topologies.get(path) != name:
            dataset.keep(name, Path(path).read_bytes())
    except (OSError, StoreError):
        return note
    return note.with_topology(path, name)


def package(store: Store, found: Found) -> Package:
    """Return what is kept beside the note of a dataset."""
    dataset = store.dataset(found.name, found.generation, create=False)
    contents = {path: dataset.kept_file(name) for path, name in found.note.topologies.items()}
    topologies = {path: (_suffix(path), content) for path, content in contents.items() if content is not None}
    return Package(dataset.kept_file(TIMES_FILE), topologies)


def _suffix(path: str) -> str:
    """Return the suffix by which MDAnalysis tells the format, with that of a compression."""
    suffixes = Path(path).suffixes
    return "".join(suffixes[-2:] if suffixes[-1:] in (["." + "gz"], ["." + "bz2"]) else suffixes[-1:])


def read_some(dataset: Dataset | None, numbers: Iterable[int]) -> list[RawFrame]:
    """Return those of a few frames that a node's store holds."""
    if dataset is None:
        return []
    return [
        replace(frame, positions=frame.positions.copy())
        for number in numbers
        for frame in dataset.read([number])
        if frame is not None
    ]


def server_of(dataset: Dataset | None) -> Client | None:
    """Return a connection to the server of a dataset's store, with the dataset open in it, if there is a server."""
    if dataset is None or not (dataset.store.path / "server" / "socket").exists():
        return None
    from himach.io.server.client import find as find_server

    client = None
    try:
        client = find_server(dataset.store.path)
        return None if client is None else client.open(dataset.name, dataset.generation)
    except StoreError:  # it refuses, or does not know the dataset: the store can be read without it
        if client is not None:
            client.close()
        return None
