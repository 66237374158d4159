"""Verifying a bundle: `verify()` runs what is in it again and says of each file whether it is the same."""

from __future__ import annotations

import json
import platform
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from himach.errors import HimachError, UsageError
from himach.output.claim import FOLDER, RECORD
from himach.parallel.collective import on_first_rank
from himach.parallel.communicator import World, alone
from himach.parallel.environment import under_launcher
from himach.report.bundle.archive import Archive
from himach.report.bundle.compare import difference
from himach.report.bundle.crate import folders_of
from himach.report.bundle.data import Given, find_data
from himach.report.bundle.places import FILES, RUNS, Places
from himach.report.bundle.repetition import Repetition, import_folders, record_here
from himach.runner.rerun import read_record
from himach.runner.run import check_ranks, on_ranks

__all__ = ["verify"]

#: Ends of the names of files that hold code.
CODE = (".py", ".so", ".pyc")

#: What may be behind files that differ.
OTHER_VERSIONS = "What is of another version may be why: verify with the versions of the run to know."
SAME_VERSIONS = (
    "Versions are those of the run, and trajectories have its sizes and ends (64 KiB): left are their middle, "
    "the code, numerical libraries and the processor, and tables that were changed after the run."
)

Say = Callable[[str], None]


@dataclass(frozen=True)
class _Opened:
    """A bundle that was extracted.

    Attributes
    ----------
    folder
        Where to.
    runs
        Records by the folders of runs in the bundle.
    places
        Of what runs depend on.
    sizes
        Bytes by member.
    """

    folder: Path
    runs: Mapping[str, dict[str, Any]]
    places: Places
    sizes: Mapping[str, int]


def verify(
    bundle: Path,
    given: Given,
    names: Sequence[str] = (),
    ranks: int | None = None,
    cache: str = "auto",
    say: Say = print,
) -> bool:
    """Run the runs of a bundle again, and compare what they leave with what is in it.

    The code in the bundle is run, as any script is. Nothing is run where no simulation is given: then it is told what
    is in the bundle.

    Parameters
    ----------
    bundle
        Its file.
    given
        The simulations.
    names
        Of runs, the others of which are left out; none: all are run.
    ranks
        To start on this machine; None: this process alone, or with those of a launcher.
    cache
        Where frames are kept, as of `himach.run`.
    say
        Takes lines of what is found.

    Returns
    -------
    bool
        Whether all that is in the bundle came out the same.

    Raises
    ------
    UsageError
        If it is no bundle, or has no such run.
    DamagedError
        If it is not as it was written.
    """
    check_ranks(ranks)
    if under_launcher():
        return on_ranks(lambda world: _verify(world, bundle, given, names, lambda work: work(world), cache, say))
    started = 0 if ranks in (None, 1) else ranks
    return _verify(alone(), bundle, given, names, lambda work: on_ranks(work, started or 0), cache, say)


def _verify(
    world: World,
    bundle: Path,
    given: Given,
    names: Sequence[str],
    do: Callable[[Repetition], Any],
    cache: str,
    say: Say,
) -> bool:
    """Verify, as one of the ranks (collective)."""
    comm = world.comm
    with tempfile.TemporaryDirectory(prefix="himach-verify-", ignore_cleanup_errors=True) as temporary:
        opened = on_first_rank(comm, partial(_open, bundle, Path(temporary), names), share=True)
        tell = say if comm.rank == 0 else _nothing
        for line in _contents(bundle, opened):
            tell(line)
        if not (given.trajectories or given.ensemble):
            tell("\nGive the simulations by --trajectory or --ensemble to run it again.")
            return True
        equal = True
        for name, record in opened.runs.items():
            equal &= _again(world, opened, name, record, given, do, cache, tell)
        tell(f"\n{bundle.name}: {'verified' if equal else 'NOT verified'}")
    return equal


def _nothing(line: str) -> None:
    """Say nothing."""


def _again(
    world: World,
    opened: _Opened,
    name: str,
    record: Mapping[str, Any],
    given: Given,
    do: Callable[[Repetition], Any],
    cache: str,
    say: Say,
) -> bool:
    """Run one of the runs again and compare; return whether all is equal (collective)."""
    comm = world.comm
    labels = ", ".join(entry["name"] for entry in record["analyses"])
    say(f"\n{name} ({labels})")
    versions = list(_other_versions(record))
    for line in versions:
        say(f"  version  {line}")
    try:
        work = on_first_rank(comm, partial(_prepared, opened, name, record, given, cache), share=True)
        do(work)
    except HimachError as error:
        if world.comm.size > 1:
            raise
        say(f"  not run: {error}")
        return False
    equal = bool(on_first_rank(comm, partial(_compared, opened, name, work.out, say), share=True))
    if not equal:
        say(f"  {OTHER_VERSIONS if versions else SAME_VERSIONS}")
    return equal


def _open(bundle: Path, folder: Path, names: Sequence[str]) -> _Opened:
    """Extract a bundle and read what it tells."""
    with Archive(bundle) as archive:
        archive.extract(folder)
        runs = [name.rpartition("/")[0] for name in sorted(archive.sizes) if _is_record(name)]
        places = folders_of(archive.graph)
        sizes = archive.sizes
    unknown = [name for name in names if f"{RUNS}/{name}" not in runs]
    if unknown or not runs:
        there = ", ".join(name.removeprefix(f"{RUNS}/") for name in runs) or "none"
        raise UsageError(f"{bundle} has no run {', '.join(unknown)}; the runs in it: {there}")
    chosen = [name for name in runs if not names or name.removeprefix(f"{RUNS}/") in names]
    return _Opened(folder, {name: read_record(folder / name) for name in chosen}, places, sizes)


def _is_record(name: str) -> bool:
    parts = name.split("/")
    return len(parts) == 3 and parts[0] == RUNS and parts[2] == RECORD


def _contents(bundle: Path, opened: _Opened) -> Iterator[str]:
    """Give lines of what is in a bundle, and of its code."""
    yield f"{bundle}: {len(opened.sizes):,} files, each with the checksum that it was bundled with"
    code = [name for name in sorted(opened.sizes) if name.startswith(f"{FILES}/") and name.endswith(CODE)]
    if not code:
        yield "There is no code in it: its analyses are himach's, or of packages that are installed here."
        return
    yield "Its code, which runs as you and may do all that you may:"
    for name in code:
        yield f"  {name} ({opened.sizes[name]:,} bytes)"


def _prepared(opened: _Opened, name: str, record: Mapping[str, Any], given: Given, cache: str) -> Repetition:
    """Write the record by which a run is run again."""
    here = record_here(record, opened.places, opened.folder, find_data(record, given), cache)
    place = opened.folder / "again" / name
    place.mkdir(parents=True)
    path = place / "asked.json"
    path.write_text(json.dumps({**here, "himach": version("himach")}))
    return Repetition(path, place / "out", import_folders(record, opened.places, opened.folder))


def _compared(opened: _Opened, name: str, out: Path, say: Say) -> bool:
    """Say of each file of a run whether it came out equal; return whether all did."""
    then = opened.folder / name
    files = [one.removeprefix(f"{name}/") for one in sorted(opened.sizes) if one.startswith(f"{name}/")]
    files.remove(RECORD)
    here = {
        path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file() and FOLDER not in path.parts
    } - {RECORD}
    equal = 0
    for file in files:
        told = "it did not come out this time" if file not in here else difference(then / file, out / file)
        equal += not told
        say(f"  differs  {file}: {told}" if told else f"  equal    {file}")
    for file in sorted(here - set(files)):
        say(f"  new      {file}: it is not in the bundle")
    say(f"  {equal} of {len(files)} files are equal, byte by byte")
    return equal == len(files) and here == set(files)


def _other_versions(record: Mapping[str, Any]) -> Iterator[str]:
    """Give what is of another version than it was."""
    then = {"himach": record["himach"], **record["versions"]}
    for name, told in then.items():
        now = platform.python_version() if name == "python" else _version(name)
        if told and name != "MPI" and told != now:
            yield f"{name} was {told}, and is {now or 'not there'}"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
