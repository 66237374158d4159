"""Directories of kept pairs: one run at a time, generations, listing beside runs, and damage."""

import os
import shutil
import subprocess
import sys
import warnings

import pytest
from support.cache_data import make
from support.needs import sample

import himach
from himach.checkpoint.directory import MAP, PairsDirectory, is_private
from himach.checkpoint.listing import entries, find_kept_frames
from himach.errors import UsageError
from himach.examples import load
from himach.output.claim import Claim

from .fingerprint.fingerprints import fingerprint_of

N_FRAMES = 30


class Near(himach.Analysis):
    """Numbers of frames."""

    cutoff: float = 3.5

    def map(self, frame):
        yield "x", float(frame.positions[0, 0] * self.cutoff)

    def reduce(self, key, series):
        return sum(series.values)


class Other(Near):
    """Another one."""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make(tmp_path_factory.mktemp("data"), N_FRAMES, "run.xtc")[::-1]


@pytest.fixture(scope="module")
def made(data, tmp_path_factory):
    """Return a directory with two generations of one analysis, and one of another."""
    pairs = tmp_path_factory.mktemp("made") / "pairs"
    keep(data, pairs, [Near(), Other()], stop=20)
    keep(data, pairs, [Near(cutoff=3.2)])
    return pairs


@pytest.fixture
def kept(made, tmp_path):
    shutil.copytree(made, tmp_path / "pairs")
    return tmp_path / "pairs"


def keep(data, pairs, analyses, **keywords):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return himach.run(analyses, *data, pairs=pairs, cache="off", progress=False, **keywords)


def result(path):
    return {(item.analysis, item.generation): item for item in entries(path)}


def test_the_generation_used_last_is_the_one_that_a_run_took_over(kept, data):
    for path in kept.rglob("*"):
        os.utime(path, (1, 1))
    reused = keep(data, kept, [Near()], stop=20).record["reused"]
    assert reused == {"frames": 20, "reason": ""}
    assert [item.generation for item in entries(kept) if item.analysis == "Near"] == [1, 2]


def test_while_a_run_has_it_all_is_told(kept):
    run = PairsDirectory(kept)
    run.claim()
    try:
        assert f"process {os.getpid()} on " in find_kept_frames(kept).holder
        assert len(entries(kept)) == 3
    finally:
        run.release()
    assert find_kept_frames(kept).holder == ""


def test_an_output_directory_of_a_run_that_did_not_end(kept, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    claim = Claim(out)
    shutil.copytree(kept, claim.pairs)
    assert find_kept_frames(out).holder.startswith(f"process {os.getpid()} on ")
    claim.release()
    assert (find_kept_frames(out).out, find_kept_frames(out).holder) == (out, "")


def test_damage_is_told_and_the_rest_counts(kept):
    part = next((kept / "Near" / "2").glob("*.pairs"))
    content = bytearray(part.read_bytes())
    content[content.index(b"pairs.pickle") + 100] ^= 1
    part.write_bytes(content)
    shutil.copy(next((kept / "Near" / "1").glob("*.pairs")), kept / "Near" / "2" / "foreign.pairs")
    (kept / "Near" / "2" / "torn.pairs").write_bytes(content[:-1])
    (kept / "Other" / "1" / "map.json").write_text("{")
    there = result(kept)
    details = there["Near", 2].bad
    assert [text for text in details if text.startswith("foreign.pairs: ") and "another map" in text]
    assert [text for text in details if text.startswith("torn.pairs: it is torn")]
    assert len(details) == 2
    assert there["Other", 1].bad == [f"{kept}/Other/1/map.json is damaged, so what is kept there is not used"]
    assert there["Other", 1].n_frames is None


def test_a_folder_with_files_of_somebody_else_is_no_generation(kept):
    (kept / "Near" / "1" / "notes.txt").touch()
    (kept / "Near" / "9").mkdir()
    (kept / "Near" / "9" / "run.xtc").touch()
    assert list(result(kept)) == [("Near", 2), ("Other", 1)]


HOLDER = """
import sys
from pathlib import Path
from himach.checkpoint.directory import PairsDirectory
PairsDirectory(Path(sys.argv[1])).claim()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def directory(tmp_path):
    made = PairsDirectory(tmp_path / "pairs")
    made.claim()
    yield made
    made.release()


def test_a_damaged_map_has_none(directory):
    """Whichever bit flips, wherever it is torn, whatever else it says, and where it is away."""
    begun = directory.begin("rmsd", fingerprint_of(load("rmsd")()))
    begun.write()
    data = (begun.path / MAP).read_bytes()
    contents = [b"", b"{}", b"[1]", b"\xff", b'{"digest": "0", "version": 1}']
    for place in sample(range(len(data)), 200):
        contents += [data[:place], data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1 :]]
    for content in contents:
        (begun.path / MAP).write_bytes(content)
        (result,) = directory.generations("rmsd")
        assert result.fingerprint is None
    (begun.path / MAP).unlink()
    (result,) = directory.generations("rmsd")
    assert result.fingerprint is None


def test_another_run_is_refused_by_name_and_a_dead_one_is_not(tmp_path):
    place = tmp_path / "pairs"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(place)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(UsageError, match=rf"another run keeps its pairs there .*process {holder.pid} on"):
            PairsDirectory(place).claim()
        holder.kill()
    directory = PairsDirectory(place)
    directory.claim()
    directory.release()
    assert os.listdir(place) == []


def test_other_directories_are_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"neither empty nor a directory of kept pairs .notes\.txt is in it"):
        PairsDirectory(tmp_path).claim()
    with pytest.raises(UsageError, match=r"notes\.txt is a file; name another"):
        PairsDirectory(tmp_path / "notes.txt").claim()
    assert os.listdir(tmp_path) == ["notes.txt"]


def test_only_what_nobody_else_can_write_is_private(directory):
    assert is_private(directory.path)
    assert is_private(directory.path / "not there")
    for mode, private in ((0o755, True), (0o775, False), (0o707, False), (0o700, True)):
        directory.path.chmod(mode)
        assert is_private(directory.path) is private
    if os.geteuid() == 0:
        os.chown(directory.path, 65534, -1)
        assert not is_private(directory.path)
    (directory.path / "link").symlink_to(directory.path.parent)
    assert not is_private(directory.path / "link")
