"""Frames that are there already, for writers without a server: read back, and the same, or not there."""

from __future__ import annotations

import numpy as np
import pytest
from support.shelves import fill, place_of, positions_of, segment_files

from himach.io.store.store import Store, StoreBusyError, StoreConflictError, StoreFullError


def open_again(path):
    return Store(path).dataset("/made/up.xtc", b"one")


def on_grid(number):
    steps = np.random.default_rng(number).integers(0, 5000, (500, 3))
    return (steps.astype(np.float32) * np.float32(0.001)) * np.float32(10)


@pytest.mark.parametrize("made", [positions_of, on_grid], ids=["raw", "packed"])
@pytest.mark.parametrize("flushed", [True, False])
@pytest.mark.parametrize("native", [True, False])
def test_the_same_exists_and_another_is_a_conflict(tmp_path, made, flushed, native):
    dataset = open_again(tmp_path)
    box = np.array([9, 9, 9, 90, 90, 90], dtype=np.float32)
    for number in range(3):
        assert dataset.write(number, 1.0, box, made(number), made(number + 9), native=native)
    if flushed:
        dataset.flush()
    assert not dataset.write(1, 1.0, box, made(1), made(10), native=native)
    other = made(1)
    other[499, 2] += 1
    for wrong, why in [
        ((1.5, box, made(1), made(10)), "the time 1 ps, not 1.5 ps"),
        ((1.0, None, made(1), made(10)), "another box"),
        ((1.0, box + 1, made(1), made(10)), "another box"),
        ((1.0, box, other, made(10)), r"other positions \(first of atom 499\)"),
        ((1.0, box, made(1), made(11)), "other velocities"),
        ((1.0, box, made(1), None), "with velocities"),
        ((1.0, box, made(1), made(10), made(10)), "without forces"),
        ((1.0, box, made(1)[:499], made(10)[:499]), "500 atoms, not 499"),
    ]:
        with pytest.raises(StoreConflictError, match=f"frame 1 of dataset /made/up.xtc is there with {why}"):
            dataset.write(1, *wrong, native=native)
    dataset.write(3, 1.0, box, made(3), native=native)  # the writer goes on
    dataset.close()
    again = open_again(tmp_path)
    assert len(again.native if native else again.alien) == 4
    for number, frame in zip(range(3), again.read(range(3)), strict=True):
        np.testing.assert_array_equal(frame.positions, made(number))


def test_bits_count_and_not_values(tmp_path):
    dataset = open_again(tmp_path)
    odd = np.array([[np.nan, 0.0, np.inf]], dtype=np.float32)
    assert dataset.write(0, float("nan"), None, odd)
    assert not dataset.write(0, float("nan"), None, odd)
    with pytest.raises(StoreConflictError):
        dataset.write(0, float("nan"), None, np.array([[np.nan, -0.0, np.inf]], dtype=np.float32))


@pytest.mark.parametrize("native", [True, False])
def test_what_another_process_evicted_is_written_again(tmp_path, native):
    fill(tmp_path, range(5), native=native)
    dataset = open_again(tmp_path)
    other = open_again(tmp_path)
    (segment,) = other.segments()
    other.evict(segment["id"])
    assert all(dataset.write(number, float(number), None, positions_of(number), native=native) for number in range(5))
    dataset.close()
    assert all(frame is not None for frame in open_again(tmp_path).read(range(5)))


def test_a_dataset_that_another_process_removed_is_made_again(tmp_path):
    fill(tmp_path, range(5))
    dataset = open_again(tmp_path)
    store = Store(tmp_path)
    store.remove(dataset.path.name)
    assert store.directories() == []
    assert all(dataset.write(number, float(number), None, positions_of(number)) for number in range(5))
    dataset.close()
    assert store.generations("/made/up.xtc") == [b"one"]
    assert all(frame is not None for frame in open_again(tmp_path).read(range(5)))
    dataset.refresh()
    assert list(dataset.alien) == list(range(5))


def test_a_damaged_copy_is_written_again(tmp_path):
    dataset = fill(tmp_path, range(5))
    path, offset, length = place_of(dataset, 3)
    with path.open("r+b") as file:
        file.seek(offset + length // 2)
        file.write(b"\xff\x00\xff\x00\xff")
    assert [dataset.write(number, float(number), None, positions_of(number)) for number in range(5)] == [
        False, False, False, True, False,
    ]  # fmt: skip
    dataset.close()
    assert all(frame is not None for frame in open_again(tmp_path).read(range(5)))


def test_removing_a_dataset_that_is_written_to_keeps_what_is_written(tmp_path):
    dataset = open_again(tmp_path)
    dataset.write(0, 0.0, None, positions_of(0))
    dataset.flush()
    with pytest.raises(StoreBusyError):
        Store(tmp_path).remove(dataset.path.name)
    dataset.write(1, 1.0, None, positions_of(1))
    dataset.close()
    assert Store(tmp_path).generations("/made/up.xtc") == [b"one"]
    assert list(open_again(tmp_path).alien) == [0, 1]


def dropped_elsewhere(path):
    """Frame 1 is in a younger segment than what says that it is dropped."""
    older, younger = open_again(path), open_again(path)
    older.write(0, 0.0, None, positions_of(0))
    older.flush()
    for number in 1, 2:
        younger.write(number, float(number), None, positions_of(number))
    younger.flush()
    older.close()
    dataset = open_again(path)
    assert dataset.drop([1]) == 1
    younger.close()
    first, second = sorted(dataset.segments(), key=lambda one: one["id"] != place_id(dataset, 0))
    assert place_id(dataset, 2) == second["id"]
    return dataset, first["id"], second["id"]


def place_id(dataset, number):
    return int(place_of(dataset, number)[0].stem[2:], 16)


def test_dropped_frames_do_not_come_back(tmp_path):
    dataset, first, second = dropped_elsewhere(tmp_path)
    dataset.evict(first)  # and with it the word that frame 1 is dropped
    assert list(dataset.alien) == [2]
    assert list(open_again(tmp_path).alien) == [2]
    says = next(one["id"] for one in dataset.segments() if one["id"] != second)
    with pytest.raises(StoreBusyError, match="frames of other segments are dropped"):
        dataset.evict(says)
    dataset.evict(second)
    dataset.evict(says)
    assert segment_files(dataset) == []


def test_a_dataset_with_dropped_frames_is_removed_as_a_whole(tmp_path):
    dataset, first, _ = dropped_elsewhere(tmp_path)
    dataset.evict(first)
    Store(tmp_path).remove(dataset.path.name)
    assert not dataset.path.exists()


def test_what_others_have_written_since_is_dropped_too(tmp_path):
    dataset = open_again(tmp_path)
    fill(tmp_path, range(3))
    assert dataset.drop([1]) == 1
    assert list(open_again(tmp_path).alien) == [0, 2]


def test_dropping_works_in_a_full_store(tmp_path):
    """Where frames can be dropped no more, no room can be made by whoever replaces them by others."""
    fill(tmp_path, range(20))
    store = Store(tmp_path)
    dataset = store.dataset("/made/up.xtc", b"one")
    used = sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file())
    store.set_quota(used + 1)
    with pytest.raises(StoreFullError, match="no room"):
        dataset.write(20, 20.0, None, np.zeros((100, 3), np.float32))
    assert dataset.drop([3]) == 1
    assert len(open_again(tmp_path).alien) == 19
    assert sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file()) < used + 1000
