"""A dataset has the frames of one simulation: what another one pushes under its name is refused, by name."""

import threading

import numpy as np
import pytest
from support import commands, shelves

import himach
from himach.cli.datasets import _row
from himach.io.datasets.listing import join_answers
from himach.io.server.survey import Server, ask
from himach.io.store.store import Store, StoreConflictError


def frame_of(simulation, number):
    return np.random.default_rng((simulation, number)).normal(size=(100, 3)).astype(np.float32)


def on_grid(simulation, number):
    return shelves.on_grid((simulation, number), (100, 3))


def push(servers, simulation, numbers, *, made=frame_of, **options):
    with himach.Writer("run", 100, servers=servers, **options) as writer:
        for number in numbers:
            writer.number = number
            writer.push(made(simulation, number), time=number)


def held(*places):
    """Which simulation each native is of, by number, over several stores; each number once."""
    found = {}
    for place in places:
        dataset = Store(place).dataset("run")
        numbers = list(dataset.native)
        for number, frame in zip(numbers, dataset.read(numbers), strict=True):
            assert number not in found
            found[number] = [
                simulation
                for simulation in range(3)
                for made in (frame_of, on_grid)
                if np.array_equal(frame.positions, made(simulation, number))
            ]
    return {number: one[0] for number, one in found.items()}


@pytest.mark.nightly(but=2)
@pytest.mark.parametrize("made", [frame_of, on_grid], ids=["raw", "packed"])
@pytest.mark.parametrize("n_servers", [1, 2, 3])
def test_a_name_used_twice_is_refused_and_nothing_is_mixed(run_server, key, n_servers, made):
    """Also beyond the frames that are there, and whichever order the servers are named in."""
    running = [run_server() for _ in range(n_servers)]
    servers = [one.address for one in running]
    push(servers, 0, range(50), key=key, made=made)
    writer = himach.Writer("run", 100, servers=servers[::-1], key=key)
    with pytest.raises(StoreConflictError, match=r"frame \d+ of dataset run is there with other positions"):
        for number in range(80):
            writer.push(made(1, number), time=number)
        writer.flush()
    with pytest.raises(StoreConflictError):
        writer.push(made(1, 80), time=80)
    with pytest.raises(StoreConflictError, match="under another name"):
        writer.close()
    assert held(*(one.place for one in running)) == dict.fromkeys(range(50), 0)


def test_a_restart_repeats_frames_and_goes_on(run_server, key):
    running = run_server()
    push([running.address], 0, range(4), key=key, durable=True)
    running.terminate()
    running.start(running.address)
    push([running.address], 0, range(2, 6), key=key, durable=True)
    assert held(running.place) == dict.fromkeys(range(6), 0)


def test_the_first_frame_of_a_name_waits_for_who_stages(run_server):
    """Staging sees no frames, and attaches what it stages; a frame that came between is not acknowledged."""
    running = run_server()
    writer = himach.Writer("run", 100, servers=[running.path], timeout=10)
    ends = []

    def flush():
        try:
            writer.flush()
            ends.append(None)
        except StoreConflictError as error:
            ends.append(error)

    with Store(running.place).locked():
        writer.push(frame_of(1, 0), time=0)
        flushing = threading.Thread(target=flush)
        flushing.start()
        flushing.join(0.5)
        assert flushing.is_alive()
        with Store(running.place).dataset("run", b"fingerprint") as staged:
            staged.attach("origin.json", b"{}")
    flushing.join(30)
    assert "is of a trajectory" in str(ends[0])
    for one in writer._take_pushers():
        one.abandon()


PUSHED = """
import sys, numpy as np, himach
with himach.Writer("run", 100, servers=[sys.argv[1]], first=int(sys.argv[2])) as writer:
    writer.push(np.random.default_rng((0, writer.number)).normal(size=(100, 3)), time=writer.number)
"""


def test_the_working_directory_is_who_pushes(run_server, tmp_path):
    running = run_server()

    def simulate(name, first):
        place = tmp_path / name
        place.mkdir(exist_ok=True)
        return commands.run_python("-c", PUSHED, running.path, first, cwd=place, timeout=60)

    assert simulate("one", 0).returncode == 0
    other = simulate("other", 1)
    assert other.returncode != 0
    assert f"'{tmp_path / 'one'}'" in other.stderr and f"'{tmp_path / 'other'}'" in other.stderr
    assert simulate("one", 1).returncode == 0
    assert held(running.place) == dict.fromkeys(range(2), 0)


@pytest.mark.parametrize(("names", "nodes"), [("ab", ["a", "b"]), (["a", "x/a"], ["a (", "a ("])])
def test_two_simulations_of_one_name_are_listed_as_two_and_named(run_server, tmp_path, names, nodes):
    (tmp_path / "x").mkdir()
    running = [run_server(name=name) for name in names]
    for simulation, one in enumerate(running):
        push([one.path], simulation, range(5), identity=f"replica {simulation}")
    listed = join_answers([ask(Server.local(one.place)) for one in running])
    assert sorted(one.author for one in listed) == ["replica 0", "replica 1"]
    assert [one.held for one in listed] == [5, 5] and not any(one.whole for one in listed)
    assert all("several simulations (replica 0, replica 1)" in one.oddity for one in listed)
    told = sorted(node for one in listed for node in one.nodes)
    assert len(set(told)) == 2 and all(node.startswith(name) for node, name in zip(told, nodes, strict=True))


@pytest.mark.parametrize("n", [0, 2])
def test_a_dataset_of_no_frames_is_not_whole(run_server, n):
    running = run_server()
    push([running.path], 0, range(n))
    (listed,) = join_answers([ask(Server.local(running.place))])
    assert (listed.frames, listed.whole, _row(listed)[2]) == (n, n > 0, "whole" if n else "no frames")


@pytest.mark.parametrize("way", ["servers", "cache"])
def test_a_name_as_of_a_file_is_refused(run_server, tmp_path, way):
    """Nobody would read it: what is called so is looked for as a file."""
    where = {"servers": [run_server().path]} if way == "servers" else {"cache": tmp_path / "store"}
    with pytest.raises(ValueError, match="begins with no '/'"), himach.Writer("/abs/x", 5, **where) as writer:
        writer.push_slice(0, np.arange(5), np.zeros((5, 3)), time=0)
