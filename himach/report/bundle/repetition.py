"""A run of a bundle, run again here: `record_here()` is its record with this machine's paths, `Repetition` runs it.

So a run of a bundle is one of ``himach run --again``, whose record was written for it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from himach.errors import HimachError
from himach.report.bundle.places import Places

if TYPE_CHECKING:
    from himach.output.record import Record
    from himach.parallel.communicator import World

__all__ = ["Repetition", "import_folders", "record_here"]


@dataclass(frozen=True)
class Repetition:
    """Runs a record again, as one of the ranks.

    Attributes
    ----------
    record
        Its file.
    out
        Folder for what it leaves.
    folders
        Where its code lies, which is imported from there before anywhere else.
    """

    record: Path
    out: Path
    folders: tuple[str, ...]

    def __call__(self, world: World) -> Record | None:
        """Do it; return the record of the run on rank 0."""
        from himach.runner.commands import RunCommand

        before = os.getcwd()
        sys.path[:0] = self.folders
        try:
            given = {"out": self.out, "quiet": True}
            command = RunCommand((), (), (), given, self.record, time.time(), shown=False)
            return command.recorded(world)[1]
        finally:
            os.chdir(before)
            self._forget()

    def _forget(self) -> None:
        """Let the next run, if this process does one, import its own code of the same names."""
        for folder in self.folders:
            if folder in sys.path:
                sys.path.remove(folder)
        inside = tuple(os.path.join(folder, "") for folder in self.folders)
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if inside and isinstance(file, str) and file.startswith(inside):
                del sys.modules[name]


def record_here(
    record: Mapping[str, Any], places: Places, folder: Path, data: Mapping[str, Any], cache: str
) -> dict[str, Any]:
    """Return the record of a bundled run as it is to be run again.

    Parameters
    ----------
    record
        As it is in the bundle.
    places
        Of the files in the bundle, by the paths that they had.
    folder
        Where the bundle was extracted to.
    data
        Fields of a record: trajectory, topology and ensemble as they are here.
    cache
        Where frames are kept.

    Raises
    ------
    HimachError
        If the bundle lacks a script of the run.
    """
    here = _Here(places, folder, record["directory"])
    directory = places.of(record["directory"])
    working = folder / directory if directory is not None else folder
    working.mkdir(parents=True, exist_ok=True)
    reference = record.get("reference")
    return {
        **record,
        **data,
        "analyses": [here.analysis(entry) for entry in record["analyses"]],
        "reference": here.value(reference),
        "directory": str(working),
        "cache": cache,
        "pairs_directory": None,
        "memory": None,
        "digests": {},  # they were compared
        "versions": {},
        "ranks": 1,
        "nodes": 1,
    }


def import_folders(record: Mapping[str, Any], places: Places, folder: Path) -> tuple[str, ...]:
    """Return the folders of an extracted bundle that hold the code of a run, in their order."""
    told = [places.of(str(path)) for path in record.get("code_folders") or ()]
    return tuple(str(folder / place) for place in told if place is not None and (folder / place).is_dir())


@dataclass(frozen=True)
class _Here:
    """What names of a run mean where its bundle was extracted."""

    places: Places
    folder: Path
    directory: str

    def analysis(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        """Return an entry of a record with the paths that its script and its parameters have here."""
        source = str(entry["source"])
        script, colon, name = source.rpartition(":")
        if script.endswith(".py"):
            found = self._extracted(script)
            if found is None:
                raise HimachError(
                    f"the bundle lacks {script}, in which {entry['name']} is defined; bundle the run anew"
                )
            source = f"{found}{colon}{name}"
        return {**self._stage(entry), "source": source}

    def value(self, value: Any) -> Any:
        """Return a parameter's value; the path of a file in the bundle as it is here, if that is another."""
        if not isinstance(value, str) or not value:
            return value
        path = os.path.normpath(os.path.join(self.directory, value))
        found = self._extracted(path)
        working = self.places.of(self.directory)
        if found is None or working is None:
            return value
        means = os.path.normpath(os.path.join(self.folder, working, value))
        return value if not os.path.isabs(value) and means == found else found

    def _stage(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        parameters = {name: self.value(value) for name, value in entry["parameters"].items()}
        following = entry.get("then")
        return {**entry, "parameters": parameters, **({} if following is None else {"then": self._stage(following)})}

    def _extracted(self, path: str) -> str | None:
        """Return where a file of the bundle lies here, by the path that it had."""
        place = self.places.of(path)
        found = None if place is None else os.path.normpath(self.folder / place)
        return found if found is not None and os.path.isfile(found) else None
