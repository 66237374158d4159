"""What goes into a bundle: `contents_of()` runs, their files and the code that made them, each as the run had it."""

from __future__ import annotations

import modulefinder
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from himach.errors import UsageError
from himach.output.names import unique_names
from himach.report.bundle.archive import Member
from himach.report.bundle.places import METHODS, RUNS, Places, needed_files, own_code_folders
from himach.report.methods import methods_files
from himach.report.run_folder import RunFolder
from himach.runner.rerun import read_record

__all__ = ["BundledRun", "Contents", "contents_of"]


@dataclass(frozen=True)
class BundledRun:
    """A run in a bundle.

    Attributes
    ----------
    name
        Its folder in the bundle: ``runs/NAME``.
    record
        What its run.json says.
    outputs
        Members that are files of it, run.json first.
    needs
        Members that it depended on.
    """

    name: str
    record: Mapping[str, Any]
    outputs: tuple[str, ...]
    needs: tuple[str, ...]


@dataclass(frozen=True)
class Contents:
    """What goes into a bundle, but for its metadata.

    Attributes
    ----------
    runs
        In the order in which they were named.
    places
        Where the files lie that they depend on.
    members
        All files, by name.
    untold
        Files that their code imports and that no record tells of: they are as they are now.
    """

    runs: tuple[BundledRun, ...]
    places: Places
    members: Mapping[str, Member]
    untold: tuple[str, ...]


def contents_of(folders: Sequence[RunFolder]) -> Contents:
    """Return what a bundle of runs has in it.

    Raises
    ------
    UsageError
        If a run cannot be run again from its record, did not end well, or a file of it is not as it was.
    """
    for folder in folders:
        _check(folder)
    records = [folder.record for folder in folders]
    places = Places.for_runs(records)
    members = {f"{METHODS}/{name}": Member.of(text.encode()) for name, text in methods_files(folders).items()}
    untold: list[str] = []
    runs: list[BundledRun] = []
    for folder, name in zip(folders, unique_names([folder.name for folder in folders]), strict=True):
        needed = needed_files(folder.record)
        for path, digest in needed.items():
            members[_place(places, path)] = _as_it_was(path, digest, folder)
        imported = [path for path in _imported(needed, own_code_folders(folder.record)) if path not in needed]
        untold += [path for path in imported if path not in untold]
        members |= {_place(places, path): Member.of(Path(path)) for path in imported}
        outputs = folder.all_files
        members |= {f"{RUNS}/{name}/{file}": Member.of(path) for file, path in outputs.items()}
        runs.append(
            BundledRun(
                f"{RUNS}/{name}",
                folder.record,
                tuple(f"{RUNS}/{name}/{file}" for file in outputs),
                tuple(dict.fromkeys(_place(places, path) for path in (*needed, *imported))),
            )
        )
    return Contents(tuple(runs), places, members, tuple(untold))


def _check(folder: RunFolder) -> None:
    """Refuse a run that cannot be bundled."""
    where = os.fspath(folder.path)
    for entry in folder.record["analyses"]:
        if not entry.get("source") and entry.get("unrepeatable"):
            raise UsageError(
                f"{where}: {entry['name']} cannot be bundled: {entry['unrepeatable']}; put its class, with all that it "
                "needs as parameters, into a script or a module, run that with --out, and bundle what it leaves"
            )
    read_record(folder.path)
    if folder.record.get("errors"):
        raise UsageError(
            f"{where}: that run did not end well ({folder.record['errors'][0]}); run it again, and bundle what it "
            "leaves then"
        )
    if folder.missing or not folder.files:
        lacking = ", ".join(folder.missing) or "any file of its outcome"
        raise UsageError(f"{where} lacks {lacking}: himach run --again {where} --out {where} writes it anew")


def _as_it_was(path: str, digest: str, folder: RunFolder) -> Member:
    """Return a file that a run depended on; raises UsageError if it is another than then."""
    again = f"put it back as it was, or run again (himach run --again {folder.path} --out {folder.path})"
    if not os.path.isfile(path):
        raise UsageError(f"{folder.path}: the run read {path}, which is not there any more; {again}")
    member = Member.of(Path(path))
    if member.digest != digest:
        raise UsageError(f"{folder.path}: {path} has changed since the run; {again}")
    return member


def _place(places: Places, path: str) -> str:
    """Return the name of a file in the bundle."""
    place = places.of(path)
    assert place is not None
    try:
        place.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{path!r} has a name that is no text, which a bundle cannot hold; rename it") from None
    return place


def _imported(files: Mapping[str, str], folders: Sequence[str]) -> Iterator[str]:
    """Give the files of the user's own modules that code imports anywhere, within functions too, without running it."""
    finder = modulefinder.ModuleFinder(path=list(folders))
    for path in files:
        if path.endswith(".py") and any(path.startswith(os.path.join(folder, "")) for folder in folders):
            with suppress(ImportError, SyntaxError, ValueError, OSError):
                _look_into(finder, path, folders)
    found = (getattr(module, "__file__", None) for module in finder.modules.values())
    yield from sorted({os.path.realpath(path) for path in found if isinstance(path, str) and os.path.isfile(path)})


def _look_into(finder: modulefinder.ModuleFinder, path: str, folders: Sequence[str]) -> None:
    folder = next(folder for folder in folders if path.startswith(os.path.join(folder, "")))
    parts = os.path.relpath(path, folder).removesuffix(".py").removesuffix("/__init__").split("/")
    if all(part.isidentifier() for part in parts):
        finder.import_hook(".".join(parts))
    else:
        finder.run_script(path)
