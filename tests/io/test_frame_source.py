"""Sources of frames on this machine: a store, slices in one, files of several kinds, and a trajectory in memory."""

import numpy as np
import pytest
from support import needs

import himach
from himach.io.datasets.source import Source
from himach.io.datasets.subsets import open_kept_atoms, open_subset
from himach.io.datasets.universe_input import MemoryFrames
from himach.io.frame_source import ReadOptions
from himach.io.push.held_slices import find_slices
from himach.io.store.store import Store
from himach.io.trajectories.origin import Origin, open_origin

from .frame_sources import (
    BOX,
    N_ATOMS,
    N_FRAMES,
    NOTE,
    CachedFramesTests,
    FrameSourceTests,
    OriginTests,
    fill,
    make_positions,
    write_files,
)
from .trajectories.h5md.trees import BASE, write


class TestStore(CachedFramesTests):
    @pytest.fixture(params=[{}, {"segment_bytes": 500_000}], ids=["few segments", "many segments"])
    def source(self, request, tmp_path):
        for first in range(3):  # writers whose frames lie between one another
            fill(Store(tmp_path).dataset("/sim1", b"g1", **request.param), range(first, N_FRAMES, 3))
        dataset = Store(tmp_path).dataset("/sim1", b"g1", create=False)
        dataset.attach("note", NOTE)
        assert (len(dataset.segments()) > 6) == bool(request.param)
        return dataset


class TestSlices(FrameSourceTests):
    """What one process of a simulation has pushed, which has all atoms here."""

    @pytest.fixture
    def source(self, tmp_path):
        with himach.Writer("run", N_ATOMS, cache=tmp_path, rank=0) as writer:
            for number in range(N_FRAMES):
                writer.push_slice(number, np.arange(N_ATOMS), make_positions(number), time=number / 2, box=BOX)
        (held,) = find_slices(Store(tmp_path), "run").values()
        (dataset,) = held.datasets
        return dataset


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Frames in two files, as exact as XTC is."""
    return open_origin(write_files(tmp_path_factory.mktemp("files")))


class TestFiles(OriginTests):
    tolerance = 1e-4

    @pytest.fixture
    def source(self, files):
        return files


@pytest.fixture(scope="module", params=["a.h5md", "a.zarr"])
def h5md(request, tmp_path_factory):
    """Frames in chunks of a few atoms of a few frames."""
    for package in ("h5py", "zarr"):
        needs.module(package)
    content = {f"{BASE}/box": (None, {"dimension": 3})}
    for path, values in (
        ("position", np.stack([make_positions(number) for number in range(N_FRAMES)])),
        ("box/edges", np.tile(BOX[:3], (N_FRAMES, 1))),
    ):
        content[f"{BASE}/{path}/value"] = (values, {"unit": "Angstrom"})
        content[f"{BASE}/{path}/step"] = (np.arange(N_FRAMES), {})
        content[f"{BASE}/{path}/time"] = (np.arange(N_FRAMES) / 2, {"unit": "ps"})
    compressed = {"compression": "lzf"} if request.param == "a.h5md" else {}
    return open_origin([write(tmp_path_factory.mktemp("h5md") / request.param, content, 6, 4000, **compressed)])


class TestH5md(OriginTests):
    @pytest.fixture
    def source(self, h5md):
        return h5md


class TestMemory(OriginTests):
    @pytest.fixture
    def source(self):
        import MDAnalysis as mda
        from MDAnalysis.coordinates.memory import MemoryReader

        positions = np.stack([make_positions(number) for number in range(N_FRAMES)])
        universe = mda.Universe.empty(N_ATOMS)
        universe.load_new(positions, format=MemoryReader, dt=0.5, dimensions=BOX)
        frames = MemoryFrames(universe.trajectory)
        return Origin([frames], {}, frames.facts())


class TestKeptAtoms(FrameSourceTests):
    """A subset of a dataset's atoms that has all of them."""

    @pytest.fixture
    def source(self, tmp_path):
        store = Store(tmp_path)
        with open_subset(store.dataset("/sim1", b"g1"), np.arange(N_ATOMS)).dataset as dataset:
            for number in range(N_FRAMES):
                dataset.write(number, number / 2, BOX, make_positions(number))
        (kept,) = open_kept_atoms(store.dataset("/sim1", b"g1"), np.arange(N_ATOMS), N_ATOMS)
        return kept

    def test_frames_of_atoms_that_are_not_there_are_misses(self, tmp_path):
        dataset = Store(tmp_path).dataset("/sim1", b"g1")
        with open_subset(dataset, np.array([3, 5])).dataset as subset:
            subset.write(0, 0.0, BOX, make_positions(0)[[3, 5]])
        (kept,) = open_kept_atoms(dataset, np.array([5]), N_ATOMS)
        assert list(kept.read([0], ReadOptions(np.array([5, 7])))) == [None]
        self.check(next(kept.read([0], ReadOptions(np.array([5])))), 0, [5])


class TestSource(OriginTests):
    """A run's source of some frames that are cached and others that are not."""

    tolerance = 1e-4

    @pytest.fixture
    def source(self, files, tmp_path):
        fill(Store(tmp_path).dataset("/sim1", b"g1"), range(0, N_FRAMES, 3))
        source = Source(files, Store(tmp_path).dataset("/sim1", b"g1"), keep=True)
        yield source
        source.close()

    def test_each_frame_comes_from_where_it_is(self, source, files):
        list(source.read(range(0, N_FRAMES, 3)))
        assert source.bytes_cache > 0 and source.bytes_origin == 0
        list(source.read([1, 2]))
        assert source.bytes_origin == files.nbytes([1, 2])
