"""C-alpha RMSD from the first frame by MDAnalysis with worker processes.

Arguments: topology trajectory workers answer. Prints the seconds of run().
"""

import sys
import time

import MDAnalysis as mda
import numpy as np
from MDAnalysis.analysis.rms import RMSD


def main(topology, trajectory, workers, answer):
    universe = mda.Universe(topology, trajectory)
    analysis = RMSD(universe, select="name CA")
    begun = time.perf_counter()
    analysis.run(backend="multiprocessing", n_workers=int(workers))
    print(time.perf_counter() - begun)
    np.savetxt(answer, analysis.results.rmsd[:, 2])


if __name__ == "__main__":
    main(*sys.argv[1:])
