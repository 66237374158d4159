"""Values whose text tells all of them: plain lists, bytes, types of arrays, universal functions."""

from __future__ import annotations

import hashlib
import itertools
import sys
from typing import Any

import numpy as np

__all__ = ["PLAIN", "bytes_text", "dtype_text", "list_text", "named_ufunc", "refused"]

#: Values whose repr() tells all of them.
PLAIN = frozenset({int, float, complex, str, bytes, bool, type(None)})
#: Numbers of numpy whose repr() tells type and value.
_SCALARS = frozenset({np.int32, np.int64, np.float32, np.float64, np.bool_})


def named_ufunc(function: Any) -> str:
    """Return the text of a universal function of numpy or SciPy, by its name; others are refused."""
    name: str = function.__name__
    if any(getattr(sys.modules.get(home), name, None) is function for home in ("numpy", "scipy.special")):
        return f"ufunc {name}"
    raise TypeError("cannot tell what a universal function does")  # as that of frompyfunc: nobody can look into it


def refused(value: Any) -> str:
    """Refuse a value, as pickle does."""
    raise TypeError(f"cannot pickle {type(value).__qualname__!r} object")


def dtype_text(dtype: np.dtype[Any]) -> str:
    """Return the text of a type of arrays."""
    return str(dtype.descr if dtype.names else dtype.str)


def bytes_text(value: bytes) -> str:
    """Return the text of bytes."""
    return f"bytes {value.hex() if len(value) < 32 else hashlib.sha256(value).hexdigest()}"


def list_text(values: Any) -> str | None:
    """Return the text of a long list of plain values or of tuples of some, which is a matter of repr() alone."""
    if len(values) < 100:
        return None
    kinds = set(map(type, values))
    if tuple in kinds:  # as of bonds
        inner = itertools.chain.from_iterable(each for each in values if type(each) is tuple)
        kinds = kinds - {tuple} | set(map(type, inner))
    if not (PLAIN | _SCALARS).issuperset(kinds):
        return None
    return f"{type(values).__name__} {hashlib.sha256(repr(values).encode('utf-8', 'surrogatepass')).hexdigest()}"
