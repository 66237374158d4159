"""The reader and the writer under MDAnalysis's own tests of readers and writers."""

import MDAnalysis as mda
import pytest
from MDAnalysisTests.coordinates.base import BaseReference, BaseWriterTest, MultiframeReaderTest
from MDAnalysisTests.datafiles import COORDINATES_TOPOLOGY

from himach.mdanalysis import HimachReader, HimachWriter


class Reference(BaseReference):
    """The dataset that MDAnalysis's tests expect; boxes change, as they do in the tests of other formats."""

    def __init__(self):
        super().__init__()
        self.trajectory, self.topology = "himach://reference", COORDINATES_TOPOLOGY
        self.reader = HimachReader
        self.writer = HimachWriter
        self.ext = "himach"
        self.changing_dimensions = True

    def write(self):
        universe = mda.Universe.empty(self.n_atoms, trajectory=True)
        with mda.Writer(self.trajectory, self.n_atoms) as writer:
            for i in range(self.n_frames):
                ts = universe.trajectory.ts
                ts.positions = 2**i * self.first_frame.positions
                ts.time = i
                ts.dimensions = self.dimensions if i != 1 else self.dimensions_second_frame
                writer.write(universe)


@pytest.fixture(autouse=True)
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("HIMACH_CACHE", str(tmp_path / "store"))


@pytest.fixture
def ref(store):
    reference = Reference()
    reference.write()
    return reference


class TestReader(MultiframeReaderTest):
    pass


class TestWriter(BaseWriterTest):
    pass
