"""Lifetimes of the hydrogen bonds that water donates to the protein, by MDAnalysis with worker processes.

Arguments: tool topology trajectory donors hydrogens acceptors tau_max workers answer.
Prints the seconds of run() and lifetime().
"""

import sys
import time

import MDAnalysis as mda
import numpy as np
from MDAnalysis.analysis.hydrogenbonds import HydrogenBondAnalysis


def main(tool, topology, trajectory, donors, hydrogens, acceptors, tau_max, workers, answer):
    universe = mda.Universe(topology, trajectory)
    bonds = HydrogenBondAnalysis(
        universe,
        donors_sel=donors,
        hydrogens_sel=hydrogens,
        acceptors_sel=acceptors,
        d_a_cutoff=3.0,
        d_h_a_angle_cutoff=150,
        update_selections=False,
    )
    begun = time.perf_counter()
    bonds.run(backend="multiprocessing", n_workers=int(workers))
    _, survival = bonds.lifetime(tau_max=int(tau_max))
    print(time.perf_counter() - begun)
    np.savetxt(answer, survival)


if __name__ == "__main__":
    main(*sys.argv[1:])
