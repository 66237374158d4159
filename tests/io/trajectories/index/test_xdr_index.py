"""Indexes of frames in XTC and TRR files, and times of frames."""

import os
import pickle
import struct
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.io_samples import make

from himach.errors import TrajectoryError
from himach.io.trajectories.index import xdr_index
from himach.io.trajectories.index.timeline import InterpolatedTimes, even_times, first_backward
from himach.io.trajectories.index.walk import LongFile, extend_index, join_parts, read_index, walk_part
from himach.io.trajectories.index.xdr_index import (
    XdrIndex,
    are_packed,
    load_indexes,
    load_times,
    pack_indexes,
    pack_times,
)
from himach.io.trajectories.origin import Origin
from himach.io.trajectories.xdr_header import HEADER_BYTES, BadHeaderError, ShortError, parse_trr, parse_xtc


def small_frame(n_atoms: int, time: float, step: int = 0, payload: bytes = b"") -> bytes:
    """Return a frame of an XTC file with few atoms, whose coordinates are plain; `payload` are the first of them."""
    head = (
        struct.pack(">iiif", 1995, n_atoms, step, time)
        + struct.pack(">9f", *np.eye(3).ravel())
        + struct.pack(">i", n_atoms)
    )
    return head + payload.ljust(12 * n_atoms, b"\0")[: 12 * n_atoms]


def walked(path: Path, kind: str = "XTC") -> list[tuple[int, int, float, int]]:
    """Return first byte, end, time and content of each whole frame, by one walk over the file."""
    content = path.read_bytes()
    parse = parse_xtc if kind == "XTC" else parse_trr
    found, at = [], 0
    while at < len(content):
        try:
            header = parse(content[at : at + HEADER_BYTES])
        except (BadHeaderError, ShortError):
            break
        if at + header.size > len(content):
            break
        found.append((at, at + header.size, header.time, header.fields))
        at += header.size
    return found


def seen(index: XdrIndex) -> list[tuple[int, int, float, int]]:
    """Return the same of an index, which is asked for frames one by one."""
    numbers = np.arange(index.n_frames)
    times, sizes = index.times, index.sizes(numbers)
    found = [(*index.place(number), index.time(number), index.fields(number)) for number in numbers.tolist()]
    assert [time for _, _, time, _ in found] == times.tolist()
    assert [end - begin for begin, end, _, _ in found] == sizes.tolist()
    return found


def together(path: Path, n_parts: int, kind: str = "XTC") -> XdrIndex | None:
    """Walk over a file in so many parts."""
    file = LongFile(str(path), kind, path.stat().st_size, path.stat().st_ctime_ns)
    assert walk_part(file, n_parts, n_parts) is None
    return join_parts(file, [walk_part(file, part, n_parts) for part in range(n_parts)])


@given(st.data())
@settings(max_examples=60)
def test_parts_of_small_frames_are_the_whole(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "small.xtc"
    n_atoms = data.draw(st.integers(1, 9))
    times = data.draw(st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=40))
    content = b"".join(small_frame(n_atoms, time) for time in times)
    cut = data.draw(st.integers(0, len(content) // len(times) - 1))
    path.write_bytes(content[: len(content) - cut])
    expected = walked(path)
    index = together(path, data.draw(st.integers(1, 60)))
    if not expected:
        assert index is None
        return
    assert index is not None
    assert seen(index) == expected
    alone = read_index(str(path), "XTC")
    assert index.facts == alone.facts
    assert seen(pickle.loads(pickle.dumps(alone))) == expected


@pytest.mark.parametrize("kind", ["xtc", "trr"])
@pytest.mark.parametrize("parts", [2, 3, 7, 64, 1000])
def test_parts_of_packed_frames_are_the_whole(tmp_path, kind, parts):
    path = make(tmp_path / f"a.{kind}", [0.1 * i for i in range(50)], velocities=kind == "trr")
    index = together(path, parts, kind.upper())
    assert index is not None
    assert seen(index) == walked(path, kind.upper())


def test_coordinates_that_look_like_frames_are_not_taken_for_frames(tmp_path):
    """In each frame lies a header which says that the next one comes where the next frame's lies, and so on."""
    path = tmp_path / "junk.xtc"
    fake = small_frame(9, 77.0)[:56]
    frames = [small_frame(9, float(i), payload=bytes(8) + fake) for i in range(100)]
    path.write_bytes(b"".join([*frames, small_frame(9, 100.0)]))  # the last one is looked into for swallowed ones
    expected = walked(path)
    for parts in (2, 3, 5, 11, 100):
        index = together(path, parts)
        assert index is None or seen(index) == expected
    assert seen(read_index(str(path), "XTC")) == expected


@given(st.data())
@settings(max_examples=60)
def test_junk_anywhere_never_makes_another_index(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "junk.xtc"
    words = st.sampled_from([1995, 9, 0, 2023, 1993])
    frames = []
    for i in range(data.draw(st.integers(2, 12))):
        junk = data.draw(st.lists(words, max_size=27))
        frames.append(small_frame(9, float(i), payload=struct.pack(f">{len(junk)}i", *junk)))
    path.write_bytes(b"".join(frames))
    index = together(path, data.draw(st.integers(2, 20)))
    assert index is None or seen(index) == walked(path)


@pytest.mark.parametrize("damaged", [1, 5, 9])
def test_damage_is_left_to_one_walk(tmp_path, damaged):
    path = tmp_path / "a.xtc"
    frames = [small_frame(5, float(i)) for i in range(10)]
    frames[damaged] = b"\xff" + frames[damaged][1:]
    path.write_bytes(b"".join(frames))
    for parts in (2, 3, 10):
        index = together(path, parts)
        if damaged < 9:
            assert index is None
    if damaged < 9:
        with pytest.raises(TrajectoryError, match=f"frame {damaged} is damaged"):
            read_index(str(path), "XTC")
    else:
        assert read_index(str(path), "XTC").cut


@given(st.data())
@settings(max_examples=60)
def test_a_grown_file_is_walked_over_where_it_has_grown(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "grows.xtc"
    times = data.draw(st.lists(st.floats(-100, 100, width=32), min_size=2, max_size=40))
    frames = [small_frame(4, time) for time in times]
    content = b"".join(frames)
    sizes = sorted(data.draw(st.sets(st.integers(len(frames[0]), len(content)), min_size=2, max_size=5)))
    path.write_bytes(content[: sizes[0]])
    index = together(path, data.draw(st.integers(1, 5)))
    for size in sizes[1:]:
        path.write_bytes(content[:size])
        assert index is not None
        index = extend_index(index)
        assert index is not None
        assert seen(index) == walked(path)
        alone = read_index(str(path), "XTC")
        assert index.facts == alone.facts
    assert extend_index(index) is None  # it has not grown


def test_another_file_is_no_grown_one(tmp_path):
    path = tmp_path / "a.xtc"
    path.write_bytes(b"".join(small_frame(4, float(i)) for i in range(10)))
    index = read_index(str(path), "XTC")
    path.write_bytes(b"".join(small_frame(4, float(i) + 0.5) for i in range(12)))
    assert extend_index(index) is None
    path.write_bytes(b"".join(small_frame(5, float(i)) for i in range(12)))
    assert extend_index(index) is None
    assert read_index(str(path), "XTC").n_frames == 12


def test_frames_that_follow_while_a_file_is_walked_over_are_left_out(tmp_path):
    path = tmp_path / "a.xtc"
    path.write_bytes(b"".join(small_frame(4, float(i)) for i in range(10)))
    size, expected = path.stat().st_size, walked(path)
    with open(path, "ab") as file:
        file.write(b"".join(small_frame(4, float(i)) for i in range(10, 15)))
    before = LongFile(str(path), "XTC", size, path.stat().st_ctime_ns)
    index = join_parts(before, [walk_part(before, part, 3) for part in range(3)])
    if index is not None:  # frames behind the last whole one may be taken for what a damaged one has swallowed
        assert seen(index) == expected
    assert os.path.getsize(path) > size


TIMES = [0.5 * i for i in range(30)] + [20.0 + i**2 for i in range(5)]


@pytest.fixture(scope="module", params=[0, 1 << 20], ids=["mapped", "small"])
def files(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("kept")
    paths = [make(folder / name, TIMES) for name in ("a.xtc", "b.trr")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(xdr_index, "SMALL_BYTES", request.param)
        yield {str(path): read_index(str(path), path.suffix[1:].upper()) for path in paths}


@pytest.fixture(scope="module")
def stored(files, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("store") / "x-index"
    path.write_bytes(b"".join(pack_indexes(files)))
    return path


def test_indexes_come_back_from_memory_and_mapped(files, stored):
    for content in (stored.read_bytes(), str(stored)):
        indexes = load_indexes(content)
        assert {path: (index.facts, seen(index)) for path, index in indexes.items()} == {
            path: (index.facts, seen(index)) for path, index in files.items()
        }
        assert are_packed(content, files)
        assert not are_packed(content, {path: files[path] for path in list(files)[:1]})
    columns = np.load(stored, mmap_mode="r")
    assert columns["time"][: len(TIMES)].tolist() == TIMES
    assert load_indexes(None) == load_indexes(str(stored) + "-none") == {}


@given(st.data())
@settings(max_examples=200)
def test_a_damaged_index_is_missing(files, stored, tmp_path_factory, data):
    whole = stored.read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    bad = bytearray(whole)
    bad[at] ^= data.draw(st.integers(1, 255))
    damaged = tmp_path_factory.getbasetemp() / "x-index"
    for content in (bytes(bad), whole[:at]):
        damaged.write_bytes(content)
        for source in (content, str(damaged)):
            for path, index in load_indexes(source).items():
                assert seen(index) == seen(files[path])
    assert not are_packed(whole[:at], files)


def test_rows_that_changed_places_are_noticed(files, stored, tmp_path):
    """As where a file system brings a block of another place: the sum of all words is right."""
    content = stored.read_bytes()
    begin = content.index(b"\n") + 1
    row = xdr_index.COLUMNS.itemsize
    swapped = content[:begin] + content[begin + row : begin + 2 * row] + content[begin : begin + row]
    damaged = tmp_path / "x-index"
    damaged.write_bytes(swapped + content[begin + 2 * row :])
    assert damaged.stat().st_size == len(content) and damaged.read_bytes() != content
    assert load_indexes(str(damaged)) == load_indexes(damaged.read_bytes()) == {}


def test_a_replaced_index_stays_mapped(files, stored, tmp_path):
    path, copy = next(iter(files)), tmp_path / "x-index"
    copy.write_bytes(stored.read_bytes())
    before = load_indexes(str(copy))[path]
    copy.unlink()  # as another job that stores the index of a file that has grown
    copy.write_bytes(b"".join(pack_indexes({"/another/file": files[path], **files})))
    assert seen(before) == seen(files[path])


@pytest.mark.parametrize("times", [even_times(10, 0.5, 3.0, 7.0), np.array([1.0, 2.0, 4.0])])
def test_times(times):
    content = pack_times(times)
    assert load_times(content, len(times)).tobytes() == times.tobytes()
    assert load_times(content, len(times) + 1) is None
    assert load_times(content[: len(content) // 2], len(times)) is None
    assert load_times(None, len(times)) is None


@given(st.integers(1, 60), st.floats(-10, 10), st.floats(-10, 10), st.floats(-1000, 1000))
def test_even_times_are_those_of_scalars(n, step, shift, offset):
    assert even_times(n, step, shift, offset).tolist() == [(number + shift) * step + offset for number in range(n)]


@pytest.mark.parametrize(("times", "number"), [([0.0, 1.0, 2.0], None), ([3.0], None), ([0.0, 2.0, 1.0], 2)])
def test_time_runs_backwards_at_a_frame(times, number):
    assert first_backward(np.array(times)) == number


def test_times_between_known_frames_are_interpolated():
    times = InterpolatedTimes(9, [2, 4, 8], [1.0, 5.0, 7.0])
    expected = np.interp(np.arange(9), [2, 4, 8], [1.0, 5.0, 7.0])
    assert len(times) == 9 and times.first_backward() is None
    assert times[np.arange(9)].tolist() == expected.tolist()
    assert (times[3], times[4:7].tolist()) == (expected[3], expected[4:7].tolist())
    assert InterpolatedTimes(9, [2, 4, 8], [1.0, 0.0, 7.0]).first_backward() == 3


@given(st.integers(2, 400), st.sampled_from([0.1, 1.0, 2.5]), st.integers(1, 7), st.booleans(), st.booleans())
def test_the_time_between_selected_frames_is_that_of_all_or_none(n, dt, stride, turned, bent):
    times = np.float32(np.arange(n) * dt).astype(np.float64)
    if bent:
        times[n // 2 :] += 5 * dt
    frames = range(n)[:: -stride if turned else stride]
    between = np.diff(times[list(frames)])
    spacing = Origin.dt(SimpleNamespace(known_times=times), frames)
    if len(frames) < 2 or (bent and np.ptp(between) > dt):
        assert spacing is None
    else:
        assert spacing == pytest.approx(between[0], rel=1e-4)
