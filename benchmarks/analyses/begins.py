"""Tells when map() was first called on each rank, and how many files that rank had opened by then."""

import sys
import time
from pathlib import Path

import himach
from himach.ranks.process_exit import promised_rank

#: Seconds that a rank waits for the others: each shall have frames.
PATIENCE = 60


class Begins(himach.Analysis):
    """Leave a file for each rank, and go on when all ranks have."""

    folder: str
    ranks: int = 1

    def map(self, frame):
        """Yield nothing."""
        folder = Path(self.folder)
        mine = folder / str(promised_rank())
        if not mine.exists():
            now = time.time()
            opened = getattr(sys, "files_opened", lambda: 0)()
            mine.with_suffix(".new").write_text(f"{now!r} {opened}")
            mine.with_suffix(".new").rename(mine)
            while len([path for path in folder.iterdir() if not path.suffix]) < self.ranks:
                time.sleep(0.01)
                if time.time() > now + PATIENCE:
                    raise TimeoutError(f"not all of {self.ranks} ranks have begun")
        return ()

    def reduce(self, key, series):
        """Never called: there are no keys."""
