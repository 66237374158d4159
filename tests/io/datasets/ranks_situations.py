"""Zazen's situations, with real stores of several nodes on one machine: run on four ranks, by test_situations.py."""

import contextlib
import os
import shutil
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI
from support import cache_data
from support.cache_data import N_FRAMES, Emit, bits, drop_all, numbers_of, only_dataset, put

import himach
from himach.io.datasets import writeback
from himach.io.store.store import StoreBusyError

comm = MPI.COMM_WORLD
ALL = list(range(N_FRAMES))
QUARTERS = [ALL[16 * i : 16 * i + 16] for i in range(4)]
APART = "abcd"  # each rank is a node of its own


class Machine:
    """Four ranks on nodes that the test names, whose stores are directories side by side."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.topology, self.trajectory = folder / "top.gro", folder / "md.trr"
        self.alter(lambda: cache_data.make(folder))
        self.expected = self.run("aaaa", cache="off").outcome

    def run(self, nodes: str, analysis: himach.Analysis | None = None, **options) -> himach.Result:
        """Analyse with rank i on node nodes[i]; check what every run must show."""
        os.environ["HIMACH_NODE"] = nodes[comm.rank]
        options = {"cache": str(self.folder / "store-{node}"), "progress": False, **options}
        result = himach.run(analysis or Emit(), self.trajectory, self.topology, **options)
        result._outcomes = comm.bcast(result._outcomes)
        comm.barrier()
        assert sum(result.record["assignment"].values()) == N_FRAMES
        if hasattr(self, "expected"):
            assert numbers_of(result) == ALL
            assert bits(result.outcome) == bits(self.expected)
        return result

    def place(self, node: str) -> Path:
        return self.folder / f"store-{node}"

    def prepare(self, native: dict[str, list[int]] | None = None, alien: dict[str, list[int]] | None = None) -> None:
        """Make stores that know the trajectory and hold these frames."""
        self.run(APART)
        if comm.rank == 0:
            for node in APART:
                dataset = only_dataset(self.place(node), self.trajectory)
                drop_all(dataset)
                put(dataset, self.trajectory, (native or {}).get(node, []), native=True)
                put(dataset, self.trajectory, (alien or {}).get(node, []), native=False)
        comm.barrier()

    def alter(self, act: Callable[[], object]) -> None:
        """Do something on the first rank, while the others wait."""
        if comm.rank == 0:
            act()
        comm.barrier()

    def copies(self) -> Counter[int]:
        """Return how many copies of each frame there are on all nodes."""
        found: Counter[int] = Counter()
        for node in APART:
            if self.place(node).exists():
                dataset = only_dataset(self.place(node), self.trajectory)
                found.update(dataset.native)
                found.update(dataset.alien)
        comm.barrier()
        return found


class EmitSome(Emit):
    """The same of five atoms, which it asks for."""

    def atoms(self, universe):
        return universe.atoms[:5]

    def map(self, frame):
        yield "frame", (frame.number, frame.time, zlib.crc32(frame.positions[np.arange(5)].tobytes()))


@pytest.fixture
def machine():
    folder = comm.bcast(tempfile.mkdtemp(prefix="himach-test-") if comm.rank == 0 else None)
    yield Machine(Path(folder))
    comm.barrier()
    if comm.rank == 0:
        shutil.rmtree(folder)


def counts(native: int = 0, alien: int = 0, residue: int = 0) -> dict[str, int]:
    return {"native": native, "alien": alien, "residue": residue}


def one_each() -> Counter[int]:
    return Counter(ALL)


def test_first_run_keeps_every_frame_once(machine):
    first = machine.run(APART)
    assert first.record["assignment"] == counts(residue=64)
    assert machine.copies() == one_each()
    second = machine.run(APART)
    assert second.record["assignment"] == counts(alien=64)
    assert second.record["bytes"]["origin"] == 0
    assert machine.copies() == one_each()


def test_atoms_that_were_asked_for_are_read_where_they_are_kept(machine, monkeypatch):
    monkeypatch.setattr(writeback, "idle_seconds", lambda: 0.0)  # whole frames are not kept
    machine.expected = himach.run(EmitSome(), machine.trajectory, machine.topology, cache="off", progress=False).outcome
    machine.expected = comm.bcast(machine.expected)
    assert machine.run(APART, EmitSome()).record["assignment"] == counts(residue=64)
    found = [machine.run(APART, EmitSome()).record for _ in range(2)]
    assert [one["assignment"] for one in found] == [counts(alien=64)] * 2
    assert [one["bytes"]["origin"] for one in found] == [0, 0]
    machine.alter(lambda: machine.place("b").rename(machine.folder / "away"))
    gone = machine.run("aacd", EmitSome()).record["assignment"]
    assert 0 < gone["residue"] < 64
    assert machine.run("aacd", EmitSome()).record["bytes"]["origin"] == 0


def test_all_native_then_a_node_gone_then_back(machine):
    machine.prepare(native=dict(zip(APART, QUARTERS, strict=True)))
    result = machine.run(APART)
    assert result.record["assignment"] == counts(native=64)
    assert result.record["bytes"]["origin"] == 0

    machine.alter(lambda: machine.place("b").rename(machine.folder / "away"))
    gone = machine.run("aacd")
    assert gone.record["assignment"] == counts(native=48, residue=16)
    again = machine.run("aacd")
    assert again.record["assignment"] == counts(native=48, alien=16)
    assert again.record["bytes"]["origin"] == 0

    machine.alter(lambda: (machine.folder / "away").rename(machine.place("b")))
    assert sorted(machine.copies().values()) == [1] * 48 + [2] * 16
    back = machine.run(APART)
    assert back.record["assignment"] == counts(native=64)
    assert back.record["bytes"]["origin"] == 0
    assert machine.copies() == one_each()


def test_alien_on_two_nodes(machine):
    machine.prepare(alien={"a": QUARTERS[0], "b": QUARTERS[0]})
    result = machine.run(APART)
    assert result.record["assignment"] == counts(residue=64)
    per_frame = machine.run("aaaa", cache="off").record["bytes"]["origin"] // N_FRAMES
    assert result.record["bytes"]["origin"] == 48 * per_frame
    assert machine.copies() == one_each()
    assert machine.run(APART).record["assignment"] == counts(alien=64)


def test_everything_on_one_node_then_four(machine):
    one = machine.run("aaaa")
    assert one.record["assignment"] == counts(residue=64)
    assert machine.run("aaaa").record["bytes"]["origin"] == 0
    four = machine.run(APART)
    # A node reads at most twice its part; the others read the rest from the origin, and keep it.
    assert four.record["assignment"] == counts(alien=32, residue=32)
    for _ in range(3):
        last = machine.run(APART)
    assert last.record["assignment"] == counts(alien=64)
    assert last.record["bytes"]["origin"] == 0
    assert machine.copies() == one_each()


class Evicting(Emit):
    """Evicts what it can of the store, in the middle of the run."""

    store: str = ""
    trajectory: str = ""

    def map(self, frame):
        if frame.number % 8 == 4:
            dataset = only_dataset(Path(self.store), Path(self.trajectory))
            for segment in dataset.segments():
                with contextlib.suppress(StoreBusyError):
                    dataset.evict(segment["id"])
        yield from super().map(frame)


def test_eviction_in_the_middle(machine):
    machine.run("aabb")
    evicting = Evicting(store=str(machine.place("aabb"[comm.rank])), trajectory=str(machine.trajectory))
    machine.run("aabb", evicting)
    machine.run("aabb")
    assert machine.run("aabb").record["bytes"]["origin"] == 0


def test_origin_unmounted_with_duplicated_aliens(machine):
    machine.prepare(alien={"a": ALL, "b": ALL, "c": QUARTERS[2]})
    machine.alter(lambda: [file.rename(f"{file}.away") for file in (machine.trajectory, machine.topology)])
    result = machine.run(APART)
    assert result.record["assignment"] == counts(residue=64)
    assert result.record["bytes"]["origin"] == 0
    assert machine.copies() == one_each()
    assert machine.run(APART).record["assignment"] == counts(alien=64)
    machine.alter(lambda: [only_dataset(machine.place(node), machine.trajectory).drop([5, 9]) for node in APART])
    with pytest.raises(himach.TrajectoryError, match=r"2 of 64 frames lie in no cache.*frame 5, 9"):
        machine.run(APART)


def test_one_directory_seen_from_all_nodes(machine):
    shared = str(machine.folder / "shared")
    machine.run(APART, cache=shared)
    second = machine.run(APART, cache=shared)
    assert second.record["assignment"]["alien"] == 32  # twice the part of the first node, which counts
    assert second.record["bytes"]["origin"] == 0
    assert np.array_equal(sorted(only_dataset(Path(shared), machine.trajectory).alien), ALL)
