"""The slow, obvious runner: one process, plain dicts, MDAnalysis's own iteration over frames, nothing of the engine.

It says what an analysis means, so that it is the oracle for the engine (`tests/engine/twin.py` runs it on made-up
frames) and for the built-in analyses.
"""

import copy
from typing import Any, NamedTuple

import MDAnalysis
import numpy as np

import himach
from himach.frame import Frame

RANK_OF_TYPE = {int: 0, float: 1, str: 2, bytes: 3, type(None): 4, tuple: 5}


class Results(dict):
    """What finish() gets: key -> result, and the table of rows, if there is one."""

    rows = None


class Stamp(NamedTuple):
    """When a value came."""

    frame: int
    step: int
    time: float
    box: Any


class Series:
    """One key's values in frame order, with the stamps of their frames and the layouts in which they were yielded."""

    def __init__(self, stamps, layouts, values):
        self.stamps, self._values = stamps, values
        self.frames = np.array([stamp.frame for stamp in stamps], dtype=np.int64)
        self.steps = np.array([stamp.step for stamp in stamps], dtype=np.int64)
        self.times = np.array([stamp.time for stamp in stamps], dtype=np.float64)
        boxes = [np.full(6, np.nan) if stamp.box is None else stamp.box for stamp in stamps]
        boxed = any(stamp.box is not None for stamp in stamps)
        self.boxes = np.array(boxes, dtype=np.float32) if boxed else None
        self.values = column(layouts, values)

    def __len__(self):
        return len(self.stamps)

    def __iter__(self):
        return zip([stamp.time for stamp in self.stamps], self._values, strict=True)


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

    groups, rows = {}, []  # as put() makes them; (stamp, names, cells)
    for position, number in enumerate(frames):
        timestep = universe.trajectory[number]
        frame = make_frame(universe, timestep, position)
        stamp = Stamp(number, position, frame.time, copy.copy(frame.box))
        for item in analysis.map(frame) or ():
            if isinstance(item, himach.Row):
                rows.append((stamp, item.names, item.values))
            else:
                put(groups, stamp, [item])
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
    results = list(reduced(analysis, groups))
    following = analysis.next_stage()
    if following is not None:
        following = copy.copy(following)
        following.frames, following.dt = analysis.frames, analysis.dt
        if universe is not None:
            universe.trajectory[analysis.frames[0]]
            following.setup(universe)
        return conclude(following, regroup(results), universe)
    results = Results({key: result for key, _, result in results if result is not None})
    if table is not None:
        results.rows = table
    if analysis.defines("finish"):
        return analysis.finish(results)
    return {"key": list(results), "result": list(results.values())}


def put(groups, stamp, yielded):
    """Put what map() or reduce() yields into groups: sortable key -> (key, list of (stamp, layout, value))."""
    for key, layout, value in pairs_of(yielded or ()):
        groups.setdefault(sortable(key), (plain_key(key), []))[1].append((stamp, layout, value))


def reduced(analysis, groups, combines=True):
    """Give of each key, in their order: the key, the stamp of its first frame, and what reduce() makes of it."""
    for _, (key, pairs) in sorted(groups.items(), key=lambda item: item[0]):
        series = Series(*zip(*pairs, strict=True))
        if combines and analysis.defines("combine"):
            series = Series(series.stamps[:1], ("item",), (analysis.combine(key, series),))
        yield key, series.stamps[0], analysis.reduce(key, series)


def regroup(results):
    """Group what the reduce() of one stage yielded for the next, stamped with the first frame of its series."""
    groups = {}
    for _, stamp, yielded in sorted(results, key=lambda result: result[1].frame):
        put(groups, stamp, yielded)
    return groups


def pairs_of(yielded):
    """Take what map() yields apart into keys, layouts, and copies of values."""
    for item in yielded:
        if isinstance(item, himach.Pairs):
            for row, key in enumerate(item.keys.tolist()):
                name = tuple(key) if isinstance(key, list) else key
                if item.values is None:
                    yield name, "presence", None
                else:
                    yield name, (item.values.dtype, item.values.shape[1:]), item.values[row].copy()
        else:
            yield item[0], "item", copy.deepcopy(item[1])


def column(layouts, values):
    """Return the values as reduce() gets them: None for presence, an array for Pairs or equal arrays, else a list."""
    if layouts[0] != "item" and all(layout == layouts[0] for layout in layouts):
        return None if layouts[0] == "presence" else np.array(values, dtype=layouts[0][0])
    plain = [isinstance(value, np.ndarray) and not value.dtype.hasobject for value in values]
    shapes = {(value.dtype, value.shape) if member else None for value, member in zip(values, plain, strict=True)}
    return np.stack(values) if len(shapes) == 1 and None not in shapes else list(values)


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


def sortable(key):
    """Return what sorts keys by type, then value."""
    key = plain_key(key)
    if isinstance(key, tuple):
        return 5, tuple(map(sortable, key))
    return RANK_OF_TYPE[type(key)], 0 if key is None else key


def plain_key(key):
    """Return a key without types of numpy, and without a negative zero."""
    if isinstance(key, tuple):
        return tuple(map(plain_key, key))
    key = key.item() if isinstance(key, np.generic) else key
    return key + 0.0 if isinstance(key, float) else key
