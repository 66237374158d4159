"""Virtual hosts: their names, disks and rates, and that nothing is left of them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from support import needs

from himach.benchmarks.harness.hosts import GROUPS, Hosts
from himach.benchmarks.runs import machine as measured
from himach.errors import HimachError, UsageError
from himach.planning.machine import read_machine

NETWORK = 4e6


def can() -> bool:
    """Tell whether this process may make virtual hosts: root, with the right to make network namespaces."""
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("tc") is None:
        return False
    made = subprocess.run(["unshare", "--net", "--uts", "--mount", "--ipc", "true"], capture_output=True, check=False)
    return made.returncode == 0 and (GROUPS / "blkio.throttle.read_bps_device").exists()


def left() -> set[str]:
    """Return the name spaces and control groups that there are."""
    spaces = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout.split("\n")
    return {space.split()[0] for space in spaces if space} | {path.name for path in GROUPS.glob("himach*")}


@pytest.mark.nightly
def test_hosts_have_networks_of_their_own_and_leave_nothing():
    if not can():
        needs.skip("virtual hosts (root, iproute2 and control groups of version 1)")
    before = left()
    with Hosts(2, Path("/var/tmp"), NETWORK, 50e6) as hosts:
        assert left() > before
        found = hosts.call(2, measured.link)
        assert 0.3 * NETWORK < found[0] < 1.3 * NETWORK
        assert 0 < found[1] < 1
        with pytest.raises(HimachError, match="no_such_name"):
            hosts.call(1, no_such_name)
        left_behind = subprocess.Popen([str(hosts._enter), "n1", "exec sleep 1000"])
        while not Path(f"/proc/{left_behind.pid}/cmdline").read_text().startswith("sleep"):
            time.sleep(0.01)
    assert left_behind.wait(timeout=30) == -signal.SIGKILL
    end = time.monotonic() + 20
    while left() != before and time.monotonic() < end:
        time.sleep(0.1)
    assert left() == before


def no_such_name():
    pass


no_such_name.__module__ = "himach.benchmarks.runs.machine"


def test_who_is_not_root_is_told_so(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(UsageError, match="need root"):
        Hosts(1, tmp_path)


def test_the_machine_is_measured_into_a_file(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(measured, "FILE", 1 << 24)
    origin = tmp_path / "origin"
    origin.mkdir()
    (origin / "frames").write_bytes(bytes(1 << 22))
    measured.main(tmp_path / "machine.toml", origin, tmp_path)
    found = read_machine(tmp_path / "machine.toml")
    assert found.cores == len(os.sched_getaffinity(0))
    for rate in (found.disk_read, found.disk_write, found.network, found.combine, found.origin):
        assert rate is not None
        assert rate > 1e5
    assert found.node_mtbf is None
    assert "loopback" in capsys.readouterr().out
