"""Writers, assemblers, servers killed at random while slices are pushed and assembled: what was acknowledged is there.

Three ranks of a made-up simulation push slices of the same frames: two straight to the store of one node, the third to
the server of another. Each notes the frames that were acknowledged, durably, and goes on behind them when it is started
again. Three ranks, two of one node, put frames together all the while. Whatever is killed is started anew. At the end
all is left in peace for one more assembling, and every frame is read:
``python -m himach.benchmarks.slices.kills ROLE ...`` is one of them.
"""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

__all__ = ["Outcome", "main", "torment"]

N_ATOMS = 2000
RANKS = 3
NAME = "run7"
PUSHED_AT_ONCE = 20
LARGEST = 1_000_000
_NAME = "himach.benchmarks.slices.kills"
BOX = np.array([9, 9, 9, 90, 90, 90], np.float32)


@dataclass
class Outcome:
    """What came of it: how often what was killed, frames acknowledged by all ranks, and what of them is not right."""

    kills: dict[str, int]
    acknowledged: int
    frames: int
    wrong: list[int]
    lost: list[int]


def main(place: Path, kills: int) -> None:
    """Do it, and print what came of it."""
    from ..harness.figures import report

    found = torment(place, kills, random.Random(1))
    told = ", ".join(f"{name} {count}" for name, count in found.kills.items())
    report(f"killed {sum(found.kills.values())} times ({told}): frames that are there", str(found.frames))
    report("of these wrong", str(len(found.wrong)), "0")
    report("acknowledged durable by all ranks", str(found.acknowledged))
    report("of these lost", str(len(found.lost)), "0")


def torment(place: Path, kills: int, rng: random.Random) -> Outcome:
    """Have something killed so often at random, and look at what is there afterwards."""
    place.mkdir(parents=True)
    works = {f"writer {rank}": _starter(place, "write", str(rank)) for rank in range(RANKS)}
    works |= {"assembler": _assembler(place), "server": _starter(place, "serve")}
    counts = dict.fromkeys(works, 0)
    running = {name: start() for name, start in works.items()}
    try:
        for _ in range(kills):
            time.sleep(rng.uniform(0.02, 0.4))
            victim = rng.choice(list(works))
            _kill(running[victim])
            counts[victim] += 1
            running[victim] = works[victim]()
        _await_more(place)
    finally:
        for process in running.values():
            _kill(process)
    last = _assembler(place, once=True)()
    if last.wait(300):
        raise RuntimeError(f"the last assembling ended with {last.returncode}; see {place}/assembler.log")
    return _look(place, counts)


def _await_more(place: Path, patience: float = 120) -> None:
    """Wait until every rank has been told of a frame more, so that there is something to look for."""
    before = [_acknowledged(place, rank) for rank in range(RANKS)]
    end = time.monotonic() + patience
    while any(_acknowledged(place, rank) <= known for rank, known in enumerate(before)):
        if time.monotonic() > end:
            raise RuntimeError(f"no frame was acknowledged for {patience:g} s; see the logs in {place}")
        time.sleep(0.1)


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _starter(place: Path, *words: str) -> Callable[[], subprocess.Popen[bytes]]:
    return lambda: _start(place, words[0], [sys.executable, "-P", "-m", _NAME, str(place), *words])


def _assembler(place: Path, once: bool = False) -> Callable[[], subprocess.Popen[bytes]]:
    mpiexec = Path(sys.executable).with_name("mpiexec")
    launcher = str(mpiexec) if mpiexec.exists() else shutil.which("mpiexec") or "mpiexec"
    words = [launcher, "-n", "3", sys.executable, "-P", "-m", _NAME, str(place), "assemble"]
    return lambda: _start(place, "assembler", [*words, "once" if once else "on"])


def _start(place: Path, log: str, words: list[str]) -> subprocess.Popen[bytes]:
    with open(place / f"{log}.log", "ab") as file:
        return subprocess.Popen(words, stdout=file, stderr=file, stdin=subprocess.DEVNULL, start_new_session=True)


# --- What is pushed ---------------------------------------------------------------------------------------------------


def positions_of(number: int) -> np.ndarray:
    """Return the positions of a frame, float32 (n_atoms, 3)."""
    return np.random.default_rng(number).uniform(0, 9, (N_ATOMS, 3)).astype(np.float32)


def _ids_of(number: int, rank: int) -> np.ndarray:
    return np.flatnonzero(np.random.default_rng(number // 10).integers(0, RANKS, N_ATOMS) == rank)


def _acknowledged(place: Path, rank: int) -> int:
    """Return how many frames of a rank are known to be durable: its last whole line."""
    with contextlib.suppress(FileNotFoundError):
        lines = (place / f"acknowledged-{rank}").read_text().split("\n")[:-1]
        return int(lines[-1]) if lines else 0
    return 0


def _look(place: Path, counts: dict[str, int]) -> Outcome:
    from himach.io.store.store import Store

    everywhere: set[int] = set()
    wrong = []
    for node in ("n0", "n1"):
        dataset = Store(place / node).dataset(NAME, b"")
        numbers = np.array(list(dataset.native), dtype=np.int64)
        for number, frame in zip(numbers.tolist(), dataset.read(numbers), strict=True):
            if frame is None:
                continue
            right = frame.positions is not None and np.array_equal(frame.positions, positions_of(number))
            if not right or frame.time != number:
                wrong.append(number)
            everywhere.add(number)
    durable = min(_acknowledged(place, rank) for rank in range(RANKS))
    return Outcome(counts, durable, len(everywhere), wrong, sorted(set(range(durable)) - everywhere))


# --- The processes ----------------------------------------------------------------------------------------------------


def _write(place: Path, rank: int) -> None:
    import himach
    from himach.io.store.store import StoreError

    to = {"cache": place / "n0"} if rank < RANKS - 1 else {"servers": [str(place / "n1" / "server" / "socket")]}
    number = _acknowledged(place, rank)
    while number < LARGEST:
        try:
            with himach.Writer(NAME, N_ATOMS, rank=rank, durable=True, timeout=20, identity=NAME, **to) as writer:
                while number < LARGEST:
                    for each in range(number, number + PUSHED_AT_ONCE):
                        ids = _ids_of(each, rank)
                        writer.push_slice(each, ids, positions_of(each)[ids], time=each, box=BOX)
                    writer.flush()
                    number += PUSHED_AT_ONCE
                    with open(place / f"acknowledged-{rank}", "a") as file:
                        file.write(f"{number}\n")
        except StoreError as error:  # the server is away
            print(error, file=sys.stderr)
            time.sleep(0.1)


def _assemble(place: Path, once: bool) -> None:
    from himach.ranks.process_exit import promised_rank

    os.environ["HIMACH_NODE"] = f"n{promised_rank() // 2}"
    from himach.io.store.store import Store
    from himach.ranks.mpi import connect, end_together
    from himach.staging.assemble import assemble

    world = connect()
    store = Store(place / world.name)
    while True:
        print(assemble(world, store, NAME), flush=True)
        if once:
            end_together(0)
        time.sleep(0.05)


def _serve(place: Path) -> None:
    words = ["cache", "start", "--foreground", "--cache", str(place / "n1")]
    os.execv(sys.executable, [sys.executable, "-m", "himach", *words])


if __name__ == "__main__":
    where, role, *rest = sys.argv[1:]
    if role == "write":
        _write(Path(where), int(rest[0]))
    elif role == "assemble":
        _assemble(Path(where), rest[0] == "once")
    else:
        _serve(Path(where))
