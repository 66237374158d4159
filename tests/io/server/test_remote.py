"""Datasets of other machines: read by their servers, listed as one name space, brought to this node."""

import json
import shutil
import signal
import time
import warnings

import numpy as np
import pytest
from MDAnalysisTests.datafiles import GRO, XTC
from support.cache_data import natives, stage_on_nodes
from support.commands import himach
from support.servers import peering
from support.shelves import spoil

from himach.errors import TrajectoryError, UsageError
from himach.io.server.admission import read_key
from himach.io.server.remote_store import RemoteStore, divide
from himach.io.server.survey import HEAD, Server, format_choice, parse, parse_choice, read_peers, survey, with_port
from himach.io.store.store import Store, StoreError, StoreNotFoundError

from ..frame_sources import BOX, make_positions

N_FRAMES = 300


def fill(place, numbers):
    with Store(place).dataset("/sim1") as dataset:
        for number in numbers:
            dataset.write(number, number / 2, BOX, make_positions(number), native=True)


def same(frame, number):
    return frame is not None and frame.number == number and np.array_equal(frame.positions, make_positions(number))


@pytest.fixture
def servers(tmp_path, run_server):
    """Three servers that know each other: each frame lies on two of them."""
    frames = [[n for n in range(N_FRAMES) if i in (n % 3, (n + 1) % 3)] for i in range(3)]
    return peering(tmp_path, run_server, 3, lambda i: fill(tmp_path / f"n{i}", frames[i]))


@pytest.fixture
def two_servers(tmp_path, run_server):
    """Two servers that know each other, each with a frame of its own."""
    return peering(tmp_path, run_server, 2, lambda i: fill(tmp_path / f"n{i}", [i]))


def opened(running, key, **options):
    return RemoteStore(Server(running.address, read_key(key)), **options)


def test_all_servers_give_their_part(servers, key):
    with opened(servers[0], key).dataset("/sim1") as dataset:
        assert set(dataset.native) == set(range(N_FRAMES)) and not dataset.alien
        assert all(same(frame, number) for number, frame in enumerate(dataset.read(range(N_FRAMES))))
        counters = [server.client().counters()["taken_bytes"] for server in servers]
        assert min(counters) > sum(counters) / 5


def stamped(sequence, n_frames):
    return json.dumps({"sequence": sequence, "n_frames": n_frames}).encode()


def test_the_store_that_saw_the_origin_last_describes_it(tmp_path, two_servers, key):
    for node, told in (("n0", stamped(1, 100)), ("n1", stamped(2, 200))):
        Store(tmp_path / node).dataset("/sim1").attach("origin.json", told)
    assert opened(two_servers[0], key).dataset("/sim1").attachment("origin.json") == stamped(2, 200)


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize("size", [100 << 10, (128 << 10) + 1, 3 << 20])
def test_a_long_stamp_is_told_whole(tmp_path, two_servers, key, size):
    told = stamped(7, 100)[:-1] + b', "files": "' + b"x" * size + b'"}'
    Store(tmp_path / "n0").dataset("/sim1").attach("origin.json", told)
    stamps = {
        one.stamp for answer in survey(Server(two_servers[1].address, read_key(key))).answers for one in answer.holdings
    }
    assert stamps == {told, b""}


def test_frames_that_no_server_gives_are_counted(tmp_path, run_server, key):
    """What is left out of a dataset that is staged from servers is said, with the reason."""
    command("stage", XTC, "-s", GRO, "--dataset", "run7", "--cache", tmp_path / "n0", code=0)
    store = Store(tmp_path / "n0")
    (segment,) = (tmp_path / "n0").glob("*/n-*.seg")
    spoil(segment, segment.stat().st_size // 2, b"\xa5" * 500)
    (generation,) = store.generations("run7")
    (wrong,) = [n for n, frame in enumerate(store.dataset("run7", generation).read(range(10))) if frame is None]
    server = ("--server", run_server().address, "--key", key)
    done = command("stage", "run7", *server, HIMACH_CACHE=str(tmp_path / "here"), code=0)
    assert "9 of them now" in done.stdout and "1 of 10 frames are left out (damaged: 1)" in done.stderr
    assert natives(tmp_path / "here") == [set(range(10)) - {wrong}]


def test_frames_of_two_simulations_are_not_read_as_those_of_one(tmp_path, two_servers, key):
    for node in ("n0", "n1"):
        Store(tmp_path / node).dataset("/sim1").attach("author", f"simulation of {node}".encode())
    with pytest.raises(TrajectoryError, match=r"several simulations.*evict"):
        opened(two_servers[0], key).dataset("/sim1")


def test_a_peer_for_which_there_is_no_key_is_named(tmp_path, two_servers, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "nothing"))
    found = survey(Server(str(tmp_path / "n0" / "server" / "socket")))
    assert len(found.answers) == 1
    assert any("key" in why for why in found.silent.values())


def test_a_key_is_not_shown():
    assert "secret" not in repr(Server("a:1", b"secret"))


def test_copies_stand_in_for_a_server_that_fails(servers, key):
    dataset = opened(servers[0], key).dataset("/sim1")
    reading = dataset.read(range(N_FRAMES))
    assert same(next(reading), 0)
    servers[1].kill()
    assert all(same(frame, number) for number, frame in enumerate(reading, 1))
    servers[2].kill()  # of two thirds of the frames, none is left but those of the first
    reading = dataset.read(range(N_FRAMES))
    assert [frame is not None for frame in reading] == [0 in (n % 3, (n + 1) % 3) for n in range(N_FRAMES)]
    assert reading.misses == {"server unreachable": N_FRAMES // 3}


def test_copies_stand_in_for_a_damaged_one(servers, key, tmp_path):
    (segment,) = (tmp_path / "n0").glob("*/n-*.seg")
    spoil(segment, segment.stat().st_size // 2, b"\xff" * 5000)
    dataset = opened(servers[1], key).dataset("/sim1")
    assert all(same(frame, number) for number, frame in enumerate(dataset.read(range(N_FRAMES))))


def test_what_is_not_there(servers, key):
    with pytest.raises(StoreNotFoundError, match="is not in the store of"):
        opened(servers[0], key).dataset("nothing")


def command(*words, **more):
    return himach(*words, timeout=120, **more)


def test_one_name_space_names_those_that_do_not_answer(servers, key):
    def listed():
        done = command("datasets", "--server", servers[0].address, "--key", key, "--json", "--wait", "5", code=0)
        return json.loads(done.stdout)

    told = listed()
    (one,) = told["datasets"]
    assert told["silent"] == {}
    assert sorted(told["stores"].values()) == one["nodes"] == ["n0", "n1", "n2"]
    assert (one["name"], one["frames"], one["held"], one["whole"]) == ("/sim1", N_FRAMES, N_FRAMES, True)
    assert one["copies"] == [2, 2]
    servers[1].kill()
    servers[2].process.send_signal(signal.SIGSTOP)
    try:
        begun = time.monotonic()
        told = listed()
        assert time.monotonic() - begun < 60
        assert set(told["silent"]) == {servers[1].address, servers[2].address}
        (one,) = told["datasets"]
        assert one["nodes"] == ["n0"] and not one["whole"]
        assert one["missing"][:2] == [1, 4] and one["missing_frames"] == 100
        text = command("datasets", "--server", servers[0].address, "--key", key)
        assert f"no answer: {servers[1].address} (no server listens there)" in text.stdout
        assert f"no answer: {servers[2].address} (no answer in time" in text.stdout
    finally:
        servers[2].process.send_signal(signal.SIGCONT)


def test_a_store_without_a_server_lists_itself(tmp_path):
    fill(tmp_path / "alone", range(5))
    told = json.loads(command("datasets", "--cache", tmp_path / "alone", "--json", HIMACH_NODE="x").stdout)
    assert [(one["name"], one["frames"], one["nodes"]) for one in told["datasets"]] == [("/sim1", 5, ["x"])]


def test_everything_works_by_a_server(tmp_path, run_server, key, monkeypatch):
    """himach info, run, stage --server and MDAnalysis: as over the trajectory's own files."""
    import MDAnalysis

    import himach.mdanalysis  # noqa: F401

    command("stage", XTC, "-s", GRO, "--dataset", "run7", "--cache", tmp_path / "n0", code=0)
    running = run_server()
    server = ("--server", running.address, "--key", key)
    info = command("info", "run7", *server)
    assert "frames          10" in info.stdout and "all of 10 frames (10 native" in info.stdout
    outs = []
    for words in (("-t", "run7", *server), ("-t", XTC, "-s", GRO, "--cache", "off")):
        command("run", "rmsd", *words, "--out", tmp_path / f"out{len(outs)}", code=0)
        outs.append((tmp_path / f"out{len(outs)}" / "rmsd.csv").read_bytes())
    assert outs[0] == outs[1]
    done = command("stage", "run7", *server, HIMACH_CACHE=str(tmp_path / "here"), code=0)
    assert "run7: 10 frames staged, 10 of them now" in done.stdout
    assert natives(tmp_path / "here") == [set(range(10))]
    (tmp_path / "config" / "himach").mkdir(parents=True)
    (tmp_path / "config" / "himach" / "key").write_bytes(key.read_bytes())
    (tmp_path / "config" / "himach" / "key").chmod(0o600)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        name = f"himach://run7?server={running.address}"
        ours, plain = MDAnalysis.Universe(GRO, name), MDAnalysis.Universe(GRO, XTC)
        for at in (9, 0, 4):
            assert np.array_equal(ours.trajectory[at].positions, plain.trajectory[at].positions)
        assert MDAnalysis.Universe(name, name).atoms.n_atoms == plain.atoms.n_atoms
    running.terminate()
    command("run", "rmsd", "-t", "run7", "--cache", tmp_path / "here", "--out", tmp_path / "out2", code=0)
    assert (tmp_path / "out2" / "rmsd.csv").read_bytes() == outs[0]


def test_a_pull_that_goes_on_keeps_neighbours_together(tmp_path, run_server, key):
    """Frames go to the nodes to which an unbroken pull takes them."""
    command("stage", XTC, "-s", GRO, "--dataset", "run7", "--cache", tmp_path / "n0", code=0)
    words = ("stage", "run7", "--server", run_server().address, "--key", key, "--placement", "runs")
    for _ in range(2):
        stage_on_nodes(tmp_path, ["a", "b"], *words, code=0)
        assert [natives(tmp_path / node) for node in "ab"] == [[set(range(5))], [set(range(5, 10))]]
        shutil.rmtree(tmp_path / "b")


@pytest.mark.parametrize("how", [b"\0" * 63, b"\xff" * 64, HEAD.pack(1 << 30, *[0] * 11) + bytes(40)])
def test_a_survey_that_fits_no_length_is_refused(how):
    with pytest.raises(StoreError):
        list(parse(how))


def test_a_server_that_never_ends_its_survey_is_left(key):
    """It tells of the same datasets again and again."""
    told = HEAD.pack(1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0) + b"0" * 33 + b"a"

    class Endless:
        def survey(self, after, name):
            return told

    from himach.io.server import survey as module

    with pytest.raises(StoreError, match="what is none"):
        list(module.holdings(Endless()))


def test_addresses():
    assert with_port("node1") == "node1:7411"
    assert with_port("[::1]") == "[::1]:7411" and with_port("[::1]:9") == "[::1]:9"
    for wrong in ("", ":7", "node1:", "a/b", "node1:99999", "a\nb"):
        with pytest.raises(UsageError, match="no address"):
            with_port(wrong)


def test_a_choice_of_a_server_travels_as_text(key, tmp_path):
    assert parse_choice(str(tmp_path)) is None
    assert parse_choice(format_choice("node1", key)) == Server("node1:7411", read_key(key))


def test_peers_are_read(tmp_path):
    file = tmp_path / "peers"
    file.write_text("# here\nnode1\n\nnode2:99 # there\n")
    assert read_peers(file) == ["node1:7411", "node2:99"]
    file.write_text("node1 node2\n")
    with pytest.raises(UsageError):
        read_peers(tmp_path / "none")


def test_frames_are_divided_evenly_and_neighbours_together():
    numbers = np.arange(40_000)
    everywhere = np.ones(len(numbers), bool)
    plan = divide([everywhere, everywhere, None, everywhere], numbers)
    assert set(plan.tolist()) == {0, 1, 3}
    counts = np.bincount(plan)
    assert counts[[0, 1, 3]].min() > 0.9 * counts.max()
    assert np.count_nonzero(np.diff(plan)) < len(numbers) / 20
    assert divide([None, None], numbers).max() == -1
