"""What others do beside a run that keeps its pairs: to its directory, its disk, its trajectory, its script."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from support.cache_data import make
from support.commands import himach, same_files, start_himach, wait_until
from support.needs import small_disk

from .sample import SCRIPT

pytestmark = [pytest.mark.slow]

N_FRAMES = 60
ANALYSES = ("Columns", "Presence", "Chain")
#: The analyses, which take their time.
SLOW = SCRIPT + (
    "\nimport os, time\n"
    "def slow(analysis):\n"
    "    quick = analysis.map\n"
    "    def map(self, frame):\n"
    "        yield from quick(self, frame)\n"
    "        time.sleep(float(os.environ.get('SLOW', 0)))\n"
    "    analysis.map = map\n"
    "for each in (Columns, Presence, Chain):\n"
    "    slow(each)\n"
)


class Ground:
    """A trajectory, a script, and what a run in one go makes of them."""

    def __init__(self, folder: Path, n_frames: int = N_FRAMES, trajectory: str = "run.xtc") -> None:
        self.folder, self.n_frames, self.trajectory = folder, n_frames, folder / trajectory
        make(folder, n_frames, trajectory)
        (folder / "script.py").write_text(SLOW)
        self.whole = self.right("whole")

    def words(self, out: str) -> list[object]:
        analyses = [f"{self.folder / 'script.py'}:{name}" for name in ANALYSES]
        data = ["--trajectory", self.trajectory, "--topology", self.folder / "top.gro", "--cache", "off"]
        return ["run", *analyses, *data, "--quiet", "--out", self.folder / out]

    def start(self, out: str, *words: object, slow: float = 0.0, every: float = 0.05) -> subprocess.Popen[str]:
        pause = slow / self.n_frames / len(ANALYSES)
        return start_himach(*self.words(out), *words, SLOW=str(pause), HIMACH_KEEP_EVERY=str(every))

    def right(self, out: str, *words: object) -> Path:
        himach(*self.words(out), *words, HIMACH_KEEP_EVERY="0.05", code=0)
        return self.folder / out

    def ended(self, run: subprocess.Popen[str]) -> str:
        _, message = run.communicate(timeout=90)
        assert run.returncode == 0, message
        return message

    def same(self, out: str) -> dict[str, object]:
        """Find the outcome of a run in one go; return what the record says of frames reused."""
        same_files(self.whole, self.folder / out)
        return json.loads((self.folder / out / "run.json").read_text())["reused"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return Ground(tmp_path_factory.mktemp("actors"))


@pytest.fixture
def ground(made, tmp_path):
    """A ground of this test's, with the outcome of a run in one go that was made for all."""
    shutil.copytree(made.folder, tmp_path / "ground")
    ground = object.__new__(Ground)
    ground.folder, ground.n_frames, ground.whole = tmp_path / "ground", N_FRAMES, tmp_path / "ground" / "whole"
    ground.trajectory = ground.folder / "run.xtc"
    return ground


def parts(place: Path) -> list[Path]:
    return sorted(place.glob("*/*/*.pairs"))


@pytest.mark.nightly
@pytest.mark.parametrize("moment", ["before", "while it keeps"])
def test_a_directory_that_is_removed_under_a_run(ground, moment):
    place = ground.folder / "pairs"
    run = ground.start("out", "--pairs", place, slow=1.5)
    assert wait_until(lambda: (place / ".lock").exists() if moment == "before" else parts(place), 60)
    while place.exists():
        shutil.rmtree(place, ignore_errors=True)
    message = ground.ended(run)
    ground.same("out")
    assert moment == "before" or message.count("No such file or directory") == 1
    ground.right("again", "--pairs", place)
    ground.same("again")


@pytest.fixture
def disk(tmp_path):
    """A file system of its own, of 100 kB."""
    with small_disk(tmp_path / "disk", "size=256k") as path:
        yield path


def test_a_disk_that_gets_full_ends_the_keeping_and_not_the_run(ground, disk):
    run = ground.start("out", "--pairs", disk / "pairs", slow=1.5)
    assert wait_until(lambda: parts(disk / "pairs"), 60)
    with pytest.raises(OSError, match="No space left on device"), open(disk / "others", "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    message = ground.ended(run)
    assert message.count("No space left on device") == 1
    ground.same("out")
    assert parts(disk / "pairs")
    assert not list(disk.rglob("*.tmp"))
    # As full as it is, what is there is used.
    message = ground.ended(ground.start("again", "--pairs", disk / "pairs"))
    assert 0 < ground.same("again")["frames"] < N_FRAMES


def test_a_disk_that_cannot_be_written_is_named_before_anything_is_read(ground, disk):
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    run = ground.start("out", "--pairs", disk / "pairs")
    _, message = run.communicate(timeout=60)
    assert run.returncode == 2
    assert f"pairs {disk / 'pairs'} cannot be written (Read-only file system)" in message


def test_a_trajectory_that_changes_under_a_run_leaves_nothing_of_what_was_read_then(tmp_path):
    n_frames = 600  # more than are read at a time, each at the place of the one that it takes
    ground = Ground(tmp_path, n_frames, "run.trr")
    place, trajectory = ground.folder / "pairs", ground.trajectory
    other = make(ground.folder, n_frames, "other.trr", seed=2)[1].read_bytes()
    true = trajectory.read_bytes()
    assert len(other) == len(true)
    run = ground.start("out", "--pairs", place, slow=8.0)
    assert wait_until(lambda: len(parts(place)) > 9, 60)
    with trajectory.open("r+b") as file:
        file.write(other)
    _, message = run.communicate(timeout=90)
    assert run.returncode == 1
    assert "has changed since this run opened it" in message
    # The changed one has nothing of what was kept, ...
    ground.right("changed", "--pairs", place)
    reused = json.loads((ground.folder / "changed" / "run.json").read_text())["reused"]
    assert reused["frames"] == 0
    assert "the trajectory has another content" in str(reused["reason"])
    ground.right("changed whole")
    same_files(ground.folder / "changed whole", ground.folder / "changed")
    # ... and the true one has, of what was read of it.
    trajectory.write_bytes(true)
    ground.right("again", "--pairs", place)
    assert 0 < ground.same("again")["frames"] < n_frames


def test_a_script_that_is_edited_under_a_run(ground):
    place, script = ground.folder / "pairs", ground.folder / "script.py"
    run = ground.start("out", "--pairs", place, slow=1.5)
    assert wait_until(lambda: parts(place), 60)
    script.write_text(SLOW.replace("% 7 < 3.5", "% 7 < 2.25"))
    ground.ended(run)
    ground.same("out")
    ground.right("edited", "--pairs", place)
    ground.right("edited whole")
    same_files(ground.folder / "edited whole", ground.folder / "edited")
    script.write_text(SLOW)
    ground.right("again", "--pairs", place)
    assert ground.same("again")["frames"] == N_FRAMES
