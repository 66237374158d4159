"""What this node's store holds (`entries()`, `status()`, `evict_chosen()`), and all stores as one (`list_datasets()`).

There is no catalogue of the datasets of all nodes: each store describes what it holds a part of.
"""

import contextlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pyroaring import BitMap64

from himach.errors import ServerUnreachableError, UsageError, nearest
from himach.io.datasets.attachment import AUTHOR, COPIES, STAMP
from himach.io.datasets.lookup import dataset_name
from himach.io.datasets.origin_stamp import OriginStamp
from himach.io.datasets.subsets import parse_atom_count
from himach.io.server.client import find
from himach.io.server.survey import ANSWER_SECONDS, Answer, Holding, Server, Survey
from himach.io.server.survey import survey as survey_servers
from himach.io.store.cached_frames import base_name, select_range
from himach.io.store.quota import Segment, chosen_quota, open_store, store_place, survey
from himach.io.store.sizes import show_size
from himach.io.store.store import Store, StoreBusyError, StoreError, StoreNotFoundError
from himach.io.trajectories.urls.mirror import copies_in, evict
from himach.ranks.communicator import node_name


@dataclass
class DatasetEntry(Holding):
    """A dataset in this node's store, with the bytes of its subsets, or a copy of a remote file."""

    note: str = ""
    subsets: "tuple[DatasetEntry, ...]" = ()
    is_copy: bool = False

    @property
    def atoms(self) -> int:
        """Number of atoms of each frame; 0: all."""
        return parse_atom_count(self.name)


def open_existing(choice: str | None, *, writing: bool = False) -> Store | None:
    """Open the store of this node; return None if there is none, raise StoreError if it cannot be used."""
    try:
        return open_store(choice, create=False, read_only=not writing)
    except StoreNotFoundError:
        return None


@dataclass
class EvictedDatasets:
    """What `evict_chosen` freed, and which segments it could not evict: text with dataset and reason."""

    nbytes: int = 0
    segments: int = 0
    busy: list[str] = field(default_factory=list)


def entries(store: Store) -> list[DatasetEntry]:
    """Return the datasets in a store and its copies of remote files, last used first."""
    listed = [
        DatasetEntry(copy.name, b"", copy.folder.name, copy.nbytes, copy.last_used, is_copy=True)
        for copy in copies_in(store.path)
    ]
    listed += _nest_subsets(list_directories(store))
    return sorted(listed, key=lambda entry: (-entry.last_used, entry.name))


def list_directories(store: Store) -> list[DatasetEntry]:
    """Return the datasets and subsets in a store, flat; one that cannot be opened goes by its directory."""
    listed = []
    for directory in sorted({*store.directories()} - {copy.folder.name for copy in copies_in(store.path)}):
        entry = DatasetEntry(directory, b"", directory, *_measure_directory(store.path / directory))
        try:
            dataset = store.open_directory(directory)
            facts = dataset.facts()
            entry.name, entry.generation = dataset.name, dataset.generation
            entry.n_native, entry.n_alien = facts["native"], facts["alien"]
            if n_refused := facts["refused_segments"]:
                entry.note = f"{n_refused} segments of another version or dataset are left alone"
        except StoreError as error:
            entry.note = str(error)
        listed.append(entry)
    return listed


def _nest_subsets(listed: list[DatasetEntry]) -> list[DatasetEntry]:
    """Move subsets into the entries of their datasets; a subset without its dataset stays an entry of its own."""
    subsets: dict[tuple[str, bytes], list[DatasetEntry]] = {}
    for entry in listed:
        if entry.atoms:
            subsets.setdefault((base_name(entry.name), entry.generation), []).append(entry)
    nested = []
    for entry in listed:
        parts = sorted(subsets.get((entry.name, entry.generation), []), key=lambda part: (-part.n_alien, part.name))
        nbytes = entry.nbytes + sum(part.nbytes for part in parts)
        nested.append(replace(entry, nbytes=nbytes, subsets=tuple(parts)))
    nested_directories = {part.directory for entry in nested for part in entry.subsets}
    return [entry for entry in nested if entry.directory not in nested_directories]


def status(choice: str | None, quota: str | None = None) -> dict[str, Any]:
    """Return facts about this node's store in display order; the store need not exist."""
    place = store_place(choice)
    facts: dict[str, Any] = {"node": node_name(), "place": str(place), "identity": None}
    facts["file_system"] = _file_system(place)
    facts |= dict.fromkeys(("size", "free", "reserve", "quota", "used", "copies", "datasets", "native", "alien"))
    notes: list[str] = []
    with _note_errors(notes):
        sizes = survey(place)
        facts |= {"size": sizes.size, "free": sizes.free, "reserve": sizes.reserve, "used": sizes.used}
    with _note_errors(notes, (StoreError, OSError) if quota is not None else (StoreError, OSError, UsageError)):
        facts["quota"] = chosen_quota(place, quota)
    with _note_errors(notes):
        store = open_existing(choice)
        listed = entries(store) if store is not None else []
        facts["identity"] = None if store is None else store.identity
        facts["copies"] = sum(entry.nbytes for entry in listed if entry.is_copy)
        facts["datasets"] = sum(not entry.is_copy for entry in listed)
        facts |= {"native": sum(entry.n_native for entry in listed), "alien": sum(entry.n_alien for entry in listed)}
        notes += [f"{entry.name}: {entry.note}" for entry in listed if entry.note]
    return facts | ({"note": "; ".join(dict.fromkeys(notes))} if notes else {})


@contextmanager
def _note_errors(notes: list[str], errors: tuple[type[Exception], ...] = (StoreError, OSError)) -> Iterator[None]:
    """Append errors to `notes` instead of raising them."""
    try:
        yield
    except errors as error:
        notes.append(str(error))


def evict_chosen(
    store: Store, dataset: str | None = None, *, aliens: bool = False, to: int | None = None
) -> EvictedDatasets:
    """Evict what the user chose."""
    names = _chosen_names(store.path, dataset)
    sizes = survey(store.path)
    evicted = EvictedDatasets()
    for copy in copies_in(store.path):
        if names.pop(copy.folder.name, None) is None or (to is not None and sizes.used - evicted.nbytes <= to):
            continue
        if evict(copy.folder):
            evicted.nbytes += copy.nbytes
        else:
            evicted.busy.append(f"{copy.name}: its local copy ({show_size(copy.nbytes)}): somebody reads it")
    for segment in sizes.segments:
        spared = (aliens and segment.native) or (segment.pushed and dataset is None and to is not None)
        if spared or segment.directory not in names:
            continue
        if to is not None and sizes.used - evicted.nbytes <= to:
            break
        try:
            store.evict(segment.directory, segment.id, native=segment.native)
        except StoreError as error:
            evicted.busy.append(_describe(names, segment, error))
        else:
            evicted.nbytes += segment.nbytes
            evicted.segments += 1
    if to is None:
        for directory, name in names.items():
            if not aliens or parse_atom_count(name):
                with suppress(StoreError, OSError):  # in use
                    store.remove(directory)
    return evicted


def _chosen_names(path: Path, dataset: str | None) -> dict[str, str]:
    """Return the names of the chosen datasets by subdirectory."""
    listed = entries(Store(path, create=False, read_only=True))  # listing must not count as use
    if dataset is None:
        return _names_by_directory(listed)
    requested = {dataset, dataset_name([dataset])}
    chosen = _names_by_directory(entry for entry in listed if entry.name in requested or entry.directory in requested)
    if not chosen:
        raise UsageError(f"{path} holds no dataset {dataset}{nearest(dataset, {entry.name for entry in listed})}")
    return chosen


def _names_by_directory(chosen: Iterable[DatasetEntry]) -> dict[str, str]:
    """Return the names of datasets by subdirectory, subsets first."""
    chosen_entries = list(chosen)
    subset_names = {subset.directory: subset.name for entry in chosen_entries for subset in entry.subsets}
    return subset_names | {entry.directory: entry.name for entry in chosen_entries}


def _describe(names: dict[str, str], segment: Segment, error: StoreError) -> str:
    kind = "n" if segment.native else "a"
    reason = "a writer or reader holds it" if isinstance(error, StoreBusyError) else str(error)
    return f"{names[segment.directory]}: segment {kind}-{segment.id:016x} ({show_size(segment.nbytes)}): {reason}"


def _measure_directory(folder: Path) -> tuple[int, int]:
    """Return the size of a dataset's files and the time of its last use."""
    total = last_used = 0
    with suppress(OSError):  # evicted in the meantime, or not readable
        for path in folder.iterdir():
            with suppress(OSError):
                file_status = path.stat(follow_symlinks=False)
                total += file_status.st_size
                last_used = int(file_status.st_mtime) if path.name == "meta" else last_used
    return total, last_used


def _file_system(place: Path) -> str:
    """Return the type and the mount point of the file system of a path."""
    absolute, best = f"{os.path.realpath(place)}/", ("", "unknown")
    with open("/proc/self/mounts", encoding="utf-8", errors="replace") as mounts:
        for line in mounts:
            point, kind = (word.replace("\\040", " ") for word in line.split()[1:3])
            if absolute.startswith(point.rstrip("/") + "/") and len(point) >= len(best[0]):
                best = point, kind
    return f"{best[1]} at {best[0]}" if best[0] else best[1]


MAX_NAMED_FRAMES = 5  # missing frames to list


@dataclass
class ListedDataset:
    """A dataset as described by the stores that hold some of it."""

    name: str
    generation: str
    frames: int  # in the dataset, by the newest description
    held: int  # frames that any store holds, natively or as aliens
    missing: list[int]  # the first frames that no store holds
    copies: tuple[int, int] | None  # least and most native copies of a frame with a native copy
    wanted_copies: int  # 0: not specified
    nodes: list[str]  # that hold some frames
    nbytes: int  # over all nodes
    origin: list[str]  # files; empty if the frames were pushed
    author: str  # identity that the pushing simulation gave
    last_used: int  # seconds since 1970, on any node
    subsets: list[dict[str, int]] = field(default_factory=list)
    sequence: int = 0  # of this content among the origin's successive contents; 0: no origin
    older: bool = False  # whether another dataset of this name has a newer content of the same origin
    oddity: str = ""  # why some node's frames cannot be listed and count as none; else empty

    @property
    def whole(self) -> bool:
        """Whether there are frames and all of them are held and readable."""
        return 0 < self.frames == self.held and not self.oddity


@dataclass
class NameSpace:
    """The datasets of all stores that answered, their nodes by address, and why other servers did not answer."""

    datasets: list[ListedDataset]
    stores: dict[str, str]
    silent: dict[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        rows = [asdict(row) | {"whole": row.whole, "missing_frames": row.frames - row.held} for row in self.datasets]
        return {"datasets": rows, "stores": self.stores, "silent": self.silent}


def list_datasets(server: Server | None, cache: str | None = None, seconds: float = ANSWER_SECONDS) -> NameSpace:
    """List the datasets that a server and its peers hold."""
    reply = _survey_local(cache, seconds) if server is None else survey_servers(server, seconds)
    return NameSpace(join_answers(reply.answers), {item.server.text: item.node for item in reply.answers}, reply.silent)


def _survey_local(cache: str | None, seconds: float) -> Survey:
    """Ask the server of this node's store, else the store itself."""
    with contextlib.suppress(ServerUnreachableError):
        client = find(cache, timeout=seconds)
        if client is not None:
            client.close()
            return survey_servers(Server.local(cache), seconds)
    store = open_existing(cache)
    return Survey([] if store is None else [_answer_from_store(store)])


def _answer_from_store(store: Store) -> Answer:
    """Return the answer that a server of this store would give."""
    answer = Answer(Server(str(store.path)), node_name(), store.identity)
    for holding in list_directories(store):
        try:
            dataset = store.open_directory(holding.directory)
            copies = (dataset.attachment(COPIES) or b"").decode(errors="replace")
            holding.stamp = dataset.attachment(STAMP) or b""
            holding.author = (dataset.attachment(AUTHOR) or b"").decode(errors="replace")
            holding.copies = int(copies) if copies.isdecimal() else 0
            holding.native, holding.alien = dataset.native, dataset.alien
        except StoreNotFoundError:
            continue
        except StoreError as error:
            holding.oddity = str(error)
        answer.holdings.append(holding)
    return answer


def join_answers(answers: Iterable[Answer]) -> list[ListedDataset]:
    """Return the datasets of several stores, last used first; one per simulation if several share a name."""
    answers = list(answers)
    stores = Counter(answer.node for answer in answers)
    answers = [replace(a, node=f"{a.node} ({a.server.text})") if stores[a.node] > 1 else a for a in answers]
    parts: dict[tuple[str, bytes], list[tuple[Answer, Holding]]] = {}
    subsets: dict[tuple[str, bytes], list[Holding]] = {}
    for answer in answers:
        for holding in answer.holdings:
            dataset_key = base_name(holding.name), holding.generation
            if parse_atom_count(holding.name):
                subsets.setdefault(dataset_key, []).append(holding)
            else:
                parts.setdefault((holding.name, holding.generation), []).append((answer, holding))
    listed = []
    for dataset_key, store_parts in parts.items():
        authors = sorted({holding.author for _, holding in store_parts if holding.author and not holding.stamp})
        for author in authors if len(authors) > 1 else [""]:
            own_parts = [part for part in store_parts if author in ("", part[1].author)]
            listed.append(_join_holdings(own_parts, subsets.get(dataset_key, [])))
            if author:
                text = f"pushed by several simulations ({', '.join(authors)}), so no run reads it"
                listed[-1].oddity = f"{text}: 'himach cache evict' it on the nodes of those that are not meant"
    listed.sort(key=lambda row: (-row.last_used, row.name))
    newest_sequences: dict[str, int] = {}
    for dataset in listed:
        newest_sequences[dataset.name] = max(dataset.sequence, newest_sequences.get(dataset.name, 0))
    for dataset in listed:
        dataset.older = dataset.sequence < newest_sequences[dataset.name]
    return listed


def _join_holdings(parts: Sequence[tuple[Answer, Holding]], subsets: Sequence[Holding]) -> ListedDataset:
    """Join the parts of one dataset that several stores hold."""
    sets: dict[str, BitMap64] = {}
    for item in subsets:
        sets[item.name] = sets.get(item.name, BitMap64()) | item.native | item.alien
    holdings = [item for _, item in parts]
    cached, levels = BitMap64(), list[BitMap64]()
    for item in holdings:
        cached |= item.native | item.alien
        _count_copies(levels, item.native)
    stamps = [stamp for item in holdings if (stamp := OriginStamp.parse(item.stamp or None)) is not None]
    newest = max(stamps, key=lambda item: (item.sequence, item.n_frames), default=None)
    frames = newest.n_frames if newest is not None else (cached.max() + 1 if cached else 0)
    cached = select_range(cached, 0, frames)
    return ListedDataset(
        name=holdings[0].name,
        generation=holdings[0].generation.hex(),
        frames=frames,
        held=len(cached),
        missing=list((BitMap64(range(min(frames, len(cached) + MAX_NAMED_FRAMES))) - cached)[:MAX_NAMED_FRAMES]),
        copies=_copy_range(levels),
        wanted_copies=max(item.copies for item in holdings),
        nodes=sorted({answer.node for answer, item in parts if item.n_native + item.n_alien or item.native}),
        nbytes=sum(item.nbytes for item in [*holdings, *subsets]),
        origin=[str(path) for path in newest.paths] if newest is not None and not newest.is_pushed else [],
        author=", ".join(sorted({item.author for item in holdings if item.author})),
        last_used=max(item.last_used for item in holdings),
        subsets=[
            {"atoms": parse_atom_count(name), "frames": len(present)}
            for name, present in sorted(sets.items(), key=lambda item: (-len(item[1]), item[0]))
            if present
        ],
        sequence=0 if newest is None else newest.sequence,
        oddity="; ".join(f"on {answer.node}, {item.oddity}" for answer, item in parts if item.oddity),
    )


def _count_copies(levels: list[BitMap64], native: BitMap64) -> None:
    """Add a store's native frames; levels[k] are the frames with more than k native copies."""
    carried = native
    for k, level in enumerate(levels):
        levels[k], carried = level | carried, level & carried
    if carried:
        levels.append(carried)


def _copy_range(levels: Sequence[BitMap64]) -> tuple[int, int] | None:
    """Return the least and the most native copies of a frame that has any."""
    if not levels:
        return None
    least = next((k for k in range(1, len(levels)) if len(levels[k]) < len(levels[0])), len(levels))
    return least, len(levels)
