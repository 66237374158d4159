"""Opening of trajectory files: `open_file()` opens a file or directory as the `FrameFile` of its format."""

import os
from collections.abc import Mapping
from typing import Any

from himach.errors import HimachError, TrajectoryError
from himach.io.trajectories.dcd_file import DcdFile, DcdHeader
from himach.io.trajectories.file_failures import quietly, reason, warn_cut
from himach.io.trajectories.formats import Format, find_format
from himach.io.trajectories.frame_directory import FrameDirectory
from himach.io.trajectories.h5md.h5md_file import H5mdFile
from himach.io.trajectories.h5md.zarr_directory import ZarrDirectory, ZarrFiles, is_zarr
from himach.io.trajectories.keywords import TOPOLOGY_KEYWORDS, format_name, reader_class
from himach.io.trajectories.reader_file import ReaderFile, construct
from himach.io.trajectories.urls.byte_file import ByteFile, fetch, local_path, open_mirror, read_status
from himach.io.trajectories.urls.mirror import read_records
from himach.io.trajectories.urls.url_names import is_url
from himach.io.trajectories.xdr_file import FrameFile, XdrFile
from himach.io.trajectories.xdr_header import sniff
from himach.io.trajectories.xdr_index import XdrIndex, extend_index, read_index


def open_file(
    path: str, topology: str | None, keywords: Mapping[str, Any], indexes: Mapping[str, XdrIndex] | None = None
) -> FrameFile:
    """Open one trajectory file, or directory."""
    options = keywords
    keywords = {name: value for name, value in options.items() if name not in TOPOLOGY_KEYWORDS}
    if is_zarr(path):
        return ZarrDirectory(path, **keywords)
    if os.path.isdir(path):
        return FrameDirectory(path, keywords)
    if read_status(path).size == 0:
        raise TrajectoryError(f"{path} is empty")
    reader_type = reader_class(path, keywords.pop("format", None))
    format_ = find_format(format_name(reader_type))
    if format_.read is XdrFile:
        return _open_xdr(path, format_.name, keywords, (indexes or {}).get(path))
    if format_.read is H5mdFile and _is_builtin(reader_type, "H5MD") and not keywords.keys() & {"driver", "comm"}:
        return H5mdFile(path, **keywords)
    if format_.needs_n_atoms and "n_atoms" not in keywords:
        keywords["n_atoms"] = _count_atoms(topology or local_path(path), options)
    if format_.read is DcdFile and _is_builtin(reader_type, "DCD") and (header := DcdHeader.read(path)) is not None:
        if header.is_even:
            return DcdFile(path, header, keywords)
        if header.is_swapped:
            keywords.setdefault("dt", header.dt)
    records = read_records(open_mirror(path)) if is_url(path) and format_.name == "NCDF" else None
    local_file = path if not is_url(path) else fetch(path, () if records is None else records.opening())
    reader = _open_reader(local_file, format_.name, reader_type, keywords, path)
    if format_.check is not None:
        format_.check(local_file, reader)
    ordered = reads_in_order(reader, format_)
    n_frames = _count_frames(local_file, format_, reader, ordered, path)
    return ReaderFile(path, reader, n_frames, ordered, records)


def stamp_files(path: str) -> tuple[str, ...]:
    """Return the `FrameFile.stamps` of a file or directory; raises OSError, and TrajectoryError or UsageError."""
    if is_zarr(path):
        return ZarrFiles.from_path(path).stamps
    return FrameDirectory(path, {}).stamps if os.path.isdir(path) else (path,)


def _is_builtin(reader_class: Any, module: str) -> bool:
    """Return whether a reader is MDAnalysis's own, not a user's replacement."""
    return bool(reader_class.__module__ == f"MDAnalysis.coordinates.{module}")


def _open_xdr(path: str, kind: str, keywords: Mapping[str, Any], stored_index: XdrIndex | None) -> XdrFile:
    with ByteFile(path) as file:
        kind = sniff(file.pread(4, 0)) or kind
    index = stored_index if stored_index is not None and stored_index.kind == kind else None
    if index is not None and not index.is_current():
        index = extend_index(index)
    index = index or read_index(path, kind)
    if index.cut:
        warn_cut(path, index.n_frames)
    return XdrFile(path, index, keywords)


def _open_reader(path: str, kind: str, reader_class: Any, keywords: Mapping[str, Any], name: str) -> Any:
    try:
        reader = construct(reader_class, path, **keywords)
        if reader.n_frames < 1:
            raise ValueError("no frame in it")
        return reader
    except HimachError:
        raise
    except Exception as error:
        why = reason(error)
        if kind == "PDB" and isinstance(error, IndexError):
            why = "its frames have no MODEL and ENDMDL records, or differ in their atoms; write MODEL before each"
        raise TrajectoryError(f"{name} cannot be read as {kind or reader_class.__name__}: {why}") from error


def _count_atoms(topology: str, keywords: Mapping[str, Any]) -> int:
    from MDAnalysis.core.universe import _topology_from_file_like

    names = keywords.keys() - TOPOLOGY_KEYWORDS - {"format"}
    options = {"topology_format": keywords.get("topology_format"), **{name: keywords[name] for name in names}}
    try:
        return int(quietly(_topology_from_file_like, topology, **options).n_atoms)
    except Exception as error:
        raise TrajectoryError(
            f"{topology} does not tell the number of atoms: {reason(error.__cause__ or error)}"
        ) from error


def reads_in_order(reader: Any, format_: Format) -> bool:
    """Return whether a frame is reliable only after all before it were read.

    That is so if the reader cannot seek or seeks by frame numbers of the file (TRZ), and if frames inherit: a model of
    a PDB file without a box gets the box of the model read before it.
    """
    from MDAnalysis.coordinates.base import ProtoReader

    if reader.n_frames == 1:
        return False
    if format_.name == "TRZ" or type(reader)._read_frame is ProtoReader._read_frame:
        return True
    setting = () if format_.inherited is None else format_.inherited(reader)
    return any(frames not in ([], [0]) and len(frames) != reader.n_frames for frames in setting)


def _count_frames(path: str, format_: Format, reader: Any, ordered: bool, name: str) -> int:
    """Return the number of whole frames; warn, with the `name` of a remote file, if the last one is incomplete.

    If frames can only be read in order, the reader is trusted about the last one.
    """
    n_frames = int(reader.n_frames)
    cut = format_.is_cut is not None and format_.is_cut(path, reader)
    if n_frames > 1 and not cut and not ordered:
        try:
            quietly(reader.__getitem__, n_frames - 1)
        except Exception:
            n_frames -= 1
            cut = True
        quietly(reader.__getitem__, 0)
    if cut:
        warn_cut(name, n_frames)
    return n_frames
