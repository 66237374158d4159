"""Where in a bundle the files lie that runs depend on: `Places`, told by the records of the runs.

Files that lay below one folder lie below one folder again, so that scripts find what they import, and relative paths
mean what they meant.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from himach.user_code import is_installed

__all__ = ["FILES", "METHODS", "RUNS", "Places", "needed_files", "own_code_folders", "topologies"]

#: Folders of a bundle: what runs left, a folder each; what they depend on; what a paper says of them.
RUNS, FILES, METHODS = "runs", "files", "methods"


@dataclass(frozen=True)
class Places:
    """The places in a bundle of files and folders, by the paths that they had.

    Attributes
    ----------
    folders
        Folders of the bundle by the folders that they stand for.
    """

    folders: Mapping[str, str]

    @classmethod
    def for_runs(cls, records: Sequence[Mapping[str, Any]]) -> Places:
        """Return places for what runs depend on: of folders within one another the outermost is the one."""
        folders: set[str] = set()
        for record in records:
            needed = needed_files(record)
            here = [os.path.normpath(record["directory"])] if needed else []
            folders |= {*here, *own_code_folders(record), *map(os.path.dirname, needed)}
        outermost = [one for one in sorted(folders) if not any(_is_below(one, other) for other in folders - {one})]
        return cls({folder: f"{FILES}/{number}" for number, folder in enumerate(outermost, 1)})

    def of(self, path: str) -> str | None:
        """Return the place of a file or folder by its absolute path, relative to the bundle; None: it has none."""
        path = os.path.normpath(path)
        for folder, place in self.folders.items():
            if path == folder or _is_below(path, folder):
                return str(PurePosixPath(place, os.path.relpath(path, folder)))
        return None


def needed_files(record: Mapping[str, Any]) -> dict[str, str]:
    """Return the files that a run depended on and that a bundle has: digests by path.

    Not the topology, nor what belongs to an installed package, unless a parameter names it.
    """
    told = {str(path): str(digest) for path, digest in record["digests"].items()}
    named = set(_named(record))
    left_out = topologies(record) | set(filter(is_installed, told))
    return {path: told[path] for path in sorted(told) if path in named or path not in left_out}


def topologies(record: Mapping[str, Any]) -> set[str]:
    """Return the paths of the topologies of a run, of an ensemble those of its members."""
    members = record.get("ensemble")
    given = [record.get("topology"), *(one.get("topology") for one in members or ())]
    return {os.path.normpath(os.path.join(record["directory"], path)) for path in given if path is not None}


def own_code_folders(record: Mapping[str, Any]) -> list[str]:
    """Return the folders by which the code of a run was imported that belongs to no installed package."""
    folders = record.get("code_folders")
    if not isinstance(folders, list):  # an older record tells scripts alone
        sources = [str(entry.get("source") or "").rpartition(":")[0] for entry in record["analyses"]]
        folders = [os.path.dirname(source) for source in sources if source.endswith(".py")]
    return [os.path.normpath(folder) for folder in map(str, folders) if not is_installed(os.path.join(folder, ""))]


def _named(record: Mapping[str, Any]) -> Iterable[str]:
    """Give the paths that parameters and options of a run may name."""
    stages = list(record["analyses"])
    values = [record.get("reference")]
    while stages:
        stage = stages.pop()
        values += stage["parameters"].values()
        stages += filter(None, [stage.get("then")])
    return (os.path.normpath(os.path.join(record["directory"], value)) for value in values if isinstance(value, str))


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(os.path.join(folder, ""))
