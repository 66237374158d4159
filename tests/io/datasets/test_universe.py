"""Runs over a Universe of files, chains, memory; with what was added to it; what cannot be taken is refused."""

import gc
import io
import os
import pickle
from pathlib import Path

import MDAnalysis
import numpy as np
import pytest
from MDAnalysis import transformations
from MDAnalysisTests import datafiles as data
from support import cache_data

import himach
from himach.io.datasets.universe_input import from_universe
from himach.ranks.shared_arrays import SharedArrays


def adk(**keywords):
    return MDAnalysis.Universe(data.PSF, data.DCD, **keywords)


class Seen(himach.Analysis):
    """All that a frame and the topology say, summed."""

    def setup(self, universe):
        self.names = "".join(getattr(universe.atoms, "names", [])[:5])
        self.charge = float(universe.atoms.charges.sum()) if hasattr(universe.atoms, "charges") else None
        self.bonds = len(universe.bonds) if hasattr(universe, "bonds") else None
        self.first = float(universe.atoms.positions.astype(float).sum())

    def map(self, frame):
        yield frame.number, told(frame.universe.trajectory.ts)

    def reduce(self, key, series):
        return series.values[0]

    def finish(self, results):
        return {
            "topology": (self.names, self.charge, self.bonds),
            "first": self.first,
            "frames": list(results.values()),
        }


def told(ts):
    fields = [ts.positions, ts.velocities if ts.has_velocities else None, ts.forces if ts.has_forces else None]
    box = None if ts.dimensions is None else ts.dimensions.tolist()
    return (round(ts.time, 4), [None if field is None else field.tobytes() for field in fields], box)


def run(universe, /, **options):
    return himach.run(Seen(), universe, cache="off", **options)


def same(universe, ranks=None, **selection):
    """Check that a run sees what going over the trajectory sees, and leaves the Universe where it is."""
    universe.trajectory[1]
    result = run(universe, ranks=ranks, **selection)
    assert universe.trajectory.frame == 1
    frames = slice(*(selection.get(name) for name in ("start", "stop", "step")))
    assert result["frames"] == [told(ts) for ts in universe.trajectory[frames]]
    return result


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize(
    "made",
    [
        adk,
        lambda: MDAnalysis.Universe(data.GRO, data.TRR),
        lambda: MDAnalysis.Universe(data.GRO, data.XTC, dt=5.0),
        lambda: MDAnalysis.Universe(data.PDB_small, data.DCD2),
        lambda: MDAnalysis.Universe(data.LAMMPSdata2, data.LAMMPSdcd2, format="LAMMPS"),
        lambda: MDAnalysis.Universe(data.TRZ_psf, data.TRZ),
        lambda: MDAnalysis.Universe(data.GMS_ASYMOPT),
    ],
    ids=["dcd", "trr", "xtc with dt", "pdb", "lammps dcd", "trz", "gamess"],
)
def test_a_universe_of_files(made):
    same(made(), start=2, step=7)


def test_a_chain_of_files():
    universe = MDAnalysis.Universe(data.PSF, [data.DCD, data.DCD2], dt=2.0)
    result = run(universe, step=20)
    expected = [told(ts)[1:] for ts in universe.trajectory[::20]]
    assert [frame[1:] for frame in result["frames"]] == expected
    assert result.record["trajectory"] == [data.DCD, data.DCD2]
    assert result.record["universe"] == {"dt": 2.0}
    assert result.record["topology"] == data.PSF


def test_a_chain_whose_files_overlap(tmp_path):
    topology, whole = cache_data.make(tmp_path, 20)
    universe = MDAnalysis.Universe(topology, whole)
    paths = [tmp_path / "first.trr", tmp_path / "later.trr"]
    for path, frames in zip(paths, (slice(0, 12), slice(8, 20)), strict=True):
        universe.atoms.write(path, frames=universe.trajectory[frames])
    same(MDAnalysis.Universe(topology, paths, continuous=True))
    with pytest.raises(himach.UsageError, match=r"the Universe has 24 frames, and a run sees 20.*continuous=True"):
        run(MDAnalysis.Universe(topology, paths))


def test_a_reader_that_was_named_is_used(tmp_path):
    path = tmp_path / "trajectory.unknown"
    path.symlink_to(data.DCD)
    same(MDAnalysis.Universe(data.PSF, str(path), format="DCD"), step=30)


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize(("order", "ranks"), [("fac", None), ("afc", None), ("afc", 2)])
def test_a_universe_in_memory(order, ranks):
    source = MDAnalysis.Universe(data.GRO, data.TRR)
    frames = [ts.copy() for ts in source.trajectory]
    arrays = {
        name: np.array([getattr(ts, name) for ts in frames], dtype=np.float32) for name in ("positions", "velocities")
    }
    if order == "afc":
        arrays = {name: np.ascontiguousarray(array.transpose(1, 0, 2)) for name, array in arrays.items()}
    boxes = np.array([ts.dimensions for ts in frames])
    universe = MDAnalysis.Universe(
        data.GRO, arrays["positions"], velocities=arrays["velocities"], order=order, dt=4.0, dimensions=boxes
    )
    same(universe, ranks=ranks, step=3)


def test_what_lies_in_memory_counts_and_not_the_file_that_it_came_from():
    universe = adk(in_memory=True, in_memory_step=10)
    universe.trajectory.coordinate_array[3] += 5
    result = same(universe, ranks=2)
    assert len(result["frames"]) == 10
    assert result.record["analyses"][0]["unrepeatable"]
    assert result.record["trajectory"] == ["memory"]
    assert result.record["frames"] == 10


def test_a_run_over_memory_writes_nothing_into_it():
    class Moves(himach.Analysis):
        def map(self, frame):
            frame.positions[:] = 0
            yield 0, 1

        def reduce(self, key, series):
            return len(series)

    universe = adk(in_memory=True)
    before = universe.trajectory.coordinate_array.copy()
    himach.run(Moves(), universe)
    np.testing.assert_array_equal(universe.trajectory.coordinate_array, before)


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize(("memory", "ranks"), [(False, None), (True, None), (False, 2)])
def test_the_topology_is_as_it_is_now(memory, ranks):
    universe = adk(in_memory=memory)
    universe.atoms[:5].names = ["A", "B", "C", "D", "E"]
    universe.atoms.charges = 0.5
    universe.add_bonds([(0, 3000)])
    names, charge, bonds = run(universe, stop=1, ranks=ranks)["topology"]
    assert (names, charge, bonds) == ("ABCDE", len(universe.atoms) / 2, len(universe.bonds))
    assert run(adk(), stop=1)["topology"][0] != "ABCDE"


def scaled(ts):
    ts.positions *= 2
    return ts


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize("ranks", [None, 2])
def test_transformations_work_for_the_universe_of_the_run(ranks):
    universe = adk()
    ca, near = universe.select_atoms("name CA"), universe.select_atoms("prop x < 0", updating=True)
    fit = transformations.fit_rot_trans(ca, adk().select_atoms("name CA"))
    universe.trajectory.add_transformations(fit, transformations.center_in_box(near, point=[1, 2, 3]), scaled)
    result = same(universe, ranks=ranks, start=3, step=20)
    universe.trajectory[3]
    assert result["first"] == float(universe.atoms.positions.astype(float).sum()), "setup() saw another frame"


def test_transformations_in_memory_are_not_applied_twice():
    universe = adk(in_memory=True)
    universe.trajectory.add_transformations(transformations.translate([1, 2, 3]))
    same(universe, step=30)


def test_what_kept_pairs_would_not_know_is_not_kept(tmp_path):
    moved = adk()
    moved.trajectory.add_transformations(transformations.translate([1, 2, 3]))
    for universe, said in ((moved, "add these in setup"), (adk(in_memory=True), "memory")):
        for option in ({"pairs": tmp_path / "pairs"}, {"max_time": 60, "out": tmp_path / "out"}):
            with pytest.raises(himach.UsageError, match=f"(?s){next(iter(option))} cannot be had.*{said}"):
                run(universe, **option)
    assert not list(tmp_path.iterdir())
    assert run(adk(), stop=3, pairs=tmp_path).record["reused"]["frames"] == 0
    changed = adk()
    assert run(changed, stop=3, pairs=tmp_path).record["reused"]["frames"] == 3
    changed.atoms[:1].names = "X"
    assert "topology" in run(changed, stop=3, pairs=tmp_path).record["reused"]["reason"]


def refused(universe, said, /, **options):
    with pytest.raises(himach.UsageError, match=said):
        run(universe, **options)


def test_what_cannot_be_taken_is_refused_by_name(tmp_path):
    universe = adk()
    refused(universe, "topology: the run takes that of the Universe", topology=data.PSF)
    refused(universe, "universe: the run takes", universe={"dt": 1})
    refused(universe.atoms, "is no trajectory; give a file, several, the name of a dataset, or a Universe")
    refused(5, "is no trajectory")
    refused(MDAnalysis.Universe(data.PSF), "has no trajectory to analyse")
    stream = MDAnalysis.lib.util.NamedStream(io.StringIO(Path(data.PDB_small).read_text()), "x.pdb")
    refused(MDAnalysis.Universe(stream), "stream .* in place of a file")
    arrays = [np.zeros((2, 3341, 3), dtype=np.float32)] * 2
    refused(MDAnalysis.Universe(data.PSF, arrays), "an array in memory in place of a file")
    universe.trajectory.add_transformations(transformations.PositionAverager(3))
    refused(universe, "PositionAverager needs other frames")
    aux = tmp_path / "aux.xvg"
    aux.write_text("".join(f"{i} {i}\n" for i in range(98)))
    universe = adk()
    universe.trajectory.add_auxiliary("pull", str(aux))
    refused(universe, "auxiliary 'pull' is not taken")


def test_arrays_are_sent_once_and_go_with_who_sends_them():
    arrays = {"a": np.arange(12.0).reshape(3, 4), "none": np.empty((0, 3)), "b": np.arange(5, dtype=np.uint8)}
    shared = SharedArrays(arrays)
    sent = pickle.dumps(shared)
    assert len(sent) < 500
    assert pickle.dumps(shared) == sent
    there = pickle.loads(sent)
    for name, array in arrays.items():
        np.testing.assert_array_equal(there.arrays[name], array)
        assert there.arrays[name].dtype == array.dtype
    assert not there.arrays["a"].flags.writeable
    path = shared._place.path
    assert os.path.exists(path)
    mapped = there.arrays["a"]
    del shared
    gc.collect()
    assert not os.path.exists(path)
    np.testing.assert_array_equal(mapped, arrays["a"])  # what is mapped stays


def test_taking_a_universe_reads_no_frame(monkeypatch):
    universe = adk()
    monkeypatch.setattr(type(universe.trajectory), "_read_frame", None)
    assert from_universe(universe).n_frames == 98
