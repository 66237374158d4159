"""Keywords of MDAnalysis for a dataset: `check()` refuses those that neither reader nor parser of its files knows.

MDAnalysis accepts any keyword silently, so a mistyped one has no effect. Known keywords come from the signatures of
readers and parsers, and from `UNSIGNED` for those that they take from ``**kwargs``.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import inspect
import math
import numbers
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from himach.errors import HimachError, UsageError
from himach.io.trajectories.formats import FORMATS
from himach.io.trajectories.frame_directory import Manifest, find
from himach.io.trajectories.h5md.h5md_file import H5mdFile
from himach.io.trajectories.h5md.zarr_directory import ZarrDirectory, is_zarr
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
#: himach's own readers, of formats that MDAnalysis lacks or for which himach takes more keywords.
OWN_READERS: dict[str, Any] = {name: item.read for name, item in FORMATS.items() if issubclass(item.read, H5mdFile)}
#: Keywords that readers and parsers take from ``**kwargs``, by module and class; all take `FRAME_KEYWORDS` and n_atoms.
UNSIGNED = {
    "LAMMPS.DCDReader": {"lengthunit", "timeunit"},
    "LAMMPS.DATAReader": {"atom_style"},
    "LAMMPSParser.DATAParser": {"atom_style"},
    "PDB.PDBReader": {"model_offset"},
    "PDBParser.PDBParser": {"force_chainids_to_segids"},
}


def check(keywords: Mapping[str, Any], readers: Iterable[Any], parsers: Iterable[Any]) -> None:
    """Refuse keywords without a meaning for a dataset, and invalid values."""
    for name in sorted(keywords.keys() & REFUSED_KEYWORDS.keys()):
        raise UsageError(f"the keyword {name!r} of MDAnalysis is not for himach: {REFUSED_KEYWORDS[name]}")
    _check_values(keywords)
    allowed = TOPOLOGY_KEYWORDS | FRAME_KEYWORDS | {"n_atoms"}
    classes = [*readers, *parsers]
    if keywords.keys() <= allowed or any(map(_takes_any, classes)):
        return
    allowed = allowed.union(*map(keyword_names, classes))
    for name in sorted(keywords.keys() - allowed):
        _refuse(name, allowed, classes)


@functools.cache
def keyword_names(reader_or_parser: Any) -> frozenset[str]:
    """Return the keywords of a reader or parser, beside `FRAME_KEYWORDS` and n_atoms."""
    names: set[str] = set()
    for cls in reader_or_parser.__mro__[:-1]:
        names |= UNSIGNED.get(f"{cls.__module__.rpartition('.')[2]}.{cls.__name__}", set())
        for name, skipped in (("__init__", 2), ("parse", 1)):  # self, and the file
            if name in vars(cls):
                names.update(list(inspect.signature(vars(cls)[name]).parameters)[skipped:])
    return frozenset(names - {"kwargs"})


def _takes_any(reader_or_parser: Any) -> bool:
    """Return whether any keyword is allowed: an ITP file's are definitions, and a user's reader may take any."""
    init = vars(reader_or_parser).get("__init__")
    is_known = reader_or_parser.__module__.partition(".")[0] in ("MDAnalysis", "himach")
    kinds = [] if is_known or init is None else [word.kind for word in inspect.signature(init).parameters.values()]
    return reader_or_parser.__name__ == "ITPParser" or inspect.Parameter.VAR_KEYWORD in kinds


def frame_names(kinds: Iterable[str]) -> frozenset[str]:
    """Return the keywords that may change frames of these formats; all others are for the topology."""
    return FRAME_KEYWORDS.union(*map(keyword_names, find_readers(kinds)))


def find_readers(kinds: Iterable[str]) -> list[Any]:
    """Return the readers of the formats with these names."""
    from MDAnalysis import _READERS

    return [readers[kind] for kind in kinds for readers in (_READERS, OWN_READERS) if kind in readers]


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


def classes_for(
    paths: Iterable[str], topology: str | os.PathLike[str] | None, keywords: Mapping[str, Any]
) -> tuple[list[Any], list[Any]]:
    """Return the readers of files, and the parsers of their topology, given or within the files."""
    paths = list(paths)
    files = [path for path in paths if (is_url(path) and not is_zarr(path)) or os.path.isfile(path)]
    if topology is not None and not keywords.get("format") and not keywords.get("topology_format"):
        _check_places(files, os.fspath(topology))
    readers = []
    for path in files:
        with contextlib.suppress(OSError):  # opening it raises later
            reader = reader_class(path, keywords.get("format"))
            readers += [reader, *filter(None, [OWN_READERS.get(format_name(reader))])]
    readers += [ZarrDirectory for path in paths if is_zarr(path)]
    format_ = keywords.get("topology_format")
    if topology is not None:
        parsers = [parser_class(os.fspath(topology), format_)]
    else:
        parsers = [parser_class(path, format_ or keywords.get("format")) for path in files]
        parsers += [parser_class(file, format_) for path in paths if (file := _topology_file(path)) is not None]
    return readers, [parser for parser in parsers if parser is not None]


def _check_places(paths: Sequence[str], topology: str) -> None:
    """Refuse a trajectory and a topology given in each other's place."""
    if parser_class(topology, None) is not None or not any(parser_class(path, None) is not None for path in paths):
        return
    try:
        reader_class(topology, None)
    except (UsageError, OSError):
        return
    raise UsageError(
        f"{topology}, given as the topology, is a trajectory, and {paths[0]}, given as the trajectory, is a topology: "
        "put each in the other's place"
    )


def _topology_file(path: str) -> str | None:
    try:
        return None if os.path.isfile(path) else Manifest.read(find(path)).topology
    except (HimachError, OSError):
        return None


def _refuse(name: str, allowed: Iterable[str], classes: Iterable[Any]) -> None:
    matches = difflib.get_close_matches(name, sorted(allowed), n=1, cutoff=0.5)
    owners = [*sorted({cls.__name__ for cls in classes}), "Universe"]
    hint = f"; did you mean {matches[0]!r}?" if matches else ""
    raise UsageError(f"there is no keyword {name!r} of MDAnalysis for this dataset ({', '.join(owners)}){hint}")


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
