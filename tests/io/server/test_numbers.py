"""Frame numbers: their bound, and datasets whose numbers are far apart, which cost by their frames."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from support.cache_data import frame_of, push
from support.ranks import clean_environment

import himach
from himach.io.dataset.name_space import joined
from himach.io.server.address import Server
from himach.io.server.survey import HEAD, Answer, parse
from himach.io.store.bodhi import MAX_NUMBER
from himach.io.store.store import Store

FAR = [0, 1, 2**40, 2**40 + 3, MAX_NUMBER]
MEMORY = 3_000_000  # kB of addresses that a command may take; a bit for each number would be 125 TiB


@pytest.mark.parametrize("way", ["write", "push", "push_slice"])
def test_the_bound_is_the_same_for_all_who_bring_frames(run_server, tmp_path, way):
    writer = himach.Writer("run", 5, servers=[run_server().path])
    bring = {
        "write": lambda number: Store(tmp_path / "store").dataset("run", b"").write(number, 0.0, None, frame_of(0, 5)),
        "push": lambda number: (setattr(writer, "number", number), writer.push(frame_of(0, 5), time=0)),
        "push_slice": lambda number: writer.push_slice(number, np.arange(5), frame_of(0, 5), time=0),
    }[way]
    with writer:
        bring(MAX_NUMBER)
        for number in (-1, MAX_NUMBER + 1, 2**63, 2**70):
            with pytest.raises(ValueError, match=f"frame {number}: frames have numbers from 0 to {MAX_NUMBER}"):
                bring(number)


def described(name, *runs):
    """What a server says of a dataset, as in native/server/contents/survey.c."""
    rows = b"".join(np.array(run, dtype="<i8").tobytes() for run in runs)
    return HEAD.pack(len(name), 0, 0, 0, 0, len(runs), 0, 0, 3, 0, 99, 7) + bytes(33) + name + rows


@pytest.mark.parametrize("odd", [(MAX_NUMBER, 1, 2), (-1, 1, 1), (0, 0, 3), (0, 1, 1 << 60)])
def test_an_odd_dataset_hides_no_other_and_is_named(odd):
    told = list(parse(described(b"first", (0, 1, 3)) + described(b"odd", odd) + described(b"last", (5, 2, 3))))
    listed = {one.name: one for one in joined([Answer(Server("a:1"), "n0", "id", (), told)])}
    assert {name: one.held for name, one in listed.items()} == {"first": 3, "odd": 0, "last": 3}
    assert listed["odd"].oddity == "on n0, the server says of frames what is no run of them"
    assert not listed["first"].oddity + listed["last"].oddity


@pytest.fixture
def command(tmp_path):
    """Run a command in little memory."""

    def run(*words):
        words = [sys.executable, "-m", "himach", *map(str, words)]
        environment = clean_environment(HIMACH_NODE="n0", HOME=str(tmp_path))
        done = subprocess.run(
            ["bash", "-c", f'ulimit -v {MEMORY}; exec "$@"', "-", *words],
            env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.mark.nightly
def test_numbers_far_apart_cost_by_their_frames(run_server, command, tmp_path, key):
    server, n_atoms = run_server(name="store"), 40
    push(server, FAR, n_atoms)
    atoms = "".join(f"ATOM  {i:5d}  A   A       1       0.000   0.000   0.000\n" for i in range(1, n_atoms + 1))
    (tmp_path / "top.pdb").write_text(atoms)
    (tmp_path / "seen.py").write_text(
        "import himach\n"
        "class Seen(himach.Analysis):\n"
        "    def atoms(self, universe): return universe.atoms[7:8]\n"
        "    def map(self, frame): yield frame.number, float(frame.universe.atoms[7:8].positions[0, 0])\n"
        "    def reduce(self, key, series): return series.values[0]\n"
    )

    def seen(*more):
        out = tmp_path / "out"
        command("run", "seen.py", "-t", "run", "-s", "top.pdb", "--out", out, *more)
        rows = [line.split(",") for line in (out / "Seen.csv").read_text().splitlines()[1:]]
        return {int(number): float(x) for number, x in rows}

    here = ("--cache", server.place)
    right = {number: float(frame_of(number, n_atoms)[7, 0]) for number in FAR}
    (listed,) = json.loads(command("datasets", "--json", *here))["datasets"]
    assert (listed["held"], listed["frames"]) == (len(FAR), MAX_NUMBER + 1) and listed["missing"] == [2, 3, 4, 5, 6]
    assert "5 of 9,007,199,254,740,992 frames" in command("info", "run", *here)
    assert seen(*here) == seen("-n", 2, *here) == right
    assert seen(*here, "--start", 1, "--stop", 2**40 + 1) == {number: right[number] for number in FAR[1:3]}
    remote = command("stage", "run", "--server", server.address, "--key", key, "--cache", tmp_path / "other", "-n", 2)
    assert f"{len(FAR)} of them now" in remote
    assert "chunks of the time-major form made" in command("stage", "run", "--layout", "both", *here)
    assert seen(*here) == right
    command("stage", "run", "--repair", "--copies", 1, *here)
    server.terminate()
    assert seen(*here) == right
    assert json.loads(command("datasets", "--json", *here))["datasets"][0]["held"] == len(FAR)
