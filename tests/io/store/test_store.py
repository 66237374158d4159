"""Round trips through the store, beside a dict; refusals; sets of frames; dropping and evicting."""

import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import needs
from support.shelves import on_grid, set_version

from himach.io.frame_source import ReadOptions
from himach.io.store import bodhi
from himach.io.store.store import Store, StoreConflictError, StoreNotFoundError, StoreRefusedError, StoreVersionError

from . import make_golden

FIELDS = ("positions", "velocities", "forces")


def made_up(number: int, n_atoms: int, fields: int, box: bool) -> dict[str, object]:
    """Arguments of `Dataset.write`; positions of every third frame lie on XTC's grid, and are packed."""
    rng = np.random.default_rng((number, n_atoms, fields))
    arrays = rng.normal(size=(3, n_atoms, 3)).astype(np.float32)
    return {
        "number": number,
        "time": float(rng.normal()),
        "box": rng.normal(size=6).astype(np.float32) if box else None,
        "positions": arrays[0] if number % 3 else on_grid((number, n_atoms), (n_atoms, 3)),
        "velocities": arrays[1] if fields & 2 else None,
        "forces": arrays[2] if fields & 4 else None,
    }


def assert_is(frame: object, wanted: dict[str, object], atoms: np.ndarray | None = None, fields: int = 7) -> None:
    assert (frame.number, frame.time) == (wanted["number"], wanted["time"])
    np.testing.assert_equal(frame.box, wanted["box"])
    rows = slice(None) if atoms is None else atoms[atoms < len(wanted["positions"])]
    for bit, name in enumerate(FIELDS):
        array, found = wanted[name] if fields >> bit & 1 else None, getattr(frame, name)
        assert (found is None) == (array is None), name
        assert array is None or (found.shape == array.shape and np.array_equal(found[rows], array[rows])), name


@pytest.fixture
def place(tmp_path):
    return tmp_path / "store"


FRAME = st.tuples(
    st.integers(0, 40) | st.integers(0, bodhi.MAX_NUMBER),
    st.sampled_from([1, 2, 5, 21, 40, 100, 300, 4100, 9000]),
    st.integers(0, 7),
    st.booleans(),
    st.booleans(),
)


@settings(max_examples=60)
@given(
    frames=st.lists(FRAME, max_size=25),
    flushes=st.sets(st.integers(0, 24)),
    dropped=st.lists(st.integers(0, 40), max_size=5),
    segment_bytes=st.sampled_from([0, 4096, 20000]),
    request=st.sampled_from([0, 4096, 100000]),
    direct=st.sampled_from(["on", "off"]),
    atoms=st.none() | st.sets(st.integers(0, 9100), max_size=20) | st.just(set(range(0, 5000, 3))),
    fields=st.integers(1, 7),
    seed=st.integers(0, 99),
)
def test_round_trip_beside_a_dict(frames, flushes, dropped, segment_bytes, request, direct, atoms, fields, seed):
    chosen = None if atoms is None else np.array(sorted(atoms), dtype=np.int64)
    options = ReadOptions(chosen, fields, request_bytes=request, direct=direct, ring=2)
    with tempfile.TemporaryDirectory(prefix="himach-store-") as directory:
        model: dict[tuple[bool, int], tuple[int, int, int, bool]] = {}  # what is drawn from it is the frame
        with Store(directory).dataset("/sim1", b"g", segment_bytes=segment_bytes) as dataset:
            for i, (number, n_atoms, fields, box, native) in enumerate(frames):
                wanted = (number, n_atoms, fields, box)
                held = [model[key] for key in ((True, number), (native, number)) if key in model]
                try:
                    new = dataset.write(**made_up(*wanted), native=native)
                except StoreConflictError:
                    assert any(other != wanted for other in held)
                else:
                    assert new or wanted in held
                    if new:
                        model[native, number] = wanted
                if i in flushes:
                    dataset.flush(durable=i % 2 == 0)
            dataset.flush()
            there = sum((False, number) in model for number in set(dropped))
            assert dataset.drop(sorted(set(dropped))) == there
            for number in dropped:
                model.pop((False, number), None)
            check_all(dataset, model, options, seed)
        with Store(directory).dataset("/sim1", b"g", create=False) as again:
            check_all(again, model, options, seed)


def check_all(dataset, model, options, seed):
    natives, aliens = ({number for kind, number in model if kind == native} for native in (True, False))
    assert (set(dataset.native), set(dataset.alien)) == (natives, aliens)
    numbers = np.array(sorted(natives | aliens | set(range(5)) | {bodhi.MAX_NUMBER}), dtype=np.int64)
    np.random.default_rng(seed).shuffle(numbers)
    for number, frame in zip(numbers.tolist(), dataset.read(numbers, options), strict=True):
        there = model.get((True, number), model.get((False, number)))
        if there is None:
            assert frame is None
        else:
            assert_is(frame, made_up(*there), options.atoms, options.fields)


@pytest.mark.parametrize(
    ("kept", "made", "native", "alien"),
    [
        (make_golden.GOLDEN, make_golden.frame, make_golden.NATIVE, (9,)),
        (make_golden.PACKED, make_golden.packed_frame, (), tuple(range(make_golden.N_PACKED))),
    ],
    ids=["raw", "packed"],
)
def test_golden_files_are_read_as_written(place, kept, made, native, alien):
    shutil.copytree(kept, place)
    golden = Store(place, read_only=True)
    (directory,) = golden.directories()
    dataset = golden.open_directory(directory)
    assert (dataset.name, dataset.generation) == (make_golden.NAME, make_golden.GENERATION)
    assert (tuple(dataset.native), tuple(dataset.alien)) == (native, alien)
    for number, frame in zip(native + alien, dataset.read(native + alien), strict=True):
        assert_is(frame, made(number))
    assert dataset.facts()["scanned"] == 0
    assert max(path.stat().st_size for path in dataset.path.glob("*.seg")) < 24_000  # 45 KB if packed ones were raw


def test_generations_are_apart(place):
    opened = Store(place)
    for generation in (b"one", b"two"):
        with opened.dataset("/sim1", generation) as dataset:
            dataset.write(**made_up(len(generation) + generation[0], 2, 1, True))
    assert sorted(opened.generations("/sim1")) == [b"one", b"two"]
    assert opened.generations("/sim2") == []
    assert tuple(opened.dataset("/sim1", b"one").alien) == (3 + ord("o"),)
    for directory in opened.directories():
        opened.remove(directory)
    assert opened.directories() == []
    with pytest.raises(StoreNotFoundError, match="/sim1"):
        opened.dataset("/sim1", b"one", create=False)


def test_a_write_shows_only_after_a_flush(place):
    one, two = Store(place).dataset("/s"), Store(place).dataset("/s")
    one.write(**made_up(1, 5, 1, True), native=True)
    assert not one.native
    one.flush()
    assert 1 in one.native and 1 not in two.native
    two.refresh()
    assert 1 in two.native
    assert_is(next(two.read([1])), made_up(1, 5, 1, True))
    assert not two.write(**made_up(1, 5, 1, True), native=False)
    assert one.written == 1 and two.written == 0


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"positions": np.zeros((3, 3))}, "positions must be a float32"),
        ({"velocities": np.zeros((2, 3), np.float32)}, "velocities must be a float32 array of shape"),
        ({"positions": np.zeros((3, 6), np.float32)[:, ::2]}, "positions must be C-contiguous"),
        ({"box": np.zeros(3, np.float32)}, "box must have 6 numbers"),
        ({"number": -1}, "frame -1"),
        ({"positions": np.zeros((0, 3), np.float32)}, "0 atoms"),
    ],
)
def test_arguments_are_refused_by_name(place, change, text):
    with Store(place).dataset("/s") as dataset, pytest.raises(ValueError, match=text):
        dataset.write(**(made_up(1, 3, 1, True) | change))


def test_names_are_refused(place):
    opened = Store(place)
    with pytest.raises(ValueError, match="4096"):
        opened.dataset("x" * 5000)
    with pytest.raises(ValueError, match="NUL"):
        opened.dataset("a\0b")
    with pytest.raises(ValueError, match="hexadecimal"):
        opened.open_directory("../../../../../../../../../etc/x")
    with pytest.raises(ValueError, match="letters"):
        opened.dataset("/s").attach("../evil", b"")


def unknown_version(path: Path, magic: bytes) -> None:
    assert path.read_bytes()[:4] == magic
    set_version(path, 7)


def test_a_segment_of_an_unknown_version_is_left_alone(place):
    with Store(place).dataset("/s") as dataset:
        dataset.write(**made_up(1, 3, 1, False))
    (file,) = dataset.path.glob("*.seg")
    unknown_version(file, b"BdhS")
    before = file.read_bytes()
    with Store(place).dataset("/s") as dataset:
        assert dataset.facts()["refused_segments"] == 1
        assert tuple(dataset.alien) == ()
        dataset.write(**made_up(2, 3, 1, False))
        dataset.flush()
        assert tuple(dataset.alien) == (2,)
    assert file.read_bytes() == before


def test_an_index_of_an_unknown_version_costs_no_frame(place):
    with Store(place).dataset("/s") as dataset:
        dataset.write(**made_up(1, 3, 1, False))
    (file,) = dataset.path.glob("*.idx")
    unknown_version(file, b"BdhX")
    with Store(place).dataset("/s") as dataset:
        dataset.write(**made_up(2, 3, 1, False))
        dataset.flush()
        assert tuple(dataset.alien) == (1, 2)


def test_a_dataset_or_store_of_an_unknown_version_is_refused(place):
    meta = Store(place).dataset("/s").path / "meta"
    content = meta.read_bytes()
    unknown_version(meta, b"BdhM")
    with pytest.raises(StoreVersionError, match="7"):
        Store(place).dataset("/s")
    meta.write_bytes(content)
    unknown_version(place / "identity", b"BdhI")
    with pytest.raises(StoreVersionError, match="version 7"):
        Store(place)


def test_unsafe_places_are_refused(place):
    place.mkdir(mode=0o700)
    for mode, whom in ((0o777, "anybody"), (0o770, "its group"), (0o720, "its group"), (0o702, "anybody")):
        place.chmod(mode)
        with pytest.raises(StoreRefusedError, match=rf"{place} may be written by {whom} \(mode {mode:o}\).*chmod go-w"):
            Store(place)
    place.chmod(0o777)
    with pytest.raises(StoreRefusedError, match="anybody"):
        Store(place)
    place.chmod(0o700)
    with pytest.raises(StoreNotFoundError):
        Store(place, create=False)
    Store(place)
    assert (place.stat().st_mode & 0o777) == 0o700


def test_another_users_store_is_refused(place):
    needs.root("to give a directory to another user")
    Store(place)
    os.chown(place, 65534, 65534)
    with pytest.raises(StoreRefusedError, match="65534"):
        Store(place)
    assert Store(place, read_only=True).directories() == []


def test_a_read_only_store_is_not_written(place):
    with Store(place).dataset("/s") as dataset:
        dataset.write(**made_up(1, 3, 1, False))
    (index,) = dataset.path.glob("*.idx")
    index.unlink()
    read_only = Store(place, read_only=True).dataset("/s", create=False)
    assert tuple(read_only.alien) == (1,)
    assert not index.exists()
    with pytest.raises(ValueError, match="open for writing"):
        read_only.write(**made_up(2, 3, 1, False))
