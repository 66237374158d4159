"""The slow, obvious twin of the engine: one process, plain dicts; and the made-up frames that both run on."""

import copy
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from himach.analysis import Analysis, Pairs
from himach.engine import Passed, RankFrames, run_pass
from himach.engine.shuffle.runs import Memory
from himach.frame import Frame, RawFrame
from himach.ranks.communicator import Communicator, World, alone

#: Bytes that the pairs of a rank may take; None: as many as they need.
MEMORY: int | None = None
RANK_OF_TYPE = {int: 0, float: 1, str: 2, bytes: 3, type(None): 4, tuple: 5}


def sortable(key: Any) -> Any:
    if isinstance(key, np.generic):
        key = key.item()
    if isinstance(key, tuple):
        return (5, tuple(sortable(part) for part in key))
    if isinstance(key, float):
        key += 0.0
    return (RANK_OF_TYPE[type(key)], 0 if key is None else key)


def plain(key: Any) -> Any:
    if isinstance(key, tuple):
        return tuple(plain(part) for part in key)
    key = key.item() if isinstance(key, np.generic) else key
    return key + 0.0 if isinstance(key, float) else key


@dataclass
class TwinSeries:
    """A series that is lists."""

    stamps: list[tuple[int, int, float, Any]] = field(default_factory=list)
    items: list[tuple[Any, Any]] = field(default_factory=list)  # (layout, value)

    def __len__(self) -> int:
        return len(self.stamps)

    def __iter__(self) -> Iterator[tuple[float, Any]]:
        return iter([(stamp[2], value) for stamp, (_, value) in zip(self.stamps, self.items, strict=True)])

    @property
    def frames(self) -> Any:
        return np.array([stamp[0] for stamp in self.stamps], dtype=np.int64)

    @property
    def steps(self) -> Any:
        return np.array([stamp[1] for stamp in self.stamps], dtype=np.int64)

    @property
    def times(self) -> Any:
        return np.array([stamp[2] for stamp in self.stamps], dtype=np.float64)

    @property
    def boxes(self) -> Any:
        if all(stamp[3] is None for stamp in self.stamps):
            return None
        empty = np.full(6, np.nan)
        return np.array([empty if stamp[3] is None else stamp[3] for stamp in self.stamps], dtype=np.float32)

    @property
    def values(self) -> Any:
        layouts = [layout for layout, _ in self.items]
        if layouts[0] != "item" and all(layout == layouts[0] for layout in layouts):
            values = [value for _, value in self.items]
            return None if layouts[0] == "presence" else np.array(values, dtype=layouts[0][0])
        values = [value for _, value in self.items]
        plain = [isinstance(value, np.ndarray) and not value.dtype.hasobject for value in values]
        shapes = {(value.dtype, value.shape) if member else None for value, member in zip(values, plain, strict=True)}
        return np.stack(values) if len(shapes) == 1 and None not in shapes else values


def emitted(items: Any) -> Iterator[tuple[Any, Any, Any]]:
    for item in items or ():
        if isinstance(item, Pairs):
            for row, key in enumerate(item.keys.tolist()):
                name = tuple(key) if isinstance(key, list) else key
                if item.values is None:
                    yield name, "presence", None
                else:
                    yield name, (item.values.dtype, item.values.shape[1:]), item.values[row].copy()
        else:
            yield item[0], "item", copy.deepcopy(item[1])


def run_twin(chain: Sequence[Analysis], frames: range, raws: dict[int, RawFrame]) -> list[tuple[Any, Any]]:
    """Return (key, result) in key order, without combine()."""
    groups: dict[Any, tuple[Any, TwinSeries]] = {}
    for number in sorted(frames):
        raw = raws[number]
        stamp = (number, frames.index(number), raw.time, raw.box)
        for key, layout, value in emitted(chain[0].map(bind(raw, frames.index(number)))):
            put(groups, key, stamp, layout, value)
    for stage in chain[:-1]:
        later: dict[Any, tuple[Any, TwinSeries]] = {}
        ordered = sorted(groups.items(), key=lambda item: (item[1][1].stamps[0][0], item[0]))
        for _, (key, series) in ordered:
            for new, layout, value in emitted(stage.reduce(key, series)):
                put(later, new, series.stamps[0], layout, value)
        groups = later
    results = [
        (key, chain[-1].reduce(key, series)) for _, (key, series) in sorted(groups.items(), key=lambda item: item[0])
    ]
    return [(key, result) for key, result in results if result is not None]


def put(groups: dict[Any, Any], key: Any, stamp: Any, layout: Any, value: Any) -> None:
    _, series = groups.setdefault(sortable(key), (plain(key), TwinSeries()))
    series.stamps.append(stamp)
    series.items.append((layout, value))


def made_up(numbers: Sequence[int], boxes: str = "all", n_atoms: int = 5) -> dict[int, RawFrame]:
    """Return frames with random positions; `boxes` is all, none or some."""
    rng = np.random.default_rng(7)
    raws = {}
    for number in range(max(numbers, default=0) + 1):
        positions = rng.random((n_atoms, 3), dtype=np.float32)
        box = np.array([10, 10, 10 + number, 90, 90, 90], dtype=np.float32)
        boxed = boxes == "all" or (boxes == "some" and number % 3 == 0)
        raws[number] = RawFrame(number, 0.5 * number, positions, box if boxed else None)
    return raws


def bind(raw: RawFrame, step: int) -> Frame:
    """Return the frame that a map() gets, its arrays copies."""
    box = None if raw.box is None else raw.box.copy()
    return Frame(raw.number, step, raw.time, raw.positions.copy(), box, None, None, None)  # type: ignore[arg-type]


def tasks(n: int, comm: Communicator, seed: int = 0, largest: int = 5) -> list[np.ndarray]:
    """Return this rank's tasks: the same division on all ranks, dealt out at random and in random order."""
    rng = np.random.default_rng(seed)
    kind = seed % 3
    steps = np.arange(n) if kind < 2 else rng.permutation(n)
    cut = []
    start = 0
    while start < n:
        stop = start + int(rng.integers(1, largest + 1))
        cut.append(np.sort(steps[start:stop]).astype(np.int64))
        start = stop
    owners = rng.integers(0, comm.size, len(cut))
    if kind == 1:
        owners = np.sort(owners)
    return [task for task, owner in zip(cut, owners, strict=True) if owner == comm.rank]


def make_work(frames: range, raws: dict[int, RawFrame], rank_tasks: Sequence[np.ndarray], n: int = 1) -> RankFrames:
    """Return the work of a rank's tasks on made-up frames, for `n` analyses."""
    queue = iter(rank_tasks)
    return RankFrames(
        frames,
        lambda: next(queue, None),
        lambda numbers: (raws[number] for number in numbers.tolist()),
        [bind] * n,
        lambda done: None,
    )


def run_engine(
    world: World | None,
    chains: Sequence[Sequence[Analysis]],
    frames: range,
    raws: dict[int, RawFrame],
    seed: int = 0,
    largest: int = 5,
    memory: int | None = None,
    folder: Path | None = None,
) -> Passed:
    """Run the engine over made-up frames; pairs that exceed `memory` (bytes) are spilled into `folder`."""
    world, memory = world or alone(), memory or MEMORY
    work = make_work(frames, raws, tasks(len(frames), world.comm, seed, largest), len(chains))
    limit = None if memory is None else Memory(memory, folder or Path(tempfile.gettempdir()))
    return run_pass(world, chains, work, memory=limit)


def check_twin(results: Iterable[tuple[Any, Any]], chain: Sequence[Analysis], frames: range, raws: dict) -> None:
    """Compare keys and results of the engine to those of the twin, to the last bit."""
    results, expected = list(results), run_twin(chain, frames, raws)
    assert canonical([key for key, _ in results]) == canonical([key for key, _ in expected]), chain
    for (key, result), (_, twin) in zip(results, expected, strict=True):
        assert canonical(result) == canonical(twin), (chain, key)


def canonical(value: Any) -> Any:
    """Return a value with types and bytes spelled out, so that equal means the same to the last bit."""
    if isinstance(value, np.ndarray):
        content: Any = [canonical(part) for part in value] if value.dtype.hasobject else value.tobytes()
        return ("array", value.dtype.str, value.shape, content)
    if isinstance(value, np.generic):
        return (type(value).__name__, value.tobytes())
    if isinstance(value, list | tuple):
        return (type(value).__name__, [canonical(part) for part in value])
    if isinstance(value, dict):
        return ("dict", [(canonical(key), canonical(part)) for key, part in value.items()])
    if isinstance(value, float):
        return ("float", value.hex())
    return (type(value).__name__, repr(value))
