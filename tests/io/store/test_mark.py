"""Stores: marks, beside threads that write, and parts of frames."""

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.shelves import flip

from himach.io.frame_source import ReadOptions
from himach.io.store import bodhi
from himach.io.store.store import Store

from .test_sealed import marked

ATOM = np.zeros((1, 3), dtype=np.float32)


@pytest.fixture
def place(tmp_path):
    return tmp_path / "store"


def test_while_threads_of_this_process_write(place):
    dataset = Store(place).dataset("d")
    count = 20_000
    done = threading.Event()

    def work():
        try:
            for number in range(count - 1, -1, -1):  # every one goes before what is there
                dataset.write(number, 0.0, None, ATOM, native=False)
                dataset.flush()
        finally:
            done.set()

    thread = threading.Thread(target=work)
    thread.start()
    before, ended = 0, False
    while not ended:
        ended = done.is_set()
        held = marked(dataset, range(count))[False]
        assert held == set(range(count - len(held), count))
        assert len(held) >= before
        before = len(held)
    thread.join()
    assert before == count


BLOCK = 32  # atoms
FIELDS = ("positions", "velocities", "forces")


def made_up(number: int, n_atoms: int, fields: int, packed: bool = False) -> dict[str, np.ndarray | None]:
    """Arrays of a frame; packed ones lie on XTC's grid, and take bits that differ by frame."""
    rng = np.random.default_rng((number, n_atoms, fields))
    if packed:
        steps = rng.integers(0, 400 if number % 4 else 60_000, (3, n_atoms, 3))
        arrays = steps.astype(np.float32) * np.float32(0.001) * np.float32(10)
    else:
        arrays = rng.normal(size=(3, n_atoms, 3)).astype(np.float32)
    return {name: arrays[i] if fields >> i & 1 else None for i, name in enumerate(FIELDS)}


def fill(place, frames):
    """A dataset of these frames (number -> fields) in small blocks."""
    dataset = Store(place).dataset("/parts")
    writer = dataset.open_writer(bodhi.ALIEN, block_atoms=BLOCK)
    for number, arrays in frames.items():
        writer.append(number, float(number), arrays["positions"], None, arrays["velocities"], arrays["forces"])
    writer.close()
    dataset.refresh()
    return dataset


def assert_holds(frame, wanted, atoms, fields: int) -> None:
    for i, name in enumerate(FIELDS):
        found, array = getattr(frame, name), wanted[name]
        if array is None or not fields >> i & 1:
            assert found is None, name
            continue
        assert found.shape == array.shape
        rows = slice(None) if atoms is None else atoms[atoms < len(array)]
        assert np.array_equal(found[rows].view(np.uint32), array[rows].view(np.uint32)), name


@settings(max_examples=100)
@given(
    shapes=st.lists(
        st.tuples(st.sampled_from([1, 31, 32, 33, 200, 5000]), st.sampled_from([1, 3, 5, 7]), st.booleans()),
        max_size=12,
    ),
    atoms=st.none() | st.sets(st.integers(0, 5100), max_size=20) | st.just(set(range(0, 5000, 3))),
    fields=st.integers(1, 7),
    direct=st.sampled_from(["on", "off"]),
    request_bytes=st.sampled_from([0, 4096, 100_000]),
    seed=st.integers(0, 99),
)
def test_what_is_asked_for_is_what_was_written(tmp_path_factory, shapes, atoms, fields, direct, request_bytes, seed):
    frames = {number: made_up(number, *shape) for number, shape in enumerate(shapes)}
    dataset = fill(tmp_path_factory.mktemp("parts"), frames)
    numbers = np.random.default_rng(seed).permutation(len(frames) + 1)
    chosen = None if atoms is None else np.array(sorted(atoms), dtype=np.int64)
    reading = dataset.read(numbers, ReadOptions(chosen, fields, direct=direct, request_bytes=request_bytes))
    for number, frame in zip(numbers.tolist(), reading, strict=True):
        if number == len(frames):
            assert frame is None
        else:
            assert (frame.number, frame.time) == (number, number)
            assert_holds(frame, frames[number], chosen, fields)


def test_damage_elsewhere_is_not_looked_at(tmp_path):
    frames = {number: made_up(number, 50_000, 1) for number in range(3)}
    dataset = fill(tmp_path, frames)
    (segment,) = dataset.path.glob("*.seg")
    _, _, offset, length = dataset.locate(np.array([1]))[0]
    flip(segment, offset + length - 70)
    atoms = np.arange(BLOCK, dtype=np.int64)
    for number, frame in enumerate(dataset.read([0, 1, 2], ReadOptions(atoms))):
        assert_holds(frame, frames[number], atoms, 1)
    last = np.array([49_999], dtype=np.int64)
    reading = dataset.read([0, 1, 2], ReadOptions(last))
    assert [frame is None for frame in reading] == [False, True, False]
    assert reading.misses == {"damaged": 1}
