"""What was simulated, and where results come from: `system()` and `provenance()` of a run."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from himach.report.markup import Html, element, join, text
from himach.report.page.contents import scrolling
from himach.report.page.results import number
from himach.report.record_shape import as_dict
from himach.report.run_folder import RunFolder

__all__ = ["provenance", "system"]

#: Members of an ensemble that are listed.
MOST_MEMBERS = 100
#: Stages of an analysis whose parameters are listed.
MOST_STAGES = 20
#: Options that a run was asked for, where they are not as usual.
FRAMES = ("start", "stop", "step", "selected", "whole", "nojump", "center", "fit", "reference")
OPTIONS = (*FRAMES, "confidence", "equilibration")


def system(folder: RunFolder) -> Html:
    """Return what was simulated: one system, or a table of members."""
    record = folder.record
    if folder.members:
        return _members(folder)
    found = record.get("system")
    dataset = as_dict(record.get("dataset"))
    facts = list(_facts(as_dict(found))) if isinstance(found, dict) else [("atoms", dataset.get("atoms"))]
    return _list([*facts, ("frames analysed", f"{record.get('frames')} of {dataset.get('frames')}")])


def provenance(folder: RunFolder) -> Html:
    """Return by what and when the results were made, of which files, and how to make them again."""
    record = folder.record
    dataset, versions = as_dict(record.get("dataset")), as_dict(record.get("versions"))
    times, seconds = as_dict(record.get("times")), as_dict(record.get("seconds"))
    command = record.get("command")
    made = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    options = {name: record[name] for name in OPTIONS if record.get(name) not in (None, False)}
    facts: list[tuple[str, Any]] = [
        ("himach", f"{record['himach']} (with {made})" if made else record["himach"]),
        (
            "command",
            element("code", shlex.join(map(str, command))) if isinstance(command, list) else "called from Python",
        ),
        ("run", f"{times.get('start', record.get('date', ''))}, {number(seconds.get('whole')):.3g} s"),
        ("ranks", f"{record.get('ranks')} on {record.get('nodes')} node{'s' * (record.get('nodes') != 1)}"),
        ("trajectory", _paths(dataset.get("path"))),
        ("fingerprint", element("code", dataset.get("fingerprint"))),
        ("topology", _paths(record.get("topology"))),
    ]
    if options:
        facts.append(("options", ", ".join(f"{name} = {value}" for name, value in options.items())))
    analyses = [_parameters(entry.label, entry.entry) for entry in folder.analyses]
    digests = as_dict(record.get("digests"))
    listed = [
        element("tr", element("td", element("code", file)), element("td", element("code", digest)))
        for file, digest in digests.items()
    ]
    parts = [_list(facts), *analyses]
    if listed:
        head = element("tr", element("th", "file", scope="col"), element("th", "SHA-256", scope="col"))
        caption = element("caption", "Files that the results depend on beside the trajectory")
        parts.append(scrolling(element("table", caption, element("thead", head), element("tbody", *listed)), "Digests"))
    lone = [f"{one.label} ({one.entry.get('unrepeatable')})" for one in folder.analyses if not one.entry.get("source")]
    if lone:
        parts.append(element("p", f"The run cannot be repeated from its record, because of {', '.join(lone)}."))
        return join(parts)
    again = element("code", "himach run --again FOLDER/run.json --out NEW")
    parts.append(element("p", "The run is repeated by ", again, ", which leaves the same files, byte for byte."))
    return join(parts)


def _facts(found: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Give what a record says of a system, in words."""
    yield "atoms", found.get("atoms")
    residues = as_dict(found.get("residues"))
    yield "residues", ", ".join(f"{count} {kind}" for kind, count in residues.items()) or "not named by the topology"
    yield "box", _box(found.get("box"))
    times = found.get("time_ps")
    if isinstance(times, list) and len(times) == 2:
        dt = found.get("dt_ps")
        every = f", a frame every {number(dt):.6g} ps" if dt else ""
        yield "time", f"{number(times[0]):.6g} to {number(times[1]):.6g} ps{every}"


def _box(box: Any) -> str:
    if not isinstance(box, list) or len(box) != 6:
        return "none"
    sides, angles = [number(side) for side in box[:3]], [number(angle) for angle in box[3:]]
    right = all(abs(angle - 90) < 1e-3 for angle in angles)
    corners = "rectangular" if right else "angles " + ", ".join(f"{angle:.4g}°" for angle in angles)
    return " x ".join(f"{side:.4g}" for side in sides) + f" Å, {corners} (first frame)"


def _members(folder: RunFolder) -> Html:
    """Return a table of the members of an ensemble: what they are, and what came of them."""
    titles = ["member", "group", "atoms", "residues", "box", "time", "frames", "outcome"]
    head = element("tr", *(element("th", title, scope="col") for title in titles))
    rows = []
    for member in folder.members[:MOST_MEMBERS]:
        facts = dict(_facts(as_dict(member.get("system"))))
        failed = member.get("error")
        rows.append(
            element(
                "tr",
                element("th", member.get("name"), scope="row"),
                element("td", member.get("group") or ""),
                *(element("td", facts.get(title) if facts.get(title) is not None else "") for title in titles[2:6]),
                element("td", member.get("frames"), class_="number"),
                element("td", failed or "done", class_="bad" if failed else None),
            )
        )
    count = len(folder.members)
    more = f"; the first {MOST_MEMBERS} are listed" if count > MOST_MEMBERS else ""
    caption = element("caption", element("b", f"{count} members of the ensemble"), more)
    return scrolling(element("table", caption, element("thead", head), element("tbody", *rows)), "Members")


def _parameters(label: str, entry: Mapping[str, Any]) -> Html:
    """Return the parameters of an analysis, and of the stages that follow it."""
    chain = [as_dict(entry)]
    while (then := as_dict(chain[-1].get("then"))) and len(chain) < MOST_STAGES:
        chain.append(then)
    settings = {
        (name, json.dumps(value, ensure_ascii=False)): None
        for one in chain
        for name, value in as_dict(one.get("parameters")).items()
    }
    rows = [
        element("tr", element("th", name, scope="row"), element("td", element("code", value)))
        for name, value in settings
    ]
    if not rows:
        return element("p", f"{label} has no parameters.")
    caption = element("caption", "Parameters of ", element("b", label))
    return scrolling(element("table", caption, element("tbody", *rows)), f"Parameters of {label}")


def _list(facts: list[tuple[str, Any]]) -> Html:
    return element("dl", *(join([element("dt", name), element("dd", fact)]) for name, fact in facts))


def _paths(paths: Any) -> Html:
    if paths is None:
        return text("none")
    return join((element("code", path) for path in (paths if isinstance(paths, list) else [paths])), ", ")
