"""Radial distribution function by MDAnalysis's InterRDF with worker processes.

Arguments: topology trajectory a b r_max bins workers answer. Prints the seconds of run().
"""

import sys
import time

import MDAnalysis as mda
import numpy as np
from MDAnalysis.analysis.rdf import InterRDF


def main(topology, trajectory, a, b, r_max, bins, workers, answer):
    universe = mda.Universe(topology, trajectory)
    # With equal selections no atom is paired with itself.
    exclusion = (1, 1) if a == b else None
    rdf = InterRDF(
        universe.select_atoms(a),
        universe.select_atoms(b),
        nbins=int(bins),
        range=(0, float(r_max)),
        exclusion_block=exclusion,
    )
    begun = time.perf_counter()
    rdf.run(backend="multiprocessing", n_workers=int(workers))
    print(time.perf_counter() - begun)
    np.savetxt(answer, rdf.results.rdf)


if __name__ == "__main__":
    main(*sys.argv[1:])
