"""Metadata of a bundle: `metadata()`, a Process Run Crate in JSON-LD.

It is RO-Crate 1.1 with an action for each run: its software, inputs, parameters and results.

`collect_contents()` collects runs, their files and their code, each as the run had it.
"""

import json
import modulefinder
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

from himach.errors import UsageError
from himach.output.claim import RECORD
from himach.output.file_names import unique_names
from himach.output.text import count
from himach.report.bundle.archive import METADATA, Payload
from himach.report.folder import RunFolder, stages
from himach.report.report_files import methods_files
from himach.user_code import is_installed

#: Folders of a bundle: outputs of runs, files that runs depend on, methods for a paper.
RUNS, FILES, METHODS = "runs", "files", "methods"
Record = Mapping[str, Any]


@dataclass(frozen=True)
class BundledRun:
    """A run in a bundle: its folder, its record, members that it left, and members that it needs."""

    name: str
    record: Record
    outputs: tuple[str, ...]
    needs: tuple[str, ...]


@dataclass(frozen=True)
class Contents:
    """Contents of a bundle without its metadata; `unrecorded` are files without a recorded digest."""

    runs: tuple[BundledRun, ...]
    members: Mapping[str, Payload]
    unrecorded: tuple[str, ...]


def collect_contents(folders: Sequence[RunFolder]) -> Contents:
    """Collect the contents of a bundle of runs."""
    for folder in folders:
        _check(folder)
    members = {f"{METHODS}/{name}": Payload.from_source(text.encode()) for name, text in methods_files(folders).items()}
    unrecorded: dict[str, None] = {}
    runs: list[BundledRun] = []
    for folder, name in zip(folders, unique_names([folder.name for folder in folders]), strict=True):
        needed = _needed_files(folder.record)
        needs = {bundle_path(path): _unchanged_member(path, digest, folder) for path, digest in needed.items()}
        imported_files = [path for path in _imported_files(needed, folder.record["code_folders"]) if path not in needed]
        needs |= {bundle_path(path): Payload.from_source(Path(path)) for path in imported_files}
        outputs = {f"{RUNS}/{name}/{file}": Payload.from_source(path) for file, path in folder.all_files.items()}
        members |= needs | outputs
        unrecorded |= dict.fromkeys(imported_files)
        runs.append(BundledRun(f"{RUNS}/{name}", folder.record, tuple(outputs), tuple(needs)))
    return Contents(tuple(runs), members, tuple(unrecorded))


def bundle_path(path: str) -> str:
    """Return the name in a bundle of an absolute path; raises UsageError if the path is no text."""
    member = FILES + os.path.normpath(f"/{path.lstrip('/')}")
    if member != member.encode(errors="replace").decode():
        raise UsageError(f"{path!r} has a name that is no text, which a bundle cannot hold; rename it")
    return member


def topologies(record: Record) -> set[str]:
    """Return the paths of the topologies of a run, or of an ensemble's members."""
    paths = [simulation["topology"] for simulation in (record, *record.get("ensemble", ()))]
    return {os.path.normpath(os.path.join(record["directory"], path)) for path in paths if path is not None}


def _needed_files(record: Record) -> dict[str, str]:
    """Return digests by path of the files that a run depended on and that a bundle includes.

    Topologies and files of installed packages are excluded, unless a parameter or an option names them.
    """
    parameters = [stage["parameters"] for entry in record["analyses"] for stage in stages(entry)]
    values = [*map(record.get, ("reference", "index")), *(value for group in parameters for value in group.values())]
    named = {os.path.normpath(os.path.join(record["directory"], path)) for path in values if isinstance(path, str)}
    left_out = topologies(record) | set(filter(is_installed, record["digests"]))
    return {path: digest for path, digest in sorted(record["digests"].items()) if path in named or path not in left_out}


def _check(folder: RunFolder) -> None:
    """Raise UsageError for a run that cannot be bundled."""
    where, record = os.fspath(folder.path), folder.record
    for entry in record["analyses"]:
        if not entry.get("source"):
            raise UsageError(
                f"{where}: {entry['name']} cannot be bundled: {entry.get('unrepeatable', 'it has no source')}; put its "
                "class, with all that it needs as parameters, into a script or a module, run that with --out, and "
                "bundle what it leaves"
            )
    if record["errors"]:
        raise UsageError(
            f"{where}: that run did not end well ({record['errors'][0]}); run it again, and bundle what it leaves then"
        )
    if folder.missing or not folder.files:
        missing = ", ".join(folder.missing) or "any file of its outcome"
        raise UsageError(f"{where} lacks {missing}: himach run --rerun {where} --out {where} writes it anew")


def _unchanged_member(path: str, digest: str, folder: RunFolder) -> Payload:
    """Return a member for a file that a run depended on; raises UsageError if it has changed since."""
    advice = f"put it back as it was, or run again (himach run --rerun {folder.path} --out {folder.path})"
    if not os.path.isfile(path):
        raise UsageError(f"{folder.path}: the run read {path}, which is not there any more; {advice}")
    member = Payload.from_source(Path(path))
    if member.digest != digest:
        raise UsageError(f"{folder.path}: {path} has changed since the run; {advice}")
    return member


def _imported_files(files: Mapping[str, str], folders: Sequence[str]) -> Iterator[str]:
    """Yield the files of the user's modules that code imports, within functions too, without running it."""
    own_folders = [os.path.normpath(folder) for folder in folders if not is_installed(os.path.join(folder, ""))]
    finder = modulefinder.ModuleFinder(path=own_folders)
    for path in (PurePosixPath(path) for path in files if path.endswith(".py")):
        if (folder := next(filter(path.is_relative_to, own_folders), None)) is None:
            continue
        parts = path.relative_to(folder).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        with suppress(ImportError, SyntaxError, ValueError, OSError, AttributeError):  # of a namespace package's loader
            if all(part.isidentifier() for part in parts):
                finder.import_hook(".".join(parts))
            else:
                finder.run_script(str(path))
    paths = (getattr(module, "__file__", None) for module in finder.modules.values())
    yield from sorted({os.path.realpath(path) for path in paths if isinstance(path, str) and os.path.isfile(path)})


CRATE = "https://w3id.org/ro/crate/1.1"
PROFILE = "https://w3id.org/ro/wfrun/process/0.5"
#: ``sha256`` is defined by the profile, not by RO-Crate 1.1.
CONTEXT = [f"{CRATE}/context", {"sha256": "https://w3id.org/ro/terms/workflow-run#sha256"}]
#: Web pages of software, by its name in records; other packages have a package URL (purl).
SOFTWARE = {
    "himach": "https://himach.example/himach",
    "python": "https://www.python.org/",
    "numpy": "https://numpy.org/",
    "MDAnalysis": "https://www.mdanalysis.org/",
    "MPI": "https://www.mpi-forum.org/",
    "matplotlib": "https://matplotlib.org/",
    "pyarrow": "https://arrow.apache.org/",
}
#: Media types of files, independent of the machine.
KINDS = {
    ".bib": "application/x-bibtex", ".csv": "text/csv", ".html": "text/html", ".json": "application/json",
    ".md": "text/markdown", ".nc": "application/x-netcdf", ".npy": "application/x-npy", ".npz": "application/x-npz",
    ".parquet": "application/vnd.apache.parquet", ".pdb": "chemical/x-pdb", ".pdf": "application/pdf",
    ".png": "image/png", ".py": "text/x-python", ".svg": "image/svg+xml", ".tex": "application/x-tex",
    ".txt": "text/plain",
}  # fmt: skip
NO_LICENSE = "Its authors have not said under which license this may be used: ask them."
Entity = dict[str, Any]


def metadata(contents: Contents, title: str = "", license: str = "", author: str = "") -> bytes:  # noqa: A002
    """Return the metadata of a bundle: the same bytes for the same content."""
    names = dict.fromkeys(entry["name"] for run in contents.runs for entry in run.record["analyses"])
    entities = [entity for run in contents.runs for entity in _run(run, author)]
    files = [_file(name, member) for name, member in sorted(contents.members.items())]
    terms = _entity(license if "://" in license else "#license", "CreativeWork", name=license or NO_LICENSE)
    people = [_entity("#author", "Person", name=author)] if author else []
    root = _entity(
        "./",
        "Dataset",
        name=title or f"Analyses of molecular-dynamics simulations: {', '.join(names)}",
        description=f"{count(len(contents.runs), 'run')} of himach: tables, figures, records, and the code and "
        "parameters that they were made with; himach bundle verify runs them again from the trajectories and compares.",
        datePublished=max(run.record["times"]["end"] for run in contents.runs),
        license=_link(terms),
        conformsTo={"@id": PROFILE},
        hasPart=[*map(_link, files)],
        mentions=[_link(entity) for entity in entities if entity["@type"] == "CreateAction"],
        **({"author": {"@id": "#author"}} if author else {}),
    )
    profile = _entity(PROFILE, "CreativeWork", name="Process Run Crate", version="0.5")
    descriptor = _entity(METADATA, "CreativeWork", conformsTo={"@id": CRATE}, about={"@id": "./"})
    graph = {node["@id"]: node for node in (descriptor, root, profile, terms, *people, *files, *entities)}
    text = json.dumps({"@context": CONTEXT, "@graph": list(graph.values())}, ensure_ascii=False, indent=1)
    return f"{text}\n".encode(errors="backslashreplace")


def _entity(identifier: str, kind: str, /, **properties: Any) -> Entity:
    return {"@id": identifier, "@type": kind, **properties}


def _link(entity: Entity) -> Entity:
    return {"@id": entity["@id"]}


def _run(run: BundledRun, author: str) -> list[Entity]:
    """Return the entities of a run: action, software, data and parameters."""
    record = run.record
    software, data, parameters = list(_software(record)), list(_data(run)), list(_parameters(run))
    analyses = ", ".join(entry["name"] for entry in record["analyses"])
    action = _entity(
        f"#{quote(run.name)}",
        "CreateAction",
        name=f"himach run: {analyses}",
        description=" ".join(record["command"] or [f"{analyses}, run from Python"]),
        startTime=record["times"]["start"],
        endTime=record["times"]["end"],
        actionStatus="http://schema.org/CompletedActionStatus",
        instrument=_link(software[0]),
        object=[*map(_link, (*data, *parameters)), *({"@id": quote(name)} for name in run.needs)],
        result=[{"@id": quote(name)} for name in run.outputs],
        **({"agent": {"@id": "#author"}} if author else {}),
    )
    return [action, *software, *data, *parameters]


def _software(record: Record) -> Iterator[Entity]:
    """Yield himach and the software that it used."""
    versions = {name: version for name, version in record["versions"].items() if version}
    dependencies = [_program(name, version, quote(version)) for name, version in versions.items()]
    # Runs with the same himach may have had other versions of its dependencies.
    release = "+".join(quote(version) for version in (record["himach"], *versions.values()))
    yield _program("himach", record["himach"], release, softwareRequirements=[*map(_link, dependencies)])
    yield from dependencies


def _program(name: str, version: str, release: str, **properties: Any) -> Entity:
    page = SOFTWARE.get(name, f"pkg:pypi/{quote(name.lower())}")
    details = {"url": page, "softwareVersion": version, **properties}
    return _entity(f"{page}#{release}", "SoftwareApplication", name=name, **details)


def _data(run: BundledRun) -> Iterator[Entity]:
    """Yield trajectories and topologies, which are not in the bundle, with identifiers of their content."""
    record, dataset = run.record, run.record["dataset"]
    members = record.get("ensemble", [{"name": "", **record, "fingerprint": dataset["fingerprint"]}])
    for number, member in enumerate(members, 1):
        owner, remark = (f" of {member['name']}", ", with those of the other members") if member["name"] else ("", "")
        yield _entity(
            f"#{run.name}/trajectory-{number}",
            "CreativeWork",
            name=f"Trajectory{owner}: {', '.join(map(os.path.basename, member['trajectory']))}",
            description=f"{dataset['frames']} frames of {dataset['atoms']} atoms{remark}",
            identifier=str(member["fingerprint"]),
        )
    for number, path in enumerate(sorted(topologies(record)), 1):
        properties = {"identifier": record["digests"][path]} if path in record["digests"] else {}
        identifier = f"#{run.name}/topology-{number}"
        yield _entity(identifier, "CreativeWork", name=f"Topology: {os.path.basename(path)}", **properties)


def _parameters(run: BundledRun) -> Iterator[Entity]:
    """Yield the parameters of the analyses and of their later stages."""
    for number, entry in enumerate(run.record["analyses"], 1):
        for depth, stage in enumerate(stages(entry)):
            for name, value in stage["parameters"].items():
                json_value = value if isinstance(value, str | int | float) else json.dumps(value, ensure_ascii=False)
                identifier = f"#{run.name}/{number}.{depth}.{quote(name)}"
                yield _entity(identifier, "PropertyValue", name=f"{stage['name']}.{name}", value=json_value)


def _file(name: str, member: Payload) -> Entity:
    path = PurePosixPath(name)
    entity = _entity(
        quote(name),
        "File",
        name=path.name,
        contentSize=str(member.size),
        encodingFormat=KINDS.get(path.suffix, "application/octet-stream"),
        sha256=member.digest,
    )
    if path.name == RECORD:
        entity["description"] = "The record of the run: what was asked for, and what it did"
    if path.suffix == ".py":
        entity |= {"description": "Code that a run imported", "programmingLanguage": "Python"}
    return entity
