"""Make the sample trajectories of this folder from the runs that they were taken from.

Usage: python make_data.py SOURCE, a folder with `nanopore/`, `kcsa2pot/`, `villin/`, `water/`,
`argon/` and `membrane/`.
"""

import shutil
import sys
import warnings
from pathlib import Path

import MDAnalysis
from MDAnalysis.lib.formats.libmdaxdr import XTCFile

HERE = Path(__file__).parent


def nanopore(source: Path, n_frames: int = 150) -> None:
    """Copy the topology and the first frames (30 ps at 0.2 ps), cut from the XTC file by bytes."""
    shutil.copyfile(source / "nanopore.pdb", HERE / "nanopore.pdb")
    with XTCFile(str(source / "nanopore.xtc")) as frames:
        end = int(frames.offsets[n_frames])
    with open(source / "nanopore.xtc", "rb") as file:
        (HERE / "nanopore.xtc").write_bytes(file.read(end))


def kcsa(source: Path) -> None:
    """Copy topology and trajectory as they are."""
    shutil.copyfile(source / "02-pro-2POT.pdb", HERE / "kcsa.pdb")
    shutil.copyfile(source / "fix_c_10ns-pro-2POT.xtc", HERE / "kcsa.xtc")


def villin(source: Path, step: int = 2) -> None:
    """Write the protein alone, every second frame (100 ps at 0.4 ps)."""
    universe = MDAnalysis.Universe(str(source / "villin.pdb"), str(source / "villin.xtc"))
    protein = universe.select_atoms("protein")
    universe.trajectory[0]
    protein.write(str(HERE / "villin.pdb"))
    protein.write(str(HERE / "villin.xtc"), frames=universe.trajectory[::step])


def water(source: Path, first: int = 20, n_frames: int = 101) -> None:
    """Write 216 molecules of SPC/E, all atoms (1 ns at 10 ps), after 200 ps that equilibrate."""
    universe = MDAnalysis.Universe(str(source / "md.tpr"), str(source / "md.xtc"))
    universe.trajectory[first]
    universe.add_TopologyAttr("elements", [name[0] for name in universe.atoms.names])
    universe.add_TopologyAttr("record_types", ["ATOM"] * len(universe.atoms))
    universe.add_TopologyAttr("chainIDs", ["W"] * len(universe.atoms))
    universe.atoms.write(str(HERE / "water.pdb"), bonds=None)
    universe.atoms.write(str(HERE / "water.xtc"), frames=universe.trajectory[first : first + n_frames])


def argon(source: Path, n_atoms: int = 20, n_frames: int = 450) -> None:
    """Write some of 864 atoms with their velocities (9 ps at 20 fs)."""
    universe = MDAnalysis.Universe(str(source / "md.tpr"), str(source / "md.trr"))
    selected = universe.atoms[:: len(universe.atoms) // n_atoms][:n_atoms]
    universe.add_TopologyAttr("elements", ["Ar"] * len(universe.atoms))
    universe.add_TopologyAttr("record_types", ["HETATM"] * len(universe.atoms))
    universe.trajectory[0]
    selected.write(str(HERE / "argon.pdb"), bonds=None)
    selected.write(str(HERE / "argon.trr"), frames=universe.trajectory[:n_frames])


def membrane(source: Path, n_frames: int = 101) -> None:
    """Write the lipids alone, the last frames (500 ps at 5 ps), with the names of CHARMM's atoms and their bonds."""
    universe = MDAnalysis.Universe(str(source / "membrane.pdb"), str(source / "membrane.dcd"))
    lipids = universe.select_atoms("not resname HOH")
    for residue in lipids.residues:
        residue.resname = "DLPC" if len(residue.atoms) == 106 else "DLPE"
    for atom in lipids:
        atom.name = atom.name[1:] + atom.name[0] if atom.name[0].isdigit() else atom.name  # 0C21 is C210
    with MDAnalysis.Writer(str(HERE / "membrane.xtc"), len(lipids)) as frames:
        for step, timestep in enumerate(universe.trajectory[-n_frames:]):
            if step == 0:
                lipids.write(str(HERE / "membrane.pdb"), bonds="all")
            timestep.time = 5.0 * step
            frames.write(lipids)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    folder = Path(sys.argv[1])
    nanopore(folder / "nanopore")
    kcsa(folder / "kcsa2pot")
    villin(folder / "villin")
    water(folder / "water")
    argon(folder / "argon")
    membrane(folder / "membrane")
