"""Frames in blocks: whatever is selected, each is in its block, in the order of frames."""

from types import SimpleNamespace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from himach.examples.structure import blocks

selections = st.builds(range, st.integers(0, 300), st.integers(301, 900), st.integers(1, 40)).flatmap(
    lambda frames: st.sampled_from([frames, frames[::-1]])
)


@given(selections, st.integers(1, 60), st.integers(1, 6))
def test_blocks_hold_all_frames_in_order(frames, least, most):
    length = blocks.block_length(len(frames), least, most)
    assert length % 8 == 0
    assert length >= least
    count = -(-len(frames) // length)
    assert count <= most
    parts, gathered = {}, {}
    for step, number in sorted(enumerate(frames), key=lambda pair: pair[1]):
        parts.setdefault(blocks.part_of(SimpleNamespace(number=number)), []).append((step, number))
    for members in parts.values():
        steps, numbers = np.array(members).T
        series = SimpleNamespace(steps=steps, frames=numbers, times=numbers / 2, values=numbers[:, np.newaxis] * [1, 2])
        for key, part in blocks.split(series, frames, length):
            gathered.setdefault(key, []).append(part)
    assert sorted(gathered) == [(block, count) for block in range(count)]
    found = [blocks.joined(SimpleNamespace(values=gathered[key])) for key in sorted(gathered)]
    assert all(len(block["frames"]) == length for block in found[:-1])
    np.testing.assert_array_equal(np.concatenate([block["frames"] for block in found]), sorted(frames))
    for block in found:
        np.testing.assert_array_equal(block["times"], block["frames"] / 2)
        np.testing.assert_array_equal(block["values"], block["frames"][:, np.newaxis] * [1, 2])
