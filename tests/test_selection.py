"""Choices of frames by their numbers, against what MDAnalysis's trajectory[frames] gives, and ranges."""

import pickle

import MDAnalysis
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from MDAnalysisTests.datafiles import DCD, PSF

import himach
from himach.runner import run
from himach.selection import FrameList, chosen, forward, frames_text, numbers_at, parse_frames, span, steps_of
from himach.zazen import InMemory
from himach.zazen.node_frames import bitmaps_of
from himach.zazen.remaining import Remaining

ascending = st.sets(st.integers(0, 60), min_size=1).map(sorted)


@given(numbers=ascending)
def test_a_choice_is_the_same_numbers_whatever_it_is_kept_as(numbers):
    frames = chosen(numbers, 61)
    assert list(frames) == numbers
    assert list(pickle.loads(pickle.dumps(frames))) == numbers
    assert isinstance(frames, range) == (len(set(np.diff(numbers))) < 2)
    steps = np.arange(len(numbers))
    assert numbers_at(frames, steps).tolist() == numbers
    assert steps_of(frames, np.array(numbers)).tolist() == steps.tolist()
    assert set(numbers) <= set(span(frames))
    assert forward(frames)
    assert list(frames[1:3]) == numbers[1:3]
    assert (frames[0], frames[-1]) == (numbers[0], numbers[-1])
    mask = np.isin(np.arange(61), numbers)
    assert list(chosen(mask, 61)) == list(chosen(mask.tolist(), 61)) == numbers
    assert list(chosen(np.array(numbers) - 61, 61)) == numbers, "from the end"


@given(numbers=ascending)
def test_a_choice_as_text_reads_back(numbers):
    assert parse_frames(frames_text(chosen(numbers, 61))).tolist() == numbers


@given(numbers=ascending, held=st.sets(st.integers(0, 60)), left=st.sets(st.integers(0, 60)))
def test_a_node_marks_what_it_holds_of_a_choice_and_of_what_is_left_of_it(numbers, held, left):
    frames = chosen(numbers, 61)
    mask = np.isin(numbers, sorted(left))
    for selection, wanted in ((frames, numbers), (Remaining.of(frames, mask), np.array(numbers)[mask].tolist())):
        if not wanted:
            continue
        words = bitmaps_of(InMemory.of(native=held), selection)[0]
        bits = np.unpackbits(words.view(np.uint8), bitorder="little")[: len(wanted)]
        assert bits.tolist() == [number in held for number in wanted]


def test_texts():
    assert parse_frames("0, 5,10-12,20-30:5").tolist() == [0, 5, 10, 11, 12, 20, 25, 30]
    assert frames_text(range(0, 11, 5)) == "0-10:5"
    assert frames_text(FrameList(np.array([0, 3, 4, 5, 9]))) == "0,3-5,9"
    assert repr(FrameList(np.array([0, 3, 4]))) == "frames(0,3-4)"


@pytest.mark.parametrize("text", ["", "5-", "-5", "a", "1,,2", "10-5", "1-5:0", "1:2:3", "0x5", "1.5"])
def test_other_texts_are_refused(text):
    with pytest.raises(himach.UsageError, match="frames '"):
        parse_frames(text)


@pytest.mark.parametrize(
    ("frames", "said"),
    [
        ([5, 3], "must ascend, each once: 3 comes after 5"),
        ([3, 3], "must ascend"),
        ([0, -61], "must ascend"),
        ([61], "no frame 61; the trajectory has 61"),
        ([-62], "no frame -62"),
        ([], "none is selected"),
        ([False] * 61, "none is selected"),
        ([True] * 60, "needs 61 values, one for each frame, not 60"),
        ([0.5], "frame numbers or a boolean"),
        ([[1, 2]], "frame numbers or a boolean"),
        (["a"], "frame numbers or a boolean"),
    ],
)
def test_what_is_no_choice_is_refused(frames, said):
    with pytest.raises(himach.UsageError, match=said):
        chosen(frames, 61)


class Steps(himach.Analysis):
    """What frames and series say of themselves."""

    def map(self, frame):
        yield "one", (frame.number, frame.step, float(frame.universe.atoms.positions[0, 0]))

    def reduce(self, key, series):
        return {"told": list(series.values), "frames": series.frames.tolist(), "steps": series.steps.tolist()}

    def finish(self, results):
        return {**results["one"], "selected": list(self.frames), "dt": self.dt}


@pytest.mark.parametrize(
    ("frames", "ranks"),
    [([0, 3, 4, 7, -1], None), ([0, 3, 4, 7, -1], 2), ([5], None), (np.arange(98) % 7 == 3, None), ("2-3,9", None)],
)
def test_a_run_over_frames_by_number_sees_those_of_mdanalysis(frames, ranks):
    trajectory = MDAnalysis.Universe(PSF, DCD).trajectory
    picked = parse_frames(frames) if isinstance(frames, str) else frames
    expected = [(ts.frame, step, float(ts.positions[0, 0])) for step, ts in enumerate(trajectory[picked])]
    result = himach.run(Steps(), DCD, PSF, frames=frames, ranks=ranks, cache="off")
    assert result["told"] == expected
    assert result["frames"] == result["selected"] == [number for number, _, _ in expected]
    assert result["steps"] == list(range(len(expected)))
    assert result.record["frames"] == len(expected)
    assert parse_frames(result.record["selected"]).tolist() == result["selected"]


def test_kept_pairs_serve_other_choices(tmp_path):
    first = himach.run(Steps(), DCD, PSF, frames=[0, 3, 4, 7], pairs=tmp_path, reuse="always", cache="off")
    assert first.record["reused"]["frames"] == 0
    more = himach.run(Steps(), DCD, PSF, frames=[0, 4, 5, 7, 90], pairs=tmp_path, reuse="always", cache="off")
    assert more.record["reused"]["frames"] == 3
    assert more["frames"] == [0, 4, 5, 7, 90]
    assert more["steps"] == [0, 1, 2, 3, 4]
    everything = himach.run(Steps(), DCD, PSF, stop=10, pairs=tmp_path, reuse="always", cache="off")
    assert everything.record["reused"]["frames"] == 5
    assert everything["frames"] == list(range(10))


def test_frames_exclude_slices_and_verbose_is_progress(monkeypatch):
    with pytest.raises(himach.UsageError, match="frames cannot be given with start, step"):
        himach.run(Steps(), DCD, PSF, frames=[1], start=0, step=2)
    with pytest.raises(himach.UsageError, match="verbose=True is another word for progress, which is False"):
        himach.run(Steps(), DCD, PSF, progress=False, verbose=True)
    quiet = []
    here = run.run_here
    monkeypatch.setattr(run, "run_here", lambda world, job, *of: quiet.append(job.quiet) or here(world, job, *of))
    for asked in ({"verbose": True}, {"verbose": False}, {"progress": True}, {"progress": False}):
        himach.run(Steps(), DCD, PSF, **asked)
    assert quiet == [False, True, False, True]
