"""All datasets that the nodes hold, as one name space: `list_datasets()`, by way of any server.

There is no catalogue: every store that holds a part of a dataset holds its description, so that those which answer tell
together what there is, and what is missing.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pyroaring import BitMap64

from himach.errors import ServerUnreachableError
from himach.io.dataset.attachment import AUTHOR, COPIES, STAMP
from himach.io.dataset.listing import entries, open_existing
from himach.io.dataset.origin_stamp import OriginStamp
from himach.io.dataset.subsets import count_in
from himach.io.server.client import find
from himach.io.server.survey import ANSWER_SECONDS, Answer, Holding, Server, Survey, survey
from himach.io.store.cached_frames import base_name, between
from himach.io.store.store import Store, StoreError, StoreNotFoundError
from himach.parallel.communicator import node_name

MAX_NAMED_FRAMES = 5  # missing frames that are told of


@dataclass
class Listed:
    """A dataset, as those say who hold some of it."""

    name: str
    generation: str
    frames: int  # in the dataset, as the newest description says
    held: int  # of these, how many some store holds, natively or as aliens
    missing: list[int]  # the first of those that none holds
    copies: tuple[int, int] | None  # the least and the most native copies of a frame that is held natively
    wanted_copies: int  # how many were asked for; 0: nobody said
    nodes: list[str]  # those that hold some
    nbytes: int  # of all of them
    origin: list[str]  # its files; none of what was pushed
    author: str  # what the simulation that pushed it said of itself
    last_used: int  # seconds since 1970, on any node
    subsets: list[dict[str, int]] = field(default_factory=list)
    sequence: int = 0  # place of its content among those that the origin has had; 0: it has none
    older: bool = False  # some node holds a newer content of the same origin, as another dataset of this name
    oddity: str = ""  # why frames of some node cannot be told of, and count as none; empty if all can

    @property
    def whole(self) -> bool:
        """Whether there are frames, every one is held, and they can be read."""
        return 0 < self.frames == self.held and not self.oddity


@dataclass
class NameSpace:
    """The datasets of all stores that answered, the nodes of these by address, and which did not, and why."""

    datasets: list[Listed]
    stores: dict[str, str]
    silent: dict[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        told = [asdict(one) | {"whole": one.whole, "missing_frames": one.frames - one.held} for one in self.datasets]
        return {"datasets": told, "stores": self.stores, "silent": self.silent}


def list_datasets(server: Server | None, cache: str | None = None, seconds: float = ANSWER_SECONDS) -> NameSpace:
    """List the datasets that a server and its peers hold."""
    found = _here(cache, seconds) if server is None else survey(server, seconds)
    return NameSpace(joined(found.answers), {one.server.text: one.node for one in found.answers}, found.silent)


def _here(cache: str | None, seconds: float) -> Survey:
    """Ask the server of this node's store, else the store itself."""
    with contextlib.suppress(ServerUnreachableError):
        client = find(cache, timeout=seconds)
        if client is not None:
            client.close()
            return survey(Server.here(cache), seconds)
    store = open_existing(cache)
    return Survey([] if store is None else [_of_store(store)])


def _of_store(store: Store) -> Answer:
    """Return what a server of this store would say."""
    answer = Answer(Server(str(store.path)), node_name(), store.identity, ())
    for one in entries(store):
        holding = Holding(one.name, b"", one.directory, b"", "", 0, one.native, one.alien, 0, one.last_used, None, None)
        holding.nbytes = one.nbytes - sum(other.nbytes for other in one.subsets)
        answer.holdings.append(holding)
        try:
            dataset = store.open_directory(one.directory)
            copies = (dataset.attachment(COPIES) or b"").decode(errors="replace")
            holding.generation, holding.stamp = dataset.generation, dataset.attachment(STAMP) or b""
            holding.author = (dataset.attachment(AUTHOR) or b"").decode(errors="replace")
            holding.copies = int(copies) if copies.isdecimal() else 0
            holding.native, holding.alien = dataset.native, dataset.alien
        except StoreNotFoundError:
            answer.holdings.pop()
            continue
        except StoreError as error:
            holding.oddity = str(error)
        for other in one.subsets:
            with contextlib.suppress(StoreError):
                alien = store.open_directory(other.directory).alien
                answer.holdings.append(
                    replace(holding, name=other.name, nbytes=other.nbytes, native=BitMap64(), alien=alien)
                )
    return answer


def joined(answers: Iterable[Answer]) -> list[Listed]:
    """Return the datasets of several stores, those used last first; under one name one a simulation."""
    answers = list(answers)
    stores = Counter(answer.node for answer in answers)
    answers = [replace(one, node=f"{one.node} ({one.server.text})") if stores[one.node] > 1 else one for one in answers]
    parts: dict[tuple[str, bytes], list[tuple[Answer, Holding]]] = {}
    subsets: dict[tuple[str, bytes], list[Holding]] = {}
    for answer in answers:
        for one in answer.holdings:
            of = base_name(one.name), one.generation
            if count_in(one.name):
                subsets.setdefault(of, []).append(one)
            else:
                parts.setdefault((one.name, one.generation), []).append((answer, one))
    listed = []
    for of, several in parts.items():
        authors = sorted({one.author for _, one in several if one.author and not one.stamp})
        for author in authors if len(authors) > 1 else [""]:
            of_one = [part for part in several if author in ("", part[1].author)]
            listed.append(_join(of_one, subsets.get(of, [])))
            if author:
                told = f"pushed by several simulations ({', '.join(authors)}), so nobody reads it"
                listed[-1].oddity = f"{told}: 'himach cache evict' it on the nodes of those that are not meant"
    listed.sort(key=lambda one: (-one.last_used, one.name))
    last: dict[str, int] = {}
    for one_dataset in listed:
        last[one_dataset.name] = max(one_dataset.sequence, last.get(one_dataset.name, 0))
    for one_dataset in listed:
        one_dataset.older = one_dataset.sequence < last[one_dataset.name]
    return listed


def _join(parts: Sequence[tuple[Answer, Holding]], subsets: Sequence[Holding]) -> Listed:
    """Return one dataset, of which each store holds a part."""
    some: dict[str, BitMap64] = {}
    for one in subsets:
        some[one.name] = some.get(one.name, BitMap64()) | (one.native or BitMap64()) | (one.alien or BitMap64())
    holdings = [one for _, one in parts]
    held, levels = BitMap64(), list[BitMap64]()
    for one in holdings:
        held |= (one.native or BitMap64()) | (one.alien or BitMap64())
        _count(levels, one.native or BitMap64())
    stamps = [stamp for one in holdings if (stamp := OriginStamp.parse(one.stamp or None)) is not None]
    newest = max(stamps, key=lambda one: (one.sequence, one.n_frames), default=None)
    frames = newest.n_frames if newest is not None else (held.max() + 1 if held else 0)
    held = between(held, 0, frames)
    return Listed(
        name=holdings[0].name,
        generation=holdings[0].generation.hex(),
        frames=frames,
        held=len(held),
        missing=_first_missing(held, frames),
        copies=_copies(levels),
        wanted_copies=max(one.copies for one in holdings),
        nodes=sorted({answer.node for answer, one in parts if one.n_native + one.n_alien or one.native}),
        nbytes=sum(one.nbytes for one in [*holdings, *subsets]),
        origin=[str(path) for path in newest.paths] if newest is not None and not newest.is_pushed else [],
        author=", ".join(sorted({one.author for one in holdings if one.author})),
        last_used=max(one.last_used for one in holdings),
        subsets=[
            {"atoms": count_in(name), "frames": len(there)}
            for name, there in sorted(some.items(), key=lambda item: (-len(item[1]), item[0]))
            if there
        ],
        sequence=0 if newest is None else newest.sequence,
        oddity="; ".join(f"on {answer.node}, {one.oddity}" for answer, one in parts if one.oddity),
    )


def _count(levels: list[BitMap64], native: BitMap64) -> None:
    """Count a store's natives: levels[k] are the frames of which there are more than k."""
    carried = native
    for k, level in enumerate(levels):
        levels[k], carried = level | carried, level & carried
    if carried:
        levels.append(carried)


def _copies(levels: Sequence[BitMap64]) -> tuple[int, int] | None:
    """Return the least and the most copies of a frame that is native somewhere."""
    if not levels:
        return None
    least = next((k for k in range(1, len(levels)) if len(levels[k]) < len(levels[0])), len(levels))
    return least, len(levels)


def _first_missing(held: BitMap64, frames: int) -> list[int]:
    """Return the first frames of a dataset that are not held."""
    if len(held) == frames:
        return []
    missing: list[int] = []
    for begin in range(0, frames, 1 << 16):
        some = range(begin, min(frames, begin + (1 << 16)))
        missing += (BitMap64(some) - held)[: MAX_NAMED_FRAMES - len(missing)]
        if len(missing) >= MAX_NAMED_FRAMES:
            break
    return missing
