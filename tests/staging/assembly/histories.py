"""Histories of all who push to a store, beside a model of what they were told: nothing acknowledged is lost or hidden.

``python tests/staging/assembly/histories.py [--steps 10000] [--seed N]``. At each step somebody pushes frames or slices
(to a server, or straight to the store), puts slices together, drops, evicts or is restarted; numbers go from 0 to the
largest that there may be. After each step a process that knows nothing, and the server, have all that was acknowledged
and is not gone by order, as it was pushed. No step takes longer than a minute, and memory does not grow with the
numbers.
"""

import argparse
import contextlib
import multiprocessing
import os
import random
import resource
import signal
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np

import himach
from himach.errors import HimachError
from himach.io.datasets.listing import entries
from himach.io.push.held_slices import SUFFIX, parse_generation
from himach.io.server import control
from himach.io.server.client import find, socket_path
from himach.io.store.store import Dataset, Store, StoreBusyError
from himach.ranks.communicator import alone
from himach.staging.assembly.assemble import assemble

ATOMS, RANKS = 60, 2
NUMBERS = [*range(6), 64, 1000, 2**31, 2**40, 2**53 - 9, 2**53 - 1]
STEPS_A_STORE = 250
SECONDS_A_STEP = 60
MEGABYTES = 200  # that memory may grow by
FRAMES, SLICES = "frames", "sliced"
Key = str | tuple[int, int]  # a dataset: one of these two, or the slices of a launch's rank


def positions(number: int, launch: int = 0) -> np.ndarray:
    """Of every launch other ones."""
    return (np.arange(ATOMS)[:, None] + 1000 * launch + [NUMBERS.index(number), 0.5, 0.25]).astype(np.float32)


def atoms(launch: int, rank: int) -> np.ndarray:
    return np.array_split(np.random.default_rng(launch).permutation(ATOMS), RANKS)[rank]


def serve(place: Path, ready: object) -> None:
    control.serve(place, ready=os.dup(ready.fileno()))


class History:
    """A store, who works on it, and what the model says is there."""

    def __init__(self, place: Path, rng: random.Random) -> None:
        self.place, self.rng = place, rng
        self.frames: set[int] = set()
        self.slices: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
        self.launch = 1
        self.last = 0  # the launch that has pushed slices
        self.writers: dict[tuple[object, ...], himach.Writer] = {}
        self.server: multiprocessing.process.BaseProcess | None = None
        self.done: Counter[str] = Counter()
        Store(place)
        self.start()

    # --- Actors ---

    def start(self) -> None:
        context = multiprocessing.get_context("forkserver")
        reader, writer = context.Pipe(duplex=False)
        self.server = context.Process(target=serve, args=(self.place, writer))
        self.server.start()
        writer.close()
        with os.fdopen(os.dup(reader.fileno())) as lines:
            assert lines.readline(), "the server did not start"

    def restart(self) -> None:
        assert self.server is not None
        self.server.kill() if self.rng.random() < 0.5 else self.server.terminate()
        self.server.join()
        self.start()

    def writer(self, *key: object) -> himach.Writer:
        """Return the one that stays open; kinds are "frames", "served" and "straight"."""
        if key not in self.writers:
            kind, *who = key
            server, options = [os.fspath(socket_path(self.place))], {"durable": self.rng.random() < 0.3, "timeout": 20}
            if kind != "frames":
                options |= {"launch": str(who[0]), "rank": who[1]}
            options |= {"cache": self.place} if kind == "straight" else {"servers": server}
            self.writers[key] = himach.Writer(FRAMES if kind == "frames" else SLICES, ATOMS, **options)
        return self.writers[key]

    def choose_numbers(self) -> list[int]:
        return self.rng.sample(NUMBERS, self.rng.randrange(1, 6))

    def push(self) -> None:
        numbers = self.choose_numbers()
        writer = self.writer("frames")
        for number in numbers:
            writer.number = number
            writer.push(positions(number), time=number)
        writer.flush()
        self.frames |= set(numbers)

    def push_slices(self) -> None:
        numbers, self.last = self.choose_numbers(), self.launch
        for rank in self.rng.choice([[0], [1], [0, 1], [1, 0]]):
            ids = atoms(self.launch, rank)
            writer = self.writer(self.rng.choice(["served", "straight", "straight"]), self.launch, rank)
            for number in numbers:
                writer.push_slice(number, ids, positions(number, self.launch)[ids], time=number)
            writer.flush()
            self.slices[self.launch, rank] |= set(numbers)

    def begin_launch(self) -> None:
        for key in [key for key in self.writers if key[0] != "frames"]:
            self.writers.pop(key).close()
        self.launch += 1

    def close_some(self) -> None:
        for key in self.rng.sample([*self.writers], len(self.writers) // 2):
            self.writers.pop(key).close()

    def put_together(self) -> None:
        before, sliced = self.whole(), {key: set(dataset.native) for key, dataset in self.sliced().items()}
        firsts = {
            launch: min(
                min(numbers) for (other_launch, _), numbers in sliced.items() if other_launch == launch and numbers
            )
            for launch in {launch for (launch, _), numbers in sliced.items() if numbers}
        }
        complete = {
            (launch, number)
            for launch in firsts
            for number in set.intersection(*(sliced.get((launch, rank), set()) for rank in range(RANKS)))
        }
        done = assemble(alone(), Store(self.place), SLICES)
        after = self.whole()
        assert before.items() <= after.items(), "a frame is gone, or another one"
        for number in after.keys() - before.keys():
            launch = after[number]
            assert (launch, number) in complete
            later = [other for other in firsts if other > launch and firsts[other] <= number]
            assert not later, f"frame {number} is of launch {launch}, and {later} came later"
        for launch, number in complete:
            if launch == self.last:
                assert number in after, f"frame {number} of launch {launch} was not put together: {done}"
            elif number not in after:
                assert done.aside is not None, f"slices of frame {number} are left aside without a word"
        self.settle(after)

    def settle(self, whole: dict[int, int]) -> None:
        """Slices of frames that are there may have been dropped."""
        sliced = self.sliced()
        for key in self.slices:
            self.slices[key] -= whole.keys() - set(sliced[key].native if key in sliced else ())

    def any_dataset(self) -> tuple[Key, Dataset | None]:
        """Any that there may be, opened by somebody who does not write to it."""
        sliced = self.sliced()
        key = self.rng.choice([FRAMES, FRAMES, SLICES, *sliced])
        return key, self.opened(key) if isinstance(key, str) else sliced[key]

    def forget(self, key: Key, numbers: set[int]) -> None:
        """The model lets go of what goes by order."""
        if isinstance(key, tuple):
            self.slices[key] -= numbers
        elif key == FRAMES:
            self.frames -= numbers
        else:  # of these there need be no slices any more
            self.settle(dict.fromkeys(numbers, 0))

    def drop(self) -> None:
        key, dataset = self.any_dataset()
        if dataset is not None and dataset.native:
            numbers = self.rng.sample([*dataset.native], min(len(dataset.native), self.rng.randrange(1, 4)))
            self.forget(key, set(numbers))
            dataset.drop(numbers, native=True)

    def evict(self) -> None:
        key, dataset = self.any_dataset()
        segments = [] if dataset is None else dataset.segments()
        if dataset is None or not segments:
            return
        chosen = self.rng.choice(segments)["id"]
        there = [*dataset.native]
        places = dict(zip(there, dataset.locate(np.array(there, np.int64)), strict=True))
        with contextlib.suppress(StoreBusyError):
            if self.rng.random() < 0.5:
                dataset.evict(chosen)
            else:
                Store(self.place).remove(dataset.path.name)
        left = {int(file.stem[2:], 16) for file in dataset.path.glob("?-*.seg")}
        self.forget(key, {number for number, place in places.items() if place is None or place[0] not in left})

    # --- What is there ---

    def opened(self, name: str) -> Dataset | None:
        store = Store(self.place)
        return store.dataset(name, b"", create=False) if b"" in store.generations(name) else None

    def sliced(self) -> dict[tuple[int, int], Dataset]:
        """The datasets that have slices, by launch and rank, as somebody sees them who looks now."""
        datasets, store = {}, Store(self.place)
        for generation in store.generations(SLICES + SUFFIX):
            parsed = parse_generation(generation)
            dataset = store.dataset(SLICES + SUFFIX, generation, create=False)
            if parsed is not None and dataset.native:
                (slice_,) = dataset.read_slices([min(dataset.native)])
                assert slice_ is not None, "a slice cannot be read"
                datasets[int(slice_[0].positions[0, 0] // 1000), parsed[0]] = dataset
        return datasets

    def whole(self) -> dict[int, int]:
        """The frames that were put together, and of which launch each is."""
        dataset, launches = self.opened(SLICES), {}
        for number in [] if dataset is None else dataset.native:
            (frame,) = dataset.read([number])
            assert frame is not None and frame.time == number, f"frame {number} cannot be read"
            launches[number] = int(frame.positions[0, 0] // 1000)
            assert np.array_equal(frame.positions, positions(number, launches[number])), f"frame {number} is a mixture"
        return launches

    def check(self) -> None:
        dataset = self.opened(FRAMES)
        there = set() if dataset is None else set(dataset.native)
        assert self.frames <= there, f"frames {self.frames - there} are lost"
        for number, frame in zip(sorted(there), dataset.read(sorted(there)) if dataset else (), strict=True):
            assert frame is not None and np.array_equal(frame.positions, positions(number))
        client = find(self.place)
        assert client is not None, "the server does not answer"
        with client:
            if dataset is not None:
                client.open(FRAMES)
                assert set(client.native) == there, f"the server has {set(client.native) ^ there} otherwise"
        whole, sliced = self.whole(), self.sliced()
        for (launch, rank), numbers in self.slices.items():
            ids = np.sort(atoms(launch, rank))
            dataset = sliced.get((launch, rank))
            stored = sorted(dataset.native) if dataset is not None else []
            lost = numbers - set(stored) - whole.keys()
            assert not lost, f"slices {lost} of launch {launch}, rank {rank} are lost"
            for number, slice_ in zip(stored, dataset.read_slices(stored) if stored else (), strict=True):
                assert slice_ is not None and np.array_equal(slice_[1], ids)
                assert np.array_equal(slice_[0].positions, positions(number, launch)[ids])

    def end(self) -> None:
        for writer in self.writers.values():
            writer.close()
        assert self.server is not None
        self.server.kill()
        self.server.join()

    ACTIONS = (
        [push] * 5 + [push_slices] * 8 + [put_together] * 3 + [drop] * 4 + [evict] * 3 + [close_some] * 2
        + [begin_launch, restart]
    )  # fmt: skip

    def step(self) -> None:
        action = self.rng.choice(self.ACTIONS)
        self.done[action.__name__] += 1
        try:
            action(self)
        except HimachError as error:  # nothing of it was acknowledged
            self.done[f"{action.__name__}: {type(error).__name__}"] += 1
            for key in [*self.writers]:
                with contextlib.suppress(HimachError):
                    self.writers.pop(key).close()
        self.check()
        if self.rng.random() < 0.05:
            entries(Store(self.place))


def live(steps: int, seed: int) -> Counter[str]:
    """Do so many steps; return how often each was done."""
    done: Counter[str] = Counter()
    rng = random.Random(seed)
    least = 0
    with tempfile.TemporaryDirectory(prefix="himach-histories-") as folder:
        for begin in range(0, steps, STEPS_A_STORE):
            history = History(Path(folder, f"store{begin}"), rng)
            try:
                for step in range(begin, min(steps, begin + STEPS_A_STORE)):
                    signal.alarm(SECONDS_A_STEP)
                    try:
                        history.step()
                    except BaseException:
                        print(f"seed {seed}, step {step}", file=sys.stderr)
                        raise
            finally:
                signal.alarm(0)
                history.end()
            done += history.done
            most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            least = least or most  # after the first store
            assert most < least + MEGABYTES * 1024, f"memory has grown from {least} to {most} KiB"
    return done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    multiprocessing.set_forkserver_preload(["himach.io.server.control"])
    print(f"seed {options.seed}: {dict(sorted(live(options.steps, options.seed).items()))}")


if __name__ == "__main__":
    main()
