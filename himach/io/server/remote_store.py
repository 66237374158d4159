"""Datasets on other machines: `RemoteStore`, and `RemoteDataset`, whose frames come from several servers in parallel.

If a server fails or a frame is damaged, other copies are read.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from himach.errors import TrajectoryError
from himach.frame import RawFrame
from himach.io.frame_source import WHOLE, ReadOptions
from himach.io.server.client import Client
from himach.io.server.survey import Answer, Holding, ServedStore, Server, Survey, survey
from himach.io.store import bodhi
from himach.io.store.cached_frames import CachedFrames, Reading, mask_of
from himach.io.store.store import StoreError, StoreNotFoundError
from himach.ranks.communicator import node_name

SURVEY_SECONDS = 3.0  # for all servers to list their datasets
READ_SECONDS = 20.0  # for an answer while frames are read
PLANNED_FRAMES = 1 << 15  # distributed over servers at a time
NEIGHBOR_FRAMES = 32  # consecutive frames from one server if several have them
ABSENT = "absent"
UNREACHABLE = bodhi.REASONS[bodhi.REASON_UNREACHABLE]


class RemoteStore(ServedStore):
    """The datasets of a server and its peers, in place of a store of this node; read-only."""

    def __init__(self, server: Server, seconds: float = SURVEY_SECONDS) -> None:
        self.path = Path(server.text)
        self.survey: Survey = survey(server, seconds)

    @property
    def silent(self) -> str:
        """Servers that did not answer, as text; empty if all did."""
        return ", ".join(self.survey.silent)

    def names(self) -> list[str]:
        """Return the names of the datasets."""
        return sorted({holding.name for answer in self.survey.answers for holding in answer.holdings})

    def generations(self, name: str) -> list[bytes]:
        """Return the generations of a dataset that the stores hold."""
        listed = [item.generation for answer in self.survey.answers for item in answer.holdings if item.name == name]
        return list(dict.fromkeys(listed))

    def dataset(self, name: str, generation: bytes = b"", *, create: bool = False) -> "RemoteDataset":
        """Open one generation of a dataset; it is never created."""
        holders = [
            _Holder(answer, item)
            for answer in self.survey.answers
            for item in answer.holdings
            if item.name == name and item.generation == generation
        ]
        if not holders:
            raise StoreNotFoundError(f"{name} is not in the store of {self.path} or of its peers")
        refuse_several(name, {item.holding.author for item in holders if not item.holding.stamp} - {""})
        holders.sort(key=_recency, reverse=True)
        return RemoteDataset(name, generation, holders)


def refuse_several(name: str, authors: set[str]) -> None:
    """Refuse frames of several simulations under one name; servers that do not know each other may accept both."""
    if len(authors) > 1:
        quoted = ", ".join(f"'{author}'" for author in sorted(authors))
        raise TrajectoryError(
            f"dataset {name} has frames of several simulations ({quoted}), each on nodes of its own: "
            f"'himach cache evict {name}' on the nodes of those that are not meant"
        )


def _recency(holder: "_Holder") -> tuple[int, int]:
    """Return how recent a store's description of the origin is: the most recent one is asked for first."""
    try:
        stamp = json.loads(holder.holding.stamp)
        return int(stamp["sequence"]), int(stamp["n_frames"])
    except (ValueError, KeyError, TypeError):
        return 0, 0


class _Holder:
    """A server that has frames of a dataset; the first query opens a connection."""

    def __init__(self, answer: Answer, holding: Holding) -> None:
        self.server = answer.server
        self.holding = holding
        self.native, self.alien = holding.native, holding.alien
        self.frames = self.native | self.alien
        self.failed = False
        self._client: Client | None = None

    def client(self) -> Client:
        if self._client is None:
            self._client = self.server.dial(READ_SECONDS).open(self.holding.name, self.holding.generation)
        return self._client

    def close(self) -> None:
        """Close the connection, if any."""
        if self._client is not None:
            self._client.close()
        self._client = None

    def fail(self) -> None:
        """Read no more from the server."""
        self.failed = True
        self.close()


class RemoteDataset(CachedFrames):
    """Frames of one generation of a dataset on servers of other machines; for one thread at a time."""

    def __init__(self, name: str, generation: bytes, holders: Sequence[_Holder]) -> None:
        self.name, self.generation = name, generation
        # As a store it differs between nodes, so that each of them reads a part.
        self.identity = f"{holders[0].server.text} from {node_name()}"
        self._holders = list(holders)

    def close(self) -> None:
        """Close all connections."""
        for holder in self._holders:
            holder.close()

    def frames(self, native: bool, low: int = 0, stop: int = 0) -> BitMap64:
        """Return the numbers of all frames that some server holds natively, or as aliens."""
        return BitMap64.union(BitMap64(), *(holder.native if native else holder.alien for holder in self._holders))

    def facts(self) -> dict[str, int]:
        """Return the numbers of native and alien frames, and the bytes of all stores."""
        nbytes = sum(holder.holding.nbytes for holder in self._holders)
        return {"native": len(self.native), "alien": len(self.alien), "bytes": nbytes}

    def attachment(self, name: str) -> bytes | None:
        """Return the attachment of this name from the first store that has it, the most recent one first, or None."""
        for holder in self._holders:
            with suppress(StoreError):
                content = holder.client().attachment(name)
                if content is not None:
                    return content
        return None

    def read(self, numbers: npt.ArrayLike, options: ReadOptions = WHOLE) -> "RemoteReading":
        """Read frames, in the order of `numbers`, from all servers in parallel; see `CachedFrames.read`."""
        options.ranges  # noqa: B018  atoms that cannot be are refused at once
        return RemoteReading(self._holders, np.ascontiguousarray(numbers, dtype=np.int64).reshape(-1), options)


class RemoteReading(Reading):
    """Iterates over the frames of one `RemoteDataset.read`, as `himach.io.store.cached_frames.Reading`."""

    def __init__(self, holders: Sequence[_Holder], numbers: npt.NDArray[np.int64], options: ReadOptions) -> None:
        super().__init__(None)
        self._holders = holders
        self._options = options
        self._readings: dict[int, Reading] = {}
        self._read_bytes = 0
        self._frames = self._read(numbers)

    @property
    def nbytes(self) -> int:
        """Bytes of records delivered so far."""
        return self._read_bytes + sum(reading.nbytes for reading in self._readings.values())

    def __next__(self) -> RawFrame | None:
        """Return the next frame, whose arrays are valid until the next call; None for a miss."""
        return next(self._frames)

    def _read(self, numbers: npt.NDArray[np.int64]) -> Iterator[RawFrame | None]:
        """Yield each frame from its planned server, else from another one that has it."""
        done = 0
        while done < len(numbers):
            planned = numbers[done : done + PLANNED_FRAMES]
            for number, chosen in zip(planned.tolist(), self._plan(planned), strict=True):
                reading = self._readings.get(chosen)
                frame = None if reading is None else next(reading)
                if frame is None and reading is not None:
                    if reading.reason == UNREACHABLE:
                        self._holders[chosen].fail()
                        break  # plan again, without this server
                    frame = self._read_elsewhere(number, chosen)
                if frame is None:
                    self._miss(self._reason_for_none(number) if reading is None else reading.reason)
                yield frame
                done += 1
            self._read_bytes = self.nbytes
            self._readings = {}

    def _plan(self, numbers: npt.NDArray[np.int64]) -> list[int]:
        """Distribute frames over the servers and start reading; return the server of each frame, -1 for none."""
        while True:
            plan = divide([None if item.failed else mask_of(item.frames, numbers) for item in self._holders], numbers)
            try:
                for i in np.unique(plan[plan >= 0]).tolist():
                    holder = self._holders[i]
                    self._readings[i] = holder.client().read(numbers[plan == i], self._options)
                return cast(list[int], plan.tolist())
            except StoreError:
                holder.fail()
                self._readings = {}

    def _reason_for_none(self, number: int) -> str:
        """Return why no server gives a frame."""
        was_there = number >= 0 and any(item.failed and number in item.frames for item in self._holders)
        return UNREACHABLE if was_there else ABSENT

    def _read_elsewhere(self, number: int, excluded: int) -> RawFrame | None:
        """Read a frame from another server than the one whose copy is bad."""
        for i, holder in enumerate(self._holders):
            if i != excluded and not holder.failed and number in holder.frames:
                with suppress(StoreError):
                    frame = next(holder.client().read([number], self._options))
                    if frame is not None:
                        return frame
        return None


def divide(held_flags: Sequence[npt.NDArray[np.bool_] | None], numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the holder to read each frame from, -1 for none: equal shares, consecutive frames from the same one."""
    available = [(i, flags) for i, flags in enumerate(held_flags) if flags is not None]
    plan = np.full(len(numbers), -1, dtype=np.int64)
    count = np.zeros(len(numbers), dtype=np.int64)
    for _, flags in available:
        count += flags
    turn = (numbers // NEIGHBOR_FRAMES) % np.maximum(count, 1)
    for i, flags in available:
        plan[flags & (turn == 0)] = i
        turn -= flags
    return plan
