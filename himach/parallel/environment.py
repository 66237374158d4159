"""What a launcher (srun, mpiexec) told this process of its world, read from the environment without MPI."""

from __future__ import annotations

import os
from collections.abc import Mapping

from himach.errors import Interruption

# The first variable that is set counts. A batch script is no step: its SLURM_NTASKS promises nothing until srun or
# mpiexec starts the ranks.
SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "PALS_SIZE", "SLURM_STEP_NUM_TASKS")
NUMBERS = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "MV2_COMM_WORLD_RANK", "PALS_RANKID", "SLURM_PROCID")

#: Beginnings of the variables by which ranks of an inner launcher would take themselves for ranks of an outer one.
FOREIGN = (
    "PMI_",
    "PMIX_",
    "PMI2_",
    "OMPI_",
    "PRTE_",
    "SLURM_",
    "SLURMD_",
    "MPI_LOCAL",
    "HYDRA_",
    "HYDI_",
    "PALS_",
    "MV2_",
)


def promised_ranks(environ: Mapping[str, str] = os.environ) -> int:
    """Return how many ranks the launcher says it started, 1 for a plain process."""
    return next((int(environ[name]) for name in SIZES if environ.get(name, "").isdigit()), 1)


def promised_rank(environ: Mapping[str, str] = os.environ) -> int:
    """Return which rank the launcher says this process is, 0 for a plain process."""
    if not under_launcher(environ):
        return 0
    return next((int(environ[name]) for name in NUMBERS if environ.get(name, "").isdigit()), 0)


def under_launcher(environ: Mapping[str, str] = os.environ) -> bool:
    """Tell whether this process is one of several ranks that a launcher started."""
    return promised_ranks(environ) > 1


def is_interruption(error: BaseException) -> bool:
    """Tell whether a signal, and no code of the user's, raised `error`.

    A terminal's or notebook's KeyboardInterrupt goes to a process alone; a rank that raises one failed, as by any other
    exception.
    """
    return isinstance(error, Interruption) or (isinstance(error, KeyboardInterrupt) and not under_launcher())
