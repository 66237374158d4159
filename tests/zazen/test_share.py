"""Tasks: every frame of a share in one of them, well sized."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from himach.comm import alone
from himach.zazen import InMemory, assign
from himach.zazen.share import MAX_TASK_FRAMES, Tasks


@given(st.integers(0, 200_000), st.integers(1, 130))
def test_tasks_follow_one_another(count, ranks):
    tasks = Tasks(count, ranks)
    bounds = [tasks.bounds(number) for number in range(len(tasks))]
    assert [start for start, _ in bounds] + [count] == [0] + [stop for _, stop in bounds]
    sizes = [stop - start for start, stop in bounds]
    assert all(1 <= size <= MAX_TASK_FRAMES for size in sizes)
    if count >= 100 * ranks:
        assert len(tasks) >= 24 * ranks
        # The last tasks are small, so that no rank works long while the others wait.
        assert max(sizes[-ranks:]) <= max(1, max(sizes) // 4)


@pytest.mark.parametrize("n, step", [(1, 1), (63, 1), (64, 1), (200_000, 1), (200_000, 3), (3_000_000, 1000)])
def test_a_share_is_taken_in_order(n, step):
    frames = range(5, n, step)
    share = assign(alone(), InMemory.of(frames[::2], frames[1::5]), frames)
    assert share.size == len(frames)
    steps = []
    while (task := share.take()) is not None:
        steps += task.tolist()
    assert steps == list(range(len(frames)))
    share.close()
