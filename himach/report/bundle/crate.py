"""What a bundle says of itself: `metadata()`, a Process Run Crate in JSON-LD.

That is RO-Crate 1.1 with an action for each run: by which software, from what, with which parameters, and what it gave.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote

from himach.output.claim import RECORD
from himach.report.bundle.archive import METADATA, DamagedError, Member
from himach.report.bundle.contents import BundledRun, Contents
from himach.report.bundle.places import FILES, Places, topologies

__all__ = ["folders_of", "identifier", "metadata"]

CRATE = "https://w3id.org/ro/crate/1.1"
PROFILE = "https://w3id.org/ro/wfrun/process/0.5"
#: The digest of a file is a word of the profile's, not of RO-Crate 1.1.
CONTEXT = [f"{CRATE}/context", {"sha256": "https://w3id.org/ro/terms/workflow-run#sha256"}]
#: Pages of what runs stand on, by the names that records have for it; other packages are named by a package URL (purl).
SOFTWARE = {
    "himach": "https://himach.example/himach",
    "python": "https://www.python.org/",
    "numpy": "https://numpy.org/",
    "MDAnalysis": "https://www.mdanalysis.org/",
    "MPI": "https://www.mpi-forum.org/",
    "matplotlib": "https://matplotlib.org/",
    "pyarrow": "https://arrow.apache.org/",
}
#: Kinds of files, whatever the machine knows of them.
KINDS = {
    ".bib": "application/x-bibtex",
    ".csv": "text/csv",
    ".html": "text/html",
    ".json": "application/json",
    ".md": "text/markdown",
    ".nc": "application/x-netcdf",
    ".npy": "application/x-npy",
    ".npz": "application/x-npz",
    ".parquet": "application/vnd.apache.parquet",
    ".pdb": "chemical/x-pdb",
    ".pdf": "application/pdf",
    ".png": "image/png",
    ".py": "text/x-python",
    ".svg": "image/svg+xml",
    ".tex": "application/x-tex",
    ".txt": "text/plain",
}
NO_LICENSE = "Its authors have not said under which license this may be used: ask them."

Entity = dict[str, Any]


def metadata(contents: Contents, title: str = "", license: str = "", author: str = "") -> bytes:  # noqa: A002
    """Return the metadata of a bundle: the same bytes for the same content.

    Parameters
    ----------
    contents
        What is in it.
    title
        Its name; "": told by the analyses.
    license
        Address of a license, or words; "": none is stated.
    author
        Who made the runs; "": nobody is named.
    """
    names = list(dict.fromkeys(entry["name"] for run in contents.runs for entry in run.record["analyses"]))
    folders = list(_folders(contents.places))
    made = [entity for run in contents.runs for entity in _run(run, folders, author)]
    files = [_file(name, member) for name, member in sorted(contents.members.items())]
    root: Entity = {
        "@id": "./",
        "@type": "Dataset",
        "name": title or f"Analyses of molecular-dynamics simulations: {', '.join(names)}",
        "description": f"{_count(len(contents.runs), 'run')} of himach: tables, figures, records, and the code and "
        "parameters that they were made with; himach verify runs them again from the trajectories and compares.",
        "datePublished": max(run.record["times"]["end"] for run in contents.runs),
        "license": _link(license if "://" in license else "#license"),
        "conformsTo": _link(PROFILE),
        "hasPart": [_link(one["@id"]) for one in files],
        "mentions": [_link(_action_of(run)) for run in contents.runs],
    }
    known: list[Entity] = [
        {"@id": PROFILE, "@type": "CreativeWork", "name": "Process Run Crate", "version": "0.5"},
        {"@id": root["license"]["@id"], "@type": "CreativeWork", "name": license or NO_LICENSE},
    ]
    if author:
        root["author"] = _link("#author")
        known.append({"@id": "#author", "@type": "Person", "name": author})
    descriptor = {
        "@id": METADATA,
        "@type": "CreativeWork",
        "conformsTo": _link(CRATE),
        "about": _link("./"),
    }
    graph = {one["@id"]: one for one in (descriptor, root, *known, *files, *folders, *made)}
    said = {"@context": CONTEXT, "@graph": list(graph.values())}
    return (json.dumps(said, ensure_ascii=False, indent=1) + "\n").encode(errors="backslashreplace")


def identifier(name: str) -> str:
    """Return what a member of that name is called in the metadata: a part of an address."""
    return quote(name)


def folders_of(graph: Mapping[str, Entity]) -> Places:
    """Return the places of a bundle by its metadata: what `_folders` wrote there.

    Raises DamagedError if one is no such place: it might lead out of the bundle, to files of this machine.
    """
    told = {name.removeprefix("#"): entity for name, entity in graph.items() if name.startswith(f"#{FILES}/")}
    folders = {str(entity.get("value")): place for place, entity in told.items()}
    for folder, place in folders.items():
        if (
            not re.fullmatch(rf"{FILES}/[0-9]+", place)
            or not os.path.isabs(folder)
            or os.path.normpath(folder) != folder
        ):
            raise DamagedError(
                f"the bundle is damaged, or somebody changed it: {METADATA} has {place!r} stand for {folder!r}, which "
                "might lead elsewhere; get the bundle again"
            )
    return Places(folders)


def _folders(places: Places) -> Iterable[Entity]:
    """Give the folders of files, each with the one that it stands for."""
    for folder, place in places.folders.items():
        yield {
            "@id": f"#{place}",
            "@type": "PropertyValue",
            "name": place,
            "description": "The folder that it stands for: what runs read below that is at the same place below it.",
            "value": folder,
        }


def _run(run: BundledRun, folders: Sequence[Entity], author: str) -> Iterable[Entity]:
    """Give what tells of a run: the action, its software, data and parameters."""
    record = run.record
    software = list(_software(record))
    data, parameters = list(_data(run)), list(_parameters(run))
    words = record.get("command")
    analyses = ", ".join(entry["name"] for entry in record["analyses"])
    action: Entity = {
        "@id": _action_of(run),
        "@type": "CreateAction",
        "name": f"himach run: {analyses}",
        "description": " ".join(words) if words else f"{analyses}, run from Python",
        "startTime": record["times"]["start"],
        "endTime": record["times"]["end"],
        "actionStatus": "http://schema.org/CompletedActionStatus",
        "instrument": _link(software[0]["@id"]),
        "object": [_link(one["@id"]) for one in (*data, *parameters, *folders)]
        + [_link(identifier(one)) for one in run.needs],
        "result": [_link(identifier(one)) for one in run.outputs],
    }
    if author:
        action["agent"] = _link("#author")
    return [action, *software, *data, *parameters]


def _software(record: Mapping[str, Any]) -> Iterable[Entity]:
    """Give himach, and what it stood on."""
    versions = {"himach": record["himach"], **record["versions"]}
    others = [
        {
            "@id": f"{_page(name)}#{quote(version)}",
            "@type": "SoftwareApplication",
            "name": name,
            "url": _page(name),
            "softwareVersion": version,
        }
        for name, version in versions.items()
        if version
    ]
    # Runs of one himach may have had others of what it needs.
    himach = {
        **others[0],
        "@id": f"{others[0]['@id']}+" + "+".join(quote(one["softwareVersion"]) for one in others[1:]),
    }
    return [{**himach, "softwareRequirements": [_link(one["@id"]) for one in others[1:]]}, *others[1:]]


def _page(software: str) -> str:
    return SOFTWARE.get(software, f"pkg:pypi/{quote(software.lower())}")


def _data(run: BundledRun) -> Iterable[Entity]:
    """Give the trajectories and topologies, which are not in the bundle, by what tells them from others."""
    record = run.record
    members = record.get("ensemble") or [{"name": "", **record, "fingerprint": record["dataset"]["fingerprint"]}]
    for number, member in enumerate(members, 1):
        of = f" of {member['name']}" if member["name"] else ""
        names = ", ".join(os.path.basename(path) for path in member["trajectory"])
        yield {
            "@id": f"#{run.name}/trajectory-{number}",
            "@type": "CreativeWork",
            "name": f"Trajectory{of}: {names}",
            "description": f"{record['dataset']['frames']} frames of {record['dataset']['atoms']} atoms"
            + (", with those of the other members" if of else ""),
            "identifier": str(member.get("fingerprint")),
        }
    for number, path in enumerate(sorted(topologies(record)), 1):
        yield {
            "@id": f"#{run.name}/topology-{number}",
            "@type": "CreativeWork",
            "name": f"Topology: {os.path.basename(path)}",
            **({"identifier": record["digests"][path]} if path in record["digests"] else {}),
        }


def _parameters(run: BundledRun) -> Iterable[Entity]:
    """Give the parameters of the analyses and of their later stages."""
    for number, entry in enumerate(run.record["analyses"], 1):
        stage: Mapping[str, Any] | None = entry
        depth = 0
        while stage is not None:
            for name, value in stage["parameters"].items():
                yield {
                    "@id": f"#{run.name}/{number}.{depth}.{quote(name)}",
                    "@type": "PropertyValue",
                    "name": f"{stage['name']}.{name}",
                    "value": value if isinstance(value, str | int | float) else json.dumps(value, ensure_ascii=False),
                }
            stage, depth = stage.get("then"), depth + 1


def _file(name: str, member: Member) -> Entity:
    suffix = PurePosixPath(name).suffix
    kind = KINDS.get(suffix, "application/octet-stream")
    entity: Entity = {
        "@id": identifier(name),
        "@type": "File",
        "name": PurePosixPath(name).name,
        "contentSize": str(member.size),
        "encodingFormat": kind,
        "sha256": member.digest,
    }
    if PurePosixPath(name).name == RECORD:
        entity["description"] = "The record of the run: what was asked for, and what it did"
    if suffix == ".py":
        entity |= {"description": "Code that a run imported", "programmingLanguage": "Python"}
    return entity


def _action_of(run: BundledRun) -> str:
    return f"#{quote(run.name)}"


def _link(name: str) -> Entity:
    return {"@id": name}


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
