"""The datasets of all nodes in one name space, without a catalogue: each store describes what it holds a part of."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pyroaring import BitMap64

from himach.errors import ServerUnreachableError
from himach.io.datasets.attachment import AUTHOR, COPIES, STAMP
from himach.io.datasets.listing import list_directories, open_existing
from himach.io.datasets.origin_stamp import OriginStamp
from himach.io.datasets.subsets import parse_atom_count
from himach.io.server.client import find
from himach.io.server.survey import ANSWER_SECONDS, Answer, Holding, Server, Survey, survey
from himach.io.store.cached_frames import base_name, select_range
from himach.io.store.store import Store, StoreError, StoreNotFoundError
from himach.ranks.communicator import node_name

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
    reply = _survey_local(cache, seconds) if server is None else survey(server, seconds)
    return NameSpace(join_answers(reply.answers), {item.server.text: item.node for item in reply.answers}, reply.silent)


def _survey_local(cache: str | None, seconds: float) -> Survey:
    """Ask the server of this node's store, else the store itself."""
    with contextlib.suppress(ServerUnreachableError):
        client = find(cache, timeout=seconds)
        if client is not None:
            client.close()
            return survey(Server.local(cache), seconds)
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
                text = f"pushed by several simulations ({', '.join(authors)}), so nobody reads it"
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
