"""Analyses of MDAnalysis on their way to ranks: `pack()`, `unpack()`.

They travel as they are, but for readers of trajectories: in their place ranks find readers of the same frames that take
them from the node's store. The bytes go to ranks that this process starts, and back; none come from anywhere else.
"""

from __future__ import annotations

import inspect
import io
import os
import pickle
import warnings
from collections.abc import Iterable, Mapping
from copy import copy
from functools import partial
from typing import Any

from MDAnalysis.analysis.base import AnalysisBase
from MDAnalysis.coordinates.base import ReaderBase
from MDAnalysis.core._get_readers import get_reader_for

from himach.errors import AnalysisError, HimachError
from himach.launch.code_pickle import CodePickler
from himach.mdanalysis.names import SCHEME, open_url
from himach.mdanalysis.reader import HimachReader
from himach.opening.dataset import OpenDataset
from himach.runner.job_pickle import sent_by_value

__all__ = ["pack", "unpack"]

#: Formats of MDAnalysis of whose frames a store keeps all that analyses use.
FORMATS = frozenset({"XTC", "TRR", "DCD", "NCDF", "HIMACH"})
#: Arguments of readers that do not tell which frames they read.
ASIDE = frozenset({"filename", "n_atoms", "refresh_offsets", "cache", "dataset"})


def pack(things: Any, cache: str) -> bytes:
    """Return what ranks are to have, with readers of the store in place of readers of trajectories.

    Raises
    ------
    AnalysisError
        It cannot be pickled.
    """
    file = io.BytesIO()
    try:
        with sent_by_value(_coded(things)):
            _Pickler(file, cache).dump(things)
    except HimachError:
        raise
    except Exception as error:
        raise AnalysisError(f"an analysis cannot be sent to ranks: {type(error).__name__}: {error}") from error
    return file.getvalue()


def unpack(content: bytes) -> Any:
    """Return what was packed, anew at each call; on a rank that this process started, or in the process itself.

    Raises
    ------
    AnalysisError
        It cannot be rebuilt here.
    """
    try:
        return pickle.loads(content)
    except HimachError:
        raise
    except Exception as error:
        raise AnalysisError(f"an analysis cannot be rebuilt on a rank: {type(error).__name__}: {error}") from error


class _Pickler(CodePickler):
    def __init__(self, file: io.BytesIO, cache: str) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._cache = cache
        self._opened: dict[tuple[Any, ...], OpenDataset] = {}

    def reducer_override(self, obj: Any) -> Any:
        """Return how to rebuild a reader from the store; everything else is cloudpickle's."""
        if isinstance(obj, ReaderBase):
            dataset = self._dataset_of(obj)
            if dataset is not None:
                state = {
                    "ts": obj.ts,  # itself: what analyses hold of its box is to stay the box of the present frame
                    "_frame": int(getattr(obj, "_frame", obj.ts.frame)),
                    "_dt": obj.ts.dt,
                    "_auxs": obj._auxs,
                    "_transformations": obj._transformations,
                }
                return HimachReader, (*_arguments(obj, self._cache), dataset), state, None, None, _settle
        return super().reducer_override(obj)

    def _dataset_of(self, reader: ReaderBase) -> OpenDataset | None:
        """Open the dataset that a reader reads; None where ranks are to read as it does."""
        if isinstance(reader, HimachReader):
            opened: OpenDataset = copy(reader.dataset)
            return opened
        names = getattr(reader, "format", None)
        if isinstance(names, str):
            names = [names]
        if not names or not FORMATS.intersection(names) or not isinstance(reader.filename, str):
            return None
        keywords = _keywords(reader)
        if keywords is None:
            return None
        key = (os.path.abspath(reader.filename), *sorted(keywords.items()))
        if key not in self._opened:
            try:
                self._opened[key] = open_url(reader.filename, self._cache, keywords)
            except HimachError as error:
                warnings.warn(f"ranks read {reader.filename} without a cache: {error}", stacklevel=2)
                return None
        found = self._opened[key].origin
        same = (found.n_frames, found.n_atoms) == (reader.n_frames, reader.n_atoms)
        return self._opened[key] if same else None


def _arguments(reader: ReaderBase, cache: str) -> tuple[str, bool, str]:
    """Return the arguments of the reader that stands for another."""
    if isinstance(reader, HimachReader):
        return reader.filename, reader.convert_units, reader.cache
    return f"{SCHEME}{os.path.abspath(reader.filename)}", True, cache


def _settle(reader: HimachReader, state: Mapping[str, Any]) -> None:
    """Let a reader stand where the one stood that it stands for."""
    reader.__dict__.update(state)


def _keywords(reader: ReaderBase) -> dict[str, Any] | None:
    """Return the keywords by which himach reads the same frames; None where there are none."""
    given = dict(getattr(reader, "_kwargs", {}))
    defaults = {name: one.default for name, one in inspect.signature(type(reader).__init__).parameters.items()}
    if not given.get("convert_units", True):
        return None
    keywords = {
        name: value
        for name, value in given.items()
        if name not in ASIDE and value is not None and value is not defaults.get(name)
    }
    try:
        guessed = get_reader_for(reader.filename)
    except (ValueError, TypeError):
        guessed = None
    if guessed is not type(reader):
        keywords["format"] = reader.format if isinstance(reader.format, str) else reader.format[0]
    return keywords if all(isinstance(value, str | int | float) for value in keywords.values()) else None


def _coded(things: Any) -> Iterable[object]:
    """Return the objects whose code has to travel: analyses, and functions that they have."""
    for task in things if isinstance(things, list) else [things]:
        thing = getattr(task.func, "__self__", task.func) if isinstance(task, partial) else task
        yield thing
        if isinstance(thing, AnalysisBase):
            yield from (_Code(value) for value in vars(thing).values() if inspect.isfunction(value))
        elif inspect.isfunction(thing):
            yield _Code(thing)


def _Code(function: Any) -> object:  # noqa: N802
    """Return an object whose class has the module of a function."""
    return type("Code", (), {"__module__": function.__module__})()
