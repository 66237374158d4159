"""``himach bench rmsd``: C-alpha RMSD from XTC without a cache, beside MDAnalysis on as many cores."""

from __future__ import annotations

import csv
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from himach.bench.adk import adk
from himach.bench.whole import medians, ratio, time_in_turn

__all__ = ["main"]

PEER = """
import sys, numpy as np, MDAnalysis as mda
from MDAnalysis.analysis.rms import RMSD
if __name__ == "__main__":
    top, traj, workers, out = sys.argv[1:]
    analysis = RMSD(mda.Universe(top, traj), select="name CA")
    analysis.run(backend="multiprocessing", n_workers=int(workers))
    np.savetxt(out, analysis.results.rmsd[:, 2])
"""


def main(frames: int = 1000, ranks: int = 2, repeats: int = 3) -> None:
    """Print wall times of both, their ratio, and how far the answers are apart."""
    topology, trajectory = adk(frames)
    with tempfile.TemporaryDirectory(prefix="himach-bench-") as name:
        scratch = Path(name)
        (scratch / "peer.py").write_text(PEER)
        ours = [sys.executable, "-P", "-m", "himach", "run", "rmsd", "--trajectory", str(trajectory)]
        ours += ["--topology", str(topology), "-p", "selection=name CA", "-n", str(ranks), "--cache", "off"]
        ours += ["--quiet"]
        peer = [sys.executable, str(scratch / "peer.py"), str(topology), str(trajectory), str(ranks)]
        seconds = time_in_turn({"himach": ours, "MDAnalysis": [*peer, str(scratch / "peer.txt")]}, repeats)
        # Once more for the answers, off the clock: --out also draws a plot, which the peer does not.
        subprocess.run(
            [*ours, "--out", str(scratch / "out")], check=True, capture_output=True, stdin=subprocess.DEVNULL
        )
        with (scratch / "out" / "rmsd.csv").open() as table:
            found = np.array([float(row["rmsd"]) for row in csv.DictReader(table)])
        apart = np.abs(found - np.loadtxt(scratch / "peer.txt")).max()
    print(f"C-alpha RMSD of {frames} AdK frames from XTC, {ranks} ranks or workers, no cache")
    print(medians(seconds))
    print(f"himach / MDAnalysis: {ratio(seconds, 'himach', 'MDAnalysis'):.2f}; answers differ by {apart:.1e} Å at most")
