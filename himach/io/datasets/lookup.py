"""Lookup of the datasets in a node's store that have the frames of a trajectory, also where its files are missing."""

import hashlib
import json
import os
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from himach.errors import UsageError
from himach.frame import RawFrame
from himach.io.datasets.attachment import AUTHOR, has_stamp, read_stamp
from himach.io.datasets.origin_stamp import OriginStamp, frame_keywords, latest, open_unchanged
from himach.io.server.remote_store import RemoteStore, refuse_several
from himach.io.server.survey import ServedStore, parse_choice
from himach.io.store.bodhi import ServerRefusedError
from himach.io.store.cached_frames import CachedFrames, base_name
from himach.io.store.quota import find_other_owner, open_chosen
from himach.io.store.store import Dataset, Store, StoreConflictError, StoreError
from himach.io.trajectories.keywords import frame_names
from himach.io.trajectories.origin import Origin, open_origin
from himach.io.trajectories.urls.byte_file import exists
from himach.io.trajectories.urls.url_names import absolute, is_url
from himach.io.trajectories.xdr_index import XdrIndex
from himach.io.universe.topology import load_topology

if TYPE_CHECKING:
    from MDAnalysis.core.topology import Topology


@dataclass(frozen=True)
class Candidate:
    """A dataset in a node's store under a trajectory's name: its stamp and its number of cached frames."""

    name: str
    generation: bytes
    stamp: OriginStamp
    frames: int
    author: str = ""


def dataset_name(paths: Sequence[str | os.PathLike[str]]) -> str:
    """Return the dataset name of trajectory files: the absolute path of one file, or a common name of several."""
    names = [*map(absolute, paths)]
    first = os.fsencode(names[0]).decode("utf-8", "backslashreplace")
    if len(names) == 1:
        return first
    others = hashlib.sha256(b"\0".join(map(os.fsencode, names))).hexdigest()[:16]
    return f"{first} and {len(names) - 1} more ({others})"


def list_names(trajectories: Sequence[Path]) -> list[str]:
    """Return the names that a dataset of these trajectories may have: its absolute path, or the user's spelling."""
    names = [dataset_name(trajectories)]
    if len(trajectories) == 1:
        names.append(names[0] if is_url(trajectories[0]) else os.fspath(trajectories[0]))
    return list(dict.fromkeys(names))


def open_cache(choice: str) -> tuple[Store | ServedStore | None, str]:
    """Open the chosen store, another user's through its server; say why there is none, or who did not answer."""
    server = parse_choice(choice)
    if server is not None:
        remote = RemoteStore(server)
        return remote, f"no answer from {remote.silent}: what they hold is not seen" if remote.silent else ""
    owner = find_other_owner(choice)
    if owner is not None and os.path.exists(owner[0] / "server" / "socket"):  # False without permission
        try:
            return ServedStore(*owner), ""
        except ServerRefusedError:
            raise
        except StoreError as error:
            return None, f"no cache is used: {error}"
    return open_chosen(choice)


def find(store: Store | ServedStore, names: Sequence[str]) -> list[Candidate]:
    """Return the datasets with these names in a store, most frames first."""
    candidates = []
    for name in names:
        for generation in store.generations(name):
            try:
                dataset = store.dataset(name, generation, create=False)
                facts = dataset.facts()
            except StoreError:
                continue
            stamp = read_stamp(dataset) if has_stamp(dataset) else _read_pushed_stamp(dataset)
            if stamp is not None:
                author = (dataset.attachment(AUTHOR) or b"").decode(errors="replace")
                candidates.append(Candidate(name, generation, stamp, facts["native"] + facts["alien"], author))
    return sorted(candidates, key=lambda item: -item.frames)


def _read_pushed_stamp(dataset: CachedFrames) -> OriginStamp | None:
    """Return the stamp of a pushed dataset; None if it is not pushed or holds no frames."""
    is_part = base_name(dataset.name) != dataset.name  # it holds parts of frames
    bounds = None if is_part or os.path.isabs(dataset.name) or is_url(dataset.name) else dataset.bounds(native=True)
    if bounds is None:
        return None
    first, last = bounds
    frames = read_frames(dataset, [first, first + 1])
    return OriginStamp.from_pushed_frames(dataset.name, dataset.generation, last + 1, frames) if frames else None


def resolve_stamp(best: Candidate, candidates: Iterable[Candidate]) -> OriginStamp:
    """Return a dataset's stamp; if it was pushed, with its author and the lowest first frame of all stores."""
    stamp = best.stamp
    if not stamp.is_pushed:
        return stamp
    same = [item for item in candidates if item.name == best.name and item.stamp.content == stamp.content]
    author = max((item.author for item in same), default="")
    return replace(stamp, content=f"{stamp.content} {author}", first_frame=min(item.stamp.first_frame for item in same))


def find_offline(candidates: Sequence[Candidate], keywords: Mapping[str, Any]) -> tuple[Candidate, list[bytes]] | None:
    """Return the dataset that replaces an unreachable origin, and all generations of its content."""
    matches = select_by_keywords(candidates, keywords)
    if not matches:
        return None
    refuse_mixed(matches)
    last = latest([item.stamp for item in matches])
    best = next(item for item in matches if item.stamp == last)
    newer = [item.stamp for item in candidates if item.name == best.name and item.stamp.sequence > last.sequence]
    if newer:
        before, after = (_format_keywords(json.loads(stamp.keywords)) for stamp in (last, latest(newer)))
        raise UsageError(
            f"{best.name} is away, and has changed since it was read with {before}: what the cache has of it as it was "
            f"last was read with {after}; give the same, or make the file readable"
        )
    return best, list(dict.fromkeys(item.generation for item in matches if item.stamp.content == last.content))


def select_by_keywords(candidates: Sequence[Candidate], keywords: Mapping[str, Any]) -> list[Candidate]:
    """Return the datasets with exactly these MDAnalysis keywords, or with more if all of them have the same."""
    stored_keywords = {item.stamp.keywords: json.loads(item.stamp.keywords) for item in candidates}
    names = frame_names()
    requested = {name: value for name, value in json.loads(frame_keywords(keywords)).items() if name in names}
    matches = [text for text, stored in stored_keywords.items() if requested.items() <= stored.items()]
    chosen = matches if len(matches) <= 1 else [text for text in matches if stored_keywords[text] == requested]
    if candidates and not chosen:
        quoted = "; or with ".join(sorted({_format_keywords(stored) for stored in stored_keywords.values()}))
        raise UsageError(
            f"the cache has {candidates[0].name} as it was read with {quoted}, and you ask for "
            f"{_format_keywords(requested)}: give the same universe keywords, or a trajectory that can be reached"
        )
    return [item for item in candidates if item.stamp.keywords in chosen]


def offline_warning(candidate: Candidate, keywords: Mapping[str, Any]) -> str:
    """Return the warning for unreachable files that are read from the cache; empty for a dataset name."""
    stored_keywords = json.loads(candidate.stamp.keywords)
    extra = {name: value for name, value in stored_keywords.items() if name not in keywords and name != "format"}
    if candidate.stamp.is_pushed or not (os.path.isabs(candidate.name) or is_url(candidate.name)):
        return ""
    text = f"{candidate.name} cannot be reached, and is read as it was kept in the cache"
    return f"{text}: with {_format_keywords(extra)}" if extra else text


def _format_keywords(keywords: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in keywords.items()) or "no keywords"


def match(origin: Origin, keywords: Mapping[str, Any], entries: Sequence[Candidate]) -> tuple[OriginStamp, list[bytes]]:
    """Return the stamp of a reachable origin, and the generations under which stores have or may keep its frames."""
    stamp = OriginStamp.from_origin(origin, keywords, [item.stamp for item in entries])
    valid = [item.generation for item in entries if item.stamp.compare(stamp) != "changed"]
    return stamp, list(dict.fromkeys(valid)) or [_unused_generation(stamp, entries)]


def refuse_mixed(candidates: Iterable[Candidate]) -> None:
    """Refuse datasets that hold frames of several simulations."""
    authors: dict[tuple[str, bytes], set[str]] = {}
    for item in candidates:
        if item.author and item.stamp.is_pushed:
            authors.setdefault((item.name, item.generation), set()).add(item.author)
    for (name, _), simulations in authors.items():
        refuse_several(name, simulations)


def refuse_others(stamp: OriginStamp, candidates: Sequence[Candidate]) -> None:
    """Check that the datasets of a trajectory's name are of this trajectory, in its present or an earlier state."""
    for item in candidates:
        if item.stamp.compare(stamp) == "changed" and not set(item.stamp.paths) & set(stamp.paths):
            description = "was pushed by a simulation" if item.stamp.is_pushed else "is of another trajectory"
            origin_text = "" if item.stamp.is_pushed else f" ({', '.join(item.stamp.paths)})"
            raise StoreConflictError(
                f"dataset {item.name} {description}{origin_text}, not of {', '.join(stamp.paths)}: stage under "
                f"another --dataset, or 'himach cache evict {item.name}' first"
            )


def _unused_generation(stamp: OriginStamp, candidates: Sequence[Candidate]) -> bytes:
    used = {item.generation for item in candidates}
    generation = stamp.generation
    while generation in used:
        generation += b"'"
    return generation


def choose_generation(candidates: Sequence[Candidate], generations: Sequence[bytes]) -> bytes:
    """Return the generation for a store to use: the one of which it holds most frames."""
    return next((item.generation for item in candidates if item.generation in generations), generations[0])


def read_frames(dataset: CachedFrames | None, numbers: Iterable[int]) -> list[RawFrame]:
    """Return those of these frames that a node's store holds."""
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
    """A trajectory's files, or the dataset that replaces them."""

    origin: Origin | None  # opened files; None if unreachable
    stamp: OriginStamp  # of the origin now or earlier
    name: str
    generations: Sequence[bytes]
    candidate: Candidate | None = None  # dataset for an unreachable origin, or opened by name; else None

    @property
    def is_pushed(self) -> bool:
        """Whether a simulation pushed the dataset."""
        return self.origin is None and self.stamp.is_pushed


def choose_origin(
    name: str,
    trajectories: Sequence[PathLike],
    keywords: Mapping[str, Any],
    candidates: Sequence[Candidate],
    open_files: Callable[[], Origin],
    by_name: bool | None = None,
) -> OriginChoice:
    """Open the files of a trajectory, or choose the dataset in a store that replaces them."""
    if by_name or (by_name is None and not all(map(exists, trajectories))):
        chosen = find_offline(candidates, keywords)
        if chosen is not None:
            best, generations = chosen
            if reason := offline_warning(best, keywords):
                warnings.warn(reason, stacklevel=2)
            return OriginChoice(None, resolve_stamp(best, candidates), best.name, generations, best)

    def choose_files() -> OriginChoice:
        origin = open_files()
        stamp, generations = match(origin, keywords, [item for item in candidates if item.name == name])
        return OriginChoice(origin, stamp, name, generations)

    return open_unchanged(list(trajectories), choose_files)


def reopen_origin(
    choice: OriginChoice,
    keywords: Mapping[str, Any],
    candidates: Sequence[Candidate],
    load_indexes: Callable[[], Mapping[str, XdrIndex]],
) -> OriginChoice:
    """Return the choice with the files of a dataset opened by name, if they exist unchanged."""
    best = choice.candidate
    if best is None or best.stamp.is_pushed or not all(map(exists, best.stamp.paths)):
        return choice
    all_keywords = {**json.loads(best.stamp.keywords), **keywords}
    origin = open_origin(best.stamp.paths, None, all_keywords, load_indexes())
    stamp, valid = match(origin, all_keywords, [entry for entry in candidates if entry.name == best.name])
    generations = [entry for entry in choice.generations if entry in valid]
    if not generations:  # the files changed since the dataset was staged
        return choice
    return OriginChoice(origin, stamp, best.name, generations, best)


def load_attached(
    topology: PathLike | None,
    origin: Origin,
    keywords: Mapping[str, Any],
    attached: Mapping[str, tuple[str, bytes]],
    own: Dataset | None,
) -> "Topology":
    """Load the user's topology if it can be reached, else the one attached to a dataset."""
    path = None if topology is None else absolute(topology)
    chosen_path = path if path is not None else next(reversed([*attached]), None)
    keywords = dict(keywords)
    if path is not None:  # the stored keywords refer to another file
        keywords.setdefault("topology_format", None)
    elif chosen_path == origin.paths[0] and "format" in origin.keywords:  # a trajectory that contains its topology
        keywords.setdefault("topology_format", origin.keywords["format"])
    if chosen_path is None or chosen_path not in attached or (path is not None and exists(path)):
        return load_topology(topology, origin, keywords, own, attach=False)
    if path is not None:
        warnings.warn(f"{path} cannot be reached, and is read as it was kept in the cache", stacklevel=2)
    suffix, content = attached[chosen_path]
    with tempfile.TemporaryDirectory(prefix="himach-") as folder:
        file = Path(folder, f"topology{suffix}")
        file.write_bytes(content)
        return load_topology(file, origin, keywords, own, attach=False)
