"""Damage to a store costs misses only, and is found by verify."""

import os
import struct
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from support.shelves import fill, flip, on_grid, place_of, positions_of, segment_files, set_version

from himach.io.frame_source import ReadOptions
from himach.io.store.bodhi import crc32c
from himach.io.store.store import Dataset, Store
from himach.io.store.verify import drop, verify

positions = partial(positions_of, n_atoms=3)


def write(dataset: Dataset, numbers: range) -> None:
    for number in numbers:
        dataset.write(number, float(number), None, positions(number))
    dataset.flush()


def served(dataset: Dataset, n: int) -> set[int]:
    """The frames that are read; each must be right. What is listed and not read must have been found out as damaged."""
    found = set()
    for number, frame in zip(range(n), dataset.read(np.arange(n)), strict=True):
        if frame is not None:
            assert frame.number == number and frame.time == number
            assert np.array_equal(frame.positions, positions(number)), number
            found.add(number)
    assert set(dataset.alien) | set(dataset.native) == found
    return found


@pytest.fixture
def made(place):
    """The one segment of a store of eight frames."""
    with Store(place).dataset("/s") as dataset:
        write(dataset, range(8))
        (segment,) = dataset.path.glob("*.seg")
    return segment


def test_holes_are_remembered(place, made):
    flip(made, 64 + 192 * 2 + 20)
    made.with_suffix(".idx").unlink()
    first = Store(place).dataset("/s")
    assert served(first, 8) == set(range(8)) - {2}
    assert first.facts()["scanned"] > 0
    again = Store(place).dataset("/s")
    assert served(again, 8) == set(range(8)) - {2}
    assert again.facts()["scanned"] == 0


def test_files_that_are_nothing_do_no_harm(place, made):
    directory = made.parent
    (directory / "a-0000000000000001.seg").write_bytes(b"")
    (directory / "a-0000000000000002.seg").write_bytes(os.urandom(1000))
    (directory / "a-0000000000000003.idx").write_bytes(b"x")
    (directory / "n-0000000000000004.seg").mkdir()
    (directory / "n-xyz.seg").write_bytes(b"x")
    (directory / "n-0000000000000005.seg").symlink_to("/nonexistent")
    for _ in range(2):
        with Store(place).dataset("/s") as dataset:
            assert served(dataset, 9) >= set(range(8))
            write(dataset, range(8, 9))


@pytest.mark.parametrize("sparse", [(".idx",), (".seg",), (".idx", ".seg")])
def test_a_file_of_64_gib_without_content_is_no_more_than_damage(place, made, sparse):
    for suffix in sparse:
        os.truncate(made.with_suffix(suffix), 64 << 30)
    program = (
        "import resource, sys; from himach.io.store.store import Store; import numpy as np\n"
        "resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))\n"
        f"dataset = Store({str(made.parents[1])!r}).dataset('/s')\n"
        "sys.exit(sum(frame is not None for frame in dataset.read(np.arange(8))))"
    )
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    ended = subprocess.run([sys.executable, "-P", "-c", program], env=environ, timeout=20, check=False)
    assert ended.returncode == 8
    again = Store(made.parents[1]).dataset("/s")
    write(again, range(8, 10))
    assert served(again, 10) == set(range(10))


def look(place: Path):
    return verify(Store(place, read_only=True))


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("within", [0, 20, 100, 115, 200, 3000])
@pytest.mark.parametrize("number", [0, 17, 29])
def test_a_flipped_byte_is_named_by_dataset_frame_and_segment(tmp_path, within, number, native):
    dataset = fill(tmp_path / "store", range(30), native=native, segment_bytes=64_000)
    path, offset, _ = place_of(dataset, number)
    flip(path, offset + within)
    (bad,) = look(tmp_path / "store").bad
    assert (bad.dataset, bad.frame, bad.segment, bad.native) == ("/made/up.xtc", number, path.name, native)
    assert "damaged" in bad.reason
    assert drop(Store(tmp_path / "store"), [bad]) == 1
    assert look(tmp_path / "store").bad == []
    after = Store(tmp_path / "store").dataset("/made/up.xtc", b"one")
    assert number not in after.native | after.alien
    assert len(after.native | after.alien) == 29


def flip_in_block(path: Path, offset: int, byte: int) -> None:
    """Change a byte of the one block of a record, and make all checksums right again."""
    data = bytearray(path.read_bytes())
    (size,) = struct.unpack_from("<I", data, offset + 112)
    data[offset + 128 + byte] ^= 129
    struct.pack_into("<I", data, offset + 116, crc32c(data[offset + 128 : offset + 128 + size]))
    head = data[offset : offset + 120]
    struct.pack_into("<I", data, offset + 12, crc32c(head[16:], crc32c(bytes(4), crc32c(head[:12]))))
    path.write_bytes(data)


@pytest.mark.parametrize("byte", [0, 4, 6, 16, 20])
def test_a_packed_block_that_is_right_by_checksum_and_cannot_be_unpacked_is_named(tmp_path, byte):
    dataset = Store(tmp_path / "store").dataset("packed", b"")
    for number in range(6):
        packed = on_grid(number, (200, 3), 3000)
        dataset.write(number, 0.0, None, packed, packed if number % 2 else None)
    dataset.close()
    assert look(tmp_path / "store").bad == []
    path, offset, length = place_of(dataset, 4)
    assert length < 12 * 200

    flip_in_block(path, offset, byte)
    found = look(tmp_path / "store")
    (bad,) = found.bad
    assert (bad.dataset, bad.frame, bad.segment) == ("packed", 4, path.name)
    assert bad.reason == "it is damaged: its checksums are right, but it cannot be unpacked"
    assert found.frames == 5
    frames = list(Store(tmp_path / "store").dataset("packed", b"").read(range(6), ReadOptions(direct="on")))
    assert [frame is None for frame in frames] == [number == 4 for number in range(6)]


def test_a_copy_that_others_hide_is_read_too(tmp_path):
    alien = fill(tmp_path / "store", range(10))
    fill(tmp_path / "store", range(10), native=True)
    flip(segment_files(alien)[0], 64 + 300)
    (bad,) = look(tmp_path / "store").bad
    assert bad.frame == 0
    assert not bad.native


@pytest.mark.parametrize("size", [0, 30, 200])
def test_a_segment_that_was_cut_off_is_named_by_its_frames(tmp_path, size):
    dataset = fill(tmp_path / "store", range(3), native=True)
    os.truncate(segment_files(dataset)[0], size)
    assert [bad.frame for bad in look(tmp_path / "store").bad] == [0, 1, 2]


def test_without_an_index_what_is_damaged_is_found_all_the_same(tmp_path):
    dataset = fill(tmp_path / "store", range(10), native=True)
    path, offset, length = place_of(dataset, 4)
    path.with_suffix(".idx").unlink()
    flip(path, offset + 300)
    found = look(tmp_path / "store")
    (bad,) = found.bad
    assert bad.frame is None
    assert bad.reason == f"{length} bytes without a valid record"
    assert found.frames == 9


def test_frames_that_a_writer_is_about_to_acknowledge_are_no_damage(tmp_path):
    dataset = Store(tmp_path / "store").dataset("busy", b"")
    for number in range(20):
        dataset.write(number, 0.0, None, positions_of(number), native=True)
        if number == 9:
            dataset.flush()
    with open(segment_files(dataset)[0], "ab") as file:
        file.write(b"BdhR but torn")
    assert look(tmp_path / "store").bad == []
    dataset.close()


def test_a_segment_of_another_version_is_named_and_left_alone(tmp_path):
    dataset = fill(tmp_path / "store", range(10), native=True)
    path = segment_files(dataset)[0]
    set_version(path, 9)
    (bad,) = look(tmp_path / "store").bad
    assert "format version" in bad.reason
    assert drop(Store(tmp_path / "store"), [bad]) == 0
    assert path.exists()


def test_a_directory_that_is_removed_meanwhile_is_no_damage(tmp_path, monkeypatch):
    fill(tmp_path / "store", range(3))
    monkeypatch.setattr(Store, "directories", lambda store: [f"{1:032x}-{2:032x}"])
    assert verify(Store(tmp_path / "store")).bad == []


def test_verifying_is_no_use_of_a_dataset(tmp_path):
    dataset = fill(tmp_path / "store", range(3))
    os.utime(dataset.path / "meta", (5, 5))
    look(tmp_path / "store")
    assert (dataset.path / "meta").stat().st_mtime == 5
