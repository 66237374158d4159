"""Argon in LAMMPS, whose ranks push the atoms that they have: ``mpiexec -n 4 python lammps_slices.py [STEPS]``.

Every tenth step is a frame of dataset ``argon``. To analyse it while this runs, or afterwards:
``himach follow rdf -p a='all' -p b='all' -t argon -s argon.data --universe atom_style='id type x y z' --idle 10``
"""

import sys

from lammps import lammps
from mpi4py import MPI

import himach

EVERY = 10
ARGON = """
units real
atom_style atomic
lattice fcc 5.26
region box block 0 6 0 6 0 6
create_box 1 box
create_atoms 1 box
mass 1 39.948
pair_style lj/cut 8.5
pair_coeff 1 1 0.238 3.405
velocity all create 90 87287
fix move all nve
write_data argon.data
"""

ranks = MPI.COMM_WORLD  # imported before LAMMPS, which uses the MPI library that is loaded
lmp = lammps(comm=ranks, cmdargs=["-log", "none", "-screen", "none"])
lmp.commands_string(ARGON)


def push(writer, step, n_local, tags, positions, forces):
    """Push the atoms of this rank; LAMMPS counts them from 1, and time in fs."""
    low, high = lmp.extract_box()[:2]
    box = [high[0] - low[0], high[1] - low[1], high[2] - low[2], 90, 90, 90]
    writer.push_slice(step // EVERY, tags[:n_local] - 1, positions[:n_local], time=step * 1e-3, box=box)


with himach.Writer("argon", n_atoms=lmp.get_natoms(), rank=ranks.rank) as writer:
    lmp.command(f"fix push all external pf/callback {EVERY} {EVERY}")
    lmp.set_fix_external_callback("push", push, writer)
    lmp.command(f"dump check all custom {EVERY} argon.dump id x y z")
    lmp.command("dump_modify check format float %.17g")
    lmp.command(f"run {sys.argv[1] if len(sys.argv) > 1 else 200}")
