"""Small trajectories for the tests of io: copies that may be damaged, and made-up ones with known times."""

import os
from pathlib import Path
from shutil import copy

import numpy as np
from MDAnalysis.lib.formats.libmdaxdr import TRRFile, XTCFile
from MDAnalysisTests import datafiles as data

from himach.io.trajectories.xdr_index import read_index

#: name -> topology, trajectory: formats with an index, of fixed frame size, of text, of one frame, with and without box
FORMATS = {
    "XTC": (data.GRO, data.XTC),
    "TRR": (data.GRO, data.TRR),
    "DCD": (data.PSF, data.DCD),
    "DCD-triclinic": (data.PSF_NAMD_TRICLINIC, data.DCD_NAMD_TRICLINIC),
    "NCDF": (data.PRMncdf, data.NCDF),
    "XYZ": (data.XYZ, data.XYZ),
    "PDB": (data.PDB_multiframe, data.PDB_multiframe),
    "TRJ": (data.PRM, data.TRJ),
    "GRO": (data.GRO, data.GRO),
}
N_ATOMS = 40


def copied(name: str, folder: Path) -> tuple[Path, Path]:
    folder.mkdir(exist_ok=True)
    (folder / "topology").mkdir(exist_ok=True)
    topology, trajectory = FORMATS[name]
    return Path(copy(topology, folder / "topology")), Path(copy(trajectory, folder))


def positions(number: float, n_atoms: int = N_ATOMS) -> np.ndarray:
    """Return positions in nm that tell a frame by its number."""
    grid = np.arange(3 * n_atoms, dtype=np.float32).reshape(-1, 3) / 100
    return grid + np.float32(number) / 10


def make(path: Path, times: list[float], n_atoms: int = N_ATOMS, velocities: bool = False) -> Path:
    """Write an XTC or TRR file with frames at these times."""
    box = np.eye(3, dtype=np.float32) * 5
    if path.suffix == ".xtc":
        with XTCFile(str(path), "w") as file:
            for i, time in enumerate(times):
                file.write(positions(time, n_atoms), box, i, time, 1000.0)
    else:
        with TRRFile(str(path), "w") as file:
            for i, time in enumerate(times):
                xyz = positions(time, n_atoms)
                file.write(xyz, -xyz if velocities else None, None, box, i, time, 0.0, n_atoms)
    return path


def offsets_of(path: str | os.PathLike[str], kind: str) -> list[int]:
    """Return the first byte of each frame of an XTC or TRR file, and the end of the last whole one."""
    index = read_index(os.fspath(path), kind)
    return [*(index.place(number)[0] for number in range(index.n_frames)), int(index.columns["offset"][-1])]
