"""URLs in place of paths, and their copies: each byte is fetched once, and none is another one."""

import fcntl
import hashlib
import itertools
import multiprocessing
import os
import random
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from himach.errors import UsageError
from himach.io.trajectories import file_failures
from himach.io.trajectories.urls import byte_file, transport
from himach.io.trajectories.urls import mirror as mirrors
from himach.io.trajectories.urls.mirror import MARKS, Mirror
from himach.io.trajectories.urls.transport import RemoteError, open_transport
from himach.io.trajectories.urls.url_names import (
    absolute,
    full_url,
    is_url,
    local_file_name,
    redact,
    refuse_urls,
    strip_scheme,
)

SIZE = 3_000_017
PLACES = st.lists(st.tuples(st.integers(0, SIZE - 1), st.integers(1, 200_000)), min_size=1, max_size=8)


@pytest.fixture
def web(web):
    (web.folder / "file.xtc").write_bytes(random.Random(1).randbytes(SIZE))
    return web


def opened(web) -> Mirror:
    transport = open_transport(web.url("file.xtc"))
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
        with ThreadPoolExecutor(3) as pool:
            answer.put(list(pool.map(lambda _: bytes_of(mirror, 0, SIZE), range(3))) == [content] * 3)

    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    processes = [context.Process(target=read, args=(answers,)) for _ in range(3)]
    for process in processes:
        process.start()
    assert [answers.get(timeout=60) for _ in processes] == [True] * 3
    for process in processes:
        process.join(60)
    assert web.sent["file.xtc"] == SIZE


@pytest.mark.parametrize("matches", [True, False])
def test_another_content_has_another_mirror(web, matches):
    web.matches = matches
    first = opened(web)
    first.ensure(0, 1000)
    (web.folder / "file.xtc").write_bytes(b"\0" * SIZE)
    with pytest.raises(RemoteError, match=r"file\.xtc: it has changed since it was opened"):
        first.ensure(500_000, 600_000)
    second = opened(web)
    assert second.path != first.path
    assert bytes_of(second, 0, 1000) == bytes(1000)


def test_a_large_copy_goes_with_the_last_one_that_reads_it(web, monkeypatch):
    monkeypatch.setattr(mirrors, "SMALL_BYTES", 1 << 20)
    content = (web.folder / "file.xtc").read_bytes()
    one, other = opened(web), opened(web)
    one.ensure(0, SIZE)
    one.close()
    web.sent.clear()
    assert bytes_of(other, 0, SIZE) == content
    assert not web.sent
    other.close()
    assert not Path(other.path).parent.exists()
    assert bytes_of(opened(web), 0, SIZE) == content


def test_copies_lie_in_the_store_and_take_half_of_its_quota_at_most(web, tmp_path):
    store = tmp_path / "store"
    store.mkdir()
    mirrors.keep_in(store, 5 * SIZE)
    (web.folder / "small.xtc").write_bytes(bytes(SIZE))
    for n_there, name in enumerate(["file.xtc", "small.xtc"], 1):
        byte_file.fetch(web.url(name), ())
        assert [copy.name for copy in mirrors.copies_in(store)][-1] == web.url(name)
        assert len(mirrors.copies_in(store)) == n_there
    byte_file.close_mirrors([web.url("file.xtc")])
    (web.folder / "third.xtc").write_bytes(bytes(SIZE))
    byte_file.fetch(web.url("third.xtc"), ())
    assert {copy.name for copy in mirrors.copies_in(store)} == {web.url("small.xtc"), web.url("third.xtc")}
    (web.folder / "large.xtc").write_bytes(bytes(3 * SIZE))
    assert not byte_file.fetch(web.url("large.xtc"), ()).startswith(str(store))
    assert not mirrors.evict(mirrors.copies_in(store)[0].folder)  # somebody has it open


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


def test_of_a_server_without_ranges_small_files_are_read_as_a_whole(web):
    web.ranges = False
    url, content = web.url("file.xtc"), (web.folder / "file.xtc").read_bytes()
    assert Path(byte_file.fetch(url, ())).read_bytes() == content
    (web.folder / "file.xtc").write_bytes(2 * content)
    with pytest.raises(RemoteError, match="does not give parts of it; download"):
        opened(web).ensure(0, 2 * SIZE)


def test_heads_of_the_settings_of_fsspec_go_with_each_request(web, monkeypatch):
    from fsspec.config import conf

    web.password = "Bearer one"
    monkeypatch.setitem(conf, "http", {"headers": {"Authorization": web.password}})
    assert bytes_of(opened(web), 0, SIZE) == (web.folder / "file.xtc").read_bytes()


@pytest.mark.parametrize("fault", ["cut", "reset", "500", "503"])
def test_what_passes_is_asked_for_again(web, fault):
    content = (web.folder / "file.xtc").read_bytes()
    web.fault = lambda number, place: fault if number in (0, 3) else ""
    assert bytes_of(opened(web), 0, SIZE) == content


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("changed", "it has changed since"),
        ("403", "it may not be read: the server says 403"),
        ("404", "there is no such file"),
        ("page", "a web page in place of the file"),
        ("packed", "content-encoding: gzip"),
        ("500", "the server says 500"),
        ("reset", "reset|disconnected"),
        ("cut", "not completed|payload|try again"),
    ],
)
def test_what_does_not_pass_is_named_and_nothing_of_it_is_kept(web, fault, message):
    content = (web.folder / "file.xtc").read_bytes()
    mirror = opened(web)
    web.fault = lambda number, place: fault
    with pytest.raises(RemoteError, match=rf"(?is)127.0.0.1:\d+/file\.xtc: .*({message})"):
        mirror.ensure(0, 1024)
    web.fault = lambda number, place: ""
    assert bytes_of(mirror, 0, 2048) == content[:2048]


def test_a_server_that_is_silent_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(transport, "SILENT_SECONDS", 0.2)
    monkeypatch.setattr(file_failures, "PAUSES", ())
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(RemoteError, match=r"(?i)timeout"):
        byte_file.read_status(f"http://127.0.0.1:{server.getsockname()[1]}/file.xtc")


@pytest.mark.parametrize("how", ["removed", "cut", "removed with its marks", "marks removed"])
@pytest.mark.parametrize("meanwhile", [False, True])
def test_a_local_copy_that_is_lost_is_asked_for_anew(web, how, meanwhile):
    content, url = (web.folder / "file.xtc").read_bytes(), web.url("file.xtc")
    local = Path(byte_file.fetch(url, ()))
    if not meanwhile:
        byte_file.close_mirrors([url])
    if "marks" in how:
        (local.parent / MARKS).unlink()
    if how.startswith("removed"):
        local.unlink()
    elif how == "cut":
        byte_file.close_mirrors([url])
        os.truncate(local, 100)
    for _ in range(2):
        assert Path(byte_file.fetch(url, ())).read_bytes() == content
        with byte_file.ByteFile(url) as file:
            assert file.pread(SIZE, 0) == content
        byte_file.close_mirrors([url])


def test_a_copy_that_another_process_forgets_at_this_moment_is_not_read(web):
    content, url = (web.folder / "file.xtc").read_bytes(), web.url("file.xtc")
    local = Path(byte_file.fetch(url, ()))
    byte_file.close_mirrors([url])
    local.write_bytes(bytes(len(content)))
    with (local.parent / MARKS).open("rb") as marks, ThreadPoolExecutor(1) as pool:
        fcntl.flock(marks, fcntl.LOCK_EX)  # as the process that has seen it first
        brought = pool.submit(byte_file.fetch, url, ())
        with pytest.raises(TimeoutError):
            brought.result(0.3)
        (local.parent / MARKS).unlink()
        local.unlink()
        fcntl.flock(marks, fcntl.LOCK_UN)
        assert Path(brought.result(30)).read_bytes() == content
    byte_file.close_mirrors([url])


WORDS = st.text("abcXYZ019-._~", min_size=3, max_size=12)


@pytest.mark.parametrize("text", ["https://host/md.xtc", "s3://bucket/key.nc", "gs://b/k", "http://h:80/x?y=1"])
def test_a_path_that_has_lost_a_slash_is_the_same_url(text):
    assert is_url(text)
    assert is_url(Path(text))
    assert full_url(absolute(Path(text))) == text


@pytest.mark.parametrize("text", ["/md.xtc", "md.xtc", "imd://host:1", "himach://name", "tcp://h:1", "a/b:/c", "c:/x"])
def test_other_paths_are_none(text):
    assert not is_url(text)
    assert absolute(text) == os.path.abspath(text)


def test_urls_of_this_machine_and_of_datasets_are_paths_and_names(tmp_path):
    cases = {
        "file:///data/a%20b.xtc": "/data/a b.xtc", "file:/data/a.xtc": "/data/a.xtc", "himach://run7": "run7",
        "himach:///data/a.xtc": "/data/a.xtc", "file": "file", "s3://b/a.xtc": "s3://b/a.xtc",
    }  # fmt: skip
    assert {text: strip_scheme(text) for text in cases} == cases
    for text in ("file://other/a.xtc", "file:///", "himach://", "himach://run7?server=h:1"):
        with pytest.raises(UsageError, match=r"names no|--server h:1"):
            strip_scheme(text)


@given(WORDS, WORDS, WORDS, WORDS)
def test_a_name_has_no_secret(user, password, key, signature):
    secrets = (f"u1{user}", f"p2{password}", f"s3{signature}")
    text = f"https://{secrets[0]}:{secrets[1]}@host.example/md.xtc?X-Amz-{key}={secrets[2]}&versionId=7&my{key}={secrets[2]}"
    name = absolute(text)
    digest = hashlib.sha256(secrets[2].encode()).hexdigest()[:16]
    assert name == absolute(name) == f"https://host.example/md.xtc?versionId=7&my{key}=sha256:{digest}"
    assert full_url(name) == text
    told = redact(f"cannot get {text}: no")
    assert not any(secret in told for secret in secrets)


def test_urls_have_one_name_where_they_differ_in_credentials_alone():
    path = "https://host/s/T/download?path=/"
    names = {
        absolute(f"{path}&files={file}&token={token}&Expires={token}") for file in "ab" for token in ("xyz", "uvw")
    }
    assert names == {f"{path}&files=a", f"{path}&files=b"}
    assert absolute("https://host/get?key=a") != absolute("https://host/get?key=b")
    assert absolute("https://host/get?part=a") != absolute("https://host/get?part=b") != absolute("https://host/get?b")


def test_the_suffix_tells_the_format_whatever_the_query():
    assert local_file_name("https://host/a%20b/md.part0001.xtc?download=1") == "md.part0001.xtc"
    assert local_file_name("https://host/../..") == "file"
    assert "/" not in local_file_name("https://host/a%2F..%2Fb.pdb")


def test_a_refusal_names_the_url_and_no_secret():
    with pytest.raises(UsageError, match=r"^https://host/md.xtc is the URL .*: no$"):
        refuse_urls(["here.xtc", "https://me:word@host/md.xtc"], "no")
