"""Kept pairs that are damaged, or of a run that was killed: the outcome is right, and the directory usable."""

import json
import os
import re
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
from pyroaring import BitMap64
from support import needs
from support.cache_data import make
from support.commands import killed_at_touch

import himach
from himach.checkpoint.directory import LOCK, MAP, FingerprintVersion, PairsDirectory, _digest
from himach.checkpoint.part import read_summary
from himach.checkpoint.reuse import find_parts
from himach.ranks.communicator import alone
from himach.runner.scripts import load_script

from .sample import SCRIPT

NAMES = ("Columns", "Presence", "Chain")
N_FRAMES = 6
OTHER = "f" * 16 + ".pairs"


class Ground:
    """A trajectory, analyses, and a directory of pairs that several runs kept."""

    def __init__(self, folder: Path) -> None:
        make(folder, N_FRAMES, "run.xtc")
        (folder / "damaged.py").write_text(SCRIPT)
        self.analyses = load_script(folder / "damaged.py")
        self.folder, self.pairs, self._good = folder, folder / "pairs", folder / "good"
        whole, _ = self.run()
        self.text = whole.text()
        for stop in (2, 5, None):
            self.run(pairs=self.pairs, stop=stop)
        (self.pairs / LOCK).write_text("process 1 on nowhere, since then")  # a killed run's
        shutil.copytree(self.pairs, self._good)

    def run(self, **keywords: Any) -> tuple[himach.Result, list[str]]:
        """Make a run; return also what it warned of (what other tests left open may be found in the meantime)."""
        analyses = [self.analyses[name]() for name in NAMES]
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            data = self.folder / "run.xtc", self.folder / "top.gro"
            result = himach.run(analyses, *data, cache="off", **keywords)
        return result, [str(item.message) for item in warned if item.category is UserWarning]

    def clear(self) -> None:
        shutil.rmtree(self.pairs, ignore_errors=True)

    def restore(self) -> None:
        self.clear()
        shutil.copytree(self._good, self.pairs, symlinks=True)

    def part(self, label: str = "Columns") -> Path:
        return max((self.pairs / label / "1").glob("*.pairs"), key=lambda path: path.stat().st_size)

    def check(self) -> None:
        """Make two runs with the directory as it is: both have the right outcome, the second maps nothing."""
        for _ in range(2):
            result, _ = self.run(pairs=self.pairs)
            assert result.text() == self.text
        assert result.record["reused"]["frames"] == N_FRAMES


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return Ground(tmp_path_factory.mktemp("damage"))


@pytest.fixture
def ground(made):
    made.restore()
    return made


def flip(ground):
    data = bytearray(ground.part().read_bytes())
    data[len(data) // 2] ^= 4
    ground.part().write_bytes(data)


def of_another_analysis(ground):
    ground.part("Presence").rename(ground.part().with_name(OTHER))


def of_another_generation(ground):
    ground.run(pairs=ground.pairs, reuse="never")
    there = next((ground.pairs / "Columns" / "2").glob("*.pairs"))
    there.rename(ground.part().with_name(OTHER))
    shutil.rmtree(ground.pairs / "Columns" / "2")


def replaced(make):
    """Return a damage that puts something else in the place of a part."""

    def damage(ground):
        path = ground.part()
        path.unlink()
        make(path)

    return damage


def link(ground):
    """Who can make the link may be somebody else."""
    path = ground.part()
    path.rename(ground.folder / "elsewhere")
    path.symlink_to(ground.folder / "elsewhere")


#: Damages to a part, and the warning of each.
DAMAGES = {
    "flipped": (flip, "it is torn or damaged: "),
    "torn": (lambda ground: os.truncate(ground.part(), 100), "it is torn or damaged: "),
    "empty": (lambda ground: os.truncate(ground.part(), 0), "it is torn or damaged: "),
    "text": (lambda ground: ground.part().write_text("no pairs\n"), "it is torn or damaged: "),
    "of another analysis": (of_another_analysis, "it is of another map"),
    "of another generation": (of_another_generation, "it is of another map"),
    "a folder": (replaced(Path.mkdir), "it is no file"),
    "a pipe": (replaced(os.mkfifo), "it is no file"),
    "a link": (link, "it cannot be opened: Too many levels"),
    "writeable": (lambda ground: ground.part().chmod(0o660), "others can have written it"),
}


@pytest.mark.nightly(but=2)
@pytest.mark.parametrize("name", DAMAGES)
def test_a_part_that_cannot_be_used_is_mapped_again_with_one_warning(ground, name):
    damage, message = DAMAGES[name]
    damage(ground)
    result, warned = ground.run(pairs=ground.pairs)
    assert result.text() == ground.text
    assert len(warned) == 1, warned
    assert "\n" not in warned[0]
    assert f"a part of the pairs kept in {ground.pairs} cannot be used" in warned[0]
    assert re.search(rf"\(\w+\.pairs: {message}.*\); its frames are mapped again", warned[0])
    again, warned = ground.run(pairs=ground.pairs)
    assert again.text() == ground.text
    assert again.record["reused"]["frames"] == N_FRAMES
    # What can never be used is gone, and causes no more warnings.
    assert bool(warned) == (name not in ("flipped", "torn", "empty", "text"))


def test_several_are_said_in_one_line(ground):
    for path in ground.pairs.rglob("*.pairs"):
        os.truncate(path, 200)
    result, warned = ground.run(pairs=ground.pairs)
    assert result.text() == ground.text
    assert len(warned) == 1
    assert "9 parts of the pairs kept" in warned[0]
    assert "their frames are mapped again" in warned[0]
    ground.check()


def test_a_part_that_is_missing_is_mapped_again(ground):
    ground.part().unlink()
    result, warned = ground.run(pairs=ground.pairs)
    assert (result.text(), warned) == (ground.text, [])
    assert 0 < result.record["reused"]["frames"] < N_FRAMES
    ground.check()


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize("label", ["Columns", "Chain"])
def test_a_part_that_is_there_twice_counts_once(ground, label):
    shutil.copy(ground.part(label), ground.part(label).with_name(OTHER))
    result, warned = ground.run(pairs=ground.pairs)
    assert (result.text(), warned) == (ground.text, [])
    assert result.record["reused"]["frames"] == N_FRAMES


def later_map(path):
    described = json.loads(path.read_text())
    described["version"] = 7
    del described["digest"]
    path.write_text(json.dumps(described | {"digest": _digest(described)}))


def map_folder(path):
    path.unlink()
    path.mkdir()


@pytest.mark.nightly(but=2)
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: os.truncate(path, 100), "is damaged"),
        (lambda path: path.write_text(path.read_text().replace('"key": "', '"key": "0')), "is damaged"),
        (later_map, "is of version 7, and this himach has 3"),
        (map_folder, "cannot be read (Is a directory)"),
        (Path.unlink, "cannot be read (No such file or directory)"),
    ],
)
def test_a_map_that_is_not_known_is_mapped_again_with_a_reason(ground, damage, message):
    path = ground.pairs / "Columns" / "1" / MAP
    damage(path)
    result, warned = ground.run(pairs=ground.pairs)
    assert (result.text(), warned) == (ground.text, [])
    reason = f"for Columns, {path} {message}, so what is kept there is not used"
    assert result.record["reused"] == {"frames": 0, "reason": reason}
    ground.check()


def test_a_lock_of_any_content_is_no_hindrance(ground):
    for content in (b"", b"\0\xff" * 500):
        (ground.pairs / LOCK).write_bytes(content)
        ground.check()


def test_folders_that_are_there_besides_are_none_of_the_runs_business(ground):
    """Among them what a killed run, or a killed eviction, left."""
    for name in ("2", "3", "9" * 30, "01", "²"):
        (ground.pairs / "Columns" / name).mkdir()
    shutil.copy(ground.pairs / "Presence" / "1" / MAP, ground.pairs / "Columns" / "3")
    (ground.pairs / "Rdf").mkdir()
    (ground.pairs / "Columns" / "1" / ".0123.tmp").mkdir()
    ground.check()


def test_a_folder_of_another_user_is_refused_and_its_parts_are_not_read(ground):
    needs.root("to give files away")
    for path in (ground.pairs, *ground.pairs.rglob("*")):
        os.chown(path, 65533, -1)
    with pytest.raises(himach.UsageError, match=f"others can write there.*chmod go-w {ground.pairs}"):
        ground.run(pairs=ground.pairs)
    os.chown(ground.pairs, os.geteuid(), -1)
    result, warned = ground.run(pairs=ground.pairs)
    assert result.text() == ground.text
    assert "others can have written it" in warned[0]


def test_a_file_system_without_permissions_is_refused_before_a_frame_is_mapped(ground, monkeypatch):
    make_directory = Path.mkdir

    def without_permissions(self, *arguments, **keywords):
        make_directory(self, *arguments, **keywords)
        self.chmod(0o777)

    monkeypatch.setattr(Path, "mkdir", without_permissions)
    with pytest.raises(himach.UsageError, match=r"others can write there.*on a file system with permissions"):
        ground.run(pairs=ground.folder / "new")


def test_a_part_that_goes_before_it_is_opened_is_named(tmp_path, monkeypatch):
    """A file server may list what another machine has just deleted."""
    monkeypatch.setattr(FingerprintVersion, "parts", lambda self: [self.path / "gone.npz"])
    plan = find_parts(alone().comm, [FingerprintVersion(tmp_path, 1, "", None)], [""], range(3))
    assert plan.bad == ["gone.npz: it cannot be opened: No such file or directory"] and plan.remaining is None


def covered(ground):
    """Return the frames that are kept of all analyses."""
    directory, frames = PairsDirectory(ground.pairs), BitMap64(range(N_FRAMES))
    for name in NAMES:
        parts = [path for item in directory.generations(name) if item.fingerprint for path in item.parts()]
        frames &= BitMap64.union(BitMap64(), *(read_summary(path).covered for path in parts))
    return frames


@pytest.mark.parametrize("before", [0, 3], ids=["from the first", "with pairs of an earlier run"])
def test_a_run_that_is_killed_at_any_moment_goes_on(made, monkeypatch, before):
    """At every seventh touch, and at all by night."""
    monkeypatch.setenv("HIMACH_KEEP_EVERY", "0")
    at, killed, kept = 0, True, set()
    while killed:
        at += 1 if os.environ.get("HIMACH_NIGHTLY") else 7
        made.clear()
        if before:
            made.run(pairs=made.pairs, stop=before)
        killed = killed_at_touch(made.pairs, at, lambda: made.run(pairs=made.pairs))
        there = len(covered(made)) if made.pairs.is_dir() else 0
        kept.add(there)
        result, warned = made.run(pairs=made.pairs)
        assert (result.text(), warned) == (made.text, []), at
        assert result.record["reused"]["frames"] == there, at
        assert not [path for path in made.pairs.rglob("*") if path.name.endswith((".tmp", ".lock"))], at
        made.check()
    assert at > 30
    assert {before, N_FRAMES} <= kept  # and what lies between, as the clock has it
