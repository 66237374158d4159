"""Radial distribution function by the InterRDF of MDAnalysis or of PMDA, with worker processes.

Arguments: tool topology trajectory a b r_max bins workers answer. Prints the seconds of run().
"""

import sys
import time

import MDAnalysis as mda
import numpy as np


def main(tool, topology, trajectory, a, b, r_max, bins, workers, answer):
    if tool == "PMDA":
        from pmda.rdf import InterRDF

        how = {"n_jobs": int(workers), "n_blocks": int(workers)}
    else:
        from MDAnalysis.analysis.rdf import InterRDF

        how = {"backend": "multiprocessing", "n_workers": int(workers)}
    first, second = map(mda.Universe(topology, trajectory).select_atoms, (a, b))
    # With equal selections no atom is paired with itself.
    exclusion = (1, 1) if a == b else None
    rdf = InterRDF(first, second, nbins=int(bins), range=(0, float(r_max)), exclusion_block=exclusion)
    begun = time.perf_counter()
    rdf.run(**how)
    print(time.perf_counter() - begun)
    np.savetxt(answer, rdf.rdf if tool == "PMDA" else rdf.results.rdf)


if __name__ == "__main__":
    main(*sys.argv[1:])
