"""`OriginChoice`: what a trajectory is, its files as they were opened or what a store has in their place.

`choose_origin()` finds that out, for one process or for all ranks, which share what the first one found;
`load_attached()` loads the topology that lies beside a dataset's frames.
"""

from __future__ import annotations

import json
import os
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from himach.io.dataset.lookup import Candidate, disambiguated, kept_otherwise, match, offline_candidate
from himach.io.dataset.origin_stamp import OriginStamp
from himach.io.dataset.origin_watch import OriginNote, at_rest
from himach.io.remote.byte_file import is_there
from himach.io.remote.url import absolute
from himach.io.trajectory.index.xdr_index import XdrIndex
from himach.io.trajectory.origin import Origin, open_origin
from himach.io.universe.topology import load_topology

if TYPE_CHECKING:
    from MDAnalysis.core.topology import Topology

    from himach.io.store.store import Dataset

__all__ = ["OriginChoice", "are_there", "choose_origin", "load_attached", "reopened"]

PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class OriginChoice:
    """What a trajectory is.

    Attributes
    ----------
    origin
        Its files, opened; None if they are away.
    stamp
        Of the origin, as it is or was; None if no store asks for one.
    note
        Of the origin as it is; None if it is away.
    name, generations
        Of the dataset in stores: the content is in any of these generations, and each store uses one.
    found
        What in a store stands in for an origin that is away; None if it is not.
    """

    origin: Origin | None
    stamp: OriginStamp | None
    note: OriginNote | None
    name: str
    generations: Sequence[bytes]
    found: Candidate | None = None

    @property
    def is_pushed(self) -> bool:
        """Whether a simulation pushed the dataset."""
        return self.origin is None and self.stamp is not None and self.stamp.is_pushed


def are_there(paths: Sequence[PathLike]) -> bool:
    """Tell whether all files of a trajectory are there."""
    return all(map(is_there, paths))


def choose_origin(
    name: str,
    trajectories: Sequence[PathLike],
    keywords: Mapping[str, Any],
    found: Sequence[Candidate],
    opened: Callable[[], Origin],
    *,
    by_name: bool | None = None,
    stamped: bool = True,
) -> OriginChoice:
    """Open the files of a trajectory, or find out what of a store stands in for them.

    Parameters
    ----------
    name
        Of the dataset in stores, where files are opened.
    trajectories
        The files, or the name of a dataset.
    keywords
        Of MDAnalysis.
    found
        What stores hold under the names that it may have.
    opened
        Opens the files.
    by_name
        True: it is a name, whatever files are called so; False: there have to be files; None: files, if all are there.
    stamped
        Whether any store asks for the stamp of files.

    Raises
    ------
    UsageError, TrajectoryError
        As `offline_candidate` and `open_origin` do.
    """
    if by_name or (by_name is None and not are_there(trajectories)):
        chosen = offline_candidate(found, keywords)
        if chosen is not None:
            best, generations = chosen
            if reason := kept_otherwise(best, keywords):
                warnings.warn(reason, stacklevel=2)
            return OriginChoice(None, disambiguated(best, found), None, best.name, generations, best)

    def of_files() -> OriginChoice:
        origin = opened()
        if not stamped:
            return OriginChoice(origin, None, OriginNote.of(origin), name, [])
        stamp, generations = match(origin, keywords, [one for one in found if one.name == name])
        return OriginChoice(origin, stamp, OriginNote.of(origin, stamp), name, generations)

    return at_rest(list(trajectories), of_files)


def reopened(
    choice: OriginChoice,
    keywords: Mapping[str, Any],
    found: Sequence[Candidate],
    known: Callable[[], Mapping[str, XdrIndex]],
) -> OriginChoice:
    """Return the same with the files of a dataset that goes by its name, where they are there, and as they were."""
    best = choice.found
    if best is None or best.stamp.is_pushed or not all(map(is_there, best.stamp.paths)):
        return choice
    given = {**json.loads(best.stamp.keywords), **keywords}
    origin = open_origin(best.stamp.paths, None, given, known())
    stamp, valid = match(origin, given, [one for one in found if one.name == best.name])
    generations = [one for one in choice.generations if one in valid]
    if not generations:  # the cache has it as it was when it was staged
        return choice
    return OriginChoice(origin, stamp, OriginNote.of(origin, stamp), best.name, generations, best)


def load_attached(
    topology: PathLike | None,
    origin: Origin,
    keywords: Mapping[str, Any],
    attached: Mapping[str, tuple[str, bytes]],
    own: Dataset | None,
) -> Topology:
    """Load the topology that the user names, if it can be reached, else the one that is attached to a dataset.

    Parameters
    ----------
    topology
        That the user names; None for the one used last.
    origin
        Whose frames it is for; it need not be there.
    keywords
        Of MDAnalysis.
    attached
        Suffix and content of topologies, by path; the one used last comes last.
    own
        The dataset in this user's own store, to which parsed topologies are attached.

    Raises
    ------
    UsageError
        As `load_topology` does.
    """
    path = None if topology is None else absolute(topology)
    used = path if path is not None else next(reversed([*attached]), None)
    keywords = dict(keywords)
    if path is not None:  # the kept keywords speak of another file
        keywords.setdefault("topology_format", None)
    elif used == origin.paths[0] and "format" in origin.keywords:  # a trajectory that brings its topology
        keywords.setdefault("topology_format", origin.keywords["format"])
    if used is None or used not in attached or (path is not None and is_there(path)):
        return load_topology(topology, origin, keywords, own, attach=False)
    suffix, content = attached[used]
    with tempfile.TemporaryDirectory(prefix="himach-") as folder:
        file = Path(folder, f"topology{suffix}")
        file.write_bytes(content)
        return load_topology(file, origin, keywords, own, attach=False)
