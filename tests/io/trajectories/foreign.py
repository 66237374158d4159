"""Every trajectory that MDAnalysisTests ships, and what MDAnalysis itself reads in it."""

import functools
import os
import pickle
import warnings
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import MDAnalysis as mda
import numpy as np
from MDAnalysis.core._get_readers import get_reader_for
from MDAnalysisTests import datafiles

from himach.frame import RawFrame
from himach.io.trajectories.origin import Origin
from himach.io.trajectories.reader_file import construct

#: Topologies of the formats that do not say how many atoms they hold.
TOPOLOGIES = {
    "TRJ": "PRM",
    "TRJ_bz2": "PRM",
    "WIN_TRJ": "PRM",
    "TRJ12_bz2": "PRM12",
    "TRJncdf": "PRMncdf",
    "TRJpbc_bz2": "PRMpbc",
    "TRZ": "TRZ_psf",
    "trz4data": "LAMMPSdata",
}
#: Formats of files whose suffixes do not tell them, by the beginning of their names.
FORMATS = {"LAMMPSDUMP": "LAMMPSDUMP", "DLP_HISTORY": "HISTORY", "DLP_CONFIG": "CONFIG"}
#: One in so many of the run input files, of which there are 70 of one frame each.
TPR_STEP = 12
#: Formats whose only frame MDAnalysis numbers -1, so that it is at minus one time step there.
NUMBERED_MINUS_ONE = ("TPR", "MMTF")
_TIME = ("time", "dt", "time_offset")


@dataclass(frozen=True)
class Foreign:
    """A trajectory of MDAnalysisTests, by its name there, with what it takes to open it."""

    name: str
    path: str
    kind: str
    topology: str | None = None
    keywords: dict[str, Any] = field(default_factory=dict)

    @functools.cached_property
    def frames(self) -> list[tuple[Any, ...]]:
        """What MDAnalysis reads, frame by frame in order: see `seen`."""
        keywords = dict(self.keywords)
        reader_class = get_reader_for(self.path, format=keywords.pop("format", None))
        if self.topology is not None:
            keywords["n_atoms"] = mda.Universe(self.topology).atoms.n_atoms
        return read_by_mdanalysis(reader_class, self.path, **keywords)


def read_by_mdanalysis(reader_class: Any, path: str | Path, **keywords: Any) -> list[tuple[Any, ...]]:
    """Return the frames of a file as a reader of MDAnalysis reads them in order: see `seen`."""
    frames = []
    with construct(reader_class, str(path), **keywords) as reader:
        for ts in reader:
            velocities = ts.velocities if ts.has_velocities else None
            forces = ts.forces if ts.has_forces else None
            data = {name: value for name, value in ts.data.items() if name not in _TIME}
            time = ts.time if reader.format not in NUMBERED_MINUS_ONE else ts.time + ts.dt
            frame = RawFrame(len(frames), time, ts.positions, ts.dimensions, velocities, forces, data=data)
            frames.append(seen(frame))
    return frames


def read_frames(origin: Origin, numbers: Iterable[int] | None = None) -> list[tuple[Any, ...]]:
    """Return frames as a rank reads them that got the opened trajectory as a pickle: see `seen`."""
    there = pickle.loads(pickle.dumps(origin))
    try:
        return [seen(frame) for frame in there.read(range(origin.n_frames) if numbers is None else numbers)]
    finally:
        there.close()


def seen(frame: Any) -> tuple[Any, ...]:
    """Return number, time and number of atoms of a frame, and checksums of every bit that it holds."""
    arrays = (frame.positions, frame.box, frame.velocities, frame.forces)
    sums = [None if array is None else zlib.crc32(np.asarray(array, dtype=np.float32).tobytes()) for array in arrays]
    data = zlib.crc32(repr({name: _plain(value) for name, value in sorted(frame.data.items())}).encode())
    return (int(frame.number), float(frame.time), len(frame.positions), *sums, data)


def _plain(value: Any) -> Any:
    return (value.dtype.str, value.tobytes()) if isinstance(value, np.ndarray | np.generic) else value


@functools.cache
def trajectories() -> list[Foreign]:
    """Return those that MDAnalysis opens and reads to its end with what is installed here."""
    found = []
    tprs = 0
    for name, path in _files().items():
        format_ = next((kind for start, kind in FORMATS.items() if name.startswith(start)), None)
        try:
            reader_class = get_reader_for(path, format=format_)
        except ValueError:
            continue
        kind = str(np.atleast_1d(reader_class.format)[0])
        tprs += kind == "TPR"
        if kind == "TPR" and tprs % TPR_STEP:
            continue
        topology = getattr(datafiles, TOPOLOGIES[name]) if name in TOPOLOGIES else path if kind == "DATA" else None
        keywords: dict[str, Any] = {} if format_ is None else {"format": format_}
        if name.endswith("additional_columns") and kind == "LAMMPSDUMP":
            keywords["additional_columns"] = True
        one = Foreign(name, path, kind, topology, keywords)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                one.frames
            except Exception:  # a file that is there to be refused, or a package that is missing
                continue
        found.append(one)
    return found


def _files() -> dict[str, str]:
    """Return each file once, by the first of its names; but for a GRO file of several frames, which himach refuses."""
    names: dict[str, str] = {}
    for name in sorted(dir(datafiles)):
        value = getattr(datafiles, name)
        if not name.startswith("_") and isinstance(value, str | os.PathLike) and os.path.isfile(value):
            names.setdefault(os.path.realpath(value), name)
    return {name: path for path, name in names.items() if name != "two_water_gro_multiframe"}
