"""Order parameters beside the definition, frame by frame, on all-atom membranes."""

import MDAnalysis
import numpy as np
import pytest
from MDAnalysis.lib.distances import minimize_vectors
from MDAnalysisTests.datafiles import GRO_MEMPROT, XTC_MEMPROT
from support import plain

import himach
from himach.examples import sample
from himach.examples.membranes.lipid_order import LipidOrder


def slowly(universe, stop, lipids, pick=None):
    """Return (lipid, carbon, hydrogen) -> S_CH of carbons that are bonded to carbons and hydrogens only."""
    atoms = universe.select_atoms(lipids)
    bonds = []
    for carbon in atoms:
        if carbon.name[0] == "C" and all(other.name[0] in "CH" for other in carbon.bonded_atoms):
            bonds += [(carbon, other) for other in carbon.bonded_atoms if other.name[0] == "H"]
    values = {}
    for timestep in universe.trajectory[:stop]:
        heads = {r.resindex: r.atoms.select_atoms("name P").positions[0, 2] for r in atoms.residues}
        middle = np.mean(list(heads.values()))
        for carbon, hydrogen in bonds:
            side = "upper" if heads[carbon.resindex] > middle else "lower"
            if pick is not None and side != pick:
                continue
            (v,) = minimize_vectors((hydrogen.position - carbon.position)[np.newaxis], timestep.dimensions)
            key = carbon.resname, carbon.name, hydrogen.name
            cosine = float(v[2]) / np.linalg.norm(v.astype(float))
            values.setdefault(key, []).append((3 * cosine**2 - 1) / 2)
    return {key: np.mean(of) for key, of in values.items()}


def rows(table):
    return dict(zip(zip(table["lipid"], table["carbon"], table["hydrogen"], strict=True), table["s_ch"], strict=True))


def check(table, expected):
    result = rows(table)
    assert result.keys() == expected.keys()
    np.testing.assert_allclose([result[key] for key in expected], list(expected.values()), atol=2e-6)


@pytest.fixture(scope="module")
def yiip(tmp_path_factory):
    """Five POPE and one POPG of MDAnalysisTests' YiiP in its membrane, with bonds, each atom in the hexagonal box."""
    folder = tmp_path_factory.mktemp("yiip")
    universe = MDAnalysis.Universe(GRO_MEMPROT, XTC_MEMPROT)
    lipids = universe.select_atoms("resname POPE POPG").residues[::50].atoms
    lipids.guess_bonds()
    with MDAnalysis.Writer(str(folder / "lipids.xtc"), len(lipids)) as writer:
        for _ in universe.trajectory:
            lipids.wrap(compound="atoms")
            writer.write(lipids)
    universe.trajectory[0]
    lipids.write(str(folder / "lipids.pdb"), bonds="all")
    return folder / "lipids.xtc", folder / "lipids.pdb"


def test_the_definition(yiip):
    for trajectory, topology, lipids, stop in [(*yiip, "all", 5), (*sample("membrane"), "resname DLPC", 3)]:
        expected = slowly(MDAnalysis.Universe(topology, trajectory), stop, lipids)
        check(plain.run(LipidOrder(lipids=lipids), trajectory, topology, stop=stop)["order"], expected)
        assert len(expected) >= 46
    assert min(expected.values()) < -0.1


@pytest.mark.parametrize("leaflets", ["z", "graph"])
def test_by_leaflets(leaflets):
    trajectory, topology = sample("membrane")
    outcome = plain.run(LipidOrder(leaflets=leaflets), trajectory, topology, stop=3)
    table = outcome["by_leaflet"]
    assert list(table) == ["lipid", "carbon", "hydrogen", "leaflet", "s_ch"]
    for side in ("lower", "upper"):
        mine = [row for row, leaflet in enumerate(table["leaflet"]) if leaflet == side]
        part = {name: [cells[row] for row in mine] for name, cells in table.items()}
        check(part, slowly(MDAnalysis.Universe(topology, trajectory), 3, "all", side))
    alone = plain.run(LipidOrder(), trajectory, topology, stop=3)["order"]
    assert rows(outcome["order"]) == rows(alone)


def test_lipids_of_several_residues(tmp_path):
    """As those of Amber: heads and tails have residues of their own."""
    trajectory, topology = sample("membrane")
    tails = {f"C{chain}{number}" for chain in (2, 3) for number in range(2, 13)}
    split, tail = [], False
    for line in topology.read_text().splitlines(keepends=True):
        if line.startswith("HETATM"):
            name = line[12:16].strip()
            tail = name in tails or (tail and name.startswith("H"))
            resid = int(line[22:26]) + 50 * tail
            split.append(f"{line[:17]}{line[17:21] if tail else 'PC  '}{line[21]}{resid:4}{line[26:]}")
        else:
            split.append(line)
    (tmp_path / "split.pdb").write_text("".join(split))
    analysis = LipidOrder(lipids="resname DLPC DLPE", headgroups="name P", leaflets="z")
    expected = plain.run(analysis, trajectory, topology, stop=3)
    outcome = plain.run(analysis, trajectory, tmp_path / "split.pdb", stop=3)
    for table in ("order", "by_leaflet"):
        result, needed = (
            {row[:-1]: row[-1] for row in zip(*item[table].values(), strict=True)} for item in (outcome, expected)
        )
        assert result == needed


def test_carbons_are_means_of_their_hydrogens_and_numbered_along_chains():
    outcome = plain.run(LipidOrder(), *sample("membrane"), stop=10)
    of_hydrogens = {}
    for (lipid, carbon, _), s_ch in rows(outcome["order"]).items():
        of_hydrogens.setdefault((lipid, carbon), []).append(s_ch)
    carbons = outcome["carbons"]
    for row, name in enumerate(zip(carbons["lipid"], carbons["carbon"], strict=True)):
        assert carbons["s_ch"][row] == pytest.approx(np.mean(of_hydrogens[name]), abs=1e-12)
        chain, number = carbons["chain"][row], carbons["number"][row]
        assert name[1] == f"C{chain + 1}{number}"  # C22 to C212 and C32 to C312
    assert carbons["number"].tolist() == 4 * list(range(2, 13))


def test_chosen_carbons():
    table = plain.run(LipidOrder(carbons="name C1 C3 C21"), *sample("membrane"), stop=3)["order"]
    assert set(table["carbon"]) == {"C1", "C3"}  # C21 has no hydrogens
    assert len(table["carbon"]) == 8


def test_without_box(tmp_path):
    """Bonds of molecules that are whole need no box; leaflets do."""
    trajectory, topology = sample("membrane")
    universe = MDAnalysis.Universe(topology, trajectory)
    universe.dimensions = None
    universe.atoms.write(str(tmp_path / "none.pdb"), bonds="all")
    expected = rows(plain.run(LipidOrder(), trajectory, topology, stop=1)["order"])
    result = rows(plain.run(LipidOrder(), tmp_path / "none.pdb", tmp_path / "none.pdb")["order"])
    np.testing.assert_allclose(list(result.values()), list(expected.values()), atol=0.02)  # PDB and XTC round
    with pytest.raises(himach.UsageError, match="no box"):
        plain.run(LipidOrder(leaflets="z"), tmp_path / "none.pdb", tmp_path / "none.pdb")


def test_hydrogens_need_not_be_selected():
    trajectory, topology = sample("membrane")
    outcome = plain.run(LipidOrder(lipids="name C*"), trajectory, topology, stop=1)
    assert rows(outcome["order"]) == rows(plain.run(LipidOrder(), trajectory, topology, stop=1)["order"])
