"""Python objects as columns: `write_objects()` and `read_objects()`.

Values of one type become typed columns and are restored as exactly that type; for several types, each has its columns,
and one more column gives the type of each value. Other values are pickled, if allowed, and stay pickled when read
(`himach.engine.pairs.values.Pickled`): reading unpickles nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.checkpoint.parts.columns import ColumnFile, ColumnWriter, as_dtype, describe
from himach.engine.pairs.block import Array, objects
from himach.engine.pairs.keys import INT64
from himach.engine.pairs.values import Pickled, dumps, restore
from himach.errors import HimachError

#: Levels of nested tuples kept as columns; deeper ones are pickled.
DEPTH = 8
#: Most types of values in a column of objects besides pickles; values of further types are pickled.
MOST_KINDS = 200

#: Marks a pickle that contains classes by value.
BY_VALUE = b"cloudpickle.cloudpickle"

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


class NotPlainError(HimachError):
    """A value needs a pickle, which is not allowed here."""


def write_objects(writer: ColumnWriter, values: Sequence[Any], pickles: bool) -> Any:
    """Write values, which are the engine's snapshots; return their description for `read_objects()`."""
    return _write(writer, values, pickles, 0)


def write_keys(writer: ColumnWriter, keys: Sequence[bytes]) -> Any:
    """Write encoded keys, each distinct one once; return their description for `read_keys()`."""
    numbers: dict[bytes, int] = {}
    key_numbers = np.fromiter((numbers.setdefault(key, len(numbers)) for key in keys), dtype=np.uint32, count=len(keys))
    return [*_write_bytes(writer, list(numbers)), writer.add(key_numbers)]


def pickles_in(described: Any) -> Iterator[int]:
    """Yield the numbers of columns with pickles, from a description by `write_objects()` or a list of these."""
    if isinstance(described, list) and described:
        if described[0] == "pickle":
            yield described[2]
        for part in described:
            yield from pickles_in(part)


def read_keys(file: ColumnFile, described: Any, count: int) -> Array:
    """Return the keys from `write_keys()`, one object for all rows of a key."""
    lengths, data, column = described
    different = objects(_read_bytes(file, [lengths, data]))
    numbers = file.column(column, np.uint32, count)
    if count and int(numbers.max()) >= len(different):
        raise ValueError("a key is not there")
    keys: Array = different[numbers]
    return keys


def read_objects(file: ColumnFile, described: Any, count: int) -> list[Any]:
    """Return `count` values from `write_objects()`; raise one of `PARSE_ERRORS` for other content."""
    values = _READ[described[0]](file, described[1:], count)
    if len(values) != count:
        raise ValueError(f"there are {len(values)} values of {count}")
    return values


def _write(writer: ColumnWriter, values: Sequence[Any], pickles: bool, depth: int) -> Any:
    types = set(map(type, values))
    name = NAMES.get(types.pop()) if len(types) == 1 else None
    if name is not None:
        return _write_kind(writer, (name, "", 0), values, pickles, depth)
    kinds: dict[Kind, int] = {}
    groups: list[list[Any]] = []
    kind_numbers = np.empty(len(values), dtype=np.uint8)
    for row, value in enumerate(values):
        kind = _kind(value, depth)
        number = kinds.get(kind)
        if number is None:
            if len(kinds) >= MOST_KINDS:
                kind = ("pickle", "", 0)
            number = kinds.setdefault(kind, len(kinds))
            if number == len(groups):
                groups.append([])
        kind_numbers[row] = number
        groups[number].append(value)
    written = [_write_kind(writer, kind, group, pickles, depth) for kind, group in zip(kinds, groups, strict=True)]
    return written[0] if len(written) == 1 else ["mixed", writer.add(kind_numbers), written]


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
    return "pickle", "", 0


def _write_kind(writer: ColumnWriter, kind: Kind, values: Sequence[Any], pickles: bool, depth: int) -> Any:
    name, described, dimensions = kind
    if name in NUMBERS:
        return [name, writer.add(np.array(values, dtype=NUMBERS[name]))]
    if name == "none":
        return [name, writer.add(np.zeros(len(values), dtype=np.uint8))]
    if name == "pickle":
        values = [_pickled(value, pickles) for value in values]
    if name in BYTES:
        return [name, *_write_bytes(writer, [BYTES[name][0](value) for value in values])]
    if name == "scalar":
        return [name, writer.add(np.array(values, dtype=values[0].dtype))]
    if name == "array":
        return [name, *_write_arrays(writer, values, described, dimensions)]
    lengths = writer.add(np.array(list(map(len, values)), dtype=np.int64))
    return [name, lengths, _write(writer, [part for value in values for part in value], pickles, depth + 1)]


def _pickled(value: Any, pickles: bool) -> Pickled:
    if not pickles:
        kind = type(restore(value))
        name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
        raise NotPlainError(
            f"values of type {name} are kept as pickles, which is done only in a directory that nobody else can write "
            "to; yield numbers, text, arrays, or tuples of these"
        )
    data = value if type(value) is Pickled else Pickled(dumps(value))
    if data.find(BY_VALUE) >= 0:
        raise NotPlainError(
            f"values of type {type(restore(data)).__name__} are not kept, as their class, or one that they hold, is "
            "that of a program or of a notebook's cell, and another one in the next run; put it in a module"
        )
    return data


def _write_bytes(writer: ColumnWriter, pieces: Sequence[bytes]) -> list[int]:
    lengths = np.array(list(map(len, pieces)), dtype=np.int64)
    return [writer.add(lengths), writer.add(np.frombuffer(b"".join(pieces), dtype=np.uint8))]


def _write_arrays(writer: ColumnWriter, arrays: Sequence[Array], dtype: Any, dimensions: int) -> list[int]:
    shapes = np.array([array.shape for array in arrays], dtype=np.int64).reshape(len(arrays), dimensions)
    size = sum(array.size for array in arrays)
    number, column = writer.reserve(dtype, [size])
    column.append(np.frombuffer(b"".join([array.tobytes() for array in arrays]), dtype=np.uint8))
    return [writer.add(shapes), number]


def _read_mixed(file: ColumnFile, described: Any, count: int) -> list[Any]:
    numbered, groups = described
    kind_numbers: npt.NDArray[np.uint8] = file.column(numbered, np.uint8, count)
    counts = np.bincount(kind_numbers, minlength=len(groups)).tolist()
    values = objects([None] * count)
    for number, (group, size) in enumerate(zip(groups, counts, strict=True)):
        values[kind_numbers == number] = objects(read_objects(file, group, size))
    listed: list[Any] = values.tolist()
    return listed


def _read_numbers(name: str) -> Callable[[ColumnFile, Any, int], list[Any]]:
    def read(file: ColumnFile, described: Any, count: int) -> list[Any]:
        (number,) = described
        listed: list[Any] = file.column(number, NUMBERS[name], count).tolist()
        return listed

    return read


def _read_none(file: ColumnFile, described: Any, count: int) -> list[Any]:
    (number,) = described
    return [None] * len(file.column(number, np.uint8, count))


def _read_named_bytes(name: str) -> Callable[[ColumnFile, Any, int], list[Any]]:
    make = BYTES[name][1]
    return lambda file, described, count: list(map(make, _read_bytes(file, described)))


def _read_bytes(file: ColumnFile, described: Any) -> list[bytes]:
    lengths, number = described
    data = file.column(number, np.uint8, -1).tobytes()
    edges = _edges(file.column(lengths, np.int64, -1), len(data))
    return [data[start:stop] for start, stop in pairwise(edges)]


def _read_scalars(file: ColumnFile, described: Any, count: int) -> list[Any]:
    (number,) = described
    dtype, _ = file.spec(number)
    if not dtype.itemsize:
        raise ValueError("there may be any number of values of no bytes")
    return list(file.column(number, dtype, count))


def _read_arrays(file: ColumnFile, described: Any, count: int) -> list[Any]:
    shaped, number = described
    dtype, _ = file.spec(number)
    data = file.column(number, dtype, -1)
    _, (_, dimensions) = file.spec(shaped)
    if not dtype.itemsize or (not dimensions and count != len(data)):
        raise ValueError("there may be any number of arrays of no bytes")
    shapes = file.column(shaped, np.int64, count, dimensions).tolist()
    if any(size < 0 for shape in shapes for size in shape):
        raise ValueError("an array has a negative size")
    values, start = [], 0
    for shape in shapes:
        stop = start + math.prod(shape)
        if stop > len(data):
            raise ValueError("arrays are larger than their column")
        values.append(data[start:stop].reshape(shape).copy())
        start = stop
    if start != len(data):
        raise ValueError("arrays are smaller than their column")
    return values


def _read_tuples(file: ColumnFile, described: Any, count: int) -> list[Any]:
    lengths, inner = described
    sizes = file.column(lengths, np.int64, count)
    total = sum(sizes.tolist())
    edges = _edges(sizes, total)
    parts = read_objects(file, inner, total)
    return [tuple(parts[start:stop]) for start, stop in pairwise(edges)]


def _edges(lengths: Array, total: int) -> list[int]:
    """Return the bounds of consecutive items of these lengths, which must fill `total`."""
    if len(lengths) and (int(lengths.min()) < 0 or int(lengths.max()) > total):
        raise ValueError("a length is none")
    edges = [0, *np.cumsum(lengths).tolist()]
    if edges[-1] != total or min(edges) < 0:
        raise ValueError("lengths do not fill their column")
    return edges


_READ: dict[str, Callable[[ColumnFile, Any, int], list[Any]]] = {
    **{name: _read_numbers(name) for name in NUMBERS},
    **{name: _read_named_bytes(name) for name in BYTES},
    "none": _read_none,
    "scalar": _read_scalars,
    "array": _read_arrays,
    "tuple": _read_tuples,
    "mixed": _read_mixed,
}
