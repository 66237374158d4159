"""Topologies: `load_topology()` parses once and guesses once, for a Universe on every rank."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from himach.errors import HimachError, TrajectoryError, UsageError
from himach.io.files import TOPOLOGY_KEYWORDS
from himach.io.messages import reason
from himach.io.origin import Origin, existing
from himach.io.readerfile import quietly

if TYPE_CHECKING:
    from MDAnalysis.core.topology import Topology

__all__ = ["load_topology", "own_topology"]

_CONNECTIONS = frozenset({"bonds", "angles", "dihedrals", "impropers"})


def load_topology(
    topology: str | os.PathLike[str] | None, origin: Origin, keywords: Mapping[str, Any] | None = None
) -> Topology:
    """Parse a topology and guess what it lacks, as MDAnalysis.Universe does.

    For rank 0: the result travels as a pickle, and other ranks make their Universe by
    ``Universe(topology, to_guess=())``: nothing is parsed or guessed twice.

    Parameters
    ----------
    topology
        A topology file; None takes the dataset's own (a frame directory's, or a trajectory such as PDB or GRO).
    origin
        The dataset that it is for.
    keywords
        Keywords of MDAnalysis.Universe, e.g. topology_format, to_guess, atom_style.

    Raises
    ------
    UsageError
        If there is no such file, or no topology is given and the trajectory holds none.
    TrajectoryError
        If the topology cannot be parsed, or has another number of atoms than the trajectory.
    """
    keywords = {**origin.keywords, **(keywords or {})}
    if topology is None:
        path = own_topology(origin)
        if path == origin.paths[0] and "format" in keywords:
            keywords.setdefault("topology_format", keywords["format"])
    else:
        path = existing(topology, "topology")
    parsed = _parse(path, keywords)
    if parsed.n_atoms != origin.n_atoms:
        raise TrajectoryError(
            f"{path} has {parsed.n_atoms} atoms, {origin.paths[0]} has {origin.n_atoms}; "
            "give the topology that belongs to the trajectory"
        )
    return _guess(parsed, path, origin, keywords)


def own_topology(origin: Origin) -> str:
    """Return the topology file that a dataset brings; raises UsageError if it brings none."""
    if origin.topology is not None:
        return origin.topology
    path = origin.paths[0]
    if os.path.isdir(path) or _parser(path, origin.keywords.get("format")) is None:
        raise UsageError(
            f"{path} holds no topology; give one with --topology (for example a PDB, GRO, PSF, TPR or PRMTOP file)"
        )
    return path


def _parser(path: str, format_: Any) -> Any:
    """Return MDAnalysis's parser, or None if there is none that reads more than the number of atoms."""
    from MDAnalysis.core._get_readers import get_parser_for
    from MDAnalysis.topology.MinimalParser import MinimalParser

    try:
        parser = quietly(get_parser_for, path, format=format_)
    except (ValueError, TypeError):
        return None
    return None if parser is MinimalParser else parser


def _parse(path: str, keywords: Mapping[str, Any]) -> Topology:
    from MDAnalysis.core.universe import _topology_from_file_like

    format_ = keywords.get("topology_format")
    if _parser(path, format_) is None:
        raise UsageError(
            f"{path} is no topology that MDAnalysis reads; give one with --topology (for example a PDB, GRO, PSF, TPR "
            "or PRMTOP file), or name its format with --universe topology_format=PDB"
        )
    others = {name: value for name, value in keywords.items() if name not in TOPOLOGY_KEYWORDS and name != "format"}
    try:
        return quietly(_topology_from_file_like, path, topology_format=format_, **others)
    except HimachError:
        raise
    except Exception as error:
        raise TrajectoryError(f"{path} cannot be read as a topology: {reason(error.__cause__ or error)}") from error


def _guess(parsed: Topology, path: str, origin: Origin, keywords: Mapping[str, Any]) -> Topology:
    """Let MDAnalysis guess the attributes that its Universe would, or those that the keywords ask for."""
    from MDAnalysis import Universe

    wanted = {name: keywords[name] for name in TOPOLOGY_KEYWORDS & keywords.keys() if name != "topology_format"}
    guessed = {*wanted.get("to_guess", ()), *wanted.get("force_guess", ())}
    try:
        if wanted.get("guess_bonds") or guessed & _CONNECTIONS:
            return _guess_with_positions(parsed, origin, wanted)
        return quietly(Universe, parsed, **wanted)._topology
    except HimachError:
        raise
    except Exception as error:
        raise TrajectoryError(f"{path}: what the topology lacks cannot be guessed: {reason(error)}") from error


def _guess_with_positions(parsed: Topology, origin: Origin, wanted: dict[str, Any]) -> Topology:
    """Guess bonds too, which takes the positions of the first frame."""
    from MDAnalysis import Universe
    from MDAnalysis.coordinates.memory import MemoryReader

    first = next(origin.read([0]))
    return quietly(Universe, parsed, first.positions[None].copy(), format=MemoryReader, **wanted)._topology
