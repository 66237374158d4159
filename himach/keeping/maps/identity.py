"""What makes one map: `map_identity()`; pairs that an earlier run kept are used where `differences()` finds none.

The identity consists of named digests: of code (see `reach`), constants, parameters, what setup() left for map(),
topology and trajectory. What a map() reads by itself from files that no parameter names is not part of it, nor are
installed packages other than MDAnalysis.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from himach.analysis import Analysis
from himach.io.dataset.origin_content import digest
from himach.io.dataset.origin_stamp import OriginStamp
from himach.keeping.maps.reach import Found, Reach, content_digest
from himach.keeping.maps.state import Values, topology_digest
from himach.parameters import recorded
from himach.selection import Selected

if TYPE_CHECKING:
    from MDAnalysis import Universe

    from himach.frame import RawFrame

__all__ = ["FORMAT", "MapIdentity", "differences", "map_identity"]

#: Of what kernels compute, and of what is kept: another one means another map.
FORMAT = 1
#: Longest text of a parameter that may name a file.
LONGEST_PATH = 4096
#: Attributes that tell of the selection (or of the length of the trajectory), and what of it.
_SELECTION = frozenset({"step", "frames", "dt", "n_frames", "totaltime"})


@dataclass(frozen=True)
class MapIdentity:
    """What makes one map.

    Attributes
    ----------
    parts
        Of each kind (``code``, ``constants``, ``parameters``, ...) digest and text of each thing, by its name.
    dataset
        Stamp of the trajectory.
    """

    parts: Mapping[str, Found]
    dataset: OriginStamp

    def to_json(self) -> dict[str, Any]:
        """Return it as values that JSON holds."""
        return {"parts": self.parts, "dataset": self.dataset.encode().decode()}

    @classmethod
    def from_json(cls, values: Any) -> MapIdentity:
        """Return the identity that `to_json` gave; raises ValueError if it is damaged, or of another version."""
        try:
            dataset = OriginStamp.parse(values["dataset"].encode())
            parts = {
                str(kind): {str(name): (str(digest), str(text)) for name, (digest, text) in found.items()}
                for kind, found in values["parts"].items()
            }
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError("this is no map's identity") from error
        if dataset is None:
            raise ValueError("this is the identity of a map that another version of himach made")
        return cls(parts, dataset)


def map_identity(
    analysis: Analysis, universe: Universe, *, dataset: OriginStamp, frames: Selected, first: RawFrame
) -> MapIdentity:
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
    first
        The first of them.
    """
    import MDAnalysis

    reach = Reach(analysis, universe)
    values = Values(lambda thing: f"{thing.__module__}.{thing.__qualname__}", universe)
    opaque = dict(reach.opaque)
    trajectory = universe.trajectory
    changed = [*trajectory.transformations, *trajectory._auxs.values()]
    if changed:
        opaque["universe.trajectory"] = type(changed[0]).__name__
    parts = {
        "code": reach.code,
        "constants": reach.constants,
        "parameters": dict(_parameters(analysis, values)),
        "files": dict(_files(analysis)),
        "state": reach.state,
        "first": dict.fromkeys(sorted(opaque), _of_frame(first)) if opaque else {},
        "keywords": dict(_keywords(dataset)),
        "topology": {"topology": (topology_digest(universe._topology), "")},
        "selection": dict(_selection(reach, analysis, dataset, frames, bool(changed))),
        "versions": {
            "himach's format": _shown(FORMAT),
            "MDAnalysis": _shown(int(MDAnalysis.__version__.partition(".")[0])),
        },
    }
    return MapIdentity({kind: found for kind, found in parts.items() if found}, dataset)


def differences(then: MapIdentity, now: MapIdentity) -> list[str]:
    """Return what is different, a sentence each; nothing if pairs of one map are those of the other."""
    told = [*_versions(then, now), *_code(then, now), *_other(then, now, _TELL), *_data(then.dataset, now.dataset)]
    return list(dict.fromkeys(told or _other(then, now, _TELL_LAST)))


# -- what it is made of -----------------------------------------------------------------------------------------------


def _shown(value: Any) -> tuple[str, str]:
    text = repr(value)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:40], text if len(text) <= 200 else ""


def _parameters(analysis: Analysis, values: Values) -> Iterator[tuple[str, tuple[str, str]]]:
    for name, value in analysis.settings().items():
        yield name, (values.digest(recorded(value)).hex(), _shown(recorded(value))[1])


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


def _of_frame(first: RawFrame) -> tuple[str, str]:
    result = hashlib.sha256(repr((first.number, first.time)).encode())
    result.update(first.positions.tobytes())
    return result.hexdigest()[:40], f"{first.number}"


def _selection(
    reach: Reach, analysis: Analysis, dataset: OriginStamp, frames: Selected, changed: bool
) -> Iterator[tuple[str, tuple[str, str]]]:
    """Give what of the selection map() reads, and of the length of the trajectory."""
    used = _SELECTION & reach.attributes if not changed else _SELECTION
    used -= getattr(type(analysis), "of_one_frame", frozenset())  # see `himach.adapted.Adapted`
    if {"trajectory", "len"} <= reach.attributes:
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


def _code(then: MapIdentity, now: MapIdentity) -> list[str]:
    old, new = then.parts.get("code", {}), now.parts.get("code", {})
    told = [f"{name} was changed" for name in sorted(old.keys() & new.keys()) if old[name][0] != new[name][0]]
    if not told:  # else a function that was changed calls others
        told += [f"{name} is gone" for name in sorted(old.keys() - new.keys())]
        told += [f"{name} is new" for name in sorted(new.keys() - old.keys())]
    return told


def _versions(then: MapIdentity, now: MapIdentity) -> list[str]:
    old, new = then.parts.get("versions", {}), now.parts.get("versions", {})
    return [
        f"{name} {old[name][1] if name in old else '?'} is now {new[name][1] if name in new else '?'}"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    ]


def _constant(name: str, before: str | None, after: str | None) -> str:
    if before is None or after is None:
        return f"{name} is {'new' if before is None else 'gone'}"
    return f"{name} is now {after}" if after and before != after else f"{name} is another"


def _parameter(name: str, before: str | None, after: str | None) -> str:
    if before is None or after is None:
        return f"the parameter {name} is {'new' if before is None else 'gone'}"
    return f"{name} {before} is now {after}" if before and after else f"{name} is another"


def _first(name: str, before: str | None, after: str | None) -> str:
    if before is None or after is None:
        return f"{name} is another, which cannot be looked into"
    return f"{name} may depend on the first frame selected, which was {before} and is {after}"


#: What is said of a thing, by its name, and its text then and now; None where there was none.
_Tell = Callable[[str, str | None, str | None], str]

_TELL: dict[str, _Tell] = {
    "constants": _constant,
    "parameters": _parameter,
    "files": lambda name, before, after: f"{name} has another content",
    "keywords": lambda name, before, after: f"the universe keyword {name} {before or 'None'} is now {after or 'None'}",
    "topology": lambda name, before, after: "the topology is another",
    "selection": lambda name, before, after: f"map() uses {name}, and the selection is another",
}
#: What is another because something else is, as a rule.
_TELL_LAST: dict[str, _Tell] = {
    "state": lambda name, before, after: f"{name} is another after setup()",
    "first": _first,
}


def _other(then: MapIdentity, now: MapIdentity, tell: Mapping[str, _Tell]) -> list[str]:
    told = []
    for kind, sentence in tell.items():
        old, new = then.parts.get(kind, {}), now.parts.get(kind, {})
        for name in sorted(old.keys() | new.keys()):
            before, after = old.get(name), new.get(name)
            if before is None or after is None or before[0] != after[0]:
                told.append(sentence(name, None if before is None else before[1], None if after is None else after[1]))
    return told


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
