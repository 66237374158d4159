"""Trajectories written anew: beside MDAnalysis's writer and transformations, beside GROMACS, on any ranks."""

import hashlib
import json
import warnings
from functools import partial
from pathlib import Path

import MDAnalysis as mda
import numpy as np
import pytest
from MDAnalysis import transformations as peers
from MDAnalysis.lib.distances import minimize_vectors
from MDAnalysis.lib.formats.libmdaxdr import TRRFile
from MDAnalysis.lib.mdamath import triclinic_vectors
from MDAnalysisTests.datafiles import DCD, GRO, PSF, TPR, TRR, XTC

import himach
from himach.errors import UsageError
from himach.frame import RawFrame
from himach.io.trajectories.layouts import Content, NetCdf

pytestmark = pytest.mark.filterwarnings("ignore")
convert = partial(himach.convert, cache="off")
of_sources = pytest.mark.parametrize(
    ("topology", "trajectory", "select"), [(GRO, TRR, "protein"), (PSF, DCD, "name CA"), (GRO, XTC, "index 0:8")]
)


@pytest.fixture(scope="module")
def three():
    with himach.Ranks(3, oversubscribe=True) as ranks:
        yield ranks


def written(path, topology, trajectory, select, *transformations, **keywords):
    """Write what MDAnalysis writes."""
    universe = mda.Universe(topology, trajectory)
    universe.trajectory.add_transformations(*(make(universe) for make in transformations))
    atoms = universe.select_atoms(select)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with mda.Writer(str(path), atoms.n_atoms, **keywords) as writer:
            for _ in universe.trajectory:
                writer.write(atoms)
    return path


def positions(path, topology):
    universe = mda.Universe(str(topology), str(path))
    return np.array([ts.positions.copy() for ts in universe.trajectory])


@pytest.mark.nightly(but=1)
@of_sources
def test_bytes_of_xtc_are_those_of_mdanalysis_for_any_ranks(tmp_path, topology, trajectory, select, three):
    peer = written(tmp_path / "peer.xtc", topology, trajectory, select)
    for name, ranks in (("one.xtc", None), ("three.xtc", three)):
        done = convert(trajectory, topology, out=tmp_path / name, select=select, ranks=ranks)
        assert done.path.read_bytes() == peer.read_bytes()
    assert (done.path, done.topology) == (tmp_path / "three.xtc", tmp_path / "three.pdb")
    pair = mda.Universe(str(done.topology), str(done.path))
    assert (done.frames, done.atoms) == (len(pair.trajectory), pair.atoms.n_atoms)


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize("suffix", ["trr", "dcd", "nc"])
@of_sources
def test_frames_are_those_of_the_trajectory(tmp_path, suffix, topology, trajectory, select, three):
    for name, ranks in (("one", None), ("three", three)):
        out = tmp_path / f"{name}.{suffix}"
        done = convert(trajectory, topology, out=out, select=select, ranks=ranks)
    assert (tmp_path / f"one.{suffix}").read_bytes() == done.path.read_bytes()
    written, source = mda.Universe(str(done.topology), str(done.path)), mda.Universe(topology, trajectory)
    atoms = source.select_atoms(select)
    assert len(written.trajectory) == len(source.trajectory)
    for ours, theirs in zip(written.trajectory, source.trajectory, strict=True):
        np.testing.assert_allclose(ours.positions, atoms.positions, atol=1e-4)
        assert ours.time == pytest.approx(theirs.time, abs=1e-2 if suffix == "dcd" else 1e-4)
        assert (ours.dimensions is None) == (theirs.dimensions is None)
        if theirs.dimensions is not None:
            np.testing.assert_allclose(ours.dimensions, theirs.dimensions, atol=1e-3)
        if suffix != "dcd":
            assert ours.has_velocities == theirs.has_velocities
        if ours.has_velocities:
            np.testing.assert_allclose(ours.velocities, atoms.velocities, atol=1e-4)


@pytest.mark.parametrize("select", ["all", "name CA CB N C", "resid 5:20 40 and not name H*"])
def test_the_topology_beside_it_is_that_of_mdanalysis(tmp_path, select):
    done = convert(DCD, PSF, out=tmp_path / "out.dcd", select=select, stop=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mda.Universe(PSF, DCD).select_atoms(select).write(str(tmp_path / "peer.pdb"))

    def lines(path):
        return [line for line in path.read_text().splitlines() if not line.startswith(("TITLE", "REMARK"))]

    assert lines(done.topology) == lines(tmp_path / "peer.pdb")


def test_times_of_a_dcd_file_are_those_of_the_selected_frames(tmp_path):
    times = [ts.time for ts in mda.Universe(PSF, DCD).trajectory]
    for name, frames in (("odd", {"start": 1, "step": 2}), ("alone", {"start": 7, "stop": 8})):
        done = convert(DCD, PSF, out=tmp_path / f"{name}.dcd", **frames)
        written_times = [ts.time for ts in mda.Universe(PSF, str(done.path)).trajectory]
        assert written_times == pytest.approx(
            times[slice(*(frames.get(word) for word in ("start", "stop", "step")))], rel=1e-6
        )
    with pytest.raises(himach.UsageError, match="at even times, and these run backwards"):
        convert(DCD, PSF, out=tmp_path / "back.dcd", step=-1)


def test_atoms_that_are_not_written_are_not_needed(tmp_path):
    """What is written of some atoms is what is written of all, by steps that need others."""
    steps = {"whole": True, "nojump": True, "center": "protein", "wrap": "residues", "fit": "name CA"}
    for name, select in (("all", "all"), ("some", "resname SOL and resid 5000:5100 or name NA")):
        convert(XTC, TPR, out=tmp_path / f"{name}.trr", select=select, stop=3, **steps)
    chosen = mda.Universe(TPR).select_atoms("resname SOL and resid 5000:5100 or name NA").indices
    every, selected = (
        positions(tmp_path / f"{name}.trr", topology)
        for name, topology in (("all", TPR), ("some", tmp_path / "some.pdb"))
    )
    np.testing.assert_array_equal(selected, every[:, chosen])


def test_each_step_is_the_shortest_in_its_box(tmp_path, three):
    universe = mda.Universe(GRO, XTC)
    frames = [(ts.positions.copy(), ts.dimensions.copy()) for ts in universe.trajectory]
    for name, ranks in (("one", None), ("three", three)):
        convert(XTC, GRO, out=tmp_path / f"{name}.trr", nojump=True, ranks=ranks)
    assert (tmp_path / "one.trr").read_bytes() == (tmp_path / "three.trr").read_bytes()
    paths = positions(tmp_path / "one.trr", GRO)
    np.testing.assert_allclose(paths[0], frames[0][0], atol=1e-3)
    for i in range(1, len(paths)):
        (before, _), (after, box) = frames[i - 1 : i + 1]
        shortest = minimize_vectors(after - before, box)
        np.testing.assert_allclose(
            np.linalg.norm(paths[i] - paths[i - 1], axis=1), np.linalg.norm(shortest, axis=1), atol=2e-3
        )
        images = (paths[i] - after) @ np.linalg.inv(triclinic_vectors(box))
        if i == 1:
            np.testing.assert_allclose(images, np.rint(images), atol=1e-3)


@pytest.mark.slow
def test_center_and_fit_are_those_of_mdanalysis(tmp_path):
    def centered(universe):
        return peers.center_in_box(universe.select_atoms("protein"))

    def fitted(universe):
        return peers.fit_rot_trans(universe.select_atoms("name CA"), mda.Universe(GRO).select_atoms("name CA"))

    peer = written(tmp_path / "peer.trr", TPR, XTC, "protein", centered)
    done = convert(XTC, TPR, out=tmp_path / "center.trr", select="protein", center="protein")
    np.testing.assert_allclose(positions(done.path, done.topology), positions(peer, done.topology), atol=2e-3)
    peer = written(tmp_path / "peer.trr", TPR, XTC, "protein", fitted)
    done = convert(XTC, TPR, out=tmp_path / "fit.trr", select="protein", fit="name CA", reference=GRO)
    np.testing.assert_allclose(positions(done.path, done.topology), positions(peer, done.topology), atol=5e-3)


def test_velocities_of_some_frames_are_theirs_alone(tmp_path):
    universe = mda.Universe(GRO, TRR)
    n_atoms = len(universe.atoms)
    for name, frames, has in (("a", slice(0, 3), True), ("b", slice(3, 6), False)):
        with TRRFile(str(tmp_path / f"{name}.trr"), "w") as file:
            for ts in universe.trajectory[frames]:
                velocities = ts.velocities if has else None
                file.write(ts.positions, velocities, None, np.eye(3), ts.frame, ts.time, 0, n_atoms)
    parts = [tmp_path / "a.trr", tmp_path / "b.trr"]
    done = convert(parts, GRO, out=tmp_path / "both.trr")
    with TRRFile(str(done.path)) as file:
        assert [bool(frame.hasv) for frame in file] == [True] * 3 + [False] * 3
    for order in (parts, parts[::-1]):
        done = convert(order, GRO, out=tmp_path / "both.nc", force=True, universe={"dt": 1})
        assert not mda.Universe(GRO, str(done.path)).trajectory.ts.has_velocities
        assert any("velocities are left out: not all frames have them" in text for text in done.warnings)
    with pytest.raises(UsageError, match=r"frame 3 lacks velocities .* write \.trr"):
        NetCdf(Content(6, 4, has_velocities=True)).frame(RawFrame(3, 0.0, np.zeros((4, 3), np.float32)))


def test_a_structure_file_takes_one_frame_and_a_pdb_file_is_its_own_topology(tmp_path):
    done = convert(TRR, GRO, out=tmp_path / "one.gro", stop=1, select="protein")
    expected = mda.Universe(GRO, TRR).select_atoms("protein")
    np.testing.assert_allclose(mda.Universe(str(done.path)).atoms.positions, expected.positions, atol=0.005)
    assert (done.frames, done.topology) == (1, tmp_path / "one.pdb")
    done = convert(TRR, GRO, out=tmp_path / "all.pdb", stop=3, select="protein")
    assert (done.path, done.topology) == (tmp_path / "all.pdb",) * 2
    assert len(mda.Universe(str(done.path)).trajectory) == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all.pdb", "one.gro", "one.pdb"]


def test_a_frame_that_a_format_cannot_hold_is_named(tmp_path):
    universe = mda.Universe.empty(4, trajectory=True)
    universe.add_TopologyAttr("name", ["C"] * 4)
    universe.atoms.write(str(tmp_path / "top.pdb"))
    with mda.Writer(str(tmp_path / "far.xtc"), 4) as writer:
        for x in (0, -2000):
            universe.atoms.positions = np.full((4, 3), x)
            writer.write(universe.atoms)
    source = {"trajectory": tmp_path / "far.xtc", "topology": tmp_path / "top.pdb"}
    with pytest.raises(UsageError, match=r"all\.pdb: frame 1: PDB files .* -1000.*; choose another format"):
        convert(**source, out=tmp_path / "all.pdb")
    with pytest.raises(UsageError, match=r"last\.pdb cannot be written: .*; name another file by topology_out"):
        convert(**source, out=tmp_path / "last.xtc", start=1)
    convert(**source, out=tmp_path / "last.xtc", start=1, topology_out=tmp_path / "last.gro")
    assert np.allclose(mda.Universe(str(tmp_path / "last.gro"), str(tmp_path / "last.xtc")).atoms.positions, -2000)


def test_velocities_are_kept_and_turn_with_the_fit(tmp_path):
    done = convert(TRR, GRO, out=tmp_path / "out.trr", select="protein", fit="protein", stop=3)
    written, source = mda.Universe(str(done.topology), str(done.path)), mda.Universe(GRO, TRR)
    protein = source.select_atoms("protein")
    written.trajectory[2], source.trajectory[2]
    np.testing.assert_allclose(
        np.linalg.norm(written.atoms.velocities, axis=1), np.linalg.norm(protein.velocities, axis=1), rtol=1e-3
    )
    assert np.abs(written.atoms.velocities - protein.velocities).max() > 1


def test_the_record_tells_what_was_done(tmp_path, three):
    record, out = tmp_path / "out.json", tmp_path / "out.xtc"
    options = {"select": "name CA", "whole": True, "fit": "name CA", "reference": GRO}
    convert(DCD, PSF, out=out, **options, stop=5, step=2, record=record, ranks=three)
    entries = json.loads(record.read_text())
    assert entries["dataset"]["path"] == DCD
    assert entries["digests"] == {name: hashlib.sha256(Path(name).read_bytes()).hexdigest() for name in (PSF, GRO)}
    nothing = dict.fromkeys(("cluster", "center", "wrap"))
    assert entries["asked"] == {**options, "topology": PSF, "nojump": False, **nothing}
    assert entries["selected"] == [0, 5, 2]
    assert entries["done"] == ["whole", f"fitted by 'name CA' to {GRO}"]
    written = {"path": str(out), "frames": 3, "atoms": 214, "n_bytes": out.stat().st_size}
    assert entries["written"].items() >= written.items()
    assert (entries["ranks"], entries["warnings"], entries["versions"]["himach"]) == (3, [], himach.__version__)
    with pytest.raises(himach.UsageError, match=r"out\.json is there already"):
        convert(DCD, PSF, out=tmp_path / "new.xtc", record=record)
    assert not (tmp_path / "new.xtc").exists()


def test_bonds_are_guessed_and_that_is_said(tmp_path):
    trajectory, topology = tmp_path / "few.xtc", tmp_path / "few.gro"
    few = mda.Universe(GRO, XTC).select_atoms("index 0:299")
    few.write(str(topology))
    few.write(str(trajectory), frames="all")
    with pytest.warns(UserWarning, match="no bonds: .* were guessed"):
        done = convert(trajectory, topology, out=tmp_path / "out.xtc", whole=True, stop=1)
    assert done.frames == 1


def test_other_formats_are_written_by_one_rank(tmp_path, three):
    done = convert(DCD, PSF, out=tmp_path / "out.xyz", stop=4, ranks=three)
    assert len(mda.Universe(str(done.path)).trajectory) == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.pdb", "out.xyz"]


def test_files_that_are_there_stay(tmp_path):
    out = tmp_path / "out.xtc"
    out.write_bytes(b"mine")
    with pytest.raises(himach.UsageError, match="is there already"):
        convert(DCD, PSF, out=out)
    assert out.read_bytes() == b"mine"
    with pytest.raises(himach.UsageError, match="no box"):
        convert(DCD, PSF, out=out, nojump=True, force=True)
    assert out.read_bytes() == b"mine"
    assert convert(DCD, PSF, out=out, stop=2, force=True).frames == 2
    assert len(mda.Universe(PSF, str(out)).trajectory) == 2


def test_what_is_read_is_not_written(tmp_path):
    source = tmp_path / "in.dcd"
    source.write_bytes(Path(DCD).read_bytes())
    (tmp_path / "link.dcd").symlink_to(source)
    for name in ("in.dcd", "link.dcd"):
        with pytest.raises(himach.UsageError, match="is what is read"):
            convert(source, PSF, out=tmp_path / name, force=True)
    assert source.read_bytes() == Path(DCD).read_bytes()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"select": "name XX"}, "select"),
        ({"fit": "name XX"}, "fit"),
        ({"center": "protein"}, "no box"),
        ({"reference": PSF}, "fit"),
        ({"fit": "name CA", "reference": "/nowhere.pdb"}, "reference"),
        ({"frames": "0,5,98"}, "98"),
        ({"wrap": "everything"}, "wrap"),
        ({"topology_out": "out.xtc"}, "both"),
        ({"out": "himach://adk"}, "himach://adk cannot be written"),
        ({"trajectory": "imd://127.0.0.1:9", "topology": PSF}, "is a running engine: 'himach follow'"),
        ({"out": "himach://"}, "himach:// names no dataset"),
        ({"out": "himach://../adk"}, "himach://../adk names no dataset"),
        ({"out": "out.gro"}, "^out.gro: MDAnalysis writes no trajectory of this suffix"),
        ({"out": "out.nothing", "stop": 1}, "^out.nothing: MDAnalysis writes no file of this suffix"),
        ({"out": "out.nothing"}, "^out.nothing: MDAnalysis writes no trajectory of this suffix"),
        ({"record": "out.pdb"}, "both the record and"),
        ({"out": "out.h5md"}, "himach reads H5MD and does not write it"),
    ],
)
def test_errors_name_what_is_wrong(tmp_path, options, words, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(himach.UsageError, match=words):
        convert(**{"trajectory": DCD, "topology": PSF, "out": "out.xtc", **options})
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def members(tmp_path):
    """Return three members, of two topologies, of which the last is damaged."""
    damaged = tmp_path / "damaged.xtc"
    damaged.write_bytes(Path(XTC).read_bytes()[:1000])
    return [
        himach.Member("apo", DCD, PSF, stop=7),
        himach.Member("300 K: holo", XTC, GRO),
        himach.Member("torn", damaged, GRO),
    ]


@pytest.mark.parametrize("ranks", [None, "three"])
def test_members_of_an_ensemble_are_written_as_each_by_itself(tmp_path, members, ranks, three):
    well, pattern = members[:2], tmp_path / "{member}.xtc"
    options = {"select": "protein", "fit": "name CA"}
    own = []
    for member in well:
        single = {"trajectory": member.trajectory, "topology": member.topology, "stop": member.stop, "force": True}
        own.append(convert(**single, out=tmp_path / "own.xtc", **options).path.read_bytes())
    done = convert(ensemble=well, out=pattern, ranks=three if ranks else None, **options)
    assert (done.path, done.frames, list(done.members)) == (pattern, 17, ["apo", "300 K: holo"])
    assert [member.path.read_bytes() for member in done.members.values()] == own
    assert done.members["apo"].path == tmp_path / "apo.xtc"
    for member in done.members.values():
        assert len(mda.Universe(str(member.topology), str(member.path)).trajectory) == member.frames
    assert "2 members, 17 frames" in str(done)


def test_members_that_fail_are_named_and_the_others_are_written(tmp_path, members):
    (tmp_path / "left.pdb").touch()
    with pytest.raises(himach.HimachError, match=r"member torn failed: .*damaged.xtc.*; the other 2 members are"):
        convert(ensemble=members, out=tmp_path / "{member}.xtc")
    written = sorted(path.name for path in tmp_path.glob("*.xtc"))
    assert (len(written), written[1:]) == (3, ["apo.xtc", "damaged.xtc"])
    assert [path for path in tmp_path.iterdir() if path.name.startswith(".himach")] == []


def test_no_member_is_written_over_one_that_is_read(tmp_path, members):
    with pytest.raises(himach.UsageError, match=r"put \{member\} in"):
        convert(ensemble=members, out=tmp_path / "all.xtc")
    both = [himach.Member("a", DCD, PSF), himach.Member("damaged", members[2].trajectory, GRO)]
    both.append(himach.Member("b", DCD, PSF))
    with pytest.raises(himach.UsageError, match=r"damaged\.xtc is what is read"):
        convert(ensemble=both, out=tmp_path / "{member}.xtc", force=True)
    assert [path.name for path in tmp_path.iterdir()] == ["damaged.xtc"]


#: Numbers that `gmx trjconv` 2022.5 wrote of AdK in water.
ATOMS = [0, 214, 1500, 3340, 20001, 35008, 47680]
# Positions of these in the last frame: gmx trjconv -f XTC -s TPR, and
IN_BOX = [
    [52.76, 36.81, 30.42], [51.38, 55.88, 19.52], [67.69, 38.82, 45.68], [56.2, 33.98, 19.88], [67.1, 75.67, 15.21],
    [45.49, 67.79, 20.89], [72.25, 114.66, 51.08],
]  # fmt: skip
GMX = {
    "-pbc whole": ({"whole": True}, [*IN_BOX[:-1], [72.25, 34.57, 51.08]]),
    "-pbc atom -ur tric": ({"wrap": "atoms"}, IN_BOX),
    "-pbc res -ur tric": ({"whole": True, "wrap": "residues"}, IN_BOX),
    "-pbc mol -ur tric": ({"whole": True, "wrap": "molecules"}, IN_BOX),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", GMX)
def test_positions_are_those_of_gmx(tmp_path, case):
    keywords, expected = GMX[case]
    done = convert(XTC, TPR, out=tmp_path / "out.xtc", **keywords)
    universe = mda.Universe(TPR, str(done.path))
    universe.trajectory[-1]
    np.testing.assert_allclose(universe.atoms.positions[ATOMS], expected, atol=0.021)
