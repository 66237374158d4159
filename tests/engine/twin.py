"""The twin of the engine, which is the plain runner; and the made-up frames that both run on."""

import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from support.plain import Stamp, put, reduced, regroup

from himach.analysis import Analysis
from himach.engine import Passed, RankFrames, run_pass
from himach.engine.shuffle.runs import Memory
from himach.frame import Frame, RawFrame
from himach.ranks.communicator import Communicator, World, alone

#: Bytes that the pairs of a rank may take; None: as many as they need.
MEMORY: int | None = None


def run_twin(chain: Sequence[Analysis], frames: range, raws: dict[int, RawFrame]) -> list[tuple[Any, Any]]:
    """Return (key, result) in key order, without combine()."""
    groups: dict[Any, Any] = {}
    for number in sorted(frames):
        raw, step = raws[number], frames.index(number)
        put(groups, Stamp(number, step, raw.time, raw.box), chain[0].map(bind(raw, step)))
    for stage in chain[:-1]:
        groups = regroup(reduced(stage, groups, combines=False))
    results = reduced(chain[-1], groups, combines=False)
    return [(key, result) for key, _, result in results if result is not None]


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
