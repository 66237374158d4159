"""Makes the seeds of fuzz_xtc: ``python native/fuzz/make_xtc_seeds.py``."""

from __future__ import annotations

import struct
import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt
from MDAnalysis.lib.formats.libmdaxdr import XTCFile

from himach.io.store.bodhi import crc32c
from himach.io.trajectory.xdr_header import parse_xtc

SEEDS = Path(__file__).with_name("seeds_xtc")
PRECISION = 1000


def frames() -> dict[str, npt.NDArray[np.int64]]:
    """Make steps of frames: runs as of water, none, a chain; sizes of more than 64 bits, and apart; more atoms."""
    rng = np.random.default_rng(1)
    first = rng.integers(0, 3000, (40, 1, 3))
    wide = np.cumsum(rng.integers(-90, 91, (30, 3)), axis=0)
    wide[7] += 2**24 - 2000  # three sizes of more than 23 bits: still one number
    apart = np.cumsum(rng.integers(-90, 91, (30, 3)), axis=0)
    apart[11] += 2**26
    return {
        "water": np.reshape(first + rng.integers(-90, 91, (1, 3, 3)), (-1, 3)),
        "gas": rng.integers(0, 100_000, (25, 3)),
        "chain": np.cumsum(rng.integers(-150, 151, (120, 3)), axis=0),
        "equal": np.zeros((64, 3), dtype=np.int64),
        "wide": wide,
        "apart": apart,
        "lake": np.reshape(rng.integers(0, 20_000, (700, 1, 3)) + rng.integers(-90, 91, (1, 3, 3)), (-1, 3)),
    }


def main() -> None:
    """Write the seeds."""
    SEEDS.mkdir(exist_ok=True)
    for name, steps in frames().items():
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory, "a.xtc")
            with XTCFile(str(path), "w") as file:
                file.write((steps / PRECISION).astype(np.float32), np.eye(3), 0, 0, PRECISION)
            data = path.read_bytes()
        head = parse_xtc(data[:96])
        if head.ends is None:
            raise AssertionError("a seed is not compressed")
        content = struct.pack("<HHB6i", len(steps) - 1, len(steps) // 2, head.sizes, *head.ends)
        content += data[head.at : head.at + head.n_bytes]
        (SEEDS / f"{name}-{crc32c(content):08x}").write_bytes(content)


if __name__ == "__main__":
    main()
