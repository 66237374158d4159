"""Memory and disk: what is held stays within the limit, what is on disk comes back, and nothing is left of it."""

import os
import tracemalloc

import numpy as np
import pytest

import himach
from himach.engine import mapping
from himach.engine.shuffle.block_file import ColumnWriter
from himach.engine.shuffle.spill import Scratch, SpillError

from ..twin import made_up, run_engine

FRAMES = 400
LIMIT = 16 << 20


class Heavy(himach.Analysis):
    """Emits many times the limit of memory, in pairs of every form."""

    def map(self, frame):
        rng = np.random.default_rng(frame.number)
        yield himach.Pairs(rng.integers(0, 5000, 5000), rng.random(5000))
        yield himach.Pairs(rng.permutation(4000)[:2000, np.newaxis])
        yield ("text", frame.number % 97), rng.random(4000)

    def reduce(self, key, series):
        if series.values is None:
            return int(series.steps.sum())
        return float(np.sum(series.values))


def run(memory=None, folder=None):
    return run_engine(None, [[Heavy()]], range(FRAMES), made_up(range(FRAMES)), 2, 20, memory, folder)


def test_memory_stays_within_the_limit_and_the_outcome_is_the_same(tmp_path):
    whole = run()
    tracemalloc.start()
    try:
        spilled = run(LIMIT, tmp_path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert whole.spilled == 0
    assert spilled.spilled > 3 * LIMIT
    assert peak < 1.5 * LIMIT
    assert list(spilled.results[0].items()) == list(whole.results[0].items())
    assert list(tmp_path.iterdir()) == []


def test_scratch_gives_back_what_was_written_and_leaves_nothing(tmp_path):
    scratch = Scratch(tmp_path / "made" / "here")
    data = np.arange(250, dtype=np.int32).view(np.uint8)
    assert [scratch.append(data), scratch.append(b"after")] == [0, 1000]
    back = np.empty(1000, dtype=np.uint8)
    scratch.read(0, back)
    np.testing.assert_array_equal(back, data)
    assert list((tmp_path / "made" / "here").iterdir()) == []
    with pytest.raises(SpillError, match="ends early"):
        scratch.read(6, back)
    scratch.close()


def test_a_directory_that_cannot_be_used_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SpillError, match=r"cannot be written there, in .*/file: .*TMPDIR.*`memory`"):
        Scratch(tmp_path / "file")


def test_a_full_disk_is_named_with_the_way_out(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ColumnWriter, "add_pieces", full)
    with pytest.raises(SpillError, match=rf"in {tmp_path}: No space left on device; free space there, .*TMPDIR"):
        run(LIMIT, tmp_path)


def test_the_file_of_a_running_process_has_no_name_and_is_its_own(tmp_path):
    scratch = Scratch(tmp_path)
    place = f"/proc/self/fd/{scratch._file.fileno()}"
    assert str(tmp_path) in os.readlink(place) and "(deleted)" in os.readlink(place)
    assert os.stat(place).st_mode & 0o777 == 0o600
    scratch.close()


def test_small_chunks_are_not_kept_one_by_one_on_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(mapping, "CHUNK_BYTES", 1 << 12)
    assert run(LIMIT, tmp_path).spilled > LIMIT
