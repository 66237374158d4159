"""Sources of frames behind servers: one of this machine, one of another, several that know each other."""

from __future__ import annotations

import contextlib
import socket

import pytest

from himach.io.server.address import Server
from himach.io.server.admission import make_key, read_key
from himach.io.server.remote_store import RemoteStore
from himach.io.store.store import Store

from ..frame_sources import N_FRAMES, CachedFramesTests, fill
from .conftest import Running


def keep(place, numbers=range(N_FRAMES)):
    fill(Store(place).dataset("/sim1", b"g1"), numbers)
    Store(place).dataset("/sim1", b"g1").attach("note", b"n" * 300_000)


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    """One server that has all frames, and two that know each other and have a part each, and some frames both."""
    folder = tmp_path_factory.mktemp("servers")
    make_key(folder / "key")
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in held]
    for one in held:
        one.close()
    (folder / "peers").write_text("\n".join(addresses))
    with contextlib.ExitStack() as stack:
        running = []
        for name, numbers in (("all", range(N_FRAMES)), ("first", range(12)), ("last", range(8, N_FRAMES))):
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


class TestTaken(CachedFramesTests):
    """Bytes come over the connection, as from another machine."""

    @pytest.fixture
    def source(self, servers):
        with at(servers[0]).dial(20.0) as client:
            yield client.open("/sim1", b"g1")


class TestRemote(CachedFramesTests):
    @pytest.fixture
    def source(self, servers):
        with RemoteStore(at(servers[1])).dataset("/sim1", b"g1") as dataset:
            yield dataset
