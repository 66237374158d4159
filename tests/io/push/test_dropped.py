"""What others have dropped since is no reason to leave a frame or slice out that is pushed again."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from support.commands import himach as command

import himach
from himach.io.store.store import Store

N_ATOMS = 50
IDS = np.arange(N_ATOMS)


def manage(place, *words):
    done = command("cache", *words, HIMACH_CACHE=str(place))
    assert done.returncode == 0, done.stderr


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
