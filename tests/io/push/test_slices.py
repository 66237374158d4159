"""Slices in a store: read back, whole or not at all; what of them a later launch supersedes; streams of frames."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from support import commands
from support.shelves import spoil

import himach
from himach.io.frame_source import ReadOptions
from himach.io.push.held_slices import SUFFIX, SUPERSEDED, RankSlices, find_slices
from himach.io.store.store import ALL_OF_SLICES, Store, StoreConflictError

N_ATOMS = 3000
ALL = ReadOptions(fields=ALL_OF_SLICES)


def positions_of(number: int, n_atoms: int = N_ATOMS) -> np.ndarray:
    return np.random.default_rng(number).uniform(0, 50, (n_atoms, 3)).astype(np.float32)


def push(place: Path, slices: dict[int, np.ndarray], n_atoms: int = N_ATOMS, rank: int = 0, **options) -> None:
    with himach.Writer("run", n_atoms, cache=place, rank=rank, **options) as writer:
        for number, ids in slices.items():
            writer.push_slice(
                number, ids, positions_of(number, n_atoms)[ids], time=number / 2, box=[9, 8, 7, 90, 90, 90]
            )


def only(place: Path, rank: int = 0, n_atoms: int = N_ATOMS):
    generation = f"slices of rank {rank}, {n_atoms} atoms, launch 0000000001, mark {0:016x}\n".encode()
    return Store(place).dataset(f"run{SUFFIX}", generation, create=False)


def test_a_damaged_slice_is_absent(tmp_path):
    ids = np.flatnonzero(np.random.default_rng(1).random(N_ATOMS) < 0.5)
    push(tmp_path / "store", {number: ids[number:] for number in range(4)})
    dataset = only(tmp_path / "store")
    places = dataset.places(np.arange(4))
    (segment,) = dataset.path.glob("*.seg")
    del dataset
    for broken in (2, 0):
        spoil(segment, int(places["offset"][broken] + places["length"][broken]) - 100, b"wrong bytes")
        got = [found is not None for found in only(tmp_path / "store").read(range(4), ALL)]
        assert got == [broken == 2, True, False, True]


@pytest.mark.parametrize("ids", [[0.5, 1.7], [True, False], ["3", "4"], [1j, 2j]])
def test_ids_that_are_no_whole_numbers_are_refused(tmp_path, ids):
    with himach.Writer("run", 10, cache=tmp_path, rank=0) as writer:
        with pytest.raises(ValueError, match="whole numbers"):
            writer.push_slice(3, ids, np.zeros((2, 3)), time=0)
        with pytest.raises(ValueError, match="atom 10 of the slice of frame 3 is there twice, or not one of 0 to 9"):
            writer.push_slice(3, [10, 1], np.zeros((2, 3)), time=0)
        with pytest.raises(ValueError, match="1 ids need"):
            writer.push_slice(3, [1], np.zeros((2, 3)), time=0)
        writer.push_slice(3, [], [], time=0)  # a rank without atoms has nothing to say


FORKS = """
import os, sys
import numpy as np
import himach

writer = himach.Writer("run", 10, cache=sys.argv[1], rank=0, launch="")
writer.push_slice(0, np.arange(10), np.zeros((10, 3)), time=0)
child = os.fork()
if child == 0:
    try:
        writer.push_slice(1, np.arange(10), np.zeros((10, 3)), time=1)
    except ValueError as error:
        assert "fork" in str(error)
        writer.close()
        sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
writer.push_slice(2, np.arange(10), np.zeros((10, 3)), time=2)
writer.close()
"""


def test_a_fork_leaves_the_writer_alone(tmp_path):
    commands.run_python("-P", "-c", FORKS, tmp_path, check=True, timeout=60)
    assert list(only(tmp_path, n_atoms=10).native) == [0, 2]


def test_by_a_server_as_straight(tmp_path):
    """What a server takes is what a writer puts into the store itself, and both may go on with the other's."""
    place = tmp_path / "store"
    sets = {number: np.random.default_rng(number).permutation(N_ATOMS)[:700] for number in range(30)}
    commands.himach("cache", "start", code=0, HIMACH_CACHE=str(place))
    try:
        push(place, {number: sets[number] for number in range(10)}, servers=[str(place / "server" / "socket")])
        with himach.Writer("run", N_ATOMS, servers=[str(place / "server" / "socket")], rank=0) as writer:
            for number in range(10, 20):
                ids = sets[number]
                writer.push_slice(number, ids, positions_of(number)[ids], time=number / 2, box=[9, 8, 7, 90, 90, 90])
            writer.flush()
            assert writer.facts()["acknowledged"] == 10
    finally:
        commands.himach("cache", "stop", code=0, HIMACH_CACHE=str(place))
    push(place, sets)
    dataset = only(place)
    for number, found in enumerate(dataset.read(range(30))):
        assert np.array_equal(found.positions, positions_of(number)[np.sort(sets[number])])
    (held,) = find_slices(Store(place), "run").values()
    held.refresh()
    assert held.count_atoms(range(32)).tolist() == [700] * 30 + [0, 0]


# --- What a later launch supersedes; streams of frames -------------------------------------------------------------


def slices(place, numbers=(0,)):
    generation = b"slices of rank 0, 3 atoms, launch 0000000001, mark 000000000000000a\n"
    dataset = Store(place).dataset("run7 [slices]", generation)
    for number in numbers:
        dataset.write(number, 0.0, None, np.zeros((3, 3), np.float32), native=True)
    dataset.flush()
    dataset.refresh()
    return RankSlices(0, dataset, 1)


def test_the_first_frame_that_is_superseded_only_falls(tmp_path):
    one, two = slices(tmp_path, range(8)), slices(tmp_path)
    assert one.superseded is None
    one.refresh()
    assert (one.numbers.tolist(), one.aside.tolist()) == (list(range(8)), [])
    for first, expected in ((6, 6), (7, 6), (5, 5)):
        two.supersede(first)
        assert one.superseded == two.superseded == expected
    one.refresh()
    assert (one.numbers.tolist(), one.aside.tolist()) == (list(range(5)), [5, 6, 7])


def test_damage_is_no_frame_that_is_superseded(tmp_path):
    item = slices(tmp_path)
    item.dataset.attach(SUPERSEDED, b"12 200\n")
    assert item.superseded is None


def test_slices_that_were_deleted_need_no_record(tmp_path):
    item = slices(tmp_path)
    shutil.rmtree(item.dataset.path)
    item.supersede(3)
    assert item.superseded is None


LARGE = 150_000  # atoms, whose positions are larger than a buffer of the stream


def test_a_frame_that_waits_is_compared(tmp_path):
    dataset = Store(tmp_path).dataset("run7", b"1")
    dataset.writer(native=True).stream()
    dataset.write(0, 0.0, None, positions_of(0, LARGE), native=True)
    assert not dataset.write(0, 0.0, None, positions_of(0, LARGE), native=True)
    with pytest.raises(StoreConflictError):
        dataset.write(0, 0.0, None, positions_of(1, LARGE), native=True)
    dataset.close()
