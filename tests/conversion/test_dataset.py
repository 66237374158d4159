"""Conversions into a dataset of the node's store."""

import signal
import sys

import MDAnalysis as mda
import numpy as np
import pytest
from MDAnalysisTests.datafiles import DCD, GRO, PSF, TRR
from support.cache_data import make
from support.commands import himach as himach_command
from support.commands import start_himach, wait_until
from support.ranks import mpiexec

import himach
import himach.mdanalysis
from himach import StoreConflictError
from himach.io.store.quota import open_store
from himach.io.store.store import Store


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def arrays(trajectory):
    return [
        (ts.time, ts.dimensions, ts.positions.copy(), ts.velocities.copy() if ts.has_velocities else None)
        for ts in trajectory
    ]


@pytest.mark.parametrize("ranks", [None, 2])
def test_a_dataset_has_what_a_file_would(here, ranks):
    options = {"select": "protein", "wrap": "residues", "center": "name CA", "step": 2}
    himach.convert(TRR, GRO, out="out.trr", cache="off", **options)
    done = himach.convert(TRR, GRO, out="himach://run8", ranks=ranks, **options)
    assert (done.name, done.topology.name, done.frames) == ("himach://run8", "run8.pdb", 5)
    assert str(done).startswith("himach://run8: 5 frames of 3341 atoms")
    expected = arrays(mda.Universe("out.pdb", "out.trr").trajectory)
    frames = arrays(mda.Universe("run8.pdb", "himach://run8").trajectory)
    for frame, expected_frame in zip(frames, expected, strict=True):
        for value, meant in zip(frame, expected_frame, strict=True):
            np.testing.assert_allclose(value, meant, rtol=0, atol=2e-5)
    result = himach.run("rmsd", "run8", "run8.pdb")
    assert result.record["frames"] == 5


def test_a_dataset_is_written_once(here):
    himach.convert(DCD, PSF, out="himach://adk", stop=5)
    with pytest.raises(StoreConflictError, match=r"'himach convert, [0-9a-f]{16}'; choose another name"):
        himach.convert(DCD, PSF, out="himach://adk", stop=6, force=True)
    assert not [path for path in here.iterdir() if path.name != "adk.pdb"]
    again = himach.convert(DCD, PSF, out="himach://adk", stop=5, force=True)
    assert again.frames == 5
    assert len(mda.Universe(PSF, "himach://adk").trajectory) == 5
    with pytest.raises(StoreConflictError, match="choose another name"):
        himach.convert("adk", PSF, out="himach://adk", fit="name CA", force=True)


def test_members_become_datasets(here):
    members = [himach.Member("a", DCD, PSF, stop=3), himach.Member("b", DCD, PSF, start=90)]
    done = himach.convert(ensemble=members, out="himach://{member}-ca", select="name CA")
    assert [member.name for member in done.members.values()] == ["himach://a-ca", "himach://b-ca"]
    assert [len(mda.Universe(f"{name}-ca.pdb", f"himach://{name}-ca").trajectory) for name in "ab"] == [3, 8]


@pytest.mark.parametrize("words", [["--out", "out.trr", "--nojump"], ["--out", "out.xyz"]])
def test_frames_that_lie_on_several_nodes_are_converted_there(here, words):
    """Each rank gets those of its turn, from the node that has them."""
    topology, trajectory = make(here, n_frames=150)
    universe = mda.Universe(topology, trajectory)
    for node, odd in (("n", 0), ("m", 1)):
        dataset = Store(here / node).dataset("run7")
        for ts in universe.trajectory[odd::2]:
            dataset.write(ts.frame, ts.time, ts.dimensions, ts.positions, native=True)
        dataset.close()
    command = [sys.executable, "-P", "-m", "himach", "convert", "-s", str(topology), *words, "--quiet"]
    mpiexec("nmm", [*command, "run7"], disks=here, cwd=here, code=0)
    frames = arrays(mda.Universe(topology, words[1]).trajectory)
    assert himach_command(*command[4:], trajectory, "--force").returncode == 0
    for frame, expected in zip(frames, arrays(mda.Universe(topology, words[1]).trajectory), strict=True):
        np.testing.assert_array_equal(frame[2], expected[2])


def test_a_conversion_that_was_killed_goes_on_by_the_same_command(here, long):
    words = ("convert", long, "-s", GRO, "--out", "himach://long", "--stop", "200")
    running = start_himach(*words)
    assert wait_until(lambda: "long" in open_store().names(), 60)
    running.send_signal(signal.SIGKILL)
    running.communicate()
    himach_command(*words, "--force", code=0)
    read = mda.Universe(GRO, "himach://long").trajectory
    assert len(read) == 200
    origin = mda.Universe(GRO, str(long)).trajectory
    for number in (0, 100, 199):
        np.testing.assert_array_equal(read[number].positions, origin[number].positions)
