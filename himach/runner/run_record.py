"""Provenance of a run: `request_record()` returns the record's fields about the request and its code.

`system_record()` returns those about the simulated system.
"""

import itertools
import json
import os
import platform
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import MDAnalysis
import numpy as np
from MDAnalysis.core.selection import NucleicSelection, ProteinSelection, WaterSelection
from MDAnalysis.core.topology import Topology

from himach import examples
from himach.analysis import GIVEN, Analysis
from himach.files import content_digest
from himach.io.datasets.opening import OpenFrames
from himach.io.datasets.universe_input import UniverseInput
from himach.io.trajectories.urls.byte_file import local_path
from himach.io.trajectories.urls.url_names import absolute, is_url, redact
from himach.output.outcome_files import to_json
from himach.output.record import Record, analysis_record
from himach.runner.methods_text import describe_methods
from himach.runner.options import Job, stages
from himach.runner.scripts import declared_stages, stage_class
from himach.selection import chosen, frames_text
from himach.state_hash import topology_digest
from himach.user_code import SCRIPT_MODULE, is_installed, is_library, module_file, own_modules

#: Length of a file's digest.
DIGITS = 64
#: Kinds of residues that a record names; others are counted together.
MOST_KINDS = 40


@dataclass(frozen=True)
class ScriptSource:
    """Location of an analysis's class."""

    spec: str | None  # by which `himach.runner.scripts.find_class` finds it; None if it cannot
    file: str | None = None  # where it is defined, if it is not himach's own
    reason: str = ""  # why there is no `spec`


def request_record(job: Job, opened: OpenFrames, mpi: str | None) -> dict[str, Any]:
    """Return the fields of the record that are known before setup(). On the first rank."""
    requested = {
        "himach": version("himach"),
        "analyses": [_analysis_record(analysis, job.universe_input) for analysis in job.analyses],
        "dataset": dataset_record(opened),
        **_request(job, opened, mpi),
    }
    earlier = job.earlier or {}
    if earlier.get("topology_digest") not in (None, requested["topology_digest"]) and job.universe_input is None:
        requested["topology_digest"] = topology_digest(opened.topology)
    for difference in [] if job.earlier is None else _differences(job.earlier, requested):
        warnings.warn(f"{difference}; the outcome may differ from that of the run that is repeated", stacklevel=2)
    return requested


def dataset_record(opened: OpenFrames) -> Record:
    """Return the record's fields about the dataset."""
    origin = opened.origin
    paths = [str(path) for path in origin.paths]
    return Record(
        path=paths[0] if len(paths) == 1 else paths,
        frames=origin.n_frames,
        atoms=origin.n_atoms,
        fingerprint=origin.fingerprint,
    )


def system_record(opened: OpenFrames) -> Record:
    """Return the record's fields about the simulated system. On the first rank."""
    frames, first = opened.frames, opened.first
    last = first.time if len(frames) < 2 else float(opened.origin.times([frames[-1]])[0])
    return Record(
        atoms=opened.origin.n_atoms,
        residues=residue_kinds(opened.topology),
        box=None if first.box is None else first.box.tolist(),
        time_ps=[float(first.time), last],
        dt_ps=opened.dt,
    )


def times_record(started: float) -> Record:
    """Return the record's fields about when a run began, and ended now."""
    seconds = (started, time.time())
    start, end = (datetime.fromtimestamp(at).astimezone().isoformat(timespec="milliseconds") for at in seconds)
    return {"date": start[:10], "times": {"start": start, "end": end}}


def readable(digests: Mapping[str, str]) -> dict[str, str]:
    """Return the digests of files, by path, without those that could not be read, which have another word there."""
    return {path: digest for path, digest in digests.items() if len(digest) == DIGITS}


def residue_kinds(topology: Topology) -> dict[str, int]:
    """Return the number of residues of each kind, as MDAnalysis's selections define it, the most frequent first."""
    names = getattr(topology, "resnames", None)
    if names is None:
        return {}
    kinds = {
        **dict.fromkeys(NucleicSelection.nucl_res, "nucleic acid"),
        **dict.fromkeys(WaterSelection.water_res, "water"),
        **dict.fromkeys(ProteinSelection.prot_res, "protein"),
    }
    counts: Counter[str] = Counter()
    for name, count in Counter(names.values.tolist()).items():
        counts[kinds.get(name, str(name))] += count
    ordered = dict(sorted(counts.items(), key=lambda kind: (-kind[1], kind[0])))
    if len(ordered) > MOST_KINDS:
        frequent = dict(list(ordered.items())[: MOST_KINDS - 1])
        ordered = {**frequent, "other": sum(ordered.values()) - sum(frequent.values()) + frequent.pop("other", 0)}
    return ordered


def find_source(analysis: Analysis) -> ScriptSource:
    """Return where an analysis's class is found; without a `spec` if the instance has more than its parameters."""
    cls = type(analysis)
    if reason := _made_by_hand(analysis):
        return ScriptSource(None, _class_file(cls), reason)
    built_in = next((name for name, at in examples.BUILTINS.items() if at == f"{cls.__module__}:{cls.__name__}"), None)
    if built_in is not None:
        return ScriptSource(built_in)
    source_class = getattr(cls, "foreign", cls)  # for an adapted class, the one in a script or module
    file = _class_file(source_class)
    if cls.__module__ == "__main__":
        where = "a notebook or at a prompt" if file is None else f"the program {file}; run that again"
        return ScriptSource(None, file, f"it was defined in {where}")
    module = sys.modules.get(cls.__module__)
    if module is None:  # on a rank that received the class by value
        return ScriptSource(None, file, f"it was defined in {cls.__module__}, which cannot be imported by that name")
    name = next((key for key, value in vars(module).items() if value is source_class), None)
    if name is None:
        return ScriptSource(None, file, "it was defined within a function")
    is_script = not module.__package__  # a module of no package runs as a script does
    if file is not None and (is_script or cls.__module__.startswith(SCRIPT_MODULE)):
        return ScriptSource(f"{file}:{name}", file)
    return ScriptSource(f"{cls.__module__}:{name}", file)


def _request(job: Job, opened: OpenFrames, mpi: str | None) -> dict[str, Any]:
    topology = None if job.topology is None else absolute(job.topology)
    code, folders = _code_files(job.analyses)
    reference = job.transform_options.reference
    named = [topology, *(os.path.abspath(path) for path in (reference, job.index) if path is not None)]
    files = [*code, *filter(None, named), *_files_named(job.analyses)]
    request = Record(
        trajectory=_trajectory(job, opened),
        topology=topology,
        universe={name: _literal(value) for name, value in job.keywords.items()},
        pairs_directory=None if job.pairs is None else str(job.pairs),
        topology_digest=None if job.universe_input is None else topology_digest(opened.topology),
        selected=None if job.frames is None else frames_text(chosen(job.frames, opened.origin.n_frames)),
        command=[redact(word) for word in job.command] or None,
        directory=os.getcwd(),
        code_folders=folders,
        digests=readable({file: content_digest(local_path(file)) for file in dict.fromkeys(files)}),
        versions={
            "python": platform.python_version(),
            "numpy": np.__version__,  # reading package metadata takes milliseconds
            "MDAnalysis": MDAnalysis.__version__,
            "MPI": mpi,
            **_package_versions(job.analyses),
        },
    )
    return {**request, **job.recorded()}


def _analysis_record(analysis: Analysis, universe: UniverseInput | None) -> Record:
    source = find_source(analysis)
    entry = Record(**analysis_record(analysis), **describe_methods(stages(analysis)))
    reason = source.reason if universe is None or source.spec is None else universe.unrepeatable
    entry["source"] = None if reason else source.spec
    if entry["source"] is None:
        entry["unrepeatable"] = reason
    return entry


def _differences(earlier: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the differences from an earlier run of the same request, a sentence each."""
    changes = [
        f"{path} has changed since then"
        for path, digest in earlier["digests"].items()
        if path in now["digests"] and now["digests"][path] != digest
    ]
    if earlier["trajectory"] == now["trajectory"]:
        before, data = earlier["dataset"], now["dataset"]
        path = data["path"] if isinstance(data["path"], str) else data["path"][0]
        quantities = [name for name in ("frames", "atoms") if before[name] != data[name]]
        changes += [f"{path} had {before[name]} {name}, and has {data[name]}" for name in quantities]
        if not quantities and before["fingerprint"] != data["fingerprint"]:
            changes.append(f"the content of {path} is another than then")
    if earlier.get("topology_digest") not in (None, now["topology_digest"]):
        changes.append(f"the topology {now['topology'] or 'of the trajectory'} is not that of the Universe of that run")
    versions = [("himach", earlier["himach"], now["himach"])]
    versions += [(name, old, now["versions"].get(name)) for name, old in earlier["versions"].items()]
    changes += [f"{name} was {old}, and is {new}" for name, old, new in versions if old and new and old != new]
    return changes


def _made_by_hand(analysis: Analysis) -> str:
    """Return what an instance has beyond its class and its parameters; "" for nothing."""
    cls = type(analysis)
    if cls.__init__ is not Analysis.__init__:
        return f"{cls.__name__} has an __init__() of its own"
    if [type(stage) for stage in stages(analysis)] != [stage_class(stage) for stage in declared_stages(cls)]:
        return "its later stages were set by hand"
    # An instance that ran before holds what setup() left there.
    set_by_name = {parameter.attribute for parameter in analysis.parameters().values()}
    own = set(vars(analysis)) - set_by_name - {"then", "_mapping", GIVEN}
    if own and "frames" not in own:
        return f"self.{min(own)} was set by hand"
    return ""


def _class_file(cls: type[Analysis]) -> str | None:
    """Return the source file of a class, also in another process; None for a notebook's cell."""
    codes = (getattr(value, "__code__", None) for value in vars(cls).values())
    file = next((code.co_filename for code in codes if code is not None), None)
    return os.path.realpath(file) if file is not None and os.path.isfile(file) and "ipykernel" not in file else None


def _code_files(analyses: Sequence[Analysis]) -> tuple[list[str], list[str]]:
    """Return the code files of analyses and of the user's modules that they import, and their folders."""
    classes = [getattr(type(analysis), "foreign", type(analysis)) for analysis in analyses]
    sources = [find_source(analysis).file for analysis in analyses]
    scripts = [file for file in sources if file is not None]
    names = {cls.__module__ for cls, file in zip(classes, sources, strict=True) if file and not is_installed(file)}
    own = {package for name in names for package in itertools.accumulate(name.split("."), "{}.{}".format)}
    modules = [*sorted(own), *sorted(_find_imported(own))]
    paths = {os.path.realpath(module_file(name)) for name in modules if module_file(name)}
    folders = filter(None, map(_import_folder, modules))
    return [*scripts, *sorted(paths - {*scripts})], list(dict.fromkeys(folders))


def _package_versions(analyses: Sequence[Analysis]) -> dict[str, str | None]:
    """Return the versions of installed packages that define analyses, except those in every record."""
    classes = [getattr(type(analysis), "foreign", type(analysis)) for analysis in analyses]
    tops = {cls.__module__.partition(".")[0] for cls in classes if is_library(cls.__module__)}
    return {top: _package_version(top) for top in sorted(tops - {"himach", "MDAnalysis"})}


def _package_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        text = getattr(sys.modules[package], "__version__", None)
        return text if isinstance(text, str) else None


def _find_imported(modules: set[str]) -> set[str]:
    """Return the user's own loaded modules that modules name, directly or indirectly, so that they may import them."""
    loaded, reached, pending = own_modules(), {*modules}, [*modules]
    while pending:
        words: set[bytes] = set()
        with suppress(OSError):  # a module without a file
            words = set(re.findall(rb"\w+", Path(module_file(pending.pop())).read_bytes()))
        named = {name for name in loaded if name.rpartition(".")[2].encode() in words}
        pending += sorted(named - reached)
        reached |= named
    return reached - modules


def _import_folder(module: str) -> str | None:
    """Return the import-path folder of a module; for a script, its own folder."""
    path = os.path.realpath(module_file(module)) if module_file(module) else None
    if path is None or module.startswith(SCRIPT_MODULE):
        return path and os.path.dirname(path)
    return str(Path(path).parents[module.count(".") + (os.path.basename(path) == "__init__.py")])


def _files_named(analyses: Iterable[Analysis]) -> Iterator[str]:
    """Yield the files that parameters name, of later stages too."""
    for stage in (stage for analysis in analyses for stage in stages(analysis)):
        for value in stage.settings().values():
            if isinstance(value, str) and os.path.isfile(value):
                yield os.path.abspath(value)


def _trajectory(job: Job, opened: OpenFrames) -> list[str]:
    """Return the requested data: files by absolute path, a dataset by the name under which it was found."""
    if job.universe_input is not None and job.universe_input.frames is not None:
        return [os.fspath(path) for path in job.trajectories]
    paths = [*map(absolute, job.trajectories)]
    if len(paths) > 1 or is_url(paths[0]) or os.path.exists(paths[0]):
        return paths
    return [os.fspath(job.trajectories[0]) if opened.cached is None else opened.cached.name]


def _literal(value: Any) -> Any:
    """Return a keyword's value if JSON restores it unchanged, else its repr()."""
    value = getattr(value, "item", lambda: value)()  # a NumPy scalar
    try:
        back = json.loads(to_json(value))
    except (TypeError, ValueError):
        return {"python": repr(value)}
    return back if repr(back) == repr(value) and not isinstance(value, dict) else {"python": repr(value)}
