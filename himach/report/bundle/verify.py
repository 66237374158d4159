"""Verifying a bundle: `verify()` runs what is in it again and says of each file whether it is the same.

A run of a bundle is run again as by ``himach run --rerun``, of a record that was written for it: `record_here()`.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from himach.errors import HimachError, UsageError, printable
from himach.output.claim import FOLDER, RECORD
from himach.parallel.collective import on_first_rank
from himach.parallel.communicator import World, alone
from himach.parallel.process_exit import under_launcher
from himach.report.bundle.archive import extract
from himach.report.bundle.compare import difference
from himach.report.bundle.crate import FILES, RUNS, Record, place_of
from himach.report.bundle.data import Given, find_data
from himach.report.folder import read_folder
from himach.runner.commands import RunCommand
from himach.runner.run import check_ranks, on_ranks

#: Ends of the names of files that hold code.
CODE = (".py", ".so", ".pyc")
#: What may be behind files that differ.
OTHER_VERSIONS = "What is of another version may be why: verify with the versions of the run to know."
SAME_VERSIONS = (
    "Versions are those of the run, and trajectories have its sizes and ends (64 KiB): left are their middle, "
    "the code, numerical libraries and the processor, and tables that were changed after the run."
)

Say = Callable[[str], object]
#: Does work on as many ranks as run a run again.
Ranks = Callable[[Callable[[World], Any]], Any]


def verify(
    bundle: Path,
    given: Given,
    names: Sequence[str] = (),
    ranks: int | None = None,
    cache: str = "auto",
    say: Say = print,
) -> bool:
    """Run the runs of a bundle again, and compare what they leave with what is in it; return whether all is equal."""
    check_ranks(ranks)
    verified = partial(_verify, bundle=bundle, given=given, names=names, cache=cache, say=say)
    if under_launcher():
        return on_ranks(lambda world: verified(world, lambda work: work(world)))
    return verified(alone(), lambda work: on_ranks(work, 0 if ranks in (None, 1) else ranks or 0))


def _verify(world: World, do: Ranks, *, bundle: Path, given: Given, names: Sequence[str], cache: str, say: Say) -> bool:
    """Verify, as one of the ranks (collective)."""
    tell = say if world.comm.rank == 0 else lambda _: None
    with tempfile.TemporaryDirectory(prefix="himach-verify-", ignore_cleanup_errors=True) as temporary:
        folder, runs = on_first_rank(world.comm, partial(_open, bundle, Path(temporary), names, tell), share=True)
        if not (given.trajectories or given.ensemble):
            tell("\nGive the simulations by --trajectory or --ensemble to run it again.")
            return True
        equal = [_again(world, do, folder, name, record, given, cache, tell) for name, record in runs.items()]
        tell(f"\n{bundle.name}: {'verified' if all(equal) else 'NOT verified'}")
    return all(equal)


def _open(bundle: Path, folder: Path, names: Sequence[str], say: Say) -> tuple[Path, dict[str, Record]]:
    """Extract a bundle and say what is in it; return the folder, and the records of its runs."""
    sizes = extract(bundle, folder)
    runs = [name.split("/")[1] for name in sizes if name.count("/") == 2 and name.endswith(f"/{RECORD}")]
    unknown = [name for name in names if name not in runs]
    if unknown or not runs:
        raise UsageError(f"{bundle} has no run {', '.join(unknown)}; the runs in it: {', '.join(runs) or 'none'}")
    records = {name: read_folder(folder / RUNS / name).record for name in names or runs}
    say(f"{bundle}: {len(sizes):,} files, each with the checksum that it was bundled with")
    code = [name for name in sizes if name.startswith(f"{FILES}/") and name.endswith(CODE)]
    if code:
        say("Its code, which runs as you and may do all that you may:")
    else:
        say("There is no code in it: its analyses are himach's, or of packages that are installed here.")
    for name in code:
        say(f"  {printable(name)} ({sizes[name]:,} bytes)")
    return folder, records


def _again(
    world: World, do: Ranks, folder: Path, name: str, record: Record, given: Given, cache: str, say: Say
) -> bool:
    """Run one of the runs again and compare; return whether all is equal (collective)."""
    say(f"\n{RUNS}/{name} ({', '.join(entry['name'] for entry in record['analyses'])})")
    versions = [f"  version  {line}" for line in _other_versions(record)]
    for line in versions:
        say(line)
    out = folder / "again" / name / "out"
    try:
        do(on_first_rank(world.comm, partial(_prepared, folder, record, out, given, cache), share=True))
    except HimachError as error:
        if world.comm.size > 1:
            raise
        say(f"  not run: {error}")
        return False
    equal = bool(on_first_rank(world.comm, partial(_compared, folder / RUNS / name, out, say), share=True))
    if not equal:
        say(f"  {OTHER_VERSIONS if versions else SAME_VERSIONS}")
    return equal


def _other_versions(record: Record) -> Iterator[str]:
    """Give what is of another version than it was."""
    for name, then in {"himach": record["himach"], **record["versions"]}.items():
        try:
            now = platform.python_version() if name == "python" else version(name)
        except PackageNotFoundError:
            now = "not there"
        if then and name != "MPI" and then != now:
            yield f"{name} was {then}, and is {now}"


def _prepared(folder: Path, record: Record, out: Path, given: Given, cache: str) -> Callable[[World], Any]:
    """Write the record by which a run is run again; return what does so, as one of the ranks."""
    here = {**record_here(record, folder), **find_data(record, given), "cache": cache}
    out.parent.mkdir(parents=True)
    path = out.parent / RECORD
    path.write_text(json.dumps(here))
    return partial(_repeat, path, out, [str(folder / place_of(path)) for path in record["code_folders"]])


def _repeat(record: Path, out: Path, folders: Sequence[str], world: World) -> None:
    """Run a record again, with code in these folders before any other; forget that code for the next run."""
    directory, path, modules = os.getcwd(), list(sys.path), set(sys.modules)
    sys.path[:0] = folders
    try:
        RunCommand((), (), (), {"out": out, "quiet": True}, record, time.time(), printed=False).run(world)
    finally:
        os.chdir(directory)
        sys.path[:] = path
        inside = tuple(os.path.join(folder, "") for folder in folders)
        for name in sys.modules.keys() - modules:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(inside):
                del sys.modules[name]


def _compared(then: Path, now: Path, say: Say) -> bool:
    """Say of each file of a run whether it came out equal; return whether all did."""
    before, after = (
        {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} - {RECORD}
        for folder in (then, now)
    )
    after = {file for file in after if FOLDER not in file.split("/")}
    told = {file: difference(then / file, now / file) for file in sorted(before & after)}
    told |= dict.fromkeys(before - after, "it did not come out this time")
    for file, place in sorted(told.items()):
        say(f"  differs  {file}: {place}" if place else f"  equal    {file}")
    for file in sorted(after - before):
        say(f"  new      {file}: it is not in the bundle")
    say(f"  {sum(not place for place in told.values())} of {len(before)} files are equal, byte by byte")
    return not any(told.values()) and after == before


def record_here(record: Record, folder: Path) -> dict[str, Any]:
    """Return the record of a bundled run as it is to be run again, with the paths of files in an extracted bundle."""
    working = folder / place_of(record["directory"])
    working.mkdir(parents=True, exist_ok=True)

    def value_here(value: Any) -> Any:
        """Return a value; the path of a file in the bundle as it is here, if that is another one."""
        path = folder / place_of(os.path.join(record["directory"], value)) if isinstance(value, str) else folder
        return str(path) if os.path.isfile(path) and os.path.normpath(working / value) != str(path) else value

    def stage_here(entry: Record) -> dict[str, Any]:
        here = {**entry, "parameters": {name: value_here(value) for name, value in entry["parameters"].items()}}
        return {**here, "then": stage_here(entry["then"])} if "then" in entry else here

    analyses = [stage_here(entry) for entry in record["analyses"]]
    for entry in analyses:
        script, colon, name = str(entry.get("source")).rpartition(":")
        if script.endswith(".py"):
            if (path := value_here(os.path.join(record["directory"], script))) == script:
                raise HimachError(f"the bundle lacks {script}, in which {entry['name']} is defined; bundle it anew")
            entry["source"] = f"{path}{colon}{name}"
    fresh: dict[str, Any] = {"pairs_directory": None, "memory": None, "digests": {}, "versions": {}, "uncertainty": {}}
    fresh |= {"ranks": 1, "nodes": 1, "himach": version("himach"), "directory": str(working)}
    return {**record, **fresh, "reference": value_here(record.get("reference")), "analyses": analyses}
