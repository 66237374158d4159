"""What a conversion was and did, as a file: `write_record()`; what it is, as a digest: `identity_of()`."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from himach.checkpoint.sources import versions
from himach.conversion.options import ConvertOptions
from himach.conversion.target import Converted, cannot_write, dataset_named
from himach.files import content_digest, whole_file
from himach.io.remote.byte_file import local_path
from himach.io.remote.url import absolute, named
from himach.opening.dataset import Opened
from himach.runner.outcome.run_record import dataset_of
from himach.selection import frames_text

__all__ = ["identity_of", "write_record"]

#: Packages that have a say in where atoms go; which others are loaded depends on how ranks are started.
MOVING = ("MDAnalysis", "numpy")


def write_record(path: Path, options: ConvertOptions, opened: Opened, done: Converted, ranks: int) -> None:
    """Write what was read, what was done to it, and what came of that, as JSON.

    Parameters
    ----------
    path
        The file; it is there whole or not at all.
    options
        What was asked.
    opened
        What was read.
    done
        What was written.
    ranks
        How many there were.

    Raises
    ------
    HimachError
        If the file cannot be written.
    """
    trajectory = done.name if dataset_named(done.path) else str(done.path.absolute())
    written = {**asdict(done), "path": trajectory, "topology": str(done.topology.absolute())}
    del written["members"]
    told = {
        **_asked(options, opened),
        "done": written.pop("done"),
        "warnings": written.pop("warnings"),
        "ranks": ranks,
        "written": written,
        "date": datetime.now().astimezone().isoformat(timespec="seconds"),
    }
    try:
        with whole_file(path, sync=True) as file:
            file.write(json.dumps(told, indent=2, ensure_ascii=False).encode() + b"\n")
    except OSError as error:
        raise cannot_write(path, error) from error


def identity_of(options: ConvertOptions, opened: Opened) -> str:
    """Return a digest (hex) of all that the bytes of the trajectory depend on."""
    asked = _asked(options, opened)
    asked["versions"] = {name: asked["versions"].get(name) for name in ("himach", "himach's format", *MOVING)}
    return hashlib.sha256(json.dumps(asked).encode()).hexdigest()


def _asked(options: ConvertOptions, opened: Opened) -> dict[str, Any]:
    """Return what is read, what is done to it, and by which versions."""
    files = {name: getattr(options, name) for name in ("topology", "reference")}
    frames = opened.frames
    return {
        "dataset": dataset_of(opened),
        "digests": {
            named(file): content_digest(local_path(named(file))) for file in files.values() if file is not None
        },
        "asked": {
            **{name: None if file is None else absolute(file) for name, file in files.items()},
            "select": options.selection,
            **{name: getattr(options, name) for name in ("whole", "nojump", "center", "wrap", "fit")},
        },
        "selected": [frames.start, frames.stop, frames.step] if isinstance(frames, range) else frames_text(frames),
        "versions": versions(),
    }
