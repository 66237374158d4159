"""Which datasets of a node's store have the frames of a trajectory, and what stands in for one that is away.

`find()` says what a store holds under a trajectory's names, `match()` what of that is the trajectory as it is now,
`stand_in()` makes an origin of what a store knows.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from himach.errors import TrajectoryError, UsageError
from himach.frame import RawFrame
from himach.io.dataset.attachment import AUTHOR, attached_stamp, has_stamp
from himach.io.dataset.origin_stamp import OriginStamp, frame_keywords, latest
from himach.io.remote.url import absolute, is_url
from himach.io.store.bodhi import ServerRefusedError
from himach.io.store.cached_frames import CachedFrames, base_name
from himach.io.store.place import open_chosen, owner_of
from himach.io.store.store import Dataset, Store, StoreConflictError, StoreError
from himach.io.trajectory.absent_file import AbsentFile
from himach.io.trajectory.index.timeline import BetweenTimeline, PartTimeline, Timeline
from himach.io.trajectory.join import FilePart
from himach.io.trajectory.keywords import check, frame_names, parser_class, readers_of
from himach.io.trajectory.origin import Origin, OriginFacts
from himach.selection import Selected

if TYPE_CHECKING:
    from himach.io.server.client import Client
    from himach.io.server.remote_store import RemoteStore
    from himach.io.server.served_store import ServedStore


@dataclass(frozen=True)
class Candidate:
    """A dataset in a node's store that goes by the name of a trajectory: its stamp, and how many frames are cached.

    `author` is what the simulation that pushed it said of itself; "" if nothing.
    """

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
    """Open the store that the user of a run chose: as `open_chosen`, or another user's by the server that serves it.

    ``tcp://HOST:PORT`` is a server of another machine, and with it all its peers.

    Returns
    -------
    store
        None if there is none, or if it is another user's whose server does not answer now.
    reason
        Why frames are not kept or not looked for there; empty if they are.

    Raises
    ------
    UsageError
        As `open_chosen` does.
    ServerRefusedError
        It is another user's, whose server refuses this one.
    """
    if choice.startswith("tcp://"):
        return _open_remote(choice)
    found = owner_of(choice)
    if found is not None and os.path.exists(found[0] / "server" / "socket"):  # False where this user may not look
        from himach.io.server.served_store import ServedStore

        try:
            return ServedStore(*found), ""
        except ServerRefusedError:
            raise
        except StoreError as error:
            return None, f"no cache is used: {error}"
    return open_chosen(choice)


def _open_remote(choice: str) -> tuple[RemoteStore, str]:
    """Open what a server and its peers hold, and name those that do not answer."""
    from himach.io.server.address import server_of_choice
    from himach.io.server.remote_store import RemoteStore

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


def disambiguated(best: Candidate, found: Iterable[Candidate]) -> OriginStamp:
    """Return the stamp of a dataset; of one that was pushed, with what tells it from another pushed under its name.

    That is what its simulation said of itself, and the content of the first frame that any store has.
    """
    stamp = best.stamp
    if not stamp.is_pushed:
        return stamp
    alike = [one for one in found if one.name == best.name and one.stamp.content == stamp.content]
    author = max((one.author for one in alike), default="")
    return replace(stamp, content=f"{stamp.content} {author}", sketch=min(one.stamp.sketch for one in alike))


def offline_candidate(found: Sequence[Candidate], keywords: Mapping[str, Any]) -> tuple[Candidate, list[bytes]] | None:
    """Return which dataset stands in for an origin that is away, and all generations of its content.

    Parameters
    ----------
    found
        What stores hold under the origin's names; None is returned if that is nothing.
    keywords
        Of MDAnalysis, that the user gives for the origin.

    Raises
    ------
    UsageError
        As `matching` and `latest` do; or if what fits is older than what else is found.
    TrajectoryError
        As `refuse_mixed` does.
    """
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
    """Return those datasets that stand in for an origin that is away, given the keywords of MDAnalysis for it.

    Those that were kept with these keywords; else, with these and others, as long as all were kept with the same.

    Raises
    ------
    UsageError
        If something is found, and nothing that fits, or things that differ: it tells the keywords of each.
    """
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


def kept_otherwise(found: Candidate, keywords: Mapping[str, Any]) -> str:
    """Return what to say where a trajectory that is away was kept with more keywords than are given; else nothing.

    A name that was given when it was staged stands for its keywords, too; and a format alone changes no frame.
    """
    kept = json.loads(found.stamp.keywords)
    more = {name: value for name, value in kept.items() if name not in keywords and name != "format"}
    if not more or not (os.path.isabs(found.name) or is_url(found.name)):
        return ""
    return f"{found.name} cannot be reached, and is read as it was kept in the cache: with {_shown(more)}"


def _shown(keywords: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in keywords.items()) or "no keywords"


def match(origin: Origin, keywords: Mapping[str, Any], found: Sequence[Candidate]) -> tuple[OriginStamp, list[bytes]]:
    """Return the stamp of an origin, and the generations under which stores have its frames, or else may keep them.

    The origin can be reached; `found` is what stores hold under its name. Generations of what it was before are left
    out.
    """
    stamp = OriginStamp.of(origin, keywords, [one.stamp for one in found])
    valid = [one.generation for one in found if one.stamp.compare(stamp) != "changed"]
    return stamp, list(dict.fromkeys(valid)) or [_unused(stamp, found)]


def refuse_mixed(found: Iterable[Candidate]) -> None:
    """Check that what nodes hold under one name, with no origin, was pushed by one simulation.

    Servers that do not know of each other may have taken frames of two.

    Raises
    ------
    TrajectoryError
        It was pushed by several.
    """
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
    """Check that what stores hold under a trajectory's name is of this trajectory, maybe as it was before.

    Raises
    ------
    StoreConflictError
        It is another one, with no file in common, or was pushed by a simulation.
    """
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


def wanted_frames(stamp: OriginStamp, times: Timeline | None, frames: Selected) -> list[int]:
    """Return the frames that setting up a run over `frames` asks of an origin that is away."""
    asked = {0, frames[0]}
    if times is None:
        middle = max(0, (len(frames) - 1) // 2)
        asked.update(frames[step] for step in (1, middle, middle + 1, -2, -1) if -len(frames) <= step < len(frames))
    return sorted(asked)


def times_between(n_frames: int, frames: Sequence[RawFrame]) -> Timeline:
    """Return the times of all frames, ps, as those of some tell them."""
    known = sorted((frame.number, frame.time) for frame in frames)
    numbers, times = zip(*known, strict=True)
    return BetweenTimeline(n_frames, numbers, times)


def origin_from_stamp(
    stamp: OriginStamp,
    times: Timeline | None,
    keywords: Mapping[str, Any],
    frames: Iterable[RawFrame],
    topology: str | os.PathLike[str] | None = None,
) -> Origin:
    """Return an origin that is away, as its stamp tells of it.

    Parameters
    ----------
    stamp
        Attached to a dataset of some store.
    times
        Of all frames, ps; None where they are not known.
    keywords
        Keywords of MDAnalysis.
    frames
        Those that some cache gives: it has no others.
    topology
        The topology file that the user names; None for the one used last.

    Raises
    ------
    UsageError
        If there is no such keyword.
    """
    used = topology if topology is not None else next(reversed([*stamp.topologies]), None)
    parser = None if used is None else parser_class(os.fspath(used), keywords.get("topology_format"))
    check(keywords, readers_of(stamp.kinds), [] if parser is None else [parser])
    given = {frame.number: frame for frame in frames}
    parts, first = [], 0
    for path, kind, n_frames in zip(stamp.paths, stamp.kinds, stamp.part_frames, strict=True):
        of_part = None if times is None else PartTimeline(times, first, n_frames)
        file = AbsentFile(path, kind, n_frames, stamp.n_atoms, of_part, stamp.own_keywords, first, given)
        parts.append(FilePart(file, n_frames))
        first += n_frames
    facts = OriginFacts(stamp.fingerprint, stamp.timestep, stamp.has_velocities, stamp.has_forces)
    return Origin(parts, keywords, facts)


def server_of(dataset: CachedFrames | None) -> Client | None:
    """Return a connection to the server of a dataset's store, with the dataset open in it, if there is a server."""
    if not isinstance(dataset, Dataset) or not (dataset.store.path / "server" / "socket").exists():
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
