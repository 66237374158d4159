"""Mounted files as the benchmark reads them: its figures come from real mounts."""

from __future__ import annotations

import pytest
from support import needs
from support.commands import himach


@pytest.mark.nightly
def test_speed_is_told_beside_its_bar(tmp_path):
    needs.fuse()
    words = ["--only", "speed", "--frames", "10", "--repeats", "1", "--directory", str(tmp_path)]
    done = himach("bench", "mount", *words, timeout=240)
    if done.returncode and "cannot be mounted" in done.stderr:
        needs.skip("the right to mount a FUSE file system")
    assert done.returncode == 0, done.stderr
    found = [line for line in done.stdout.splitlines() if "GB/s" in line]
    assert sum("seconds a GB" in line for line in done.stdout.splitlines()) == 4
    assert [line.split(",")[0] for line in found] == [".trr", ".dcd", ".nc", "a plain file that is in memory"]
    assert all("(bar: ≥ 1)" in line for line in found[:3])
    assert pytest.approx(0, abs=1e-9) != float(found[0].split("GB/s")[1].split()[0])
