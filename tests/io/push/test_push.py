"""Pushed frames: dropped, followed, streamed."""

import contextlib
import os
import shutil

import numpy as np
import pytest
from support.commands import himach as command

import himach
from himach.io.push.held_slices import SUPERSEDED, RankSlices
from himach.io.store.store import Store, StoreConflictError

N_ATOMS = 50
IDS = np.arange(N_ATOMS)


def manage(place, *words):
    command("cache", *words, HIMACH_CACHE=str(place), code=0)


@contextlib.contextmanager
def writers(place, way):
    """Give a function that pushes a frame or slice, and has it acknowledged."""
    where = {"cache": place}
    if way.startswith("served"):
        manage(place, "start")
        where = {"servers": [str(place / "server" / "socket")]}
    rank = {"rank": 0} if way.endswith("slices") else {}
    try:
        with himach.Writer("run", N_ATOMS, durable=True, **where, **rank) as writer:

            def push(number):
                positions = np.full((N_ATOMS, 3), number, np.float32)
                if rank:
                    writer.push_slice(number, IDS, positions, time=number)
                else:
                    writer.number = number
                    writer.push(positions, time=number)
                writer.flush()

            yield push
    finally:
        if way.startswith("served"):
            manage(place, "stop")


def datasets(place):
    store = Store(place)
    return [store.dataset(name, one, create=False) for name in store.names() for one in store.generations(name)]


def there(place):
    """Return the numbers that anybody finds there now."""
    return {number for dataset in datasets(place) for number in dataset.native}


def drop_all(place):
    """Drop all, as another process does."""
    for dataset in datasets(place):
        dataset.drop(list(dataset.native), native=True)
        dataset.close()


@pytest.mark.parametrize("way", ["straight slices", "served slices", "served frames"])
def test_what_was_dropped_is_taken_again(tmp_path, way):
    place = tmp_path / "store"
    with writers(place, way) as push:
        for number in range(3):
            push(number)
        assert there(place) == {0, 1, 2}
        drop_all(place)
        assert there(place) == set()
        for number in (0, 2):
            push(number)
        assert there(place) == {0, 2}


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize("way", ["straight slices", "served slices"])
def test_slices_of_frames_that_were_evicted_are_taken_again(tmp_path, way):
    place = tmp_path / "store"
    with writers(place, way) as push:
        for number in range(3):
            push(number)
        done = command("stage", "run", "--assemble", "--cache", place)
        assert "3 frames assembled" in done.stdout + done.stderr, done
        manage(place, "evict", "run")
        assert there(place) == set()
        push(1)
        assert there(place) == {1}
        done = command("stage", "run", "--assemble", "--cache", place)
        assert "1 frames assembled" in done.stdout + done.stderr, done
        assert there(place) == {1}


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


SMALL, LARGE = 100, 150_000  # the latter's positions are larger than a buffer of the stream


def positions_of(number, atoms):
    return np.random.default_rng(number).normal(size=(atoms, 3)).astype(np.float32)


@pytest.mark.parametrize(
    "sizes", [[SMALL], [LARGE], [SMALL, LARGE, LARGE, SMALL, LARGE]], ids=["small", "large", "both"]
)
def test_what_is_streamed_is_read_back(tmp_path, sizes):
    dataset = Store(tmp_path).dataset("run7", b"1")
    dataset.stream()
    atoms = [sizes[number % len(sizes)] for number in range(23)]
    for number, n in enumerate(atoms):
        dataset.write(number, float(number), None, positions_of(number, n), native=True)
        if number % 7 == 6:
            dataset.flush(durable=True)
            assert dataset.holds(np.arange(number + 1), native=True).all()
    threads = len(os.listdir("/proc/self/task"))
    dataset.close()
    assert len(os.listdir("/proc/self/task")) == threads - 1
    again = Store(tmp_path).dataset("run7", b"1", create=False)
    for number, frame in enumerate(again.read(np.arange(len(atoms)))):
        assert frame is not None
        assert np.array_equal(frame.positions, positions_of(number, atoms[number]))


def test_a_frame_that_waits_is_compared(tmp_path):
    dataset = Store(tmp_path).dataset("run7", b"1")
    dataset.stream()
    dataset.write(0, 0.0, None, positions_of(0, LARGE), native=True)
    assert not dataset.write(0, 0.0, None, positions_of(0, LARGE), native=True)
    with pytest.raises(StoreConflictError):
        dataset.write(0, 0.0, None, positions_of(1, LARGE), native=True)
    dataset.close()
