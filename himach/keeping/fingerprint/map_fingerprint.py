"""What makes one map: `map_fingerprint()`; pairs that an earlier run kept are used where `differences()` finds none.

A fingerprint consists of named digests: of all own modules that the analysis needs, of the globals that their functions
use, of parameters, of what setup() left, of the topology and the trajectory; and of versions of installed packages.
What has no digest that a later run could find again is never the same.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from himach.analysis import Analysis
from himach.io.dataset.origin_content import digest
from himach.io.dataset.origin_stamp import OriginStamp
from himach.keeping.fingerprint.code_fingerprint import UNSTABLE, CodeFingerprint, Found
from himach.keeping.fingerprint.dependencies import content_digest, versions
from himach.selection import Selected
from himach.value_digest import topology_digest

if TYPE_CHECKING:
    from MDAnalysis import Universe

__all__ = ["MapFingerprint", "differences", "map_fingerprint"]

#: Longest text of a parameter that may name a file.
LONGEST_PATH = 4096
#: Attributes that tell of the selection (or of the length of the trajectory), and what of it.
_SELECTION = frozenset({"step", "frames", "dt", "n_frames", "totaltime"})


@dataclass(frozen=True)
class MapFingerprint:
    """What makes one map.

    Attributes
    ----------
    parts
        Of each kind (``code``, ``globals``, ``parameters``, ...) digest and text of each thing, by its name.
    dataset
        Stamp of the trajectory.
    """

    parts: Mapping[str, Found]
    dataset: OriginStamp

    @property
    def unstable(self) -> dict[str, str]:
        """What no later run will find to be the same, by name, each with the reason."""
        return {
            name: text
            for found in self.parts.values()
            for name, (digest, text) in found.items()
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
                str(kind): {str(name): (str(digest), str(text)) for name, (digest, text) in found.items()}
                for kind, found in values["parts"].items()
            }
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError("this is no map's fingerprint") from error
        if dataset is None:
            raise ValueError("this is the fingerprint of a map that another version of himach made")
        return cls(parts, dataset)


def map_fingerprint(
    analysis: Analysis, universe: Universe, *, dataset: OriginStamp, frames: Selected
) -> MapFingerprint:
    """Return what makes the map of an analysis. On the first rank.

    Parameters
    ----------
    analysis
        After setup() and atoms(), before map(): the first stage of a chain.
    universe
        Its own, as setup() left it.
    dataset
        Stamp of the trajectory as it is.
    frames
        The selected frame numbers.
    """
    found = CodeFingerprint(analysis, universe)
    parts = {
        "code": found.code,
        "globals": found.globals,
        "parameters": found.parameters,
        "files": dict(_files(analysis)),
        "state": found.state,
        "keywords": dict(_keywords(dataset)),
        "topology": {"topology": (topology_digest(universe._topology), "")},
        "selection": dict(_selection(found.attributes, analysis, dataset, frames)),
        "versions": {name: (version, version) for name, version in versions().items()},
    }
    return MapFingerprint({kind: found for kind, found in parts.items() if found}, dataset)


def differences(then: MapFingerprint, now: MapFingerprint) -> list[str]:
    """Return what is different, a sentence each; nothing if pairs of one map are those of the other."""
    told = [sentence for kind in _SAID if kind != "state" for sentence in _told(kind, then, now)]
    told += _data(then.dataset, now.dataset)
    return list(dict.fromkeys(told or _told("state", then, now)))  # which is another because something else is


# -- what it is made of -----------------------------------------------------------------------------------------------


def _shown(value: Any) -> tuple[str, str]:
    text = repr(value)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:40], text if len(text) <= 200 else ""


def _keywords(dataset: OriginStamp) -> Iterator[tuple[str, tuple[str, str]]]:
    """Give the keywords on which frames depend; the format counts as it was found to be."""
    for name, value in json.loads(dataset.keywords).items():
        if name != "format":
            yield name, _shown(value)
    yield "format", _shown(sorted(set(dataset.kinds)))


def _files(analysis: Analysis) -> Iterator[tuple[str, tuple[str, str]]]:
    """Give the content of files that parameters name."""
    for name, value in analysis.settings().items():
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and 0 < len(text) < LONGEST_PATH and "\0" not in text and os.path.isfile(text):
                yield f"{text} (parameter {name})", (content_digest(text), "")


def _selection(
    attributes: set[str], analysis: Analysis, dataset: OriginStamp, frames: Selected
) -> Iterator[tuple[str, tuple[str, str]]]:
    """Give what of the selection map() reads, and of the length of the trajectory."""
    used = _SELECTION & attributes
    used -= getattr(type(analysis), "of_one_frame", frozenset())  # see `himach.adapted.Adapted`
    if {"trajectory", "len"} <= attributes:
        used |= {"n_frames"}
    of = {
        "step": ("frame.step", (frames.start, frames.step) if isinstance(frames, range) else frames),
        "frames": ("self.frames", frames),
        "dt": ("dt", (analysis.dt, dataset.timestep)),
        "n_frames": ("n_frames", dataset.n_frames),
        "totaltime": ("totaltime", dataset.n_frames),
    }
    for name in sorted(used):
        label, value = of[name]
        yield label, _shown(value)


# -- what is said of it -----------------------------------------------------------------------------------------------


#: What is said of a thing of each kind that is another, by its name, and its text then and now.
_SAID = {
    "versions": "{name} {before} is now {after}",
    "code": "{name} was changed",
    "globals": "{name} is now {after}",
    "parameters": "{name} {before} is now {after}",
    "files": "{name} has another content",
    "keywords": "the universe keyword {name} {before} is now {after}",
    "topology": "the topology is another",
    "selection": "map() uses {name}, and the selection is another",
    "state": "{name} is another after setup()",
}
#: Digest and text of what is not there; a keyword that is not given is None.
_NOTHING = ("", "None")


def _told(kind: str, then: MapFingerprint, now: MapFingerprint) -> Iterator[str]:
    """Give a sentence for each thing of a kind that is another."""
    old, new = then.parts.get(kind, {}), now.parts.get(kind, {})
    for name in sorted(old.keys() | new.keys()):
        (first, before), (last, after) = old.get(name, _NOTHING), new.get(name, _NOTHING)
        reasons = [text for found, text in ((first, before), (last, after)) if found.startswith(UNSTABLE)]
        if reasons:
            yield f"{name} cannot be compared with that of another run ({reasons[0]})"
        elif kind == "versions" and not (first and last):
            continue  # what else a process has loaded says nothing
        elif not (first and last) and kind in ("code", "globals", "parameters"):
            yield f"{name} is {'gone' if first else 'new'}"
        elif first != last and (not before or not after) and "{after}" in _SAID[kind]:
            yield f"{name} is another"
        elif first != last:
            yield _SAID[kind].format(name=name, before=before, after=after)


def _data(then: OriginStamp, now: OriginStamp) -> list[str]:
    if then.n_atoms != now.n_atoms:
        return [f"the trajectory had {then.n_atoms} atoms, and has {now.n_atoms}"]
    now = replace(now, keywords=then.keywords)  # which are compared by their names
    if not then.files or not now.files:  # pushed
        same = (then.kinds, then.content, then.sketch, then.files) == (now.kinds, now.content, now.sketch, now.files)
        return [] if same else ["the trajectory is another"]
    try:
        same = then.compare(now) != "changed" or _longer(then, now)
    except OSError as error:
        return [f"the trajectory is not as it was, and cannot be compared ({error.strerror or error})"]
    return [] if same else ["the trajectory has another content"]


def _longer(then: OriginStamp, now: OriginStamp) -> bool:
    """Tell whether a trajectory of several files begins with all of the earlier one, frame by frame."""
    n_files, n_parts = len(then.files), len(then.part_frames)
    if n_files >= len(now.files) or n_files != n_parts or then.part_frames != now.part_frames[:n_parts]:
        return False
    begins = now.files[:n_files]
    if then.files == begins:
        return True
    return [old.size for old in then.files] == [new.size for new in begins] and digest(begins) == then.content
