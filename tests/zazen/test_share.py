"""Tasks: every frame of a share in one of them, well sized."""

from __future__ import annotations

import heapq

import pytest
from hypothesis import given
from hypothesis import strategies as st

from himach.parallel.communicator import alone
from himach.zazen import InMemory, assign
from himach.zazen.share import MAX_TASK_FRAMES, Tasks


@given(st.integers(0, 200_000), st.integers(1, 130))
def test_tasks_follow_one_another(count, ranks):
    tasks = Tasks(count, ranks)
    bounds = [tasks.bounds(number) for number in range(len(tasks))]
    assert [start for start, _ in bounds] + [count] == [0] + [stop for _, stop in bounds]
    sizes = [stop - start for start, stop in bounds]
    assert all(1 <= size <= MAX_TASK_FRAMES for size in sizes)
    # The last tasks are small, so that no rank works long while the others wait.
    assert max(sizes[-ranks:], default=1) <= max(1, max(sizes, default=1) // 4)


@given(st.integers(100, 20_000), st.integers(2, 16), st.integers(1, 4))
def test_ranks_end_together_though_one_is_slow(frames_each, ranks, times):
    count = frames_each * ranks
    tasks = Tasks(count, ranks)
    ends = [(0, rank) for rank in range(ranks)]
    for number in range(len(tasks)):
        start, stop = tasks.bounds(number)
        end, rank = heapq.heappop(ends)
        heapq.heappush(ends, (end + (stop - start) * (times if rank == 0 else 1), rank))
    ideal = count / (ranks - 1 + 1 / times)
    assert max(ends)[0] <= 1.15 * ideal


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
