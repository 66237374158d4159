"""A slow, obvious reader of frame stores, written from docs/formats.md alone: the oracle of the C library's tests.

`frames(directory)` returns what one dataset directory holds by its segments, `indexed(directory)` what its indexes say.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

VERSION = 1
UNIT = 64
FIELDS = ("positions", "velocities", "forces")


def make_table() -> list[int]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ 0x82F63B78 if crc & 1 else crc >> 1
        table.append(crc)
    return table


TABLE = make_table()


def crc32c(data: bytes, crc: int = 0) -> int:
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ TABLE[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF


def hash_bytes(data: bytes) -> int:
    mask = (1 << 64) - 1
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 & mask
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & mask
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & mask
    return value ^ value >> 33


def round_up(value: int) -> int:
    return (value + UNIT - 1) // UNIT * UNIT


def header(data: bytes, magic: bytes) -> tuple[int, int, bytes] | None:
    """(version, type, the header with its tables) if a whole header with the right checksum begins here."""
    if len(data) < 16 or data[:4] != magic:
        return None
    version, kind, size, crc = struct.unpack_from("<HHII", data, 4)
    if size < 16 or size > len(data):
        return None
    body = data[:size]
    if crc != crc32c(body[:12] + bytes(4) + body[16:]):
        return None
    return version, kind, body


@dataclass
class Slow:
    number: int
    kind: int
    time: float
    box: np.ndarray | None
    positions: np.ndarray
    velocities: np.ndarray | None
    forces: np.ndarray | None
    ids: np.ndarray | None
    segment: int
    offset: int
    length: int


@dataclass
class Tombstone:
    number: int
    segment: int
    offset: int


def meta(directory: Path) -> tuple[bytes, bytes]:
    """Name and generation of a dataset."""
    found = header((directory / "meta").read_bytes(), b"BdhM")
    assert found is not None and found[0] == VERSION
    n_name, n_generation = struct.unpack_from("<II", found[2], 16)
    name = found[2][24 : 24 + n_name]
    generation = found[2][24 + n_name :]
    assert len(generation) == n_generation
    return name, generation


def record(data: bytes, at: int, segment: int, dataset: int, generation: int) -> tuple[Slow | Tombstone, int] | None:
    """The valid record at offset `at` of a segment, and its length."""
    found = header(data[at:], b"BdhR")
    if found is None or found[0] != VERSION:
        return None
    _, kind, head = found
    number, time, *rest = struct.unpack_from("<QdQQQQQIIBBBB", head, 16)
    (
        in_dataset,
        in_generation,
        in_segment,
        offset,
        payload,
        n_atoms,
        block_atoms,
        native_or_alien,
        fields,
        encoding,
        has_box,
    ) = rest
    box = np.frombuffer(head, "<f4", 6, 84)
    (n_blocks,) = struct.unpack_from("<I", head, 108)
    if (in_dataset, in_generation, in_segment, offset) != (dataset, generation, segment, at):
        return None
    if kind == 2:
        target_segment, target_offset = struct.unpack_from("<QQ", head, 112)
        return Tombstone(number, target_segment, target_offset), 128
    assert kind == 1 and encoding in (0, 1)
    start = at + round_up(112 + 8 * n_blocks)
    length = round_up(112 + 8 * n_blocks) + round_up(payload)
    if at + length > len(data):
        return None
    place = start
    blocks = []
    for block in range(n_blocks):
        size, crc = struct.unpack_from("<II", head, 112 + 8 * block)
        if crc32c(data[place : place + size]) != crc:
            return None
        blocks.append(data[place : place + size])
        place += size
    assert place == start + payload
    arrays = {}
    per_field = -(-n_atoms // block_atoms)
    for bit, name in enumerate(FIELDS):
        arrays[name] = None
        if fields >> bit & 1:
            mine, blocks = blocks[:per_field], blocks[per_field:]
            if encoding == 1 and name == "positions":
                arrays[name] = np.concatenate([unpacked(block) for block in mine])
            else:
                arrays[name] = np.frombuffer(b"".join(mine), "<f4").reshape(n_atoms, 3)
    arrays["ids"] = None
    if fields & 8:
        told, *others = blocks
        assert not any(others)
        found_ids = ids(data, told, segment, dataset, generation)
        assert len(found_ids) == n_atoms
        arrays["ids"] = np.array(sorted(found_ids))
    assert n_blocks == fields.bit_count() * -(-n_atoms // block_atoms)
    return Slow(
        number, native_or_alien, time, box if has_box else None, segment=segment, offset=at, length=length, **arrays
    ), length


def ids(data: bytes, told: bytes, segment: int, dataset: int, generation: int) -> set[int]:
    """The atoms that the bytes `told` tell in a segment."""
    coding, count, offset = struct.unpack_from("<BxxxIQ", told)
    if coding == 2:
        bits = [8 * at + bit for at, byte in enumerate(told[16:]) for bit in range(8) if byte >> bit & 1]
        assert len(bits) == count
        return {offset + bit for bit in bits}
    found: set[int] = set()
    numbers = varints(told[16:])
    following = 0
    while len(found) < count:
        first = following + next(numbers)
        following = first + next(numbers) + 1
        found |= set(range(first, following))
    assert len(found) == count
    if coding == 1:
        return found
    assert coding == 3 and offset < 2**40
    base = record(data, offset, segment, dataset, generation)
    assert base is not None and isinstance(base[0], Slow) and base[0].ids is not None
    return found ^ set(base[0].ids.tolist())


def varints(data: bytes):
    """The numbers in bytes of seven bits each, the lowest first; the highest bit says that there are more."""
    value = shift = 0
    for byte in data:
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            yield value
            value = shift = 0


def unpacked(block: bytes) -> np.ndarray:
    """The positions of a packed block, float32 (atoms, 3)."""
    n_atoms, n_sections, n_patches, unit, scale = struct.unpack_from("<IHHff", block)
    at = 16
    sections = []
    for _ in range(n_sections):
        molecules, sites = struct.unpack_from("<II", block, at)
        least = struct.unpack_from(f"<{3 * sites}i", block, at + 8)
        widths = struct.unpack_from(f"<{3 * sites}B", block, at + 8 + 12 * sites)
        sections.append((molecules, sites, least, widths))
        at += 8 + 12 * sites + -(-3 * sites // 4) * 4
    patches = [struct.unpack_from("<Iiii", block, at + 16 * i) for i in range(n_patches)]
    at = -(-(at + 16 * n_patches) // 32) * 32
    steps: list[list[int]] = []
    for molecules, sites, least, widths in sections:
        if sites == 0:
            steps += [[0, 0, 0]] * molecules
            continue
        columns = []
        for low, width in zip(least, widths, strict=True):
            rows = -(-molecules // 8)
            words = -(-rows * width // 32)
            columns.append([low + value for value in stream(block[at : at + 32 * words], molecules, width)])
            at += 32 * words
        for molecule in range(molecules):
            first = [columns[axis][molecule] for axis in range(3)]
            steps.append(first)
            for site in range(1, sites):
                steps.append([first[axis] + columns[3 * site + axis][molecule] for axis in range(3)])
    for atom, *step in patches:
        steps[atom] = step
    assert len(steps) == n_atoms and block[at:] == bytes(32)
    wrapped = (np.array(steps, dtype=np.int64) + 2**31) % 2**32 - 2**31
    return wrapped.astype(np.float32) * np.float32(unit) * np.float32(scale)


def stream(words: bytes, n: int, width: int) -> list[int]:
    """The n values of a stream: value i is in lane i % 8, of which each is one number of all its bits."""
    lanes = [int.from_bytes(np.frombuffer(words, "<u4")[lane::8].tobytes(), "little") for lane in range(8)]
    return [lanes[i % 8] >> (i // 8 * width) & ((1 << width) - 1) for i in range(n)]


def segment_id(path: Path) -> int:
    return int(path.name[2:18], 16)


def frames(directory: Path) -> dict[tuple[int, int], list[Slow]]:
    """(kind, frame number) -> valid copies that no tombstone names, from the segments alone."""
    name, generation = meta(directory)
    keys = hash_bytes(name), hash_bytes(generation)
    found: list[Slow] = []
    dropped = set()
    for path in sorted(directory.glob("*.seg")):
        data = path.read_bytes()
        at = 64
        while at < len(data):
            valid = record(data, at, segment_id(path), *keys)
            if valid is None:
                at += UNIT
                continue
            if isinstance(valid[0], Tombstone):
                dropped.add((valid[0].segment, valid[0].offset))
            else:
                found.append(valid[0])
            at += valid[1]
    held: dict[tuple[int, int], list[Slow]] = {}
    for frame in found:
        if (frame.segment, frame.offset) not in dropped:
            held.setdefault((frame.kind, frame.number), []).append(frame)
    return held


def indexed(path: Path) -> list[tuple[int, int, int, int]]:
    """(type, number, offset, length) of the valid entries of an index file."""
    data = path.read_bytes()
    assert header(data[:64], b"BdhX") is not None
    entries = []
    for at in range(64, len(data) - 31, 32):
        number, offset, length, kind, _, _, crc = struct.unpack_from("<QQQBBHI", data, at)
        if crc == crc32c(struct.pack("<Q", segment_id(path)) + data[at : at + 28]):
            entries.append((kind, number, offset, length))
    return entries
