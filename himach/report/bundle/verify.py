"""Verification of a bundle: `verify()` runs its runs again, and compares each file.

Runs are repeated as by ``himach run --rerun``, with a record that `localize_record()` adapts.
"""

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
from himach.ranks.communicator import World
from himach.ranks.process_exit import under_launcher
from himach.report.bundle.archive import extract
from himach.report.bundle.compare import difference
from himach.report.bundle.crate import FILES, RUNS, Record, bundle_path
from himach.report.bundle.data import Inputs, find_data
from himach.report.folder import read_folder
from himach.runner.commands import RunCommand, check_ranks, on_ranks

#: Suffixes of files with code.
CODE = (".py", ".so", ".pyc")
#: Possible reasons for different files.
OTHER_VERSIONS = "What is of another version may be why: verify with the versions of the run to know."
SAME_VERSIONS = (
    "Versions are those of the run, and trajectories have its sizes and ends (64 KiB): left are their middle, "
    "the code, numerical libraries and the processor, and tables that were changed after the run."
)

Log = Callable[[str], object]


def verify(
    bundle: Path,
    data: Inputs,
    names: Sequence[str] = (),
    ranks: int | None = None,
    cache: str = "auto",
    log: Log = print,
) -> bool:
    """Run the runs of a bundle again, and compare their files with those in it; return whether all are equal."""
    if under_launcher():
        raise UsageError("himach bundle verify starts ranks itself: give -n RANKS, without srun or mpiexec")
    check_ranks(ranks)
    with tempfile.TemporaryDirectory(prefix="himach-verify-", ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary)
        runs = _open(bundle, folder, names, log)
        if not (data.trajectories or data.ensemble):
            log("\nGive the simulations by --trajectory or --ensemble to run it again.")
            return True
        equal = [_rerun(folder, name, record, data, ranks, cache, log) for name, record in runs.items()]
        log(f"\n{bundle.name}: {'verified' if all(equal) else 'NOT verified'}")
    return all(equal)


def _open(bundle: Path, folder: Path, names: Sequence[str], log: Log) -> dict[str, Record]:
    """Extract a bundle and log its content; return the records of its runs."""
    sizes = extract(bundle, folder)
    runs = [name.split("/")[1] for name in sizes if name.count("/") == 2 and name.endswith(f"/{RECORD}")]
    unknown = [name for name in names if name not in runs]
    if unknown or not runs:
        raise UsageError(f"{bundle} has no run {', '.join(unknown)}; the runs in it: {', '.join(runs) or 'none'}")
    records = {name: read_folder(folder / RUNS / name).record for name in names or runs}
    log(f"{bundle}: {len(sizes):,} files, each with the checksum that it was bundled with")
    code = [name for name in sizes if name.startswith(f"{FILES}/") and name.endswith(CODE)]
    if code:
        log("Its code, which runs as you and may do all that you may:")
    else:
        log("There is no code in it: its analyses are himach's, or of packages that are installed here.")
    for name in code:
        log(f"  {printable(name)} ({sizes[name]:,} bytes)")
    return records


def _rerun(folder: Path, name: str, record: Record, data: Inputs, ranks: int | None, cache: str, log: Log) -> bool:
    """Repeat a run and compare its files; return whether all are equal."""
    log(f"\n{RUNS}/{name} ({', '.join(entry['name'] for entry in record['analyses'])})")
    versions = [f"  version  {line}" for line in _changed_versions(record)]
    for line in versions:
        log(line)
    out = folder / "again" / name / "out"
    try:
        on_ranks(_prepare_rerun(folder, record, out, data, cache), 0 if ranks in (None, 1) else ranks or 0)
    except HimachError as error:
        log(f"  not run: {error}")
        return False
    equal = _compare_runs(folder / RUNS / name, out, log)
    if not equal:
        log(f"  {OTHER_VERSIONS if versions else SAME_VERSIONS}")
    return equal


def _changed_versions(record: Record) -> Iterator[str]:
    """Yield the software whose version has changed."""
    for name, recorded in {"himach": record["himach"], **record["versions"]}.items():
        try:
            installed = platform.python_version() if name == "python" else version(name)
        except PackageNotFoundError:
            installed = "not there"
        if recorded and name != "MPI" and recorded != installed:
            yield f"{name} was {recorded}, and is {installed}"


def _prepare_rerun(folder: Path, record: Record, out: Path, data: Inputs, cache: str) -> Callable[[World], Any]:
    """Write the record of a repeated run; return a function that runs it on a rank."""
    local_record = {**localize_record(record, folder), **find_data(record, data), "cache": cache}
    out.parent.mkdir(parents=True)
    path = out.parent / RECORD
    path.write_text(json.dumps(local_record))
    return partial(_repeat, path, out, [str(folder / bundle_path(path)) for path in record["code_folders"]])


def _repeat(record: Path, out: Path, folders: Sequence[str], world: World) -> None:
    """Run a record again with these folders first in sys.path; then unload their modules."""
    directory, path, modules = os.getcwd(), list(sys.path), set(sys.modules)
    sys.path[:0] = folders
    try:
        RunCommand((), (), (), {"out": out, "quiet": True}, record, time.time(), printed=False)(world)
    finally:
        os.chdir(directory)
        sys.path[:] = path
        prefixes = tuple(os.path.join(folder, "") for folder in folders)
        for name in sys.modules.keys() - modules:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(prefixes):
                del sys.modules[name]


def _compare_runs(old: Path, new: Path, log: Log) -> bool:
    """Log for each file of a run whether it is equal; return whether all are."""
    old_files, new_files = (
        {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} - {RECORD}
        for folder in (old, new)
    )
    new_files = {file for file in new_files if FOLDER not in file.split("/")}
    differences = {file: difference(old / file, new / file) for file in sorted(old_files & new_files)}
    differences |= dict.fromkeys(old_files - new_files, "it did not come out this time")
    for file, text in sorted(differences.items()):
        log(f"  differs  {file}: {text}" if text else f"  equal    {file}")
    for file in sorted(new_files - old_files):
        log(f"  new      {file}: it is not in the bundle")
    log(f"  {sum(not text for text in differences.values())} of {len(old_files)} files are equal, byte by byte")
    return not any(differences.values()) and new_files == old_files


def localize_record(record: Record, folder: Path) -> dict[str, Any]:
    """Adapt the record of a bundled run to be repeated, with the paths of files in an extracted bundle."""
    work_folder = folder / bundle_path(record["directory"])
    work_folder.mkdir(parents=True, exist_ok=True)

    def localize_value(value: Any) -> Any:
        """Replace the path of a file in the bundle by its path here if that differs; keep other values."""
        path = folder / bundle_path(os.path.join(record["directory"], value)) if isinstance(value, str) else folder
        return str(path) if os.path.isfile(path) and os.path.normpath(work_folder / value) != str(path) else value

    def localize_stage(entry: Record) -> dict[str, Any]:
        local = {**entry, "parameters": {name: localize_value(value) for name, value in entry["parameters"].items()}}
        return {**local, "then": localize_stage(entry["then"])} if "then" in entry else local

    analyses = [localize_stage(entry) for entry in record["analyses"]]
    for entry in analyses:
        script, colon, name = str(entry.get("source")).rpartition(":")
        if script.endswith(".py"):
            if (path := localize_value(os.path.join(record["directory"], script))) == script:
                raise HimachError(f"the bundle lacks {script}, in which {entry['name']} is defined; bundle it anew")
            entry["source"] = f"{path}{colon}{name}"
    reset: dict[str, Any] = {"pairs_directory": None, "memory": None, "digests": {}, "versions": {}, "uncertainty": {}}
    reset |= {"ranks": 1, "nodes": 1, "himach": version("himach"), "directory": str(work_folder)}
    reset |= {name: localize_value(record.get(name)) for name in ("reference", "index")}
    return {**record, **reset, "analyses": analyses}
