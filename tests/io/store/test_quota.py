"""Quota and eviction: the plan beside its rules, and what is held stays."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.shelves import fill, place_of, positions_of, segment_files

from himach.errors import UsageError
from himach.io.store import eviction
from himach.io.store.eviction import (
    Segment,
    Survey,
    act,
    check_quota,
    chosen_quota,
    make_room,
    plan,
    segment_bytes,
    survey,
)
from himach.io.store.sizes import parse_size, show_size
from himach.io.store.store import Store, StoreFullError

USED = {"old": 100, "middle": 200, "new": 300, "same": 200}
SEGMENTS = st.lists(
    st.builds(
        lambda directory, key, native, nbytes: Segment(directory, key, native, nbytes, USED[directory]),
        st.sampled_from(sorted(USED)),
        st.integers(0, 9),
        st.booleans(),
        st.integers(64, 1000),
    ),
    unique_by=lambda segment: (segment.directory, segment.native, segment.id),
    max_size=30,
)


@given(SEGMENTS, st.integers(-10, 9000), st.sets(st.sampled_from(sorted(USED))))
def test_plan_takes_the_least_that_is_enough_in_the_order_of_the_rules(segments, nbytes, spare):
    chosen = plan(segments, nbytes, spare)
    left = [segment for segment in segments if segment not in chosen]
    assert not any(segment.directory in spare for segment in chosen)
    assert len(set(chosen)) == len(chosen)
    enough = sum(segment.nbytes for segment in chosen) >= nbytes
    assert enough or not any(segment.directory not in spare for segment in left)
    if chosen:
        assert sum(segment.nbytes for segment in chosen[:-1]) < nbytes
    for gone in chosen:
        for stays in left:
            if stays.directory in spare:
                continue
            assert gone.last_used <= stays.last_used
            if gone.directory == stays.directory:
                assert gone.native <= stays.native
                assert gone.native < stays.native or gone.id <= stays.id


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6))
def test_shortage_is_what_must_go(used, free, nbytes, quota):
    size = used + free
    short = Survey((), used, free, size).shortage(nbytes, quota)
    assert used - short + nbytes <= quota or short > used
    assert free + short - nbytes >= eviction.reserve(size)


def use(dataset, seconds: int) -> None:
    os.utime(dataset.path / "meta", (seconds, seconds))


def three(place: Path) -> dict[str, object]:
    """Three datasets of 100 frames in segments of about 10, used one after the other."""
    made = {}
    for name, native in [("first", True), ("second", False), ("third", True)]:
        made[name] = fill(place, range(100), name, native=native, segment_bytes=64_000)
    fill(place, range(100, 150), "first", segment_bytes=64_000)
    for at, name in enumerate(made):
        use(made[name], 1000 + at)
    return made


def test_room_is_made_at_the_cost_of_what_was_not_used_for_longest(tmp_path):
    made = three(tmp_path / "store")
    before = survey(tmp_path / "store")
    assert make_room(Store(tmp_path / "store"), 100_000, before.used)
    first = made["first"]
    first.refresh()
    assert first.facts()["native"] == 100
    assert 0 < first.facts()["alien"] < 50
    assert survey(tmp_path / "store").used <= before.used - 100_000
    for name in ("second", "third"):
        made[name].refresh()
        assert len(made[name].native | made[name].alien) == 100
    # Evicting is no use: the order stays.
    assert {segment.last_used // 10**9 for segment in survey(tmp_path / "store").segments} == {1000, 1001, 1002}


def test_room_is_not_made_in_part(tmp_path):
    three(tmp_path / "store")
    before = survey(tmp_path / "store")
    assert not make_room(Store(tmp_path / "store"), before.used + 1, before.used)
    spare = {segment.directory for segment in before.segments}
    assert not make_room(Store(tmp_path / "store"), 1, before.used, spare=spare)
    assert survey(tmp_path / "store").segments == before.segments


def test_what_is_held_stays(tmp_path):
    dataset = fill(tmp_path / "store", range(40), segment_bytes=64_000)
    reading = dataset.read(range(10))
    assert next(reading) is not None
    writing = Store(tmp_path / "store").dataset("other", b"")
    writing.write(0, 0.0, None, positions_of(0))
    writing.flush()
    use(writing, 1)
    assert not make_room(Store(tmp_path / "store"), 1000, 20_000)  # the quota asks for more than can go
    freed = act(Store(tmp_path / "store"), plan(survey(tmp_path / "store").segments, 10**9))
    assert {reason for _, reason in freed.busy} == {"a writer or reader holds it"}
    assert len(freed.busy) >= 2
    assert place_of(dataset, 0)[0].exists()
    assert segment_files(writing)
    del reading


def test_room_is_made_around_what_is_held(tmp_path):
    dataset = fill(tmp_path / "store", range(40), segment_bytes=64_000)
    reading = dataset.read(range(3))
    assert next(reading) is not None
    used = survey(tmp_path / "store").used
    assert make_room(Store(tmp_path / "store"), 1000, used)
    assert place_of(dataset, 0)[0].exists()
    assert survey(tmp_path / "store").used <= used - 1000
    del reading


def test_a_quota_that_is_too_small_and_a_disk_that_is_too_full_are_told_with_both_numbers(tmp_path, monkeypatch):
    with pytest.raises(UsageError, match=r"quota of 500 kB \(500000 bytes\).*segment of 1\.0 MB \(1048576 bytes\)"):
        check_quota(tmp_path, 500_000)
    monkeypatch.setattr(eviction, "survey", lambda path: Survey((), 0, 10_000_000, 10**12))
    with pytest.raises(StoreFullError, match=r"10\.0 MB \(10000000 bytes\) free.*1\.1 GB \(1073741824 bytes\)"):
        check_quota(tmp_path, 1 << 30)


def test_the_quota_is_half_of_what_there_is_unless_told(tmp_path, monkeypatch):
    monkeypatch.delenv("HIMACH_QUOTA", raising=False)
    found = survey(tmp_path / "none")
    assert chosen_quota(tmp_path / "none") == pytest.approx((found.free + found.used) // 2, rel=0.01)
    monkeypatch.setenv("HIMACH_QUOTA", "3GB")
    assert chosen_quota(tmp_path) == 3 * 10**9
    assert chosen_quota(tmp_path, "1GiB") == 1 << 30
    assert segment_bytes(1 << 30) == 128 << 20
    assert segment_bytes(1 << 40) == 256 << 20


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
    segments = survey(tmp_path / "store").segments
    freed = act(Store(tmp_path / "store"), segments)
    assert [reason for _, reason in freed.busy] == ["a writer or reader holds it"]
    assert place_of(dataset, 0)[0].exists()
    del reading
    assert len(freed.segments) == len(segments) - 1
    assert len(act(Store(tmp_path / "store"), survey(tmp_path / "store").segments).segments) == 1
    assert survey(tmp_path / "store").segments == ()


def test_an_orphan_of_another_version_stays(tmp_path):
    dataset = fill(tmp_path / "store", range(3))
    (dataset.path / "meta").unlink()
    (path,) = segment_files(dataset)
    data = bytearray(path.read_bytes())
    data[4] = 9
    path.write_bytes(data)
    freed = act(Store(tmp_path / "store"), survey(tmp_path / "store").segments)
    assert "version 9" in freed.busy[0][1]
    assert path.exists()
