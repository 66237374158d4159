"""The identity of a map: `map_fingerprint()`; pairs of an earlier run are reused if `differences()` finds none.

A value without a reproducible digest always counts as changed.
"""

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
from himach.io.datasets.origin_stamp import OriginStamp, digest
from himach.map_state import own_classes, reachable_values
from himach.parameters import recorded
from himach.selection import Selected
from himach.state_hash import ANY, StateHasher, topology_digest

if TYPE_CHECKING:
    from MDAnalysis import Universe

#: By name: a digest and the text shown for a difference ("" for none); for a module, the text is its file.
Entries = dict[str, tuple[str, str]]

#: Prefix of digests that never match; their text is the reason.
UNSTABLE = "unstable "
#: Longest text shown for a value.
LONGEST = 60
#: Longest text of a parameter that may name a file.
LONGEST_PATH = 4096
#: Most files, and bytes, that are read from a folder named by a parameter.
MOST_FILES, MOST_BYTES = 1000, 1 << 30
#: Attributes that expose the selection or the length of the trajectory.
_SELECTION = frozenset({"step", "frames", "dt", "n_frames", "totaltime"})


@dataclass(frozen=True)
class MapFingerprint:
    """The identity of a map."""

    parts: Mapping[str, Entries]
    dataset: OriginStamp  # stamp of the trajectory

    @property
    def unstable(self) -> dict[str, str]:
        """Names of what never matches in a later run, each with the reason."""
        return {
            name: text
            for values in self.parts.values()
            for name, (digest, text) in values.items()
            if digest.startswith(UNSTABLE)
        }

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON-compatible values."""
        return {"parts": self.parts, "dataset": self.dataset.encode().decode()}

    @classmethod
    def from_json(cls, values: Any) -> "MapFingerprint":
        """Return the fingerprint from `to_json`; raise ValueError if it is damaged or of another version."""
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
    universe: "Universe",
    *,
    dataset: OriginStamp,
    frames: Selected,
    steps: Mapping[str, Any] | None = None,
) -> MapFingerprint:
    """Return the fingerprint of an analysis's map; called on the first rank."""
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
    """Return the differences, a sentence each; none if both maps give the same pairs."""
    sentences = [sentence for kind in _MESSAGES if kind != "state" for sentence in _changes(kind, then, now)]
    sentences += _data_changes(then.dataset, now.dataset)
    return list(dict.fromkeys(sentences or _changes("state", then, now)))  # state follows from the rest


class _Values:
    """Digests that a later run can reproduce."""

    def __init__(self, analysis: Analysis, universe: "Universe") -> None:
        trajectory = universe.trajectory
        named = [("self", analysis), ("universe", universe), ("trajectory", trajectory), ("ts", trajectory.ts)]
        self.hasher = StateHasher(named, homes=[cls.__module__ for cls in own_classes(analysis)])

    def text(self, value: Any) -> tuple[str, str]:
        """Return digest and text of a value; the digest never matches if a later run cannot reproduce it."""
        try:
            digest, text = self.hasher.digest(value), repr(value) if _is_printable(value) else ""
        except Exception:  # a user's class may raise anything
            kind = type(value)
            return UNSTABLE + secrets.token_hex(8), f"{kind.__module__}.{kind.__qualname__}"
        return digest, text if len(text) <= LONGEST else ""


def _is_printable(value: Any) -> bool:
    """Return whether a value's text is short and the same in every process."""
    if isinstance(value, dict):
        value = [*value.keys(), *value.values()]
    if type(value) in (list, tuple):
        return len(value) <= LONGEST and all(map(_is_printable, value))
    return type(value) in (int, float, complex, bool, str, bytes, type(None), range)


def _digest_text(value: Any) -> tuple[str, str]:
    text = repr(value)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:40], text if len(text) <= 200 else ""


def _keywords(dataset: OriginStamp) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield the keywords on which frames depend; for the format, what was detected."""
    for name, value in json.loads(dataset.keywords).items():
        if name != "format":
            yield name, _digest_text(value)
    yield "format", _digest_text(sorted(set(dataset.kinds)))


def _files(analysis: Analysis) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield digests of files that parameters name, also as ``~/f``, by a folder, or without the suffix."""
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
    """Return all files below a folder, or those named like the path plus a suffix."""
    if os.path.isdir(path):
        paths = [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names]
    else:
        paths = glob.glob(f"{glob.escape(path)}.*")
    return sorted(file for file in paths if os.path.isfile(file))


def _selection(
    attributes: set[str], analysis: Analysis, dataset: OriginStamp, frames: Selected
) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield digests of what map() reads of the selection and of the trajectory's length."""
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


#: The message for a difference of each kind, by its name, and its text then and now.
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
#: Digest and text of a missing entry; a keyword that is not given is None.
_NOTHING = ("", "None")


def _changes(kind: str, then: MapFingerprint, now: MapFingerprint) -> Iterator[str]:
    """Yield a sentence for each difference of a kind."""
    old, new = then.parts.get(kind, {}), now.parts.get(kind, {})
    for name in sorted(old.keys() | new.keys()):
        (first, before), (last, after) = old.get(name, _NOTHING), new.get(name, _NOTHING)
        reasons = [text for digest, text in ((first, before), (last, after)) if digest.startswith(UNSTABLE)]
        if reasons:
            yield f"{name} cannot be compared with that of another run ({reasons[0]})"
        elif kind == "modules":
            # Additional loaded modules do not matter; a module loaded then may be loaded later now.
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
    now = replace(now, keywords=then.keywords)  # keywords are compared by name
    if not then.files or not now.files:  # pushed
        same = (then.kinds, then.content, then.first_frame) == (now.kinds, now.content, now.first_frame)
        return [] if same else ["the trajectory is another"]
    try:
        same = then.compare(now) != "changed" or _is_continued(then, now)
    except OSError as error:
        return [f"the trajectory is not as it was, and cannot be compared ({error.strerror or error})"]
    return [] if same else ["the trajectory has another content"]


def _is_continued(then: OriginStamp, now: OriginStamp) -> bool:
    """Return whether a trajectory of several files starts with all frames of the earlier one."""
    n_files, n_parts = len(then.files), len(then.part_frames)
    if n_files >= len(now.files) or n_files != n_parts or then.part_frames != now.part_frames[:n_parts]:
        return False
    first_files = now.files[:n_files]
    if then.files == first_files:
        return True
    return [old.size for old in then.files] == [new.size for new in first_files] and digest(first_files) == then.content
