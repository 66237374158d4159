"""Frames from the cache, else from the origin, and what is kept of them on the way."""

import threading
import time

import numpy as np
import pytest
from pyroaring import BitMap64
from support.cache_data import N_ATOMS, N_FRAMES, make
from support.io_samples import FORMATS
from support.io_samples import make as make_of_io_samples

import himach
from himach.frame import FIELDS, POSITIONS, RawFrame
from himach.io.datasets import writeback
from himach.io.datasets.offline_origin import select_pushed
from himach.io.datasets.writeback import CpuBudget, Writeback
from himach.io.frame_source import WHOLE, ReadOptions
from himach.io.store import store
from himach.io.store.store import Store, StorePoisonedError
from himach.io.trajectories import xtc
from himach.io.trajectories.origin import open_origin
from himach.runner.run import run
from himach.selection import FrameList


class Centre(himach.Analysis):
    """Where some atoms are, and what the Universe says of them; reads all frames whole."""

    first: int = 0
    last: int = 5

    def setup(self, universe):
        self.group = universe.atoms[self.first : self.last]
        self.atoms = self.group.ix  # an attribute may have the name of the method

    def map(self, frame):
        yield "rows", frame.positions[self.atoms]
        yield "group", self.group.center_of_geometry()

    def reduce(self, key, series):
        return np.array(series.values)

    def finish(self, results):
        return dict(results)


class Asking(Centre):
    """The same, reading those atoms alone."""

    def atoms(self, universe):
        return [universe.atoms[self.first : self.first + 1], self.group]


class Touching(Asking):
    """Touches an atom that it does not ask for."""

    def map(self, frame):
        yield "rows", frame.universe.atoms[self.last].position


class Fast(himach.Analysis):
    """Uses velocities in every `every`-th frame, and forces if there are any."""

    every: int = 1
    through: str = "frame"

    def setup(self, universe):
        self.group = universe.atoms[3:30]

    def map(self, frame):
        if frame.number % self.every == self.every - 1:
            if self.through == "frame":
                yield "v", None if frame.velocities is None else frame.velocities[self.group.ix]
                yield "f", None if frame.forces is None else frame.forces[self.group.ix]
            else:
                ts = frame.universe.trajectory.ts
                yield "v", self.group.velocities if ts.has_velocities else None
                yield "f", self.group.forces if ts.has_forces else None
        yield "x", frame.positions[self.group.ix]

    def reduce(self, key, series):
        return np.array(series.values)

    def finish(self, results):
        return dict(results)


class FastOfSome(Fast):
    """The same of some atoms."""

    def atoms(self, universe):
        return self.group


@pytest.fixture
def asked_of_the_store(monkeypatch) -> list:
    """Return a list that fills with what is asked of the store: number of frames, fields."""
    asked = []
    read = store.Dataset.read

    def noting(self, numbers, options=WHOLE):
        asked.append((len(numbers), options.fields or FIELDS))
        return read(self, numbers, options)

    monkeypatch.setattr(store.Dataset, "read", noting)
    return asked


def bits(outcome: dict) -> dict[str, bytes]:
    """Return every bit of an outcome."""
    return {name: b"".join(np.asarray(value).tobytes() for value in outcome[name]) for name in sorted(outcome)}


def outcomes(analysis, trajectory, topology, place):
    """Analyse without a cache, filling it, and from it; check that the outcomes agree to the last bit."""
    results = [run(analysis, trajectory, topology, cache=cache, progress=False) for cache in ("off", place, place)]
    several = isinstance(analysis, list)
    every = [list(result.outcome.values()) if several else [result.outcome] for result in results]
    for others in every[1:]:
        for one, other in zip(every[0], others, strict=True):
            assert bits(one) == bits(other)
    assert results[2].record["bytes"]["origin"] == 0
    return every[0]


def test_several_analyses_each_see_their_own_atoms(tmp_path, place):
    topology, trajectory = make(tmp_path)
    ranges = [(0, 5), (40, N_ATOMS), (3, 44)]
    asking = outcomes([Asking(first=a, last=b) for a, b in ranges], trajectory, topology, place)
    mixed = outcomes([Asking(first=0, last=5), Centre(first=40, last=N_ATOMS)], trajectory, topology, place / "two")
    plain = [run(Centre(first=a, last=b), trajectory, topology, cache="off").outcome for a, b in ranges]
    assert [bits(one) for one in asking] == [bits(one) for one in plain]
    assert [bits(one) for one in mixed] == [bits(one) for one in plain[:2]]
    with pytest.raises(himach.AnalysisError, match=r"Touching touches atom 5 \(C of residue RES 1\)"):
        run([Centre(), Touching(), Asking(first=5, last=6)], trajectory, topology, cache=place)


def test_atoms_that_fail(tmp_path):
    topology, trajectory = make(tmp_path, 2)

    class Wrong(Centre):
        def atoms(self, universe):
            return universe.select_atoms("no such word")

    with pytest.raises(himach.AnalysisError, match=r"Wrong.*atoms\(\)"):
        run(Wrong(), trajectory, topology, cache="off")


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("through", ["frame", "universe"])
@pytest.mark.parametrize("kind", [Fast, FastOfSome])
@pytest.mark.parametrize("every", [1, 7])
@pytest.mark.parametrize("name", ["md.trr", "md.xtc"])
def test_velocities_are_right_from_the_first_touch(tmp_path, place, asked_of_the_store, name, every, kind, through):
    topology, trajectory = make(tmp_path, name=name)
    (found,) = outcomes(kind(every=every, through=through), trajectory, topology, place)
    assert len(found["x"]) == N_FRAMES
    assert len(found["v"]) == N_FRAMES // every
    assert (found["v"][0] is None) == (name == "md.xtc")
    assert (0, FIELDS) not in asked_of_the_store
    assert asked_of_the_store[-1][1] == FIELDS  # turned on for what follows


def test_velocities_are_not_read_unless_touched(tmp_path, place, asked_of_the_store):
    topology, trajectory = make(tmp_path)
    run(Centre(), trajectory, topology, cache=place)
    asked_of_the_store.clear()
    run(Centre(), trajectory, topology, cache=place)
    (opening, *tasks) = asked_of_the_store
    assert opening == (1, FIELDS)  # the first frame, for setup()
    assert {fields for _, fields in tasks} == {POSITIONS}
    assert sum(count for count, _ in tasks) == N_FRAMES


def test_xtc_is_decoded_up_to_the_last_atom_and_kept_whole(tmp_path, place, monkeypatch):
    topology, trajectory = make(tmp_path, name="md.xtc")
    needed = []
    decode = xtc.decode
    monkeypatch.setattr(xtc, "decode", lambda *given: needed.extend(given[2:]) or decode(*given))
    for cache in ("off", place):
        needed.clear()
        run(Asking(), trajectory, topology, cache=cache)
        assert needed[-N_FRAMES:] == [5] * N_FRAMES
    (complete,) = outcomes(Centre(first=40, last=N_ATOMS), trajectory, topology, place)
    assert len(complete["rows"]) == N_FRAMES


def test_only_the_blocks_of_requested_atoms_are_read(place):
    topology, trajectory = FORMATS["XTC"]
    results = {}
    for analysis in (Centre(), Asking(), Asking(first=3, last=3)):
        for _ in range(2):
            results[analysis.label(), analysis.first] = run(analysis, trajectory, topology, cache=place)
    whole, some, none = results["Centre", 0], results["Asking", 0], results["Asking", 3]
    assert bits(some.outcome) == bits(whole.outcome)
    sizes = [result.record["bytes"]["cache"] for result in (none, some, whole)]
    assert sizes[0] <= sizes[1] < sizes[2] / 5
    assert whole.record["bytes"]["origin"] == some.record["bytes"]["origin"] == 0


class Disk:
    """A dataset on a disk that misbehaves."""

    def __init__(self, dataset, write):
        self.store, self.path = dataset.store, dataset.path
        self._dataset, self._write = dataset, write
        self.written = 0

    def write(self, *frame):
        self._write(self.written)
        self.written += 1
        return True

    def flush(self):
        pass

    def close(self):
        pass


@pytest.fixture
def dataset(tmp_path):
    return Store(tmp_path / "store").dataset("/sim")


def frame(number: int, n_atoms: int = 1000) -> RawFrame:
    positions = np.full((n_atoms, 3), number, dtype=np.float32)
    return RawFrame(number, float(number), positions, None, -positions if number % 2 else None)


def write_all(disk, count: int, cores: CpuBudget | None = None) -> tuple[writeback.WriteResult, float]:
    """Offer so many frames; return what came of it, and the seconds that it took."""
    began = time.monotonic()
    subject = Writeback(disk, cores=cores)
    for number in range(count):
        subject.offer(frame(number))
    return subject.close(), time.monotonic() - began


def test_frames_are_copied_and_kept(dataset):
    subject = Writeback(dataset)
    shared = frame(0)
    for number in range(500):
        new = frame(number, 1000 if number % 7 else 30)
        if number % 7:
            shared.positions[:] = new.positions  # as a reader that reuses its arrays
            new.positions = shared.positions
        subject.offer(new)
    shared.positions[:] = -1
    assert subject.close() == writeback.WriteResult(500, 0, "")
    found = [each for each in dataset.read(np.arange(500)) if each is not None and each.positions[0, 0] == each.number]
    assert len(found) == 500


def test_known_frames_are_not_skipped_ones(dataset):
    assert write_all(dataset, 20)[0] == writeback.WriteResult(20, 0, "")
    again = Store(dataset.store.path).dataset("/sim")
    assert write_all(again, 30)[0] == writeback.WriteResult(10, 0, "")


def test_slow_disk(dataset, monkeypatch):
    monkeypatch.setattr(writeback, "QUEUE_BYTES", 100_000)
    got, seconds = write_all(Disk(dataset, lambda count: time.sleep(0.02)), 1000)
    assert got.frames + got.skipped == 1000
    assert got.skipped > 900
    assert got.reason == ""
    assert seconds < 10  # writing all would take 20


def test_disk_that_never_answers(dataset, monkeypatch):
    monkeypatch.setattr(writeback, "QUEUE_BYTES", 100_000)
    never = threading.Event()
    got, seconds = write_all(Disk(dataset, lambda count: never.wait(30)), 100)
    never.set()
    assert got.skipped == 100
    assert seconds < 20  # the disk answers after 30


def test_failing_disk(dataset):
    def write(count):
        if count == 50:
            raise StorePoisonedError("write: Input/output error")

    got, _ = write_all(Disk(dataset, write), 1000)
    assert got == writeback.WriteResult(50, 950, "write: Input/output error")


def test_no_room_in_the_quota(dataset):
    dataset.store.set_quota(100_000)
    subject = Writeback(dataset)
    for number in range(100):
        full = frame(number)
        full.positions += 0.1234567  # off the grid, and so not packed
        subject.offer(full)
    got = subject.close()
    assert got.frames + got.skipped == 100
    assert got.frames < 10
    assert "quota" in got.reason


@pytest.fixture
def xtc_file(tmp_path):
    """An XTC of 30 frames, and all of their positions."""
    path = make_of_io_samples(tmp_path / "a.xtc", range(30), n_atoms=300)
    return path, [each.positions.copy() for each in open_origin([path]).read(range(30))]


def offer_coded(subject, path, needed=5):
    """Offer the frames of an XTC of which so many atoms were decoded."""
    for each in open_origin([path]).read(range(30), ReadOptions(np.array([[0, needed]]))):
        assert each.coded is not None
        decoded = each.positions[:needed].copy()
        subject.offer(each)
        assert (each.positions[:needed] == decoded).all()
    return subject.close()


def test_frames_that_were_decoded_in_part_are_kept_whole_and_as_small(tmp_path, xtc_file):
    path, positions = xtc_file
    expected = [(number, each.tobytes()) for number, each in enumerate(positions)]
    sizes = []
    for name in ("coded", "decoded"):
        held = Store(tmp_path / name).dataset("/sim")
        subject = Writeback(held)
        if name == "coded":
            assert offer_coded(subject, path) == writeback.WriteResult(30, 0, "")
        else:
            for number, each in enumerate(positions):
                subject.offer(RawFrame(number, float(number), each))
            subject.close()
        assert [(each.time, each.positions.tobytes()) for each in held.read(np.arange(30))] == expected
        sizes.append(Store(tmp_path / name).dataset("/sim").segments()[0]["bytes"])
    assert sizes[0] == sizes[1] < 30 * 12 * 300


def test_a_coded_frame_that_is_there_is_compared(dataset, xtc_file):
    path, positions = xtc_file
    box = next(open_origin([path]).read([0])).box
    for number, each in enumerate(positions):
        dataset.write(number, float(number), box, each + np.float32(number == 7))
    dataset.flush()
    got = offer_coded(Writeback(Store(dataset.store.path).dataset("/sim")), path)
    assert (got.frames, got.skipped) == (0, 23)
    assert "frame 7 of dataset /sim is there with other positions" in got.reason


def test_what_is_damaged_behind_the_needed_atoms_is_not_kept(dataset, xtc_file):
    path, _ = xtc_file
    begin, end = open_origin([path]).files[0].index.place(9)
    content = bytearray(path.read_bytes())
    content[begin + 400 : end] = bytes(255 for _ in range(begin + 400, end))
    path.write_bytes(content)
    got = offer_coded(Writeback(dataset), path)
    assert got.frames == 29
    assert got.reason.startswith("frame 9: its coordinates are damaged")
    held = dataset.holds(np.arange(30))
    assert held.sum() == 29
    assert not held[9]


def test_what_the_cores_have_no_time_for_is_left_to_later_runs(dataset, monkeypatch):
    monkeypatch.setattr(writeback, "FREE_SECONDS", 0.01)
    monkeypatch.setattr(writeback, "FREE_PART", 0.0)
    monkeypatch.setattr(writeback, "idle_seconds", lambda: 0.0)
    monkeypatch.setattr(writeback, "QUEUE_BYTES", 50 * 12_000)

    class Busy(Disk):
        def write(self, *frame):
            until = time.thread_time() + 0.002
            while time.thread_time() < until:
                pass
            return super().write(*frame)

    got, _ = write_all(Busy(dataset, lambda count: None), 1000, CpuBudget())
    assert got.frames + got.skipped == 1000
    assert 5 <= got.frames < 150  # those in the queue, too, when the time was up
    assert got.reason == ""


SELECTIONS = [range(100), range(99, -1, -1), range(3, 90, 7), range(90, 3, -7), FrameList(np.array([2, 3, 50, 60, 99]))]


@pytest.mark.parametrize("frames", SELECTIONS, ids=str)
@pytest.mark.parametrize("present", [range(100), range(10, 90), range(1, 100, 2), [50], [60, 5_000_000]], ids=str)
def test_pushed_frames_are_selected_from_the_first_to_the_last(frames, present):
    there = [number for number in frames if number in set(present)]
    if not there:
        with pytest.raises(himach.UsageError, match=f"is there; those that are: {min(present)} to {max(present)}"):
            select_pushed(frames, BitMap64(present))
        return
    selection = select_pushed(frames, BitMap64(present))
    assert (selection.frames[0], selection.frames[-1]) == (there[0], there[-1])
    sample = selection.sample
    assert {min(there), max(there)} <= set(sample) <= set(there) and sample == sorted(sample)
    absent = [number for number in frames if number not in there]
    named = ", ".join(map(str, sorted(absent[:5]))) + (", ..." if len(absent) > 5 else "")
    assert selection.warning.partition(": ")[2] == named
