import warnings

import MDAnalysis
import mdtraj
import numpy as np
import pytest
from MDAnalysis.analysis import contacts as peers
from MDAnalysis.lib.distances import distance_array
from MDAnalysisTests.datafiles import CRD, DCD, GRO, PSF, XTC
from support import plain

import himach
from himach.examples import sample
from himach.examples.groups import heavy_atoms, residue_labels
from himach.examples.interactions.contacts import Contacts
from himach.examples.interactions.native_contacts import NativeContacts
from himach.examples.interactions.survival import find_runs, stay_tables


def by_pair(table, column):
    return dict(zip(zip(table["a"], table["b"], strict=True), table[column].tolist(), strict=True))


def by_mdtraj(trajectory, topology, selection, scheme, cutoff, stop):
    """Return what MDTraj says: pairs of residues by their labels, and which of them are in contact at each frame."""
    atoms = MDAnalysis.Universe(topology, trajectory).select_atoms(selection)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded = mdtraj.load(str(trajectory), top=str(topology), atom_indices=atoms.indices)[:stop]
        distances, pairs = mdtraj.compute_contacts(loaded, scheme=scheme)
    labels = residue_labels(atoms.residues)
    return [(labels[i], labels[j]) for i, j in pairs], distances * 10 <= cutoff


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize(
    ("trajectory", "topology", "selection", "stop"),
    [
        (DCD, PSF, "protein and resid 100:160", 98),
        (*sample("villin"), "protein", 60),
        (XTC, GRO, "protein and resid 1:60", 4),
    ],
    ids=["AdK", "villin", "AdK in water"],
)
@pytest.mark.parametrize(
    ("scheme", "cutoff", "intermittency"), [("closest-heavy", 4.5, 0), ("ca", 8.0, 1), ("closest", 3.0, 0)]
)
def test_against_mdtraj(trajectory, topology, selection, stop, scheme, cutoff, intermittency):
    if scheme != "ca":
        stop = min(stop, 10)
    pairs, present = by_mdtraj(trajectory, topology, selection, scheme, cutoff, stop)
    analysis = Contacts(a=selection, scheme=scheme, cutoff=cutoff, intermittency=intermittency)
    outcome = plain.run(analysis, trajectory, topology, stop=stop)
    dt = MDAnalysis.Universe(topology, trajectory).trajectory.dt
    frequency, mean_ps = {}, {}
    for pair, column in zip(pairs, present.T, strict=True):
        if column.any():
            stay = find_runs(np.flatnonzero(column), intermittency)
            frequency[pair] = np.frombuffer(stay, np.int64)[1::2].sum() / stop
            mean_ps[pair] = stay_tables([stay], stop, dt, intermittency)[1]["mean_ps"][0]
    assert by_pair(outcome["frequency"], "frequency") == pytest.approx(frequency)
    assert by_pair(outcome["lifetimes"], "mean_ps") == pytest.approx(mean_ps, rel=1e-4, nan_ok=True)
    assert outcome["lifetimes"].units == {"mean_ps": "ps"}
    np.testing.assert_array_equal(outcome["counts"]["contacts"], present.sum(axis=1))
    assert len(frequency) > 40


def slow_counts(universe, a, b, cutoff, exclude):
    """Return the pairs of residues in contact, each once: whole residues, one by one."""
    computed, item = set(), a == b
    for r in a.residues:
        for s in b.residues:
            near_in_sequence = r.segid == s.segid and abs(r.resindex - s.resindex) < max(exclude, 1)
            first, second = ((a & r.atoms), (b & s.atoms))
            if near_in_sequence or (item and r.resindex > s.resindex):
                continue
            if distance_array(first.positions, second.positions, box=universe.dimensions).min() <= cutoff:
                computed.add((r.resindex, s.resindex))
    return computed


@pytest.mark.parametrize("exclude", [0, 1, 2, 5])
@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("resid 1:20", "resid 1:20"),
        ("resid 1:20", "resid 5:35"),
        ("resid 1:30 and backbone", "resid 1:30 and not backbone"),
        ("resid 5:35 and backbone", "resid 1:20"),
    ],
)
def test_selections_that_overlap(a, b, exclude):
    """Contacts of the same atoms count once; backbone with side chain and side chain with backbone are two."""
    trajectory, topology = sample("villin")
    universe = MDAnalysis.Universe(topology, trajectory)
    groups = [universe.select_atoms(f"protein and not name H* and {part}") for part in (a, b)]
    computed = slow_counts(universe, *groups, 5, exclude)
    both = {*(groups[0] & groups[1]).resindices} - {*(groups[0] ^ groups[1]).resindices}
    expected = {(r, s) for r, s in computed if r < s or not {r, s} <= both}
    analysis = Contacts(a=f"protein and {a}", b=f"protein and {b}", cutoff=5, exclude=exclude)
    outcome = plain.run(analysis, trajectory, topology, stop=1)
    labels = residue_labels(universe.select_atoms("protein").residues)
    assert {*by_pair(outcome["frequency"], "frequency")} == {(labels[r], labels[s]) for r, s in expected}
    assert outcome["counts"]["contacts"].tolist() == [len(expected)]


def test_residues_of_one_name_and_number_have_labels_of_their_own():
    universe = MDAnalysis.Universe.empty(4, 4, atom_resindex=range(4), trajectory=True)
    universe.add_TopologyAttr("resnames", ["ALA", "GLY", "ALA", "GLY"])
    universe.add_TopologyAttr("resids", [1, 2, 1, 3])
    expected = ["ALA1 (resindex 0)", "GLY2", "ALA1 (resindex 2)", "GLY3"]
    assert residue_labels(universe.residues) == expected
    assert residue_labels(universe.residues[2:]) == expected[2:]


def test_neighbours_are_those_of_one_chain():
    """Two chains whose residues follow one another in the file, and water, whose residues are no chain."""
    universe = MDAnalysis.Universe.empty(
        6, 6, atom_resindex=range(6), residue_segindex=[0, 0, 1, 1, 2, 2], n_segments=3, trajectory=True
    )
    for name, values in (
        ("names", ["CA", "CA", "CA", "CA", "O", "O"]),
        ("resnames", ["ALA", "ALA", "ALA", "ALA", "HOH", "HOH"]),
        ("resids", [1, 2, 3, 4, 1, 2]),
        ("segids", ["A", "B", "W"]),
    ):
        universe.add_TopologyAttr(name, values)
    analysis = Contacts(a="all", cutoff=1, scheme="closest", exclude=2)
    analysis.frames, analysis.dt = range(1), None
    analysis.setup(universe)
    pairs, _ = analysis.map(plain.make_frame(universe, universe.trajectory.ts, 0))
    labels = analysis.labels
    assert labels == ["A:ALA1", "A:ALA2", "B:ALA3", "B:ALA4", "W:HOH1", "W:HOH2"]
    missing = {(0, 1), (2, 3)}
    assert {tuple(pair) for pair in pairs.keys.tolist()} == {
        (i, j) for i in range(6) for j in range(i + 1, 6)
    } - missing


def test_heavy_atoms_by_element_or_by_name():
    universe = MDAnalysis.Universe.empty(5, trajectory=False)
    universe.add_TopologyAttr("names", ["HG11", "1HB", "CA", "OH", "HG"])
    assert heavy_atoms(universe.atoms).indices.tolist() == [2, 3]
    universe.add_TopologyAttr("elements", ["H", "", "C", "O", "Hg"])
    assert heavy_atoms(universe.atoms).indices.tolist() == [2, 3, 4]


def test_backwards_and_unevenly(tmp_path):
    forwards, backwards = (
        plain.run(Contacts(), *sample("villin"), start=start, stop=stop, step=step)
        for start, stop, step in ((0, 100, 1), (99, None, -1))
    )
    np.testing.assert_array_equal(forwards["frequency"]["frequency"], backwards["frequency"]["frequency"])
    np.testing.assert_array_equal(forwards["counts"]["contacts"], backwards["counts"]["contacts"][::-1])
    with pytest.warns(UserWarning, match="contacts: the selected frames are not evenly spaced in time, mean_ps is nan"):
        subset = himach.run(Contacts(), *sample("villin"), frames=[0, 1, 5, 90], cache="off")
    assert np.isnan(subset["lifetimes"]["mean_ps"]).all()
    assert set(subset["frequency"]["frequency"]) <= {0.25, 0.5, 0.75, 1.0}


def test_nothing_ever_touches():
    outcome = plain.run(Contacts(a="index 0", b="index 400", cutoff=0.1), *sample("villin"), stop=3)
    assert outcome["counts"]["contacts"].tolist() == [0, 0, 0]
    assert outcome["frequency"].rows == outcome["lifetimes"].rows == 0
    result = himach.run(Contacts(a="index 0", b="index 400", cutoff=0.1), *sample("villin"), stop=3)
    assert result["frequency"].rows == 0


HELIX, STRAND = "protein and resid 1:24 and not name H*", "protein and resid 25:90 and not name H*"


@pytest.mark.parametrize(("method", "peer"), [("soft", peers.soft_cut_q), ("hard", peers.hard_cut_q)])
@pytest.mark.parametrize(("reference", "files"), [(None, (PSF, DCD)), (CRD, (PSF, CRD))])
def test_q_is_that_of_mdanalysis(method, peer, reference, files):
    native, universe = MDAnalysis.Universe(*files), MDAnalysis.Universe(PSF, DCD)
    groups = tuple(native.select_atoms(selection) for selection in (HELIX, STRAND))
    contacts = peers.Contacts(universe, (HELIX, STRAND), groups, method=peer, radius=4.5, pbc=False)
    analysis = NativeContacts(a=HELIX, b=STRAND, method=method, exclude=0, reference=reference)
    table = himach.run(analysis, DCD, PSF, step=5, cache="off")["q"]
    np.testing.assert_allclose(table["q"], contacts.run(step=5).results.timeseries[:, 1], atol=1e-6)


def test_hydrogens_and_neighbours_in_sequence_have_no_contacts():
    """A helix of 24 residues: all contacts, and those four residues apart, of heavy atoms alone."""
    universe = MDAnalysis.Universe(PSF, DCD)
    heavy = universe.select_atoms(HELIX)
    i, j = np.triu_indices(len(heavy), 1)
    distances = np.linalg.norm(heavy.positions[i].astype(float) - heavy.positions[j], axis=1)
    for exclude in (0, 4):
        analysis = NativeContacts(a="protein and resid 1:24", exclude=exclude)
        analysis.setup(universe)
        apart = np.abs(heavy.resindices[i] - heavy.resindices[j]) >= exclude
        assert len(analysis.native) == ((distances <= 4.5) & apart).sum()
