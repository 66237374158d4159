"""Reading some atoms and some fields of frames: what is asked for is right, and little else is read."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from himach.io.frame_source import ReadOptions
from himach.io.store import bodhi
from himach.io.store.store import Store

BLOCK = 32  # atoms
FIELDS = ("positions", "velocities", "forces")


def made_up(number: int, n_atoms: int, fields: int) -> dict[str, np.ndarray | None]:
    rng = np.random.default_rng((number, n_atoms, fields))
    return {
        name: rng.normal(size=(n_atoms, 3)).astype(np.float32) if fields >> i & 1 else None
        for i, name in enumerate(FIELDS)
    }


def fill(place, frames, encoding: int = bodhi.ENCODING_AUTO):
    """A dataset of these frames (number -> fields) in small blocks."""
    dataset = Store(place).dataset("/parts")
    writer = dataset.open_writer(bodhi.ALIEN, block_atoms=BLOCK, encoding=encoding)
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


@settings(max_examples=60)
@given(
    shapes=st.lists(st.tuples(st.sampled_from([1, 31, 32, 33, 200, 5000]), st.sampled_from([1, 3, 5, 7])), max_size=12),
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


def test_only_the_blocks_of_the_atoms_are_read(tmp_path):
    frames = {number: made_up(number, 200_000, 7) for number in range(6)}
    dataset = fill(tmp_path, frames)
    whole = dataset.read(np.arange(6))
    for number, frame in enumerate(whole):
        assert_holds(frame, frames[number], None, 7)
    atoms = np.array([0, 100, 199_999], dtype=np.int64)
    few = dataset.read(np.arange(6), ReadOptions(atoms, bodhi.POSITIONS | bodhi.FORCES))
    for number, frame in enumerate(few):
        assert_holds(frame, frames[number], atoms, bodhi.POSITIONS | bodhi.FORCES)
    assert 0 < few.nbytes < whole.nbytes / 20
    some = dataset.read(np.arange(6), ReadOptions(fields=bodhi.VELOCITIES))
    for number, frame in enumerate(some):
        assert_holds(frame, frames[number], None, bodhi.VELOCITIES)
    assert some.nbytes < whole.nbytes * 0.4


def test_damage_elsewhere_is_not_looked_at(tmp_path):
    frames = {number: made_up(number, 50_000, 1) for number in range(3)}
    dataset = fill(tmp_path, frames)
    (segment,) = dataset.path.glob("*.seg")
    _, _, offset, length = dataset.locate(np.array([1]))[0]
    data = bytearray(segment.read_bytes())
    data[offset + length - 70] ^= 1
    segment.write_bytes(data)
    atoms = np.arange(BLOCK, dtype=np.int64)
    for number, frame in enumerate(dataset.read([0, 1, 2], ReadOptions(atoms))):
        assert_holds(frame, frames[number], atoms, 1)
    last = np.array([49_999], dtype=np.int64)
    reading = dataset.read([0, 1, 2], ReadOptions(last))
    assert [frame is None for frame in reading] == [False, True, False]
    assert reading.misses == {"damaged": 1}
