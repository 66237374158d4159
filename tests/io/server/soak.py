"""Kills everybody at work on one store at random moments: nothing acknowledged is lost, and nothing is wrong.

``python tests/io/server/soak.py [--kills 300] [--seed N]``. All work on one store at once: a server, pushers through
it, a writer and a reader without it, a reader through it, one that evicts what runs kept, and runs. Again and again one
of them gets SIGKILL and is started anew. Every few kills all are killed, and every frame is read: what was acknowledged
must be there, and right. A run must have the right outcome or end with an error of himach's. No file stays in $TMPDIR.
"""

import argparse
import collections
import contextlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from support.cache_data import analyse, bits, make

import himach
from himach.errors import HimachError
from himach.io.datasets.listing import evict_chosen
from himach.io.frame_source import ReadOptions
from himach.io.server import control
from himach.io.server.client import find, socket_path
from himach.io.store.store import Store

FRAMES = 600
RUN_FRAMES = 64
KILLS_A_CHECK = 10
KILLS_A_STORE = 60


def n_atoms_of(number: int) -> int:
    return 20_000 if number % 50 == 0 else 97  # written through, or gathered


def positions(number: int) -> np.ndarray:
    """Positions on XTC's grid, which are packed; of every third frame beside it, which are not."""
    steps = np.arange(n_atoms_of(number) * 3, dtype=np.float32).reshape(-1, 3) * 7919 % 4001 + number
    on_grid = steps * np.float32(0.001) * np.float32(10)
    return on_grid + np.float32(0.0005) if number % 3 == 0 else on_grid


def check(frame, number: int) -> None:
    if frame.number != number or frame.time != number or not np.array_equal(frame.positions, positions(number)):
        raise AssertionError(f"frame {number} has wrong bytes")


class Ground:
    """Where the actors meet: a store, a trajectory with its right outcome, and notes of what was acknowledged."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.topology, self.trajectory = make(directory, RUN_FRAMES, "md.xtc")
        self.expected = self.outcome(cache="off")
        self.dataset = ""
        self.place = directory

    def outcome(self, **options) -> list[bytes]:
        return bits(analyse(self.trajectory, self.topology, **options).outcome)

    def note_run(self, end: str) -> None:
        """Note how a run ended."""
        with open(self.directory / "runs", "a") as file:
            file.write(end.replace("\n", " ") + "\n")

    def note(self, kind: str) -> Path:
        return self.directory / f"acknowledged-{kind}-{self.dataset}"

    def acknowledged(self) -> set[int]:
        notes = self.directory.glob(f"acknowledged-*-{self.dataset}")
        return {int(line) for note in notes for line in note.read_bytes().split(b"\n")[:-1]}


# --- Actors, each for ever in a process of its own --------------------------------------------------------------------


def serve(ground: Ground, rng: random.Random, ready: int) -> None:
    control.serve(ground.place, serialize_reads=rng.random() < 0.3, ready=ready)


def push(ground: Ground, rng: random.Random) -> None:
    path = os.fspath(socket_path(ground.place))
    with open(ground.note("push"), "ab", buffering=0) as note:
        while True:
            large = rng.random() < 0.2
            numbers = [number for number in range(FRAMES) if (number % 50 == 0) == large]
            options = {"durable": rng.random() < 0.5, "timeout": 2.0, "batch_bytes": rng.choice([2_000, 100_000])}
            with contextlib.suppress(HimachError):
                writer = himach.Writer(ground.dataset, n_atoms_of(numbers[0]), servers=[path], **options)
                for _ in range(10):
                    batch = rng.sample(numbers, min(len(numbers), rng.randrange(1, 30)))
                    for number in batch:
                        writer.number = number
                        writer.push(positions(number), time=number)
                    writer.flush()
                    note.write(b"".join(b"%d\n" % number for number in batch))
                writer.close()
            time.sleep(0.01)


def write(ground: Ground, rng: random.Random) -> None:
    dataset = Store(ground.place).dataset(ground.dataset, segment_bytes=1 << 20)
    with open(ground.note("write"), "ab", buffering=0) as note:
        while True:
            batch = rng.sample(range(FRAMES), rng.randrange(1, 30))
            for number in batch:
                dataset.write(number, float(number), None, positions(number), native=False)
            dataset.flush(durable=rng.random() < 0.2)
            note.write(b"".join(b"%d\n" % number for number in batch))
            if rng.random() < 0.2:
                dataset.close()


def read(ground: Ground, rng: random.Random) -> None:
    dataset = Store(ground.place).dataset(ground.dataset)
    while True:
        dataset.refresh()
        numbers = rng.sample(range(FRAMES), 60)
        for number, frame in zip(
            numbers, dataset.read(numbers, ReadOptions(direct=rng.choice(["on", "off"]))), strict=True
        ):
            if frame is not None:
                check(frame, number)


def ask(ground: Ground, rng: random.Random) -> None:
    while True:
        with contextlib.suppress(HimachError):
            client = find(ground.place, timeout=5)
            if client is not None:
                with client:
                    client.open(ground.dataset)
                    for _ in range(rng.randrange(1, 10)):
                        numbers = rng.sample(range(FRAMES), 60)
                        for number, frame in zip(numbers, client.read(numbers), strict=True):
                            if frame is not None:
                                check(frame, number)
        time.sleep(0.01)


def run(ground: Ground, rng: random.Random) -> None:
    warnings.simplefilter("ignore")  # frames that were evicted while they were written are told of
    while True:
        try:
            right = ground.outcome(cache=ground.place, out=ground.directory / "out") == ground.expected
        except HimachError as error:
            ground.note_run(f"failed: {error}")
            continue
        if not right:
            raise AssertionError("a run has a wrong outcome")
        ground.note_run("right")


def evict(ground: Ground, rng: random.Random) -> None:
    """Evict what runs kept of the trajectory: all that nobody but the origin's owner may rely on."""
    while True:
        with contextlib.suppress(HimachError):
            evict_chosen(Store(ground.place), str(ground.trajectory), aliens=rng.random() < 0.5)
        time.sleep(rng.uniform(0.01, 0.3))


# --- Killing ----------------------------------------------------------------------------------------------------------


def in_child(work: Callable[[], None], name: str) -> int:
    """Start `work` in a process group of its own; what goes wrong there goes to standard error."""
    child = os.fork()
    if child > 0:
        return child
    status = 1
    try:
        os.setpgid(0, 0)
        work()
    except BaseException as error:
        print(f"{name}: {error!r}", file=sys.stderr, flush=True)
    finally:
        os._exit(status)


class Cast:
    """The processes at work."""

    actors = (serve, push, push, write, read, ask, evict, run)

    def __init__(self, ground: Ground, rng: random.Random) -> None:
        self.ground, self.rng = ground, rng
        self.pids: list[int] = []
        self.killed: collections.Counter[str] = collections.Counter()

    def start(self) -> None:
        self.pids = [0] * len(self.actors)
        for i in range(len(self.actors)):
            self.start_one(i)

    def start_one(self, i: int) -> None:
        actor, rng = self.actors[i], random.Random(self.rng.random())
        if actor is not serve:
            self.pids[i] = in_child(lambda: actor(self.ground, rng), actor.__name__)
            return
        reader, writer = os.pipe()
        self.pids[i] = in_child(lambda: serve(self.ground, rng, writer), "serve")
        os.close(writer)
        with os.fdopen(reader) as lines:
            if not lines.readline():
                raise AssertionError("a server did not start")

    def kill_one(self) -> None:
        """SIGKILL to one, which is started anew."""
        i = self.rng.randrange(len(self.actors))
        self.end(i)
        self.killed[self.actors[i].__name__] += 1
        self.start_one(i)

    def end(self, i: int) -> None:
        os.kill(self.pids[i], signal.SIGKILL)
        _, status = os.waitpid(self.pids[i], 0)
        if not os.WIFSIGNALED(status):
            raise AssertionError(f"{self.actors[i].__name__} ended by itself")
        self.pids[i] = 0

    def end_all(self) -> None:
        for i in self.rng.sample(range(len(self.pids)), len(self.pids)):
            if self.pids[i] > 0:
                self.end(i)


def verify(ground: Ground) -> tuple[int, int]:
    """Check that every acknowledged frame is there, and all that is there right; return how many, how many packed."""
    dataset = Store(ground.place).dataset(ground.dataset)
    found = set()
    for number, frame in zip(range(FRAMES), dataset.read(np.arange(FRAMES)), strict=True):
        if frame is not None:
            check(frame, number)
            found.add(number)
    lost = ground.acknowledged() - found
    if lost:
        raise AssertionError(f"acknowledged frames are lost: {sorted(lost)}")
    if set(dataset.native) | set(dataset.alien) != found:
        raise AssertionError("what is listed is not what is there")
    if ground.outcome(cache=ground.place) != ground.expected:
        raise AssertionError("a run has a wrong outcome")
    lengths = dict(zip(sorted(found), dataset.places(sorted(found))["length"].tolist(), strict=True))
    packed = {number for number, length in lengths.items() if length < n_atoms_of(number) * 12}
    if packed != {number for number in found if number % 3 != 0}:
        raise AssertionError("not the frames on XTC's grid are packed")
    return len(found), len(packed)


def soak(kills: int, seed: int) -> dict[str, float]:
    """Kill so often; return how often each was killed, and how many frames were checked in all."""
    rng, began = random.Random(seed), time.monotonic()
    frames = packed = done = 0
    with tempfile.TemporaryDirectory(prefix="himach-soak-") as name:
        ground = Ground(Path(name))
        tempfile.tempdir = os.environ["TMPDIR"] = os.fspath(ground.directory / "tmp")
        os.mkdir(tempfile.tempdir)
        cast = Cast(ground, rng)
        try:
            while done < kills:
                ground.place = ground.directory / f"store{done // KILLS_A_STORE}"
                ground.dataset = f"pushed{done}"
                cast.start()
                for _ in range(min(KILLS_A_CHECK, kills - done)):
                    time.sleep(rng.uniform(0.01, 0.4))
                    cast.kill_one()
                    done += 1
                time.sleep(rng.uniform(0.01, 0.4))
                cast.end_all()
                if left := os.listdir(tempfile.gettempdir()):
                    raise AssertionError(f"temporary files are left: {left}")
                checked = verify(ground)
                frames, packed = frames + checked[0], packed + checked[1]
        finally:
            for pid in filter(None, cast.pids):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            shutil.rmtree(ground.place, ignore_errors=True)
        ends = collections.Counter((ground.directory / "runs").read_text().splitlines())
        for line, times in ends.most_common(5):
            print(f"{times} runs: {line}")
        counts = {"right runs": ends["right"], "failed runs": ends.total() - ends["right"]}
    counts |= {"a second": done / (time.monotonic() - began), "frames checked": frames, "packed frames checked": packed}
    return dict(sorted(cast.killed.items())) | counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    print(f"seed {options.seed}: {soak(options.kills, options.seed)}")


if __name__ == "__main__":
    main()
