"""Packed frames, and stores that earlier versions have written."""

import numpy as np
import pytest
from support import shelves
from support.shelves import fill, positions_of

from himach.io.store.store import Store, StoreConflictError


def on_grid(steps: np.ndarray) -> np.ndarray:
    """Positions as a decoder of XTC makes them: two roundings."""
    return steps.astype(np.float32) * np.float32(1e-3) * np.float32(10)


def waters(n: int, sites: int, box: int, seed: int, *, wrapped: bool) -> np.ndarray:
    """Steps of molecules about random places in a box; molecules are split over it if wrapped."""
    rng = np.random.default_rng(seed)
    first = rng.integers(0, box, (n, 1, 3))
    turns = rng.normal(size=(n, sites - 1, 3))
    offsets = np.rint(96 * turns / np.linalg.norm(turns, axis=2, keepdims=True)).astype(np.int64)
    steps = np.concatenate([first, first + offsets], axis=1).reshape(-1, 3)
    return steps % box if wrapped else steps


def assert_same_bits(a: np.ndarray, b: np.ndarray) -> None:
    assert np.array_equal(a.view(np.uint32), b.view(np.uint32))


def packed_part(store: Store, positions: np.ndarray) -> float:
    """Write a frame, see that its bits come back, and return which part of its raw size it takes."""
    with store.dataset(f"/{len(store.names())}") as dataset:
        dataset.write(0, 0.0, None, positions)
        dataset.flush()
        (frame,) = dataset.read([0])
        assert_same_bits(frame.positions, positions)
        (length,) = dataset.places([0])["length"]
    return length / positions.nbytes


def test_waters_take_what_their_offsets_take(tmp_path):
    whole = waters(4000, 3, 7000, 1, wrapped=False)
    wrapped = waters(4000, 3, 7000, 1, wrapped=True)
    store = Store(tmp_path)
    assert packed_part(store, on_grid(whole)) < 0.32
    assert packed_part(store, on_grid(wrapped)) < 0.35


def open_again(path):
    return Store(path).dataset("/made/up.xtc", b"one")


@pytest.mark.parametrize(
    "made", [positions_of, lambda number: shelves.on_grid(number, (500, 3))], ids=["raw", "packed"]
)
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
        ((1.0, box, other, made(10)), "other positions"),
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


def test_what_others_have_written_since_is_dropped_too(tmp_path):
    dataset = open_again(tmp_path)
    fill(tmp_path, range(3))
    assert dataset.drop([1]) == 1
    assert list(open_again(tmp_path).alien) == [0, 2]
