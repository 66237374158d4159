"""Trajectories that change while they are analysed, or are others on other nodes: told by name, and never mixed."""

import os
import shlex
import shutil
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from support import commands, needs
from support.cache_data import N_FRAMES, Emit, analyse, bits, make, numbers_of
from support.ranks import clean_environment, mpiexec

import himach
from himach.io.datasets import origin_stamp
from himach.io.datasets.lookup import dataset_name
from himach.io.frame_source import WHOLE
from himach.io.trajectories.origin import Origin
from himach.ranks.communicator import alone
from himach.staging.options import StageOptions
from himach.staging.stage import stage

NAMES = ["md.trr", "md.xtc", "md.dcd", "md.ncdf", "md.xyz", "md.h5md"]
MIDDLE = 20


class Changing(Emit):
    """Does something to the trajectory at a frame in the middle, or in setup()."""

    change: str = "nothing"
    trajectory: str = ""
    other: str = ""
    early: bool = False

    def setup(self, universe):
        if self.early:
            self.act()

    def map(self, frame):
        if frame.number == MIDDLE and not self.early:
            self.act()
        yield from super().map(frame)

    def act(self):
        getattr(self, f"_{self.change}")(Path(self.trajectory), Path(self.other))

    def _overwrite(self, trajectory, other):
        with trajectory.open("r+b") as file:
            file.write(other.read_bytes())
            file.truncate()

    def _replace(self, trajectory, other):
        Path(shutil.copy(other, f"{trajectory}.new")).rename(trajectory)

    def _disguise(self, trajectory, other):
        """Overwrite it, with the time of modification that it had."""
        before = trajectory.stat()
        self._overwrite(trajectory, other)
        os.utime(trajectory, ns=(before.st_atime_ns, before.st_mtime_ns))

    def _cut(self, trajectory, other):
        os.truncate(trajectory, trajectory.stat().st_size // 3)

    def _remove(self, trajectory, other):
        trajectory.unlink()

    def _grow(self, trajectory, other):
        with trajectory.open("ab") as file:
            file.write(other.read_bytes())

    def _touch(self, trajectory, other):
        trajectory.touch()


class Dying(Changing):
    """Is killed some time after it has overwritten the trajectory."""

    def map(self, frame):
        yield from super().map(frame)
        if frame.number == MIDDLE + 30:
            time.sleep(3)
            os.kill(os.getpid(), signal.SIGKILL)


class ReadingData(Changing):
    """Asks of each frame what caches do not keep."""

    def map(self, frame):
        assert frame.data
        yield from super().map(frame)


def two(folder: Path, name: str) -> tuple[Path, Path, Path]:
    """Return a topology, a trajectory, and another one of the same length."""
    topology, trajectory = make(folder, name=name)
    _, other = make(folder, name=f"other-{name}", seed=8)
    return topology, trajectory, other


def changing(trajectory: Path, other: Path, change: str, **options: object) -> Changing:
    return Changing(change=change, trajectory=str(trajectory), other=str(other), **options)


@pytest.fixture(params=["kept", "off"])
def cache(request, place):
    return place if request.param == "kept" else "off"


@pytest.mark.nightly(but=8)
@pytest.mark.parametrize(
    ("change", "words"),
    [
        *((change, "has changed since this run opened it.*rank 0") for change in ("overwrite", "replace", "disguise")),
        ("cut", "bytes and had.*has changed since"),
        ("remove", "is not there any more.*has changed since"),
    ],
)
@pytest.mark.parametrize("name", NAMES)
def test_another_trajectory_in_its_place_or_a_part_or_none(tmp_path, name, change, words, cache):
    topology, trajectory, other = two(tmp_path, name)
    before = shutil.copy(trajectory, tmp_path / "before")
    expected = analyse(trajectory, topology, cache="off")
    with pytest.raises(himach.TrajectoryError, match=rf"{trajectory}.*{words}"):
        analyse(trajectory, topology, changing(trajectory, other, change), cache=cache)
    shutil.copy(before, trajectory)  # as it was: nothing of the other one may come from the cache
    for _ in range(2):
        assert bits(analyse(trajectory, topology, cache=cache).outcome) == bits(expected.outcome)


def test_a_killed_run_leaves_no_frames_of_another_trajectory(tmp_path, place):
    topology, trajectory, other = two(tmp_path, "md.dcd")
    before = shutil.copy(trajectory, tmp_path / "before")
    expected = analyse(trajectory, topology, cache="off")
    program = (
        "import himach; from test_changing_origin import Dying\n"
        f"job = Dying(change='overwrite', trajectory={str(trajectory)!r}, other={str(other)!r})\n"
        f"himach.run(job, {str(trajectory)!r}, {str(topology)!r}, cache={str(place)!r}, progress=False)"
    )
    folders = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[2])])
    ended = commands.run_python("-P", "-c", program, environ=clean_environment(PYTHONPATH=folders))
    assert ended.returncode == -signal.SIGKILL
    shutil.copy(before, trajectory)
    result = analyse(trajectory, topology, cache=place)
    assert bits(result.outcome) == bits(expected.outcome)


@pytest.mark.parametrize("name", ["md.trr", "md.dcd"])
def test_replaced_between_opening_and_the_first_frame(tmp_path, name, cache):
    topology, trajectory, other = two(tmp_path, name)
    with pytest.raises(himach.TrajectoryError, match="has changed since"):
        analyse(trajectory, topology, changing(trajectory, other, "replace", early=True), cache=cache)


@pytest.mark.nightly(but=4)
@pytest.mark.parametrize("change", ["grow", "touch"])
@pytest.mark.parametrize("name", ["md.trr", "md.xtc", "md.xyz"])
def test_growth_and_touches_are_no_change(tmp_path, name, change, cache):
    topology, trajectory, other = two(tmp_path, name)
    expected = analyse(trajectory, topology, cache="off")
    result = analyse(trajectory, topology, changing(trajectory, other, change), cache=cache)
    assert bits(result.outcome) == bits(expected.outcome)
    if cache != "off" and change == "touch":
        assert analyse(trajectory, topology, cache=cache).record["bytes"]["origin"] == 0


@pytest.mark.nightly(but=2)
@pytest.mark.parametrize("name", ["md.trr", "md.xtc", "md.dcd", "md.ncdf"])
def test_the_simulation_goes_on(tmp_path, place, name):
    """DCD and NetCDF count their frames at the beginning of the file."""
    (tmp_path / "later").mkdir()
    topology, trajectory = make(tmp_path, name=name)
    _, later = make(tmp_path / "later", 2 * N_FRAMES, name=name)
    expected = analyse(trajectory, topology, cache="off")
    result = analyse(trajectory, topology, changing(trajectory, later, "overwrite"), cache=place)
    assert bits(result.outcome) == bits(expected.outcome)
    again = analyse(trajectory, topology, cache=place)
    assert numbers_of(again) == list(range(2 * N_FRAMES))
    assert again.record["bytes"]["cache"] > 0  # it is the same dataset


def test_data_of_cached_frames_is_not_that_of_another_trajectory(tmp_path, place):
    topology, trajectory, other = two(tmp_path, "md.trr")
    analyse(trajectory, topology, cache=place)
    job = ReadingData(change="replace", trajectory=str(trajectory), other=str(other))
    with pytest.raises(himach.TrajectoryError, match="has changed since"):
        analyse(trajectory, topology, job, cache=place)


def test_what_is_read_from_the_cache_alone_needs_no_origin(tmp_path, place):
    topology, trajectory, other = two(tmp_path, "md.trr")
    expected = analyse(trajectory, topology, cache=place)
    result = analyse(trajectory, topology, changing(trajectory, other, "replace"), cache=place)
    assert bits(result.outcome) == bits(expected.outcome)


@pytest.mark.nightly(but=2)
@pytest.mark.parametrize("change", ["overwrite", "replace", "cut"])
@pytest.mark.parametrize("name", ["md.trr", "md.dcd"])
def test_staging_of_a_trajectory_that_changes(tmp_path, place, monkeypatch, name, change):
    topology, trajectory, other = two(tmp_path, name)
    before = shutil.copy(trajectory, tmp_path / "before")
    expected = analyse(trajectory, topology, cache="off")
    act = getattr(Changing(), f"_{change}")

    def read(self, numbers, options=WHOLE):
        for frame in reading(self, numbers, options):
            if frame.number == MIDDLE:
                act(trajectory, other)
            yield frame

    reading = Origin.read
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(Origin, "read", read)
        with pytest.raises(himach.TrajectoryError, match="has changed since"):
            stage(alone(), StageOptions([trajectory], topology, cache=str(place), quiet=True))
    shutil.copy(before, trajectory)
    result = analyse(trajectory, topology, cache=place)
    assert bits(result.outcome) == bits(expected.outcome)


# --- Nodes ------------------------------------------------------------------------------------------------------------


def on_two_nodes(tmp_path: Path, trajectory: Path, topology: Path, there: Path, place: Path | str):
    """Run on two ranks, the second of which sees the file `there` in the trajectory's place."""
    needs.mount_namespace()
    out = tmp_path / "out"
    words = [sys.executable, "-P", "-m", "himach", "run", "rmsd", "-p", "selection=all"]
    words += ["-t", str(trajectory), "-s", str(topology), "--cache", str(place), "--out", str(out), "--quiet"]
    covered = shlex.join(["mount", "--bind", str(there), str(trajectory)])
    mounted = ["unshare", "-m", "sh", "-c", f"{covered} && HIMACH_NODE=b exec {shlex.join(words)}"]
    return mpiexec(1, ["env", "HIMACH_NODE=a", *words, ":", "-n", "1", *mounted])


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize(
    ("name", "there", "cache"),
    [
        ("md.dcd", "other", "kept"),
        ("md.trr", "other", "off"),
        ("md.dcd", "shorter", "kept"),
        ("md.trr", "copy", "kept"),
        ("md.dcd", "copy", "off"),
    ],
)
def test_another_file_on_another_node(tmp_path, name, there, cache):
    topology, trajectory, other = two(tmp_path, name)
    seen = shutil.copy(other if there == "other" else trajectory, tmp_path / "there")
    os.utime(seen, (1, 1))
    if there == "shorter":
        os.truncate(seen, trajectory.stat().st_size - 5000)
    done = on_two_nodes(tmp_path, trajectory, topology, seen, tmp_path / "store-{node}" if cache == "kept" else "off")
    if there == "copy":
        assert done.returncode == 0, done.stderr
        return
    assert done.returncode == 1, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "himach: error" in line]
    assert f"{trajectory} has" in line
    assert "rank 1 on node b, unlike on rank 0" in line


# --- Which of several contents is the last ----------------------------------------------------------------------------


def test_a_clock_that_goes_ahead_does_not_make_a_content_the_last(tmp_path, place, monkeypatch):
    topology, trajectory, other = two(tmp_path, "md.trr")
    first = shutil.copy(trajectory, tmp_path / "first")
    with monkeypatch.context() as ahead:
        late = SimpleNamespace(**{**vars(time), "time": lambda: time.time() + 2 * 86400})
        ahead.setattr(origin_stamp, "time", late)
        analyse(trajectory, topology, cache=place)
    for content in (other, first):
        shutil.copy(content, trajectory)
        expected = analyse(trajectory, topology, cache=place)
        trajectory.rename(f"{trajectory}.away")
        assert bits(analyse(trajectory, topology, cache=place).outcome) == bits(expected.outcome)
        assert numbers_of(expected) == list(range(N_FRAMES))
        Path(f"{trajectory}.away").rename(trajectory)


def test_an_older_content_is_not_served_for_the_keywords_it_was_kept_with(tmp_path, place):
    topology, trajectory, other = two(tmp_path, "md.trr")
    for universe in ({}, {"dt": 2.0}):
        analyse(trajectory, topology, cache=place, universe=universe)
    shutil.copy(other, trajectory)
    expected = analyse(trajectory, topology, cache=place, universe={"dt": 3.0})
    trajectory.unlink()
    assert bits(analyse(trajectory, topology, cache=place, universe={"dt": 3.0}).outcome) == bits(expected.outcome)
    for universe in ({}, {"dt": 2.0}):
        with pytest.raises(himach.UsageError, match=r"has changed since it was read with .* with dt=3\.0; give"):
            analyse(trajectory, topology, cache=place, universe=universe)


def test_contents_of_stores_that_never_met_are_not_put_in_order(tmp_path):
    topology, trajectory, other = two(tmp_path, "md.trr")
    stamps = []
    for content in (trajectory, other):
        shutil.copy(content, tmp_path / "it.trr")
        analyse(tmp_path / "it.trr", topology, cache=tmp_path / content.stem)
        store = himach.io.store.store.Store(tmp_path / content.stem)
        name = dataset_name([tmp_path / "it.trr"])
        (generation,) = store.generations(name)
        stamps.append(origin_stamp.OriginStamp.parse(store.dataset(name, generation).attachment("origin.json")))
    assert origin_stamp.latest([stamps[0]]) == stamps[0]
    with pytest.raises(himach.UsageError, match=r"several contents.*himach cache evict"):
        origin_stamp.latest(stamps)
