"""The registry of formats, `FORMATS`: what reads, writes and mounts the files of each, and what its readers miss."""

import itertools
import os
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from himach.errors import TrajectoryError
from himach.io.trajectories.dcd_file import DcdFile, check_dcd, is_cut_dcd
from himach.io.trajectories.h5md.h5md_file import H5mdFile
from himach.io.trajectories.h5md.zarr_directory import SUFFIXES, ZarrDirectory
from himach.io.trajectories.layouts import Dcd, FileLayout, NetCdf, Trr
from himach.io.trajectories.reader_file import ReaderFile
from himach.io.trajectories.xdr_file import FrameFile, XdrFile

_PACKED = (".gz", ".bz2")


def check_gro(path: str, reader: Any) -> None:
    """Refuse a GRO file of several frames, of which MDAnalysis reads the first."""
    with _unpacked(path) as file:
        rest = list(itertools.islice(file, int(reader.n_atoms) + 3, int(reader.n_atoms) + 5))
    if len(rest) > 1:
        raise TrajectoryError(
            f"{path} has several frames, and of a GRO file the first is read alone; convert it, for example by "
            "gmx trjconv -o traj.xtc"
        )


def check_xyz(path: str, reader: Any) -> None:
    """Warn of a box that MDAnalysis ignores."""
    if b'Lattice="' in b"".join(_head(path).split(b"\n", 2)[1:2]):
        warnings.warn(f"{path}: the box that Lattice= tells is not read; frames have none", stacklevel=2)


def check_lammps_dump(path: str, reader: Any) -> None:
    """Refuse positions that MDAnalysis unwraps wrongly, and warn of those that it displaces."""
    scaled = reader.lammps_coordinate_convention.startswith("scaled")
    tilted = (reader.ts.dimensions[3:] != 90).any()
    if reader._unwrap and (tilted or reader.lammps_coordinate_convention != "unscaled"):
        raise TrajectoryError(
            f"{path}: MDAnalysis unwraps columns x, y, z alone by image flags, and in boxes that are not tilted; "
            "leave unwrap_images out, and follow atoms by nojump"
        )
    if scaled and any(float(line.split()[0]) for line in _head(path).split(b"\n")[5:8]):
        message = f"{path}: scaled positions are displaced by the lower corner of the box; distances are right"
        warnings.warn(message, stacklevel=2)


def _head(path: str) -> bytes:
    with _unpacked(path) as file:
        return bytes(file.read(1 << 16))


def _unpacked(path: str) -> Any:
    """Open a file that may be packed by gzip or bzip2."""
    from MDAnalysis.lib.util import anyopen

    return anyopen(path, "rb")


def is_cut_xyz(path: str, reader: Any) -> bool:
    """Return whether lines of an incomplete frame end an XYZ file."""
    offsets, n_frames = getattr(reader, "_offsets", []), int(reader.n_frames)
    if len(offsets) <= n_frames or path.endswith(_PACKED):
        return False
    with open(path, "rb") as file:
        file.seek(offsets[n_frames])
        return bool(file.read(4096).strip())


def is_cut_trj(path: str, reader: Any) -> bool:
    """Return whether lines of an incomplete frame end an AMBER text file, whose frames have one size."""
    offsets = reader._offsets
    has_size = len(offsets) > 1 and not path.endswith(_PACKED)
    return has_size and (os.path.getsize(path) - offsets[0]) % (offsets[1] - offsets[0]) > 1


def models_with_box(reader: Any) -> list[list[int]]:
    """Return the models of a PDB file that have a CRYST1 record; one without gets the box of the model read before."""
    numbers = []
    with _unpacked(reader.filename) as file:
        for number, (start, stop) in enumerate(zip(reader._start_offsets, reader._stop_offsets, strict=True)):
            file.seek(start)
            if b"\nCRYST1" in b"\n" + file.read(stop - start):
                numbers.append(number)
    return [numbers]


def molecules_with_records(reader: Any) -> list[list[int]]:
    """Return, for each of two records of a MOL2 file, the molecules that have it."""
    marks = ("@<TRIPOS>CRYSIN", "@<TRIPOS>SUBSTRUCTURE")
    return [[i for i, lines in enumerate(reader.frames) if mark in "".join(lines).upper()] for mark in marks]


@dataclass(frozen=True)
class Format:
    """A format of trajectories. Functions about a file get its path and MDAnalysis's reader, just opened."""

    name: str  # of MDAnalysis, or of himach for one that MDAnalysis lacks
    suffixes: tuple[str, ...] = ()
    read: type[FrameFile] = ReaderFile
    layout: type[FileLayout] | None = None  # of frames of one length, for the mount and for ranks that write together
    whole_in_store: bool = False  # whether a store keeps all that analyses use of its frames
    needs_n_atoms: bool = False  # whether its reader must be given the number of atoms
    check: Callable[[str, Any], None] | None = None  # refuses what MDAnalysis misreads, or warns of it
    is_cut: Callable[[str, Any], bool] | None = None  # whether an incomplete frame ends the file
    # Returns, for each property that frames inherit from those before, the frames that set it.
    inherited: Callable[[Any], Iterable[list[int]]] | None = None


FORMATS: dict[str, Format] = {
    item.name: item
    for item in (
        Format("XTC", (".xtc",), XdrFile, whole_in_store=True),
        Format("TRR", (".trr",), XdrFile, Trr, whole_in_store=True),
        Format("DCD", (".dcd",), DcdFile, Dcd, whole_in_store=True, check=check_dcd, is_cut=is_cut_dcd),
        Format("NCDF", (".nc", ".ncdf"), ReaderFile, NetCdf, whole_in_store=True),
        Format("H5MD", (".h5md",), H5mdFile),
        Format("ZARRMD", SUFFIXES, ZarrDirectory),
        Format("DATA", needs_n_atoms=True),
        Format("TRJ", needs_n_atoms=True, is_cut=is_cut_trj),
        Format("TRZ", needs_n_atoms=True),
        Format("GRO", check=check_gro),
        Format("XYZ", check=check_xyz, is_cut=is_cut_xyz),
        Format("LAMMPSDUMP", check=check_lammps_dump),
        Format("PDB", inherited=models_with_box),
        Format("XPDB", inherited=models_with_box),
        Format("MOL2", inherited=molecules_with_records),
    )
}


def find_format(name: str) -> Format:
    """Return the format of a name; one that is not registered is left to MDAnalysis's reader."""
    return FORMATS.get(name) or Format(name)


def find_by_suffix(suffix: str) -> Format | None:
    """Return the format of a file's suffix, in lower case; None if none is registered."""
    return next((item for item in FORMATS.values() if suffix in item.suffixes), None)
