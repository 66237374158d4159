"""Python objects as bytes without pickles: `Packer` and `unpack()`.

Numbers, text, arrays and tuples of these come back as exactly their type; other values stay pickled when read.
The bytes are a list of kinds in JSON and its length, a byte per value, and the values of each kind: no count in them
can exceed their length.
"""

from __future__ import annotations

import ast
import json
import math
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.format import descr_to_dtype, dtype_to_descr

from himach.engine.pairs.block import Array, Raw, objects
from himach.engine.pairs.keys import INT64
from himach.engine.pairs.values import Pickled, dumps, restore
from himach.errors import HimachError

#: Levels of nested tuples that are not pickled as a whole.
DEPTH = 8
#: Most kinds of values besides pickles; values of further kinds are pickled.
MOST_KINDS = 200
#: Marks a pickle that contains classes by value.
BY_VALUE = b"cloudpickle.cloudpickle"
#: Prefix of the dtype of numpy records, whose fields are attributes.
RECORD = "record"

#: Errors from parsing malformed content.
PARSE_ERRORS = (KeyError, TypeError, ValueError, IndexError, OverflowError, RecursionError, AttributeError, SyntaxError)

NUMBERS: dict[str, type] = {"int": np.int64, "float": np.float64, "complex": np.complex128, "bool": np.bool_}
# Strings in an encoding that accepts any str, bytes, and integers of more than 64 bits.
BYTES: dict[str, tuple[Callable[[Any], bytes], Callable[[bytes], Any]]] = {
    "str": (lambda text: text.encode("utf-8", "surrogatepass"), lambda data: data.decode("utf-8", "surrogatepass")),
    "np.str": (
        lambda text: text.encode("utf-8", "surrogatepass"),  # its str() loses trailing zeros
        lambda data: np.str_(data.decode("utf-8", "surrogatepass")),
    ),
    "bytes": (lambda data: data, lambda data: data),
    "np.bytes": (bytes, np.bytes_),
    "long": (
        lambda number: number.to_bytes(number.bit_length() // 8 + 1, "little", signed=True),
        lambda data: int.from_bytes(data, "little", signed=True),
    ),
    "pickle": (lambda data: data, Pickled),
}
NAMES: dict[type, str] = {
    float: "float",
    complex: "complex",
    bool: "bool",
    type(None): "none",
    str: "str",
    bytes: "bytes",
    np.str_: "np.str",
    np.bytes_: "np.bytes",
    Pickled: "pickle",
}

# A kind of value: its name, and for numpy arrays and scalars their described dtype and number of dimensions.
Kind = tuple[str, str, int]
PICKLE: Kind = ("pickle", "", 0)


class NotPlainError(HimachError):
    """A value needs a pickle, which is not allowed here."""


@lru_cache(maxsize=256)
def describe(dtype: np.dtype[Any]) -> str | None:
    """Return a dtype as in numpy.save() files, after `RECORD` for records; None if that does not restore it."""
    try:
        described: Any = dtype_to_descr(dtype)
        text = described if isinstance(described, str) else repr(described)
        if dtype.type is np.record:
            text = RECORD + text
        again = as_dtype(text)
        return text if again == dtype and _types(again) == _types(dtype) else None
    except PARSE_ERRORS:
        return None


def as_dtype(described: Any) -> np.dtype[Any]:
    """Return the dtype from `describe()`; other input raises one of `PARSE_ERRORS` or gives another dtype."""
    text = described.removeprefix(RECORD)
    try:
        dtype = descr_to_dtype(ast.literal_eval(text) if text.startswith("[") else text)
    except MemoryError:  # from lists nested too deeply
        raise ValueError("a type makes no sense") from None
    if dtype.hasobject or dtype.itemsize > 1 << 31 or dtype.subdtype is not None:
        raise ValueError(f"values of {dtype} are not kept as columns")
    return np.dtype((np.record, dtype)) if text != described and dtype.names else dtype


def _types(dtype: np.dtype[Any]) -> list[Any]:
    """Return the value types of a dtype and its fields, in which equal dtypes may differ."""
    fields = [] if dtype.names is None else [dtype[name].base for name in dtype.names]
    return [dtype.type, *map(_types, fields)]


class Packer:
    """Returns values as bytes; `pickled` tells whether some were pickled."""

    def __init__(self, pickles: bool) -> None:
        self.pickled = False
        self._pickles = pickles

    def pack(self, values: Sequence[Any]) -> bytes:
        """Return values, which are the engine's snapshots; raise NotPlainError for a pickle that is not allowed."""
        out: list[bytes] = []
        self._pack(values, 0, out)
        return b"".join(out)

    def _pack(self, values: Sequence[Any], depth: int, out: list[bytes]) -> None:
        groups: dict[Kind, list[Any]] = {}
        types = set(map(type, values))
        name = NAMES.get(types.pop()) if len(types) == 1 else None
        if name is not None:
            groups[name, "", 0] = list(values)
            kinds = bytes(len(values))
        else:
            numbers: dict[Kind, int] = {}
            kinds_of = bytearray()
            for value in values:
                kind = _kind(value, depth)
                if kind not in numbers and len(numbers) >= MOST_KINDS:
                    kind = PICKLE
                kinds_of.append(numbers.setdefault(kind, len(numbers)))
                groups.setdefault(kind, []).append(value)
            kinds = bytes(kinds_of)
        described = json.dumps(list(groups), separators=(",", ":")).encode()
        out += [struct.pack("<I", len(described)), described, kinds]
        for kind, group in groups.items():
            self._pack_group(kind, group, depth, out)

    def _pack_group(self, kind: Kind, values: list[Any], depth: int, out: list[bytes]) -> None:
        name = kind[0]
        if name == "pickle":
            values = [self._pickle(value) for value in values]
        if name in NUMBERS:
            out.append(np.array(values, dtype=NUMBERS[name]).tobytes())
        elif name == "scalar":
            out.append(np.array(values, dtype=values[0].dtype).tobytes())
        elif name == "array":
            out.append(np.array([value.shape for value in values], dtype=np.int64).tobytes())
            out += [value.tobytes() for value in values]
        elif name == "tuple":
            out.append(np.array(list(map(len, values)), dtype=np.int64).tobytes())
            self._pack([part for value in values for part in value], depth + 1, out)
        elif name in BYTES:  # each distinct one once
            numbers: dict[bytes, int] = {}
            places = [numbers.setdefault(piece, len(numbers)) for piece in map(BYTES[name][0], values)]
            out.append(np.array(places, dtype=np.uint32).tobytes())
            out.append(np.array(list(map(len, numbers)), dtype=np.int64).tobytes())
            out += numbers

    def _pickle(self, value: Any) -> Pickled:
        self.pickled = True
        if not self._pickles:
            kind = type(restore(value))
            name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
            raise NotPlainError(
                f"values of type {name} are kept as pickles, which is done only in a directory that nobody else can "
                "write to; yield numbers, text, arrays, or tuples of these"
            )
        data = value if type(value) is Pickled else Pickled(dumps(value))
        if data.find(BY_VALUE) >= 0:
            raise NotPlainError(
                f"values of type {type(restore(data)).__name__} are not kept, as their class, or one that they hold, "
                "is that of a program or of a notebook's cell, and another one in the next run; put it in a module"
            )
        return data


def unpack(data: Raw, count: int, pickles: bool) -> list[Any]:
    """Return `count` values from `Packer.pack()`; raise one of `PARSE_ERRORS` for other content."""
    reader = _Reader(data.tobytes(), pickles)
    values = reader.values(count)
    if reader.left:
        raise ValueError("there are more bytes than values")
    return values


def _kind(value: Any, depth: int) -> Kind:
    kind = type(value)
    if kind is int:
        return ("int" if value in INT64 else "long"), "", 0
    name = NAMES.get(kind)
    if name is not None:
        return name, "", 0
    if kind is tuple and depth < DEPTH:
        return "tuple", "", 0
    if kind is np.ndarray or isinstance(value, np.generic):
        dtype: np.dtype[Any] = value.dtype
        scalar = kind is not np.ndarray
        described = describe(dtype)
        if described and dtype.itemsize and (kind is as_dtype(described).type or not scalar):
            return ("scalar" if scalar else "array"), described, value.ndim
    return PICKLE


class _Reader:
    """Reads values from bytes, which may be made up."""

    def __init__(self, data: bytes, pickles: bool) -> None:
        self._data, self._pickles, self._at = data, pickles, 0

    @property
    def left(self) -> int:
        """Number of bytes that are not read yet."""
        return len(self._data) - self._at

    def values(self, count: int) -> list[Any]:
        described = json.loads(self._take(np.uint8, int(self._take(np.uint32, 1)[0])).tobytes())
        kinds: npt.NDArray[np.uint8] = self._take(np.uint8, count)
        counts = np.bincount(kinds, minlength=len(described)).tolist()
        groups = [
            self._group(name, dtype, dimensions, size)
            for (name, dtype, dimensions), size in zip(described, counts, strict=True)
        ]
        if len(groups) == 1:
            return groups[0]
        values = objects([None] * count)
        for number, group in enumerate(groups):
            values[kinds == number] = objects(group)
        listed: list[Any] = values.tolist()
        return listed

    def _take(self, dtype: Any, count: int) -> Array:
        """Return `count` numbers of a dtype."""
        kind = np.dtype(dtype)
        size = kind.itemsize * count
        if not 0 <= size <= self.left or not kind.itemsize:
            raise ValueError("values are larger than their bytes")
        start, self._at = self._at, self._at + size
        return np.frombuffer(self._data, kind, count, start) if count else np.empty(0, kind)

    def _group(self, name: str, described: str, dimensions: int, count: int) -> list[Any]:
        if name in NUMBERS:
            listed: list[Any] = self._take(NUMBERS[name], count).tolist()
            return listed
        if name == "none":
            return [None] * count
        if name == "scalar":
            return list(self._take(as_dtype(described), count))
        if name == "array":
            return self._arrays(as_dtype(described), count, dimensions)
        if name == "tuple":
            edges = self._edges(count)
            parts = self.values(edges[-1])
            return [tuple(parts[start:stop]) for start, stop in pairwise(edges)]
        if name == "pickle" and not self._pickles:
            raise ValueError("there are pickles, which are not read here")
        make = BYTES[name][1]
        places = self._take(np.uint32, count)
        edges = self._edges(int(places.max()) + 1 if count else 0)
        data = self._take(np.uint8, edges[-1]).tobytes()
        different = objects([make(data[start:stop]) for start, stop in pairwise(edges)])
        distinct: list[Any] = different[places].tolist()
        return distinct

    def _edges(self, count: int) -> list[int]:
        """Return the bounds of consecutive items from their lengths."""
        lengths = self._take(np.int64, count).tolist()
        if any(not 0 <= length <= self.left for length in lengths):
            raise ValueError("values are larger than their bytes")
        return [0, *np.cumsum(lengths, dtype=np.int64).tolist()]

    def _arrays(self, dtype: np.dtype[Any], count: int, dimensions: int) -> list[Any]:
        shapes = self._take(np.int64, count * dimensions).reshape(count, dimensions).tolist()
        if any(size < 0 for shape in shapes for size in shape):
            raise ValueError("an array has a negative size")
        return [self._take(dtype, math.prod(shape)).reshape(shape).copy() for shape in shapes]
