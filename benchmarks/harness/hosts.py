"""Virtual hosts of this machine: `Hosts`, each with a network of its own at a set rate, a name and a disk's folder.

Network namespaces joined by a bridge, with a token bucket at each end of every link; and a control group in which all
that the hosts read from the disk together comes at a set rate, as from an origin that they share. Needs root, iproute2
and control groups of version 1.

Ranks that wait for others sleep between looks, where on hosts of their own they would turn round: there a core is
theirs to waste, here it is the one that those work on who are waited for.
"""

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from himach.errors import HimachError, UsageError

__all__ = ["Hosts"]

GROUPS = Path("/sys/fs/cgroup/blkio")
#: Seconds of its rate that a link passes at once, and the least bytes; how long what is beyond may wait: so long that
#: nothing is lost, as in networks of clusters.
BURST, LEAST_BURST, LATENCY = 0.02, 16 << 10, "5000ms"
NETWORK = "10.79.0"
#: How MPICH's ranks wait: they sleep after every look; and for how long at least, nanoseconds.
PATIENT = {"MPIR_CVAR_ENABLE_HEAVY_YIELD": "1", "MPIR_CVAR_POLLS_BEFORE_YIELD": "1"}
SLACK = 200_000
#: Links are some 32 times slower here than those of nodes, and what TCP begins with, paces by and waits for is not: two
#: hosts that send both ways at once would get half the rate for most of a message, as acknowledgements stand behind the
#: other way's data. So connections have all that a link takes under way from their start on, and after they were
#: idle; pace nothing, whatever the machine does by default (nothing is lost here); and keep little in the link's queue.
OPEN_PACKETS, OPEN_BYTES = 2048, 4 << 20
OPEN = {
    "net.ipv4.tcp_congestion_control": "reno",
    "net.ipv4.tcp_limit_output_bytes": "8192",
    "net.ipv4.tcp_slow_start_after_idle": "0",
    "net.ipv4.tcp_rmem": f"4096 {OPEN_BYTES} {OPEN_BYTES}",
    "net.ipv4.tcp_wmem": f"4096 {OPEN_BYTES} {OPEN_BYTES}",
}


class Hosts:
    """Virtual hosts n1, n2, ... and n0, from which programs are started; a context manager.

    Parameters
    ----------
    count
        Hosts beside n0.
    place
        Folder on the disk that is throttled; the hosts' disks (``/mnt``) lie in it.
    network
        Bytes a second of a host's link, each way; None: as fast as it goes.
    origin
        Bytes a second that all hosts together read from the disk; None: as fast as it goes.
    """

    def __init__(self, count: int, place: Path, network: float | None = None, origin: float | None = None) -> None:
        if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("tc") is None:
            raise UsageError("virtual hosts need root and the tools ip and tc (Debian's iproute2)")
        if not (GROUPS / "blkio.throttle.read_bps_device").exists():
            raise UsageError(f"virtual hosts need control groups of version 1 with blkio in {GROUPS}")
        self._count, self._network, self._origin = count, network, origin
        self._place = Path(tempfile.mkdtemp(prefix="hosts-", dir=place))
        self._switch = f"himach{os.getpid()}"
        self._group = GROUPS / self._switch
        self._holders: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "Hosts":
        try:
            self._up()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def call(self, ranks: int, function: Callable[..., Any], *arguments: object) -> Any:
        """Call ``function(world, *arguments)`` on a rank of each of the first hosts; return what rank 0's call did."""
        answer = self._place / "answer.json"
        answer.unlink(missing_ok=True)
        words = [json.dumps([function.__module__, function.__name__, arguments, False]), str(answer)]
        hosts = ",".join(f"n{i + 1}" for i in range(ranks))
        mpiexec = [
            str(Path(sys.executable).with_name("mpiexec")),
            "-launcher",
            "ssh",
            "-launcher-exec",
            str(self._enter),
        ]
        mpiexec += ["-hosts", hosts, "-ppn", "1", "-n", str(ranks)]
        command = shlex.join([*mpiexec, sys.executable, "-P", "-m", "himach.benchmarks.harness.ranks", *words])
        done = subprocess.run(
            [str(self._enter), "n0", command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **PATIENT},
        )
        if done.returncode or not answer.exists():
            raise HimachError(f"{ranks} ranks on virtual hosts ended with {done.returncode}: {done.stderr[-2000:]}")
        return json.loads(answer.read_text())

    def forget_disks(self) -> None:
        """Empty the hosts' disks."""
        for path in (self._place / "disks").glob("*/*"):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    def close(self) -> None:
        """Take it all away."""
        for holder in self._holders.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(holder.pid, signal.SIGKILL)
            holder.wait()
        subprocess.run(["ip", "netns", "del", self._switch], capture_output=True, check=False)
        self._end_all()
        shutil.rmtree(self._place, ignore_errors=True)

    def _end_all(self) -> None:
        """End what still runs on the hosts, all of which is in their control group, and take that away."""
        end = time.monotonic() + 30
        while self._group.exists() and time.monotonic() < end:
            for pid in (self._group / "cgroup.procs").read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            try:
                self._group.rmdir()
            except OSError:  # the last has not left it yet
                time.sleep(0.05)

    def _up(self) -> None:
        names = [f"n{i}" for i in range(self._count + 1)]
        lines = ["127.0.0.1 localhost", *(f"{NETWORK}.{10 + i} {name}" for i, name in enumerate(names))]
        (self._place / "names").write_text("\n".join([*lines, ""]))
        self._enter = self._place / "enter"
        self._write_enter()
        self._group.mkdir()
        if self._origin is not None:
            device = os.stat(self._place).st_dev
            rate = f"{os.major(device)}:{os.minor(device)} {int(self._origin)}"
            (self._group / "blkio.throttle.read_bps_device").write_text(rate)
        _do("ip", "netns", "add", self._switch)
        self._in_switch("ip", "link", "set", "lo", "up")
        self._in_switch("ip", "link", "add", "br0", "type", "bridge")
        self._in_switch("ip", "link", "set", "br0", "up")
        for i, name in enumerate(names):
            self._hold(name, f"{NETWORK}.{10 + i}", _hardware(i))
        # All know all: the kernel remembers but a thousand neighbours that have to be asked for, on all hosts together.
        known = self._place / "neighbours"
        each = [f"{NETWORK}.{10 + i} lladdr {_hardware(i)}" for i in range(len(names))]
        known.write_text("".join(f"neighbour replace {one} nud permanent dev eth0\n" for one in each))
        for holder in self._holders.values():
            _do("nsenter", "-t", str(holder.pid), "-n", "ip", "-batch", str(known))

    def _in_switch(self, *words: str) -> None:
        _do("ip", "netns", "exec", self._switch, *words)

    def _hold(self, name: str, address: str, hardware: str) -> None:
        """Start what keeps a host: a process in its name spaces; join it to the others."""
        disk, ready = self._place / "disks" / name, self._place / f"{name}.ready"
        disk.mkdir(parents=True)
        script = (
            f"hostname {name} && mount -t tmpfs tmpfs /dev/shm && mount --bind {disk} /mnt "
            f"&& mount --bind {self._place}/names /etc/hosts && ip link set lo up "
            f"&& touch {ready} && exec sleep infinity"
        )
        spaces = ["unshare", "--net", "--uts", "--mount", "--ipc", "--propagation", "private", "sh", "-c", script]
        holder = subprocess.Popen(spaces, stdin=subprocess.DEVNULL, start_new_session=True)
        self._holders[name] = holder
        (self._place / f"{name}.pid").write_text(str(holder.pid))
        end = time.monotonic() + 30
        while not ready.exists():
            if holder.poll() is not None or time.monotonic() > end:
                raise HimachError(f"virtual host {name} did not come up")
            time.sleep(0.01)
        peer = ("peer", "name", "eth0", "address", hardware, "netns", str(holder.pid))
        self._in_switch("ip", "link", "add", name, "type", "veth", *peer)
        self._in_switch("ip", "link", "set", name, "master", "br0", "up")
        inside = ("nsenter", "-t", str(holder.pid), "-n")
        _do(*inside, "ip", "addr", "add", f"{address}/24", "dev", "eth0")
        _do(*inside, "ip", "link", "set", "eth0", "up")
        _do(*inside, "sysctl", "-q", *(f"{name}={value}" for name, value in OPEN.items()))
        windows = ("initcwnd", str(OPEN_PACKETS), "initrwnd", str(OPEN_PACKETS))
        _do(*inside, "ip", "route", "change", f"{NETWORK}.0/24", "dev", "eth0", "src", f"{address}", *windows)
        if self._network is not None and name != "n0":
            burst = str(max(LEAST_BURST, int(BURST * self._network)))
            bucket = ("root", "tbf", "rate", f"{int(self._network)}bps", "burst", burst, "latency", LATENCY)
            self._in_switch("tc", "qdisc", "add", "dev", name, *bucket)
            _do(*inside, "tc", "qdisc", "add", "dev", "eth0", *bucket)

    def _write_enter(self) -> None:
        """Write what runs a command on a host, as ssh does for mpiexec."""
        self._enter.write_text(
            '#!/bin/bash\nwhile [ "${1#-}" != "$1" ]; do case $1 in -l|-p|-o|-i) shift 2;; *) shift;; esac; done\n'
            f"echo $$ > {self._group}/cgroup.procs\necho {SLACK} > /proc/$$/timerslack_ns\n"
            f"host=$1; shift; pid=$(cat {self._place}/$host.pid)\n"
            'exec nsenter -t "$pid" -n -u -m -i -- /bin/sh -c "cd /; export TMPDIR=/mnt; $*"\n'
        )
        self._enter.chmod(0o700)


def _hardware(number: int) -> str:
    """Return the hardware address of a host's link."""
    return f"02:79:00:00:{number >> 8:02x}:{number & 255:02x}"


def _do(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise HimachError(f"{shlex.join(words)} failed: {done.stderr.strip()}")
