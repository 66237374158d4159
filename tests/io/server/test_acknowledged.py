"""An acknowledgement is true: the server can read the frame back, whatever other processes did to its store."""

from __future__ import annotations

import time

import numpy as np
import pytest
from support import commands
from support.cache_data import frame_of, push

import himach
from himach.io.store.store import Store


def evict(place, *options, check=True):
    commands.himach("cache", "evict", *options, "--cache", place, check=check, timeout=60)


def assert_held(running, numbers):
    """Through the server, by a client that asks now, and without it."""
    with running.client() as client:
        client.open("run")
        assert list(client.native) == list(numbers)
        for number, frame in zip(numbers, client.read(list(numbers)), strict=True):
            np.testing.assert_array_equal(frame.positions, frame_of(number))
    dataset = Store(running.place).dataset("run", create=False)
    assert list(dataset.native) == list(numbers)
    assert all(frame is not None for frame in dataset.read(list(numbers)))


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("whole", [True, False], ids=["the dataset", "its segments"])
def test_frames_pushed_again_after_an_eviction_are_there(run_server, durable, whole):
    running = run_server()
    push(running, range(20), durable=durable)
    if whole:
        evict(running.place, "run")
    else:
        dataset = Store(running.place).dataset("run", create=False)
        while any(segment["busy"] for segment in dataset.segments()):
            time.sleep(0.01)  # the server lets go of it when nobody pushes any more
        for segment in dataset.segments():
            dataset.evict(segment["id"])
    push(running, range(20), durable=durable)
    assert_held(running, range(20))


@pytest.mark.parametrize("durable", [False, True])
def test_a_writer_goes_on_while_its_dataset_is_evicted(run_server, durable):
    """Its connection stays open; the server has let go of the segment after a while, or not."""
    running = run_server()
    with himach.Writer("run", 100, servers=[running.path], durable=durable) as writer:
        for number in range(5):
            writer.push(frame_of(number), time=number / 2, box=[9, 9, 9, 90, 90, 90])
        writer.flush()
        evict(running.place, "run", check=False)
        there = list(Store(running.place).dataset("run").native)  # a segment that is written to is not evicted
        assert there == list(range(5))
        for number in range(5, 10):
            writer.push(frame_of(number), time=number / 2, box=[9, 9, 9, 90, 90, 90])
        writer.flush()
        assert_held(running, range(10))


def test_clients_that_stay_see_an_evicted_dataset_and_the_new_one(run_server):
    """Lists, places, marks and attachments are of the directory that has the name now."""
    running = run_server()
    push(running, range(20))
    with running.client() as client:
        client.open("run")
        assert list(client.native) == list(range(20))
        evict(running.place, "run")
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


@pytest.mark.parametrize("durable", [False, True])
def test_a_damaged_copy_is_not_acknowledged(run_server, durable):
    running = run_server()
    push(running, range(5), durable=durable)
    (segment,) = (running.place / Store(running.place).directories()[0]).glob("n-*.seg")
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 0xFF  # one of the five
    segment.write_bytes(content)
    push(running, range(5), durable=durable)
    assert_held(running, range(5))


def test_a_directory_that_is_deleted_by_hand_heals(run_server):
    import shutil

    running = run_server()
    push(running, range(5))
    shutil.rmtree(running.place / Store(running.place).directories()[0])
    push(running, range(5), durable=True)
    assert_held(running, range(5))


def test_an_attachment_of_the_name_is_made_again(run_server):
    """A dataset whose meta file somebody deleted in passing is found by its name."""
    running = run_server()
    push(running, range(5))
    (running.place / Store(running.place).directories()[0] / "meta").unlink()
    push(running, range(5, 7))
    assert Store(running.place).generations("run") == [b""]
    assert_held(running, range(7))


def test_reads_through_a_server_count_as_use(run_server):
    import os

    running = run_server()
    push(running, range(5))
    meta = running.place / Store(running.place).directories()[0] / "meta"
    with running.client() as client:
        client.open("run")
        os.utime(meta, (1, 1))
        list(client.read([1]))
        assert meta.stat().st_mtime > 1
