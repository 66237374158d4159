"""Survival probability from what `gmx select -oi` wrote: the frames' selected atoms, for the comparison of answers.

Arguments: index tau_max answer. gmx select itself is what is timed; this is not.
"""

import sys

import numpy as np
from MDAnalysis.lib.correlations import autocorrelation


def main(index, tau_max, answer):
    # A line is a frame: its time, the number of atoms selected, and their numbers.
    with open(index) as lines:
        selected = [set(map(int, line.split()[2:])) for line in lines]
    _, survival, _ = autocorrelation(selected, int(tau_max))
    np.savetxt(answer, survival)


if __name__ == "__main__":
    main(*sys.argv[1:])
