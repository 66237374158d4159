"""Sealed tables: whatever is sealed, torn, dropped, evicted and written meanwhile, what is found is what is there."""

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from support.shelves import flip

from himach.io.store import bodhi
from himach.io.store.store import Dataset, Store

KINDS = {True: "native", False: "alien"}
TOP = 3000
SELECTIONS = [range(TOP), range(3, TOP, 7), range(TOP - 1, -1, -1), range(TOP - 5, 0, -13), range(0, 10**9, 500_000)]


def frame(number: int) -> np.ndarray:
    """Positions of as many atoms as the number says, so that records differ in length."""
    return np.full((1 + number % 3 * 20, 3), number % 1000, dtype=np.float32)


def write(dataset: Dataset, numbers, *, native: bool = True) -> list[int]:
    new = [number for number in numbers if dataset.write(number, 0.5, None, frame(number), native=native)]
    dataset.flush()
    return new


def tables(dataset: Dataset) -> list[Path]:
    return sorted(dataset.path.glob("*.tab"))


def marked(dataset: Dataset, frames: range) -> dict[bool, set[int]]:
    words = {native: np.zeros(-(-len(frames) // 64), dtype=np.uint64) for native in KINDS}
    dataset.mark(frames, words[True], words[False])
    flags = {native: np.unpackbits(bits.view(np.uint8), bitorder="little") for native, bits in words.items()}
    assert not any(some[len(frames) :].any() for some in flags.values())
    return {native: {frames[i] for i in np.flatnonzero(some)} for native, some in flags.items()}


class Sealing(RuleBasedStateMachine):
    """A dataset beside two sets; `other` is a second opening of it, which may know less until it refreshes."""

    def __init__(self) -> None:
        super().__init__()
        self.place = Path(tempfile.mkdtemp(prefix="himach-sealed-"))
        self.held: dict[bool, set[int]] = {True: set(), False: set()}
        self.segment_bytes = 60_000
        self.dataset = self.other = self.opened()

    def opened(self) -> Dataset:
        return Store(self.place).dataset("sealed", segment_bytes=self.segment_bytes)

    def teardown(self) -> None:
        self.dataset.close()
        shutil.rmtree(self.place)

    @rule(
        native=st.booleans(),
        first=st.sampled_from([0, 1, 500, 10**9 - 40]),
        n=st.sampled_from([1, 20, 64, 65, 300, 900]),
        step=st.sampled_from([1, 1, 2, 3, 50_000]),
        shuffled=st.booleans(),
    )
    def write_even(self, native, first, n, step, shuffled):
        numbers = [first + i * step for i in range(n)]
        random.Random(n).shuffle(numbers) if shuffled else None
        self.held[native].update(write(self.dataset, numbers, native=native))

    @rule(native=st.booleans(), numbers=st.lists(st.integers(0, TOP - 1), max_size=400))
    def write_any(self, native, numbers):
        self.held[native].update(write(self.dataset, numbers, native=native))

    @rule(native=st.booleans(), seed=st.integers(0, 99), n=st.sampled_from([1, 3, 100]))
    def drop(self, native, seed, n):
        there = sorted(self.held[native])
        numbers = random.Random(seed).sample(there, min(n, len(there)))
        assert self.dataset.drop(numbers, native=native) == len(numbers)
        self.held[native].difference_update(numbers)

    @rule(least=st.sampled_from([1, 1, 1, 60, 0]))
    def seal(self, least):
        self.dataset.seal(least)

    @rule(segment_bytes=st.sampled_from([20_000, 60_000, 1 << 20]))
    def reopen(self, segment_bytes):
        self.dataset.close()
        self.segment_bytes = segment_bytes
        self.dataset = self.opened()

    @rule()
    def another_seals(self):
        other = self.opened()
        other.seal(1)
        other.close()

    @precondition(lambda self: tables(self.dataset))
    @rule(which=st.integers(0, 100), at=st.floats(0, 1, exclude_max=True), how=st.sampled_from(["flip", "cut", "lose"]))
    def tear(self, which, at, how):
        some = tables(self.dataset)
        path = some[which % len(some)]
        place = int(at * path.stat().st_size)
        if how == "flip" and not path.stat().st_size:
            return  # it was cut off as a whole
        if how == "flip":
            flip(path, place)
        elif how == "cut":
            os.truncate(path, place)
        else:
            path.unlink()

    @rule(which=st.integers(0, 100))
    def evict(self, which):
        self.dataset.close()  # nobody evicts from under a writer
        there = [one for one in self.dataset.segments() if one["frames"]]
        if there:
            segment = there[which % len(there)]
            try:
                self.dataset.evict(segment["id"])
            except bodhi.StoreBusyError:
                return
            kept = Store(self.place).dataset("sealed")
            self.held = {native: set(getattr(kept, name)) & self.held[native] for native, name in KINDS.items()}
            assert (
                segment["frames"] == 0
                or not (self.dataset.path / f"{'na'[segment['kind']]}-{segment['id']:016x}.tab").exists()
            )

    @invariant()
    def frames_are_found(self):
        facts = self.dataset.facts()
        for native, name in KINDS.items():
            assert set(getattr(self.dataset, name)) == self.held[native]
            assert facts[name] == len(self.held[native])
        for frames in SELECTIONS:
            assert marked(self.dataset, frames) == {n: held & set(frames) for n, held in self.held.items()}

    @invariant()
    def frames_are_read(self):
        there = self.held[True] | self.held[False]
        numbers = sorted(there)[:: max(1, len(there) // 15)] + list(range(0, TOP, 331))
        assert self.dataset.holds(np.array(numbers)).tolist() == [number in there for number in numbers]
        for number, read in zip(numbers, self.dataset.read(numbers), strict=True):
            assert (read is not None) == (number in there)
            if read is not None:
                assert read.number == number
                assert np.array_equal(read.positions, frame(number))
        assert self.dataset.bounds() == ((min(there), max(there)) if there else None)


Sealing.TestCase.settings = settings(max_examples=40, stateful_step_count=15, phases=[Phase.explicit, Phase.generate])
TestSealing = Sealing.TestCase


def test_nothing_is_sealed_where_there_is_no_room(tmp_path):
    store = Store(tmp_path)
    dataset = store.dataset("full")
    write(dataset, range(500))
    store.set_quota(sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) + 500)
    dataset.seal(1)
    assert not tables(dataset)
    assert set(dataset.native) == set(range(500))
    store.set_quota(0)
    dataset.seal(1)
    assert len(tables(dataset)) == 1
    assert set(dataset.native) == set(range(500))


WRITER = """
import sys
import numpy as np
from himach.io.store.store import Store
place, first, n = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
dataset = Store(place).dataset("beside", segment_bytes=60_000)
for number in range(first, n, 2):
    dataset.write(number, 0.5, None, np.full((1 + number % 3 * 20, 3), number % 1000, dtype=np.float32), native=True)
    if number % 40 == first:
        dataset.flush()
        dataset.seal(1)
        print(number, flush=True)
dataset.close()
"""


def test_readers_and_evictions_beside_writers_that_seal(tmp_path):
    """What was acknowledged is found by whoever opens or refreshes; what is evicted goes with its table."""
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    writers = [subprocess.Popen([*command, str(first), "3000"], stdout=subprocess.PIPE, text=True) for first in (0, 1)]
    stays = Store(tmp_path).dataset("beside")
    evicted: set[int] = set()
    for turn in range(25):
        shown = [int(writer.stdout.readline() or 2999) for writer in writers]
        found = Store(tmp_path).dataset("beside")
        stays.refresh()
        done = {number for first, last in zip((0, 1), shown, strict=True) for number in range(first, last + 1, 2)}
        for dataset in (found, stays):
            there = set(dataset.native)
            assert done - evicted <= there
            # A table that was made anew meanwhile brings what was written meanwhile.
            assert marked(dataset, range(3000))[True] >= there
            some = sorted(there & done)[:: max(1, len(there) // 20)]
            for number, read in zip(some, dataset.read(some), strict=True):
                assert read.number == number and np.array_equal(read.positions, frame(number))
        idle = [one for one in found.segments() if not one["busy"] and one["frames"]]
        if turn % 5 == 4 and idle:
            del dataset, found
            before = set(Store(tmp_path).dataset("beside").native)
            try:
                stays.evict(idle[0]["id"])
            except bodhi.StoreBusyError:  # just being sealed
                continue
            evicted |= before - set(Store(tmp_path).dataset("beside").native)
            assert not (stays.path / f"n-{idle[0]['id']:016x}.tab").exists()
    for writer in writers:
        writer.communicate(timeout=60)
        assert writer.returncode == 0
    assert set(Store(tmp_path).dataset("beside").native) == set(range(3000)) - evicted


def test_who_is_killed_while_sealing_leaves_what_was_there(tmp_path):
    for turn in range(6):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), str(turn % 2), "100000"], stdout=subprocess.PIPE, text=True
        ) as writer:
            last = int(writer.stdout.readline())
            time.sleep(0.02 * turn)
            writer.send_signal(signal.SIGKILL)
            last = max([last, *(int(line) for line in writer.stdout.read().split("\n")[:-1])])
        dataset = Store(tmp_path).dataset("beside")
        numbers = list(range(turn % 2, last + 1, 2))
        assert dataset.holds(np.array(numbers)).all()
        assert marked(dataset, range(last + 1))[True] >= set(numbers)
        assert all(read is not None for read in dataset.read(numbers[::7]))
