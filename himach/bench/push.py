"""Benchmark of pushing: frames over loopback to a server, kept durably per batch, beside `dd conv=fsync`.

`main` prints one line a figure with its bar. Both sides write the same bytes to the same disk, in turns, in one run.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from himach.bench.cache import report, seconds
from himach.io.push.writer import Writer
from himach.io.server import control as server
from himach.io.store.store import Store

__all__ = ["main"]

N_ATOMS = 35_833  # 430 KB of positions
BATCH_BYTES = 16 << 20
BAR = 0.70


def push(address: str, key: Path, dataset: str, n_frames: int) -> None:
    """Push frames of 430 KB; return when the last one is on disk."""
    positions = np.random.default_rng(1).normal(size=(N_ATOMS, 3)).astype(np.float32)
    with Writer(dataset, N_ATOMS, servers=[address], key=key, durable=True, batch_bytes=BATCH_BYTES) as writer:
        for number in range(n_frames):
            positions[0, 0] = number
            writer.push(positions, time=number)


def copy(source: Path, target: Path, options: list[str]) -> None:
    """Write the bytes of a file that the page cache has by dd."""
    subprocess.run(
        ["dd", f"if={source}", f"of={target}", f"bs={BATCH_BYTES}", *options], check=True, stderr=subprocess.DEVNULL
    )


def settled(work: Callable[[], None]) -> float:
    """Return how long `work` takes when nothing else waits for the disk."""
    os.sync()
    return seconds(work)


def main(n_frames: int = 600, repeats: int = 5, directory: str | None = None) -> None:
    """Print the figures.

    Parameters
    ----------
    n_frames
        Frames of 430 KB each time.
    repeats
        Times; medians are shown.
    directory
        Where stores and files are made; None for ``/var/tmp``.
    """
    with tempfile.TemporaryDirectory(dir=directory or "/var/tmp", prefix="himach-bench-") as name:
        place = Path(name)
        facts = server.start(place / "store", listen="127.0.0.1:0", key_file=place / "key")
        try:
            nbytes = n_frames * N_ATOMS * 12
            (place / "source").write_bytes(os.urandom(1 << 20) * (nbytes >> 20))
            pushed, copied, batched = [], [], []
            for repeat in range(repeats):
                pushed.append(
                    settled(lambda: push(facts["listen"], place / "key", f"bench{repeat}", n_frames))  # noqa: B023
                )
                copied.append(settled(lambda: copy(place / "source", place / "copy", ["conv=fsync"])))
                (place / "copy").unlink()
                batched.append(settled(lambda: copy(place / "source", place / "copy", ["oflag=dsync"])))
                (place / "copy").unlink()
                time.sleep(0.2)
            kept = sum(len(Store(place / "store").dataset(f"bench{repeat}").native) for repeat in range(repeats))
        finally:
            server.stop(place / "store")
    push_s, copy_s, batch_s = (statistics.median(times) for times in (pushed, copied, batched))
    report("frames acknowledged that are there", f"{kept} of {n_frames * repeats}", "all")
    report("dd conv=fsync, same bytes", f"{nbytes / copy_s / 1e6:.0f} MB/s", "none")
    report("dd oflag=dsync bs=16M, same bytes", f"{nbytes / batch_s / 1e6:.0f} MB/s", "none")
    report("push over loopback, durable per batch of 16 MB", f"{nbytes / push_s / 1e6:.0f} MB/s", "none")
    report("push / dd conv=fsync", f"{copy_s / push_s:.1%}", f"{BAR:.0%}")


if __name__ == "__main__":
    main()
