"""H5MD files by h5py: `H5mdFile`, a `FrameFile` and the base of the one for Zarr.

MDAnalysis's own reader reads an array twice per frame, and decodes a chunk again for each frame in it.
"""

import contextlib
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.errors import HimachError, TrajectoryError, UsageError
from himach.frame import RawFrame, Vectors
from himach.io.trajectories.file_failures import reason
from himach.io.trajectories.h5md.layout import Element, H5mdLayout, Rows, read_layout
from himach.io.trajectories.urls.byte_file import local_path, read_status
from himach.io.trajectories.xdr_file import FrameFile, make_box


class H5mdFile(FrameFile):
    """An H5MD file."""

    kind = "H5MD"

    def __init__(
        self,
        path: str,
        dt: float | None = None,
        time_offset: float = 0.0,
        convert_units: bool = True,
        group: str | None = None,
        **kwargs: Any,  # for the topology
    ) -> None:
        super().__init__(path)
        self.stamps = self._stamps()
        layout = self._layout = self._read_layout(group, convert_units)
        self.n_frames, self.n_atoms = layout.n_frames, layout.n_atoms
        self._set_times(layout.times, dt, time_offset)
        if self.times is None:
            self.release()
            raise TrajectoryError(f"{self.path} has no times of its positions; give their distance as the keyword dt")
        self._bytes_per_frame = self._size() / self.n_frames

    def read(self, index: int, needed: int | None = None) -> RawFrame:
        """Return a frame with only the first `needed` atoms; its arrays are valid until the next read."""
        if not 0 <= index < self.n_frames:
            raise ValueError(f"there is no frame {index} in it")
        elements = self._layout.vectors.items()
        vectors = {name: self._vectors(name, element, index, needed) for name, element in elements}
        box, data = self._frame_box(index), self._data(index)
        assert self.times is not None
        positions = vectors["position"]
        assert positions is not None
        return RawFrame(
            index, float(self.times[index]), positions, box, vectors.get("velocity"), vectors.get("force"), data=data
        )

    def release(self) -> None:
        """Close the file until the next read."""
        root = self._root
        self._forget()
        if root is not None:
            with contextlib.suppress(OSError):  # the file server may be away
                self._close(root)

    def _forget(self) -> None:
        super()._forget()
        self._root: Any = None
        self._rows: dict[str, Any] = {}
        self._out: dict[str, Vectors] = {}
        self._edges = b""
        self._box: npt.NDArray[np.float32] | None = None

    def _read_layout(self, group: str | None, converted: bool) -> H5mdLayout:
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", UserWarning)
                layout = read_layout(self._get_root(), self._array, group, converted)
        except HimachError:
            raise
        except Exception as error:
            self.release()
            raise TrajectoryError(f"{self.path} cannot be read as {self.kind}: {reason(error)}") from error
        for warning in caught:
            warnings.warn(f"{self.path}: {warning.message}", warning.category, stacklevel=4)
        if layout.n_frames < 1:
            self.release()
            raise TrajectoryError(f"{self.path} has no frame")
        return layout

    def _vectors(self, name: str, element: Element, index: int, needed: int | None) -> Vectors | None:
        row = element.row(index)
        if row < 0:
            return None
        if name not in self._out:
            self._out[name] = np.empty((self.n_atoms, 3), np.float32)
        out = self._out[name]
        rows = out[:needed]
        rows[:] = self._array(element.path).at(row, needed)
        if element.factor != 1:
            rows *= np.float32(element.factor)
        return out

    def _frame_box(self, index: int) -> npt.NDArray[np.float32] | None:
        """Return a frame's box as MDAnalysis's reader does."""
        element = self._layout.edges
        if element is None:
            return None
        edges = self._array(element.path).at(element.row(index)) if element.value is None else element.value
        if edges.tobytes() != self._edges:
            self._edges, self._box = edges.tobytes(), make_box(edges, element.factor)
        return None if self._box is None else self._box.copy()

    def _data(self, index: int) -> dict[str, Any]:
        steps = self._layout.steps
        data = {"step": self._array(steps).at(index) if isinstance(steps, str) else steps[0] + steps[1] * index}
        for name, element in self._layout.observables.items():
            if element.value is not None:
                data[name] = element.value
            elif (row := element.row(index)) >= 0:
                data[name] = self._array(element.path).at(row)
        return data

    def _array(self, path: str) -> Any:
        if path not in self._rows:
            self._rows[path] = self._make_rows(self._get_root()[path])
        return self._rows[path]

    def _get_root(self) -> Any:
        if self._root is None:
            self._root = self._open()
        return self._root

    # Overridden for Zarr.

    def _stamps(self) -> tuple[str, ...]:
        return (self.path,)

    def _size(self) -> int:
        return read_status(self.path).size

    def _open(self) -> Any:
        try:
            import h5py
        except ImportError:
            raise UsageError(f"{self.path}: H5MD files need h5py: pip install 'himach[h5md]'") from None
        return h5py.File(local_path(self.path), "r", locking="best-effort")  # some file systems have no locks

    def _close(self, root: Any) -> None:
        root.close()

    def _make_rows(self, array: Any) -> Rows:
        decoded = array.chunks is not None and array.id.get_create_plist().get_nfilters() > 0
        return Rows(array, array.chunks[0] if decoded else 1)
