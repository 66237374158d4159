"""A Universe as the input of a run, which makes its own of the same frames, topology and transformations."""

import hashlib
import inspect
import io
import os
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from himach.errors import UsageError
from himach.frame import RawFrame
from himach.io.trajectories.origin import OriginFacts
from himach.io.trajectories.timeline import Times, even_times
from himach.io.trajectories.xdr_file import FrameFile
from himach.ranks.shared_arrays import SharedArrays, SharedObject

if TYPE_CHECKING:
    from MDAnalysis import Universe
    from MDAnalysis.core.topology import Topology

#: Name of a trajectory in memory in place of a path.
NAME = "memory"
FIELDS = ("positions", "velocities", "forces")


class MemoryFrames(FrameFile):
    """Frames of a MemoryReader."""

    kind = "MEMORY"
    times: Times

    def __init__(self, reader: Any) -> None:
        super().__init__(NAME)
        self.stamps = ()
        self.n_frames, self.n_atoms = int(reader.n_frames), int(reader.n_atoms)
        self._bytes_per_frame = 12.0 * self.n_atoms  # of the positions
        order = reader.stored_order
        axes = [order.find(axis) for axis in "fac"]
        sources = zip(FIELDS, (reader.coordinate_array, reader.velocity_array, reader.force_array), strict=True)
        arrays = {name: np.transpose(array, axes) for name, array in sources if array is not None}
        self._shared = SharedArrays({**arrays, "boxes": np.asarray(reader.dimensions_array, dtype=np.float32)})
        start = float(reader.ts.data.get("time_offset", 0.0))
        self.times = even_times(self.n_frames, float(reader.dt), 0.0, start)

    def facts(self) -> OriginFacts:
        """Return the facts of the origin; the fingerprint covers the shape and the first and last frames."""
        digest = hashlib.sha256(repr((self.n_frames, self.n_atoms)).encode())
        arrays = self._shared.arrays
        for name in sorted(arrays):
            for index in (0, -1):
                digest.update(name.encode() + np.ascontiguousarray(arrays[name][index]).tobytes())
        timestep = float(self.times[1] - self.times[0]) if self.n_frames > 1 else None
        return OriginFacts(digest.hexdigest(), timestep, "velocities" in arrays, "forces" in arrays)

    def read(self, index: int, needed: int | None = None) -> RawFrame:
        """Return a copy of a whole frame."""
        arrays = self._shared.arrays
        vectors = [np.array(arrays[name][index], order="C") if name in arrays else None for name in FIELDS]
        positions, velocities, forces = vectors
        assert positions is not None
        box = np.array(arrays["boxes"][index])
        time = float(self.times[index])
        return RawFrame(index, time, positions, box if box[:3].any() else None, velocities, forces, data={})


#: Keywords of readers that are not keywords of a dataset: the input itself, or values that himach determines.
OWN = frozenset({"filename", "filenames", "n_atoms", "skip", "continuous", "refresh_offsets", "format"})
#: Prefix of file names in the reader of himach's cached frames.
SCHEME = "himach://"


@dataclass(frozen=True)
class UniverseInput:
    """The Universe given to a run, in a form that can be sent to ranks."""

    trajectories: Sequence[Path]
    topology_file: Path | None
    keywords: dict[str, Any]
    frames: MemoryFrames | None  # if the frames are in memory
    n_frames: int
    transformations: bytes  # of its trajectory, pickled without the Universe; empty if there are none
    _topology: SharedObject

    def topology(self) -> "Topology":
        """Return the topology at the start of the run."""
        topology: Topology = self._topology.copy()
        return topology

    def transform(self, universe: "Universe") -> None:
        """Add the transformations, bound to a Universe of the run, to its trajectory."""
        if self.transformations:
            universe.trajectory.add_transformations(*_Unpickler(self.transformations, universe).load())

    @property
    def unkept(self) -> str:
        """Reason why pairs of such a run are not kept; "" if they are."""
        if self.frames is not None:
            return "the frames are in the memory of the Universe, and pairs are kept for those of files"
        if self.transformations:
            return "kept pairs do not tell of the transformations of the Universe; add these in setup() instead"
        return ""

    @property
    def unrepeatable(self) -> str:
        """Reason why a record does not suffice to repeat such a run; "" if it does."""
        if self.frames is not None:
            return "its frames were in the memory of a Universe"
        return "the Universe that it was given has transformations" if self.transformations else ""


def is_universe(value: Any) -> bool:
    """Return whether a value is an MDAnalysis Universe, without importing MDAnalysis."""
    return any(
        cls.__module__ == "MDAnalysis.core.universe" and cls.__name__ == "Universe" for cls in type(value).__mro__
    )


def from_universe(universe: "Universe") -> UniverseInput:
    """Return the input that a run takes from a Universe."""
    from MDAnalysis.coordinates.memory import MemoryReader

    reader = getattr(universe, "_trajectory", None)
    if reader is None:
        raise UsageError("the Universe has no trajectory to analyse; load one by load_new()")
    if reader._auxs:
        raise UsageError(
            f"the Universe's auxiliary {next(iter(reader._auxs))!r} is not taken into a run: add it in setup(), by "
            "universe.trajectory.add_auxiliary()"
        )
    frames = MemoryFrames(reader) if isinstance(reader, MemoryReader) else None
    file = universe.filename
    return UniverseInput(
        trajectories=[Path("memory")] if frames is not None else _files(reader),
        topology_file=Path(file) if isinstance(file, str | Path) and os.path.exists(file) else None,
        keywords={} if frames is not None else reader_keywords(reader),
        frames=frames,
        n_frames=int(reader.n_frames),
        # A MemoryReader has applied them to all frames already.
        transformations=b"" if frames is not None else _pickle_transformations(universe, list(reader.transformations)),
        _topology=_share_topology(universe),
    )


def _share_topology(universe: "Universe") -> SharedObject:
    try:
        return SharedObject(universe._topology)
    except Exception:  # attributes may hold any object
        raise UsageError(
            "the Universe's topology cannot be sent to a run: one of its attributes cannot be pickled"
        ) from None


def _files(reader: Any) -> list[Path]:
    names = getattr(reader, "filenames", None)
    names = [reader.filename] if names is None else list(names)
    for name in names:
        if not isinstance(name, str | Path):  # an MDAnalysis stream is path-like too
            kind = "an array in memory" if name is None else f"a stream ({type(name).__name__})"
            raise UsageError(
                f"the Universe's trajectory has {kind} in place of a file; write it to a file, or load all of it into "
                "memory by Universe.transfer_to_memory()"
            )
    return [Path(str(name).removeprefix(SCHEME).partition("?")[0]) for name in names]


def reader_keywords(reader: Any) -> dict[str, Any]:
    """Return the keywords that the reader was opened with, except defaults."""
    from himach.io.trajectories.keywords import reader_class

    first = getattr(reader, "readers", [reader])[0]
    defaults = _default_keywords(type(first))
    values = {name: value for name, value in first._kwargs.items() if name not in OWN}
    keywords = {
        name: value
        for name, value in values.items()
        if name not in defaults or (defaults[name] is not inspect.Parameter.empty and defaults[name] != value)
    }
    try:
        detected = reader_class(os.fspath(_files(first)[0]), None)
    except (UsageError, OSError):
        detected = None
    if detected is not type(first) and not str(first.filename).startswith(SCHEME):
        keywords["format"] = str(np.atleast_1d(first.format)[0])
    return keywords


def _default_keywords(reader: type) -> dict[str, Any]:
    """Return the defaults of a reader's parameters; required ones, such as the file, have none."""
    defaults: dict[str, Any] = {"dt": None, "time_offset": None}
    for cls in reversed(reader.__mro__[:-1]):
        for name, parameter in inspect.signature(vars(cls).get("__init__", object.__init__)).parameters.items():
            defaults[name] = parameter.default
    return defaults


def _pickle_transformations(universe: "Universe", transformations: list[Any]) -> bytes:
    """Pickle transformations without the Universe of their groups; empty if there are none."""
    from himach.ranks.launch.code_pickle import CodePickler, by_value, unknown_elsewhere

    class Pickler(CodePickler):
        def persistent_id(self, value: Any) -> str | None:
            return "universe" if value is universe else None

    for transformation in transformations:
        if not getattr(transformation, "parallelizable", True):
            raise UsageError(
                f"the Universe's transformation {type(transformation).__name__} needs other frames, and each rank sees "
                "some frames only; run over a Universe without it, or over one in memory"
            )
    if not transformations:
        return b""
    content = io.BytesIO()
    unknown = unknown_elsewhere(getattr(item, "__module__", None) or "" for item in transformations)
    try:
        with by_value(unknown):
            Pickler(content, pickle.HIGHEST_PROTOCOL).dump(transformations)
    except Exception as error:
        raise UsageError(
            f"the Universe's transformations cannot be sent to a run ({type(error).__name__}: {error}); add them in "
            "setup()"
        ) from error
    return content.getvalue()


class _Unpickler(pickle.Unpickler):
    """Replaces the given Universe by one of the run."""

    def __init__(self, content: bytes, universe: "Universe") -> None:
        super().__init__(io.BytesIO(content))
        self._universe = universe

    def persistent_load(self, name: Any) -> Any:
        return self._universe
