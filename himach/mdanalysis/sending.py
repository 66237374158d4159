"""Transfer of MDAnalysis's analyses to ranks, `pack()` and `unpack()`, and of results back, `strip_results()`.

Analyses are sent unchanged, except that readers of trajectories are replaced by readers of the same frames from the
node's store. Some analyses collect numpy's numbers one by one in nested lists. Pickling each takes longer than reading
the frame, so they travel as an array and arrive as the same lists. The bytes go to ranks that this process starts, and
back; none come from anywhere else.
"""

import inspect
import io
import os
import pickle
import warnings
from collections.abc import Iterable, Mapping
from copy import copy
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
from MDAnalysis.analysis.base import AnalysisBase
from MDAnalysis.analysis.results import Results
from MDAnalysis.coordinates.base import ReaderBase

from himach.errors import AnalysisError, HimachError
from himach.io.datasets.opening import OpenDataset
from himach.io.datasets.universe_input import reader_keywords
from himach.io.trajectories.formats import FORMATS
from himach.mdanalysis.dataset_names import SCHEME, open_url
from himach.mdanalysis.reader import HimachReader
from himach.ranks.launch.code_pickle import CodePickler
from himach.runner.run import sent_by_value

WHOLE = frozenset({"HIMACH", *(item.name for item in FORMATS.values() if item.whole_in_store)})
#: Types of numbers whose bits an array keeps, and returns as the same type.
NUMBERS = (np.float64, np.float32, np.int64, np.int32, np.bool_)
FEW_NUMBERS = 64  # numbers, or lists, that may be pickled one by one


def pack(things: Any, cache: str) -> bytes:
    """Pickle things for ranks, with readers of the store for trajectories; raises AnalysisError if that fails."""
    file = io.BytesIO()
    try:
        with sent_by_value(_find_code(things)):
            _ResultPickler(file, cache).dump(things)
    except HimachError:
        raise
    except Exception as error:
        raise AnalysisError(f"an analysis cannot be sent to ranks: {type(error).__name__}: {error}") from error
    return file.getvalue()


def unpack(content: bytes) -> Any:
    """Unpickle content, a new copy at each call; raises AnalysisError if it cannot be rebuilt here."""
    try:
        return pickle.loads(content)
    except HimachError:
        raise
    except Exception as error:
        raise AnalysisError(f"an analysis cannot be rebuilt on a rank: {type(error).__name__}: {error}") from error


class _ResultPickler(CodePickler):
    def __init__(self, file: io.BytesIO, cache: str) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._cache = cache
        self._opened: dict[tuple[Any, ...], OpenDataset] = {}

    def reducer_override(self, obj: Any) -> Any:
        """Rebuild readers from the store; leave everything else to cloudpickle."""
        if isinstance(obj, ReaderBase):
            dataset = self._open_dataset(obj)
            if dataset is not None:
                state = {
                    "ts": obj.ts,  # itself: the box that analyses hold must stay that of the present frame
                    "_frame": int(getattr(obj, "_frame", obj.ts.frame)),
                    "_dt": obj.ts.dt,
                    "_auxs": obj._auxs,
                    "_transformations": obj._transformations,
                }
                is_himach = isinstance(obj, HimachReader)
                name = obj.filename if is_himach else f"{SCHEME}{os.path.abspath(obj.filename)}"
                arguments = (name, obj.convert_units, obj.cache) if is_himach else (name, True, self._cache)
                return HimachReader, (*arguments, dataset), state, None, None, _restore_state
        return super().reducer_override(obj)

    def _open_dataset(self, reader: ReaderBase) -> OpenDataset | None:
        """Open the dataset of a reader; None if ranks are to read as it does."""
        if isinstance(reader, HimachReader):
            opened: OpenDataset = copy(reader.dataset)
            return opened
        names = getattr(reader, "format", None)
        if isinstance(names, str):
            names = [names]
        if not names or not WHOLE.intersection(names) or not isinstance(reader.filename, str):
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
        origin = self._opened[key].origin
        same = (origin.n_frames, origin.n_atoms) == (reader.n_frames, reader.n_atoms)
        return self._opened[key] if same else None


def _restore_state(reader: HimachReader, state: Mapping[str, Any]) -> None:
    """Set a reader to the state of the one that it replaces."""
    reader.__dict__.update(state)


def _keywords(reader: ReaderBase) -> dict[str, Any] | None:
    """Return the keywords with which himach reads the same frames; None if there are none."""
    keywords = reader_keywords(reader)
    is_plain = all(isinstance(value, str | int | float) for value in keywords.values())
    return keywords if is_plain and keywords.pop("convert_units", True) else None


def _find_code(things: Any) -> Iterable[object]:
    """Yield the objects whose code must be sent: analyses, and functions in them."""
    for task in things if isinstance(things, list) else [things]:
        thing = getattr(task.func, "__self__", task.func) if isinstance(task, partial) else task
        yield thing
        if isinstance(thing, AnalysisBase):
            yield from (_Code(value) for value in vars(thing).values() if inspect.isfunction(value))
        elif inspect.isfunction(thing):
            yield _Code(thing)


def _Code(function: Any) -> object:  # noqa: N802
    """Return an object whose class has the function's module."""
    return type("Code", (), {"__module__": function.__module__})()


def strip_results(results: Results) -> Results:
    """Return results that unpickle to the same, in fewer pieces."""
    if type(results) is not Results:
        return results
    packed = copy(results)
    packed.update({name: _compact(value) for name, value in results.items()})
    return packed


def _compact(value: Any) -> Any:
    """Compact numbers of one type in lists of one length at each depth; the result unpickles as `value`."""
    if type(value) is not list:
        return value
    kinds: list[tuple[type, int]] = []
    items: list[Any] = value
    while len(types := set(map(type, items))) == 1:
        (kind,) = types
        if kind in NUMBERS:
            return value if len(items) < FEW_NUMBERS else _ResultNumbers(np.array(items, dtype=kind), kinds)
        if kind not in (list, tuple):
            break
        first, *others = set(map(len, items))
        if others or not first:
            break
        kinds.append((kind, first))
        items = list(chain.from_iterable(items))
    return value if len(value) > FEW_NUMBERS else [_compact(item) for item in value]


class _ResultNumbers:
    """Replaces a list of numbers, or of lists or tuples of these; `kinds` has type and length of each inner one."""

    def __init__(self, numbers: npt.NDArray[Any], kinds: list[tuple[type, int]]) -> None:
        self._numbers, self._kinds = numbers, kinds

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpack_numbers, (self._numbers, self._kinds)


def _unpack_numbers(numbers: npt.NDArray[Any], kinds: list[tuple[type, int]]) -> list[Any]:
    """Rebuild the list."""
    items = list(numbers)
    for kind, length in reversed(kinds):
        rows = zip(*[iter(items)] * length, strict=True)
        items = list(rows) if kind is tuple else [list(row) for row in rows]
    return items
