"""The installed C library of the frame store, for simulations in C or Fortran that push frames."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from himach.errors import HimachError


def installed_file(name: str) -> Path:
    """Return the path of ``include/bodhi.h``, ``include/bodhi.f90`` (a module's source), or ``lib/libbodhi.a``."""
    path = Path(str(files("himach").joinpath(name)))  # which an editable installation keeps in the build directory
    if not path.exists():
        raise HimachError(f"{path} is not installed with himach: install himach again")
    return path
