"""Formats that ranks write together: a head, and frames as bytes, each rank's at its own place in one file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import MDAnalysis
import numpy as np
from MDAnalysis.lib.mdamath import triclinic_vectors

from himach.errors import UsageError
from himach.formats.dcd import Dcd
from himach.formats.layout import Content, FileLayout
from himach.formats.netcdf import NetCdf
from himach.formats.trr import Trr
from himach.frame import FIELDS, POSITIONS, RawFrame
from himach.io.frame_source import ReadOptions
from himach.io.trajectory.xtc import encode
from himach.opening.dataset import Opened

__all__ = ["Fixed", "Format", "Xtc", "format_of", "serial_writer"]

NO_BOX = np.zeros((3, 3), np.float32)
NM = np.float32(0.1)
LAYOUTS: dict[str, Callable[[Content], FileLayout]] = {".trr": Trr, ".dcd": Dcd, ".nc": NetCdf, ".ncdf": NetCdf}


class Format(Protocol):
    """A format whose frames ranks write independently of each other.

    Attributes
    ----------
    fields
        Which of `himach.frame.FIELDS` it has, or-ed.
    with_data
        Whether it has the number of a frame's step.
    """

    fields: int
    with_data: bool

    def head(self, first_time: float, timestep: float) -> bytes:
        """Return what the file begins with, given the first frame's time and the time between two frames, ps."""

    def frame(self, frame: RawFrame) -> Any:
        """Return a frame as a buffer; raises UsageError if the format cannot hold it."""


class Xtc:
    """GROMACS's compressed positions: the bytes that MDAnalysis's writer gives.

    Parameters
    ----------
    precision
        Steps in a nm.
    """

    fields = POSITIONS
    with_data = True

    def __init__(self, precision: float = 1000.0) -> None:
        self.precision = precision

    def head(self, first_time: float, timestep: float) -> bytes:
        """Return nothing."""
        return b""

    def frame(self, frame: RawFrame) -> Any:
        """Return a frame as a buffer; raises UsageError if a position is too large."""
        vectors = NO_BOX
        if frame.box is not None:
            nm = frame.box.copy()
            nm[:3] *= NM
            vectors = triclinic_vectors(nm)
        step = int((frame.data or {}).get("step", frame.number))
        try:
            return encode(np.ascontiguousarray(frame.positions), vectors, step, frame.time, self.precision)
        except ValueError as error:
            raise UsageError(f"frame {frame.number}: {error}") from error


class Fixed:
    """A format whose frames are equally long.

    Parameters
    ----------
    layout
        Where the bytes of a frame lie.
    """

    def __init__(self, layout: FileLayout) -> None:
        self.layout = layout
        vectors = isinstance(layout, Trr | NetCdf)
        self.fields = FIELDS if vectors else POSITIONS
        self.with_data = isinstance(layout, Trr)

    def head(self, first_time: float, timestep: float) -> bytes:
        """Return what the file begins with."""
        return self.layout.head(first_time, timestep)

    def frame(self, frame: RawFrame) -> Any:
        """Return a frame as a buffer."""
        written = np.empty(self.layout.frame_bytes, np.uint8)
        self.layout.put(frame, written, 0)
        return written


def format_of(path: Path, content: Content, opened: Opened) -> Format | None:
    """Return the format that ranks write together, by the file's suffix; None: MDAnalysis writes it, on one rank.

    An XTC file has the precision of the one that is read.

    Raises
    ------
    UsageError
        If the format has evenly spaced frames, and these are not; if it cannot count so many frames or atoms; if it is
        H5MD, whose library locks a file that is to be its own.
    """
    suffix = path.suffix.lower()
    if suffix in (".h5md", ".zarrmd", ".zarr"):
        raise UsageError(f"{path}: himach reads H5MD and does not write it; choose another format, such as .nc or .trr")
    if suffix == ".xtc":
        return Xtc(_precision(opened))
    if suffix not in LAYOUTS:
        return None
    layout = LAYOUTS[suffix](content)
    if not layout.possible:
        raise UsageError(f"{path}: a {suffix} file cannot hold {content.n_frames} frames of {content.n_atoms} atoms")
    if suffix == ".dcd" and content.n_frames > 1 and (opened.dt is None or opened.dt < 0):
        times = "are not" if opened.dt is None else "run backwards"
        raise UsageError(f"{path}: a DCD file has frames at even times, and these {times}; choose another format")
    return Fixed(layout)


def _precision(opened: Opened) -> float:
    """Return the precision of the first frame, where it is of an XTC file that has one."""
    if not opened.origin.present or opened.origin.kinds[0] != "XTC":
        return 1000.0
    frame = next(opened.origin.read([opened.frames[0]], ReadOptions(np.zeros(1, np.int64))))
    return 1000.0 if frame.coded is None else frame.coded.precision


def serial_writer(path: Path, temporary: Path, n_atoms: int) -> Any:
    """Return MDAnalysis's writer of many frames to a file that has a temporary name; raises UsageError without one."""
    try:
        return MDAnalysis.Writer(str(temporary), n_atoms, multiframe=True)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{path}: MDAnalysis writes no trajectory of this suffix ({error})") from error
