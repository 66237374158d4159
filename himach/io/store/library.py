"""Paths of the installed C library of the frame store, for simulations in C or Fortran that push frames."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import himach
from himach.errors import HimachError


def header() -> Path:
    """Return the path of ``bodhi.h``."""
    return _installed("include", "bodhi.h")


def fortran_module() -> Path:
    """Return the path of the source of the Fortran module ``bodhi``."""
    return _installed("include", "bodhi.f90")


def library() -> Path:
    """Return the path of the static library."""
    return _installed("lib", "libbodhi.a")


def _installed(folder: str, name: str) -> Path:
    path = Path(himach.__path__[0], folder, name)
    if not path.exists():  # an editable installation keeps it in the build directory
        path = Path(str(files("himach").joinpath(folder, name)))
    if not path.exists():
        raise HimachError(f"{name} is not installed with himach at {himach.__path__[0]}: install himach again")
    return path
