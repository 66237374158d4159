"""Keys: the allowed types, and an encoding to bytes that preserves the order of keys.

A key is an int, a float, a str, bytes, None, or a tuple of these. `split()` selects the column of a key: 64-bit
integers and tuples of them are stored as they are, all else is encoded by `encode()`; `decode()` reverts it.
``encode(a) < encode(b)`` orders by type first (int < float < str < bytes < None < tuple), then by value, so that 1 and
1.0 are two keys.
"""

import math
import struct
from typing import Any

import numpy as np

from himach.errors import AnalysisError

#: The width of encoded keys; 0 is a 64-bit int, k > 0 a tuple of k of them.
ENCODED = -1
#: The width of rows of a table by frame: their int keys are separate from those of pairs.
ROWS = -2

END, INT, FLOAT, STR, BYTES, NONE, TUPLE = 0x00, 0x10, 0x20, 0x30, 0x40, 0x50, 0x60
INT64 = range(-(2**63), 2**63)
# An int starts with 0x80 plus or minus its number of bytes; beyond 120, the number follows in 8 separate bytes.
MIDDLE, LONGEST = 0x80, 120
SIGN = 1 << 63
ALLOWED = "keys are int, float, str, bytes, None, or tuples of these"
NOT_INTEGERS: tuple[type, ...] = (np.timedelta64,)


def split(key: Any) -> tuple[int, Any]:
    """Return (width, stored key): an int (0), a tuple of k ints (k), or an encoded key (`ENCODED`)."""
    if type(key) is int:
        if key in INT64:
            return 0, key
    elif type(key) is tuple and key:
        if all(type(part) is int and part in INT64 for part in key):
            return len(key), key
        if all(_is_int(part) for part in key):
            plain = tuple([int(part) for part in key])
            if all(part in INT64 for part in plain):
                return len(plain), plain
    elif _is_int(key) and int(key) in INT64:
        return 0, int(key)
    return ENCODED, encode(key)


def encode(key: Any) -> bytes:
    """Return the encoding of a key."""
    out = bytearray()
    _encode(key, key, out)
    return bytes(out)


def decode(encoded: bytes) -> Any:
    """Return the key from `encode()`, in plain Python types."""
    key, _ = _decode(encoded, 0)
    return key


def _is_int(part: Any) -> bool:
    # bool is a subclass of int, and timedelta64 one of np.integer.
    return type(part) is int or (isinstance(part, np.integer) and not isinstance(part, NOT_INTEGERS))


def bad_key_error(part: Any, key: Any) -> AnalysisError:
    """Return the error for an invalid part of a key."""
    kind = type(part)
    name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
    context = "" if part is key else f" in the key {_short(key)}"
    return AnalysisError(f"{_short(part)} of type {name}{context} cannot be a key; {ALLOWED}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _encode(part: Any, key: Any, out: bytearray) -> None:
    kind = type(part)
    if _is_int(part):
        out.append(INT)
        _encode_int(int(part), out)
    elif kind is float or isinstance(part, np.floating):
        _encode_float(float(part), key, out)
    elif kind is str or kind is np.str_:
        out.append(STR)
        out += part.encode("utf-8", "surrogatepass").replace(b"\0", b"\0\xff")
        out.append(END)
    elif kind is bytes or kind is np.bytes_:
        out.append(BYTES)
        out += part.replace(b"\0", b"\0\xff")
        out.append(END)
    elif part is None:
        out.append(NONE)
    elif kind is tuple:
        out.append(TUPLE)
        for inner in part:
            _encode(inner, key, out)
        out.append(END)
    else:
        raise bad_key_error(part, key)


def _encode_int(value: int, out: bytearray) -> None:
    magnitude = abs(value)
    n = (magnitude.bit_length() + 7) // 8
    digits = magnitude.to_bytes(n, "big")
    if n > LONGEST:
        digits = n.to_bytes(8, "big") + digits
        n = LONGEST + 1
    if value < 0:
        out.append(MIDDLE - n)
        out += bytes([255 - byte for byte in digits])
    else:
        out.append(MIDDLE + n)
        out += digits


def _encode_float(value: float, key: Any, out: bytearray) -> None:
    if math.isnan(value):
        raise AnalysisError(f"nan in the key {_short(key)} cannot be a key: it does not equal itself")
    (bits,) = struct.unpack(">Q", struct.pack(">d", value + 0.0))  # -0.0 + 0.0 is 0.0
    out.append(FLOAT)
    out += struct.pack(">Q", bits ^ (2 * SIGN - 1) if bits & SIGN else bits | SIGN)


def _decode(data: bytes, at: int) -> tuple[Any, int]:
    tag = data[at]
    at += 1
    if tag == INT:
        return _decode_int(data, at)
    if tag == FLOAT:
        (bits,) = struct.unpack_from(">Q", data, at)
        bits = bits ^ SIGN if bits & SIGN else bits ^ (2 * SIGN - 1)
        return struct.unpack(">d", struct.pack(">Q", bits))[0], at + 8
    if tag == NONE:
        return None, at
    if tag == TUPLE:
        parts = []
        while data[at] != END:
            part, at = _decode(data, at)
            parts.append(part)
        return tuple(parts), at + 1
    end = data.index(b"\0", at)
    while data[end + 1 : end + 2] == b"\xff":
        end = data.index(b"\0", end + 1)
    raw = data[at:end].replace(b"\0\xff", b"\0")
    return (raw.decode("utf-8", "surrogatepass") if tag == STR else raw), end + 1


def _decode_int(data: bytes, at: int) -> tuple[int, int]:
    n = abs(data[at] - MIDDLE)
    negative = data[at] < MIDDLE
    at += 1
    if n > LONGEST:
        head = data[at : at + 8]
        n = int.from_bytes(bytes([255 - byte for byte in head]) if negative else head, "big")
        at += 8
    digits = data[at : at + n]
    if negative:
        return -int.from_bytes(bytes([255 - byte for byte in digits]), "big"), at + n
    return int.from_bytes(digits, "big"), at + n
