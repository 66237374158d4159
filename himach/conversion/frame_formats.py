"""Formats that ranks write together: a head, then frames as bytes, each rank at its own offsets of one file."""

from dataclasses import replace
from functools import reduce
from operator import and_, or_
from pathlib import Path
from typing import Any

import MDAnalysis
import numpy as np
from MDAnalysis.lib.mdamath import triclinic_vectors

from himach.errors import UsageError
from himach.frame import FORCES, POSITIONS, VELOCITIES, RawFrame
from himach.io.datasets.opening import OpenFrames
from himach.io.trajectories.formats import find_by_suffix
from himach.io.trajectories.layouts import Content, FileLayout, NetCdf
from himach.io.trajectories.xdr_file import XdrFile
from himach.io.trajectories.xtc import encode

NO_BOX = np.zeros((3, 3), np.float32)
NM = np.float32(0.1)


class Xtc:
    """GROMACS's compressed positions: the bytes of MDAnalysis's writer, with the precision of the frame read."""

    fields = POSITIONS  # `himach.frame.FIELDS` that it stores, or-ed
    with_data = True  # whether it stores the step number of a frame

    def head(self, first_time: float, timestep: float) -> bytes:
        """Return the head of the file, given the first frame's time and the time between two frames, ps."""
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
            return encode(np.ascontiguousarray(frame.positions), vectors, step, frame.time, frame.precision)
        except ValueError as error:
            raise UsageError(f"frame {frame.number}: {error}") from error


Format = Xtc | FileLayout


def choose_format(path: Path, content: Content, opened: OpenFrames, warnings: list[str]) -> Format | None:
    """Return the format that ranks write together, by the file's suffix; None: MDAnalysis writes it on one rank.

    Fields that it leaves out of frames are added to `warnings`.
    """
    suffix = path.suffix.lower()
    registered = find_by_suffix(suffix)
    if registered is None:
        return None
    if registered.name == "XTC":
        return Xtc()
    if registered.layout is None:
        raise UsageError(f"{path}: himach reads H5MD and does not write it; choose another format, such as .nc or .trr")
    if registered.layout is NetCdf:
        fields = _shared_fields(opened, warnings)
        content = replace(content, has_velocities=bool(fields & VELOCITIES), has_forces=bool(fields & FORCES))
    layout = registered.layout(content)
    if not layout.possible:
        raise UsageError(f"{path}: a {suffix} file cannot hold {content.n_frames} frames of {content.n_atoms} atoms")
    if suffix == ".dcd" and content.n_frames > 1 and (opened.dt is None or opened.dt < 0):
        times = "are not" if opened.dt is None else "run backwards"
        raise UsageError(f"{path}: a DCD file has frames at even times, and these {times}; choose another format")
    return layout


def _shared_fields(opened: OpenFrames, warnings: list[str]) -> int:
    """Return the `FIELDS` of all frames, or-ed, from the index, else from the first frame of each file."""
    field_sets, start, frames = [_fields(opened.first)], 0, np.asarray(opened.frames)
    for file in opened.origin.files if opened.origin.present else ():
        chosen = frames[(start <= frames) & (frames < start + file.n_frames)]
        if isinstance(file, XdrFile):
            field_sets += map(file.index.fields, (chosen - start).tolist())
        else:
            field_sets += map(_fields, opened.origin.read(chosen[:1].tolist()))
        start += file.n_frames
    in_all, in_any = reduce(and_, field_sets), reduce(or_, field_sets)
    for name, bit in (("velocities", VELOCITIES), ("forces", FORCES)):
        if in_any & ~in_all & bit:
            warnings.append(f"{name} are left out: not all frames have them, and NetCDF needs that; .trr keeps them")
    return in_all


def _fields(frame: RawFrame) -> int:
    return VELOCITIES * (frame.velocities is not None) | FORCES * (frame.forces is not None)


def serial_writer(path: Path, temporary: Path, n_atoms: int, n_frames: int) -> Any:
    """Return MDAnalysis's writer for a file with a temporary name; raises UsageError if there is none."""
    try:
        return MDAnalysis.Writer(str(temporary), n_atoms, multiframe=n_frames != 1)
    except (TypeError, ValueError) as error:
        kind = "file" if n_frames == 1 else "trajectory"
        raise UsageError(f"{path}: MDAnalysis writes no {kind} of this suffix ({error})") from error
