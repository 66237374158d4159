"""Messages between a server and its clients, made by hand; see native/net/wire.h."""

import struct

MAGIC = b"BdhW"
OPEN, OPENED, FRAME, FLUSH, ACK, HAVE, HELD, LIST, NUMBERS, READ = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
PLACES, DONE, STATUS, COUNTERS, STOP, STOPPING, ERROR = 11, 12, 13, 14, 15, 16, 17
FIND, GENERATIONS, FETCH, ATTACHMENT, MARK, MARKED = 18, 19, 20, 21, 22, 23


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def message(verb, body=b"", *, magic=MAGIC, version=2, size=None, crc=None):
    size = len(body) if size is None else size
    return magic + struct.pack("<HHII", version, verb, size, crc32c(body) if crc is None else crc) + body


def open_body(name=b"run", flags=1, name_bytes=None, token=bytes(16)):
    return struct.pack("<IIII", flags, len(name) if name_bytes is None else name_bytes, 0, 0) + token + name


def frame_body(n_atoms=2, *, claimed=None, fields=1):
    head = struct.pack("<QdIBBH6f", 5, 1.0, n_atoms if claimed is None else claimed, fields, 0, 0, *[0.0] * 6)
    return head + bytes(12 * n_atoms)
