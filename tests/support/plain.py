"""The slow, obvious runner: one process, plain dicts, MDAnalysis's own iteration over frames, nothing of the engine.

It says what an analysis means, so that it is the oracle for the engine and for the built-in analyses.
"""

import copy
from types import SimpleNamespace

import MDAnalysis
import numpy as np

import himach
from himach.frame import Frame


class Results(dict):
    """What finish() gets: key -> result, and the table of rows, if there is one."""

    rows = None


class Series:
    """One key's values in frame order, with the stamps of their frames."""

    def __init__(self, stamps, values):
        self.frames = np.array([stamp.frame for stamp in stamps], dtype=np.int64)
        self.steps = np.array([stamp.step for stamp in stamps], dtype=np.int64)
        self.times = np.array([stamp.time for stamp in stamps], dtype=np.float64)
        boxed = all(stamp.box is not None for stamp in stamps)
        self.boxes = np.array([stamp.box for stamp in stamps]) if boxed else None
        self.values = values

    def __len__(self):
        return len(self.frames)

    def __iter__(self):
        values = [None] * len(self) if self.values is None else self.values
        return zip(self.times, values, strict=True)


def run(analysis, trajectory, topology=None, *, start=None, stop=None, step=None, **keywords):
    """Run one analysis and return its outcome; arguments as those of himach.run(), keywords for MDAnalysis.Universe."""
    files = [str(name) for name in (topology, trajectory) if name is not None]
    universe = MDAnalysis.Universe(*files, **keywords)
    frames = range(len(universe.trajectory))[start:stop:step]
    analysis = copy.copy(analysis)
    analysis.frames = frames
    analysis.dt = spacing([universe.trajectory[number].time for number in frames])
    universe.trajectory[frames[0]]
    analysis.setup(universe)

    groups, rows = {}, []  # key -> list of (stamp, value); (stamp, names, cells)
    for position, number in enumerate(frames):
        timestep = universe.trajectory[number]
        frame = make_frame(universe, timestep, position)
        stamp = SimpleNamespace(frame=number, step=position, time=frame.time, box=copy.copy(frame.box))
        for item in analysis.map(frame) or ():
            if isinstance(item, himach.Row):
                rows.append((stamp, item.names, item.values))
                continue
            for key, value in pairs_of([item]):
                groups.setdefault(key, []).append((stamp, value))
    table = table_of(rows) if rows else None
    if analysis.yields_rows():
        return analysis.finish(table) if analysis.defines("finish") else table
    return conclude(analysis, groups, universe, table)


def table_of(rows):
    """Return the table of rows by frame: their stamps, the names of their cells, and these."""
    names = dict.fromkeys(name for _, names, _ in rows for name in names)
    cells = [dict(zip(names, values, strict=True)) for _, names, values in rows]
    columns = {name: [row.get(name) for row in cells] for name in names}
    times, numbers = [stamp.time for stamp, *_ in rows], [stamp.frame for stamp, *_ in rows]
    return himach.Table({"time_ps": himach.Column(times, "ps"), **columns, "frame": numbers})


def conclude(analysis, groups, universe=None, table=None):
    """Reduce all groups in key order, hand over to the next stage if there is one, and finish.

    Later stages are set up at the first frame, too, if there is a Universe.
    """
    results = {}
    for key in sorted(groups, key=order):
        stamps, values = zip(*groups[key], strict=True)
        if analysis.defines("combine"):
            stamps, values = stamps[:1], (analysis.combine(key, Series(stamps, column(values))),)
        results[key] = (stamps, analysis.reduce(key, Series(stamps, column(values))))

    following = analysis.next_stage()
    if following is not None:
        following = copy.copy(following)
        following.frames, following.dt = analysis.frames, analysis.dt
        if universe is not None:
            universe.trajectory[analysis.frames[0]]
            following.setup(universe)
        return conclude(following, regroup(results), universe)
    results = Results({key: result for key, (_, result) in results.items() if result is not None})
    if table is not None:
        results.rows = table
    if analysis.defines("finish"):
        return analysis.finish(results)
    return {"key": list(results), "result": list(results.values())}


def regroup(results):
    """Group what the reduce() of one stage yielded for the next, stamped with the first frame of its series."""
    groups = {}
    for stamps, yielded in results.values():
        for key, value in pairs_of(yielded or ()):
            groups.setdefault(key, []).append((stamps[0], value))
    return {key: sorted(pairs, key=lambda pair: pair[0].frame) for key, pairs in groups.items()}


def pairs_of(yielded):
    """Take what map() yields apart into copies of keys and values; a value of Pairs comes as a one-row array."""
    for item in yielded:
        if isinstance(item, himach.Pairs):
            keys = item.keys.tolist()
            values = [Present] * len(keys) if item.values is None else [Row(value) for value in item.values.copy()]
            yield from zip([tuple(key) if isinstance(key, list) else key for key in keys], values, strict=True)
        else:
            key, value = item
            yield (key.item() if isinstance(key, np.generic) else key), copy.deepcopy(value)


class Present:
    """The value of a key that is merely present."""


class Row:
    """A value that came in Pairs and belongs into an array again."""

    def __init__(self, value):
        self.value = value


def column(values):
    """Return the values as reduce() gets them: None for presence, an array for Pairs, else a list."""
    if all(value is Present for value in values):
        return None
    if all(isinstance(value, Row) for value in values):
        return np.array([row.value for row in values])
    plain = all(isinstance(value, np.ndarray) and not value.dtype.hasobject for value in values)
    if plain and len({(v.dtype, v.shape) for v in values}) == 1:
        return np.array(values)
    return [value.value if isinstance(value, Row) else None if value is Present else value for value in values]


def make_frame(universe, timestep, position):
    """Return the frame that map() sees."""
    return Frame(
        number=timestep.frame, step=position, time=timestep.time, positions=timestep.positions, box=timestep.dimensions,
        velocities=timestep.velocities if timestep.has_velocities else None,
        forces=timestep.forces if timestep.has_forces else None, universe=universe,
    )  # fmt: skip


def spacing(times):
    """Return the time between frames, None where it is uneven or there is but one."""
    steps = np.diff(times)
    if not len(steps) or not np.allclose(steps, steps[0], rtol=1e-3):
        return None
    return float((times[-1] - times[0]) / len(steps))


def order(key):
    """Return what sorts keys by type, then value: None, int, float, str, bytes, tuple."""
    if isinstance(key, tuple):
        return 5, tuple(order(part) for part in key)
    kinds = [type(None), int, float, str, bytes]
    return kinds.index(type(key)), 0 if key is None else key
