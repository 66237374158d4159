"""What a run does to each frame before map(): whole molecules, a group in the middle, a fit."""

import itertools

import MDAnalysis as mda
import numpy as np
import pytest
from MDAnalysis import transformations as peers
from MDAnalysis.lib.distances import minimize_vectors
from MDAnalysisTests.datafiles import DCD, GRO, PSF, TPR, XTC
from support.commands import himach as command

import himach
from himach.io.datasets.request import TransformOptions
from himach.transformations import Center, Cluster, Fit, NoJump, Whole, Wrap


def steps(**options):
    return {"transform": TransformOptions(**options).steps()}


def places_of(trajectory, topology, selection="name CA", **options):
    return himach.run(Places(selection=selection), trajectory, topology, cache="off", **options)["places"]


class Places(himach.Analysis):
    """Where some atoms are."""

    selection: str = "name CA"

    def setup(self, universe):
        self.indices = universe.select_atoms(self.selection).indices

    def atoms(self, universe):
        return universe.atoms[self.indices]

    def map(self, frame):
        yield 0, frame.positions[self.indices].astype(np.float64).ravel()

    def reduce(self, key, series):
        return np.array(series.values)

    def finish(self, results):
        return {"places": results[0].reshape(len(results[0]), -1, 3)}


@pytest.mark.parametrize(
    ("trajectory", "topology", "options"),
    [
        (XTC, TPR, {"whole": True, "wrap": "residues"}),
        (XTC, TPR, {"whole": True, "center": "protein"}),
        (XTC, TPR, {"whole": True, "cluster": "protein or resid 300:320"}),
        (DCD, PSF, {"fit": "backbone"}),
        (DCD, PSF, {"fit": "name CA", "reference": GRO}),
    ],
)
def test_a_run_on_any_ranks_sees_what_a_conversion_writes(trajectory, topology, options, tmp_path):
    """What that is tests/conversion/test_convert.py compares with MDAnalysis."""
    done = himach.convert(trajectory, topology, out=tmp_path / "out.trr", stop=4, cache="off", **options)
    written = [ts.positions.copy() for ts in mda.Universe(topology, str(done.path)).trajectory]
    results = [
        himach.run(Places(selection="all"), trajectory, topology, **steps(**options), stop=4, ranks=ranks, cache="off")
        for ranks in (None, 3)
    ]
    np.testing.assert_allclose(results[0]["places"], written, atol=2e-3)
    assert results[0]["places"].tobytes() == results[1]["places"].tobytes()
    for name in ("whole", "wrap", "center", "fit"):
        assert results[0].record[name] == options.get(name, False if name == "whole" else None)


@pytest.fixture(scope="module")
def wrapped(tmp_path_factory):
    """Water that walks far, wrapped into the box that AdK has: topology, trajectory, and where it really was."""
    folder = tmp_path_factory.mktemp("wrapped")
    universe = mda.Universe(GRO, XTC)
    box = universe.dimensions
    water = universe.select_atoms("name OW HW1 HW2 and resid 300:500")
    walk = np.random.default_rng(3).normal(0, 6, (40, len(water) // 3, 3)).cumsum(axis=0)
    true = (water.positions + np.repeat(walk, 3, axis=1)).astype(np.float32)
    small = mda.Merge(water)
    small.add_TopologyAttr("bonds", [(3 * i, 3 * i + j) for i in range(len(water) // 3) for j in (1, 2)])
    small.load_new(true.copy(), order="fac", dimensions=box)
    small.trajectory.add_transformations(peers.set_dimensions(box), peers.wrap(small.atoms))
    with mda.Writer(str(folder / "wrapped.dcd"), small.atoms.n_atoms) as writer:
        for _ in small.trajectory:
            writer.write(small.atoms)
    small.atoms.write(str(folder / "water.pdb"), bonds="all")
    return folder / "water.pdb", folder / "wrapped.dcd", true


class Oxygens(Places):
    selection: str = "name OW"


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize("whole", [False, True])
def test_atoms_are_followed_for_any_ranks(wrapped, tmp_path, whole):
    topology, trajectory, true = wrapped
    arguments = {**steps(whole=whole, nojump=True), "cache": "off"}
    result = [
        himach.run([Oxygens(), Places(selection="all")], trajectory, topology, ranks=ranks, **arguments)
        for ranks in (None, 3)
    ]
    for name in ("Oxygens/places", "Places/places"):
        assert result[0][name].tobytes() == result[1][name].tobytes()
    places = result[0]["Places/places"]
    np.testing.assert_array_equal(result[0]["Oxygens/places"], places[:, ::3])
    np.testing.assert_allclose(np.diff(places, axis=0), np.diff(true, axis=0), atol=2e-3)
    if whole:
        np.testing.assert_allclose(places[:, 1::3] - places[:, ::3], true[:, 1::3] - true[:, ::3], atol=2e-3)
    else:
        universe = mda.Universe(topology, trajectory, transformations=[peers.NoJump()])
        np.testing.assert_allclose(places, [ts.positions.copy() for ts in universe.trajectory], atol=2e-3)
    options = {name: value for name, value in arguments.items() if name != "cache"}
    subset = places_of(trajectory, topology, "name HW2", **options)  # with what it is bonded to
    np.testing.assert_array_equal(subset, places[:, 2::3])
    done = himach.convert(trajectory, topology, out=tmp_path / "out.trr", nojump=True, whole=whole, cache="off")
    written = [ts.positions.copy() for ts in mda.Universe(str(topology), str(done.path)).trajectory]
    np.testing.assert_allclose(places, written, atol=1e-5)
    arguments |= steps(whole=whole, nojump=True, center="name OW")
    centered = himach.run(Oxygens(), trajectory, topology, ranks=3, **arguments)["places"]
    moved = places[:, ::3] - places[:, ::3].mean(axis=1, keepdims=True)
    np.testing.assert_allclose(centered - centered.mean(axis=1, keepdims=True), moved, atol=2e-3)


@pytest.mark.parametrize("box", [[60, 70, 80, 90, 90, 90], [70, 70, 70, 60, 60, 90]])
def test_an_aggregate_that_the_boundary_cuts_becomes_one(box):
    """Molecules of three atoms in a chain that is longer than half the box, scattered over its images."""
    random, n = np.random.default_rng(4), 12
    universe = mda.Universe.empty(3 * n, n, atom_resindex=np.repeat(np.arange(n), 3), trajectory=True)
    universe.add_TopologyAttr("bonds", [(3 * i, 3 * i + j) for i in range(n) for j in (1, 2)])
    chain = np.cumsum(random.normal(3, 0.5, (n, 3)), axis=0)
    whole = (chain[:, np.newaxis] + random.normal(0, 0.5, (n, 3, 3))).reshape(-1, 3)
    universe.dimensions = box
    periods = np.repeat(random.integers(-2, 3, (n, 3)), 3, axis=0)
    periods[:3] = 0
    universe.atoms.positions = whole + periods @ universe.trajectory.ts.triclinic_dimensions
    universe.trajectory.add_transformations(Cluster(universe.atoms[:-3]))
    np.testing.assert_allclose(universe.atoms.positions[:-3], whole[:-3], atol=1e-4)
    stays = (whole + periods @ universe.trajectory.ts.triclinic_dimensions)[-3:]
    np.testing.assert_allclose(universe.atoms.positions[-3:], stays, atol=1e-4)  # not of the selection


@pytest.mark.parametrize("options", [{"nojump": True}, {"whole": True, "nojump": True, "fit": "name OW"}])
def test_a_frame_that_is_the_reference_is_as_the_run_sees_it(wrapped, tmp_path, options):
    topology, trajectory, _ = wrapped
    rmsd = himach.examples.load("rmsd")(selection="name OW", fit="none", reference=0)
    done = himach.convert(trajectory, topology, out=tmp_path / "out.trr", cache="off", **options)
    result = himach.run(rmsd, trajectory, topology, cache="off", **steps(**options))["rmsd"]["rmsd"]
    peer = himach.run(rmsd, done.path, topology, cache="off")["rmsd"]["rmsd"]
    np.testing.assert_allclose(result, peer, atol=3e-3)
    with pytest.raises(himach.AnalysisError, match="nojump follows atoms from the first selected frame, 5: take that"):
        himach.run(rmsd, trajectory, topology, cache="off", start=5, **steps(**options))


def test_the_box_of_fitted_frames_is_refused_by_name():
    for name, asks in (("rdf", "setup"), ("contacts", "map"), ("hydrogen-bonds", "setup")):
        with pytest.raises(himach.AnalysisError, match=rf"{name}.{asks}\(\) .*asks for the box, and fit has turned"):
            himach.run(himach.examples.load(name)(), XTC, TPR, transform=[Fit("name CA")], cache="off", stop=2)
    grid = himach.examples.load("density")(selection="name CA", grid=2.0)
    assert "volume" in himach.run(grid, XTC, TPR, transform=[Fit("name CA")], cache="off", stop=2).outcome


@pytest.mark.parametrize("frames", [{"start": 3, "step": 2}, {"frames": [1, 2, 7, 20, 39]}, {"step": -1}])
def test_atoms_are_followed_over_the_selected_frames(wrapped, frames, tmp_path):
    topology, trajectory, _ = wrapped
    places = places_of(trajectory, topology, "all", transform=[NoJump()], **frames)
    universe = mda.Universe(str(topology), str(trajectory))
    chosen = frames.get("frames", slice(frames.get("start"), None, frames.get("step")))
    arguments = np.array([ts.positions.copy() for ts in universe.trajectory[chosen]])
    whole = arguments[0].astype(np.float64)
    result = [whole]
    for before, after in itertools.pairwise(arguments):
        whole = whole + minimize_vectors(after - before, universe.dimensions)
        result.append(whole)
    np.testing.assert_allclose(places, result[::-1] if frames.get("step") == -1 else result, atol=2e-3)


def test_pairs_of_followed_atoms_are_kept(wrapped, tmp_path):
    topology, trajectory, _ = wrapped
    arguments = {"transform": [NoJump()], "pairs": tmp_path / "pairs", "cache": "off"}
    first = himach.run(Oxygens(), trajectory, topology, stop=20, **arguments)["places"]
    more = himach.run(Oxygens(), trajectory, topology, **arguments)
    assert more.record["reused"]["frames"] == 20
    alone = himach.run(Oxygens(), trajectory, topology, transform=[NoJump()], cache="off")["places"]
    assert more["places"].tobytes() == alone.tobytes()
    assert more["places"][:20].tobytes() == first.tobytes()
    again = himach.run(Oxygens(), trajectory, topology, **arguments)
    assert (again.record["reused"]["frames"], again["places"].tobytes()) == (40, alone.tobytes())
    other = himach.run(Oxygens(), trajectory, topology, start=4, **arguments)
    assert other.record["reused"]["frames"] == 0
    assert "nojump" in other.record["reused"]["reason"]


def test_cached_atoms_are_followed_without_the_others(wrapped, tmp_path):
    """A cache that holds the oxygens of frames is enough, where the trajectory is away."""
    topology, trajectory, _ = wrapped
    moved = tmp_path / trajectory.name
    moved.write_bytes(trajectory.read_bytes())
    arguments = {"topology": topology, "transform": [NoJump()], "cache": tmp_path / "store"}
    first = himach.run(Oxygens(), moved, **arguments)
    assert first.record["bytes"]["origin"] > 0
    again = himach.run(Oxygens(), moved, **arguments)
    assert again.record["bytes"]["origin"] == 0
    every = himach.run(Places(selection="all"), moved, **arguments)
    assert 0 < again.record["bytes"]["cache"] < every.record["bytes"]["cache"] + every.record["bytes"]["origin"]
    assert again["places"].tobytes() == first["places"].tobytes()


def test_each_analysis_of_a_pass_has_its_own_transformations_behind_those_of_the_run():
    class Shifted(Places):
        def setup(self, universe):
            super().setup(universe)
            universe.trajectory.add_transformations(peers.translate([1, 2, 3]))

    class Twice(Shifted):
        def setup(self, universe):
            super().setup(universe)
            universe.trajectory.add_transformations(peers.translate([1, 2, 3]))

    arguments = {"stop": 3, "cache": "off", "transform": [Fit("name CA")]}
    together = himach.run([Shifted(), Twice(), Places()], DCD, PSF, **arguments)
    plain = himach.run(Places(), DCD, PSF, **arguments)["places"]
    for one, times in ((Shifted, 1), (Twice, 2), (Places, 0)):
        alone = himach.run(one(), DCD, PSF, **arguments)["places"]
        assert together[f"{one.__name__}/places"].tobytes() == alone.tobytes()
        np.testing.assert_allclose(alone - plain, np.broadcast_to(np.array([1, 2, 3]) * times, plain.shape), atol=1e-4)


def test_the_record_tells_and_repeats_it(tmp_path):
    words = ["run", "rmsd", "-t", DCD, "-s", PSF, "--cache", "off", "-q", "--stop", "5"]
    command(*words, "--fit", "name CA", "-p", "fit=none", "--out", tmp_path / "one", code=0)
    command("run", "--rerun", tmp_path / "one", "--out", tmp_path / "two", "-q", code=0)
    assert (tmp_path / "one" / "rmsd.csv").read_bytes() == (tmp_path / "two" / "rmsd.csv").read_bytes()
    command(*words, "-p", "fit=none", "--out", tmp_path / "three", code=0)
    assert (tmp_path / "one" / "rmsd.csv").read_bytes() != (tmp_path / "three" / "rmsd.csv").read_bytes()


@pytest.mark.parametrize(
    ("transform", "words"),
    [
        ([Fit("protein"), Whole()], "in the order Whole, NoJump, Cluster, Center, Wrap, Fit"),
        ([Wrap(), Wrap(by="residues")], "stands there once"),
        (["whole"], "'whole' is none of himach.transformations: Whole, NoJump, Cluster, Center, Wrap, Fit"),
        ([Whole("protein")], "Whole takes all atoms"),
        ([Center(mda.Universe(PSF).atoms)], "Center takes a selection, not a group of atoms"),
        ([Fit("protein", np.zeros((3, 3)))], "the reference of Fit is a structure file"),
    ],
)
def test_a_transform_that_cannot_be_is_refused(transform, words):
    with pytest.raises(himach.UsageError, match=words):
        himach.run(Places(), DCD, PSF, cache="off", transform=transform)


@pytest.mark.parametrize("place", [np.nan, np.inf, 1e30])
def test_an_atom_that_is_at_no_place_cannot_be_followed(place, tmp_path):
    universe = mda.Universe.empty(2, trajectory=True, atom_resindex=[0, 0])
    universe.atoms.write(tmp_path / "two.gro")
    universe.dimensions = [10, 10, 10, 90, 90, 90]
    with mda.Writer(str(tmp_path / "two.dcd"), 2) as writer:
        for frame in range(4):
            universe.atoms.positions = [[1, place if frame == 2 else 1, 1], [2, 2, 2]]
            writer.write(universe.atoms)
    trajectory, topology = tmp_path / "two.dcd", tmp_path / "two.gro"
    with pytest.raises(himach.UsageError, match=r"frame 2: atoms cannot be followed to it, 1 of them: .*leave"):
        himach.convert(trajectory, topology, out=tmp_path / "out.dcd", nojump=True, cache="off")
    with pytest.raises(himach.UsageError, match=r"frame 2: atoms cannot be followed to it, 1 of them: .*leave"):
        places_of(trajectory, topology, "all", transform=[NoJump()])
    assert places_of(trajectory, topology, "all", transform=[NoJump()], frames=[0, 1, 3]).shape == (3, 2, 3)
