"""A server's numbers: frames by number, those taken or acknowledged, sources of frames."""

import contextlib
import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest
from pyroaring import BitMap64
from support import commands
from support.cache_data import frame_of, push
from support.servers import Running, free_addresses

import himach
from himach.io.datasets.listing import join_answers
from himach.io.server import remote_store
from himach.io.server.admission import make_key, read_key
from himach.io.server.remote_store import RemoteStore
from himach.io.server.survey import HEAD, Answer, Server, parse
from himach.io.store import cached_frames
from himach.io.store.bodhi import MAX_NUMBER
from himach.io.store.store import Store

from ..frame_sources import N_FRAMES as SOURCE_FRAMES
from ..frame_sources import NOTE, CachedFramesTests, fill


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
    """What a server says of a dataset, as in native/server/contents.c."""
    rows = b"".join(np.array(run, dtype="<i8").tobytes() for run in runs)
    return HEAD.pack(len(name), 0, 0, 0, 0, len(runs), 0, 0, 3, 0, 99, 7) + bytes(33) + name + rows


def test_an_odd_dataset_hides_no_other_and_is_named():
    told = list(parse(described(b"first", (0, 1, 3)) + described(b"odd", (0, 0, 3)) + described(b"last", (5, 2, 3))))
    listed = {one.name: one for one in join_answers([Answer(Server("a:1"), "n0", "id", told)])}
    assert {name: one.held for name, one in listed.items()} == {"first": 3, "odd": 0, "last": 3}
    assert listed["odd"].oddity == "on n0, the server says of frames what is no run of them"
    assert not listed["first"].oddity + listed["last"].oddity


def test_clients_that_stay_see_an_evicted_dataset_and_the_new_one(run_server):
    """Lists, places, marks and attachments are of the directory that has the name now."""
    running = run_server()
    push(running, range(20))
    with running.client() as client:
        client.open("run")
        assert list(client.native) == list(range(20))
        commands.himach("cache", "evict", "run", "--cache", running.place, code=0, timeout=60)
        assert list(client.native) == []
        assert list(client.read([3])) == [None]
        assert marks(client) == []
        push(running, range(4, 8))
        assert list(client.native) == [4, 5, 6, 7]
        assert [frame is not None for frame in client.read([3, 4, 7])] == [False, True, True]
        assert marks(client) == [4, 5, 6, 7]
        Store(running.place).dataset("run").attach("note", b"new")
        assert client.attachment("note") == b"new"


def marks(client):
    native, alien = np.zeros(1, dtype=np.uint64), np.zeros(1, dtype=np.uint64)
    client.mark(range(64), native, alien)
    assert not alien.any()
    return [number for number in range(64) if int(native[0]) >> number & 1]


def keep(place, numbers=range(SOURCE_FRAMES)):
    fill(Store(place).dataset("/sim1", b"g1"), numbers)
    Store(place).dataset("/sim1", b"g1").attach("note", NOTE)


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    """One server that has all frames, and two that know each other and have a part each, and some frames both."""
    folder = tmp_path_factory.mktemp("servers")
    make_key(folder / "key")
    addresses = free_addresses(2)
    (folder / "peers").write_text("\n".join(addresses))
    with contextlib.ExitStack() as stack:
        running = []
        for name, numbers in (("all", range(SOURCE_FRAMES)), ("first", range(12)), ("last", range(8, SOURCE_FRAMES))):
            keep(folder / name, numbers)
            options = () if name == "all" else ("--peers", str(folder / "peers"))
            listen = "127.0.0.1:0" if name == "all" else addresses[len(running) - 1]
            running.append(Running(folder / name, folder / "key", *options, listen=listen))
            stack.callback(running[-1].kill)
        yield running


def at(running):
    return Server(running.address, read_key(running.key))


class TestServed(CachedFramesTests):
    @pytest.fixture
    def source(self, servers):
        with servers[0].client() as client:
            yield client.open("/sim1", b"g1")


class TestRemote(CachedFramesTests):
    @pytest.fixture
    def source(self, servers):
        with RemoteStore(at(servers[1])).dataset("/sim1", b"g1") as dataset:
            yield dataset


@pytest.mark.parametrize(
    "frames", [range(3000), range(2999, -1, -7), range(10, 90), range(3, 2500, 2), range(0), range(4000, 5000)]
)
def test_frames_of_servers_are_marked_some_at_a_time(monkeypatch, frames):
    monkeypatch.setattr(cached_frames, "MARKED_WORDS", 2)
    held = BitMap64(range(100, 1000)), BitMap64(range(5, 2000, 3))
    holder = SimpleNamespace(native=held[0], alien=held[1], server=SimpleNamespace(text="a"))
    words = np.zeros((2, (len(frames) + 63) // 64), np.uint64)
    remote_store.RemoteDataset("run7", b"", [holder]).mark(frames, *words)
    for numbers, some in zip(held, words, strict=True):
        there = np.unpackbits(some.view(np.uint8), bitorder="little")
        assert [frames[place] for place in np.flatnonzero(there)] == [number for number in frames if number in numbers]


def test_a_look_for_frames_far_apart_takes_memory_of_these_alone():
    holder = SimpleNamespace(native=BitMap64(range(10**7)), alien=BitMap64(), server=SimpleNamespace(text="a"))
    numbers = np.arange(-1, 2 * 10**7, 10**5)
    tracemalloc.start()
    held = remote_store.RemoteDataset("run7", b"", [holder]).holds(numbers)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    np.testing.assert_array_equal(held, (numbers >= 0) & (numbers < 10**7))
    assert peak < 1e6
