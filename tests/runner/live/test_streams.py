"""Runs over the frames of an engine, with streams as they come and as they should not."""

import signal
import sys
import time

import numpy as np
import pytest
from runner.live.engines import N_ATOMS, MadeUpEngine, made_up, topology
from support.cache_data import Emit
from support.commands import DATA, himach, processes_with, same_files, start_himach, wait_until, write_analysis
from support.ranks import mpiexec

import himach as package
from himach.errors import TrajectoryError, UsageError
from himach.io.store.quota import open_store
from himach.runner.live import updates


def kept(name):
    dataset = open_store().dataset(name, create=False)
    return [
        (frame.number, frame.time, frame.box, frame.positions.copy(), frame.velocities, frame.forces)
        for frame in dataset.read(sorted(dataset.native))
    ]


def run(engine, top, query="", analysis=None, **options):
    return package.follow(analysis or Emit(), engine.address + query, top, progress=False, dataset="run7", **options)


def test_every_outcome_is_that_of_the_frames_so_far_and_the_last_that_of_the_dataset(tmp_path):
    universe, top, counts = made_up(23), topology(tmp_path), []
    with MadeUpEngine(universe, hold=12) as engine:

        def update(result):
            counts.append(len(result.outcome["frames"]["number"]))
            engine.go.set()

        result = run(engine, top, every=5, out=tmp_path / "out", on_update=update)
    assert counts[-1] == 23
    assert counts == sorted(set(counts))
    assert all(count % 5 == 0 for count in counts[:-1])
    assert len(counts) > 1
    assert result.record["live"]["engine"] == engine.address
    for number, (ts, frame) in enumerate(zip(universe.trajectory, kept("run7"), strict=True)):
        assert frame[:2] == (number, pytest.approx(0.5 * number))
        np.testing.assert_array_equal(frame[3], ts.positions)
        np.testing.assert_array_equal(frame[4], ts.velocities)
        np.testing.assert_allclose(frame[2], ts.dimensions, rtol=1e-5)
    again = package.run(Emit(), "run7", top, progress=False, out=tmp_path / "again")
    same_files(tmp_path / "out", tmp_path / "again")
    assert again.record["frames"] == result.record["frames"] == 23
    assert "live" not in again.record


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize("session", [{"velocities": False}, {"box": False}, {"time": False}, {"endianness": ">"}])
def test_streams_without_this_or_that(tmp_path, session):
    universe = made_up(4, triclinic=False)
    with MadeUpEngine(universe, **session) as engine:
        result = run(engine, topology(tmp_path))
    assert list(result.outcome["frames"]["number"]) == [0, 1, 2, 3]
    number, time, box, positions, velocities, forces = kept("run7")[3]
    assert (number, time) == (3, 3.0 if "time" in session else pytest.approx(1.5))
    assert (box is None) == ("box" in session)
    assert (velocities is None) == ("velocities" in session)
    assert forces is None
    np.testing.assert_array_equal(positions, universe.trajectory[3].positions)


def test_an_engine_that_is_lost_in_the_middle_of_a_frame(tmp_path, capsys):
    with MadeUpEngine(made_up(6), cut=10) as engine:
        result = run(engine, topology(tmp_path), every=4)
    assert list(result.outcome["frames"]["number"]) == [0, 1, 2, 3, 4, 5]


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize(
    ("session", "atoms", "message"),
    [
        ({"version": 2}, N_ATOMS, "version 2 of IMD"),
        ({"positions": False}, N_ATOMS, "sends no positions"),
        ({}, N_ATOMS + 1, "Ensure you are using the correct topology file"),
    ],
)
def test_streams_of_no_use_leave_nothing(tmp_path, session, atoms, message):
    with MadeUpEngine(made_up(3), **session) as engine, pytest.raises(TrajectoryError, match=message):
        run(engine, topology(tmp_path, atoms))
    assert open_store().directories() == []


def test_what_is_refused(tmp_path, monkeypatch):
    top = topology(tmp_path)
    asked = {"source": "imd://localhost:1", "topology": top, "progress": False}
    for more, message in [
        ({"topology": None}, "name a topology file"),
        ({"cache": "off"}, "makes no sense"),
        ({"every": 0}, "every is 0"),
        ({"idle": 0}, "idle is 0"),
        ({"source": "imd://localhost"}, "imd://HOST:PORT"),
        ({"source": "imd://localhost:1?units=lj"}, "units=metal"),
        ({"source": ["imd://localhost:1", "a.xtc"]}, "no other trajectory"),
        ({"source": ["a.xtc", "imd://localhost:1"]}, "follows none"),
        ({"topology": tmp_path / "none.gro"}, "there is no topology"),
        ({"source": top, "dataset": "run7"}, "for the frames of a running engine"),
        ({"source": "nothing", "every": 5}, "no dataset of this name yet"),
    ]:
        with pytest.raises(UsageError, match=message):
            package.follow(Emit(), **(asked | more))
    with pytest.raises(TrajectoryError, match="nobody listens there"):
        package.follow(Emit(), **asked, idle=0.5)
    monkeypatch.setattr(updates, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"himach\[live\]"):
        package.follow(Emit(), **asked)


def test_an_engine_begins_when_the_ranks_have_started(tmp_path):
    with package.Ranks(1) as ranks:
        pass
    with MadeUpEngine(made_up(3)) as engine:
        with pytest.raises(UsageError, match="were closed"):
            run(engine, topology(tmp_path), ranks=ranks)
        assert engine.sent == 0
    assert open_store().directories() == []


def test_a_name_is_taken_once(tmp_path):
    with MadeUpEngine(made_up(2)) as engine:
        run(engine, topology(tmp_path))
    with MadeUpEngine(made_up(2)) as engine, pytest.raises(TrajectoryError, match="there is a dataset run7 already"):
        run(engine, topology(tmp_path))
    assert len(kept("run7")) == 2


class Slow(Emit):
    """Takes its time."""

    def map(self, frame):
        time.sleep(0.1)
        yield from super().map(frame)


@pytest.mark.nightly
def test_an_engine_is_paused_while_the_analysis_is_late(tmp_path):
    n_atoms = 20_000
    with MadeUpEngine(made_up(400, n_atoms, velocities=False)) as engine:
        began = time.monotonic()
        result = run(engine, topology(tmp_path, n_atoms), buffer="4MB", every=300)
    assert result.record["frames"] == 400
    assert time.monotonic() - began < 60
    assert "IMD_PAUSE" in engine.asked
    assert "IMD_RESUME" in engine.asked
    assert result.record["live"]["pauses"] > 0


def test_what_is_not_chosen_holds_up_nothing(tmp_path):
    with MadeUpEngine(made_up(60)) as engine:
        result = run(engine, topology(tmp_path), every=2, start=50, buffer=5 * 24 * N_ATOMS)
    assert list(result.outcome["frames"]["number"]) == list(range(50, 60))


def test_an_analysis_that_fails_leaves_the_frames(tmp_path, capsys):
    class Wrong(Emit):
        def map(self, frame):
            raise KeyError(frame.number)

    with MadeUpEngine(made_up(20), hold=10) as engine, pytest.raises(package.AnalysisError, match="Wrong"):
        run(engine, topology(tmp_path), analysis=Wrong(), every=2)
    assert "the frames that came are kept as dataset run7" in capsys.readouterr().err
    assert len(kept("run7")) == 10


def test_frames_are_left_out_where_that_was_asked_for(tmp_path):
    with MadeUpEngine(made_up(60), rate=100) as engine:
        result = run(engine, topology(tmp_path), analysis=Slow(), every=2, stride_when_late=5, buffer=5 * 24 * N_ATOMS)
    numbers = [frame[0] for frame in kept("run7")]
    assert engine.sent == 60
    assert result.record["live"]["left_out"] == 60 - len(numbers) > 0
    assert "IMD_PAUSE" not in engine.asked
    assert set(range(0, 60, 5)) <= set(numbers)
    assert list(result.outcome["frames"]["number"]) == numbers
    again = package.run(Emit(), "run7", topology(tmp_path), progress=False)
    assert list(again.outcome["frames"]["checksum"]) == list(result.outcome["frames"]["checksum"])


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_first_interruption_ends_the_stream_and_gives_the_outcome(tmp_path, ranks):
    write_analysis(tmp_path / "count.py", "yield 'frames', frame.number")
    words = ["follow", tmp_path / "count.py", "-s", topology(tmp_path), "--dataset", "run7", "--every", 5, "-n", ranks]
    with MadeUpEngine(made_up(40), hold=12) as engine:
        process = start_himach(*words, "-t", engine.address, "--out", tmp_path / "out")
        try:
            assert wait_until((tmp_path / "out" / "run.json").exists, 40)
            process.send_signal(signal.SIGINT)
            out, error = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 0, error
    assert "no more frames are taken" in error
    assert "after 12 frames, kept as dataset run7" in error
    assert "12" in out
    assert wait_until(lambda: "IMD_DISCONNECT" in engine.asked)
    himach("run", *words[1:4], "-t", "run7", "--out", tmp_path / "again", code=0)
    same_files(tmp_path / "out", tmp_path / "again")


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize(
    ("signals", "codes"),
    # By a signal or with its code, which a shell tells alike: where map() is long, a thread ends the process.
    [([signal.SIGINT] * 2, [130]), ([signal.SIGTERM], [143, -15]), ([signal.SIGKILL], [-9])],
)
def test_what_ends_a_run_leaves_no_process(tmp_path, monkeypatch, signals, codes):
    write_analysis(tmp_path / "count.py", "time.sleep(60)\nyield 'frames', frame.number", before="import time")
    monkeypatch.setenv("HIMACH_TEST_MARK", mark := str(tmp_path))
    with MadeUpEngine(made_up(40), hold=12) as engine:
        words = ["follow", tmp_path / "count.py", "-s", topology(tmp_path), "--dataset", "run7", "--every", 5]
        process = start_himach(*words, "-t", engine.address)
        try:
            assert wait_until(lambda: engine.sent == 12, 40)
            assert wait_until(lambda: len(processes_with(mark)) > 1)
            time.sleep(2)
            for number in signals:
                process.send_signal(number)
                time.sleep(0.5)
            process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode in codes
    assert wait_until(lambda: not processes_with(mark), 30)
    assert len(kept("run7")) == 12


@pytest.mark.slow
def test_no_frame_is_one_error_of_all_ranks():
    command = [sys.executable, "-P", "-m", "himach", "follow", "rmsd", "-t", "nothing", *DATA[2:], "--idle", "1"]
    done = mpiexec(2, command, timeout=90, code=1)
    assert done.stderr.count("there is no frame to analyse") == 1
