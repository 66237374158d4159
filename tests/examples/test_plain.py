"""The plain runner itself, on an analysis that is easy to follow."""

import numpy as np
from MDAnalysisTests.datafiles import DCD, GRO, PSF, XTC
from support import plain

import himach


class Seen(himach.Analysis):
    def setup(self, universe):
        self.first = universe.trajectory.frame

    def map(self, frame):
        assert frame.universe.trajectory.frame == frame.number
        yield himach.Pairs([1, 2], frame.positions[:2])
        yield himach.Pairs([[3, 4]])
        yield "time", frame.time
        yield 5, frame.number
        yield himach.Pairs([5], [frame.step])
        frame.positions[:] = 0

    def reduce(self, key, series):
        return key, series

    def finish(self, results):
        return results


def test_series():
    results = plain.run(Seen(), DCD, PSF, start=4, stop=11, step=3)
    assert list(results) == [1, 2, 5, "time", (3, 4)]
    key, series = results[1]
    assert key == 1
    assert series.frames.tolist() == [4, 7, 10]
    assert series.steps.tolist() == [0, 1, 2]
    assert series.values.shape == (3, 3)
    assert series.values.all()  # copied before map() wrote zeros
    assert series.boxes is None
    assert results[3, 4][1].values is None
    assert results["time"][1].values == series.times.tolist()
    np.testing.assert_array_equal([time for time, _ in series], series.times)
    assert results[5][1].frames.tolist() == [4, 4, 7, 7, 10, 10]
    assert results[5][1].values == [4, 0, 7, 1, 10, 2]


def test_boxes():
    assert plain.run(Seen(), XTC, GRO)[1][1].boxes.shape == (10, 6)


class Count(himach.Analysis):
    def reduce(self, key, series):
        return sum(series.values)


class Split(himach.Analysis):
    then = Count

    def map(self, frame):
        yield frame.step % 3, frame.step

    def combine(self, key, series):
        return sum(series.values)

    def reduce(self, key, series):
        yield "all", sum(series.values)
        yield None, 1


def test_combine_and_then():
    assert plain.run(Split(), DCD, PSF, stop=7) == {"key": [None, "all"], "result": [3, 21]}
