"""Pushing: frames over loopback to a server, kept durably per batch, beside `dd` of the same bytes to the same disk."""

import os
import time
from itertools import count
from pathlib import Path

from himach.io.push.writer import Writer
from himach.io.server import control as server
from himach.io.store.store import Store

from ..harness.figures import report
from ..harness.interleave import call_in_turn, checked
from .frames import BATCH_BYTES, FRAME_BYTES, N_ATOMS, frames

__all__ = ["push"]

N_FRAMES = 600


def push(place: Path, repeats: int, n: int = N_FRAMES) -> None:
    """Time both in turns; print the figures."""
    store, source, target, names = place / "pushed", place / "source", place / "target", count()
    nbytes = n * FRAME_BYTES
    source.write_bytes(os.urandom(1 << 20) * (nbytes >> 20))
    facts = server.start(store, listen="127.0.0.1:0", key_file=place / "key")

    def push() -> None:
        name, key, addresses = f"bench{next(names)}", place / "key", [facts["listen"]]
        with Writer(name, N_ATOMS, servers=addresses, key=key, durable=True, batch_bytes=BATCH_BYTES) as writer:
            for number, positions in zip(range(n), frames(), strict=False):
                writer.push(positions, time=number)

    def copy(option: str) -> None:
        checked(["dd", f"if={source}", f"of={target}", f"bs={BATCH_BYTES}", option])

    def settle() -> None:
        target.unlink(missing_ok=True)
        time.sleep(0.2)
        os.sync()  # so that nothing else waits for the disk

    works = {"push": push, "copy": lambda: copy("conv=fsync"), "batches": lambda: copy("oflag=dsync")}
    try:
        took = call_in_turn(works, repeats, before=settle)
        kept = sum(len(Store(store).dataset(f"bench{i}").native) for i in range(repeats))
    finally:
        server.stop(store)
    report("frames acknowledged that are there", f"{kept} of {n * repeats}", "all")
    report("dd conv=fsync, same bytes", f"{nbytes / took['copy'] / 1e6:.0f} MB/s")
    report("dd oflag=dsync bs=16M, same bytes", f"{nbytes / took['batches'] / 1e6:.0f} MB/s")
    report("push over loopback, durable per batch of 16 MB", f"{nbytes / took['push'] / 1e6:.0f} MB/s")
    report("push / dd conv=fsync", f"{took['copy'] / took['push']:.1%}", "70%")
