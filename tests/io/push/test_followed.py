"""What is known of a launch that others have followed: the lowest of what anybody has found, whoever writes when."""

from __future__ import annotations

import shutil

import numpy as np

from himach.io.push.launches import FOLLOWED, Since, known, remember, set_aside
from himach.io.store.store import Store

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
    assert known(one) == {}
    remember([one], {B: Since(10, 100)})
    remember([two], {B: Since(12, 130), C: Since(20, 200)})  # by one who has seen less of B
    assert known(one) == known(two) == {B: Since(10, 100), C: Since(20, 200)}
    remember([one], {B: Since(8, 150)})
    assert known(one) == {B: Since(8, 100), C: Since(20, 200)}
    remember([], {B: Since(0, 0)})


def test_what_is_damaged_is_not_known(tmp_path):
    dataset = slices(tmp_path)
    dataset.attach(FOLLOWED, b"c" * 16 + b" 20 200\nbbbb 10\n\xff\n" + b"b" * 16 + b" 1")
    assert known(dataset) == {C: Since(20, 200)}


def test_slices_that_were_deleted_need_nothing_known(tmp_path):
    dataset = slices(tmp_path)
    shutil.rmtree(dataset.path)
    remember([dataset], {B: Since(10, 100)})
    assert known(dataset) == {}


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
