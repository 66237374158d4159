"""Many small frames: opening by index and by rescan, and the memory that the index takes.

``python -m himach.benchmarks.store.small STORE read|write`` opens the store and prints the seconds, the bytes that came
to be resident, those of the index, the frames, and the bytes at the peak.
"""

import statistics
import sys
import time
from pathlib import Path

import numpy as np

from himach.io.store import bodhi
from himach.io.store.store import Store

from ..harness.disk import forget
from ..harness.figures import report
from ..harness.interleave import checked, seconds
from .frames import segments_of

__all__ = ["small"]

N_FRAMES = 10_000_000
N_ATOMS = 5  # 60 bytes, padded to 64


def small(place: Path, repeats: int, n: int = N_FRAMES) -> None:
    """Write the frames, and open them by processes of their own."""
    dataset = Store(place / "small").dataset("small")
    positions = np.zeros((N_ATOMS, 3), dtype=np.float32)

    def write() -> None:
        writer = dataset.open_writer(bodhi.ALIEN)
        for number in range(n):
            writer.append(number, 0.0, positions, None, None, None)
        writer.close()

    rate = n / seconds(write) / 1e6
    report(f"{n / 1e6:g} million small frames: written from Python", f"{rate:.2f} M frames/s")
    opened = [_opened(place / "small", "read", n) for _ in range(max(repeats, 3))]
    took, resident, index, _, peak = map(statistics.median, zip(*opened, strict=True))
    report("small frames: open from the index", f"{took:.2f} s", "1 s")
    memory = f"{index / n:.1f}; {resident / n:.1f}; {peak / n:.1f} bytes"
    report("small frames: memory a frame (index; resident; peak)", memory, "40 bytes")
    for path in [*dataset.path.glob("*.idx"), *dataset.path.glob("*.tab")]:
        path.unlink()
    forget(segments_of(dataset))
    took = _opened(place / "small", "read", n)[0]
    report("small frames: open by rescan, page cache dropped", f"{took:.1f} s", "60 s")
    took = _opened(place / "small", "write", n)[0]
    report("small frames: rescan and rebuilding of the indexes", f"{took:.1f} s", "60 s")


def _opened(place: Path, how: str, n: int) -> list[float]:
    """Return what a process prints that opens the store."""
    found = list(map(float, checked([sys.executable, "-P", "-m", __spec__.name, str(place), how]).split()))
    if found[3] != n:
        raise AssertionError(f"{found[3]:.0f} of {n} frames of the benchmark are there")
    return found


def _open(place: str, how: str) -> None:
    store = Store(place, read_only=how == "read")
    before = _resident("VmRSS")
    start = time.perf_counter()
    facts = store.dataset("small", create=False).facts()  # an open alone looks at no segment
    took = time.perf_counter() - start
    after, peak = _resident("VmRSS"), _resident("VmHWM")
    print(took, after - before, facts["memory"], facts["alien"], peak - before)


def _resident(name: str) -> int:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    _open(*sys.argv[1:])
