import pickle

import MDAnalysis as mda
import numpy as np
import pytest
from MDAnalysisTests import datafiles as data
from support.io_samples import FORMATS, copied, make

from himach.errors import TrajectoryError, UsageError
from himach.io.trajectory.origin import open_origin
from himach.io.universe.topology import load_topology


@pytest.mark.parametrize("name", ["XTC", "DCD", "NCDF", "PDB", "XYZ"])
def test_pickle_keeps_what_a_universe_has(name, tmp_path):
    topology, trajectory = copied(name, tmp_path)
    origin = open_origin([trajectory], topology)
    loaded = pickle.loads(pickle.dumps(load_topology(topology, origin)))
    ours = mda.Universe(loaded, to_guess=())
    theirs = mda.Universe(*FORMATS[name])
    names = {attr.attrname for attr in theirs._topology.attrs}
    assert {attr.attrname for attr in ours._topology.attrs} == names
    assert {"masses", "types"} <= names
    for name in ("names", "types", "masses", "charges", "resnames", "resids", "segids", "elements"):
        if name in names:
            np.testing.assert_array_equal(getattr(ours.atoms, name), getattr(theirs.atoms, name))
    if "bonds" in names:
        np.testing.assert_array_equal(ours.bonds.to_indices(), theirs.bonds.to_indices())


def test_nothing_is_guessed_twice(tmp_path, monkeypatch):
    topology, trajectory = copied("XTC", tmp_path)
    loaded = load_topology(topology, open_origin([trajectory]))
    monkeypatch.setattr("MDAnalysis.guesser.default_guesser.DefaultGuesser.guess_attr", None)
    assert mda.Universe(loaded, to_guess=()).atoms.total_mass() > 0


def test_keywords(tmp_path):
    topology, trajectory = copied("PDB", tmp_path)
    origin = open_origin([trajectory], keywords={"to_guess": ["types", "masses", "bonds"]})
    assert len(mda.Universe(load_topology(None, origin), to_guess=()).bonds) > 100
    unguessed = load_topology(topology, origin, {"to_guess": []})
    assert not hasattr(mda.Universe(unguessed, to_guess=()).atoms, "masses")


def test_lammps_atom_style(tmp_path):
    origin = open_origin(
        [data.LAMMPSdata_mini], keywords={"format": "DATA", "atom_style": "id resid type charge x y z"}
    )
    assert load_topology(None, origin).n_atoms == origin.n_atoms == 1


def test_none(tmp_path):
    origin = open_origin([make(tmp_path / "a.xtc", [0, 1])])
    with pytest.raises(UsageError, match=r"a\.xtc holds no topology; name a topology file"):
        load_topology(None, origin)
    with pytest.raises(UsageError, match=r"a\.xtc is no topology"):
        load_topology(tmp_path / "a.xtc", origin)
    with pytest.raises(UsageError, match=r"no topology .*b\.gro"):
        load_topology(tmp_path / "b.gro", origin)


def test_other_atoms(tmp_path):
    origin = open_origin([make(tmp_path / "a.xtc", [0, 1])])
    with pytest.raises(UsageError, match=r"\.gro has 47681 atoms, .*a\.xtc has 40"):
        load_topology(data.GRO, origin)


def test_damaged(tmp_path):
    (tmp_path / "a.gro").write_text("title\nmany\n")
    with pytest.raises(TrajectoryError, match=r"a\.gro cannot be read as a topology"):
        load_topology(tmp_path / "a.gro", open_origin([make(tmp_path / "a.xtc", [0, 1])]))
