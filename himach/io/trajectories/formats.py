"""The registry of formats, `FORMATS`: what reads, writes and mounts the files of each, and what its readers miss."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from himach.io.trajectories import text_files
from himach.io.trajectories.dcd_file import DcdFile, check_dcd, is_cut_dcd
from himach.io.trajectories.h5md.h5md_file import H5mdFile
from himach.io.trajectories.h5md.zarr_directory import SUFFIXES, ZarrDirectory
from himach.io.trajectories.layouts import Dcd, FileLayout, NetCdf, Trr
from himach.io.trajectories.reader_file import ReaderFile
from himach.io.trajectories.xdr_file import FrameFile, XdrFile


@dataclass(frozen=True)
class Format:
    """A format of trajectories. Functions about a file get its path and MDAnalysis's reader, just opened."""

    name: str  # of MDAnalysis, or of himach for one that MDAnalysis lacks
    suffixes: tuple[str, ...] = ()
    read: type[FrameFile] = ReaderFile
    layout: type[FileLayout] | None = None  # of frames of one length, for the mount and for ranks that write together
    in_directories: bool = False  # whether the files of a frame directory may have it
    whole_in_store: bool = False  # whether a store keeps all that analyses use of its frames
    needs_n_atoms: bool = False  # whether its reader must be given the number of atoms
    check: Callable[[str, Any], None] | None = None  # refuses what MDAnalysis misreads, or warns of it
    is_cut: Callable[[str, Any], bool] | None = None  # whether an incomplete frame ends the file
    # Returns, for each property that frames inherit from those before, the frames that set it.
    inherited: Callable[[Any], Iterable[list[int]]] | None = None


FORMATS: dict[str, Format] = {
    item.name: item
    for item in (
        Format("XTC", (".xtc",), XdrFile, in_directories=True, whole_in_store=True),
        Format("TRR", (".trr",), XdrFile, Trr, in_directories=True, whole_in_store=True),
        Format("DCD", (".dcd",), DcdFile, Dcd, whole_in_store=True, check=check_dcd, is_cut=is_cut_dcd),
        Format("NCDF", (".nc", ".ncdf"), ReaderFile, NetCdf, in_directories=True, whole_in_store=True),
        Format("H5MD", (".h5md",), H5mdFile),
        Format("ZARRMD", SUFFIXES, ZarrDirectory),
        Format("DATA", needs_n_atoms=True),
        Format("TRJ", needs_n_atoms=True, is_cut=text_files.is_cut_trj),
        Format("TRZ", needs_n_atoms=True),
        Format("GRO", check=text_files.check_gro),
        Format("XYZ", check=text_files.check_xyz, is_cut=text_files.is_cut_xyz),
        Format("LAMMPSDUMP", check=text_files.check_lammps_dump),
        Format("PDB", inherited=text_files.models_with_box),
        Format("XPDB", inherited=text_files.models_with_box),
        Format("MOL2", inherited=text_files.molecules_with_records),
    )
}


def find_format(name: str) -> Format:
    """Return the format of a name; one that is not registered is left to MDAnalysis's reader."""
    return FORMATS.get(name) or Format(name)


def find_by_suffix(suffix: str) -> Format | None:
    """Return the format of a file's suffix, in lower case; None if none is registered."""
    return next((item for item in FORMATS.values() if suffix in item.suffixes), None)
