"""The simulations that runs of a bundle read, as they are here: `find_data()` tells by content whose is whose."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from himach.errors import HimachError, UsageError
from himach.files import content_digest
from himach.io.trajectory.origin import read_fingerprint
from himach.opening.member import truncate
from himach.opening.member_table import WILD, read_members

Record = Mapping[str, Any]


class OtherDataError(HimachError):
    """What is given is not what the run read."""


@dataclass(frozen=True)
class Given:
    """Where simulations are here."""

    trajectories: Sequence[Path] = ()
    topologies: Sequence[Path] = ()
    ensemble: str | None = None


def find_data(record: Record, given: Given) -> dict[str, Any]:
    """Return where the simulations of a run are here: the fields trajectory, topology and ensemble of its record."""
    if "ensemble" in record:
        members = _members(record, given)
        return {"trajectory": [path for one in members for path in one["trajectory"]], "ensemble": members}
    return {
        "trajectory": _trajectory(record, given.trajectories),
        "topology": None if record["topology"] is None else _topology(record, given.topologies),
    }


def _trajectory(record: Record, given: Sequence[Path]) -> list[str]:
    names, dataset = [os.path.basename(path) for path in record["trajectory"]], record["dataset"]
    count = len(names)
    read = f"{', '.join(names)} of {dataset['frames']:,} frames of {dataset['atoms']:,} atoms"
    choices = [given[at : at + count] for at in range(len(given) - count + 1)]
    if not choices:
        raise OtherDataError(f"it read {read}: give {'it' if count == 1 else f'these {count} files'} by --trajectory")
    for paths in choices:
        if all(map(os.path.exists, paths)) and read_fingerprint(paths) == dataset["fingerprint"]:
            return [os.path.abspath(path) for path in paths]
    absent = [os.fspath(path) for path in given if not path.exists()]
    if count == 1 and absent:  # datasets, whose content is told when they are opened
        return absent[:1]
    raise _other("trajectory", given, read)


def _topology(record: Record, given: Sequence[Path]) -> str:
    name = os.path.basename(record["topology"])
    if not given:
        raise OtherDataError(f"it read the topology {name}: give it by --topology")
    if (path := _of_content(record, record["topology"], given)) is None:
        raise _other("topology", given, name)
    return path


def _of_content(
    record: Record, topology: str | None, given: Sequence[Path], digest_of: Callable[[str], str] = content_digest
) -> str | None:
    """Return the one that is a topology of the run by its content, any if nobody knows that; None if none is."""
    if topology is None:
        return None
    digest = record["digests"].get(os.path.normpath(os.path.join(record["directory"], topology)))
    there = [path for path in given if not WILD.search(str(path)) or path.exists()]
    if absent := [path for path in there if not path.is_file()]:
        raise UsageError(f"there is no topology {absent[0]}")
    return next((os.path.abspath(path) for path in there if digest in (None, digest_of(str(path)))), None)


def _other(what: str, given: Sequence[Path], read: str) -> OtherDataError:
    paths = ", ".join(map(str, given))
    return OtherDataError(f"{paths}: another {what} than it read, which was {read}; the content is not the same")


def _members(record: Record, given: Given) -> list[dict[str, Any]]:
    """Return the members of the record's ensemble with the files that they have here."""
    names = [member["name"] for member in record["ensemble"]]
    if given.ensemble is None:
        raise OtherDataError(f"it read {len(names)} simulations: name them by --ensemble, as {truncate(names)}")
    patterns = [path for path in given.topologies if not path.exists()]
    if len(patterns) > 1:
        raise UsageError(f"there is no topology {' and no '.join(map(str, patterns))}; one pattern may name members'")
    here = {member.name: member for member in read_members(given.ensemble, *patterns)}
    if lacking := [name for name in names if name not in here]:
        raise OtherDataError(
            f"{given.ensemble} has no {truncate(lacking)}, which it read; a table of name, trajectory and topology may "
            f"name {'it' if len(lacking) == 1 else 'them'}"
        )
    digest_of = functools.cache(content_digest)  # members may share a topology
    members: list[dict[str, Any]] = []
    others: dict[str, list[str]] = {"trajectory": [], "topology": []}
    for told in record["ensemble"]:
        name, own = told["name"], here[told["name"]]
        topologies = given.topologies if own.topology is None else [Path(own.topology)]
        topology = _of_content(record, told["topology"], topologies, digest_of)
        if all(map(os.path.exists, own.trajectories)) and read_fingerprint(own.trajectories) != told["fingerprint"]:
            others["trajectory"].append(name)
        if topology is None and (told["topology"], own.topology) != (None, None):
            others["topology"].append(name)
        paths = [os.path.abspath(path) if os.path.exists(path) else os.fspath(path) for path in own.trajectories]
        members.append({**told, "trajectory": paths, "topology": topology})
    for what, names in others.items():
        if names:
            raise OtherDataError(f"{truncate(names)}: another {what} than it read; the content is not the same")
    return members
