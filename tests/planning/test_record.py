"""What real runs tell plans, and what a dry run tells of a run."""

import json

import numpy as np
import pytest
from MDAnalysisTests.datafiles import DCD, PSF
from support import commands

import himach
from himach.engine.clock import MAX_FRAME_TIMES, QUANTILES, Clock, FrameCosts, time_quantiles

N_FRAMES = 98
SCRIPT = """
import time
import himach

class Sleeps(himach.Analysis):
    seconds: float = 0.003

    def map(self, frame):
        time.sleep(self.seconds * (1 + frame.number % 2))
        yield frame.number % 8, frame.time

    def reduce(self, key, series):
        time.sleep(0.01)
        return len(series)
"""


def himach_run(folder, *words):
    words = ("script.py", "-t", DCD, "--topology", PSF, "--quiet", "-n", 2, *words)
    return commands.himach("run", *words, cwd=folder, timeout=250, code=0, HIMACH_CACHE=str(folder / "cache")).stdout


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A first and a second run of two ranks, and a dry run before each."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "script.py").write_text(SCRIPT)
    dry = []
    for name in ("first", "second"):
        dry.append(himach_run(folder, "--dry-run", "--out", name))
        assert not (folder / name).exists()
        himach_run(folder, "--out", name)
    records = [json.loads((folder / name / "run.json").read_text()) for name in ("first", "second")]
    return folder, records, dry


@pytest.mark.nightly
def test_a_record_tells_what_its_ranks_did(runs):
    _, (first, second), _ = runs
    planning = first["planning"]
    ranks = planning["ranks"]
    assert planning["ranks_per_node"] == [2, 2]
    assert planning["hosts"] == 1
    assert sum(ranks["frames"]) == sum(ranks["pairs"]) == N_FRAMES
    assert sum(ranks["keys"]) == 8
    assert sum(ranks["origin_bytes"]) == first["bytes"]["origin"] > 0
    assert sum(second["planning"]["ranks"]["cache_bytes"]) == second["bytes"]["cache"] > 0
    assert sum(ranks["sent"]) == first["bytes"]["shuffled"]
    assert len(planning["pair_bytes"]) == 64
    assert sum(map(bool, planning["pair_bytes"])) <= 8
    assert np.all(np.array(ranks["busy"]) >= 0.003 * np.array(ranks["frames"]))
    assert np.all(np.array(ranks["reduce"]) >= 0.01 * np.array(ranks["keys"]))
    assert min(ranks["memory"]) > 1e7
    assert np.all(np.array(ranks["opening"]) < np.array(ranks["startup"]))
    quantiles = planning["frame_seconds"]
    assert quantiles == sorted(quantiles)
    assert quantiles[0] >= 0.003
    assert quantiles[-2] >= 0.006
    assert planning["totals"]["busy"]["most"] == max(ranks["busy"])


@pytest.mark.nightly
def test_a_plan_of_the_run_that_was_made_says_what_it_took(runs):
    folder, (first, second), _ = runs
    plan = himach.plan([folder / "first", folder / "second" / "run.json"], nodes=[1])
    total = dict(zip(plan["times"]["run"], plan["times"]["total"], strict=True))
    assert total["first"] == pytest.approx(first["seconds"]["total"], rel=0.3)
    assert total["second"] == pytest.approx(second["seconds"]["total"], rel=0.3)
    text = str(himach.plan([first, second], nodes=[1]))
    for number, path in enumerate((folder / "first", folder / "second" / "run.json"), 1):
        text = text.replace(f"record {number}", str(path))
    assert str(plan) == text


def test_a_dry_run_tells_where_frames_would_come_from(runs):
    _, _, texts = runs
    for text, origin in zip(texts, (N_FRAMES, 0), strict=True):
        lines = {line.rsplit(maxsplit=1)[0].strip(): line.split()[-1] for line in text.splitlines() if line.strip()}
        assert lines["from the origin"] == str(origin)
        assert lines["ranks"] == "2"
        assert f"'himach plan DIR --frames {N_FRAMES} --nodes 1'" in text


def costs_of(frames, tasks):
    costs, clock = FrameCosts(), Clock()
    with costs.all_tasks():
        for _ in range(tasks):
            assert list(costs.watch(iter(range(frames)), frames)) == list(range(frames))
    return costs.of_rank(clock, 0, 0, 0)


def test_a_sample_of_light_frames_is_timed_and_all_are_counted():
    times = costs_of(1000, 40)
    assert times.frames == 40_000
    assert len(times.quantiles) == 33
    assert times.quantiles == sorted(times.quantiles)
    assert 0 <= times.compute < 1e-4
    assert costs_of(0, 3).quantiles == []


def test_times_that_are_kept_are_few():
    costs = FrameCosts()
    for _ in range(100_000 // 1000):
        costs._task, costs._due = 0, 1  # every task is timed
        list(costs.watch(iter(range(1000)), 1000))
    assert MAX_FRAME_TIMES // 2 <= len(costs._times) <= MAX_FRAME_TIMES
    assert costs.of_rank(Clock(), 0, 0, 0).frames == 100_000


def test_quantiles_are_numpys():
    times = np.random.default_rng(4).exponential(size=101)
    for sample in (times, times[:1], times[:2], times[:34]):
        np.testing.assert_allclose(time_quantiles(sample.tolist()), np.quantile(sample, np.linspace(0, 1, QUANTILES)))
    assert time_quantiles([]) == []
