"""Topologies: `load_topology()` parses and guesses once, for a Universe on every rank; `copy_topology()` copies fast.

The result is attached to the dataset in a store, so that later runs neither parse nor guess. Its name is a hash of the
topology file, the keywords, and the versions of Python, numpy and MDAnalysis. Its content (`encode()`) is a pickle
behind its CRC32C. Unpickling can run code, so `decode()` may only get bytes that no other user can have written; see
`himach.io.store.store.Dataset.own_attachment`.
"""

import contextlib
import functools
import hashlib
import json
import os
import pickle
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from himach.errors import HimachError, TrajectoryError, UsageError
from himach.io.store.bodhi import crc32c
from himach.io.store.store import StoreError
from himach.io.trajectories.file_failures import quietly, reason
from himach.io.trajectories.keywords import TOPOLOGY_KEYWORDS, parser_class
from himach.io.trajectories.origin import Origin, existing_path
from himach.io.trajectories.urls.byte_file import label, local_path

if TYPE_CHECKING:
    from MDAnalysis.core.topology import Topology

    from himach.io.store.store import Dataset

VERSION = 2  # of the attached format
MAX_BYTES = 256 << 20  # of a topology file whose parse is attached
MAX_ATTACHED = 4  # newest parses kept with a dataset
MAX_CACHED, MAX_CACHED_ATOMS = 8, 500_000  # parses in a process's memory; about 200 bytes per atom
_CONNECTIONS = frozenset({"bonds", "angles", "dihedrals", "impropers"})


def load_topology(
    topology: str | os.PathLike[str] | None,
    origin: Origin,
    keywords: Mapping[str, Any] | None = None,
    dataset: "Dataset | None" = None,
    attach: bool = True,
) -> "Topology":
    """Parse a topology and guess its missing attributes, as MDAnalysis.Universe does.

    For rank 0: the result is sent as a pickle, and other ranks make their Universe by
    ``Universe(topology, to_guess=())``, so nothing is parsed or guessed twice.
    """
    keywords = {**origin.keywords, **(keywords or {})}
    if topology is None:
        path = bundled_topology(origin)
        if path == origin.paths[0] and "format" in keywords:
            keywords.setdefault("topology_format", keywords["format"])
    else:
        path = existing_path(topology, "topology")
    path = local_path(path)
    name = _name(path, keywords)
    if name is None:
        return _guess(parse(path, keywords), path, origin, keywords)
    return _find_or_parse(dataset, attach, name, path, origin, keywords)


@dataclass
class _CachedParse:
    """A topology that this process has parsed or read; it must be copied before changes."""

    topology: "Topology"
    warnings: Sequence[tuple[str, str, int]]


_parses: dict[str, _CachedParse] = {}


def _find_or_parse(
    dataset: "Dataset | None", attach: bool, name: str, path: str, origin: Origin, keywords: Mapping[str, Any]
) -> "Topology":
    """Return the topology from memory or as attached, else parse it; repeat the warnings of parsing.

    Datasets of an ensemble share a topology: it is parsed once, and attached to the first of them.
    """
    entry = _parses.pop(name, None) or (None if dataset is None else _read_attached(dataset, name))
    if entry is None:
        entry = _parse_and_guess(path, origin, keywords)
        if dataset is not None and attach:
            _attach(dataset, name, entry)
    else:
        _check_atoms(entry.topology, path, origin)
        for text, source, line in entry.warnings:
            warnings.warn_explicit(text, UserWarning, source, line)
    _parses[name] = entry
    while len(_parses) > MAX_CACHED or sum(cached.topology.n_atoms for cached in _parses.values()) > MAX_CACHED_ATOMS:
        _parses.pop(next(iter(_parses)))
    return entry.topology


def _read_attached(dataset: "Dataset", name: str) -> _CachedParse | None:
    """Return an attached topology; None if it is missing or damaged."""
    try:
        topology, facts = decode(dataset.own_attachment(name) or b"")
    except ValueError:
        return None
    return _CachedParse(topology, facts["warnings"])


def _parse_and_guess(path: str, origin: Origin, keywords: Mapping[str, Any]) -> _CachedParse:
    """Parse a topology, guess missing attributes, and record the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        topology = _guess(parse(path, keywords), path, origin, keywords)
    for warning in caught:
        warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    return _CachedParse(topology, [(str(w.message), w.filename, w.lineno) for w in caught if w.category is UserWarning])


def _attach(dataset: "Dataset", name: str, entry: _CachedParse) -> None:
    """Attach a parse to a dataset if possible, and remove the oldest beyond `MAX_ATTACHED`."""
    content = encode(entry.topology, {"warnings": entry.warnings})
    if content is None:
        return
    with contextlib.suppress(StoreError, OSError):  # the next run parses again
        dataset.attach(name, content)
        # Leave the new one out: clocks may run backwards.
        others = [path for path in dataset.path.glob("x-parsed-*") if path.name != f"x-{name}"]
        for path in sorted(others, key=lambda path: path.stat().st_mtime_ns)[: 1 - MAX_ATTACHED]:
            path.unlink(missing_ok=True)


def _name(path: str, keywords: Mapping[str, Any]) -> str | None:
    """Return the name of a file's parse; None if it must not be cached, e.g. as it depends on more than the file."""
    import MDAnalysis
    import numpy as np

    if keywords.get("guess_bonds") or _guessed_attributes(keywords) & _CONNECTIONS or os.path.getsize(path) > MAX_BYTES:
        return None
    parser = parser_class(path, keywords.get("topology_format"))
    if parser is None or parser.__name__ == "ITPParser":  # an ITP file includes others
        return None
    try:
        versions = [VERSION, sys.version, np.__version__, MDAnalysis.__version__]
        how = json.dumps([versions, parser.__name__, keywords], sort_keys=True)
    except TypeError:  # objects, e.g. a guesser
        return None
    with open(path, "rb") as file:
        content = hashlib.file_digest(file, "sha256").digest()
    return f"parsed-{hashlib.sha256(content + how.encode()).hexdigest()[:32]}"


def bundled_topology(origin: Origin) -> str:
    """Return the topology file that comes with a dataset; raises UsageError if there is none."""
    if origin.topology is not None:
        return origin.topology
    path = origin.paths[0]
    if os.path.isdir(path) or parser_class(path, origin.keywords.get("format")) is None:
        raise UsageError(
            f"{path} holds no topology; name a topology file, too (for example a PDB, GRO, PSF, TPR or PRMTOP file)"
        )
    return path


def parse(path: str, keywords: Mapping[str, Any]) -> "Topology":
    """Parse a topology file."""
    from MDAnalysis.core.universe import _topology_from_file_like

    parser = parser_class(path, keywords.get("topology_format"))
    if parser is None:
        raise UsageError(
            f"{label(path)} is no topology that MDAnalysis reads; name one that it does (for example a PDB, GRO, PSF, "
            "TPR or PRMTOP file), or its format by the universe keyword topology_format, for example PDB"
        )
    others = {name: value for name, value in keywords.items() if name not in TOPOLOGY_KEYWORDS and name != "format"}
    try:
        topology = quietly(_topology_from_file_like, path, topology_format=parser, **others)
    except HimachError:
        raise
    except Exception as error:
        raise TrajectoryError(
            f"{label(path)} cannot be read as a topology: {reason(error.__cause__ or error)}"
        ) from error
    return topology


def _check_atoms(topology: "Topology", path: str, origin: Origin) -> None:
    if topology.n_atoms != origin.n_atoms:
        raise UsageError(
            f"{label(path)} has {topology.n_atoms} atoms, {origin.paths[0]} has {origin.n_atoms}; "
            "give the topology that belongs to the trajectory"
        )


def _guessed_attributes(keywords: Mapping[str, Any]) -> set[str]:
    return {*keywords.get("to_guess", ()), *keywords.get("force_guess", ())}


def _guess(parsed: "Topology", path: str, origin: Origin, keywords: Mapping[str, Any]) -> "Topology":
    """Let MDAnalysis guess the attributes that its Universe would, or those of the keywords."""
    from MDAnalysis import Universe
    from MDAnalysis.coordinates.memory import MemoryReader

    _check_atoms(parsed, path, origin)
    options = {name: keywords[name] for name in TOPOLOGY_KEYWORDS & keywords.keys() if name != "topology_format"}
    options.setdefault("context", _guesser())
    try:
        if options.get("guess_bonds") or _guessed_attributes(options) & _CONNECTIONS:  # by the first frame's positions
            positions = next(origin.read([0])).positions[None].copy()
            return quietly(Universe, parsed, positions, format=MemoryReader, **options)._topology
        return quietly(Universe, parsed, **options)._topology
    except HimachError:
        raise
    except Exception as error:
        raise TrajectoryError(f"{label(path)}: what the topology lacks cannot be guessed: {reason(error)}") from error


def _guesser() -> Any:
    """Return MDAnalysis's default guesser with a cache, so that it guesses once per atom name, not per atom."""
    from MDAnalysis.guesser.default_guesser import DefaultGuesser

    guesser = DefaultGuesser(None)
    guesser.guess_atom_element = functools.cache(guesser.guess_atom_element)
    return guesser


def encode(topology: "Topology", facts: dict[str, Any]) -> bytes | None:
    """Return a topology and facts about it as bytes; None if it cannot be pickled."""
    try:
        content = pickle.dumps((topology, facts), pickle.HIGHEST_PROTOCOL)
    except Exception:  # attributes may hold any object
        return None
    return crc32c(content).to_bytes(4, "little") + content


def decode(content: bytes) -> "tuple[Topology, dict[str, Any]]":
    """Return the topology and the facts of `encode`; raises ValueError if that fails."""
    view = memoryview(content)
    if crc32c(view[4:]).to_bytes(4, "little") != view[:4]:
        raise ValueError("damaged")
    try:
        topology, facts = pickle.loads(view[4:])
    except Exception as error:  # e.g. a class that no longer exists
        raise ValueError("cannot be rebuilt") from error
    return topology, facts


def copy_topology(topology: "Topology") -> "Topology":
    """Return a copy that shares nothing mutable; Topology.copy() loops over all names."""
    copied: Topology = pickle.loads(pickle.dumps(topology, pickle.HIGHEST_PROTOCOL))
    return copied
