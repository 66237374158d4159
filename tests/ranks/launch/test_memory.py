"""Memory: limits found on the node and given by the user; many runs over one `himach.Ranks` leave nothing behind."""

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from himach.analysis import Analysis
from himach.benchmarks.runs.staying import Held
from himach.errors import UsageError
from himach.ranks.launch import memory
from himach.runner.options import Job


class Some(Analysis):
    pass


def job(limit):
    return Job([Path("traj.xtc")], memory=limit, analyses=[Some()])


@pytest.mark.parametrize(
    ("given", "nbytes"), [("2GB", 2 * 10**9), ("500MiB", 500 << 20), (1 << 21, 1 << 21), (None, None)]
)
def test_sizes_are_read(given, nbytes):
    assert job(given).memory == nbytes


@pytest.mark.parametrize(("given", "words"), [("much", "memory: 'much' is no size"), ("1kB", "1MiB"), (5, "1MiB")])
def test_what_is_no_size_is_refused(given, words):
    with pytest.raises(UsageError, match=words):
        job(given)


def test_the_default_is_a_quarter_of_the_smallest_limit(tmp_path, monkeypatch):
    whole = memory.default_memory()
    assert 0 < whole < 2**50
    monkeypatch.setattr(memory, "_group_limits", lambda: [400 << 20, 800 << 20])
    assert memory.default_memory() == 100 << 20


def test_groups_and_their_parents_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "CGROUPS", tmp_path)
    monkeypatch.setattr(Path, "read_text", _files(tmp_path))
    assert sorted(memory._group_limits()) == [100, 300]


def _files(root):
    contents = {
        "/proc/self/cgroup": "0::/job/step\n",
        str(root / "job/step/memory.max"): "max\n",
        str(root / "job/memory.max"): "300\n",
        str(root / "memory.max"): "100\n",
    }

    def read_text(self):
        try:
            return contents[str(self)]
        except KeyError:
            raise FileNotFoundError(self) from None

    return read_text


def test_pairs_go_to_a_directory_of_the_user_or_the_job(monkeypatch):
    monkeypatch.delenv("TMPDIR", raising=False)
    monkeypatch.delenv("SLURM_TMPDIR", raising=False)
    assert memory.scratch_directory() == Path("/var/tmp")
    monkeypatch.setenv("SLURM_TMPDIR", "/job")
    assert memory.scratch_directory() == Path("/job")
    monkeypatch.setenv("TMPDIR", "/mine")
    assert memory.scratch_directory() == Path("/mine")


#: Of this process and two ranks together, of a run that ends well and one that fails.
BYTES_A_RUN = 16_000


@pytest.mark.nightly
def test_fifty_runs_leave_what_ten_leave():
    # In a process of its own: what other tests have left in this one may grow meanwhile.
    program = Path(__file__).with_name("growing.py")
    done = subprocess.run([sys.executable, "-P", program], stdout=subprocess.PIPE, text=True, check=True)
    held = [Held(*map(int, line.split())) for line in done.stdout.splitlines()]
    assert len({one.descriptors for one in held}) == 1
    assert held[-1].mappings < held[0].mappings + 15, "one a run would be 45"
    # /dev/shm is others', too.
    assert min(after.segments - before.segments for before, after in pairwise(held)) < 15
    # What a run leaves behind grows each time; what libraries keep for themselves, now and then.
    grown = min(after.memory - before.memory for before, after in pairwise(held))
    assert grown < 15 * BYTES_A_RUN
