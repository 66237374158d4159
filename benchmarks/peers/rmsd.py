"""C-alpha RMSD from the first frame by MDAnalysis or PMDA with worker processes, or by MDTraj.

Arguments: tool topology trajectory workers answer. Prints the seconds of run(); for MDTraj, of which one core decodes
and all superpose, those of loading and computing, one after the other.
"""

import sys
import time

import numpy as np


def mdanalysis(topology, trajectory, workers):
    import MDAnalysis as mda
    from MDAnalysis.analysis.rms import RMSD

    analysis = RMSD(mda.Universe(topology, trajectory), select="name CA")
    begun = time.perf_counter()
    analysis.run(backend="multiprocessing", n_workers=workers)
    return time.perf_counter() - begun, analysis.results.rmsd[:, 2]


def pmda(topology, trajectory, workers):
    import MDAnalysis as mda
    from pmda.rms import RMSD

    analysis = RMSD(*(mda.Universe(topology, trajectory).select_atoms("name CA") for _ in range(2)))
    begun = time.perf_counter()
    analysis.run(n_jobs=workers, n_blocks=workers)
    return time.perf_counter() - begun, analysis.rmsd[:, 2]


def mdtraj(topology, trajectory, workers):
    import mdtraj

    alphas = mdtraj.load_topology(topology).select("name CA")
    begun = time.perf_counter()
    trajectory = mdtraj.load(trajectory, top=topology, atom_indices=alphas)
    rmsd = mdtraj.rmsd(trajectory, trajectory, 0)
    return time.perf_counter() - begun, 10 * rmsd  # nm to Å


if __name__ == "__main__":
    tool, topology, trajectory, workers, answer = sys.argv[1:]
    tools = {"MDAnalysis": mdanalysis, "PMDA": pmda, "MDTraj": mdtraj}
    seconds, rmsd = tools[tool](topology, trajectory, int(workers))
    print(seconds)
    np.savetxt(answer, rmsd)
