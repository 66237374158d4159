"""Packed frames, and stores that earlier versions have written."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import shelves
from support.shelves import fill, positions_of

from himach.io.frame_source import ReadOptions
from himach.io.store import bodhi
from himach.io.store.store import Store, StoreConflictError

PRECISIONS = [1e3, 1e2, 1e4, 10.0, 1e5, 1e6, 1.0]


def on_grid(steps: np.ndarray, precision: float = 1e3) -> np.ndarray:
    """Positions as a decoder of XTC makes them: two roundings."""
    return steps.astype(np.float32) * np.float32(1.0 / precision) * np.float32(10)


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


def packed_part(store: Store, positions: np.ndarray, block_atoms: int = 4096) -> float:
    """Write a frame, see that its bits come back, and return which part of its raw size it takes."""
    name = f"/{len(store.names())}"
    with store.dataset(name) as dataset:
        writer = dataset.open_writer(bodhi.ALIEN, 0, block_atoms)
        writer.append(0, 0.0, positions, None, None, None)
        writer.close()
        dataset.refresh()
        (frame,) = dataset.read([0])
        assert_same_bits(frame.positions, positions)
        ((_, _, _, length),) = dataset.locate([0])
    blocks = -(-len(positions) // block_atoms)
    return (length - 112 - 8 * blocks) / positions.nbytes  # without the record's head


@settings(max_examples=150)
@given(
    n_atoms=st.integers(60, 900),
    widths=st.tuples(*[st.integers(0, 24)] * 3),
    least=st.tuples(*[st.integers(-(2**23), 2**23)] * 3),
    precision=st.sampled_from(PRECISIONS),
    block_atoms=st.sampled_from([50, 128, 333, 4096]),
    seed=st.integers(0, 2**32),
)
def test_any_grid_and_any_width(tmp_path_factory, n_atoms, widths, least, precision, block_atoms, seed):
    rng = np.random.default_rng(seed)
    steps = np.stack([low + rng.integers(0, 2**width, n_atoms) for low, width in zip(least, widths, strict=True)], 1)
    positions = on_grid(np.clip(steps, -(2**24), 2**24), precision)
    part = packed_part(Store(tmp_path_factory.mktemp("store")), positions, block_atoms)
    assert part < 1 or sum(widths) > 50 or block_atoms < 100  # widths may be too large to be worth it


def test_waters_take_what_their_offsets_take(tmp_path):
    whole = waters(4000, 3, 7000, 1, wrapped=False)
    wrapped = waters(4000, 3, 7000, 1, wrapped=True)
    store = Store(tmp_path)
    assert packed_part(store, on_grid(whole)) < 0.32
    assert packed_part(store, on_grid(wrapped)) < 0.35


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, -0.0, 0.005, 1e9, np.float32(1.2345678), 1e-45])
@pytest.mark.parametrize("at", [0, 70, 299])
def test_one_position_off_the_grid_keeps_the_frame_raw(tmp_path, value, at):
    positions = on_grid(waters(100, 3, 2500, 1, wrapped=False))
    store = Store(tmp_path)
    assert packed_part(store, positions) < 0.5
    positions[at, 1] = value
    assert packed_part(store, positions) >= 1


def test_frames_of_other_grids_and_sizes_follow_one_another(tmp_path):
    shapes = [(400, 1e3), (50, 1e2), (400, 1e2), (700, 1e3), (1, 1e3), (400, None), (400, 1e3)]
    frames = []
    for i, (n, precision) in enumerate(shapes):
        steps = waters(n, 3, 3000, i, wrapped=i % 2 == 0)
        frames.append(steps.astype(np.float32) * np.float32(1.1) if precision is None else on_grid(steps, precision))
    with Store(tmp_path).dataset("/x") as dataset:
        for number, positions in enumerate(frames):
            velocities = positions / np.float32(7) if number % 3 else None
            dataset.write(number, 0.0, None, positions, velocities, -positions if number % 3 == 2 else None)
    lengths = [place[3] for place in dataset.locate(np.arange(len(frames)))]
    assert lengths[0] < 0.5 * frames[0].nbytes
    assert lengths[5] > 2 * frames[5].nbytes
    for number, frame in enumerate(dataset.read(np.arange(len(frames)))):
        assert_same_bits(frame.positions, frames[number])
        assert (frame.velocities is None) == (number % 3 == 0)
    for frame in dataset.read(np.arange(len(frames)), ReadOptions(fields=bodhi.FORCES)):
        assert frame.positions is None and frame.velocities is None
        assert frame.forces is None or np.array_equal(frame.forces, -frames[frame.number])


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


def test_what_others_have_written_since_is_dropped_too(tmp_path):
    dataset = open_again(tmp_path)
    fill(tmp_path, range(3))
    assert dataset.drop([1]) == 1
    assert list(open_again(tmp_path).alien) == [0, 2]
