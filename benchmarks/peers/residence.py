"""Survival probability of water near the protein by waterdynamics, which works on one core.

Arguments: tool topology trajectory tau_max answer. Prints the seconds of run().
"""

import sys
import time

import MDAnalysis as mda
import numpy as np
from waterdynamics import SurvivalProbability


def main(tool, topology, trajectory, tau_max, answer):
    universe = mda.Universe(topology, trajectory)
    survival = SurvivalProbability(universe, "name OW and around 3.5 protein")
    begun = time.perf_counter()
    survival.run(tau_max=int(tau_max))
    print(time.perf_counter() - begun)
    np.savetxt(answer, survival.sp_timeseries)


if __name__ == "__main__":
    main(*sys.argv[1:])
