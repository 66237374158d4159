"""A small trajectory, frames to push, an analysis that tells every bit of each frame, and ways to look into stores."""

import sys
import zlib
from collections.abc import Iterable
from pathlib import Path

import MDAnalysis as mda
import numpy as np
from support import needs
from support.ranks import mpiexec

import himach
from himach.io.datasets.lookup import dataset_name
from himach.io.store.store import Dataset, Store, StoreNotFoundError
from himach.io.trajectories.origin import open_origin

N_FRAMES = 64
N_ATOMS = 50


class Emit(himach.Analysis):
    """Emits of each frame its number, time, and a checksum of all that it holds."""

    def map(self, frame):
        arrays = (frame.positions, frame.box, frame.velocities, frame.forces)
        checksum = zlib.crc32(b"".join(b"-" if array is None else array.tobytes() for array in arrays))
        yield "frame", (frame.number, frame.time, checksum)

    def reduce(self, key, series):
        return series.values

    def finish(self, results):
        numbers, times, checksums = map(np.array, zip(*results["frame"], strict=True))
        return {"frames": {"number": numbers, "time": times, "checksum": checksums}, "dt": np.array([self.dt or -1.0])}


def make(
    folder: Path, n_frames: int = N_FRAMES, name: str = "md.trr", seed: int = 7, n_atoms: int = N_ATOMS
) -> tuple[Path, Path]:
    """Write a trajectory with velocities, and a topology; return their paths. More frames extend what fewer make."""
    universe = mda.Universe.empty(n_atoms, trajectory=True, velocities=True)
    universe.add_TopologyAttr("names", ["C"] * n_atoms)
    universe.add_TopologyAttr("resnames", ["RES"])
    universe.add_TopologyAttr("resids", [1])
    topology, trajectory = folder / "top.gro", folder / name
    random = np.random.default_rng(seed)
    units = {}
    if name.endswith(".h5md"):
        needs.module("h5py")
        units = {"lengthunit": "Angstrom", "timeunit": "ps", "velocityunit": "Angstrom/ps"}
    with mda.Writer(str(trajectory), n_atoms, multiframe=True, **units) as writer:
        for number in range(n_frames):
            ts = universe.trajectory.ts
            universe.atoms.positions = random.normal(0, 10, (n_atoms, 3))
            universe.atoms.velocities = random.normal(0, 1, (n_atoms, 3))
            ts.dimensions = [30 + number, 31, 32, 90, 90, 90]
            ts.time, ts.frame = 2.0 * number, number
            writer.write(universe.atoms)
    if not topology.exists():
        universe.atoms.write(str(topology))
    return topology, trajectory


def make_dump(folder: Path, n_frames: int = N_FRAMES) -> tuple[Path, Path]:
    """Write a LAMMPS dump, whose times are known by reading frames only; they are uneven."""
    topology, _ = make(folder, 1)
    trajectory = folder / "md.lammpsdump"
    random = np.random.default_rng(1)
    with trajectory.open("w") as file:
        for number in range(n_frames):
            file.write(f"ITEM: TIMESTEP\n{number * number}\nITEM: NUMBER OF ATOMS\n{N_ATOMS}\n")
            file.write("ITEM: BOX BOUNDS pp pp pp\n0 30\n0 30\n0 30\nITEM: ATOMS id type x y z\n")
            for atom, place in enumerate(random.uniform(0, 30, (N_ATOMS, 3))):
                file.write(f"{atom + 1} 1 {place[0]:.4f} {place[1]:.4f} {place[2]:.4f}\n")
    return topology, trajectory


def analyse(
    trajectory: Path, topology: Path | None, job: himach.Analysis | None = None, **options: object
) -> himach.Result:
    return himach.run(job or Emit(), trajectory, topology, progress=False, **options)


def numbers_of(result: himach.Result) -> list[int]:
    return [int(number) for number in result.outcome["frames"]["number"]]


def bits(outcome: dict) -> list[bytes]:
    columns = outcome["frames"]
    return [np.asarray(columns[name]).tobytes() for name in ("number", "time", "checksum")] + [outcome["dt"].tobytes()]


def datasets(place: Path, trajectory: Path) -> list[Dataset]:
    store = Store(place, create=False)
    name = dataset_name([trajectory])
    return [store.dataset(name, generation, create=False) for generation in store.generations(name)]


def only_dataset(place: Path, trajectory: Path) -> Dataset:
    (dataset,) = datasets(place, trajectory)
    return dataset


def put(dataset: Dataset, trajectory: Path, numbers: Iterable[int], *, native: bool) -> None:
    """Write frames of a trajectory to a store."""
    origin = open_origin([trajectory])
    for frame in origin.read(numbers):
        dataset.write(
            frame.number, frame.time, frame.box, frame.positions, frame.velocities, frame.forces, native=native
        )
    dataset.close()


def drop_all(dataset: Dataset) -> None:
    dataset.drop(sorted(dataset.alien))
    dataset.drop(sorted(dataset.native), native=True)


def write_xtc(path: Path, n_frames: int, n_atoms: int = 300, seed: int = 1) -> bytes:
    universe = mda.Universe.empty(n_atoms, trajectory=True)
    rng = np.random.default_rng(seed)
    with mda.Writer(str(path), n_atoms) as writer:
        for number in range(n_frames):
            universe.atoms.positions = rng.uniform(0, 50, (n_atoms, 3))
            universe.trajectory.ts.time = 2.0 * number
            writer.write(universe.atoms)
    return path.read_bytes()


def natives(place: Path) -> list[set[int]]:
    store = Store(place, read_only=True)
    return [set(store.open_directory(directory).native) for directory in store.directories()]


def held(place: Path) -> int:
    try:
        return sum(map(len, natives(place)))
    except StoreNotFoundError:  # just being made
        return 0


def stage_on_nodes(tmp_path: Path, nodes: list[str], *words: object, code: int | None = None):
    """Run ``himach stage``, or another command, with a rank on each of these nodes; see `mpiexec` for `code`."""
    return mpiexec(nodes, [sys.executable, "-P", "-m", "himach", *map(str, words)], disks=tmp_path, code=code)


def frame_of(number, n_atoms=100):
    return (np.arange(n_atoms * 3, dtype=np.float32) + number * 1000).reshape(n_atoms, 3)


def keep(dataset, numbers, **options):
    for number in numbers:
        dataset.write(number, 0.0, None, frame_of(number), **options)
    dataset.flush()


def push(running, numbers, n_atoms=100, **options):
    with himach.Writer("run", n_atoms, servers=[running.path], **options) as writer:
        for number in numbers:
            writer.number = number
            writer.push(frame_of(number, n_atoms), time=number / 2, box=[9, 9, 9, 90, 90, 90])
