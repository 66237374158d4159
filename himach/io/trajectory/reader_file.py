"""Files read by MDAnalysis's readers: `ReaderFile`, and `count_frames()`, which notices a file cut off."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import pickle
import struct
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.errors import TrajectoryError
from himach.frame import RawFrame
from himach.io.remote.byte_file import fetch, read_status
from himach.io.remote.mirror import Records
from himach.io.remote.url import is_url
from himach.io.trajectory.index.timeline import EvenTimeline, ListedTimeline, Timeline
from himach.io.trajectory.messages import quietly, warn_cut
from himach.io.trajectory.readahead import ask_for
from himach.io.trajectory.xdr_file import FrameFile

Places = Sequence[tuple[int, int]]

#: Keys of a timestep's data for the frame's time.
_TIME = frozenset({"time", "dt", "time_offset"})
#: Version in DCD headers of NAMD and other programs that write angles or cosines.
NAMD_VERSION = 24


class ReaderFile(FrameFile):
    """A file read by a reader of MDAnalysis.

    The opened reader is sent as a pickle with the index that it built, and reopens the file from that. If frames can
    only be read in order, it is opened anew and read from the first frame on.
    """

    _at = -1  # frame at which the reader is; -1: unknown, so it must seek

    def __init__(self, path: str, reader: Any, n_frames: int, ordered: bool = False) -> None:
        super().__init__(path)
        self.kind = str(np.atleast_1d(reader.format)[0])
        self.n_frames = n_frames
        self.n_atoms = int(reader.n_atoms)
        self.timed = "time" in reader.ts.data and reader._kwargs.get("dt") is None
        self.times = _reader_times(reader, self.kind, n_frames)
        self._size = read_status(path).size
        self._bytes_per_frame = self._size / n_frames
        self._remake = (type(reader), reader._kwargs)  # as the reader's own copy() does
        self._ordered = ordered
        self._state = None if ordered or is_url(path) else _pickle(reader)
        self.opening: Places = ()
        self.records: Records | None = None
        self._needed: int | None = None
        self._reader = reader
        if ordered:
            self.release()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_reader": None, "_at": -1}

    def read(self, index: int, needed: int | None = None) -> RawFrame:
        """Return a whole frame, of a remote NetCDF file the `needed` atoms; its arrays are valid until the next."""
        if is_url(self.path):
            self._bring(index, needed)
        elif self.kind == "NCDF" and os.path.getsize(self.path) < self._size:  # mapped: reads past the end raise SIGBUS
            raise ValueError("the file has become shorter since it was opened")
        ts = self._move(index)
        box = ts.dimensions
        return RawFrame(
            index,
            float(ts.time if self.times is None else self.times[index]),
            _vectors(ts.positions),
            None if box is None else np.array(box, dtype=np.float32),
            _vectors(ts.velocities) if ts.has_velocities else None,
            _vectors(ts.forces) if ts.has_forces else None,
            data={name: value for name, value in ts.data.items() if name not in _TIME},
            left=0 if self.records is None else self.records.skipped_bytes(needed),
        )

    def _move(self, index: int) -> Any:
        """Return the reader's timestep at a frame, after checking that it is this frame."""
        at, self._at = self._at, -1
        ts = self._step_to(at, index) if self._ordered else self._seek_to(at, index)
        self._check(ts, index)
        self._at = index
        return ts

    def _step_to(self, at: int, index: int) -> Any:
        if not 0 <= at <= index:
            self.release()
            at = 0
        reader = self._get_reader()  # at frame 0 if just opened
        for number in range(at + 1, index + 1):
            try:
                reader.next()
            except StopIteration:  # hides the reason
                raise ValueError(f"the reader finds no frame {number} in the file") from None
        return reader.ts

    def _seek_to(self, at: int, index: int) -> Any:
        # A reader just opened or unpickled claims to be at frame 0, but its file may be at any position.
        reader = self._get_reader()
        if not 0 <= at == index - 1:
            return reader[index]
        try:
            return reader.next()
        except StopIteration:  # hides the reason
            return reader[index]

    def _check(self, ts: Any, index: int) -> None:
        """Raise ValueError if the number or time is that of another frame."""
        if not self._ordered and self.n_frames > 1 and ts.frame != index:  # some formats number a single frame -1
            raise ValueError(f"the reader gives frame {ts.frame} of the file for frame {index}")
        if self.times is None or "time" not in ts.data:
            return
        expected = float(self.times[index])
        if not math.isclose(ts.time, expected, rel_tol=1e-6, abs_tol=1e-6):
            raise ValueError(
                f"the reader gives a frame at {ts.time:g} ps, where there was one at {expected:g} ps when the file was "
                "opened"
            )

    def _get_reader(self) -> Any:
        if self._reader is None:
            if self._state is not None:
                self._reader = pickle.loads(self._state)
            else:
                reader_class, keywords = self._remake
                if is_url(self.path):
                    keywords = {**keywords, "filename": fetch(self.path, self.opening)}
                self._reader = construct(reader_class, **keywords)
        return self._reader

    def expect(self, indices: Sequence[int]) -> None:
        """Request readahead of these frames, at their records or as if all had one size."""
        if self.records is not None:
            records = self.records
            ask_for(self.path, (place for index in indices for place in records.places(index, self._needed)))
            return
        size = self._bytes_per_frame
        ask_for(self.path, ((int(size * index), int(size * (index + 1))) for index in indices))

    def _bring(self, index: int, needed: int | None) -> None:
        """Fetch the needed bytes of a remote frame."""
        self._needed = needed
        fetch(self.path, () if self.records is None else list(self.records.places(index, needed)))

    def release(self) -> None:
        """Close the file until the next read."""
        reader, self._reader, self._at = self._reader, None, -1
        if reader is not None:
            with contextlib.suppress(OSError):  # the file server may be away
                reader.close()


def reads_in_order(reader: Any, kind: str) -> bool:
    """Return whether a frame is reliable only after all before it were read.

    That is so if the reader cannot seek or seeks by frame numbers of the file (TRZ), and if frames inherit: a model of
    a PDB file without a box gets the box of the model read before it.
    """
    from MDAnalysis.coordinates.base import ProtoReader

    if reader.n_frames == 1:
        return False
    if kind == "TRZ" or type(reader)._read_frame is ProtoReader._read_frame:
        return True
    return any(frames not in ([], [0]) and len(frames) != reader.n_frames for frames in _telling_frames(reader, kind))


def _telling_frames(reader: Any, kind: str) -> list[list[int]]:
    """Return, for each property that frames inherit, the frames that set it."""
    if kind in ("PDB", "XPDB"):
        return [_models_with_box(reader)]
    if kind == "MOL2":
        marks = ("@<TRIPOS>CRYSIN", "@<TRIPOS>SUBSTRUCTURE")
        return [[i for i, lines in enumerate(reader.frames) if mark in "".join(lines).upper()] for mark in marks]
    return []


def _models_with_box(reader: Any) -> list[int]:
    """Return the numbers of the models of a PDB file that have a CRYST1 record."""
    from MDAnalysis.lib.util import anyopen

    numbers = []
    with anyopen(reader.filename, "rb") as file:
        for number, (start, stop) in enumerate(zip(reader._start_offsets, reader._stop_offsets, strict=True)):
            file.seek(start)
            if b"\nCRYST1" in b"\n" + file.read(stop - start):
                numbers.append(number)
    return numbers


def count_frames(path: str, kind: str, reader: Any, ordered: bool = False, name: str = "") -> int:
    """Return the number of whole frames, with a warning if the last one is incomplete.

    If frames can only be read in order, the reader is trusted about the last one. The warning has the `name` of a
    remote file.
    """
    n_frames = int(reader.n_frames)
    if kind == "DCD":
        cut = _dcd_rest(path, int(reader.n_atoms))
    elif kind == "XYZ":
        cut = _xyz_rest(path, reader, n_frames)
    elif kind == "TRJ":
        cut = _trj_rest(path, reader)
    else:
        cut = False
    if n_frames > 1 and not cut and not ordered:
        try:
            quietly(reader.__getitem__, n_frames - 1)
        except Exception:
            n_frames -= 1
            cut = True
        quietly(reader.__getitem__, 0)
    if cut:
        warn_cut(name or path, n_frames)
    return n_frames


def refuse_misread(path: str, kind: str, reader: Any) -> None:
    """Raise TrajectoryError if MDAnalysis misreads a file; warn of a box that it ignores or positions it displaces."""
    with open(path, "rb") as file:
        head = file.read(1 << 16)
    if kind == "GRO" and not path.endswith((".gz", ".bz2")):
        with open(path, "rb") as file:
            rest = list(itertools.islice(file, int(reader.n_atoms) + 3, int(reader.n_atoms) + 5))
        if len(rest) > 1:
            raise TrajectoryError(
                f"{path} has several frames, and of a GRO file the first is read alone; convert it, for example by "
                "gmx trjconv -o traj.xtc"
            )
    elif kind == "XYZ" and b'Lattice="' in b"".join(head.split(b"\n", 2)[1:2]):  # compressed ones may have no line
        warnings.warn(f"{path}: the box that Lattice= tells is not read; frames have none", stacklevel=2)
    elif kind == "LAMMPSDUMP":
        scaled = reader.lammps_coordinate_convention.startswith("scaled")
        tilted = (reader.ts.dimensions[3:] != 90).any()
        if reader._unwrap and (tilted or reader.lammps_coordinate_convention != "unscaled"):
            raise TrajectoryError(
                f"{path}: MDAnalysis unwraps columns x, y, z alone by image flags, and in boxes that are not tilted; "
                "leave unwrap_images out, and follow atoms by nojump"
            )
        if scaled and any(float(line.split()[0]) for line in head.split(b"\n")[5:8]):
            warnings.warn(
                f"{path}: scaled positions are displaced by the lower corner of the box; distances are right",
                stacklevel=2,
            )
    elif kind == "DCD":
        order = "<" if head[:4] == struct.pack("<i", 84) else ">"
        version, has_cell = struct.unpack(f"{order}i", head[84:88])[0], struct.unpack(f"{order}i", head[48:52])[0]
        (title,) = struct.unpack(f"{order}i", head[92:96])
        cell = head[116 + title :][:48] if has_cell else b""
        if version > NAMD_VERSION and len(cell) == 48:
            below = np.frombuffer(cell, f"{order}f8")[[1, 3, 4]]
            if below.any() and (np.abs(below) <= 1).all():
                raise TrajectoryError(
                    f"{path} has boxes as CHARMM writes them, whose parts below 1 Å would be taken for cosines of "
                    "angles; convert it, for example by CHARMM or catdcd"
                )


def _dcd_rest(path: str, n_atoms: int) -> bool:
    """Return whether bytes of an incomplete frame end a DCD file (libdcd counts only whole ones)."""
    with open(path, "rb") as file:
        order = "<" if file.read(4) == struct.pack("<i", 84) else ">"
        control = struct.unpack(f"{order}4s20i", file.read(84))[1:]
        file.seek(92)
        (title,) = struct.unpack(f"{order}i", file.read(4))
        size = file.seek(0, os.SEEK_END)
    charmm = control[19] != 0
    dimensions = 4 if charmm and control[11] == 1 else 3
    cell = 56 if charmm and control[10] else 0
    n_fixed = control[8]
    header = 92 + 8 + title + 12 + (4 * (n_atoms - n_fixed) + 8 if n_fixed else 0)
    first = 4 * dimensions * (n_atoms + 2) + cell
    later = 4 * dimensions * (n_atoms - n_fixed + 2) + cell
    return bool(size > header + first and (size - header - first) % later)


def _xyz_rest(path: str, reader: Any, n_frames: int) -> bool:
    """Return whether lines of an incomplete frame end an XYZ file."""
    offsets = getattr(reader, "_offsets", [])
    if len(offsets) <= n_frames or path.endswith((".gz", ".bz2")):
        return False
    with open(path, "rb") as file:
        file.seek(offsets[n_frames])
        return bool(file.read(4096).strip())


def _trj_rest(path: str, reader: Any) -> bool:
    """Return whether lines of an incomplete frame end an AMBER text file, whose frames have one size."""
    offsets = reader._offsets
    if len(offsets) < 2 or path.endswith((".gz", ".bz2")):
        return False
    return bool((os.path.getsize(path) - offsets[0]) % (offsets[1] - offsets[0]) > 1)


def _reader_times(reader: Any, kind: str, n_frames: int) -> Timeline | None:
    """Return the reader's times of frames if that needs no frames read, else None."""
    offset = float(reader.ts.data.get("time_offset", 0.0))
    if "time" not in reader.ts.data:
        return EvenTimeline(n_frames, float(reader.ts.dt), 0.0, offset)
    if kind == "DCD":
        header = reader._file.header
        return EvenTimeline(n_frames, float(reader.ts.dt), header["istart"] / header["nsavc"], offset)
    if kind == "NCDF" and reader.scale_factors["time"] is None:
        times = np.array(reader.trjfile.variables["time"][:n_frames], dtype=np.float64)
        return ListedTimeline(times + offset)
    return None


def _pickle(reader: Any) -> bytes | None:
    try:
        return pickle.dumps(reader)
    except Exception:  # a few readers (H5MD on MPI, streams) cannot be pickled; they are opened anew
        return None


def construct(reader_class: Any, *words: Any, **keywords: Any) -> Any:
    """Make a reader of MDAnalysis; prevent a traceback from __del__ of a reader that fails to open."""
    reader = reader_class.__new__(reader_class)
    try:
        quietly(reader.__init__, *words, **keywords)
    except BaseException:
        reader.__dict__.update(_auxs={}, close=lambda: None)
        raise
    return reader


def _vectors(array: Any) -> npt.NDArray[np.float32]:
    return np.require(array, dtype=np.float32, requirements=["C", "W"])
