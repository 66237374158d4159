"""Pushed frames: dropped, followed, streamed."""

import contextlib
import os
import shutil

import numpy as np
import pytest
from support.commands import himach as command

import himach
from himach.io.push.held_slices import FOLLOWED, Since, later_launches, remember, set_aside
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


B, C = b"b" * 16, b"c" * 16


def slices(place, numbers=(0,)):
    dataset = Store(place).dataset("run7 [slices]", b"slices of rank 0, 3 atoms, launch 000000000000000a\n")
    for number in numbers:
        dataset.write(number, 0.0, None, np.zeros((3, 3), np.float32), native=True)
    dataset.flush()
    dataset.refresh()
    return dataset


def test_what_is_known_only_gets_more(tmp_path):
    one, two = slices(tmp_path), slices(tmp_path)
    assert later_launches(one) == {}
    remember([one], {B: Since(10, 100)})
    remember([two], {B: Since(12, 130), C: Since(20, 200)})  # by one who has seen less of B
    assert later_launches(one) == later_launches(two) == {B: Since(10, 100), C: Since(20, 200)}
    remember([one], {B: Since(8, 150)})
    assert later_launches(one) == {B: Since(8, 100), C: Since(20, 200)}
    remember([], {B: Since(0, 0)})


def test_what_is_damaged_is_not_known(tmp_path):
    dataset = slices(tmp_path)
    dataset.attach(FOLLOWED, b"c" * 16 + b" 20 200\nbbbb 10\n\xff\n" + b"b" * 16 + b" 1")
    assert later_launches(dataset) == {C: Since(20, 200)}


def test_slices_that_were_deleted_need_nothing_known(tmp_path):
    dataset = slices(tmp_path)
    shutil.rmtree(dataset.path)
    remember([dataset], {B: Since(10, 100)})
    assert later_launches(dataset) == {}


def test_slices_of_a_start_that_says_the_same_of_itself_are_no_older_ones(tmp_path):
    dataset = slices(tmp_path, range(8))
    second = min(one["id"] for one in dataset.segments()) >> 32
    numbers = np.arange(8)

    def aside(**followed):
        meant, left = set_aside(dataset, numbers, {name.encode(): since for name, since in followed.items()})
        assert np.array_equal(np.union1d(meant, left), numbers)
        return left.tolist()

    assert aside() == []
    assert aside(b=Since(5, second + 1)) == [5, 6, 7]
    assert aside(b=Since(5, second)) == []
    assert aside(b=Since(5, second), c=Since(7, second + 1)) == [7]


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
