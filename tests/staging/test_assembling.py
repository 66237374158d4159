"""Slices become frames: totals, kills, several nodes, a store without room."""

import contextlib
import itertools
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64
from runner.live.engines import topology
from support.cache_data import stage_on_nodes
from support.commands import himach as command
from support.commands import write_analysis
from support.threads import on_threads, run_ranks

import himach
from himach.benchmarks.slices.kills import torment
from himach.io.push.held_slices import HeldSlices, RankSlices, find_slices
from himach.io.store.store import Store, StoreConflictError, StoreFullError
from himach.ranks import collective
from himach.ranks.communicator import alone
from himach.staging.assemble import assemble
from himach.staging.complete_frames import WHOLE_FRAME, assign, totals

N_ATOMS = 500
BOX = np.array([9, 8, 7, 90, 90, 90], np.float32)


def positions_of(number: int) -> np.ndarray:
    return np.random.default_rng(number).uniform(0, 50, (N_ATOMS, 3)).astype(np.float32)


def push(place: Path, rank: int, slices: dict[int, np.ndarray], **options) -> None:
    with himach.Writer("run7", N_ATOMS, cache=place, rank=rank, **options) as writer:
        for number, ids in slices.items():
            writer.push_slice(number, ids, positions_of(number)[ids], time=number / 2, box=BOX)


def shared_out(numbers, ranks: int) -> list[dict[int, np.ndarray]]:
    """Slices of all atoms of frames for each rank, differently for each frame."""
    owners = {number: np.random.default_rng(number + 7).integers(0, ranks, N_ATOMS) for number in numbers}
    return [{number: np.flatnonzero(owner == rank) for number, owner in owners.items()} for rank in range(ranks)]


def check(place: Path, numbers) -> None:
    dataset = Store(place).dataset("run7", b"", create=False)
    assert list(dataset.native) == list(numbers)
    for frame in dataset.read(list(numbers)):
        assert frame is not None and np.array_equal(frame.positions, positions_of(frame.number))
        assert frame.time == frame.number / 2 and np.array_equal(frame.box, BOX)


@given(st.integers(1, 5), st.integers(0, 40), st.integers(0, 2**32))
def test_frames_are_given_evenly(nodes, frames, seed):
    rng = np.random.default_rng(seed)
    shares = rng.integers(0, 100, (nodes, frames))
    whole = rng.random(frames) < 0.2
    shares[rng.integers(0, nodes, frames), np.arange(frames)] = np.where(whole, WHOLE_FRAME, 7)
    chosen = assign(shares)
    assert (shares[chosen, np.arange(frames)][(shares == WHOLE_FRAME).any(axis=0)] == WHOLE_FRAME).all()
    if not (shares == WHOLE_FRAME).any():
        assert np.bincount(chosen, minlength=nodes).max(initial=0) <= -(-frames // nodes)


def test_what_lies_on_one_node_stays_there():
    shares = np.array([[90, 10, 90, 10], [10, 90, 10, 90]])
    assert assign(shares).tolist() == [0, 1, 0, 1]
    shares = np.array([[1, 1, 1, 1, 1, 1], [9, 9, 9, 0, 0, 0], [0, 0, 0, 9, 9, 9]])
    assert sorted(assign(shares).tolist()) == [0, 0, 1, 1, 2, 2]
    assert shares[assign(shares), np.arange(6)].sum() == 4 * 9 + 2  # who has least takes what others have no room for


def test_a_missing_and_a_doubled_slice_cost_their_frame_alone(tmp_path):
    place = tmp_path / "store"
    slices = shared_out(range(6), 3)
    missing = slices[1].pop(2)
    slices[2][4] = np.append(slices[2][4], slices[0][4][0])
    for rank, of_rank in enumerate(slices):
        push(place, rank, of_rank)
    done = assemble(alone(), Store(place), "run7")
    assert done.frames == 4 and done.waiting == 1
    assert done.absent[2] == "no slice of rank 1"
    assert done.absent[4] == f"atom {slices[0][4][0]} is in the slices of rank 0 and rank 2"
    check(place, [0, 1, 3, 5])
    push(place, 1, {2: missing})
    assert assemble(alone(), Store(place), "run7").frames == 1
    check(place, [0, 1, 2, 3, 5])


def test_what_was_written_and_not_dropped_is_no_surprise(tmp_path):
    """As an assembler leaves it that is killed after its frames are on disk."""
    place = tmp_path / "store"
    slices = shared_out(range(4), 2)
    for rank, of_rank in enumerate(slices):
        push(place, rank, of_rank)
    whole = Store(place).dataset("run7")
    for number in range(4):
        whole.write(number, number / 2, BOX, positions_of(number), native=True)
    whole.close()
    half = find_slices(Store(place), "run7").popitem()[1].datasets[0]
    half.drop([3], native=True)
    done = assemble(alone(), Store(place), "run7")
    assert (done.waiting, done.absent) == (0, {})
    check(place, range(4))
    assert find_slices(Store(place), "run7") == {}


def fill(place: Path, quota: int, frames: int) -> int:
    """Push slices of two ranks until they are so many, or there is no room; return of how many frames."""
    n_atoms = 5000
    rng = np.random.default_rng(0)
    positions, owner = rng.uniform(0, 50, (n_atoms, 3)).astype(np.float32), rng.integers(0, 2, n_atoms)
    Store(place).set_quota(quota)
    os.environ["HIMACH_QUOTA"] = str(quota)
    with contextlib.ExitStack() as stack:
        writers = [stack.enter_context(himach.Writer("full", n_atoms, cache=place, rank=rank)) for rank in range(2)]
        with contextlib.suppress(StoreFullError):
            for number in range(frames):
                for rank, writer in enumerate(writers):
                    ids = np.flatnonzero(owner == rank)
                    writer.push_slice(number, ids, positions[ids], time=number)
                if number % 10 == 0:
                    for writer in writers:
                        writer.flush()
            for writer in writers:
                writer.flush()
    (slices,) = find_slices(Store(place), "full").values()
    return min(len(dataset.native) for dataset in slices.datasets)


def test_a_store_that_is_full_of_slices_says_what_helps(tmp_path, monkeypatch):
    monkeypatch.setenv("HIMACH_QUOTA", "0")
    quota = 16 << 20
    whole = fill(tmp_path, quota, 10_000)
    assert 0 < whole < 10_000
    store = Store(tmp_path)
    store.set_quota(quota)
    with pytest.raises(StoreFullError, match="himach stage full --assemble --quota SIZE"):
        assemble(alone(), store, "full")
    monkeypatch.setenv("HIMACH_CACHE", str(tmp_path))
    monkeypatch.delenv("HIMACH_QUOTA")
    command("stage", "full", "--assemble", "--quota", "64MiB", code=0)
    assert len(Store(tmp_path).dataset("full", b"", create=False).native) >= whole


def test_slices_and_frames_of_two_simulations_do_not_mix(tmp_path):
    place = tmp_path / "store"
    whole = Store(place).dataset("run7")
    whole.write(9, 4.5, BOX, positions_of(9), native=True)
    whole.attach("author", b"another")
    whole.close()
    for rank, of_rank in enumerate(shared_out(range(4), 2)):
        push(place, rank, of_rank)
    with pytest.raises(StoreConflictError, match="frames of 'another', and slices of"):
        assemble(alone(), Store(place), "run7")
    (slices,) = find_slices(Store(place), "run7").values()
    slices.refresh()
    assert list(slices.frames) == [0, 1, 2, 3]


@pytest.mark.nightly
def test_a_run_assembles_by_itself(tmp_path, monkeypatch):
    place = tmp_path / "store"
    monkeypatch.setenv("HIMACH_CACHE", str(place))
    for rank, of_rank in enumerate(shared_out(range(10), 3)):
        push(place, rank, of_rank)
    map_text = "yield frame.number, float(frame.positions.astype(float).sum())"
    script = write_analysis(tmp_path / "sums.py", map_text, name="Sums", reduce="series.values[0]")
    words = ["run", script, "-t", "run7", "-s", topology(tmp_path, N_ATOMS), "--out", tmp_path / "out"]
    done = command(*words, code=0)
    rows = np.genfromtxt(tmp_path / "out" / "Sums.csv", delimiter=",", names=True)
    assert rows["key"].tolist() == list(range(10))
    np.testing.assert_allclose(rows["result"], [positions_of(number).astype(float).sum() for number in range(10)])
    done = command("stage", "run7", "--assemble", code=0)
    assert "run7: 0 frames assembled" in done.stdout
    done = command("stage", "run8", "--assemble", code=2)
    assert "no node has slices of a dataset run8" in done.stderr


@pytest.mark.nightly
@pytest.mark.parametrize("nodes", [["n0", "n1", "n0"], ["n0", "n0", "n0"]])
def test_slices_of_ranks_of_several_nodes_become_frames(tmp_path, nodes):
    n_atoms, n_frames = 100_000, 30  # for several rounds
    rng = np.random.default_rng(1)
    positions = rng.uniform(0, 50, (n_frames, n_atoms, 3)).astype(np.float32)
    owners = rng.integers(0, 3, (n_frames, n_atoms))
    for rank, node in enumerate(nodes):
        with himach.Writer("run7", n_atoms, cache=tmp_path / node, rank=rank) as writer:
            for number in set(range(n_frames)) - ({17} if rank == 1 else set()):
                ids = rng.permutation(np.flatnonzero(owners[number] == rank))
                if number == 19 and rank == 1:
                    ids = np.append(ids, np.flatnonzero(owners[number] == 0)[:1])
                chosen = positions[number][ids]
                writer.push_slice(number, ids, chosen, time=number, velocities=-chosen)
    done = stage_on_nodes(tmp_path, nodes, "stage", "run7", "--assemble", code=0)
    for words in ("28 frames assembled", "no slice of rank 1", "is in the slices of rank 0 and rank 1"):
        assert words in done.stdout
    by_node = []
    for node in set(nodes):
        dataset = Store(tmp_path / node).dataset("run7", b"", create=False)
        by_node.append(list(dataset.native))
        for frame in dataset.read(by_node[-1]):
            assert np.array_equal(frame.positions, positions[frame.number])
            assert np.array_equal(frame.velocities, -positions[frame.number])
    assert sorted(itertools.chain(*by_node)) == sorted({*range(n_frames)} - {17, 19})
    assert max(map(len, by_node)) - min(map(len, by_node)) <= n_frames // len(by_node) // 4 + 1


def test_a_node_without_a_store_gets_no_frames(tmp_path, monkeypatch):
    monkeypatch.setattr(collective, "meet", lambda comm, *options, **more: comm.barrier())  # threads wait by it
    with himach.Writer("run8", 3, cache=tmp_path, rank=0) as writer:
        for number in range(20):
            writer.push_slice(number * 10**13, [0, 1, 2], np.ones((3, 3), np.float32), time=number)
    stores = {"n0": Store(tmp_path)}
    for done in run_ranks(["n0", "n1", "n0"], lambda world: assemble(world, stores.get(world.name), "run8")):
        assert (done.frames, done.waiting, done.absent, list(done.nodes)) == (20, 0, {}, ["n0"])


@pytest.mark.nightly
def test_lammps_pushes_what_it_dumps(tmp_path, monkeypatch):
    """The example, analysed while it runs, gives what LAMMPS's own dump has."""
    from support import needs
    from support.ranks import mpiexec

    needs.module("lammps")
    monkeypatch.setenv("HIMACH_CACHE", str(tmp_path / "store"))
    example = Path(__file__).parents[3] / "examples" / "lammps_slices.py"
    (tmp_path / "first.py").write_text(
        "import himach\n"
        "class First(himach.Analysis):\n"
        "    def map(self, frame):\n"
        "        yield frame.number, tuple(float(x) for x in frame.positions[700])\n"
        "    def reduce(self, key, series):\n"
        "        return series.values[0]\n"
        "    def finish(self, results):\n"
        "        x, y, z = zip(*results.values())\n"
        "        return {'first': {'x': x, 'y': y, 'z': z}}\n"
    )
    words = ["follow", "first.py", "-t", "argon", "-s", str(topology(tmp_path, 864)), "--idle", "8", "--every", "5"]
    follower = subprocess.Popen(
        [sys.executable, "-m", "himach", *words, "--out", "out"], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    mpiexec(3, [sys.executable, str(example), "300"], cwd=tmp_path, code=0)
    _, errors = follower.communicate(timeout=120)
    assert follower.returncode == 0, errors
    lines = (tmp_path / "argon.dump").read_text().split("ITEM: TIMESTEP\n")[1:]
    dataset = Store(tmp_path / "store").dataset("argon", b"", create=False)
    assert list(dataset.native) == list(range(31)) == list(range(len(lines)))
    rows = np.genfromtxt(tmp_path / "out" / "first.csv", delimiter=",", names=True)
    for frame, text in zip(dataset.read(range(31)), lines, strict=True):
        dumped = np.loadtxt(text.splitlines()[8:])
        dumped = dumped[np.argsort(dumped[:, 0])]
        assert frame is not None and np.array_equal(frame.positions, dumped[:, 1:].astype(np.float32))
        assert np.array_equal([rows[axis][frame.number] for axis in "xyz"], frame.positions[700].astype(float))


FAR = 2**62
NUMBERS = st.one_of(st.integers(0, 40), st.integers(0, 20).map(lambda i: 1000 * i + 7), st.integers(0, FAR))


def make_slices(ranks: list[dict[int, int]]) -> HeldSlices:
    slices = []
    for rank, atoms in enumerate(ranks):
        numbers = np.array(sorted(atoms), np.int64)
        counts = np.array([atoms[number] for number in numbers.tolist()], np.uint32)
        slices.append(RankSlices(rank, SimpleNamespace(native=BitMap64(numbers)), 1, numbers, counts))
    return HeldSlices(slices)


def count_atoms(comm, slices: HeldSlices, at_once: int) -> dict[int, int]:
    """All frames of which there are atoms; they ascend."""
    counts: dict[int, int] = {}
    for frames, atoms in totals(comm, None, slices, 100, at_once):
        for number, count in zip(frames, atoms.tolist(), strict=True):
            assert number > max(counts, default=-1)
            counts |= {number: count} if count else {}
    return counts


@settings(max_examples=150)
@given(
    st.lists(st.lists(st.dictionaries(NUMBERS, st.integers(1, 9), max_size=12), max_size=3), min_size=1, max_size=3),
    st.integers(1, 6),
)
@example([[{0: 1, 2: 3}], [{2: 4, 9: 1, FAR: 2}]], 3)
def test_totals_are_those_of_a_dict(nodes, at_once):
    expected: Counter[int] = Counter()
    for ranks in nodes:
        for atoms in ranks:
            expected.update(atoms)
    for counts in on_threads(len(nodes), lambda comm: count_atoms(comm, make_slices(nodes[comm.rank]), at_once)):
        assert counts == dict(expected)


ASSEMBLE = """
import sys
from pathlib import Path
from himach.io.store.store import Store
from himach.ranks.communicator import alone
from himach.staging.assemble import assemble
while not Path(sys.argv[2]).exists():
    assemble(alone(), Store(sys.argv[1]), "run7")
done = assemble(alone(), Store(sys.argv[1]), "run7")
assert not done.absent and not done.waiting, done
"""


@pytest.mark.nightly
@pytest.mark.slow
def test_what_was_acknowledged_outlives_kills(tmp_path):
    """``himach bench slices --only kills`` does it 200 times."""
    outcome = torment(tmp_path / "torment", 25, random.Random(7))
    assert sum(outcome.kills.values()) == 25
    assert outcome.acknowledged > 0
    assert (outcome.wrong, outcome.lost) == ([], [])


def test_two_assemblers_and_a_writer_at_once(tmp_path):
    place, end = tmp_path / "store", tmp_path / "end"
    words = [sys.executable, "-c", ASSEMBLE, str(place), str(end)]
    assemblers = [subprocess.Popen(words, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    for first in range(0, 400, 50):
        for rank, slices in enumerate(shared_out(range(first, first + 50), 3)):
            push(place, rank, slices)
    end.touch()
    for process in assemblers:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    check(place, range(400))
    assert find_slices(Store(place), "run7") == {}
