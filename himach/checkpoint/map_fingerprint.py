"""What makes one map: `map_fingerprint()`; pairs that an earlier run kept are used where `differences()` finds none.

A fingerprint consists of named digests: of all own modules that the analysis needs, of the globals that their functions
use, of parameters, of what setup() left, of the topology and the trajectory; and of versions of installed packages.
What has no digest that a later run could find again is never the same.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from himach.analysis import Analysis
from himach.checkpoint.sources import source_digest, sources, versions
from himach.files import content_digest
from himach.io.dataset.origin_stamp import OriginStamp, digest
from himach.map_state import own_classes, reachable_values
from himach.parameters import recorded
from himach.selection import Selected
from himach.state_hash import ANY, StateHasher, topology_digest

if TYPE_CHECKING:
    from MDAnalysis import Universe

#: Digest, and the text by which a difference is shown; "" for none. Of a module it is its file.
Entries = dict[str, tuple[str, str]]

#: Begins the digest of what is never the same; its text is the reason.
UNSTABLE = "unstable "
#: Longest text by which a value is shown.
LONGEST = 60
#: Longest text of a parameter that may name a file.
LONGEST_PATH = 4096
#: Files in a folder that a parameter names, and their bytes, that are read.
MOST_FILES, MOST_BYTES = 1000, 1 << 30
#: Attributes that tell of the selection (or of the length of the trajectory), and what of it.
_SELECTION = frozenset({"step", "frames", "dt", "n_frames", "totaltime"})


@dataclass(frozen=True)
class MapFingerprint:
    """What makes one map."""

    parts: Mapping[str, Entries]
    dataset: OriginStamp  # stamp of the trajectory

    @property
    def unstable(self) -> dict[str, str]:
        """What no later run will find to be the same, by name, each with the reason."""
        return {
            name: text
            for values in self.parts.values()
            for name, (digest, text) in values.items()
            if digest.startswith(UNSTABLE)
        }

    def to_json(self) -> dict[str, Any]:
        """Return it as values that JSON holds."""
        return {"parts": self.parts, "dataset": self.dataset.encode().decode()}

    @classmethod
    def from_json(cls, values: Any) -> MapFingerprint:
        """Return the fingerprint that `to_json` gave; raises ValueError if it is damaged, or of another version."""
        try:
            dataset = OriginStamp.parse(values["dataset"].encode())
            parts = {
                str(kind): {str(name): (str(digest), str(text)) for name, (digest, text) in entries.items()}
                for kind, entries in values["parts"].items()
            }
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError("this is no map's fingerprint") from error
        if dataset is None:
            raise ValueError("this is the fingerprint of a map that another version of himach made")
        return cls(parts, dataset)


def map_fingerprint(
    analysis: Analysis,
    universe: Universe,
    *,
    dataset: OriginStamp,
    frames: Selected,
    steps: Mapping[str, Any] | None = None,
) -> MapFingerprint:
    """Return what makes the map of an analysis. On the first rank."""
    values = _Values(analysis, universe)
    parameters = {parameter.attribute for parameter in analysis.parameters().values()}
    parts: dict[str, Entries] = {kind: {} for kind in ("code", "globals", "state")}
    for item in reachable_values(analysis, universe, values.hasher):
        text = values.text(item.value)
        if item.kind not in ("state", "computed") or item.name not in parameters:
            parts[item.kind if item.kind in parts else "state"][item.label] = text
    names = values.hasher.names
    parts["code"]["what map() yields"] = ("rows" if analysis.yields_rows() else "pairs", "")
    parts |= {
        "modules": sources(own_classes(analysis)[0].__module__),
        "parameters": {name: values.text(recorded(value)) for name, value in analysis.settings().items()},
        "files": dict(_files(analysis)),
        "keywords": dict(_keywords(dataset)),
        "topology": {"topology": (topology_digest(universe._topology), "")},
        "steps": {name: _digest_text(value) for name, value in (steps or {}).items()},
        "selection": dict(_selection(names, analysis, dataset, frames)),
        "versions": {name: (version, version) for name, version in versions().items()},
    }
    return MapFingerprint({kind: entries for kind, entries in parts.items() if entries}, dataset)


def differences(then: MapFingerprint, now: MapFingerprint) -> list[str]:
    """Return what is different, a sentence each; nothing if pairs of one map are those of the other."""
    sentences = [sentence for kind in _MESSAGES if kind != "state" for sentence in _changes(kind, then, now)]
    sentences += _data_changes(then.dataset, now.dataset)
    return list(dict.fromkeys(sentences or _changes("state", then, now)))  # which is another because something else is


# -- what it is made of -----------------------------------------------------------------------------------------------


class _Values:
    """Digests of what this process found, which a later run can find again."""

    def __init__(self, analysis: Analysis, universe: Universe) -> None:
        trajectory = universe.trajectory
        named = [("self", analysis), ("universe", universe), ("trajectory", trajectory), ("ts", trajectory.ts)]
        self.hasher = StateHasher(named, homes=[cls.__module__ for cls in own_classes(analysis)])

    def text(self, value: Any) -> tuple[str, str]:
        """Return hash and text of a value; what no later run can find again gets a hash that is never the same."""
        try:
            digest, text = self.hasher.digest(value), repr(value) if _is_printable(value) else ""
        except Exception:  # whatever somebody's class raises
            kind = type(value)
            return UNSTABLE + secrets.token_hex(8), f"{kind.__module__}.{kind.__qualname__}"
        return digest, text if len(text) <= LONGEST else ""


def _is_printable(value: Any) -> bool:
    """Tell whether a value has a text that is short and the same in every process."""
    if isinstance(value, dict):
        value = [*value.keys(), *value.values()]
    if type(value) in (list, tuple):
        return len(value) <= LONGEST and all(map(_is_printable, value))
    return type(value) in (int, float, complex, bool, str, bytes, type(None), range)


def _digest_text(value: Any) -> tuple[str, str]:
    text = repr(value)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:40], text if len(text) <= 200 else ""


def _keywords(dataset: OriginStamp) -> Iterator[tuple[str, tuple[str, str]]]:
    """Give the keywords on which frames depend; the format counts as it was found to be."""
    for name, value in json.loads(dataset.keywords).items():
        if name != "format":
            yield name, _digest_text(value)
    yield "format", _digest_text(sorted(set(dataset.kinds)))


def _files(analysis: Analysis) -> Iterator[tuple[str, tuple[str, str]]]:
    """Give the content of files that parameters name: also as ``~/f``, by a folder, or by all but the suffix."""
    for name, value in analysis.settings().items():
        for text in value if isinstance(value, list) else [value]:
            if not isinstance(text, str) or not 0 < len(text) < LONGEST_PATH or "\0" in text:
                continue
            path = os.path.expanduser(text)
            if os.path.isfile(path):
                yield f"{text} (parameter {name})", (content_digest(path), "")
            elif files := _files_beneath(path):
                size = sum(map(os.path.getsize, files))
                small = len(files) <= MOST_FILES and size <= MOST_BYTES
                digests = [f"{os.path.relpath(file, path)} {content_digest(file)}" for file in files if small]
                digest = _digest_text(digests)[0] if small else UNSTABLE + secrets.token_hex(8)
                yield f"{text} (parameter {name})", (digest, "" if small else f"a folder of {len(files):,} files")


def _files_beneath(path: str) -> list[str]:
    """Return the files in a folder and in those within, or those whose names go on after a path with a suffix."""
    if os.path.isdir(path):
        paths = [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names]
    else:
        paths = glob.glob(f"{glob.escape(path)}.*")
    return sorted(file for file in paths if os.path.isfile(file))


def _selection(
    attributes: set[str], analysis: Analysis, dataset: OriginStamp, frames: Selected
) -> Iterator[tuple[str, tuple[str, str]]]:
    """Give what of the selection map() reads, and of the length of the trajectory."""
    used = _SELECTION if ANY in attributes else _SELECTION & attributes
    used -= getattr(type(analysis), "of_one_frame", frozenset())  # see `himach.adapted.Adapted`
    if {"trajectory", "len"} <= attributes:
        used |= {"n_frames"}
    values = {
        "step": ("frame.step", (frames.start, frames.step) if isinstance(frames, range) else frames),
        "frames": ("self.frames", frames),
        "dt": ("dt", (analysis.dt, dataset.timestep)),
        "n_frames": ("n_frames", dataset.n_frames),
        "totaltime": ("totaltime", dataset.n_frames),
    }
    for name in sorted(used):
        label, value = values[name]
        yield label, _digest_text(value)


# -- what is said of it -----------------------------------------------------------------------------------------------


#: What is said of a thing of each kind that is another, by its name, and its text then and now.
_MESSAGES = {
    "versions": "{name} {before} is now {after}",
    "modules": "",
    "code": "{name} was changed",
    "globals": "{name} is now {after}",
    "parameters": "{name} {before} is now {after}",
    "files": "{name} has another content",
    "keywords": "the universe keyword {name} {before} is now {after}",
    "topology": "the topology is another",
    "steps": "--{name} {before} is now {after}",
    "selection": "map() uses {name}, and the selection is another",
    "state": "{name} is another after setup()",
}
#: Digest and text of what is not there; a keyword that is not given is None.
_NOTHING = ("", "None")


def _changes(kind: str, then: MapFingerprint, now: MapFingerprint) -> Iterator[str]:
    """Give a sentence for each thing of a kind that is another."""
    old, new = then.parts.get(kind, {}), now.parts.get(kind, {})
    for name in sorted(old.keys() | new.keys()):
        (first, before), (last, after) = old.get(name, _NOTHING), new.get(name, _NOTHING)
        reasons = [text for digest, text in ((first, before), (last, after)) if digest.startswith(UNSTABLE)]
        if reasons:
            yield f"{name} cannot be compared with that of another run ({reasons[0]})"
        elif kind == "modules":
            # What else a process has loaded says nothing; what was loaded then may be later.
            if first and first != (last or source_digest(before)):
                display_name = name if name == "the script" else os.path.basename(before)
                yield f"{display_name} was changed" if last or os.path.exists(before) else f"{display_name} is gone"
        elif kind == "versions" and not (first and last):
            continue
        elif not (first and last) and kind in ("code", "globals", "parameters"):
            yield f"{name} is {'gone' if first else 'new'}"
        elif first != last and (not before or not after) and "{after}" in _MESSAGES[kind]:
            yield f"{name} is another"
        elif first != last:
            yield _MESSAGES[kind].format(name=name, before=before, after=after)


def _data_changes(then: OriginStamp, now: OriginStamp) -> list[str]:
    if then.n_atoms != now.n_atoms:
        return [f"the trajectory had {then.n_atoms} atoms, and has {now.n_atoms}"]
    now = replace(now, keywords=then.keywords)  # which are compared by their names
    if not then.files or not now.files:  # pushed
        same = (then.kinds, then.content, then.first_frame) == (now.kinds, now.content, now.first_frame)
        return [] if same else ["the trajectory is another"]
    try:
        same = then.compare(now) != "changed" or _is_continued(then, now)
    except OSError as error:
        return [f"the trajectory is not as it was, and cannot be compared ({error.strerror or error})"]
    return [] if same else ["the trajectory has another content"]


def _is_continued(then: OriginStamp, now: OriginStamp) -> bool:
    """Tell whether a trajectory of several files begins with all of the earlier one, frame by frame."""
    n_files, n_parts = len(then.files), len(then.part_frames)
    if n_files >= len(now.files) or n_files != n_parts or then.part_frames != now.part_frames[:n_parts]:
        return False
    first_files = now.files[:n_files]
    if then.files == first_files:
        return True
    return [old.size for old in then.files] == [new.size for new in first_files] and digest(first_files) == then.content
