"""A bare Allreduce with bitwise or, by mpi4py.

Arguments: MB repetitions. Rank 0 prints the seconds of each repetition.
"""

import sys
import time

import numpy as np
from mpi4py import MPI


def main(megabytes, repetitions):
    comm = MPI.COMM_WORLD
    words = np.ones(int(megabytes) * 125_000, dtype=np.uint64)
    total = np.ones_like(words)
    for _ in range(int(repetitions)):
        comm.Barrier()
        begun = time.perf_counter()
        comm.Allreduce(words, total, MPI.BOR)
        seconds = comm.reduce(time.perf_counter() - begun, MPI.MAX)
        if comm.rank == 0:
            print(seconds)


if __name__ == "__main__":
    main(*sys.argv[1:])
