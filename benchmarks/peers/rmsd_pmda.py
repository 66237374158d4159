"""C-alpha RMSD from the first frame by PMDA with worker processes.

Arguments: topology trajectory workers answer. Prints the seconds of run().
"""

import sys
import time

import MDAnalysis as mda
import numpy as np
from pmda.rms import RMSD


def main(topology, trajectory, workers, answer):
    alphas = mda.Universe(topology, trajectory).select_atoms("name CA")
    reference = mda.Universe(topology, trajectory).select_atoms("name CA")
    analysis = RMSD(alphas, reference)
    begun = time.perf_counter()
    analysis.run(n_jobs=int(workers), n_blocks=int(workers))
    print(time.perf_counter() - begun)
    np.savetxt(answer, analysis.rmsd[:, 2])


if __name__ == "__main__":
    main(*sys.argv[1:])
