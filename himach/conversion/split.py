"""`split()` writes a trajectory as a frame directory: numbered files, their times, the topology and a manifest.

Frames of XTC and TRR files are copied byte by byte; those of other formats are refused.
"""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from himach.errors import HimachError, TrajectoryError, UsageError
from himach.io.datasets.attachment import format_suffix
from himach.io.trajectories.frame_directory import MANIFEST, TIMES, Manifest
from himach.io.trajectories.origin import Origin, existing_path, open_origin
from himach.io.trajectories.urls.url_names import refuse_urls
from himach.io.trajectories.xdr_file import XdrFile
from himach.io.universe.topology import load_topology

_TRAJECTORY_KEYWORDS = frozenset({"format", "dt", "time_offset", "convert_units", "n_atoms"})


def split(
    trajectories: Sequence[str | os.PathLike[str]],
    directory: str | os.PathLike[str],
    topology: str | os.PathLike[str] | None = None,
    *,
    frames_per_file: int = 100,
    keywords: Mapping[str, Any] | None = None,
) -> int:
    """Split a trajectory into a frame directory."""
    if frames_per_file < 1:
        raise UsageError(f"frames_per_file must be at least 1, it is {frames_per_file}")
    refuse_urls(trajectories, "run over it as it is, or download it and split the local file")
    origin = open_origin(trajectories, topology, keywords)
    frames = range(origin.n_frames)
    kind = _kind(origin)
    if topology is not None:
        load_topology(topology, origin, keywords)  # check that it fits
        topology = existing_path(topology, "topology")
    manifest = _plan(origin, kind, frames, topology, frames_per_file, {**origin.keywords, **(keywords or {})})
    folder = Path(directory)
    _check(folder)
    made = not folder.exists()
    times = origin.times(frames)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            (folder / TIMES).touch(exist_ok=False)  # by one of several splits at once
        except FileExistsError:
            raise UsageError(f"another split writes to {folder}; give a new directory") from None
        try:
            np.save(folder / TIMES, times)
            _write_files(origin, frames, folder, manifest)
            if topology is not None and manifest.topology is not None:
                shutil.copyfile(topology, folder / manifest.topology)
            manifest.write(str(folder / MANIFEST))  # last
        except BaseException:
            _remove(folder, manifest, made)
            raise
    except OSError as error:
        raise HimachError(f"{folder} cannot be written ({error})") from error
    return manifest.frames


def _plan(
    origin: Origin, kind: str, frames: range, topology: str | None, frames_per_file: int, keywords: dict[str, Any]
) -> Manifest:
    digits = max(6, len(str(len(frames) // frames_per_file)))
    others = {name: value for name, value in keywords.items() if name not in _TRAJECTORY_KEYWORDS}
    if topology is not None:
        try:
            json.dumps(others)
        except TypeError:
            raise UsageError(f"the keywords {sorted(others)} cannot be kept in a manifest; give plain values") from None
    return Manifest(
        frames=len(frames),
        atoms=origin.n_atoms,
        frames_per_file=frames_per_file,
        kind=kind,
        pattern=f"frames-%0{digits}d.{kind.lower()}",
        topology=None if topology is None else "topology" + format_suffix(topology),
        keywords=others,
        source=f"{origin.fingerprint} [{frames.start}:{frames.stop}:{frames.step}]",
    )


def _kind(origin: Origin) -> str:
    """Return the format of the files; raise UsageError if their frames cannot be copied unchanged."""
    kinds = set(origin.kinds)
    if kinds not in ({"XTC"}, {"TRR"}) or not origin.keywords.get("convert_units", True):
        raise UsageError(
            "frames are copied byte by byte, from XTC files or from TRR files with their own units, and these are "
            f"{' and '.join(sorted(kinds))}; himach stage keeps frames of any format on this node"
        )
    return origin.kinds[0]


def _check(folder: Path) -> None:
    """Raise UsageError if there is anything in the directory."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file; give a directory")
    names = os.listdir(folder) if folder.exists() else []
    if MANIFEST in names:
        raise UsageError(f"{folder} is a frame directory already: give it as the trajectory, or split into a new one")
    if names:
        raise UsageError(f"{folder} is not empty ({names[0]} is in it); give a new one")


def _write_files(origin: Origin, frames: range, folder: Path, manifest: Manifest) -> None:
    for number in range(manifest.n_files):
        start = number * manifest.frames_per_file
        _copy_bytes(origin, frames[start : start + manifest.frames_in(number)], folder / manifest.file_name(number))


def _remove(folder: Path, manifest: Manifest, made: bool) -> None:
    """Remove what a failed split wrote, last the file that keeps others out."""
    names = [manifest.file_name(number) for number in range(manifest.n_files)]
    names += [MANIFEST] if manifest.topology is None else [manifest.topology, MANIFEST]
    for name in (*names, TIMES):
        (folder / name).unlink(missing_ok=True)
    if made:
        with suppress(OSError):  # a file of others is in it
            folder.rmdir()


def _copy_bytes(origin: Origin, numbers: range, path: Path) -> None:
    files = {file.path: file for file in origin.files}
    with open(path, "wb") as out:
        for number in numbers:
            source, local = origin.locate(number)
            file = files[source]
            assert isinstance(file, XdrFile)
            try:
                out.write(file.frame_bytes(local))
            except ValueError as error:
                raise TrajectoryError(f"frame {local} of {source} cannot be copied: {error}") from error
