"""How many atoms all nodes have of each frame, as a dict adds them; numbers as far apart as they like."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64
from support.threads import on_threads

from himach.io.push.held_slices import HeldSlices, RankSlices
from himach.staging.assembly.complete_frames import totals

FAR = 2**62
NUMBERS = st.one_of(st.integers(0, 40), st.integers(0, 20).map(lambda i: 1000 * i + 7), st.integers(0, FAR))


def make_slices(ranks: list[dict[int, int]]) -> HeldSlices:
    slices = []
    for rank, atoms in enumerate(ranks):
        numbers = np.array(sorted(atoms), np.int64)
        counts = np.array([atoms[number] for number in numbers.tolist()], np.uint32)
        slices.append(RankSlices(rank, SimpleNamespace(native=BitMap64(numbers)), 1, numbers, counts))
    return HeldSlices(slices)


def count_atoms(comm, slices: HeldSlices, at_once: int) -> dict[int, int]:
    """All frames of which there are atoms; they ascend."""
    counts: dict[int, int] = {}
    for frames, atoms in totals(comm, None, slices, 100, at_once):
        for number, count in zip(frames, atoms.tolist(), strict=True):
            assert number > max(counts, default=-1)
            counts |= {number: count} if count else {}
    return counts


@settings(max_examples=150)
@given(
    st.lists(st.lists(st.dictionaries(NUMBERS, st.integers(1, 9), max_size=12), max_size=3), min_size=1, max_size=3),
    st.integers(1, 6),
)
@example([[{0: 1, 2: 3}], [{2: 4, 9: 1, FAR: 2}]], 3)
def test_totals_are_those_of_a_dict(nodes, at_once):
    expected: Counter[int] = Counter()
    for ranks in nodes:
        for atoms in ranks:
            expected.update(atoms)
    for counts in on_threads(len(nodes), lambda comm: count_atoms(comm, make_slices(nodes[comm.rank]), at_once)):
        assert counts == dict(expected)
