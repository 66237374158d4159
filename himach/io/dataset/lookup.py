"""Which datasets of a node's store have the frames of a trajectory, and what stands in for one that is away.

`find()` says what a store holds under a trajectory's names, `match()` what of that is the trajectory as it is now,
`stand_in()` makes an origin of what a store knows.

`OriginChoice`: what a trajectory is, its files as they were opened or what a store has in their place.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from himach.errors import TrajectoryError, UsageError
from himach.frame import RawFrame
from himach.io.dataset.attachment import AUTHOR, attached_stamp, has_stamp
from himach.io.dataset.origin_stamp import OriginStamp, frame_keywords, latest
from himach.io.dataset.origin_watch import OriginNote, at_rest
from himach.io.remote.byte_file import is_there
from himach.io.remote.url import absolute, is_url
from himach.io.server.remote_store import RemoteStore
from himach.io.server.survey import ServedStore, server_of_choice
from himach.io.store.bodhi import ServerRefusedError
from himach.io.store.cached_frames import CachedFrames, base_name
from himach.io.store.quota import open_chosen, owner_of
from himach.io.store.store import Dataset, Store, StoreConflictError, StoreError
from himach.io.trajectory.index.xdr_index import XdrIndex
from himach.io.trajectory.keywords import frame_names
from himach.io.trajectory.origin import Origin, open_origin
from himach.io.universe.topology import load_topology

if TYPE_CHECKING:
    from MDAnalysis.core.topology import Topology


@dataclass(frozen=True)
class Candidate:
    """A dataset in a node's store that goes by the name of a trajectory: its stamp, and how many frames are cached."""

    name: str
    generation: bytes
    stamp: OriginStamp
    frames: int
    author: str = ""


def dataset_name(paths: Sequence[str | os.PathLike[str]]) -> str:
    """Return the name of the dataset that these trajectory files make: its absolute path; of several, one for all."""
    names = [*map(absolute, paths)]
    first = os.fsencode(names[0]).decode("utf-8", "backslashreplace")
    if len(names) == 1:
        return first
    others = hashlib.sha256(b"\0".join(map(os.fsencode, names))).hexdigest()[:16]
    return f"{first} and {len(names) - 1} more ({others})"


def names_of(trajectories: Sequence[Path]) -> list[str]:
    """Return the names that the dataset of these trajectories may have: by its path, or as the user gave it."""
    names = [dataset_name(trajectories)]
    if len(trajectories) == 1:
        names.append(names[0] if is_url(trajectories[0]) else os.fspath(trajectories[0]))
    return list(dict.fromkeys(names))


def open_cache(choice: str) -> tuple[Store | ServedStore | None, str]:
    """Open the store that the user of a run chose: as `open_chosen`, or another user's by the server that serves it."""
    if choice.startswith("tcp://"):
        return _open_remote(choice)
    found = owner_of(choice)
    if found is not None and os.path.exists(found[0] / "server" / "socket"):  # False where this user may not look
        try:
            return ServedStore(*found), ""
        except ServerRefusedError:
            raise
        except StoreError as error:
            return None, f"no cache is used: {error}"
    return open_chosen(choice)


def _open_remote(choice: str) -> tuple[RemoteStore, str]:
    """Open what a server and its peers hold, and name those that do not answer."""
    server = server_of_choice(choice)
    assert server is not None
    store = RemoteStore(server)
    return store, f"no answer from {store.silent}: what they hold is not seen" if store.silent else ""


def find(store: Store | ServedStore, names: Sequence[str]) -> list[Candidate]:
    """Return what a store holds under these names, the generations with most frames first."""
    found = []
    for name in names:
        for generation in store.generations(name):
            try:
                dataset = store.dataset(name, generation, create=False)
                facts = dataset.facts()
            except StoreError:
                continue
            stamp = attached_stamp(dataset) if has_stamp(dataset) else _pushed(dataset)
            if stamp is not None:
                author = (dataset.attachment(AUTHOR) or b"").decode(errors="replace")
                found.append(Candidate(name, generation, stamp, facts["native"] + facts["alien"], author))
    return sorted(found, key=lambda one: -one.frames)


def _pushed(dataset: CachedFrames) -> OriginStamp | None:
    """Return the stamp of a dataset that was never an origin's; None if it was, or if it holds nothing."""
    other = base_name(dataset.name) != dataset.name  # no frames, but parts of some
    ends = None if other or os.path.isabs(dataset.name) or is_url(dataset.name) else dataset.ends(native=True)
    if ends is None:
        return None
    first, last = ends
    frames = read_some(dataset, [first, first + 1])
    return OriginStamp.pushed(dataset.name, dataset.generation, last + 1, frames) if frames else None


def resolve_name(best: Candidate, found: Iterable[Candidate]) -> OriginStamp:
    """Return the stamp of a dataset; of a pushed one, with its simulation's words and the first frame of any store."""
    stamp = best.stamp
    if not stamp.is_pushed:
        return stamp
    alike = [one for one in found if one.name == best.name and one.stamp.content == stamp.content]
    author = max((one.author for one in alike), default="")
    return replace(stamp, content=f"{stamp.content} {author}", first_frame=min(one.stamp.first_frame for one in alike))


def offline_candidate(found: Sequence[Candidate], keywords: Mapping[str, Any]) -> tuple[Candidate, list[bytes]] | None:
    """Return which dataset stands in for an origin that is away, and all generations of its content."""
    fit = matching(found, keywords)
    if not fit:
        return None
    refuse_mixed(fit)
    last = latest([one.stamp for one in fit])
    best = next(one for one in fit if one.stamp == last)
    newer = [one.stamp for one in found if one.name == best.name and one.stamp.sequence > last.sequence]
    if newer:
        kept, other = (_shown(json.loads(stamp.keywords)) for stamp in (last, latest(newer)))
        raise UsageError(
            f"{best.name} is away, and has changed since it was read with {kept}: what the cache has of it as it was "
            f"last was read with {other}; give the same, or make the file readable"
        )
    return best, list(dict.fromkeys(one.generation for one in fit if one.stamp.content == last.content))


def matching(found: Sequence[Candidate], keywords: Mapping[str, Any]) -> list[Candidate]:
    """Return the datasets kept with these keywords of MDAnalysis, else with these and others, if all with the same."""
    kept = {one.stamp.keywords: json.loads(one.stamp.keywords) for one in found}
    names = frame_names({kind for one in found for kind in one.stamp.kinds})
    wanted = {name: value for name, value in json.loads(frame_keywords(keywords)).items() if name in names}
    fit = [text for text, known in kept.items() if wanted.items() <= known.items()]
    chosen = fit if len(fit) <= 1 else [text for text in fit if kept[text] == wanted]
    if found and not chosen:
        told = "; or with ".join(sorted({_shown(known) for known in kept.values()}))
        raise UsageError(
            f"the cache has {found[0].name} as it was read with {told}, and you ask for {_shown(wanted)}: give the "
            "same universe keywords, or a trajectory that can be reached"
        )
    return [one for one in found if one.stamp.keywords in chosen]


def away_text(found: Candidate, keywords: Mapping[str, Any]) -> str:
    """Return what to say where files that are away are read from the cache; nothing for the name of a dataset."""
    kept = json.loads(found.stamp.keywords)
    more = {name: value for name, value in kept.items() if name not in keywords and name != "format"}
    if found.stamp.is_pushed or not (os.path.isabs(found.name) or is_url(found.name)):
        return ""
    text = f"{found.name} cannot be reached, and is read as it was kept in the cache"
    return f"{text}: with {_shown(more)}" if more else text


def _shown(keywords: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in keywords.items()) or "no keywords"


def match(origin: Origin, keywords: Mapping[str, Any], found: Sequence[Candidate]) -> tuple[OriginStamp, list[bytes]]:
    """Return the stamp of an origin that is there, and generations under which stores have or may keep its frames."""
    stamp = OriginStamp.of(origin, keywords, [one.stamp for one in found])
    valid = [one.generation for one in found if one.stamp.compare(stamp) != "changed"]
    return stamp, list(dict.fromkeys(valid)) or [_unused(stamp, found)]


def refuse_mixed(found: Iterable[Candidate]) -> None:
    """Refuse frames of several simulations under one name, which servers took that do not know of each other."""
    authors: dict[tuple[str, bytes], set[str]] = {}
    for one in found:
        if one.author and one.stamp.is_pushed:
            authors.setdefault((one.name, one.generation), set()).add(one.author)
    for (name, _), several in authors.items():
        if len(several) > 1:
            told = ", ".join(f"'{author}'" for author in sorted(several))
            raise TrajectoryError(
                f"dataset {name} has frames of several simulations ({told}), each on nodes of its own: "
                f"'himach cache evict {name}' on the nodes of those that are not meant"
            )


def refuse_others(stamp: OriginStamp, found: Sequence[Candidate]) -> None:
    """Check that what stores hold under a trajectory's name is of this trajectory, maybe as it was before."""
    for one in found:
        if one.stamp.compare(stamp) == "changed" and not set(one.stamp.paths) & set(stamp.paths):
            what = "was pushed by a simulation" if one.stamp.is_pushed else "is of another trajectory"
            of = "" if one.stamp.is_pushed else f" ({', '.join(one.stamp.paths)})"
            raise StoreConflictError(
                f"dataset {one.name} {what}{of}, not of {', '.join(stamp.paths)}: stage under another --dataset, or "
                f"'himach cache evict {one.name}' first"
            )


def _unused(stamp: OriginStamp, found: Sequence[Candidate]) -> bytes:
    """Return a generation that no store has."""
    used = {one.generation for one in found}
    generation = stamp.generation
    while generation in used:
        generation += b"'"
    return generation


def own_generation(candidates: Sequence[Candidate], generations: Sequence[bytes]) -> bytes:
    """Return which of the generations a store uses, given what it holds: the one that it holds most of."""
    return next((one.generation for one in candidates if one.generation in generations), generations[0])


def read_some(dataset: CachedFrames | None, numbers: Iterable[int]) -> list[RawFrame]:
    """Return those of a few frames that a node's store holds."""
    if dataset is None:
        return []
    return [
        replace(frame, positions=frame.positions.copy())
        for number in numbers
        for frame in dataset.read([number])
        if frame is not None
    ]


PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class OriginChoice:
    """What a trajectory is."""

    origin: Origin | None  # its files, opened; None if they are away
    stamp: OriginStamp | None  # of the origin, as it is or was; None if no store asks for one
    note: OriginNote | None  # of the origin as it is; None if it is away
    name: str
    generations: Sequence[bytes]
    found: Candidate | None = None  # what in a store stands in for an origin that is away; None if it is not

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
    """Open the files of a trajectory, or find out what of a store stands in for them."""
    if by_name or (by_name is None and not are_there(trajectories)):
        chosen = offline_candidate(found, keywords)
        if chosen is not None:
            best, generations = chosen
            if reason := away_text(best, keywords):
                warnings.warn(reason, stacklevel=2)
            return OriginChoice(None, resolve_name(best, found), None, best.name, generations, best)

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
    """Load the topology that the user names, if it can be reached, else the one that is attached to a dataset."""
    path = None if topology is None else absolute(topology)
    used = path if path is not None else next(reversed([*attached]), None)
    keywords = dict(keywords)
    if path is not None:  # the kept keywords speak of another file
        keywords.setdefault("topology_format", None)
    elif used == origin.paths[0] and "format" in origin.keywords:  # a trajectory that brings its topology
        keywords.setdefault("topology_format", origin.keywords["format"])
    if used is None or used not in attached or (path is not None and is_there(path)):
        return load_topology(topology, origin, keywords, own, attach=False)
    if path is not None:
        warnings.warn(f"{path} cannot be reached, and is read as it was kept in the cache", stacklevel=2)
    suffix, content = attached[used]
    with tempfile.TemporaryDirectory(prefix="himach-") as folder:
        file = Path(folder, f"topology{suffix}")
        file.write_bytes(content)
        return load_topology(file, origin, keywords, own, attach=False)
