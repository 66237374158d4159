"""Local files of the simulations that runs of a bundle read: `find_data()` matches them by content."""

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from himach.errors import HimachError, UsageError
from himach.files import content_digest
from himach.io.datasets.member import WILD, read_members, truncate
from himach.io.trajectories.origin import read_fingerprint

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Inputs:
    """Local files of simulations: trajectories and topologies, or an ensemble."""

    trajectories: Sequence[Path] = ()
    topologies: Sequence[Path] = ()
    ensemble: str | None = None


def find_data(record: Record, data: Inputs) -> dict[str, Any]:
    """Return the local simulations of a run: the fields trajectory, topology and ensemble of its record."""
    if "ensemble" in record:
        members = _members(record, data)
        return {"trajectory": [path for member in members for path in member["trajectory"]], "ensemble": members}
    return {
        "trajectory": _trajectory(record, data.trajectories),
        "topology": None if record["topology"] is None else _topology(record, data.topologies),
    }


def _trajectory(record: Record, candidates: Sequence[Path]) -> list[str]:
    names, dataset = [os.path.basename(path) for path in record["trajectory"]], record["dataset"]
    count = len(names)
    text = f"{', '.join(names)} of {dataset['frames']:,} frames of {dataset['atoms']:,} atoms"
    choices = [candidates[at : at + count] for at in range(len(candidates) - count + 1)]
    if not choices:
        raise HimachError(f"it read {text}: give {'it' if count == 1 else f'these {count} files'} by --trajectory")
    for paths in choices:
        if all(map(os.path.exists, paths)) and read_fingerprint(paths) == dataset["fingerprint"]:
            return [os.path.abspath(path) for path in paths]
    missing = [os.fspath(path) for path in candidates if not path.exists()]
    if count == 1 and missing:  # datasets, whose content is checked when they are opened
        return missing[:1]
    raise _mismatch("trajectory", candidates, text)


def _topology(record: Record, candidates: Sequence[Path]) -> str:
    name = os.path.basename(record["topology"])
    if not candidates:
        raise HimachError(f"it read the topology {name}: give it by --topology")
    if (path := _match_topology(record, record["topology"], candidates)) is None:
        raise _mismatch("topology", candidates, name)
    return path


def _match_topology(
    record: Record, topology: str | None, candidates: Sequence[Path], get_digest: Callable[[str], str] = content_digest
) -> str | None:
    """Return the topology with the recorded digest, any topology if none is recorded; None if none matches."""
    if topology is None:
        return None
    digest = record["digests"].get(os.path.normpath(os.path.join(record["directory"], topology)))
    existing = [path for path in candidates if not WILD.search(str(path)) or path.exists()]
    if missing := [path for path in existing if not path.is_file()]:
        raise UsageError(f"there is no topology {missing[0]}")
    return next((os.path.abspath(path) for path in existing if digest in (None, get_digest(str(path)))), None)


def _mismatch(kind: str, candidates: Sequence[Path], text: str) -> HimachError:
    paths = ", ".join(map(str, candidates))
    return HimachError(f"{paths}: another {kind} than it read, which was {text}; the content is not the same")


def _members(record: Record, data: Inputs) -> list[dict[str, Any]]:
    """Return the members of the record's ensemble with their local files."""
    names = [member["name"] for member in record["ensemble"]]
    if data.ensemble is None:
        raise HimachError(f"it read {len(names)} simulations: name them by --ensemble, as {truncate(names)}")
    patterns = [path for path in data.topologies if not path.exists()]
    if len(patterns) > 1:
        raise UsageError(f"there is no topology {' and no '.join(map(str, patterns))}; one pattern may name members'")
    local_members = {member.name: member for member in read_members(data.ensemble, *patterns)}
    if missing := [name for name in names if name not in local_members]:
        raise HimachError(
            f"{data.ensemble} has no {truncate(missing)}, which it read; a table of name, trajectory and topology may "
            f"name {'it' if len(missing) == 1 else 'them'}"
        )
    get_digest = functools.cache(content_digest)  # members may share a topology
    members: list[dict[str, Any]] = []
    mismatches: dict[str, list[str]] = {"trajectory": [], "topology": []}
    for entry in record["ensemble"]:
        name, local = entry["name"], local_members[entry["name"]]
        topologies = data.topologies if local.topology is None else [Path(local.topology)]
        topology = _match_topology(record, entry["topology"], topologies, get_digest)
        if (
            all(map(os.path.exists, local.trajectories))
            and read_fingerprint(local.trajectories) != entry["fingerprint"]
        ):
            mismatches["trajectory"].append(name)
        if topology is None and (entry["topology"], local.topology) != (None, None):
            mismatches["topology"].append(name)
        paths = [os.path.abspath(path) if os.path.exists(path) else os.fspath(path) for path in local.trajectories]
        members.append({**entry, "trajectory": paths, "topology": topology})
    for kind, names in mismatches.items():
        if names:
            raise HimachError(f"{truncate(names)}: another {kind} than it read; the content is not the same")
    return members
