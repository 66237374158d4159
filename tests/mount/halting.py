"""A mount of one made-up dataset, none of whose frames from the fourth on comes: a program of the tests.

Arguments: the folder; the user to become, if another.
"""

import os
import sys
import threading
from pathlib import Path

import numpy as np
import scipy.io  # noqa: F401  (another user may not be able to import it)

from himach.frame import RawFrame
from himach.mount.mounting import mount
from himach.mount.stores import Facts

N_ATOMS = 100_000
FACTS = Facts("halting", b"", 10, N_ATOMS, False, False, False, 10**18)


class Halting:
    def names(self):
        return ["halting"]

    def facts(self, name):
        return FACTS

    def topology(self, facts, suffix):
        raise OSError("there is none")

    def open(self, facts):
        return self

    def stamps(self):
        return 0.0, 1.0

    def frame(self, number):
        if number >= 3:
            threading.Event().wait()
        return RawFrame(number, float(number), np.full((N_ATOMS, 3), number, np.float32))

    def close(self):
        pass


if __name__ == "__main__":
    if len(sys.argv) > 2:
        os.setgroups([])
        os.setgid(int(sys.argv[2]))
        os.setuid(int(sys.argv[2]))
    mount(Halting(), Path(sys.argv[1]), lambda: print("it is mounted", file=sys.stderr, flush=True))
