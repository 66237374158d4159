"""Keywords of MDAnalysis: `check()` refuses those that none of its readers and parsers knows.

MDAnalysis accepts any keyword silently, so a mistyped one has no effect.
"""

import difflib
import inspect
import math
import numbers
import os
from collections.abc import Iterable, Mapping
from typing import Any

from himach.errors import UsageError
from himach.io.trajectories.formats import FORMATS
from himach.io.trajectories.h5md.h5md_file import H5mdFile
from himach.io.trajectories.urls.byte_file import ByteFile
from himach.io.trajectories.urls.url_names import is_url, local_file_name
from himach.io.trajectories.xdr_header import sniff

#: Keywords of MDAnalysis.Universe for the topology, not for the trajectory.
TOPOLOGY_KEYWORDS = frozenset(
    {"topology_format", "to_guess", "force_guess", "context", "guess_bonds", "vdwradii", "fudge_factor", "lower_bound"}
)
#: Keywords of MDAnalysis.Universe that himach refuses, and what to do instead.
REFUSED_KEYWORDS = {
    "all_coordinates": "give each file as a trajectory",
    "continuous": "himach drops the frames that a restart wrote again by itself",
    "in_memory": "himach reads each frame once and keeps none",
    "in_memory_step": "use step",
    "transformations": "add them in setup(): universe.trajectory.add_transformations(...)",
}
#: Keywords of every kind of trajectory.
FRAME_KEYWORDS = frozenset({"dt", "time_offset", "format"})
#: Keywords that readers and parsers take from ``**kwargs``.
UNSIGNED = frozenset({"lengthunit", "timeunit", "atom_style", "model_offset", "force_chainids_to_segids"})
#: Those of `UNSIGNED` that are for the topology.
UNSIGNED_PARSER = frozenset({"atom_style", "force_chainids_to_segids"})


def check(keywords: Mapping[str, Any], topology: str | os.PathLike[str] | None = None) -> None:
    """Refuse unknown keywords, and invalid values."""
    for name in sorted(keywords.keys() & REFUSED_KEYWORDS.keys()):
        raise UsageError(f"the keyword {name!r} of MDAnalysis is not for himach: {REFUSED_KEYWORDS[name]}")
    _check_values(keywords)
    allowed = TOPOLOGY_KEYWORDS | FRAME_KEYWORDS | UNSIGNED | {"n_atoms"}
    if keywords.keys() <= allowed:
        return
    from MDAnalysis import _PARSERS

    parser = None if topology is None else parser_class(os.fspath(topology), keywords.get("topology_format"))
    if parser is not None and parser.__name__ == "ITPParser":  # its keywords are definitions
        return
    allowed |= _reader_names() | _names(_PARSERS.values())
    for name in sorted(keywords.keys() - allowed):
        matches = difflib.get_close_matches(name, sorted(allowed), n=1, cutoff=0.5)
        hint = f"; did you mean {matches[0]!r}?" if matches else ""
        raise UsageError(f"there is no keyword {name!r} of MDAnalysis{hint}")


def frame_names() -> frozenset[str]:
    """Return the keywords of readers, which may change frames; all others are for the topology."""
    return FRAME_KEYWORDS | (UNSIGNED - UNSIGNED_PARSER) | _reader_names()


def _reader_names() -> frozenset[str]:
    from MDAnalysis import _READERS

    return _names([*_READERS.values(), *(item.read for item in FORMATS.values() if issubclass(item.read, H5mdFile))])


def _names(classes: Iterable[Any]) -> frozenset[str]:
    names: set[str] = set()
    for base in {base for cls in classes for base in cls.__mro__[:-1]}:
        for name, skipped in (("__init__", 2), ("parse", 1)):  # self, and the file
            if name in vars(base):
                names.update(list(inspect.signature(vars(base)[name]).parameters)[skipped:])
    return frozenset(names - {"kwargs", "args"})


def reader_class(path: str, format: Any) -> Any:  # noqa: A002 (MDAnalysis's name)
    """Return MDAnalysis's reader class for a trajectory file; raises UsageError if there is none."""
    from MDAnalysis.core._get_readers import get_reader_for

    try:
        return get_reader_for(local_file_name(path) if is_url(path) else path, format=_file_format(path, format))
    except (ValueError, TypeError, AttributeError):
        with ByteFile(path) as file:
            sniffed = sniff(file.pread(4, 0))
        if format is None and sniffed is not None:
            return get_reader_for(path, format=sniffed)
        what = f"format {format!r} is none" if format is not None else "its suffix is that of no format"
        raise UsageError(
            f"{path}: {what} that MDAnalysis reads as a trajectory; name it by the universe keyword format, for "
            "example XTC"
        ) from None


def format_name(reader_class: Any) -> str:
    """Return the format's name of an MDAnalysis reader; empty if it has none."""
    kinds = getattr(reader_class, "format", "")
    return str(kinds if isinstance(kinds, str) else kinds[0])


def parser_class(path: str, format: Any) -> Any:  # noqa: A002 (MDAnalysis's name)
    """Return MDAnalysis's topology parser, or None if none reads more than the number of atoms."""
    from MDAnalysis import _PARSERS
    from MDAnalysis.topology.MinimalParser import MinimalParser

    try:
        file_format = _file_format(path, format)
        parser = file_format if isinstance(file_format, type) else _PARSERS.get(file_format.upper())
    except (ValueError, TypeError, AttributeError):
        return None
    return None if parser is MinimalParser else parser


def _file_format(path: str, format: Any) -> Any:  # noqa: A002 (MDAnalysis's name)
    """Return the format of a file, by its suffix if none is given.

    MDAnalysis itself first imports five packages to check whether the path is an object of one.
    """
    from MDAnalysis.lib.util import guess_format

    return guess_format(path) if format is None else format


def _check_values(keywords: Mapping[str, Any]) -> None:
    for name in ("dt", "time_offset"):
        value = keywords.get(name)
        real = value is not True and value is not False and isinstance(value, numbers.Real) and math.isfinite(value)
        if value is not None and not (real and (name != "dt" or value > 0)):
            raise UsageError(
                f"the keyword {name}={value!r} of MDAnalysis: {name} is a number of ps"
                + (" above 0" if name == "dt" else "")
            )
    for name in ("to_guess", "force_guess"):
        value = keywords.get(name)
        if value is not None and not (isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)):
            raise UsageError(f"the keyword {name}={value!r} of MDAnalysis: {name} is a list of names, as in ['bonds']")
