"""Messages between a server and its clients, made by hand; see native/net/wire.h."""

import struct

MAGIC = b"BdhW"
OPEN, OPENED, FRAME, FLUSH, ACK, HAVE, KINDS, LIST, NUMBERS, READ, PLACES, DONE = range(1, 13)
STATUS, COUNTERS, STOP, STOPPING, ERROR, FIND, GENERATIONS = range(13, 20)
FETCH, ATTACHMENT, MARK, MARKED, KEEP, KEPT = range(20, 26)


def _remainder(byte):
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    return byte


_REMAINDERS = [_remainder(byte) for byte in range(256)]


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _REMAINDERS[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def message(verb, body=b"", *, magic=MAGIC, version=2, size=None, crc=None):
    size = len(body) if size is None else size
    return magic + struct.pack("<HHII", version, verb, size, crc32c(body) if crc is None else crc) + body


def open_body(name=b"run", flags=1, name_bytes=None, token=bytes(16)):
    return struct.pack("<IIII", flags, len(name) if name_bytes is None else name_bytes, 0, 0) + token + name


def frame_body(n_atoms=2, *, claimed=None, fields=1):
    head = struct.pack("<QdIBBH6f", 5, 1.0, n_atoms if claimed is None else claimed, fields, 0, 0, *[0.0] * 6)
    return head + bytes(12 * n_atoms)
