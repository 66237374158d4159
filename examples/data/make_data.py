"""Make the sample trajectories of this folder from the runs that they were taken from.

Usage: python make_data.py SOURCE, a folder with `nanopore/`, `kcsa2pot/` and `villin/`.
"""

from __future__ import annotations

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
    with open(source / "nanopore.xtc", "rb") as whole:
        (HERE / "nanopore.xtc").write_bytes(whole.read(end))


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


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    folder = Path(sys.argv[1])
    nanopore(folder / "nanopore")
    kcsa(folder / "kcsa2pot")
    villin(folder / "villin")
