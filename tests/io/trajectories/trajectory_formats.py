"""What holds of trajectories of every format: `TrajectoryFormatTests`, and of those in one file `TrajectoryFileTests`.

A class that inherits them gives a fixture `sample`, whose files a test may damage. Frames are compared as `seen()`.
"""

import os
import pickle
import re
import warnings
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from MDAnalysis.core._get_readers import get_reader_for

from himach.errors import TrajectoryError, UsageError
from himach.frame import RawFrame
from himach.io.frame_source import ReadOptions
from himach.io.trajectories import file_failures
from himach.io.trajectories.origin import Origin, open_origin
from himach.io.trajectories.reader_file import construct

_TIME = ("time", "dt", "time_offset")


def read_by_mdanalysis(reader_class: Any, path: str | Path, **keywords: Any) -> list[tuple[Any, ...]]:
    """Return the frames of a file as a reader of MDAnalysis reads them in order: see `seen`."""
    frames = []
    with construct(reader_class, str(path), **keywords) as reader:
        for ts in reader:
            velocities = ts.velocities if ts.has_velocities else None
            forces = ts.forces if ts.has_forces else None
            data = {name: value for name, value in ts.data.items() if name not in _TIME}
            frame = RawFrame(len(frames), ts.time, ts.positions, ts.dimensions, velocities, forces, data=data)
            frames.append(seen(frame))
    return frames


def read_frames(origin: Origin, numbers: Iterable[int] | None = None) -> list[tuple[Any, ...]]:
    """Return frames as a rank reads them that got the opened trajectory as a pickle: see `seen`."""
    there = pickle.loads(pickle.dumps(origin))
    try:
        return [seen(frame) for frame in there.read(range(origin.n_frames) if numbers is None else numbers)]
    finally:
        there.close()


def seen(frame: Any) -> tuple[Any, ...]:
    """Return number, time and number of atoms of a frame, and checksums of every bit that it holds."""
    arrays = (frame.positions, frame.box, frame.velocities, frame.forces)
    sums = [None if array is None else zlib.crc32(np.asarray(array, dtype=np.float32).tobytes()) for array in arrays]
    data = zlib.crc32(repr({name: _plain(value) for name, value in sorted(frame.data.items())}).encode())
    return (int(frame.number), float(frame.time), len(frame.positions), *sums, data)


def _plain(value: Any) -> Any:
    return (value.dtype.str, value.tobytes()) if isinstance(value, np.ndarray | np.generic) else value


@dataclass(frozen=True)
class Sample:
    """A trajectory, and what MDAnalysis reads in its place: the same frames in a file that it has a reader of."""

    path: Path
    topology: Path | None = None
    twin: Path | None = None
    reader_keywords: dict[str, Any] = field(default_factory=dict)  # of MDAnalysis's reader

    def open(self, **keywords: Any) -> Origin:
        return open_origin([self.path], self.topology, keywords)

    def expect(self, **keywords: Any) -> list[tuple[Any, ...]]:
        """Return the frames as MDAnalysis reads them."""
        path = self.twin or self.path
        return read_by_mdanalysis(get_reader_for(str(path)), path, **self.reader_keywords, **keywords)


class TrajectoryFormatTests:
    """Frames are those that MDAnalysis reads, to the last bit, in any order; a damaged one is named."""

    #: What is said of a frame that cannot be read.
    message = r"frame {number} of the dataset cannot be read from {path}.*: .*start {after} or stop {number}"

    @pytest.fixture(autouse=True)
    def _try_once(self, monkeypatch):
        monkeypatch.setattr(file_failures, "PAUSES", ())

    def damages(self, sample: Sample, number: int) -> Iterator[Iterable[int]]:
        """Damage a frame of the opened trajectory in one way after the other; give which frames are lost by each."""
        raise NotImplementedError

    def expect_times(self, sample: Sample, **keywords: float) -> list[float]:
        """Return the times of all frames, with these keywords of MDAnalysis."""
        return [time for _, time, *_ in sample.expect(**keywords)]

    def test_frames_are_those_of_mdanalysis_in_any_order(self, sample):
        expected = sample.expect()
        files = sorted(sample.path.parent.rglob("*"))
        origin = sample.open()
        assert origin.n_frames == len(expected)
        assert read_frames(origin) == expected
        every = range(origin.n_frames)
        shuffled = np.random.default_rng(1).permutation(np.repeat(every, 2))[:12].tolist()
        for order in (every[::-1], every[1::3], every[-2:], shuffled):
            assert read_frames(origin, order) == [expected[number] for number in order]
        assert sorted(sample.path.parent.rglob("*")) == files

    def test_arrays_are_the_callers_and_there_are_no_others(self, sample):
        origin = sample.open()
        frame = next(origin.read([0]))
        for vectors in filter(lambda each: each is not None, (frame.positions, frame.velocities, frame.forces)):
            assert (vectors.shape, vectors.dtype) == ((origin.n_atoms, 3), np.float32)
            assert vectors.flags.c_contiguous and vectors.flags.writeable
        assert frame.box is None or (frame.box.shape, frame.box.dtype) == ((6,), np.float32)
        assert origin.has_velocities == (frame.velocities is not None)
        assert origin.has_forces == (frame.forces is not None)
        frame.positions[:] = 7
        assert read_frames(origin, [0]) == sample.expect()[:1]

    def test_some_atoms_are_those_of_the_frame(self, sample):
        origin = sample.open()
        every = [frame.positions.copy() for frame in origin.read(range(min(origin.n_frames, 6)))]
        for atoms in ([0], [origin.n_atoms - 1], range(1, origin.n_atoms), range(origin.n_atoms)):
            chosen = np.array(atoms, dtype=np.int64)
            for frame, positions in zip(origin.read(range(len(every)), ReadOptions(chosen)), every, strict=True):
                np.testing.assert_array_equal(frame.positions[chosen], positions[chosen])

    def test_times_are_those_of_mdanalysis_and_known_without_reading(self, sample, monkeypatch):
        for keywords in ({}, {"dt": 0.5}, {"time_offset": 100.0}, {"dt": 0.5, "time_offset": 7.0}):
            expected = self.expect_times(sample, **keywords)
            origin = sample.open(**keywords)
            assert [time for _, time, *_ in read_frames(origin)] == expected
            monkeypatch.setattr(origin, "_read", None)
            np.testing.assert_array_equal(origin.times(range(origin.n_frames)), expected)

    def test_a_whole_trajectory_warns_of_nothing_and_is_the_same_again(self, sample):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            origin = sample.open()
        assert origin.warnings == tuple(str(each.message) for each in caught if each.category is UserWarning)
        assert not [each for each in caught if "cut off" in str(each.message)]
        assert origin.fingerprint == sample.open().fingerprint
        assert len(origin.fingerprint) == 64
        parts = [origin.nbytes(range(number, origin.n_frames, 3)) for number in range(3)]
        assert sum(parts) == pytest.approx(origin.nbytes(range(origin.n_frames)), abs=3)
        paths = [sample.path, *sample.path.rglob("*")]
        assert 0 < sum(parts) <= sum(os.path.getsize(path) for path in paths if path.is_file())

    def test_a_damaged_frame_is_named_and_the_others_come(self, sample):
        expected = sample.expect()
        origin = sample.open()
        number = 2 * origin.n_frames // 3
        for lost in self.damages(sample, number):
            others = [other for other in range(origin.n_frames) if other not in lost]
            for bad in {number, max(lost)}:
                words = self.message.format(number=bad, after=bad + 1, path=re.escape(str(sample.path)))
                with pytest.raises(TrajectoryError, match=words):
                    read_frames(origin, [bad])
            there = pickle.loads(pickle.dumps(origin))
            for _ in range(2):  # it finds its place again
                frames = there.read([*others, number])
                assert [seen(next(frames)) for _ in others] == [expected[other] for other in others]
                with pytest.raises(TrajectoryError):
                    next(frames)


class TrajectoryFileTests(TrajectoryFormatTests):
    """A file that ends too early is used up to its last whole frame, or refused; one of another content is refused."""

    #: Whether a file that ends within a frame can be read up to that.
    reads_to_the_cut = True

    def damages(self, sample, number):
        content = sample.path.read_bytes()
        n_frames = sample.open().n_frames
        sample.path.write_bytes(content[: int(len(content) * (number + 0.5) / n_frames)])
        yield range(number, n_frames)
        sample.path.write_bytes(content)

    def test_a_file_that_ends_within_its_last_frame_and_goes_on_later(self, sample):
        expected, whole = sample.expect(), sample.path.read_bytes()
        last = len(expected) - 1
        fingerprint = sample.open().fingerprint
        sample.path.write_bytes(whole[: len(whole) - len(whole) // len(expected) // 2])
        if not self.reads_to_the_cut:
            with pytest.raises(TrajectoryError, match=re.escape(sample.path.name)):
                sample.open()
            return
        words = rf"{re.escape(sample.path.name)} is cut off within frame {last}; .*last whole frame, {last - 1}$"
        with pytest.warns(UserWarning, match=words):
            origin = sample.open()
        assert [text for text in origin.warnings if re.search(words, text)]
        assert read_frames(origin) == expected[:-1]
        assert origin.fingerprint != fingerprint
        sample.path.write_bytes(whole)
        assert read_frames(origin) == expected[:-1]
        with pytest.raises(UsageError, match=f"there is no frame {last};"):
            read_frames(origin, [last])
        assert read_frames(sample.open()) == expected
        assert sample.open().fingerprint == fingerprint

    def test_another_content_is_refused_by_name(self, sample):
        name = re.escape(sample.path.name)
        sample.path.write_bytes(b"")
        with pytest.raises(TrajectoryError, match=rf"{name} is empty"):
            sample.open()
        sample.path.write_text("These are not the frames you are looking for.\n" * 9)
        with pytest.raises(TrajectoryError, match=name):
            sample.open()
