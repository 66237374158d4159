"""Analyses of MDAnalysis of which nobody has said whether they can be taken apart: as they are alone, or refused."""

import MDAnalysis as mda
import numpy as np
import pytest
from MDAnalysis.analysis.base import AnalysisBase
from MDAnalysis.analysis.rms import RMSF
from MDAnalysisTests.datafiles import GRO, XTC

import himach
from himach.adapted import adapted

FRAMES = 7


class Untold(AnalysisBase):
    """What analyses do that were written before MDAnalysis knew parts; each test has one of it do more."""

    def __init__(self, atomgroup, labels=None, **kwargs):
        super().__init__(atomgroup.universe.trajectory, **kwargs)
        self.ag, self.labels = atomgroup, np.arange(100) if labels is None else labels

    def _prepare(self):
        self.reference = self.ag.positions
        self._places = np.zeros((3, self.n_frames, self.ag.n_atoms))
        self._matrices = np.zeros(self.n_frames, dtype=object)
        self._rows, self._names, self._last, self._buffer = [], None, None, np.zeros(3)
        self.results.radius = np.full(self.n_frames, np.nan)
        self.results.failed = 0
        self._total, self._mean = np.zeros(3), np.zeros((self.ag.n_atoms, 3))

    def _single_frame(self):
        i = self._frame_index
        self.ag.positions += 1  # of this frame only
        self._places[:, i] = self.ag.positions.T
        self._matrices[i] = {"label": self.labels[i]}
        self._rows.append([self._ts.frame, float(np.abs(self.ag.positions - self.reference).max())])
        self._buffer[:] = self.ag.positions[0]
        self.results.radius[i] = self.ag.radius_of_gyration()
        self._last = self._ts.frame
        if self._names is None:
            self._names = [atom.name for atom in self.ag]

    def _conclude(self):
        self.results.spread = np.fft.fft(self._places, axis=1).real.std(axis=1)  # of all frames together
        self.results.rows, self.results.names = np.array(self._rows), list(self._names)
        self.results.labels = [int(one["label"]) for one in self._matrices]
        self.results.last, self.results.buffer = self._last, self._buffer


def alone(cls):
    return cls(mda.Universe(GRO, XTC).select_atoms("name CA and resid 1-9")).run(stop=FRAMES).results


def on(ranks, cls, **options):
    analysis = adapted(cls)(atomgroup="name CA and resid 1-9")
    return himach.run(analysis, XTC, GRO, stop=FRAMES, ranks=ranks, cache="off", progress=False, **options).outcome


@pytest.mark.parametrize("ranks", [None, 2, 3])
def test_any_ranks_give_what_it_gives_alone(ranks):
    expected, found = alone(Untold), on(ranks, Untold)
    found = {**found, **{name: found["Untold"][name] for name in ("radius", "labels")}}  # columns of one length
    for name in ("radius", "labels", "rows", "spread", "buffer"):
        assert np.array_equal(found[name], expected[name]), name
    assert list(found["names"]) == expected.names
    assert (found["last"], found["failed"]) == (expected.last, 0)


class Sum(Untold):
    """Adds up in place."""

    def _single_frame(self):
        super()._single_frame()
        self._total += self.ag.positions[0]


class Count(Untold):
    """Counts frames."""

    def _single_frame(self):
        super()._single_frame()
        self.results.failed += 1


class Mean(Untold):
    """A mean that goes on, which after the first frame is that frame, however often that is taken."""

    def _single_frame(self):
        super()._single_frame()
        i = self._frame_index
        self._mean = (i * self._mean + self.ag.positions) / (i + 1)


class Moved(Untold):
    """Compares with the frame before."""

    def _single_frame(self):
        super()._single_frame()
        self.results.radius[self._frame_index] = np.abs(self.ag.positions - self._mean).max()
        self._mean = self.ag.positions


class Back(Untold):
    """Writes to the entry of the frame before."""

    def _single_frame(self):
        super()._single_frame()
        self.results.radius[self._frame_index - 1] = 0


class Rare(Untold):
    """Counts some frames, which the first ones are not."""

    def _single_frame(self):
        super()._single_frame()
        if self._frame_index == FRAMES - 2:
            self.results.failed += 1


@pytest.mark.nightly(but=4)
@pytest.mark.parametrize("ranks", [None, 2])
@pytest.mark.parametrize(
    ("cls", "by"),
    [
        (Sum, "_total"),
        (Count, "results.failed"),
        (Mean, "_mean"),
        (Moved, "results.radius"),
        (Back, "results.radius"),
        (Rare, "results.failed"),
    ],
)
def test_one_whose_frames_depend_on_each_other_is_refused(cls, by, ranks):
    with pytest.raises(himach.AnalysisError, match=rf"its frames depend on each other by {by} .*by itself"):
        on(ranks, cls)


def test_what_says_so_or_runs_otherwise_is_refused_at_once():
    class Own(Untold):
        def run(self):
            return self

    class Says(Untold):
        _analysis_algorithm_is_parallelizable = False

    for cls, why in ((Own, "a run\\(\\) of its own"), (Says, "depend on each other"), (RMSF, "depend on each other")):
        with pytest.raises(himach.UsageError, match=why):
            adapted(cls)
