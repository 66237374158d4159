"""Runs over trajectories of each format that MDAnalysisTests ships, on several ranks, cached and not."""

import tempfile
from pathlib import Path

import pytest
from mpi4py import MPI

from .foreign import differences, minimal_topology, trajectories

comm = MPI.COMM_WORLD
#: Of each format, the small ones; of those whose readers lose their place on the way to another rank, all.
NAMES = (
    *("GMS_ASYMOPT", "GMS_ASYMSURF", "GMS_SYMOPT", "TRJ", "TRJ_bz2", "WIN_TRJ", "TRZ", "ARC_PBC", "DLP_HISTORY"),
    *(
        "COORDINATES_DCD",
        "COORDINATES_TRR",
        "COORDINATES_XTC",
        "COORDINATES_XYZ",
        "COORDINATES_XYZ_BZ2",
        "CPPTRAJ_TRAJ",
    ),
    *("LAMMPSDUMP_chain1", "LAMMPSDUMP_non_linear", "PDB_cm", "PDB_mc_gz", "PDB_multiframe", "TRC_TRAJ1_VAC"),
    *("mol2_comments_header", "H5MD_energy"),
)


@pytest.mark.filterwarnings("ignore")
def test_every_format():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(comm.bcast(name))
        wrong = []
        for one in comm.bcast(trajectories(NAMES) if comm.rank == 0 else None):
            if comm.rank == 0 and one.topology is None:
                minimal_topology(folder, one.n_atoms)
            comm.barrier()
            wrong += differences(one, folder)
        comm.barrier()
    assert not wrong, "\n".join(wrong)
