"""Series that come in pieces: how many, what is done where reduce_blocks() fails, ends early, or yields."""

import threading

import numpy as np
import pytest

import himach
from himach.errors import AnalysisError

from .cases import make_small
from .twin import made_up, run_engine

FRAMES = range(200)


class Long(himach.Analysis):
    """One key with a long series, and many with short ones."""

    def map(self, frame):
        yield "long", np.full(100, frame.number)
        yield frame.number, 1

    def reduce_blocks(self, key, blocks):
        return [len(series) for series in blocks]


@pytest.fixture(autouse=True)
def small(monkeypatch):
    make_small(monkeypatch)
    yield
    assert not [one for one in threading.enumerate() if one.name == "himach-reduce"]


def results_of(analysis, *later):
    return run_engine(None, [[analysis, *later]], FRAMES, made_up(FRAMES)).results[0]


def test_a_long_series_comes_in_many_pieces_and_each_is_small():
    results = results_of(Long())
    assert sum(results["long"]) == len(FRAMES)
    assert len(results["long"]) > 20
    assert max(results["long"]) < 10
    assert [results[number] for number in FRAMES] == [[1]] * len(FRAMES)


def test_a_short_series_is_one_piece_where_memory_is_large(monkeypatch):
    monkeypatch.undo()
    assert results_of(Long())["long"] == [len(FRAMES)]


def test_pieces_may_be_left():
    class First(Long):
        def reduce_blocks(self, key, blocks):
            return int(next(blocks).frames[0])

    results = results_of(First())
    assert results["long"] == 0
    assert [results[number] for number in FRAMES] == list(FRAMES)


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize("after", [0, 3])
def test_an_error_names_method_key_and_line(after):
    class Failing(Long):
        def reduce_blocks(self, key, blocks):
            for number, _ in enumerate(blocks):
                if number == after and key == "long":
                    raise KeyError("broken")

    with pytest.raises(AnalysisError, match=r"(?s)reduce_blocks\(\).*'long'.*KeyError.*broken.*test_pieces.py"):
        results_of(Failing())


def test_an_error_of_another_key_leaves_no_thread():
    class Failing(Long):
        def reduce_blocks(self, key, blocks):
            if key == 0:
                raise ValueError("broken")
            return [len(series) for series in blocks]

    with pytest.raises(AnalysisError, match=r"reduce_blocks\(\).*broken"):
        results_of(Failing())


def test_what_it_yields_goes_to_the_next_analysis():
    class Sums(himach.Analysis):
        def reduce_blocks(self, key, blocks):
            return sum(int(series.values.sum()) for series in blocks)

    class Yielding(Long):
        def reduce_blocks(self, key, blocks):
            for series in blocks:
                yield himach.Pairs(np.array([0, 1]), np.array([len(series), 1]))

    assert results_of(Yielding(), Sums())[0] == 2 * len(FRAMES)


def test_with_combine_it_gets_one_value():
    class Combined(Long):
        def map(self, frame):
            yield "n", 1

        def combine(self, key, series):
            return sum(series.values)

        def reduce_blocks(self, key, blocks):
            return [one.values for one in blocks]

    assert results_of(Combined()) == {"n": [[len(FRAMES)]]}


def test_an_analysis_needs_no_other_reduce(tmp_path):
    from MDAnalysisTests.datafiles import DCD, PSF

    class Frames(himach.Analysis):
        def map(self, frame):
            yield "all", float(frame.time)

        def reduce_blocks(self, key, blocks):
            return sum(len(series) for series in blocks)

    assert himach.run(Frames(), DCD, PSF, cache="off").outcome["result"].tolist() == [98]
