"""Topologies as they are kept: every one of MDAnalysis's own samples comes back equal, and damage is noticed."""

from __future__ import annotations

import io
import json
import warnings
import zipfile
from pathlib import Path

import MDAnalysis as mda
import numpy as np
import pytest
from MDAnalysis.core.topology import Topology
from MDAnalysis.core.topologyattrs import AtomAttr, Atomnames, Bonds, Masses
from MDAnalysis.core.universe import _topology_from_file_like
from MDAnalysisTests import datafiles as data
from support.cache_data import make

import himach
from himach.io.store.store import Store, StoreFullError
from himach.io.topology import loading
from himach.io.topology.loading import load_topology
from himach.io.topology.parsed import copy_topology, decode, encode, same
from himach.io.trajectory.origin import open_origin

LARGEST = 60_000  # bytes of a sample; larger ones are among these
LARGE = (
    "GRO",
    "TPR",
    "PSF",
    "PDB",
    "PRM",
    "LAMMPSdata",
    "RNA_PSF",
    "mol2_molecules",
    "DMS",
    "MMTF",
    "XYZ_psf",
    "PDBQT",
)


def samples() -> list[str]:
    """Return the names of MDAnalysis's sample files that may be topologies."""
    found = {}
    for name in data.__all__:
        path = getattr(data, name)
        if not isinstance(path, str) or not Path(path).is_file():
            continue
        if name in LARGE or Path(path).stat().st_size < LARGEST:
            found.setdefault(path, name)
    return sorted(found.values())


def parsed(path: str, **keywords) -> Topology:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return mda.Universe(_topology_from_file_like(path, **keywords))._topology


def plain(topology: Topology) -> dict:
    """Return what a Universe shows of a topology, attribute by attribute."""
    universe = mda.Universe(topology, to_guess=())
    shown = {"resindices": universe.atoms.resindices.tolist(), "segindices": universe.atoms.segindices.tolist()}
    for attribute in topology.attrs:
        if hasattr(attribute, "values"):
            values = attribute.values
            shown[attribute.attrname] = (repr(list(values)), repr(attribute.is_guessed), getattr(values, "dtype", None))
            shown[f"{attribute.attrname} of bonds"] = [
                repr(list(getattr(attribute, name, ()))) for name in ("types", "order")
            ]
    return shown


@pytest.mark.slow
def test_every_sample_comes_back_equal():
    kept, kinds = 0, set()
    for name in samples():
        try:
            topology = parsed(getattr(data, name))
        except Exception:  # no topology, or one that is broken on purpose
            continue
        content = encode(topology, {"name": name})
        assert content is not None, name
        back, facts = decode(content)
        assert facts == {"name": name}
        assert same(back, topology)
        assert plain(back) == plain(topology) == plain(copy_topology(topology)), name
        kept += 1
        kinds |= {type(attribute).__name__ for attribute in topology.attrs}
    assert kept > 150
    assert {"Bonds", "Angles", "Dihedrals", "Impropers", "Charges", "AltLocs", "ICodes", "TypeIndices"} <= kinds


def test_groups_of_a_topology_that_came_back():
    topology = parsed(data.PSF)
    back, _ = decode(encode(topology, {}))
    ours, theirs = (mda.Universe(one, data.DCD, to_guess=()) for one in (back, topology))
    for text in ("name CA", "resname ALA and not backbone", "bonded name CA", "segid 4AKE", "prop mass > 12"):
        np.testing.assert_array_equal(ours.select_atoms(text).indices, theirs.select_atoms(text).indices)
    assert ours.atoms.fragments[0].n_atoms == theirs.atoms.fragments[0].n_atoms
    np.testing.assert_array_equal(ours.bonds.to_indices(), theirs.bonds.to_indices())
    ours.atoms[:2].names = "XX"
    assert (ours.select_atoms("name XX").n_atoms, theirs.select_atoms("name XX").n_atoms) == (2, 0)


def test_a_copy_shares_nothing_that_changes():
    topology = parsed(data.PSF)
    expected = plain(topology)
    universe = mda.Universe(copy_topology(topology), to_guess=())
    universe.atoms.names = "Q"
    universe.atoms.masses = 1
    universe.atoms[3].residue = universe.residues[9]
    universe.add_bonds([(0, 3000)])
    universe.add_TopologyAttr("tempfactors")
    assert plain(topology) == expected


class Strange(AtomAttr):
    """An attribute that is not MDAnalysis's."""

    attrname = "strangenesses"
    singular = "strangeness"
    per_object = "atom"


@pytest.mark.parametrize(
    "attribute",
    [
        Strange(np.zeros(2)),
        Atomnames(np.array([object(), "b"], dtype=object)),
        Bonds([(0, 1)], types=[{"k": 1}]),
    ],
)
def test_what_cannot_be_told_exactly_is_not_kept(attribute):
    assert encode(Topology(2, 1, 1, [attribute]), {}) is None


@pytest.mark.parametrize(
    "attribute",
    [
        Atomnames(np.array(["", "\udc80é\0"], dtype=object)),
        Bonds([(0, 1)], types=[("CT", 1.5, None)], order=[float("nan")]),
        Bonds([]),
        Masses([np.nan, -0.0]),
    ],
)
def test_odd_values_come_back(attribute):
    topology = Topology(2, 1, 1, [attribute])
    back, _ = decode(encode(topology, {}))
    assert plain(back) == plain(topology)


def remade(content: bytes, **changes) -> bytes:
    """Return the file with other meta data."""
    target = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            part = old.read(name)
            new.writestr(name, json.dumps({**json.loads(part), **changes}) if name == "meta" else part)
    return target.getvalue()


def test_damage_is_noticed():
    content = encode(parsed(data.PSF), {})
    for cut in (0, 10, len(content) // 2, len(content) - 1):
        with pytest.raises(ValueError):
            decode(content[:cut])
    noticed = 0
    for place in range(100, len(content), len(content) // 40):
        flipped = bytearray(content)
        flipped[place] ^= 0x10
        try:
            back, _ = decode(bytes(flipped))
        except ValueError:
            noticed += 1
        else:  # a byte that says nothing, as of a date
            assert same(back, parsed(data.PSF))
    assert noticed > 30


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 99},
        {"sizes": [3341, 214, 0]},
        {"sizes": [3341, 1, 1]},
        {"sizes": [-1, 214, 1]},
        {"residues": ["0.npy", "|O"]},
        {"residues": ["nothing.npy", "<i8"]},
        {"attributes": [{"class": ["os", "system"], "state": {}}]},
        {"attributes": [{"class": ["MDAnalysis.core.topologyattrs", "np"], "state": {}}]},
        {"attributes": [{"class": ["MDAnalysis.topology.nothing", "Atomnames"], "state": {}}]},
        {"attributes": [{"class": ["MDAnalysis.core.topologyattrs", "Masses"], "state": {"values": {"what": 1}}}]},
    ],
)
def test_what_makes_no_sense_is_refused(changes):
    with pytest.raises(ValueError):
        decode(remade(encode(parsed(data.PSF), {}), **changes))


def test_pickles_are_refused():
    target = io.BytesIO()
    content = encode(parsed(data.PSF), {})
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            part = io.BytesIO(old.read(name))
            if name == "0.npy":
                part = io.BytesIO()
                np.save(part, np.array([{}], dtype=object), allow_pickle=True)
            new.writestr(name, part.getvalue())
    with pytest.raises(ValueError, match="allow_pickle"):
        decode(target.getvalue())


# -- beside a dataset --------------------------------------------------------------------------------------------------


@pytest.fixture
def dataset(tmp_path):
    return Store(tmp_path / "store").dataset("/sim")


@pytest.fixture
def parses(monkeypatch) -> list:
    """Return a list that fills with the topology files that are parsed."""
    found = []
    parse = loading._parse
    monkeypatch.setattr(loading, "_parse", lambda path, *rest: found.append(path) or parse(path, *rest))
    return found


def test_a_kept_topology_is_not_parsed_again(dataset, parses, tmp_path):
    origin = open_origin([data.XTC], data.GRO)
    expected = load_topology(data.GRO, origin)
    parses.clear()
    first, second = (load_topology(data.GRO, origin, {}, dataset) for _ in range(2))
    assert parses == [data.GRO]
    assert same(first, expected)
    assert same(second, expected)
    copied = tmp_path / "copied.gro"
    content = Path(data.GRO).read_bytes()
    copied.write_bytes(content)
    assert same(load_topology(copied, origin, {}, dataset), expected)
    assert len(parses) == 1
    copied.write_bytes(content.replace(b"MET", b"ALA", 1))
    assert load_topology(copied, origin, {}, dataset).resnames.values[0] == "ALA"
    load_topology(data.GRO, origin, {"to_guess": ["masses"]}, dataset)
    assert len(parses) == 3
    load_topology(data.GRO, origin, {"to_guess": ["masses"], "vdwradii": {"X": 1.0}}, dataset, attach=False)
    load_topology(data.GRO, origin, {"to_guess": ["masses"], "vdwradii": {"X": 1.0}}, dataset)
    assert len(parses) == 5


def test_another_version_of_mdanalysis_parses_anew(dataset, parses, monkeypatch):
    origin = open_origin([data.DCD], data.PSF)
    load_topology(data.PSF, origin, {}, dataset)
    monkeypatch.setattr(mda, "__version__", "99.0")
    load_topology(data.PSF, origin, {}, dataset)
    assert len(parses) == 2


def test_what_a_file_alone_does_not_tell_is_parsed_anew(dataset, parses, tmp_path):
    topology, trajectory = make(tmp_path, 1)
    origin = open_origin([trajectory], topology)
    for _ in range(2):
        load_topology(topology, origin, {"to_guess": ["masses", "bonds"]}, dataset)
        load_topology(topology, origin, {"context": mda.guesser.default_guesser.DefaultGuesser(None)}, dataset)
    assert len(parses) == 4
    assert not list(dataset.path.glob("x-parsed-*"))


def test_damaged_and_unwritable_keeping_costs_a_parse(dataset, parses, monkeypatch):
    origin = open_origin([data.DCD], data.PSF)
    expected = load_topology(data.PSF, origin, {}, dataset)
    (file,) = dataset.path.glob("x-parsed-*")
    file.write_bytes(file.read_bytes()[:-100])
    assert same(load_topology(data.PSF, origin, {}, dataset), expected)
    assert same(load_topology(data.PSF, origin, {}, dataset), expected)
    assert len(parses) == 2
    file.unlink()

    def full(*_):
        raise StoreFullError("full")

    monkeypatch.setattr(type(dataset), "attach", full)
    assert same(load_topology(data.PSF, origin, {}, dataset), expected)


def test_few_are_kept(dataset):
    origin = open_origin([data.DCD], data.PSF)
    for radius in range(7):
        load_topology(data.PSF, origin, {"vdwradii": {"X": radius}}, dataset)
    assert len(list(dataset.path.glob("x-parsed-*"))) == loading.MOST_ATTACHED


def test_warnings_come_again(dataset, tmp_path):
    origin = open_origin([make(tmp_path, 2, "md.pdb")[1]])
    texts = []
    for kept in (None, dataset, dataset):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            load_topology(None, origin, {}, kept)
        texts.append([(w.category, str(w.message), w.lineno) for w in caught if w.category is UserWarning])
    assert texts[0] == texts[1] == texts[2] != []


def test_a_wrong_topology_is_refused_also_if_it_is_kept(dataset):
    load_topology(data.GRO, open_origin([data.XTC], data.GRO), {}, dataset)
    with pytest.raises(himach.TrajectoryError, match="has 47681 atoms"):
        load_topology(data.GRO, open_origin([data.DCD], data.PSF), {}, dataset)


def test_guessing_is_mdanalysiss():
    for path, trajectory in ((data.GRO, data.XTC), (data.PSF, data.DCD), (data.XYZ, data.XYZ)):
        assert same(load_topology(path, open_origin([trajectory], path)), parsed(path))
