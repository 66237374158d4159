"""Presence of all ranks as frames, against what numpy says."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from himach.engine.merging import bitmaps


@given(
    st.integers(0, 2**32),
    st.integers(1, 300),
    st.integers(1, 5),
    st.sampled_from(["one after the other", "dealt", "in pieces", "at random"]),
    st.sampled_from([0.02, 0.3, 1]),
    st.booleans(),
)
def test_frames_of_all_ranks_come_out_of_bitmaps(seed, frames, ranks, dealing, density, portable):
    rng = np.random.default_rng(seed)
    owner = {
        "one after the other": np.sort(rng.integers(0, ranks, frames)),
        "dealt": np.arange(frames) % ranks,
        "in pieces": np.repeat(rng.integers(0, ranks, frames), 7)[:frames],
        "at random": rng.integers(0, ranks, frames),
    }[dealing]
    present = rng.random((3, frames)) < density
    every = bitmaps.Bitmaps(3, frames)
    bitmaps.use_portable(portable)
    for rank in range(ranks):
        rows = np.flatnonzero(owner == rank).astype(np.uint32)
        if dealing == "at random":
            rng.shuffle(rows)  # tasks may come in any order
        plan = bitmaps.Plan(rows)
        for start in range(0, len(rows), 128):
            part = rows[start : start + 128]
            bits = np.zeros((3, 2), dtype=np.uint64)
            for place, row in enumerate(part.tolist()):
                bits[:, place // 64] |= present[:, row].astype(np.uint64) << np.uint64(place % 64)
            at = np.full(3, start, dtype=np.uint32)
            if start == 128:
                lists = [
                    (key, start + p) for key in range(3) for p, row in enumerate(part.tolist()) if present[key, row]
                ]
                ids, at = np.array(lists, dtype=np.uint32).reshape(-1, 2).T.copy()
                every.place_intervals(plan, ids, at, np.ones(len(ids), dtype=np.uint32))
            else:
                np.testing.assert_array_equal(bitmaps.count_bits(bits), present[:, part].sum(axis=1))
                every.place_bits(plan, np.arange(3, dtype=np.uint32), at, bits)
    bounds = np.cumsum([0, *present.sum(axis=1)])
    np.testing.assert_array_equal(every.frames(bounds), np.concatenate([np.flatnonzero(row) for row in present]))
    bitmaps.use_portable(False)


@given(st.lists(st.lists(st.integers(0, 99), max_size=30), min_size=1, max_size=4))
def test_frames_of_each_key_are_sorted(groups):
    frames = np.array([frame for group in groups for frame in group], dtype=np.uint32)
    bitmaps.sort_frames(frames, np.cumsum([0, *map(len, groups)]))
    assert frames.tolist() == [frame for group in groups for frame in sorted(group)]
