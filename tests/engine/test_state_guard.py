"""When what setup() left is compared, what is said of the frames, and what libraries and later stages may do."""

import functools
import importlib
import re

import MDAnalysis
import numpy as np
import pytest

import himach
from himach.engine import state_guard
from himach.engine.state_guard import Snapshot
from himach.examples import load, sample

from .twin import made_up, run_engine

FRAMES = range(40)


class Probe(himach.Analysis):
    """Keeps something in map(), as a test says."""

    @classmethod
    def parameters(cls):
        return {}

    def __init__(self, make, keep):
        super().__init__()
        make(self)
        self.__dict__["keep"] = keep

    def map(self, frame):
        self.keep(self, frame)
        yield 0, 1

    def reduce(self, key, series):
        self.anything = 1
        return len(series)


def run(*chains):
    return run_engine(None, chains, FRAMES, made_up(FRAMES)).results[0][0]


def run_probe(make, keep):
    return run([Probe(make, keep)])


def put(**values):
    return lambda self: self.__dict__.update(values)


def test_a_change_late_in_the_run_is_found_and_the_frames_told():
    def keep(self, frame):
        if frame.number == 21:
            self.values.append(frame.number)

    with pytest.raises(himach.AnalysisError) as error:
        run_probe(put(values=[]), keep)
    text = r"Probe\.map\(\) failed after frame (\d+), at frame (\d+) at the latest, on rank 0: "
    after, latest = map(int, re.match(text, str(error.value)).groups())
    assert after < 21 <= latest


def test_a_change_at_the_last_frame_is_found(monkeypatch):
    monkeypatch.setattr(state_guard, "PART", 1e-9)  # no time for looks in between

    def keep(self, frame):
        if frame.number == FRAMES[-1]:
            self.x[0] = 5

    with pytest.raises(himach.AnalysisError, match=r"frame 39 .*self.x, an array"):
        run_probe(put(x=np.zeros(1)), keep)


def test_looking_takes_a_small_part_of_the_time():
    looked = Snapshot(Probe(put(x=np.zeros(1 << 20)), None), None)
    assert not looked.due  # not before two hundred times as long as it took
    assert looked.change() is None and not looked.due


LIBRARY = """
import functools
class Fit:
    def __init__(self): self.size = 2; self._fast = None; self._cache = {}
    def fit(self, x): self.mean_ = x
    def predict(self, x): self._fast = self._cache[x] = x; self.ready; return x
    @functools.cached_property
    def ready(self): return [1]
class Graph:
    def __init__(self): self._adjacent = {1: {}}
    def add(self, a, b): self._adjacent.setdefault(a, {})[b] = 1
"""


def test_objects_of_libraries_may_remember_and_not_learn(tmp_path, monkeypatch):
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "some_library.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(folder)
    some_library = importlib.import_module("some_library")
    assert run_probe(put(x=some_library.Fit()), lambda self, f: self.x.predict(f.number)) == len(FRAMES)
    for thing, keep, named in [
        (some_library.Fit(), lambda self, f: self.x.fit(f.number), r"self\.x, a Fit"),
        (some_library.Fit(), lambda self, f: setattr(self.x, "size", f.number), r"self\.x, a Fit"),
        (some_library.Graph(), lambda self, f: self.x.add(1, f.number), r"self\.x, a Graph"),
    ]:
        with pytest.raises(himach.AnalysisError, match=named):
            run_probe(put(x=thing), keep)


def test_each_analysis_of_a_pass_is_watched():
    good, bad = Probe(put(x=[]), lambda self, f: None), Probe(put(y=[]), lambda self, f: self.y.append(1))
    with pytest.raises(himach.AnalysisError, match=r"self\.y, a list"):
        run([good], [bad])


def test_later_stages_keep_what_they_like():
    class Begin(Probe):
        def reduce(self, key, series):
            yield key, len(series)

    class Last(Probe):
        def reduce(self, key, series):
            self.values.append(series.values)
            return self.values

    chain = [Begin(put(x=[]), lambda self, f: None), Last(put(values=[]), None)]
    chain[0].__dict__["then"] = chain[1]
    assert run(chain) == [[len(FRAMES)]]


class Near(himach.Analysis):
    """Selects in map() by the parser that an updating selection of setup() knows."""

    def setup(self, universe):
        self.near = universe.select_atoms("around 4 bynum 1:12", updating=True)

    def map(self, frame):
        yield himach.Row(near=len(self.near), carbons=len(frame.universe.select_atoms("name CA")))


def test_selections_in_map_leave_updating_selections_of_setup_as_they_are():
    table = himach.run(Near(), *sample("villin"), stop=2, cache="off", progress=False).outcome
    assert table["carbons"].tolist() == [35, 35]


class First(himach.Analysis):
    """Keeps what is of the first frame, and writes to each."""

    def setup(self, universe):
        self.box, self.first = universe.dimensions, universe.trajectory.ts.positions
        self.atoms = universe.select_atoms("name CA")
        self.reference = self.atoms.positions
        self.near = universe.select_atoms("prop x < 20", updating=True)

    def map(self, frame):
        frame.positions[:] += 1
        frame.universe.dimensions = [50, 50, 50, 90, 90, 90]
        yield 0, float(frame.universe.atoms.center_of_mass()[0] + self.box[0] + self.first[0, 0])

    def reduce(self, key, series):
        self.last = series.values
        now = self.atoms.positions.tolist() == self.reference.tolist(), len(self.near)
        return len(series), self.box.tolist(), self.first[0].tolist(), self.reference[0].tolist(), now


class Drift:
    """A transformation that moves each frame further than the one before."""

    calls = 0

    def __call__(self, ts):
        self.calls += 1
        ts.positions += self.calls
        return ts


class Drifting(First):
    def setup(self, universe):
        universe.trajectory.add_transformations(Drift())
        super().setup(universe)


def test_a_run_leaves_what_setup_took_of_the_first_frame_and_refuses_what_the_universe_keeps():
    trajectory, topology = sample("villin")
    run = functools.partial(himach.run, trajectory=trajectory, topology=topology, cache="off", progress=False, stop=20)
    alone = run(First()).outcome["result"][0]
    assert alone == run([load("rmsd")(selection="name CA"), First()]).outcome["First"]["result"][0]
    assert alone[:2] == (20, pytest.approx([47.49386215, 47.49386215, 47.49386215, 90, 90, 90]))
    atoms = MDAnalysis.Universe(topology, trajectory).atoms
    assert alone[2:4] == (atoms[0].position.tolist(), atoms.select_atoms("name CA")[0].position.tolist())
    assert alone[4] == (True, (atoms.positions[:, 0] < 20).sum())  # the Universe stands at the first frame again
    with pytest.raises(himach.AnalysisError, match=r"it changes universe\.trajectory"):
        run(Drifting())
