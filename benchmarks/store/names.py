"""``himach bench names``: one name space of many servers, copies of frames, and reading from another machine.

One line a figure, with its bar.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import click

from himach.io.server.admission import make_key, read_key
from himach.io.server.survey import encode_peers
from himach.io.store import bodhi
from himach.io.store.store import Store

from ..harness.data import adk
from ..harness.figures import report
from ..harness.interleave import scratch
from ..harness.options import DIRECTORY, beside, only, repeats
from .remote import PROCESSES, reading

__all__ = ["main"]

PARTS = ("datasets", "copies", "reading")
KILLED, STOPPED = 8, 4
NODES = ("a", "b", "c", "d")


@only("datasets, copies or reading")
@click.option("--servers", type=click.IntRange(min=13), default=64, show_default=True, help="Servers to ask.")
@click.option("--frames", type=click.IntRange(min=10), default=1000, show_default=True, help="Frames of AdK to read.")
@repeats(5)
@DIRECTORY
@beside("names")
def main(only: Sequence[str], servers: int, frames: int, repeats: int, directory: Path | None) -> None:
    """Measure one name space of many servers, copies of frames, and reading from another machine."""
    chosen = [part for part in PARTS if not only or part in only]
    if "datasets" in chosen:
        _datasets(servers, repeats, directory)
    if "copies" in chosen:
        _copies(directory)
    if "reading" in chosen:
        reading(frames, 3 * repeats, directory)


def _himach(*words: object, **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "himach", *map(str, words)]
    return subprocess.run(command, env=os.environ | more, check=True, capture_output=True, text=True)


# --- himach datasets --------------------------------------------------------------------------------------------------


def _datasets(n: int, repeats: int, directory: Path | None) -> None:
    """Time ``himach datasets`` over many servers, of which some are killed and some stopped."""
    with scratch(directory, 1 << 30) as place, _servers(place, n) as processes:
        for pid in processes[:KILLED]:
            os.kill(pid, signal.SIGKILL)
        for pid in processes[KILLED : KILLED + STOPPED]:
            os.kill(pid, signal.SIGSTOP)
        addresses = (place / "peers").read_text().split()
        silent = set(addresses[: KILLED + STOPPED])
        took, named, listed = [], [], []
        for _ in range(repeats):
            begun = time.perf_counter()
            told = json.loads(_himach("datasets", "--server", addresses[-1], "--key", place / "key", "--json").stdout)
            took.append(time.perf_counter() - begun)
            named.append(len(silent & set(told["silent"])) - len(set(told["silent"]) - silent))
            listed.append(len(told["datasets"][0]["nodes"]))
        what = f"himach datasets, {n} servers, {KILLED} killed, {STOPPED} stopped"
        report(what, f"{median(took):.2f} s", "2 s")
        report("... of those that did not answer, named", f"{min(named)} of {len(silent)}", str(len(silent)))
        report("... of the others, nodes listed", f"{min(listed)} of {n - len(silent)}", str(n - len(silent)))


@contextmanager
def _servers(place: Path, n: int) -> Iterator[list[int]]:
    """Run servers, each of a store with a part of one dataset; give their process numbers.

    They are children of this process, which has imported what they need.
    """
    make_key(place / "key")
    listeners = [socket.create_server(("127.0.0.1", 0), backlog=128) for _ in range(n)]
    peers = [f"127.0.0.1:{one.getsockname()[1]}" for one in listeners]
    (place / "peers").write_text("\n".join(peers))
    _, path = adk(200)
    for i in range(n):
        _part(path, place / f"n{i}", range(i, 200, n))
    children = [PROCESSES.Process(target=_serve, args=(place, i, one, peers)) for i, one in enumerate(listeners)]
    try:
        for child in children:
            child.start()
        for one in listeners:
            one.close()
        yield [child.pid for child in children if child.pid is not None]
    finally:
        for child in children:
            child.kill()
            child.join()


def _serve(place: Path, number: int, listener: socket.socket, peers: Sequence[str]) -> None:
    """Serve a store until this process is killed."""
    listener.setblocking(False)
    admission = {"remote": listener.fileno(), "key": read_key(place / "key")}
    handle = bodhi.ServerHandle(
        os.fsencode(place / f"n{number}"), -1, peers=encode_peers(f"n{number}", peers), **admission
    )
    handle.run()


def _part(path: Path, place: Path, numbers: range) -> None:
    """Keep some frames natively in a store."""
    from himach.io.trajectories.origin import open_origin

    dataset = Store(place).dataset("bench")
    for frame in open_origin([path]).read(list(numbers)):
        dataset.write(frame.number, frame.time, frame.box, frame.positions, native=True)
    dataset.close()


# --- Copies -----------------------------------------------------------------------------------------------------------


def _copies(directory: Path | None) -> None:
    """Stage two copies on four virtual nodes, lose one, run, repair."""
    topology, path = adk(200)
    with scratch(directory, 1 << 30) as place:
        _on_nodes(place, NODES, "stage", path, "-s", topology, "--dataset", "bench", "--copies", 2)
        before, _ = _rmsd(place, NODES)
        shutil.rmtree(place / NODES[1])
        left = [node for node in NODES if node != NODES[1]]
        after, record = _rmsd(place, left)
        report("--copies 2, one of four nodes lost: bytes from the origin", str(record["bytes"]["origin"]), "0")
        report("... the same outcome", "yes" if before == after else "no", "yes")
        _on_nodes(place, left, "stage", "bench", "--repair")
        counts = [0] * 200
        for node in left:
            store = Store(place / node, read_only=True)
            for name in store.directories():
                for number in store.open_directory(name).native:
                    counts[number] += 1
        report("... repaired: frames of two copies", f"{counts.count(2)} of {len(counts)}", "all")


def _rmsd(place: Path, nodes: Sequence[str]) -> tuple[bytes, dict[str, dict[str, int]]]:
    _on_nodes(place, nodes, "run", "rmsd", "-t", "bench", "--out", place / "out")
    return (place / "out" / "rmsd.csv").read_bytes(), json.loads((place / "out" / "run.json").read_text())


def _on_nodes(place: Path, nodes: Sequence[str], *words: object) -> None:
    """Run himach with a rank on each of some virtual nodes, whose stores lie side by side."""
    command = [str(Path(sys.executable).with_name("mpiexec"))]
    for i, node in enumerate(nodes):
        command += [":"] if i else []
        command += ["-n", "1", "env", f"HIMACH_NODE={node}", sys.executable, "-m", "himach", *map(str, words)]
        command += ["--cache", f"{place}/{{node}}", "-q"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise AssertionError(f"himach {' '.join(map(str, words))} ended with {done.returncode}: {done.stderr}")
