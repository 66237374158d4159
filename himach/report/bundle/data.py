"""The simulations that runs of a bundle read, as they are here: `find_data()` tells by content whose is whose."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from himach.errors import HimachError, UsageError
from himach.files import content_digest
from himach.io.trajectory.origin import fingerprint_of
from himach.opening.member import Member, some_of
from himach.opening.member_table import WILD, members_of

__all__ = ["Given", "OtherDataError", "find_data"]


class OtherDataError(HimachError):
    """What is given is not what the run read."""


@dataclass(frozen=True)
class Given:
    """Where simulations are here.

    Attributes
    ----------
    trajectories, topologies
        For runs of one trajectory, in any order; but files of one that follow one another.
    ensemble
        For runs of many, as `himach.opening.member_table.members_of` takes them.
    """

    trajectories: Sequence[Path] = ()
    topologies: Sequence[Path] = ()
    ensemble: str | None = None


def find_data(record: Mapping[str, Any], given: Given) -> dict[str, Any]:
    """Return where the simulations of a run are here: the fields trajectory, topology and ensemble of its record.

    Raises
    ------
    OtherDataError
        If nothing that is given is what the run read.
    UsageError
        If a file cannot be read, or an ensemble is none.
    """
    if isinstance(record.get("ensemble"), list):
        members = _members(record, given)
        paths = [path for member in members for path in member["trajectory"]]
        return {"trajectory": paths, "topology": None, "ensemble": members}
    return {"trajectory": _trajectory(record, given.trajectories), "topology": _topology(record, given.topologies)}


def _trajectory(record: Mapping[str, Any], given: Sequence[Path]) -> list[str]:
    names = [os.path.basename(path) for path in record["trajectory"]]
    dataset, count = record["dataset"], len(names)
    read = f"{', '.join(names)} of {dataset['frames']:,} frames of {dataset['atoms']:,} atoms"
    choices = [given[at : at + count] for at in range(len(given) - count + 1)]
    if not choices:
        raise OtherDataError(f"it read {read}: give {'it' if count == 1 else f'these {count} files'} by --trajectory")
    for paths in choices:
        if all(map(os.path.exists, paths)) and fingerprint_of(paths) == dataset["fingerprint"]:
            return [os.path.abspath(path) for path in paths]
    named = [paths[0] for paths in choices if count == 1 and not os.path.exists(paths[0])]
    if named:  # of datasets, whose content is told when they are opened
        return [os.fspath(named[0])]
    others = ", ".join(str(path) for path in given)
    raise OtherDataError(f"{others}: another trajectory than it read, which was {read}; the content is not the same")


def _topology(record: Mapping[str, Any], given: Sequence[Path]) -> str | None:
    if record.get("topology") is None:
        return None
    name = os.path.basename(record["topology"])
    if not given:
        raise OtherDataError(f"it read the topology {name}: give it by --topology")
    found = _of_content(given, _digest(record, record["topology"]))
    if found is not None:
        return found
    others = ", ".join(str(path) for path in given)
    raise OtherDataError(f"{others}: another topology than it read, which was {name}; the content is not the same")


def _members(record: Mapping[str, Any], given: Given) -> list[dict[str, Any]]:
    """Return the members of the record's ensemble with the files that they have here."""
    told = record["ensemble"]
    if given.ensemble is None:
        raise OtherDataError(f"it read {len(told)} simulations: name them by --ensemble, as {_names(told)}")
    patterns = [path for path in given.topologies if not path.exists()]
    if len(patterns) > 1:
        raise UsageError(f"there is no topology {' and no '.join(map(str, patterns))}; one pattern may name members'")
    here = {member.name: member for member in members_of(given.ensemble, *patterns)}
    lacking = [one for one in told if one["name"] not in here]
    if lacking:
        raise OtherDataError(
            f"{given.ensemble} has no {_names(lacking)}, which it read; a table of name, trajectory and topology may "
            f"name {'it' if len(lacking) == 1 else 'them'}"
        )
    here = {one["name"]: _with_topology(record, one, here[one["name"]], given.topologies) for one in told}
    for what, check in (("trajectory", _is_other_trajectory), ("topology", _is_other_topology)):
        others = [one for one in told if check(record, one, here[one["name"]])]
        if others:
            raise OtherDataError(f"{_names(others)}: another {what} than it read; the content is not the same")
    return [_as_here(one, here[one["name"]]) for one in told]


def _with_topology(record: Mapping[str, Any], told: Mapping[str, Any], member: Member, given: Sequence[Path]) -> Member:
    """Return a member with one of the topologies that are given, if it needs one and has none."""
    if member.topology is not None or told.get("topology") is None:
        return member
    return replace(member, topology=_of_content(given, _digest(record, told["topology"])))


def _of_content(given: Sequence[Path], digest: str | None) -> str | None:
    """Return the topology that has this content, any if nobody knows it; None if there is none."""
    there = [path for path in given if not WILD.search(str(path)) or path.exists()]
    return next((os.path.abspath(path) for path in there if digest in (None, _content(path))), None)


def _as_here(told: Mapping[str, Any], member: Member) -> dict[str, Any]:
    topology = None if member.topology is None else os.path.abspath(member.topology)
    paths = [os.path.abspath(path) if os.path.exists(path) else os.fspath(path) for path in member.trajectories]
    return {**told, "trajectory": paths, "topology": topology}


def _is_other_trajectory(record: Mapping[str, Any], told: Mapping[str, Any], member: Member) -> bool:
    paths = member.trajectories
    return all(map(os.path.exists, paths)) and fingerprint_of(paths) != told["fingerprint"]


def _is_other_topology(record: Mapping[str, Any], told: Mapping[str, Any], member: Member) -> bool:
    if told.get("topology") is None or member.topology is None:
        return told.get("topology") is not member.topology
    digest = _digest(record, told["topology"])
    return digest is not None and _content(Path(member.topology)) != digest


def _digest(record: Mapping[str, Any], path: str) -> str | None:
    digest = record["digests"].get(os.path.normpath(os.path.join(record["directory"], path)))
    return None if digest is None else str(digest)


def _content(path: Path) -> str:
    if not path.is_file():
        raise UsageError(f"there is no topology {path}")
    state = path.stat()
    return _content_then(str(path), state.st_size, state.st_mtime_ns)


@functools.lru_cache(1024)
def _content_then(path: str, size: int, changed: int) -> str:
    """Return the digest of a file of that state: members of an ensemble may have one topology."""
    return content_digest(path)


def _names(members: Sequence[Mapping[str, Any]]) -> str:
    return some_of([str(member["name"]) for member in members])
