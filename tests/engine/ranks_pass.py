"""The engine against its twin, at any number of ranks; every rank runs this file, and rank 0 compares."""

import os

import numpy as np
import pytest

import himach
from himach.ranks.communicator import alone
from himach.ranks.mpi import connect
from himach.ranks.process_exit import promised_rank, promised_ranks, under_launcher

from . import twin
from .cases import Everything, Tallied, Tally, chain_of, make_small
from .twin import canonical, made_up, run_engine, run_twin

if under_launcher():
    nodes = os.environ["HIMACH_NODES"].split(",")
    os.environ["HIMACH_NODE"] = nodes[promised_rank() % len(nodes)]
world = connect() if under_launcher() else alone()
comm = world.comm
SIZES = ["large", "small", "spilled"]


@pytest.fixture(autouse=True, params=SIZES)
def sizes(request):
    """Run each test with the real sizes; with many chunks, waves, rounds and spans; and with next to no memory."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param in ("small", "spilled"):
            make_small(patch)
        if request.param == "spilled":
            # Of several ranks, which meet in each wave, fewer waves.
            patch.setattr(twin, "MEMORY", 1 << (14 if comm.size == 1 else 16))
        yield request.param


def test_all_ranks_are_here():
    assert comm.size == promised_ranks()


def test_combine_of_a_later_stage():
    frames, raws = range(30), made_up(range(30))
    passed = run_engine(world, [chain_of(Tallied(kinds="abde"))], frames, raws)
    if comm.rank == 0:
        groups = run_twin([Everything(kinds="abde")], frames, raws)
        lengths = [len(result["frames"]) for _, result in groups]
        assert {key: count for key, (count, _) in passed.results[0].items()} == {
            length: 2 * lengths.count(length) for length in lengths
        }
    assert Tallied.then is Tally


class Columns(himach.Analysis):
    """Combines what came in `Pairs` to numbers and arrays, which stay columns; numbers that were yielded stay lists."""

    def map(self, frame):
        yield himach.Pairs([0, 1, 2], np.array([1.5, frame.number, -frame.number], dtype=">f8"))
        yield himach.Pairs([(0, 3), (0, 4)], np.full((2, 3), frame.number, dtype=np.int16))
        yield himach.Pairs([(5,)], np.array([(frame.number, 2.5)], dtype=">i4,<f4"))
        yield 7, frame.number
        yield "k", np.arange(3)

    def combine(self, key, series):
        values = series.values
        if key in (7, "k"):
            assert type(values) is (list if key == 7 else np.ndarray), (key, values)
            return sum(values)
        assert type(values) is np.ndarray and values.dtype.isnative, (key, values)
        if key == (5,):
            return values.max(axis=0) if values.dtype.names is None else values[values["f0"].argmin()]
        return float(values.sum()) if key == 0 else values.max() if key == 1 else values.max(axis=0).astype(">f8")

    def reduce(self, key, series):
        return series.values


def test_columns_stay_columns_when_they_are_combined():
    frames, raws = range(1, 60), made_up(range(60))
    for seed in range(3):
        passed = run_engine(world, [[Columns()]], frames, raws, seed)
        if comm.rank != 0:
            continue
        obtained = passed.results[0]
        assert canonical(obtained[0]) == canonical(np.array([1.5 * 59]))
        assert canonical(obtained[1]) == canonical(np.array([59.0]))
        assert canonical(obtained[2]) == canonical(np.array([-1.0]))
        assert canonical(obtained[0, 4]) == canonical(np.full((1, 3), 59.0))
        assert canonical(obtained[5,]) == canonical(np.array([(1, 2.5)], dtype="i4,f4"))
        assert canonical(obtained[7]) == canonical([sum(frames)])
        assert canonical(obtained["k"]) == canonical(59 * np.arange(3)[np.newaxis])


class Swapped(himach.Analysis):
    def map(self, frame):
        yield himach.Pairs([0], np.array([frame.number], dtype=">f8" if frame.number % 2 else "<f8"))
        yield himach.Pairs([1], np.array([(frame.number, 1)], dtype=">i4,<f8"))
        yield "one", np.arange(2, dtype=">i2")

    def reduce(self, key, series):
        return series.values


@pytest.mark.parametrize("combines", [False, True])
def test_byte_order_does_not_depend_on_ranks(combines):
    class Folded(Swapped):
        def combine(self, key, series):
            return series.values[0]

    frames, raws = range(20), made_up(range(20))
    passed = run_engine(world, [[Folded() if combines else Swapped()]], frames, raws)
    if comm.rank == 0:
        results, n = passed.results[0], 1 if combines else 20
        assert canonical(results[0]) == canonical(np.arange(float(n)))
        assert canonical(results[1]) == canonical(np.array([(i, 1) for i in range(n)], dtype="i4,f8"))
        assert canonical(results["one"]) == canonical(np.array([[0, 1]] * n, dtype="i2"))
