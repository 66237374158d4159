"""State of a conversion: its record, `write_record()`, and its progress when time was up, `Unfinished`.

An unfinished file has another name, and its state follows its bytes. It is renamed once to be kept and once to be
resumed, so that only one conversion resumes it and a kept file is complete.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from himach.checkpoint.sources import versions
from himach.conversion.options import ConvertOptions
from himach.conversion.target_files import NAME_LENGTH, ConversionTarget, Converted, parse_dataset_name, writing
from himach.files import content_digest, whole_file
from himach.io.datasets.opening import OpenFrames
from himach.io.trajectories.urls.byte_file import local_path
from himach.io.trajectories.urls.url_names import absolute, public_name
from himach.runner.run_record import dataset_record
from himach.selection import frames_text

#: Packages that affect positions; which others are loaded depends on how ranks are started.
MOVING = ("MDAnalysis", "numpy")


def write_record(path: Path, options: ConvertOptions, opened: OpenFrames, result: Converted, ranks: int) -> None:
    """Write the input, the transformations, the number of ranks and the result as JSON."""
    trajectory = result.name if parse_dataset_name(result.path) else str(result.path.absolute())
    written = {**asdict(result), "path": trajectory, "topology": str(result.topology.absolute())}
    del written["members"]
    record = {
        **_requested(options, opened), "done": written.pop("done"), "warnings": written.pop("warnings"), "ranks": ranks,
        "written": written, "date": datetime.now().astimezone().isoformat(timespec="seconds"),
    }  # fmt: skip
    with writing(path), whole_file(path, sync=True) as file:
        file.write(json.dumps(record, indent=2, ensure_ascii=False).encode() + b"\n")


def conversion_identity(options: ConvertOptions, opened: OpenFrames) -> str:
    """Return a digest (hex) of everything that determines the bytes of the trajectory."""
    requested = _requested(options, opened)
    requested["versions"] = {name: requested["versions"].get(name) for name in ("himach", "himach's format", *MOVING)}
    return hashlib.sha256(json.dumps(requested).encode()).hexdigest()


def _requested(options: ConvertOptions, opened: OpenFrames) -> dict[str, Any]:
    """Return the input, the transformations, and the versions of packages."""
    frames, transform = opened.frames, options.transform_options
    files = {"topology": options.topology, "reference": transform.reference}
    present = [public_name(file) for file in files.values() if file is not None]
    return {
        "dataset": dataset_record(opened),
        "digests": {file: content_digest(local_path(file)) for file in present},
        "asked": {
            **{name: None if file is None else absolute(file) for name, file in files.items()},
            "select": options.selection,
            **{name: getattr(transform, name) for name in ("whole", "nojump", "cluster", "center", "wrap", "fit")},
        },
        "selected": [frames.start, frames.stop, frames.step] if isinstance(frames, range) else frames_text(frames),
        "versions": versions(),
    }


@dataclass(frozen=True)
class Unfinished:
    """Progress of a conversion: frames written, their bytes, and the shifts of atoms up to there."""

    frames: int
    n_bytes: int
    moved: npt.NDArray[np.int64]

    def keep(self, target: ConversionTarget, identity: str) -> None:
        """Keep a file, synced by all ranks, for a conversion with the same identity."""
        state = io.BytesIO()
        np.savez(state, identity=identity, frames=self.frames, n_bytes=self.n_bytes, moved=self.moved)
        target.write(self.n_bytes, [state.getvalue()])
        target.sync()
        target.take_name(_kept_name(target.path))


def _kept_name(path: Path) -> Path:
    return path.with_name(f".himach-unfinished.{path.name[-NAME_LENGTH:]}")


def take_unfinished(path: Path, temporary: Path, identity: Callable[[], str], stack: ExitStack) -> Unfinished | None:
    """Return the progress of an earlier conversion with this identity, renamed to `temporary`; None if there is none.

    The kept file of another conversion is deleted. The file is locked as in use until `stack` closes.
    """
    with writing(path):
        try:
            file = stack.enter_context(open(_kept_name(path), "r+b"))  # noqa: SIM115 - the stack closes it
            with suppress(OSError):  # some file systems have no locks
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            os.rename(_kept_name(path), temporary)
        except FileNotFoundError:
            return None
    damage = suppress(OSError, ValueError, KeyError, EOFError, OverflowError, BadZipFile)  # or another version
    with damage, np.lib.npyio.NpzFile(file) as state:  # it reads a ZIP file from its end, whatever lies before it
        if str(state["identity"]) == identity():
            unfinished = Unfinished(int(state["frames"]), int(state["n_bytes"]), state["moved"])
            file.truncate(unfinished.n_bytes)
            return unfinished
    with suppress(OSError):
        temporary.unlink()
    return None
