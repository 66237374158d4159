"""`split()` writes a trajectory as a frame directory: numbered files, their times, the topology and a manifest.

Frames of XTC and TRR files are copied byte by byte; those of other formats are refused.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from himach.errors import TrajectoryError, UsageError
from himach.io.datasets.attachment import format_suffix
from himach.io.trajectories.frame_directory import MANIFEST, PARTIAL, TIMES, Manifest
from himach.io.trajectories.origin import Origin, existing_path, open_origin
from himach.io.trajectories.urls.names import refuse_urls
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
    progress: Callable[[int, int], None] | None = None,
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
    _prepare(folder, manifest)
    _write_files(origin, frames, folder, manifest, progress)
    _finish(folder, origin, frames, topology, manifest)
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


def _prepare(folder: Path, manifest: Manifest) -> None:
    """Create the directory and write the plan into it, or accept the same plan of an unfinished split."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file; give a directory")
    folder.mkdir(parents=True, exist_ok=True)
    names = os.listdir(folder)
    if MANIFEST in names:
        raise UsageError(f"{folder} is a frame directory already: give it as the trajectory, or split into a new one")
    if PARTIAL in names and Manifest.read(str(folder / PARTIAL)) == manifest:
        return
    if names:
        raise UsageError(
            f"{folder} is not empty, and not left by an unfinished split of the same frames; give a new one"
        )
    manifest.write(str(folder / PARTIAL))


def _write_files(
    origin: Origin, frames: range, folder: Path, manifest: Manifest, progress: Callable[[int, int], None] | None
) -> None:
    for number in range(manifest.n_files):
        path = folder / manifest.file_name(number)
        start = number * manifest.frames_per_file
        stop = start + manifest.frames_in(number)
        if not path.exists():
            temporary = path.with_name(path.name + ".new")
            _copy_bytes(origin, frames[start:stop], temporary)
            os.replace(temporary, path)
        if progress is not None:
            progress(stop, len(frames))


def _finish(folder: Path, origin: Origin, frames: range, topology: str | None, manifest: Manifest) -> None:
    """Write times and topology, then the manifest."""
    np.save(folder / TIMES, origin.times(frames))
    if topology is not None and manifest.topology is not None:
        shutil.copyfile(topology, folder / manifest.topology)
    manifest.write(str(folder / MANIFEST))
    (folder / PARTIAL).unlink()


def _copy_bytes(origin: Origin, numbers: range, path: Path) -> None:
    files = {file.path: file for file, _ in origin.files()}
    with open(path, "wb") as out:
        for number in numbers:
            source, local = origin.locate(number)
            file = files[source]
            assert isinstance(file, XdrFile)
            try:
                out.write(file.frame_bytes(local))
            except ValueError as error:
                raise TrajectoryError(f"frame {local} of {source} cannot be copied: {error}") from error
