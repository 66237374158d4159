"""The installed C library of the frame store, for simulations in C or Fortran that push frames."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import himach
from himach.errors import HimachError


def installed_file(name: str) -> Path:
    """Return the path of ``include/bodhi.h``, ``include/bodhi.f90`` (a module's source), or ``lib/libbodhi.a``."""
    path = Path(himach.__path__[0], name)
    if not path.exists():  # an editable installation keeps it in the build directory
        path = Path(str(files("himach").joinpath(name)))
    if not path.exists():
        raise HimachError(f"{path.name} is not installed with himach at {himach.__path__[0]}: install himach again")
    return path
