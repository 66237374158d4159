"""The place of a node's store, its quota, and eviction beside writers: what is held or pushed stays."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.needs import small_disk
from support.shelves import fill, place_of, positions_of, segment_files

from himach.errors import UsageError
from himach.io.store import quota
from himach.io.store.quota import (
    Segment,
    StoreSizes,
    check_quota,
    chosen_quota,
    open_chosen,
    open_store,
    store_place,
    survey,
)
from himach.io.store.sizes import parse_size, show_size
from himach.io.store.store import Store, StoreBusyError, StoreFullError, StoreRefusedError

STEPS_IN_QUOTA = 256
BESIDE_RECORD = 32 + 2 * 64  # its index entry, and the headers of a new segment and its index


def asked_for(n_atoms: int) -> int:
    """Bytes that a writer asks for to append a raw frame of positions, of one block of atoms."""
    return 128 + -(-12 * n_atoms // 64) * 64 + BESIDE_RECORD


def write(place: Path, nbytes: int, limit: int, name: str = "writing") -> bool:
    """Write a frame that needs about so many bytes; return whether there was room."""
    store = Store(place)
    store.set_quota(limit)
    dataset = store.dataset(name, b"one")
    positions = np.random.default_rng(1).normal(size=(nbytes // 12, 3)).astype(np.float32)
    try:
        dataset.write(len(dataset.alien), 0.0, None, positions)
    except StoreFullError:
        return False
    finally:
        dataset.close()
    return True


# --- The plan ---------------------------------------------------------------------------------------------------------


def plan(segments: list[Segment], nbytes: int) -> list[Segment]:
    """Datasets not used for longest, in each aliens before natives, oldest first: as few as make up `nbytes`."""
    chosen = []
    for segment in sorted(segments, key=lambda one: (one.last_used, one.directory, one.native, one.id)):
        if nbytes <= 0:
            break
        chosen.append(segment)
        nbytes -= segment.nbytes
    return chosen


def evicted(segments: list[Segment], there: int, step: int, needed: int) -> list[Segment]:
    """What goes so that a writer gets a step, or at least what it needs; nothing if that would not be enough."""
    segments = [one for one in segments if not one.pushed]
    total = sum(one.nbytes for one in segments)
    return next((plan(segments, want - there) for want in (step, needed) if total >= want - there), [])


NAMES = [f"{number:016x}-{number % 3:016x}" for number in range(1, 5)]
STORES = st.lists(
    st.tuples(st.sampled_from(NAMES), st.integers(0, 9), st.booleans(), st.integers(64, 900_000)),
    unique_by=lambda one: one[:3],
    max_size=20,
)


@given(STORES, st.sets(st.sampled_from(NAMES)), st.permutations(range(4)), st.integers(10_000, 9_000_000))
@settings(max_examples=60)
def test_a_writer_evicts_by_the_plan(tmp_path_factory, files, pushed, times, limit):
    place = tmp_path_factory.mktemp("store")
    Store(place)
    for directory, used in zip(NAMES, times, strict=True):
        (place / directory).mkdir()
        (place / directory / "meta").touch()
        os.utime(place / directory / "meta", (1000 + used // 2, 1000 + used // 2))  # two of them at one time
        if directory not in pushed:
            (place / directory / "x-origin.json").touch()
    for directory, key, native, nbytes in files:
        stem = place / directory / f"{'n' if native else 'a'}-{key:016x}"
        for suffix, part in [("seg", nbytes - nbytes // 8), ("idx", nbytes // 8)]:
            with open(f"{stem}.{suffix}", "wb") as file:
                file.truncate(part)
    Store(place).dataset("writing", b"one")
    before = survey(place)
    assert sorted((one.directory, one.id, one.native, one.nbytes) for one in before.segments) == sorted(files)
    assert list(before.segments) == plan(list(before.segments), 1 << 60)
    needed = asked_for(500)
    free = limit - before.used - 16  # the file of grants
    gone = evicted(list(before.segments), free, max(needed, limit // STEPS_IN_QUOTA), needed)
    there = free + sum(one.nbytes for one in gone)
    assert write(place, 6000, limit) == (there >= needed)
    left = [one for one in survey(place).segments if one.directory in NAMES]
    assert left == [one for one in before.segments if one not in gone]
    assert free < 0 or survey(place).used <= limit


# --- Rooms ------------------------------------------------------------------------------------------------------------


def use(dataset, seconds: int) -> None:
    os.utime(dataset.path / "meta", (seconds, seconds))


def test_a_dataset_does_not_eat_itself(tmp_path):
    fill(tmp_path / "store", range(40), "writing", segment_bytes=64_000).attach("origin.json", b"{}")
    before = survey(tmp_path / "store")
    assert not write(tmp_path / "store", 1000, before.used)
    assert [one.id for one in survey(tmp_path / "store").segments] == [one.id for one in before.segments]


def test_what_is_held_stays_when_room_is_made(tmp_path):
    dataset = fill(tmp_path / "store", range(40), segment_bytes=64_000)
    dataset.attach("origin.json", b"{}")
    reading = dataset.read(range(3))
    assert next(reading) is not None
    writing = Store(tmp_path / "store").dataset("other", b"")
    writing.attach("origin.json", b"{}")
    writing.write(0, 0.0, None, positions_of(0))
    writing.flush()
    use(writing, 1)
    use(dataset, 2)
    store = Store(tmp_path / "store")
    used = survey(store.path).used
    assert write(store.path, 1000, used)  # around both
    assert place_of(dataset, 0)[0].exists()
    assert segment_files(writing)


@pytest.mark.parametrize("n_atoms", [100, 30_000])
def test_the_reserve_of_the_disk_stays_free(tmp_path, n_atoms):
    with small_disk(tmp_path / "disk", "size=8M") as disk:
        store = Store(disk / "store")
        store.set_quota(1 << 30)
        dataset = store.dataset("full")
        positions = np.random.default_rng(1).normal(size=(n_atoms, 3)).astype(np.float32)
        written = 0
        with pytest.raises(StoreFullError, match="no room"):
            while True:
                written += dataset.write(written, 0.0, None, positions)
        dataset.close()
        found = survey(store.path)
        assert found.reserve == found.size // 20
        assert found.reserve <= found.free < found.reserve + 100_000 + 12 * n_atoms
        assert len(Store(disk / "store").dataset("full").alien) == written


@pytest.mark.parametrize("name", ["store", "above/store"])  # Python makes the folders above a store
def test_a_store_that_a_full_disk_cannot_take_costs_the_cache_alone(tmp_path, name):
    with small_disk(tmp_path / "disk", "nr_inodes=2") as disk:
        (disk / "other").touch()
        store, message = open_chosen(str(disk / name))
    assert store is None
    assert re.search(rf"no frames are cached: .*disk/{name}.* make room", message)


# --- Several writers --------------------------------------------------------------------------------------------------

WRITER = """
import os, signal, sys
import numpy as np
from himach.io.store.store import Store, StoreFullError
store = Store(sys.argv[1])
store.set_quota(int(sys.argv[2]))
dataset = store.dataset(sys.argv[3])
positions = np.random.default_rng(1).normal(size=(int(sys.argv[4]), 3)).astype(np.float32)
number = 0
try:
    while number < int(sys.argv[5]):
        dataset.write(number, 0.0, None, positions)
        number += 1
        if number % 50 == 0:
            dataset.flush()
except StoreFullError:
    dataset.close()
    sys.exit()
dataset.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""


def writer(place: Path, limit: int, name: str, n_atoms: int, most: int = 1 << 30) -> subprocess.Popen[bytes]:
    """Write until the store is full, or die after so many frames."""
    words = [sys.executable, "-c", WRITER, place, limit, name, n_atoms, most]
    return subprocess.Popen([str(word) for word in words])


def test_writers_at_once_stay_within_the_quota(tmp_path):
    place, limit = tmp_path / "store", 20_000_000
    Store(place)
    running = [writer(place, limit, f"/sim{who}", n_atoms) for who, n_atoms in enumerate([500, 500, 3000, 40_000])]
    most = 0
    while any(one.poll() is None for one in running):
        most = max(most, survey(place).used)
    assert [one.returncode for one in running] == [0] * 4
    assert most <= limit
    assert limit - 600_000 < survey(place).used <= limit


def test_a_killed_writer_leaves_no_grant(tmp_path):
    store, limit = Store(tmp_path / "store"), 64_000_000  # steps of 250 kB
    store.set_quota(limit)
    living = [store.dataset(f"living{who}") for who in range(4)]
    for one in living:
        one.write(0, 0.0, None, positions_of(0))
    assert writer(store.path, limit, "/killed", 500, most=1).wait(60) == -signal.SIGKILL
    for one in living:
        one.close()
    assert np.fromfile(store.path / "room", dtype=np.uint64)[-1] > 200_000
    assert writer(store.path, limit, "/last", 500).wait(60) == 0
    assert limit - 10_000 < survey(store.path).used <= limit


def test_segments_are_small_parts_of_the_quota(tmp_path):
    store = Store(tmp_path / "store")
    store.set_quota(16 << 20)
    dataset = store.dataset("parts")
    positions = np.random.default_rng(1).normal(size=(10_000, 3)).astype(np.float32)
    for number in range(40):
        dataset.write(number, 0.0, None, positions)
    dataset.close()
    sizes = [path.stat().st_size for path in segment_files(dataset)]
    assert len(sizes) == 3 and max(sizes) <= 2 << 20


# --- Limits -----------------------------------------------------------------------------------------------------------


def test_a_quota_that_is_too_small_and_a_disk_that_is_too_full_are_told_with_both_numbers(tmp_path, monkeypatch):
    with pytest.raises(UsageError, match=r"quota of 500 kB \(500000 bytes\).*segment of 1\.0 MB \(1048576 bytes\)"):
        check_quota(tmp_path, 500_000)
    monkeypatch.setattr(quota, "survey", lambda path: StoreSizes(0, 10_000_000, 10**12, 1 << 30, ()))
    with pytest.raises(StoreFullError, match=r"10\.0 MB \(10000000 bytes\) free.*1\.1 GB \(1073741824 bytes\)"):
        check_quota(tmp_path, 1 << 30)


def test_the_quota_is_half_of_what_there_is_unless_told(tmp_path, monkeypatch):
    monkeypatch.delenv("HIMACH_QUOTA", raising=False)
    found = survey(tmp_path / "none")
    assert chosen_quota(tmp_path / "none") == pytest.approx((found.free + found.used) // 2, rel=0.01)
    monkeypatch.setenv("HIMACH_QUOTA", "3GB")
    assert chosen_quota(tmp_path) == 3 * 10**9
    assert chosen_quota(tmp_path, "1GiB") == 1 << 30


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("2GB", 2 * 10**9),
        ("500MiB", 500 << 20),
        ("1.5 kB", 1500),
        ("7", 7),
        ("3g", 3 * 10**9),
        ("0", 0),
        (".5MB", 500_000),
    ],
)
def test_sizes_are_read_as_people_write_them(text, nbytes):
    assert parse_size(text) == nbytes


@pytest.mark.parametrize("text", ["", "GB", "-1", "1 XB", "1e9", "2GB2"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(UsageError, match="is no size"):
        parse_size(text)


@given(st.integers(0, 10**18))
def test_shown_sizes_are_read_as_nearly_the_same(nbytes):
    assert parse_size(show_size(nbytes)) == pytest.approx(nbytes, rel=0.05)


def test_segments_of_which_nothing_says_what_they_are_go_too_unless_held(tmp_path):
    dataset = fill(tmp_path / "store", range(40), segment_bytes=64_000)
    reading = dataset.read(range(3))
    assert next(reading) is not None
    (dataset.path / "meta").write_bytes(b"nothing")
    store = Store(tmp_path / "store")
    segments = survey(store.path).segments
    (store.path / dataset.path.name / "n-00000000000000aa.idx").touch()  # its segment went and it did not
    assert len(survey(store.path).segments) == len(segments) + 1
    busy = []
    for one in survey(store.path).segments:
        try:
            store.evict(one.directory, one.id, native=one.native)
        except StoreBusyError:
            busy.append(one.id)
    assert [f"a-{segment:016x}.seg" for segment in busy] == [place_of(dataset, 0)[0].name]
    del reading
    (last,) = survey(store.path).segments
    store.evict(last.directory, last.id, native=last.native)
    assert survey(store.path).segments == ()


OWN = f"himach-{os.geteuid()}"


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch):
    for name in ("HIMACH_CACHE", "SLURM_TMPDIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HIMACH_NODE", "n17")


def test_default_place(monkeypatch):
    assert store_place() == store_place("auto") == Path("/var/tmp") / OWN
    monkeypatch.setenv("XDG_CACHE_HOME", "/home/x/.cache")
    assert store_place() == Path("/home/x/.cache/himach")
    monkeypatch.setenv("SLURM_TMPDIR", "/scratch/job7")
    assert store_place() == Path("/scratch/job7") / OWN
    monkeypatch.setenv("HIMACH_CACHE", "/local/{node}/cache")
    assert store_place() == Path("/local/n17/cache")


def test_a_named_place(monkeypatch):
    monkeypatch.setenv("HOME", "/home/x")
    assert store_place("/disk/{node}/frames") == Path("/disk/n17/frames")
    assert store_place("~/frames") == Path("/home/x/frames")
    monkeypatch.setenv("HIMACH_CACHE", "~/cache-{node}")
    assert store_place() == Path("/home/x/cache-n17")
    assert store_place("/other") == Path("/other")


def test_a_link_is_followed_only_where_the_user_named_it(tmp_path, monkeypatch):
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / OWN).symlink_to(tmp_path / "real")
    monkeypatch.setenv("SLURM_TMPDIR", str(tmp_path))
    with pytest.raises(StoreRefusedError, match="symbolic link"):
        open_store()
    assert open_store(tmp_path / OWN).identity
    monkeypatch.setenv("HIMACH_CACHE", str(tmp_path / OWN))
    assert open_store().identity
