"""Positions that a tool reads from two files: how far apart they are. Arguments: tool, topology, one file, the other.

Prints JSON: frames, the largest difference in units of the last place of single precision, and of times in ps.
"""

import json
import sys
import warnings

import numpy as np

warnings.simplefilter("ignore")


def mdanalysis(topology, trajectory):
    import MDAnalysis as mda

    for ts in mda.Universe(topology, trajectory).trajectory:
        yield ts.positions, ts.time


def mdtraj(topology, trajectory):
    import mdtraj

    for chunk in mdtraj.iterload(trajectory, top=topology, chunk=10):
        yield from zip(chunk.xyz, chunk.time, strict=True)


def chemfiles(topology, trajectory):
    import chemfiles

    chemfiles.set_warnings_callback(lambda message: None)
    with chemfiles.Trajectory(trajectory) as file:
        for frame in file:
            # Of a DCD it gives times in the file's own unit.
            told = "time" in frame.list_properties() and not trajectory.endswith(".dcd")
            yield frame.positions.astype(np.float32), frame["time"] if told else np.nan


def main(tool, topology, one, other):
    read = {"MDAnalysis": mdanalysis, "MDTraj": mdtraj, "chemfiles": chemfiles}[tool]
    frames, apart, late = 0, 0.0, 0.0
    for (mine, time), (theirs, expected) in zip(read(topology, one), read(topology, other), strict=True):
        units = np.abs(mine - theirs) / np.spacing(np.maximum(np.abs(mine), np.abs(theirs)))
        apart = max(apart, float(units.max()))
        late = max(late, 0.0 if np.isnan(time) or np.isnan(expected) else abs(float(time) - float(expected)))
        frames += 1
    print(json.dumps([frames, apart, late]))


if __name__ == "__main__":
    main(*sys.argv[1:])
