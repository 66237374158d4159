"""Members of an ensemble on ranks: those that all run together, and what the busiest rank has."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning.made import record

import himach
from himach.planning.machine import Machine
from himach.planning.model import WORTH, busiest, large_members
from himach.runner.ensemble import member_run

MACHINE = Machine(cores=16, memory=1 << 36, network=1e9, latency=1e-5, origin=1e8, disk_read=1e9, disk_write=1e9)


def of_ensemble(frames, **options):
    """Return the record of a run of an ensemble of members of so many frames each."""
    made = record(frames=sum(frames), shuffle=0.0, reduce=0.0, **options)
    made["ensemble"] = [{"name": f"m{at}", "frames": count, "error": None} for at, count in enumerate(frames)]
    return made


def test_members_are_large_where_they_would_hold_up_a_rank():
    sizes = [10 * WORTH, WORTH, WORTH / 2, *[WORTH / 2] * 20]
    assert large_members(sizes, 1) == []
    assert large_members(sizes, 2) == [0]
    assert large_members(sizes, 100) == [0]
    assert large_members([size * 4 for size in sizes], 100) == list(range(len(sizes)))
    assert member_run.WORTH == WORTH


@settings(max_examples=60)
@given(frames=st.lists(st.integers(1, 50), min_size=1, max_size=30), ranks=st.integers(1, 12))
def test_no_rank_has_less_than_its_part_nor_more_than_grahams_bound(frames, ranks):
    most = busiest(frames, 1.0, ranks, sum(frames))
    assert most >= max(sum(frames) / ranks, *frames)
    assert most <= sum(frames) / ranks + (1 - 1 / ranks) * max(frames) + 1e-9
    shared = busiest(frames, 1e12, ranks, sum(frames))  # all but the very small ones are
    assert sum(frames) / ranks - 1e-9 <= shared <= sum(frames) / ranks * 1.25 + 1e-9


@pytest.mark.parametrize(("total", "most"), [(120, 30), (240, 60), (60, 30), (12_000_000, 3_000_000)])
def test_members_come_again_where_more_frames_are_asked_for(total, most):
    assert busiest([30, 30, 20, 20, 10, 10], 1.0, 4, total) == pytest.approx(most, rel=0.2)


def test_a_plan_has_no_more_ranks_at_work_than_members():
    runs = [of_ensemble([100] * 8, cached=cached) for cached in (False, True)]
    plan = himach.plan(runs, nodes=[1, 4, 16], machine=MACHINE, ranks_per_node=2)
    at = [i for i, run in enumerate(plan["times"]["run"]) if run == "second"]
    mapping = [plan["phases"]["map"][i] for i in at]
    assert mapping == pytest.approx([400 * 0.012, 100 * 0.012, 100 * 0.012], rel=0.02)
    assert [plan["times"]["limit"][i] for i in at] == ["map()", "map()", "few members"]
    assert not {"shuffle", "stage"} & set(plan["times"]["run"])
    assert [plan["phases"]["shuffle"][i] for i in at] == [0, 0, 0] == [plan["phases"]["zazen"][i] for i in at]


def test_one_of_an_ensemble_and_one_of_a_trajectory_are_no_kind():
    with pytest.raises(himach.UsageError, match="one is of an ensemble"):
        himach.plan([of_ensemble([500, 500]), record(frames=1000)])


def test_uneven_members_end_when_the_busiest_rank_does():
    frames = np.array([400, 100, 100, 100, 100])
    plan = himach.plan(of_ensemble(frames.tolist(), cached=True), nodes=[1], machine=MACHINE, ranks_per_node=4)
    assert plan["phases"]["map"][list(plan["phases"]["run"]).index("second")] == pytest.approx(400 * 0.012, rel=0.03)
