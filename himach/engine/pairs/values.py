"""Values: copied at the yield; values that cannot be sent are refused there.

`snapshot()` protects a value from later changes by the user: immutable values stay as they are, arrays are copied, all
else is pickled (`Pickled`); `restore()` returns the value. `as_row()` turns a number into a row of a column. `dumps()`
makes bytes of a column of Python objects. Only bytes that this user's runs wrote are ever unpickled.
"""

import copyreg
import io
import pickle
import types
from collections.abc import Callable
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from himach.errors import AnalysisError

#: Types whose values need no copy.
IMMUTABLE = frozenset({int, float, complex, str, bytes, bool, type(None)})


class Pickled(bytes):
    """A value, pickled at the yield."""

    __slots__ = ()


def snapshot(value: Any) -> Any:
    """Return `value` in a form that the user cannot change."""
    if _immutable(value):
        return value
    if type(value) is np.ndarray and not value.dtype.hasobject:
        return value.copy()
    return Pickled(_pickle(value))


def restore(stored: Any) -> Any:
    """Return the value of a snapshot."""
    return pickle.loads(stored) if type(stored) is Pickled else stored


def as_row(value: Any) -> npt.NDArray[Any] | None:
    """Return a number, or an array of numbers, as a row of a column; None for anything else."""
    if not isinstance(value, np.ndarray | np.generic | int | float | complex):
        return None
    array = np.asarray(value)
    return None if array.dtype.hasobject else array.astype(array.dtype.newbyteorder("="), copy=False)


def dumps(value: Any) -> bytes:
    """Return snapshots, or tuples, lists and dicts of them, as a pickle."""
    stream = io.BytesIO()
    dump(value, stream)
    return stream.getvalue()


def dump(value: Any, file: IO[bytes]) -> None:
    """Write such values as a pickle."""
    _TextPickler(file).dump(value)


def _immutable(value: Any) -> bool:
    kind = type(value)
    if kind in IMMUTABLE:
        return True
    if kind is tuple:
        return all(_immutable(part) for part in value)
    return isinstance(value, np.generic) and not isinstance(value, np.void | np.object_)


def _pickle(value: Any) -> bytes:
    stream = io.BytesIO()
    pickler = _ValuePickler(stream)
    try:
        pickler.dump(value)
        return _pickle_by_value(value) if pickler.by_value else stream.getvalue()
    except _RefusedError as error:
        raise AnalysisError(str(error)) from None
    except Exception as error:  # a user's __reduce__ may raise anything
        raise AnalysisError(f"a value of type {_name(type(value))} cannot be pickled: {error}") from error


def _pickle_by_value(value: Any) -> bytes:
    """Pickle classes of ``__main__`` (a script, a notebook) by value: other ranks have another ``__main__``."""
    import cloudpickle

    data: bytes = cloudpickle.dumps(value, protocol=5)
    return data


class _RefusedError(Exception):
    """A value contains an object that himach refuses."""


class _TextPickler(pickle.Pickler):
    """Keeps trailing zeros of numpy strings, which numpy's own pickles drop."""

    def __init__(self, stream: IO[bytes]) -> None:
        super().__init__(stream, protocol=5)
        self.dispatch_table: dict[type, Callable[[Any], Any]] = {
            **copyreg.dispatch_table,
            np.str_: lambda text: (np.str_, (str.__str__(text),)),  # its str() drops them, too
            np.bytes_: lambda data: (np.bytes_, (bytes(data),)),
        }


class _ValuePickler(_TextPickler):
    """Refuses values that must not be sent, and detects classes of ``__main__``."""

    by_value = False

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if kind.__module__.startswith("MDAnalysis.") and kind.__name__ != "Results":  # those are dictionaries
            raise _RefusedError(
                f"a value holds an MDAnalysis {kind.__name__}, which stays with its rank's Universe; "
                "yield what you need of it as numbers, such as .indices or .positions"
            )
        if getattr(obj, "__module__", None) == "__main__":
            if isinstance(obj, type):
                self.by_value = True
                return str, ()  # this pickle only detects errors; the one by value is sent
            if kind is types.FunctionType:
                raise TypeError(f"cannot pickle the function {obj.__qualname__!r}")
        return NotImplemented


def _name(kind: type) -> str:
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
