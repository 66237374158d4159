"""C-alpha RMSD from the first frame by MDTraj: one core decodes, all cores superpose.

Arguments: topology trajectory answer. Prints the seconds of loading and computing, one after the other.
"""

import sys
import time

import mdtraj
import numpy as np


def main(topology, trajectory, answer):
    alphas = mdtraj.load_topology(topology).select("name CA")
    begun = time.perf_counter()
    trajectory = mdtraj.load(trajectory, top=topology, atom_indices=alphas)
    rmsd = mdtraj.rmsd(trajectory, trajectory, 0)
    print(time.perf_counter() - begun)
    np.savetxt(answer, 10 * rmsd)  # nm to Å


if __name__ == "__main__":
    main(*sys.argv[1:])
