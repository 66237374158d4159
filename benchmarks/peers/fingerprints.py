"""Interactions of ProLIF's sample by ProLIF itself, or by himach on ranks; prints a digest of its table.

usage: fingerprints.py prolif|himach FRAMES PROCESSES
"""

import hashlib
import sys
import warnings

warnings.simplefilter("ignore")

import MDAnalysis as mda  # noqa: E402
import prolif  # noqa: E402
from prolif.datafiles import TOP, TRAJ  # noqa: E402

import himach  # noqa: E402

GROUPS = ("resname LIG", "protein")


class Fingerprints(himach.Analysis):
    """Interactions of a ligand with a protein."""

    def setup(self, universe):
        """Select both."""
        self.groups = [universe.select_atoms(text) for text in GROUPS]

    def map(self, frame):
        """Yield the fingerprint of a frame."""
        found = prolif.Fingerprint().run(frame.universe.trajectory.ts, *self.groups, n_jobs=1, progress=False)
        yield "fingerprint", found.ifp[frame.number]

    def reduce(self, key, series):
        """Return all by frame."""
        return dict(zip(series.frames.tolist(), series.values, strict=True))

    def finish(self, results):
        """Return ProLIF's table."""
        fingerprint = prolif.Fingerprint()
        fingerprint.ifp = results["fingerprint"]
        return fingerprint.to_dataframe()


def main():
    how, frames, processes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    if how == "himach":
        # The times in the sample run backwards.
        table = himach.run(
            Fingerprints(), TRAJ, TOP, stop=frames, universe={"dt": 1.0}, ranks=processes, progress=False
        ).outcome
    else:
        u = mda.Universe(TOP, TRAJ)
        groups = [u.select_atoms(text) for text in GROUPS]
        table = (
            prolif.Fingerprint().run(u.trajectory[:frames], *groups, n_jobs=processes, progress=False).to_dataframe()
        )
    print(hashlib.sha256(table.to_csv().encode()).hexdigest())


if __name__ == "__main__":
    main()
