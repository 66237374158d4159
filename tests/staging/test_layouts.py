"""Staging in both layouts, as a user does it: the same outcomes, on one node and several; what is refused, and why."""

from __future__ import annotations

import json
import random
import shutil
import time

import numpy as np
import pytest
from MDAnalysisTests.datafiles import DCD, PSF
from support.cache_data import natives, stage_on_nodes, write_xtc
from support.commands import himach, start_himach

from himach.errors import UsageError
from himach.io.push.writer import Writer
from himach.io.store.quota import survey
from himach.io.store.store import Store
from himach.io.timemajor.form import open_form
from himach.locks import locked

N_FRAMES = 98
ADK = [DCD, "--topology", PSF]
FEW = """
import hashlib
import himach
import numpy as np

class Few(himach.Analysis):
    def atoms(self, universe):
        return universe.atoms[[5, 100, 2000, 3300]]

    def setup(self, universe):
        self.chosen = np.array([5, 100, 2000, 3300])

    def map(self, frame):
        box = b"none" if frame.box is None else frame.box.tobytes()
        yield frame.number, frame.positions[self.chosen].tobytes() + box + np.float64(frame.time).tobytes()

    def reduce(self, key, series):
        return hashlib.sha256(b"".join(series.values)).hexdigest()
"""
NODES = [["a"], ["a", "a", "b"]]


@pytest.fixture
def script(tmp_path):
    (tmp_path / "few.py").write_text(FEW)
    return tmp_path / "few.py"


def outcome(done, out, name="Few"):
    assert done.returncode == 0, done.stderr
    return (out / f"{name}.csv").read_bytes(), json.loads((out / "run.json").read_text())


def plain(tmp_path, *words):
    out = tmp_path / "plain"
    return outcome(himach("run", *words, "--cache", "off", "--out", out), out)[0]


def dataset_in(place):
    store = Store(place)
    (name,) = (name for name in store.names() if not name.endswith("]"))
    (generation,) = store.generations(name)
    return store.dataset(name, generation)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("nodes", NODES, ids=["one node", "three ranks on two"])
@pytest.mark.parametrize("layout", ["both", "time"])
def test_few_atoms_come_from_the_time_major_form(tmp_path, script, nodes, layout):
    words = [script, "-t", DCD, "-s", PSF]
    expected = plain(tmp_path, *words)
    assert stage_on_nodes(tmp_path, nodes, "stage", *ADK).returncode == 0
    table, before = outcome(stage_on_nodes(tmp_path, nodes, "run", *words, "--out", tmp_path / "o1"), tmp_path / "o1")
    assert table == expected
    done = stage_on_nodes(tmp_path, nodes, "stage", *ADK, "--layout", layout)
    assert done.returncode == 0, done.stderr
    names = sorted(set(nodes))
    assert f"0 of them now ({', '.join(f'{N_FRAMES // len(names)} on {name}' for name in names)})" in done.stdout
    assert f"{len(names)} chunks of the time-major form made" in done.stdout
    assert ("segments of frames dropped" in done.stdout) == (layout == "time")
    for name in names:
        assert len(dataset_in(tmp_path / name).native) == (0 if layout == "time" else N_FRAMES // len(names))
    table, after = outcome(stage_on_nodes(tmp_path, nodes, "run", *words, "--out", tmp_path / "o2"), tmp_path / "o2")
    assert table == expected
    assert after["assignment"] == {"native": N_FRAMES, "alien": 0, "residue": 0}
    assert after["bytes"]["origin"] == 0
    assert after["bytes"]["cache"] * 10 < before["bytes"]["cache"]
    table, _ = outcome(
        stage_on_nodes(tmp_path, nodes, "run", *words, "--step", "7", "--start", "3", "--out", tmp_path / "o3"),
        tmp_path / "o3",
    )
    chosen = [line for line in expected.splitlines()[1:] if int(line.split(b",")[0]) % 7 == 3]
    assert table.splitlines()[1:] == chosen
    again = stage_on_nodes(tmp_path, nodes, "stage", *ADK, "--layout", layout)
    assert "0 of them now" in again.stdout
    assert "; 0 chunks of the time-major form made" in again.stdout


def test_a_run_of_all_atoms_reads_frames_again_that_were_dropped(tmp_path):
    place = tmp_path / "store"
    assert himach("stage", *ADK, "--cache", place, "--layout", "time").returncode == 0
    (tmp_path / "all.py").write_text(FEW.replace("def atoms(", "def others(").replace("Few", "All"))
    words = ["run", tmp_path / "all.py", "-t", DCD, "-s", PSF]
    done = himach(*words, "--cache", place, "--out", tmp_path / "out")
    table, record = outcome(done, tmp_path / "out", "All")
    assert record["assignment"]["residue"] == N_FRAMES
    assert record["bytes"]["origin"] > 0
    assert table == outcome(himach(*words, "--cache", "off", "--out", tmp_path / "o"), tmp_path / "o", "All")[0]


@pytest.mark.nightly
@pytest.mark.slow
def test_from_any_layout_to_any_other(tmp_path, script):
    place = tmp_path / "store"
    words = [script, "-t", DCD, "-s", PSF]
    expected = plain(tmp_path, *words)
    chance = random.Random(1)
    for _ in range(5):
        layout = chance.choice(["frame", "time", "both", None])
        more = [] if layout is None else ["--layout", layout]
        done = himach("stage", *ADK, "--cache", place, *more)
        assert done.returncode == 0, done.stderr
        assert f"({N_FRAMES} on " in done.stdout
        form = open_form(dataset_in(place))
        if layout is not None:
            assert (form is None) == (layout == "frame")
            assert len(dataset_in(place).native) == (0 if layout == "time" else N_FRAMES)
            assert form is None or form.is_alone == (layout == "time")
        out = tmp_path / "out"
        assert outcome(himach("run", *words, "--cache", place, "--out", out), out)[0] == expected


def test_listings_tell_of_one_dataset(tmp_path):
    place = tmp_path / "store"
    himach("stage", *ADK, "--dataset", "adk", "--cache", place, "--layout", "both")
    listed = himach("cache", "list", "--cache", place).stdout.splitlines()
    assert len(listed) == 2
    assert listed[1].split()[:4] == ["adk", "98", "0", "both"]
    (one,) = json.loads(himach("datasets", "--json", "--cache", place).stdout)["datasets"]
    assert (one["name"], one["layout"], one["held"]) == ("adk", "both", N_FRAMES)
    assert "both" in himach("datasets", "--cache", place).stdout
    himach("stage", *ADK, "--dataset", "adk", "--cache", place, "--layout", "time")
    (one,) = json.loads(himach("datasets", "--json", "--cache", place).stdout)["datasets"]
    assert (one["name"], one["layout"], one["held"], one["whole"]) == ("adk", "time", N_FRAMES, True)
    assert himach("cache", "verify", "--cache", place).returncode == 0
    assert himach("cache", "evict", "adk", "--cache", place).returncode == 0
    assert not Store(place).directories()


def push(place, n_frames=30):
    """What a simulation has pushed: natives without an origin."""
    dataset = Store(place).dataset("sim", b"1")
    random = np.random.default_rng(3)
    for number in range(n_frames):
        dataset.write(number, float(number), None, random.normal(size=(500, 3)).astype(np.float32), native=True)
    dataset.close()


def test_pushed_frames_stay(tmp_path):
    place = tmp_path / "store"
    push(place)
    done = himach("stage", "sim", "--cache", place, "--layout", "both")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("sim: 30 frames staged, 0 of them now (30 on ")
    assert open_form(dataset_in(place)) is not None
    refused = himach("stage", "sim", "--cache", place, "--layout", "time")
    assert refused.returncode == 2
    assert "frames of sim were pushed and are nowhere else, so they stay as they are" in refused.stderr
    assert len(dataset_in(place).native) == 30
    assert not any(segment.pushed and segment.derived for segment in survey(place).segments)
    assert "was dropped" in himach("stage", "sim", "--cache", place, "--layout", "frame").stdout
    assert open_form(dataset_in(place)) is None
    assert len(dataset_in(place).native) == 30


def test_copies_of_what_is_asked_for_by_name_are_made_too(tmp_path):
    push(tmp_path / "a")
    done = stage_on_nodes(tmp_path, ["a", "b"], "stage", "sim", "--layout", "both", "--copies", "2")
    assert done.returncode == 0, done.stderr
    assert "30 copies made (30 on a, 30 on b)" in done.stdout
    assert open_form(dataset_in(tmp_path / "b")) is not None


def test_one_store_that_two_nodes_see_is_laid_out_once(tmp_path):
    push(tmp_path / "one")
    words = ["stage", "sim", "--cache", tmp_path / "one", "--layout"]
    done = stage_on_nodes(tmp_path, ["a", "b"], *words, "both")
    assert done.returncode == 0, done.stderr
    assert "1 chunks of the time-major form made" in done.stdout
    done = stage_on_nodes(tmp_path, ["a", "b"], *words, "frame")
    assert "the time-major form was dropped" in done.stdout
    assert len(dataset_in(tmp_path / "one").native) == 30


def test_what_could_not_be_read_again_is_not_dropped(tmp_path):
    place, trajectory = tmp_path / "store", tmp_path / "adk.dcd"
    shutil.copy(DCD, trajectory)
    words = ["stage", trajectory, "-s", PSF, "--cache", place]
    assert himach(*words, "--layout", "time").returncode == 0
    trajectory.rename(tmp_path / "away.dcd")
    for layout in ("time", "frame"):
        refused = himach(*words, "--layout", layout)
        assert refused.returncode == 2
        assert f"what --layout {layout} drops could not be read again" in refused.stderr
    assert himach(*words, "--layout", "both").returncode == 0
    refused = himach(*words, "--repair", "--copies", "1", "--layout", "frame")
    assert refused.returncode == 2
    assert "98 frames (from 0 on) are in the time-major form alone" in refused.stderr


def test_names_of_himach_s_own_are_refused(tmp_path):
    for name in ("sim [time-major]", "sim [slices]"):
        with pytest.raises(UsageError, match="himach's own"):
            Writer(name, 10, cache=tmp_path)
        assert himach("stage", *ADK, "--dataset", name, "--cache", tmp_path).returncode == 2


def test_what_only_has_the_name_of_a_form_stays(tmp_path):
    place = tmp_path / "store"
    push(place)
    other = Store(place).dataset("sim [time-major]", b"1")
    other.write(0, 0.0, None, np.zeros((5, 3), np.float32), native=True)
    other.close()
    for layout in ("both", "frame"):
        assert himach("stage", "sim", "--cache", place, "--layout", layout).returncode != 0
    assert len(Store(place).dataset("sim [time-major]", b"1").native) == 1


@pytest.mark.parametrize("layout", ["both", "frame"])
def test_a_job_waits_for_the_one_that_makes_the_same_form(tmp_path, layout):
    place = tmp_path / "store"
    push(place)
    with locked(dataset_in(place).path):
        waits = start_himach("stage", "sim", "--cache", place, "--layout", layout)
        time.sleep(2)
        assert waits.poll() is None
    assert waits.wait(60) == 0
    assert "waiting for another job" in waits.stderr.read()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nothing", "--layout", "both"], "no dataset nothing is there"),
        ([*ADK, "--layout", "both", "--follow"], "end --follow first"),
        (["sim", "--layout", "both", "--assemble"], "--assemble first"),
        (["sim", "--assemble", "--copies", "1"], "--assemble takes the name under which slices were pushed"),
        (["sim", "--layout", "time", "--repair"], "give the trajectory itself"),
        ([*ADK, "--layout", "atom"], "'atom' is not one of"),
    ],
)
def test_what_cannot_be(tmp_path, words, told):
    done = himach("stage", *words, "--cache", tmp_path / "store")
    assert done.returncode == 2
    assert told in done.stderr


def test_a_quota_without_room_says_so_and_costs_no_frame(tmp_path):
    place = tmp_path / "store"
    write_xtc(tmp_path / "a.xtc", 900, 3000)
    words = ["stage", tmp_path / "a.xtc", "--cache", place]
    assert himach(*words).returncode == 0
    quota = survey(place).used + (3 << 20)
    done = himach(*words, "--layout", "both", "--quota", str(quota))
    assert done.returncode == 1
    assert "no frames are evicted for it" in done.stderr
    assert survey(place).used <= quota
    assert natives(place)[0] == set(range(900)) or natives(place)[1] == set(range(900))
    assert himach(*words, "--layout", "both", "--quota", "1GB").returncode == 0


@pytest.mark.nightly
@pytest.mark.slow
def test_killed_while_it_turns_it_goes_on(tmp_path):
    place = tmp_path / "store"
    write_xtc(tmp_path / "a.xtc", 5000, 500)
    words = ["stage", tmp_path / "a.xtc", "--cache", place]
    assert himach(*words).returncode == 0
    chance = random.Random(5)
    for _ in range(4):
        process = start_himach(*words, "--layout", "time", "-n", "2")
        time.sleep(0.7 + chance.random())
        process.kill()
        process.communicate()
    done = himach(*words, "--layout", "time", "-n", "2")
    assert done.returncode == 0, done.stderr
    assert "(5000 on " in done.stdout
