"""The trajectory of the benchmarks: AdK in water (47,681 atoms), cycled to any length with a little noise."""

import os
import tempfile
from pathlib import Path

import numpy as np

from himach.errors import UsageError

__all__ = ["FRAME_BYTES", "adk", "folder", "samples"]

FRAME_BYTES = 12 * 47_681


def folder() -> Path:
    """Return where benchmark data is kept between runs: in the temporary directory, private to the user."""
    path = Path(tempfile.gettempdir()) / f"himach-bench-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    if path.stat().st_uid != os.getuid():
        raise UsageError(f"{path} belongs to another user; set TMPDIR to a directory of your own")
    return path


def samples() -> tuple[str, str, str]:
    """Return the GRO, the TPR and the XTC of AdK, ten frames, that MDAnalysisTests ships."""
    try:
        from MDAnalysisTests.datafiles import GRO, TPR, XTC
    except ImportError:
        raise UsageError("this benchmark needs the AdK trajectory: pip install MDAnalysisTests") from None
    return GRO, TPR, XTC


def adk(n_frames: int, suffix: str = ".xtc") -> tuple[Path, Path]:
    """Return topology and trajectory of `n_frames`, made at the first call: an XTC, or by `suffix` another format.

    The ten frames in a cycle; each atom is shifted by a normal deviate of 0.05 Å, so that no two frames are equal and
    the compression does its usual work.
    """
    import MDAnalysis as mda

    gro, _, xtc = samples()
    path = folder() / f"adk-{n_frames}{suffix}"
    if not path.exists():
        source = mda.Universe(gro)
        source.load_new(xtc, refresh_offsets=False)
        frames = [(ts.positions.copy(), ts.dimensions.copy()) for ts in source.trajectory]
        random = np.random.default_rng(2026)
        temporary = path.with_suffix(f".tmp{suffix}")
        with mda.Writer(str(temporary), source.atoms.n_atoms) as writer:
            for i in range(n_frames):
                positions, box = frames[i % len(frames)]
                source.atoms.positions = positions + random.normal(0, 0.05, positions.shape).astype(np.float32)
                source.trajectory.ts.dimensions = box
                source.trajectory.ts.time = float(i)
                source.trajectory.ts.frame = i
                writer.write(source.atoms)
        temporary.rename(path)
    return Path(gro), path
