"""Makes the seeds of fuzz_wire: ``python native/fuzz/make_wire_seeds.py``."""

from __future__ import annotations

import struct
from pathlib import Path

SEEDS = Path(__file__).with_name("seeds_wire")
CLIENT = {
    "open": 1,
    "frame": 3,
    "flush": 4,
    "have": 6,
    "list": 8,
    "read": 10,
    "done": 12,
    "status": 13,
    "stop": 15,
    "keep": 24,
    "take": 26,
    "survey": 28,
    "peers": 30,
}
SERVER = {
    "opened": 2,
    "ack": 5,
    "held": 7,
    "numbers": 9,
    "places": 11,
    "counters": 14,
    "stopping": 16,
    "error": 17,
    "kept": 25,
    "taken": 27,
    "surveyed": 29,
    "peered": 31,
}


def message(verb: int, body: bytes = b"") -> bytes:
    """One message; checksums are bypassed by the target."""
    return b"BdhW" + struct.pack("<HHII", 3, verb, len(body), 0) + body


def frame(n_atoms: int, fields: int) -> bytes:
    """Return the body of a FRAME."""
    count = bin(fields).count("1")
    return struct.pack("<QdIBBH6f", 7, 0.5, n_atoms, fields, 1, 0, 9, 9, 9, 90, 90, 90) + bytes(12 * n_atoms * count)


def main() -> None:
    """Write the seeds."""
    opened = struct.pack("<IIII", 3, 3, 2, 4) + bytes(range(16)) + b"run" + b"g1" + b"/sim"
    clients = {
        "open": opened, "frame": frame(2, 1), "flush": b"", "have": bytes(24), "list": bytes(16), "read": bytes(16),
        "done": b"", "status": b"", "stop": b"", "keep": bytes(32),
        "take": struct.pack("<QQII", 7, 64, 4096, 0) * 2, "survey": b"0" * 33, "peers": b"",
    }  # fmt: skip
    servers = {
        "opened": bytes(48), "ack": bytes(32), "held": b"\0\1\2", "numbers": bytes(16), "places": bytes(64),
        "counters": bytes(128), "stopping": b"", "error": b"\xff\xff\xff\xffno", "kept": b"\1\2",
        "taken": struct.pack("<I", 4) + b"byte", "surveyed": bytes(98), "peered": bytes(16) + b"node",
    }  # fmt: skip
    SEEDS.mkdir(exist_ok=True)
    for verbs, bodies, side in ((CLIENT, clients, 1), (SERVER, servers, 0)):
        for name, body in bodies.items():
            (SEEDS / name).write_bytes(bytes([side | 10]) + message(verbs[name], body))
    push = message(1, opened) + b"".join(message(3, frame(n, 7)) for n in (1, 5, 30)) + message(4)
    (SEEDS / "pushing").write_bytes(bytes([1 | 126]) + push)
    (SEEDS / "cut").write_bytes(bytes([1]) + push[:-30])
    tagged = b"".join(one + bytes(16) for one in (message(1, opened), message(3, frame(5, 7)), message(4)))
    (SEEDS / "authenticated").write_bytes(bytes([0x80 | 1 | 30]) + tagged)
    (SEEDS / "too-long").write_bytes(bytes([255]) + b"BdhW" + struct.pack("<HHII", 3, 3, 0xFFFFFFFF, 0))


if __name__ == "__main__":
    main()
