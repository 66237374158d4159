"""An ensemble of AdK: members of two groups, other lengths, time steps, formats and topologies."""

import csv
import itertools
import json
from pathlib import Path

import numpy as np
from MDAnalysis import Universe, Writer
from MDAnalysisTests.datafiles import DCD, PSF

import himach

#: Name, group, atoms, frames, ps between frames, format.
MEMBERS = [
    ("r1", "wild type", 214, 31, 1.0, "xtc"),
    ("r2", "wild type", 214, 20, 2.0, "trr"),
    ("r10", "wild type", 500, 25, 1.0, "dcd"),
    ("m1", "mutant", 214, 31, 1.0, "xtc"),
    ("m2", "mutant", 500, 12, 5.0, "xtc"),
    ("m3", "mutant", 500, 31, 1.0, "nc"),
]
ANALYSES = '''
import time
import himach


class Gyration(himach.Analysis):
    """One row a frame."""

    pause: float = 0.0

    def setup(self, universe):
        self.ca = universe.select_atoms("name CA")

    def atoms(self, universe):
        return self.ca

    def map(self, frame):
        time.sleep(self.pause)
        assert frame.member == self.member
        yield himach.Row(rg=float(self.ca.radius_of_gyration()), whose=frame.member)


class Ends(himach.Analysis):
    """A table by residue, and a number."""

    def setup(self, universe):
        self.ca = universe.select_atoms("name CA")[:5]
        self.first = self.ca.positions.copy()

    def map(self, frame):
        yield from zip(self.ca.resids.tolist(), abs(self.ca.positions - self.first).max(axis=1), strict=True)

    def reduce(self, key, series):
        return float(max(series.values))

    def finish(self, results):
        table = himach.Table({"residue": list(results), "moved": himach.Column(list(results.values()), "Å")})
        return {"moved": table, "frames": len(self.frames)}
'''


def make_ensemble(folder: Path) -> None:
    """Write the members' files, a script with analyses, and the table of members, whose temperature is metadata."""
    folder.mkdir(exist_ok=True)
    universe = Universe(PSF, DCD)
    random = np.random.default_rng(5)
    for n_atoms in {n_atoms for _, _, n_atoms, *_ in MEMBERS}:
        universe.atoms[:n_atoms].write(str(folder / f"top{n_atoms}.pdb"))
    for name, _, n_atoms, n_frames, dt, kind in MEMBERS:
        begin = int(random.integers(40))
        chosen = universe.atoms[:n_atoms]
        with Writer(str(folder / f"{name}.{kind}"), n_atoms, dt=dt) as writer:
            for number, ts in enumerate(universe.trajectory[begin : begin + n_frames]):
                ts.time, ts.frame, ts.dimensions = number * dt, number, [80, 80, 80, 90, 90, 90]
                writer.write(chosen)
    (folder / "analyses.py").write_text(ANALYSES)
    with (folder / "ensemble.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["name", "trajectory", "topology", "group", "temperature"])
        for at, (name, group, n_atoms, _, _, kind) in enumerate(MEMBERS):
            rows.writerow([name, f"{name}.{kind}", f"top{n_atoms}.pdb", group, 300 + 10 * (at % 2)])


def members_in(folder: Path) -> list[himach.Member]:
    """Return the same members for Python."""
    return [
        himach.Member(name, folder / f"{name}.{kind}", folder / f"top{n}.pdb", group, metadata={"temperature": kelvin})
        for (name, group, n, _, _, kind), kelvin in zip(MEMBERS, itertools.cycle([300, 310]), strict=False)
    ]


NAMES = [name for name, *_ in MEMBERS]
FRAMES = sum(n_frames for _, _, _, n_frames, *_ in MEMBERS)


def record_in(out):
    return json.loads((out / "run.json").read_text())
