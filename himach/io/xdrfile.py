"""XTC and TRR files: `XdrFile`, our index with the decoder of MDAnalysis (libmdaxdr)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.errors import UsageError
from himach.frame import RawFrame
from himach.io.xdrindex import DAMAGED, POSITIONS, XdrIndex

__all__ = ["XdrFile"]

Times = npt.NDArray[np.float64]


class XdrFile:
    """An XTC or TRR file: our index, libmdaxdr's decoder, into buffers that every frame is read into again.

    Parameters
    ----------
    path
        The file.
    index
        Its index.
    keywords
        Of MDAnalysis: dt and time_offset (ps), convert_units.
    """

    def __init__(self, path: str, index: XdrIndex, keywords: Mapping[str, Any]) -> None:
        if "sub" in keywords:
            raise UsageError("the keyword 'sub' is not supported; select the atoms in the analysis")
        self.path = path
        self.stamps: tuple[str, ...] = (path,)
        self.topology: str | None = None
        self.keywords: Mapping[str, Any] = {}
        self.kind = index.kind
        self.n_frames = index.n_frames
        self.n_atoms = index.n_atoms
        self.index = index
        self.timed = keywords.get("dt") is None
        times = index.times
        if not self.timed:
            times = np.arange(self.n_frames, dtype=np.float64) * float(keywords["dt"])
        self.times: Times | None = times + float(keywords.get("time_offset", 0.0))
        self._factors = _factors() if keywords.get("convert_units", True) else (1.0, 1.0, 1.0)
        self._file: Any = None
        self._buffers: tuple[npt.NDArray[np.float32], ...] = ()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_file": None, "_buffers": ()}

    def read(self, index: int) -> RawFrame:
        """Decode one frame; its arrays hold until the next."""
        if self.index.has[index] & DAMAGED:
            raise ValueError("its coordinates are damaged")
        if not self.index.has[index] & POSITIONS:
            raise ValueError("it has no positions; select the frames that have them with --start and --step")
        if self._file is None:
            self._open()
        try:
            if self._file.tell() != index:
                self._file.seek(index)
            if self.kind == "XTC":
                frame = self._file.read_direct_x(*self._buffers)
            else:
                frame = self._file.read_direct_xvf(*self._buffers)
        except BaseException:
            self.release()  # where the decoder stands is not known any more
            raise
        return self._convert(frame, index)

    def _open(self) -> None:
        from MDAnalysis.lib.formats import libmdaxdr

        self._file = (libmdaxdr.XTCFile if self.kind == "XTC" else libmdaxdr.TRRFile)(self.path)
        self._file.set_offsets(self.index.offsets[:-1])
        shape = (self.n_atoms, 3)
        self._buffers = tuple(np.empty(shape, np.float32) for _ in range(1 if self.kind == "XTC" else 3))

    def _convert(self, frame: Any, index: int) -> RawFrame:
        """Turn nm into Å in the same steps as MDAnalysis, so that every bit agrees."""
        from MDAnalysis.lib.mdamath import triclinic_box

        has = int(self.index.has[index])
        vectors = [buffer if has & 1 << bit else None for bit, buffer in enumerate(self._buffers)]
        box = np.asarray(triclinic_box(*frame.box), dtype=np.float32)
        for array, factor in zip(vectors, self._factors, strict=False):
            if array is not None:
                np.multiply(array, factor, out=array)
        box[:3] *= self._factors[0]
        assert self.times is not None
        positions, *others = vectors
        assert positions is not None
        return RawFrame(index, float(self.times[index]), positions, box if box[:3].any() else None, *others)

    def nbytes(self, indices: npt.NDArray[np.int64]) -> int:
        """Return the bytes that these frames take in the file, from its index."""
        return int((self.index.offsets[indices + 1] - self.index.offsets[indices]).sum())

    def release(self) -> None:
        """Close the file until the next read."""
        if self._file is not None:
            self._file.close()
        self._file = None


def _factors() -> tuple[float, float, float]:
    """Return what turns positions, velocities and forces from GROMACS's units into those of MDAnalysis."""
    from MDAnalysis.units import get_conversion_factor

    return (
        float(get_conversion_factor("length", "nm", "Angstrom")),
        float(get_conversion_factor("speed", "nm/ps", "Angstrom/ps")),
        float(get_conversion_factor("force", "kJ/(mol*nm)", "kJ/(mol*Angstrom)")),
    )
