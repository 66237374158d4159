"""Slices become frames in C, as a slow, obvious twin puts them together atom by atom."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from himach.io.push.held_slices import find_slices
from himach.io.store.bodhi import GatherHandle
from himach.io.store.store import Store

from .test_assembling import N_ATOMS, positions_of, push, shared_out

BOX = (9.0, 8.0, 7.0, 90.0, 90.0, 90.0)


class Part(NamedTuple):
    """A slice, as it is packed for another process."""

    rank: int
    ids: list[int]
    time: float = 1.0
    has: int = 1  # box 1, velocities 2, forces 4
    of: int = 0
    number: int = 3

    @property
    def rows(self) -> np.ndarray:
        return np.random.default_rng(self.of).normal(size=(20, 3)).astype(np.float32)[self.ids]

    def packed(self) -> bytes:
        ids = struct.pack(f"<B3xIQ{len(self.ids)}I", 4, len(self.ids), 0, *self.ids)
        box = BOX if self.has & 1 else (0.0,) * 6
        head = struct.pack("<qqqd6fII", self.number, self.rank, len(self.ids), self.time, *box, self.has, len(ids))
        fields = [self.rows, self.rows * 2, self.rows * 3]
        there = [True, self.has & 2, self.has & 4]
        return head + ids + b"".join(rows.tobytes() for rows, has in zip(fields, there, strict=True) if has)


def slow(parts: Sequence[Part], n_atoms: int) -> dict[int, tuple] | None:
    """What each atom has; None if the frame is not whole."""
    atoms: dict[int, tuple] = {}
    for part in parts:
        if (part.time, part.has) != (parts[0].time, parts[0].has):
            return None
        for atom, row in zip(part.ids, part.rows.tolist(), strict=True):
            if atom >= n_atoms or atoms.setdefault(atom, (part.rank, tuple(row))) != (part.rank, tuple(row)):
                return None
    for rank in {part.rank for part in parts}:  # a slice that comes twice is the same
        if len({tuple(part.ids) for part in parts if part.rank == rank}) > 1:
            return None
    return {atom: row for atom, (_, row) in atoms.items()} if len(atoms) == n_atoms else None


def bytes_of(parts: Sequence[Part]) -> np.ndarray:
    return np.frombuffer(b"".join(part.packed() for part in parts), np.uint8).copy()


def joined(place, parts: Sequence[Part], n_atoms: int) -> tuple[Store, list[int], dict[int, tuple[str, bool]]]:
    gather = GatherHandle(n_atoms, 2, 1)
    numbers = np.array(sorted({part.number for part in parts}), np.int64)
    gather.begin(numbers, np.ones(len(numbers), np.int32))
    gather.take(bytes_of(parts))
    store = Store(place)
    dataset = store.dataset("whole")
    written: list[int] = []
    bad: dict[int, tuple[str, bool]] = {}
    assert not dataset.write_gathered(gather, 100, written, bad)
    dataset.flush()
    dataset.close()
    return store, written, bad


@settings(max_examples=200)
@given(st.data())
def test_joined_as_the_slow_twin_does(tmp_path_factory, data):
    n_atoms, ranks = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 3))
    has = data.draw(st.integers(0, 7))
    owner = [data.draw(st.integers(0, ranks - 1)) for _ in range(n_atoms)]
    parts = [Part(rank, [atom for atom in range(n_atoms) if owner[atom] == rank], has=has) for rank in range(ranks)]
    parts = [part for part in parts if part.ids]
    for _ in range(data.draw(st.integers(0, 2))):
        at = data.draw(st.integers(0, len(parts) - 1))
        part = parts[at]
        change = data.draw(st.sampled_from(["double", "lose", "rank", "drop", "add", "time", "has", "content"]))
        if change == "double":
            parts.append(part)
        elif change == "lose" and len(parts) > 1:
            del parts[at]
        elif change == "rank":
            parts.append(part._replace(rank=9))
        elif change == "drop" and len(part.ids) > 1:
            parts[at] = part._replace(ids=part.ids[1:])
        elif change == "add":
            parts[at] = part._replace(ids=sorted({*part.ids, data.draw(st.integers(0, n_atoms))}))
        elif change == "time":
            parts[at] = part._replace(time=2.0)
        elif change == "has":
            parts[at] = part._replace(has=data.draw(st.integers(0, 7)))
        elif change == "content":
            parts.append(part._replace(of=1))
    parts = data.draw(st.permutations(parts))
    expected = slow(parts, n_atoms)
    store, written, bad = joined(tmp_path_factory.mktemp("joined"), parts, n_atoms)
    assert (written, list(bad)) == (([3], []) if expected is not None else ([], [3]))
    if expected is not None:
        frame = next(store.dataset("whole").read([3]))
        rows = np.array([expected[atom] for atom in range(n_atoms)], np.float32)
        assert np.array_equal(frame.positions, rows) and frame.time == parts[0].time
        assert (frame.box is not None) == bool(parts[0].has & 1)
        for field, of, factor in ((frame.velocities, 2, 2), (frame.forces, 4, 3)):
            assert (field is not None) == bool(parts[0].has & of)
            assert field is None or np.array_equal(field, rows * factor)


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ([Part(1, [1, 2]), Part(0, [0, 1])], "atom 1 is in the slices of rank 0 and rank 1"),
        ([Part(0, [0]), Part(1, [2])], "1 atoms are in no slice, atom 1 first"),
        ([Part(1, [2], time=2), Part(0, [0, 1])], "rank 0 and rank 1 give it the times 1 and 2 ps"),
        ([Part(0, [0, 1]), Part(1, [2], has=0)], "rank 0 and rank 1 give it boxes that differ"),
        ([Part(0, [0, 1]), Part(1, [2], has=3)], "of rank 0 and rank 1 one gives velocities and one gives none"),
        ([Part(0, [0, 1], has=5), Part(1, [2])], "of rank 0 and rank 1 one gives forces and one gives none"),
        ([Part(0, [0, 1, 2]), Part(0, [0, 1, 2], of=1)], "rank 0 has pushed two slices that differ"),
        ([Part(0, [0, 1]), Part(0, [2])], "rank 0 has pushed two slices that differ"),
        ([Part(0, [0, 1, 2]), Part(0, [0, 1])], "rank 0 has pushed two slices that differ"),
        ([Part(0, [0, 1, 2]), Part(0, [0, 1, 2], time=2)], "rank 0 has pushed two slices that differ"),
        ([Part(0, [0, 1, 2, 3])], "rank 0 has pushed atom 3 of 3"),
    ],
)
def test_what_is_not_whole_is_told_and_costs_no_other(tmp_path, parts, why):
    whole = [Part(0, [0, 1, 2], number=number, has=0) for number in (2, 4)]
    _, written, bad = joined(tmp_path, [whole[0], *parts, whole[1]], 3)
    assert written == [2, 4] and bad == {3: (why, False)}


def test_what_is_cut_short_is_refused():
    content = bytes_of([Part(0, [0, 5, 9]), Part(1, [1])])
    for size in range(1, len(content)):
        gather = GatherHandle(20, 2, 0)
        gather.begin(np.array([3], np.int64), np.zeros(1, np.int32))
        if size != len(Part(0, [0, 5, 9]).packed()):
            with pytest.raises(ValueError, match="cut short"):
                gather.take(content[:size].copy())
    gather.begin(np.array([4], np.int64), np.zeros(1, np.int32))
    with pytest.raises(ValueError, match="not of this round"):
        gather.take(content)


def test_what_is_packed_for_others_is_what_they_take(tmp_path):
    """Read from a store by one process, put together by another, in rounds that use the same memory."""
    for rank, slices in enumerate(shared_out(range(12), 3)):
        push(tmp_path / "slices", rank, slices)
    (slices,) = find_slices(Store(tmp_path / "slices"), "run7").values()
    slices.refresh()
    reads, puts = GatherHandle(N_ATOMS, 2, 0), GatherHandle(N_ATOMS, 2, 1)
    whole = Store(tmp_path / "whole").dataset("run7")
    for first in (0, 5, 10):
        numbers = np.arange(first, min(first + 5, 12))
        assembler = (numbers % 2).astype(np.int32)
        for gather in (reads, puts):
            gather.begin(numbers, assembler)
        assert slices.gather(reads, numbers) == {}
        puts.take(reads.parcel(1).copy())
        assert len(reads.parcel(0)) == 0
        for gather in (puts, reads):
            written: list[int] = []
            bad: dict[int, tuple[str, bool]] = {}
            assert not whole.write_gathered(gather, 100, written, bad)
            assert (written, bad) == ([int(n) for n in numbers if n % 2 == (gather is puts)], {})
    whole.flush()
    for frame in whole.read(range(12)):
        assert np.array_equal(frame.positions, positions_of(frame.number)) and frame.time == frame.number / 2
