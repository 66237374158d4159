"""Radial distribution function by PMDA's InterRDF with worker processes.

Arguments: topology trajectory a b r_max bins workers answer. Prints the seconds of run().
"""

import sys
import time

import MDAnalysis as mda
import numpy as np
from pmda.rdf import InterRDF


def main(topology, trajectory, a, b, r_max, bins, workers, answer):
    universe = mda.Universe(topology, trajectory)
    exclusion = (1, 1) if a == b else None
    rdf = InterRDF(
        universe.select_atoms(a),
        universe.select_atoms(b),
        nbins=int(bins),
        range=(0, float(r_max)),
        exclusion_block=exclusion,
    )
    begun = time.perf_counter()
    rdf.run(n_jobs=int(workers), n_blocks=int(workers))
    print(time.perf_counter() - begun)
    np.savetxt(answer, rdf.rdf)


if __name__ == "__main__":
    main(*sys.argv[1:])
