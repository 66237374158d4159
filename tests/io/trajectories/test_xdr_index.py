"""Indexes of frames in XTC and TRR files, and times of frames."""

import pickle
import struct
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.io_samples import make

from himach.io.trajectories import xdr_index
from himach.io.trajectories.origin import Origin
from himach.io.trajectories.timeline import InterpolatedTimes
from himach.io.trajectories.xdr_header import HEADER_BYTES, BadHeaderError, ShortError, parse_trr, parse_xtc
from himach.io.trajectories.xdr_index import (
    LongFile,
    XdrIndex,
    are_packed,
    extend_index,
    join_parts,
    load_indexes,
    pack_indexes,
    read_index,
    walk_part,
)


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


def test_times_between_known_frames_are_interpolated():
    times = InterpolatedTimes(9, [2, 4, 8], [1.0, 5.0, 7.0])
    expected = np.interp(np.arange(9), [2, 4, 8], [1.0, 5.0, 7.0])
    assert len(times) == 9 and times.first_backward() is None
    assert times[np.arange(9)].tolist() == expected.tolist()
    assert (times[3], times[4:7].tolist()) == (expected[3], expected[4:7].tolist())
    assert InterpolatedTimes(9, [2, 4, 8], [1.0, 0.0, 7.0]).first_backward() == 3


SPACINGS = st.sampled_from([(0, 0.1), (0, 1.0), (0, 2.5), (2e4, 0.004), (2e5, 0.06), (1e6, 1.2), (3e6, 4.4)])


@given(st.integers(2, 400), SPACINGS, st.integers(1, 7), st.booleans(), st.booleans())
def test_the_time_between_selected_frames_is_that_of_all_or_none(n, spacing, stride, turned, bent):
    begin, dt = spacing
    times = np.float32(begin + np.arange(n) * dt).astype(np.float64)
    if bent:
        times[n // 2 :] += 5 * dt
    frames = range(n)[:: -stride if turned else stride]
    between = np.diff(times[list(frames)])
    found = Origin.dt(SimpleNamespace(known_times=times), frames)
    if len(frames) < 2 or (bent and np.ptp(between) > dt):
        assert found is None
    else:
        rounding = float(np.spacing(np.float32(times[-1]))) / len(between)
        assert found == pytest.approx(float(between.mean()), rel=1e-4, abs=rounding)
