"""Rereading a store names what is bad, and nothing else."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.shelves import fill, place_of, positions_of, segment_files

from himach.io.frame_source import ReadOptions
from himach.io.store.bodhi import crc32c
from himach.io.store.store import Store
from himach.io.store.verify import drop, verify


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)


def look(place: Path):
    return verify(Store(place, read_only=True))


def test_a_sound_store_is_sound(tmp_path):
    fill(tmp_path / "store", range(30), native=True, segment_bytes=64_000)
    fill(tmp_path / "store", range(30, 40))
    dropping = fill(tmp_path / "store", range(5), "other")
    dropping.drop([2])
    found = look(tmp_path / "store")
    assert found.bad == []
    assert found.frames == 45


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


def on_grid(number: int) -> np.ndarray:
    """Positions that are packed."""
    steps = np.random.default_rng(number).integers(0, 3000, (200, 3))
    return steps.astype(np.float32) * np.float32(0.001) * np.float32(10)


def rewrite_block(path: Path, offset: int, change: Callable[[bytearray], None]) -> None:
    """Change the one block of a record, and make all checksums right again."""
    data = bytearray(path.read_bytes())
    (size,) = struct.unpack_from("<I", data, offset + 112)
    block = data[offset + 128 : offset + 128 + size]
    change(block)
    data[offset + 128 : offset + 128 + size] = block
    struct.pack_into("<I", data, offset + 116, crc32c(block))
    head = data[offset : offset + 120]
    struct.pack_into("<I", data, offset + 12, crc32c(head[16:], crc32c(bytes(4), crc32c(head[:12]))))
    path.write_bytes(data)


@pytest.mark.parametrize("byte", [0, 4, 6, 16, 20])
def test_a_packed_block_that_is_right_by_checksum_and_cannot_be_unpacked_is_named(tmp_path, byte):
    dataset = Store(tmp_path / "store").dataset("packed", b"")
    for number in range(6):
        dataset.write(number, 0.0, None, on_grid(number), on_grid(number) if number % 2 else None)
    dataset.close()
    assert look(tmp_path / "store").bad == []
    path, offset, length = place_of(dataset, 4)
    assert length < 12 * 200

    def change(block: bytearray) -> None:
        block[byte] ^= 129

    rewrite_block(path, offset, change)
    found = look(tmp_path / "store")
    (bad,) = found.bad
    assert (bad.dataset, bad.frame, bad.segment) == ("packed", 4, path.name)
    assert bad.reason == "block 1 of 1 is damaged: its checksum is right, but it cannot be unpacked"
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


def test_a_segment_that_was_cut_off_is_named_by_its_frames(tmp_path):
    dataset = fill(tmp_path / "store", range(10), native=True)
    path, offset, _ = place_of(dataset, 8)
    with open(path, "r+b") as file:
        file.truncate(offset + 100)
    found = look(tmp_path / "store")
    assert sorted(bad.frame for bad in found.bad) == [8, 9]
    assert all("cut off" in bad.reason for bad in found.bad)
    assert found.frames == 8


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
    data = bytearray(path.read_bytes())
    data[4:6] = struct.pack("<H", 9)
    data[12:16] = bytes(4)
    data[12:16] = struct.pack("<I", crc32c(bytes(data[:64])))
    path.write_bytes(data)
    (bad,) = look(tmp_path / "store").bad
    assert "version 9" in bad.reason
    assert drop(Store(tmp_path / "store"), [bad]) == 0
    assert path.exists()


def test_verifying_is_no_use_of_a_dataset(tmp_path):
    dataset = fill(tmp_path / "store", range(3))
    os.utime(dataset.path / "meta", (5, 5))
    look(tmp_path / "store")
    assert (dataset.path / "meta").stat().st_mtime == 5
