"""What has come of a file elsewhere: each byte is asked for once, and none is another one."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import random
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from himach.benchmarks.parts.urls import served
from himach.io.remote import mirror as mirrors
from himach.io.remote.errors import RemoteChangedError, RemoteError
from himach.io.remote.mirror import Mirror
from himach.io.remote.schemes import transport_of

SIZE = 3_000_017
PLACES = st.lists(st.tuples(st.integers(0, SIZE - 1), st.integers(1, 200_000)), min_size=1, max_size=8)


@pytest.fixture
def web(tmp_path):
    folder = tmp_path / "web"
    folder.mkdir()
    (folder / "file.xtc").write_bytes(random.Random(1).randbytes(SIZE))
    with served(folder) as found:
        yield found


def opened(web) -> Mirror:
    transport = transport_of(web.url("file.xtc"))
    return Mirror(transport, transport.state())


def bytes_of(mirror: Mirror, begin: int, end: int) -> bytes:
    mirror.ensure(begin, end)
    with open(mirror.path, "rb") as file:
        file.seek(begin)
        return file.read(min(end, SIZE) - begin)


def test_each_byte_is_right_and_asked_for_once(web, tmp_path, monkeypatch):
    content = (web.folder / "file.xtc").read_bytes()

    @settings(max_examples=25, deadline=None)
    @given(PLACES, st.integers(0, 1 << 30))
    def check(places, seed):
        monkeypatch.setenv("TMPDIR", str(tmp_path / str(seed)))
        (tmp_path / str(seed)).mkdir(exist_ok=True)
        web.places.clear()
        mirror = opened(web)
        begun = len(web.places)
        mirror.ask([(begin, begin + n_bytes) for begin, n_bytes in places[::2]])
        for begin, n_bytes in places:
            assert bytes_of(mirror, begin, begin + n_bytes) == content[begin : begin + n_bytes]
        mirror.close()
        stretches = sorted((first, last) for _, first, last in web.places[begun:])
        assert all(one[1] <= other[0] for one, other in itertools.pairwise(stretches))

    check()


def test_a_killed_process_leaves_what_has_come(web):
    def read() -> None:
        mirror = opened(web)
        mirror.ensure(0, 1_000_000)
        os._exit(1)

    process = multiprocessing.get_context("fork").Process(target=read)
    process.start()
    process.join(60)
    web.sent.clear()
    mirror = opened(web)
    content = (web.folder / "file.xtc").read_bytes()
    assert bytes_of(mirror, 0, SIZE) == content
    assert web.sent["file.xtc"] <= SIZE - 1_000_000 + 65


def test_processes_and_threads_ask_for_no_byte_twice(web):
    content = (web.folder / "file.xtc").read_bytes()
    web.latency = 0.05

    def read(answer) -> None:
        mirror = opened(web)
        found = []
        threads = [threading.Thread(target=lambda: found.append(bytes_of(mirror, 0, SIZE))) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        answer.put(found == [content] * 3)

    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    processes = [context.Process(target=read, args=(answers,)) for _ in range(3)]
    for process in processes:
        process.start()
    assert [answers.get(timeout=60) for _ in processes] == [True] * 3
    for process in processes:
        process.join(60)
    assert web.sent["file.xtc"] == SIZE + len(processes)


def test_another_content_has_another_mirror(web):
    first = opened(web)
    first.ensure(0, 1000)
    (web.folder / "file.xtc").write_bytes(b"\0" * SIZE)
    with pytest.raises(RemoteChangedError, match=r"file\.xtc: it has changed since it was opened"):
        first.ensure(500_000, 600_000)
    second = opened(web)
    assert second.path != first.path
    assert bytes_of(second, 0, 1000) == bytes(1000)


def test_the_last_one_leaves_the_beginning_and_the_end(web, monkeypatch):
    monkeypatch.setattr(mirrors, "SMALL_BYTES", 1 << 20)
    monkeypatch.setattr(mirrors, "KEPT_BYTES", 1 << 16)
    content = (web.folder / "file.xtc").read_bytes()
    one, other = opened(web), opened(web)
    one.ensure(0, SIZE)
    one.close()
    web.sent.clear()
    assert bytes_of(other, 0, SIZE) == content
    assert not web.sent
    other.close()
    assert os.stat(other.path).st_blocks * 512 < 1 << 19
    again = opened(web)
    web.sent.clear()
    assert bytes_of(again, 0, 1 << 16) == content[: 1 << 16]
    assert bytes_of(again, SIZE - (1 << 15), SIZE) == content[-(1 << 15) :]
    assert not web.sent
    assert bytes_of(again, 0, SIZE) == content


def test_what_nobody_has_opened_for_long_goes(web, tmp_path):
    old, used = opened(web), opened(web)
    folder = Path(old.path).parent
    os.utime(folder, (1, 1))
    (web.folder / "file.xtc").write_bytes(b"1")
    opened(web)
    assert folder.exists()  # somebody has it open
    old.close()
    used.close()
    os.utime(folder, (1, 1))
    (web.folder / "file.xtc").write_bytes(b"22")
    opened(web)
    assert not folder.exists()


def test_a_server_without_ranges_gives_all_at_once(web):
    web.ranges = False
    mirror = opened(web)
    content = (web.folder / "file.xtc").read_bytes()
    web.sent.clear()
    assert bytes_of(mirror, 1_000_000, 1_000_100) == content[1_000_000:1_000_100]
    assert bytes_of(mirror, 0, SIZE) == content
    # Once; what the server still sends of the answer to the first look counts, too.
    assert SIZE <= web.sent["file.xtc"] < 1.5 * SIZE


@pytest.mark.parametrize("fault", ["cut", "reset", "500", "503", "slow"])
def test_what_passes_is_asked_for_again_from_where_it_ended(web, fault):
    content = (web.folder / "file.xtc").read_bytes()
    mirror = opened(web)
    begun = len(web.asked)
    web.fault = lambda number, place: fault if number - begun in (0, 2) else ""
    web.sent.clear()
    assert bytes_of(mirror, 0, SIZE) == content
    assert web.sent["file.xtc"] <= SIZE + 4 * 64


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("wrong range", "bytes 0 to 1024 were asked for, and the server sends 64 to 1088"),
        ("wrong size", "it has changed since"),
        ("changed", "it has changed since"),
        ("403", "it may not be read: the server says 403"),
        ("404", "there is no such file"),
        ("page", "a web page in place of the file"),
        ("packed", r"the server sends it packed \(gzip\)"),
        ("whole", "gave ranges of it, and does not any more"),
        ("500", "the server says 500, 4 times in turn"),
        ("reset", "4 times in turn"),
        ("cut", "the answer ended before its end, 4 times in turn"),
    ],
)
def test_what_does_not_pass_is_named_and_nothing_of_it_is_kept(web, fault, told):
    content = (web.folder / "file.xtc").read_bytes()
    mirror = opened(web)
    web.fault = lambda number, place: fault
    with pytest.raises(RemoteError, match=rf"127.0.0.1:\d+/file\.xtc: .*{told}"):
        mirror.ensure(0, 1024)
    web.fault = lambda number, place: ""
    assert bytes_of(mirror, 0, 2048) == content[:2048]


def test_an_answer_that_trickles_ends(web, monkeypatch):
    monkeypatch.setattr(mirrors, "SLOW_SECONDS", 0.1)
    monkeypatch.setattr(mirrors, "SLOW_RATE", 1e9)
    monkeypatch.setattr(mirrors, "PROGRESS_BYTES", SIZE)
    mirror = opened(web)
    web.fault = lambda number, place: "slow"
    with pytest.raises(RemoteError, match="bytes came in"):
        mirror.ensure(0, SIZE)
