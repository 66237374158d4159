"""What setup() left must be found unchanged: realistic scripts that keep something in map(), and such that may."""

from __future__ import annotations

import collections
import csv
import functools
import importlib
import io
import itertools
import logging
import queue
import random
import re
import threading
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import scipy.sparse

import himach
from himach.engine import state_guard
from himach.engine.state_guard import Snapshot
from himach.examples import load, sample

from .twin import made_up, run_engine

FRAMES = range(40)


class Probe(himach.Analysis):
    """Keeps something in map(), as a test says."""

    shared: list = []  # noqa: RUF012
    total = 0

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


def passed(make, keep, frames=FRAMES):
    return run_engine(None, [[Probe(make, keep)]], frames, made_up(frames)).results[0][0]


def put(**values):
    return lambda self: self.__dict__.update(values)


def closure(self):
    counts = [0]

    def count():
        counts[0] += 1

    self.count = count


def rebinding(self):
    n = 0

    def count():
        nonlocal n
        n += 1

    self.count = count


def shown(self):
    self.h = np.zeros(4)[:]
    self.h.setflags(write=False)


SEEN = []


def noting(value, before=[]):  # noqa: B006
    before.append(value)


class Slots:
    __slots__ = ("last",)

    def __init__(self):
        self.last = 0


class Memory:
    """A helper of a script's own."""

    most = 0

    def __init__(self):
        self.values = []
        self.last = None

    def note(self, value):
        self.values.append(value)


def assigned(thing, name, value):
    setattr(thing, name, value)


def item(thing, place, value):
    thing[place] = value


KEPT = {
    "array": (lambda: put(rg=np.zeros(40)), lambda self, f: item(self.rg, f.step, 1 + f.time), "self.rg, an array"),
    "NaN": (lambda: put(rg=np.full(40, np.nan)), lambda self, f: item(self.rg, f.step, 0), "self.rg"),
    "sum": (lambda: put(h=np.zeros((3, 3), int)), lambda self, f: np.add.at(self.h, 0, 1), "self.h"),
    "view": (lambda: put(h=np.zeros((4, 4))[:, ::2]), lambda self, f: item(self.h, 1, 1), "self.h"),
    "behind a read-only view": (lambda: shown, lambda self, f: item(self.h.base, 1, 1), "self.h, an array"),
    "masked": (lambda: put(m=np.ma.zeros(4)), lambda self, f: item(self.m, 1, 1), "self.m"),
    "mask": (lambda: put(m=np.ma.array([1, 2], mask=[0, 0])), lambda self, f: item(self.m, 1, np.ma.masked), "self.m"),
    "objects": (lambda: put(o=np.zeros(3, object)), lambda self, f: item(self.o, 1, "x"), "self.o"),
    "in objects": (
        lambda: put(o=np.array([[], None], object)),
        lambda self, f: self.o[0].append(1),
        "self.o, an array",
    ),
    "fields": (lambda: put(s=np.zeros(3, "i4,f8")), lambda self, f: item(self.s["f1"], 1, 2), "self.s"),
    "large": (lambda: put(a=np.zeros(1 << 22)), lambda self, f: item(self.a, 7, 1), "self.a, an array"),
    "dict": (lambda: put(last={}), lambda self, f: item(self.last, f.number, 1), "self.last, a dict"),
    "list": (lambda: put(seen=[]), lambda self, f: self.seen.append(f.number), "self.seen, a list"),
    "chained": (lambda: put(c=collections.ChainMap({})), lambda self, f: item(self.c, 1, 2), "self.c, a ChainMap"),
    "set": (lambda: put(seen=set()), lambda self, f: self.seen.add(f.number), "self.seen, a set"),
    "deque": (lambda: put(w=collections.deque(maxlen=3)), lambda self, f: self.w.append(f.number), "self.w, a deque"),
    "counter": (lambda: put(n=collections.Counter()), lambda self, f: self.n.update("ab"), "self.n"),
    "defaultdict": (
        lambda: put(d=collections.defaultdict(list)),
        lambda self, f: self.d["x"].append(f.number),
        "self.d, a defaultdict",
    ),
    "deep": (
        lambda: put(d={"x": ([], [{}])}),
        lambda self, f: item(self.d["x"][1][0], 1, 1),
        "self.d, a dict",
    ),
    "bytes": (lambda: put(b=bytearray(3)), lambda self, f: item(self.b, 1, 1), "self.b"),
    "object": (lambda: put(o=Memory()), lambda self, f: assigned(self.o, "last", f.number), "self.o, a Memory"),
    "method": (lambda: put(o=Memory()), lambda self, f: self.o.note(1), "self.o, a Memory"),
    "slots": (lambda: put(o=Slots()), lambda self, f: assigned(self.o, "last", f.number + 1), "self.o, a Slots"),
    "namespace": (
        lambda: put(o=SimpleNamespace()),
        lambda self, f: assigned(self.o, "x", 1),
        "self.o, a SimpleNamespace",
    ),
    "own dict": (put, lambda self, f: item(vars(self), "z", 1), "self.z"),
    "class": (put, lambda self, f: assigned(Probe, "total", Probe.total + 1), "Probe.total"),
    "list of the class": (put, lambda self, f: self.shared.append(1), "Probe.shared, a list"),
    "closure": (lambda: closure, lambda self, f: self.count(), "self.count"),
    "nonlocal": (lambda: rebinding, lambda self, f: self.count(), "self.count"),
    "partial": (lambda: put(p=functools.partial(list.append, [])), lambda self, f: self.p(1), "self.p"),
    "bound": (lambda: put(p=Memory().note), lambda self, f: self.p(1), "self.p"),
    "table": (lambda: put(t=pd.DataFrame({"x": [1.0]})), lambda self, f: item(self.t.loc, f.number, 2.0), "self.t"),
    "column": (lambda: put(t=pd.Series([1.0])), lambda self, f: item(self.t, 0, 2.0), "self.t"),
    "lil": (lambda: put(s=scipy.sparse.lil_matrix((2, 2))), lambda self, f: item(self.s, (0, 1), 2), "self.s"),
    "dok": (lambda: put(s=scipy.sparse.dok_matrix((2, 2))), lambda self, f: item(self.s, (0, 1), 2), "self.s"),
    "csr": (lambda: put(s=scipy.sparse.eye(2, format="csr")), lambda self, f: item(self.s, (0, 0), 2), "self.s"),
    "inner analysis": (
        lambda: put(inner=Probe(put(x=[]), None)),
        lambda self, f: self.inner.x.append(1),
        "self.inner, a Probe",
    ),
    "generator": (
        lambda: put(r=np.random.default_rng(1)),
        lambda self, f: self.r.random(),
        "default_rng.*frame.number",
    ),
    "old generator": (lambda: put(r=np.random.RandomState(1)), lambda self, f: self.r.rand(), "a random generator"),
    "random": (lambda: put(r=random.Random(1)), lambda self, f: self.r.random(), "a random generator"),
    "drawing": (lambda: put(r=random.Random(1).random), lambda self, f: self.r(), "self.r"),
    "global": (put, lambda self, f: SEEN.append(1), "SEEN, a list"),
    "default argument": (put, lambda self, f: noting(f.number), "noting, a function"),
    "attribute of a function": (put, lambda self, f: assigned(noting, "last", f.number), "noting, a function"),
    "class of a helper": (put, lambda self, f: assigned(Memory, "most", f.number + 1), "Memory.most"),
    "read from a defaultdict": (
        lambda: put(d=collections.defaultdict(list)),
        lambda self, f: self.d[f.number],
        "self.d, a defaultdict",
    ),
    "stream": (lambda: put(b=io.BytesIO(b"x" * 99)), lambda self, f: self.b.read(1), "self.b, an iterator"),
    "queue": (lambda: put(q=queue.Queue()), lambda self, f: self.q.put(1), "self.q"),
    "iterator": (lambda: put(c=iter([1, 2, 3] * 20)), lambda self, f: next(self.c), "self.c, an iterator"),
}


@pytest.mark.parametrize("case", KEPT)
def test_what_map_keeps_is_refused_by_name(case):
    make, keep, named = KEPT[case]
    with pytest.raises(himach.AnalysisError, match=named) as error:
        passed(make(), keep)
    text = str(error.value)
    assert text.startswith("Probe.map() failed at frame 0 (step 0, time 0 ps) on rank 0: it changes ")
    assert "map() keeps nothing, because each rank sees some frames only" in text and "caches = (" in text
    for kept in (Probe.shared, SEEN, noting.__defaults__[0], vars(noting)):
        kept.clear()
    Probe.total = Memory.most = 0


INCOMPARABLE = {
    "count": itertools.count,
    "cycle": lambda: itertools.cycle("abc"),
    "generator": lambda: (i for i in range(99)),
    "file": lambda: open(__file__),  # noqa: SIM115
    "writer": lambda: csv.writer(io.StringIO()),
    "simple queue": queue.SimpleQueue,
}


@pytest.mark.parametrize("case", INCOMPARABLE)
def test_what_cannot_be_compared_is_refused_where_map_may_read_it(case):
    class Reads(Probe):
        def map(self, frame):
            yield 0, self.thing

    made = put(thing=INCOMPARABLE[case]())
    with pytest.raises(himach.AnalysisError, match=r"on rank 0: self\.thing, an? .* cannot be compared .*caches = "):
        run_engine(None, [[Reads(made, None)]], FRAMES, made_up(FRAMES))
    assert passed(made, lambda self, f: None) == len(FRAMES)


def test_transformations_and_what_lies_beside_are_looked_at():
    trajectory = SimpleNamespace(transformations=[made_up], _auxs={}, ts=SimpleNamespace())
    topology = SimpleNamespace(attrs=[])
    universe = SimpleNamespace(mine=[1], trajectory=trajectory, _topology=topology)
    snapshot = Snapshot(Probe(put(), None), universe)
    assert snapshot.change() is None
    universe.mine.append(2)
    assert "universe.mine, a list" in str(snapshot.change())
    universe.mine.pop()
    trajectory.transformations = [lambda ts: ts]
    assert "universe.trajectory" in str(snapshot.change())
    trajectory.transformations = [made_up]
    del universe.mine
    assert "deletes universe.mine" in str(snapshot.change())


class Drift:
    """A transformation that moves each frame further than the one before."""

    def __init__(self):
        self.calls = 0

    def __call__(self, ts):
        self.calls += 1
        ts.positions += self.calls
        return ts


class Beside(himach.Analysis):
    """Keeps something that is reached by the Universe alone."""

    where: str = "transformation"

    def setup(self, universe):
        universe.mine = []
        if self.where == "transformation":
            universe.trajectory.add_transformations(Drift())

    def map(self, frame):
        if self.where == "universe":
            frame.universe.mine.append(frame.number)
        if self.where == "new":
            frame.universe.other = frame.number
        yield 0, frame.positions[0, 0]

    def reduce(self, key, series):
        return len(series)


@pytest.mark.parametrize(
    ("where", "named"),
    [("transformation", "universe.trajectory"), ("universe", "universe.mine"), ("new", "universe.other")],
)
def test_what_is_kept_by_the_universe_is_refused_in_a_run(where, named):
    trajectory, topology = sample("villin")
    with pytest.raises(himach.AnalysisError, match=f"it changes {named}"):
        himach.run(Beside(where=where), trajectory, topology, cache="off", progress=False, stop=20)
    done = himach.run(Beside(where="nothing"), trajectory, topology, cache="off", progress=False, stop=20)
    assert done.outcome["result"][0] == 20


@pytest.mark.parametrize("case", ["array", "sum", "view", "behind a read-only view", "fields", "large", "objects"])
def test_the_line_of_the_script_is_told(case):
    make, keep, _ = KEPT[case]
    with pytest.raises(himach.AnalysisError, match=r"test_state_guard.py, line \d+, in "):
        passed(make(), keep)


def test_a_change_late_in_the_run_is_found_and_the_frames_told():
    def keep(self, frame):
        if frame.number == 21:
            self.seen.append(frame.number)

    with pytest.raises(
        himach.AnalysisError, match=r"failed after frame \d+, at frame \d+ at the latest, on rank 0"
    ) as e:
        passed(put(seen=[]), keep)
    after, latest = (int(word) for word in re.findall(r"frame (\d+)", str(e.value)))
    assert after < 21 <= latest


def test_a_change_at_the_last_frame_is_found(monkeypatch):
    monkeypatch.setattr(state_guard, "PART", 1e-9)  # no time for looks in between

    def keep(self, frame):
        if frame.number == FRAMES[-1]:
            self.x[0] = 5

    with pytest.raises(himach.AnalysisError, match=r"frame 39 .*self.x, an array"):
        passed(put(x=np.zeros(1)), keep)


def test_looking_takes_a_small_part_of_the_time():
    looked = Snapshot(Probe(put(x=np.zeros(1 << 20)), None), None)
    assert not looked.due  # not before two hundred times as long as it took
    assert looked.change() is None and not looked.due


def test_what_the_class_names_as_caches_may_change():
    class Caching(Probe):
        caches = ("memo", "tree", "buffer", "known")
        known: dict = {}  # noqa: RUF012

    def keep(self, frame):
        self.memo[frame.number % 3] = 1
        self.known[frame.number] = 1
        self.tree = self.tree or [1]
        self.buffer[:] = frame.number

    analysis = Caching(put(memo={}, tree=None, buffer=np.zeros(3)), keep)
    assert run_engine(None, [[analysis]], FRAMES, made_up(FRAMES)).results[0][0] == len(FRAMES)


def test_all_is_as_it_was_after_the_run():
    analysis = Probe(put(a=np.zeros(3), big=np.zeros(1 << 22), d={}), lambda self, frame: None)
    run_engine(None, [[analysis]], FRAMES, made_up(FRAMES))
    analysis.a[:] = analysis.big[:3] = 1
    analysis.d["x"] = analysis.new = 1


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
    assert passed(put(x=some_library.Fit()), lambda self, f: self.x.predict(f.number)) == len(FRAMES)
    for thing, keep, named in [
        (some_library.Fit(), lambda self, f: self.x.fit(f.number), r"self\.x, a Fit"),
        (some_library.Fit(), lambda self, f: assigned(self.x, "size", f.number), r"self\.x, a Fit"),
        (some_library.Graph(), lambda self, f: self.x.add(1, f.number), r"self\.x, a Graph"),
    ]:
        with pytest.raises(himach.AnalysisError, match=named):
            passed(put(x=thing), keep)


def test_an_array_can_be_written_to_after_the_error():
    probe = Probe(put(a=np.zeros(1 << 22)), lambda self, f: item(self.a, 7, 1))
    with pytest.raises(himach.AnalysisError):
        run_engine(None, [[probe]], FRAMES, made_up(FRAMES))
    assert probe.a.flags.writeable


def test_each_analysis_of_a_pass_is_watched():
    good, bad = Probe(put(x=[]), lambda self, f: None), Probe(put(y=[]), lambda self, f: self.y.append(1))
    with pytest.raises(himach.AnalysisError, match=r"self\.y, a list"):
        run_engine(None, [[good], [bad]], FRAMES, made_up(FRAMES))


def test_later_stages_keep_what_they_like():
    class First(Probe):
        def reduce(self, key, series):
            yield key, len(series)

    class Last(Probe):
        def reduce(self, key, series):
            self.found.append(series.values)
            return self.found

    chain = [First(put(x=[]), lambda self, f: None), Last(put(found=[]), None)]
    chain[0].__dict__["then"] = chain[1]
    assert run_engine(None, [chain], FRAMES, made_up(FRAMES)).results[0][0] == [[len(FRAMES)]]


class Legit(himach.Analysis):
    """Has on itself what scripts have, and changes none of it in map()."""

    names: list[str] = ["CA", "N"]  # noqa: RUF012

    def setup(self, universe):
        self.universe, self.timestep, self.box = universe, universe.trajectory.ts, universe.dimensions
        self.first = universe.trajectory.ts.positions
        self.ag = universe.select_atoms("name CA")
        self.near = universe.select_atoms("around 5 index 10", updating=True)
        self.residues = {residue.resid: [residue.atoms] for residue in universe.residues[:20]}
        self.reference, self.ix, self.masses = self.ag.positions, self.ag.ix, self.ag.masses
        self.pattern, self.log, self.lock = re.compile("x"), logging.getLogger("x"), threading.Lock()
        self.cached = functools.lru_cache(lambda n: 2 * n)
        self.random = np.random.default_rng(1)
        self.lists = collections.defaultdict(list)
        self.inner = load("rmsd")(selection="name CA")
        self.inner.setup(universe)
        self.sparse = scipy.sparse.random(20, 20, 0.2, format="csr", rng=1)
        self.table = pd.DataFrame({"a": [1.0, np.nan], "b": ["x", None]})
        self.nothing = [float("nan"), np.array([np.nan]), None]
        self.me, self.bound, self.round = self, self.helper, []
        self.round.append(self.round)

    @functools.cached_property
    def lazy(self):
        return [1, 2]

    def helper(self, x):
        return x

    def map(self, frame):
        self.cached(frame.number % 3)
        self.log.isEnabledFor(10)
        with self.lock:
            self.lazy
        self.sparse @ np.ones(20)
        self.sparse.has_canonical_format
        self.table.groupby("a").sum()
        frame.positions[:] += 1
        frame.universe.dimensions = [50, 50, 50, 90, 90, 90]
        frame.universe.atoms.positions
        yield 0, len(self.near) + float(self.ag.center_of_mass()[0] + self.box[0] + self.first[0, 0])
        yield from self.inner.map(frame)

    def reduce(self, key, series):
        self.last = series.values
        return len(series), self.box.tolist(), self.first[0].tolist(), self.reference[0].tolist()


@pytest.mark.parametrize("others", [(), (load("rmsd")(selection="name CA"),)])
def test_scripts_that_change_nothing_run(others):
    trajectory, topology = sample("villin")
    run = functools.partial(himach.run, trajectory=trajectory, topology=topology, cache="off", progress=False, stop=20)
    outcome, beside = run(Legit()).outcome, run([*others, Legit()]).outcome["Legit"]
    assert outcome["rows"].rows == beside["rows"].rows == 20
    alone = outcome["Legit"]["result"][0]
    assert alone[0] == 20
    # What setup() took of the first frame is that of the first frame, whatever frames came later.
    assert alone == beside["Legit"]["result"][0]
    assert alone[1] == pytest.approx([47.49386215, 47.49386215, 47.49386215, 90, 90, 90])
