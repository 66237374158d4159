import pickle
import warnings

import MDAnalysis as mda
import numpy as np
import pytest
from MDAnalysis import transformations
from MDAnalysisTests import datafiles as data
from support.io_samples import FORMATS, make

import himach
from himach.errors import AnalysisError
from himach.frame import RawFrame
from himach.io.trajectories.origin import open_origin
from himach.io.universe.topology import copy_topology, load_topology
from himach.io.universe.view import View


@pytest.fixture(scope="module", params=["XTC", "TRR", "DCD"])
def opened(request):
    topology, trajectory = FORMATS[request.param]
    origin = open_origin([trajectory], topology)
    return origin, pickle.loads(pickle.dumps(load_topology(topology, origin))), mda.Universe(topology, trajectory)


def new_view(opened, **options):
    origin, topology, _ = opened
    return View(
        copy_topology(topology), origin, range(origin.n_frames), next(origin.read([0])), name="Shell", **options
    )


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_built_in_refuses_positions_that_are_no_numbers(tmp_path, value):
    universe = mda.Universe(data.PSF, data.DCD)
    broken = tmp_path / "broken.dcd"
    with mda.Writer(str(broken), universe.atoms.n_atoms) as writer:
        for ts in universe.trajectory[:6]:
            universe.atoms[50].position = [1, value if ts.frame == 3 else 2, 3]
            writer.write(universe.atoms)
    for name in ("rmsd", "clusters", "pca", "density", "radius-of-gyration"):
        given = {"bins": 4, "grid": 3.0} if name == "density" else {}
        analysis = himach.examples.load(name)(selection="protein", **given)
        for cache in ("off", tmp_path / "cache", tmp_path / "cache"):
            with pytest.raises(himach.TrajectoryError, match=r"in frame 3 the position of atom 50 \(.* is nan or inf"):
                himach.run(analysis, broken, data.PSF, cache=cache)
    assert himach.run(himach.examples.load("rmsd")(selection="index 0:9"), broken, data.PSF, cache="off")["rmsd"]


SELECTIONS = [
    "name CA",
    "protein and around 3.5 resid 1",
    "sphzone 6 resid 10",
    "point 10 10 10 8",
    "prop z > 3",
    "resid 5:9",
]
QUANTITIES = {
    "centre of mass": lambda group: group.center_of_mass(),
    "wrapped": lambda group: group.center_of_geometry(wrap=group.dimensions is not None),
    "radius of gyration": lambda group: group.radius_of_gyration(),
    "positions": lambda group: group.positions,
    "box": lambda group: group.dimensions if group.dimensions is not None else 0,
    "bounds": lambda group: group.bbox(),
    "residues": lambda group: group.residues.atoms.center(None, compound="residues"),
}


@pytest.mark.parametrize("copy", [False, True])
def test_groups_are_those_of_mdanalysis_at_each_frame(opened, copy):
    origin, _, theirs = opened
    view = new_view(opened)
    ours = view.universe
    groups = [
        (ours.select_atoms(s, updating=u), theirs.select_atoms(s, updating=u)) for s in SELECTIONS for u in (0, 1)
    ]
    for number in [0, 3, 1, origin.n_frames - 1, 0]:
        frame = view.bind(next(origin.read([number])), number, copy)
        ts = theirs.trajectory[number]
        assert (frame.number, frame.step, frame.time) == (number, number, ts.time)
        assert frame.universe is ours
        assert ours.trajectory.frame == ours.trajectory.ts.frame == number
        assert ours.trajectory.time == ts.time
        for mine, other in groups:
            np.testing.assert_array_equal(mine.indices, other.indices)
            for name, quantity in QUANTITIES.items():
                if len(mine):
                    np.testing.assert_array_equal(quantity(mine), quantity(other), err_msg=name)


def test_positions_are_one_memory(opened):
    origin = opened[0]
    view = new_view(opened)
    raw = next(origin.read([1]))
    frame = view.bind(raw, 1)
    assert frame.positions is raw.positions
    frame.positions[5] = [1, 2, 3]
    np.testing.assert_array_equal(view.universe.atoms[5].position, [1, 2, 3])
    view.universe.atoms.translate([1, 0, 0])
    np.testing.assert_array_equal(frame.positions[5], [2, 2, 3])


def test_views_do_not_see_each_others_changes(opened):
    origin = opened[0]
    first, second, third = new_view(opened), new_view(opened), new_view(opened)
    raw = next(origin.read([1]))
    kept = raw.positions.copy()
    for view in (third, second):  # whoever copies maps before the one who writes to the source's own memory
        frame = view.bind(raw, 1, copy=True)
        frame.positions[:] = 0
        np.testing.assert_array_equal(raw.positions, kept)
    frame = first.bind(raw, 1)
    np.testing.assert_array_equal(frame.positions, kept)
    second.universe.add_TopologyAttr("tempfactors")
    assert not hasattr(third.universe.atoms, "tempfactors")
    assert not hasattr(new_view(opened).universe.atoms, "tempfactors")


def test_setup_writes_do_not_reach_map(opened):
    origin = opened[0]
    view = new_view(opened)
    group = view.universe.select_atoms("prop x > 1000", updating=True)
    assert len(group) == 0
    view.universe.atoms.translate([5000, 0, 0])
    group.is_uptodate = False
    assert len(group) == origin.n_atoms
    view.bind(next(origin.read([0])), 0)
    assert len(group) == 0


def test_other_frames_are_out_of_reach(opened):
    trajectory = new_view(opened).universe.trajectory
    for move in (
        lambda: trajectory[1],
        lambda: trajectory[:2],
        lambda: list(trajectory),
        lambda: next(trajectory),
        trajectory.next,
        trajectory.rewind,
        lambda: list(trajectory[:]),
        lambda: trajectory[:][1],
        trajectory.timeseries,
    ):
        with pytest.raises(AnalysisError, match=r"Shell: .*each rank sees some frames only"):
            move()


def test_facts(opened):
    origin, _, theirs = opened
    trajectory = new_view(opened).universe.trajectory
    assert len(trajectory) == trajectory.n_frames == len(theirs.trajectory)
    assert trajectory.dt == pytest.approx(theirs.trajectory.dt)
    assert trajectory.totaltime == pytest.approx(theirs.trajectory.totaltime)
    assert trajectory.filename == origin.paths[0]
    assert trajectory.n_atoms == origin.n_atoms
    assert trajectory.ts.dt == trajectory.dt
    assert repr(trajectory)


def test_box_velocities_and_forces_come_and_go(tmp_path):
    universe = mda.Universe.empty(2)
    origin = open_origin([make(tmp_path / "a.xtc", list(range(9)), n_atoms=2)])
    some = np.ones((2, 3), np.float32)
    box = np.full(6, 90, np.float32)
    view = View(universe._topology, origin, range(9), RawFrame(0, 0.0, some.copy()))
    for number, has in enumerate([(0, 0, 0), (1, 1, 0), (0, 0, 1), (1, 1, 1), (0, 0, 0), (1, 0, 0)]):
        raw = RawFrame(
            number,
            0.0,
            some.copy(),
            *(value if h else None for value, h in zip((box, 2 * some, 3 * some), has, strict=True)),
        )
        frame = view.bind(raw, number)
        np.testing.assert_array_equal(frame.positions, some)
        ts = view.universe.trajectory.ts
        assert [frame.box is not None, frame.velocities is not None, frame.forces is not None] == [bool(h) for h in has]
        assert (view.universe.dimensions is not None, ts.has_velocities, ts.has_forces) == tuple(bool(h) for h in has)
        if has[1]:
            np.testing.assert_array_equal(view.universe.atoms.velocities, 2 * some)
            frame.velocities[:] = 7
            assert view.universe.atoms.velocities[0, 0] == 7


def test_transformations_run_on_every_frame(opened):
    origin, _, theirs = opened

    def turned(universe):
        group = universe.select_atoms("resid 1:20")
        return [transformations.translate([1, 2, 3]), transformations.rotate.rotateby(30, [0, 0, 1], ag=group), box]

    def box(ts):
        ts.dimensions = [50, 60, 70, 90, 90, 90]
        return ts

    view = new_view(opened)
    view.universe.trajectory.add_transformations(*turned(view.universe))
    reference = theirs.copy()
    reference.trajectory.add_transformations(*turned(reference))
    for number in (0, 2, 1):
        frame = view.bind(next(origin.read([number])), number)
        ts = reference.trajectory[number]
        np.testing.assert_array_equal(frame.positions, ts.positions)
        np.testing.assert_array_equal(frame.box, [50, 60, 70, 90, 90, 90])


@pytest.mark.parametrize("name", ["NoJump", "PositionAverager"])
def test_transformations_that_need_other_frames(opened, name):
    transformation = {
        "NoJump": transformations.nojump.NoJump,
        "PositionAverager": lambda: transformations.PositionAverager(3),
    }[name]()
    with pytest.raises(AnalysisError, match=rf"{name} needs other frames.*reduce\(\)"):
        new_view(opened).universe.trajectory.add_transformations(transformation)


def test_load_new_is_refused(opened):
    with pytest.raises(AnalysisError, match="load_new"):
        new_view(opened).universe.load_new(data.XTC)


def test_copy_stays_where_it_was_made(opened):
    origin = opened[0]
    view = new_view(opened)
    reference = view.universe.copy()
    before = reference.atoms.positions
    view.bind(next(origin.read([1])), 1)
    np.testing.assert_array_equal(reference.atoms.positions, before)
    assert reference.trajectory.frame == 0
    assert not np.array_equal(view.universe.atoms.positions, before)
    with pytest.raises(AnalysisError):
        reference.trajectory[1]


def test_writing_the_frame(opened, tmp_path):
    view = new_view(opened)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        view.universe.select_atoms("resid 1").write(tmp_path / "a.pdb")
        merged = mda.Merge(view.universe.select_atoms("resid 1"))
    assert len(merged.atoms) == len(view.universe.select_atoms("resid 1"))


def test_auxiliary(tmp_path):
    origin = open_origin([make(tmp_path / "a.xtc", [0, 1, 2, 3, 4], n_atoms=2)])
    np.savetxt(tmp_path / "a.xvg", [[t, 10 * t] for t in range(5)])
    view = View(mda.Universe.empty(2)._topology, origin, range(5), next(origin.read([0])))
    view.universe.trajectory.add_auxiliary("pull", str(tmp_path / "a.xvg"))
    for number in (0, 3, 1, 4):
        view.bind(next(origin.read([number])), number)
        assert view.universe.trajectory.ts.aux.pull[1] == 10 * number


class Reference(himach.Analysis):
    """Reads a frame in setup(), and another one in map() of frame 3."""

    number: int = 49

    def setup(self, universe):
        self.positions = universe.trajectory.positions_at(self.number)
        self.trajectory = universe.trajectory

    def map(self, frame):
        yield 0, self.positions[0]
        if frame.number == 3:
            self.trajectory.positions_at(0)

    def reduce(self, key, series):
        return series.values[0]

    def finish(self, results):
        return {"found": results[0]}


@pytest.mark.parametrize("number", [49, -1])
def test_positions_at_is_for_setup(number):
    universe = mda.Universe(data.PSF, data.DCD)
    result = himach.run(Reference(number=number), data.DCD, data.PSF, stop=2, cache="off")
    universe.trajectory[number]
    np.testing.assert_array_equal(result["found"], universe.atoms.positions[0])
    with pytest.raises(himach.AnalysisError, match="cannot be moved to other frames"):
        himach.run(Reference(number=number), data.DCD, data.PSF, stop=5, cache="off")
