"""Reading through a server: what is asked for, checked; damage; reads put in order."""

import contextlib
import resource
import signal
import socket
import threading
import time

import numpy as np
import pytest
from pyroaring import BitMap64
from support.cache_data import keep, push
from support.commands import wait_until

from himach.io.datasets.listing import list_datasets
from himach.io.server.client import decode_runs
from himach.io.store.bodhi import MAX_NUMBER, RUNS_AT_ONCE
from himach.io.store.store import Store, StoreBusyError, StoreError

PART = 128 << 10  # bytes of an attachment that a server gives at once


def test_what_is_read_holds_its_segment(run_server):
    running = run_server()
    push(running, range(3))
    dataset = Store(running.place).dataset("run")
    segment = dataset.segments()[0]["id"]
    with running.client() as client:
        reading = client.open("run").read([1])
        time.sleep(0.1)
        with pytest.raises(StoreBusyError):
            dataset.evict(segment)
        del reading
        dataset.evict(segment)
        assert list(client.read([1])) == [None]


FAR = 2000  # atoms: ten frames of so many are no neighbours any more


def reading(running, wanted, order):
    """Threads that each read some frames in a turn of theirs; `order` gets what they read."""

    def read(numbers):
        with running.client() as client:
            found = client.open("run").read(numbers)
            order.append(("begin", tuple(numbers)))
            time.sleep(0.2)
            order.append(("end", tuple(numbers)))
            assert all(frame is not None for frame in found)

    return [threading.Thread(target=read, args=(numbers,)) for numbers in wanted]


def test_serialized_reads_of_neighbours_share_a_turn(run_server):
    """Two clients that read every other frame each are one sweep; who reads far away waits for it, onwards first."""
    running = run_server("--serialize-reads")
    push(running, range(100), FAR)
    even, odd = list(range(60, 80, 2)), list(range(61, 80, 2))
    order = []
    with running.client() as first:
        found = first.open("run").read([50])
        threads = reading(running, [even, [5], odd, [99], [65, 66]], order)
        for thread in threads:
            thread.start()
        wait_until(lambda: first.counters()["waiting"] >= 5, 20)
        assert order == []
        assert [frame.number for frame in found] == [50]  # which ends its turn
        for thread in threads:
            thread.join(30)
        shared = first.counters()["shared_turns"]
    assert [what for what, _ in order[:6]] == ["begin"] * 3 + ["end"] * 3
    assert {numbers for _, numbers in order[:6]} == {tuple(even), tuple(odd), (65, 66)}
    assert order[6:] == [(what, (number,)) for number in (99, 5) for what in ("begin", "end")]
    assert shared == 2


def test_the_end_of_one_reader_is_not_that_of_anothers_turn(run_server):
    """Asking for the second one's frames ended the first one's turn; reading the first to its end ends none."""
    running = run_server("--serialize-reads")
    push(running, range(100), FAR)
    order = []
    with running.client() as client, running.client() as asking:
        dataset = client.open("run")
        first = dataset.read([50])
        second = dataset.read([60])
        (other,) = reading(running, [[10]], order)
        other.start()
        wait_until(lambda: asking.counters()["waiting"] >= 1, 20)
        assert [frame.number for frame in first] == [50]
        time.sleep(0.5)
        assert order == []
        assert [frame.number for frame in second] == [60]
        other.join(30)
        assert len(order) == 2


def test_what_others_write_is_seen(run_server):
    """Though the server looks at the directory now and then only."""
    running = run_server()
    push(running, range(3))
    with running.client() as client, Store(running.place).dataset("run") as dataset:
        client.open("run")
        for number in (12, 5_000_000):  # the second is not asked about with the others
            assert client.holds(np.array([number])).tolist() == [False]
            keep(dataset, [number])
            assert wait_until(lambda number=number: client.holds(np.array([number])).all(), 10)
        numbers = np.array([5_000_000, 2, 4, 12])
        assert client.holds(numbers).tolist() == [True, True, False, True]
        assert client.holds(numbers, native=True).tolist() == [False, True, False, False]
        assert (client.native, client.alien) == (BitMap64(range(3)), BitMap64([12, 5_000_000]))
        assert client.bounds() == (0, 5_000_000)


def test_an_attachment_that_is_replaced_while_it_is_fetched(run_server, monkeypatch):
    """It is fetched anew from its beginning."""
    running = run_server()
    push(running, range(1))
    old, new = b"o" * (2 * PART + 7), b"n" * (2 * PART + 7)
    with Store(running.place).dataset("run") as dataset, running.client() as client:
        dataset.attach("note", old)
        client.open("run")
        fetched = client.attachment_part

        def replace(name, start):
            if start == PART:
                monkeypatch.undo()
                dataset.attach("note", new)
            return fetched(name, start)

        monkeypatch.setattr(type(client), "attachment_part", lambda self, name, start: replace(name, start))
        assert client.attachment("note") == new


def test_an_attachment_that_changes_each_time_is_given_up(run_server, monkeypatch):
    running = run_server()
    push(running, range(1))
    with running.client() as client:
        client.open("run")
        which = iter(range(100))

        def change(self, name, start):
            return 10 * PART, next(which).to_bytes(8, "little"), b"x" * PART

        monkeypatch.setattr(type(client), "attachment_part", change)
        with pytest.raises(StoreError, match="changes again and again"):
            client.attachment("note")


def test_numbers_of_more_runs_than_a_message_takes(run_server):
    running = run_server()
    numbers = [place**2 for place in range(2 * RUNS_AT_ONCE + 1000)]  # any two of them are a run
    with Store(running.place).dataset("run") as dataset, running.client() as client:
        for number in numbers:
            dataset.write(number, 0.0, None, np.zeros((1, 3), np.float32))
        dataset.flush()
        client.open("run")
        assert client.alien == BitMap64(numbers)
        assert client.frames(False, 9, 50) == BitMap64([9, 16, 25, 36, 49])


@pytest.mark.timeout(60)
def test_a_server_whose_numbers_do_not_grow_is_refused(run_server, monkeypatch):
    running = run_server()
    push(running, range(3))
    with running.client() as client:
        client.open("run")
        monkeypatch.setattr(type(client), "runs", lambda self, *asked: np.full((RUNS_AT_ONCE, 3), 1).tobytes())
        with pytest.raises(StoreError, match="says that frame 2 is behind frame 2"):
            client.native


@pytest.mark.parametrize(
    "odd", [(-1, 1, 1), (0, 0, 3), (0, 1, 0), (MAX_NUMBER, 1, 2), (0, 1, 1 << 60), (0, 1 << 60, 9), (0, 2, 1 << 40)]
)
def test_runs_that_cannot_be_are_refused(odd):
    with pytest.raises(StoreError, match="no run of them"):
        decode_runs(np.array([(0, 1, 3), odd]).tobytes())


def test_runs_long_and_short():
    runs = [range(3), range(10, 1000, 7), range(2000, 2010, 3), range(5000, 90_000), range(2**40, 2**40 + 1)]
    rows = np.array([(run.start, run.step, len(run)) for run in runs])
    assert decode_runs(rows.tobytes()) == BitMap64(number for run in runs for number in run)
    assert decode_runs(b"") == BitMap64()


def test_an_attachment_that_cannot_be_opened_now_is_not_told_to_be_away(run_server):
    running = run_server()
    push(running, range(1))
    with Store(running.place).dataset("run") as dataset, running.client() as client:
        dataset.attach("note", b"content")
        time.sleep(0.2)  # the directory is listed no more until it changes
        assert client.open("run").attachment("note") == b"content"
        before = resource.prlimit(running.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(running.process.pid, resource.RLIMIT_NOFILE, (1, before[1]))
        with pytest.raises(StoreError, match="Too many open files"):
            client.attachment("note")
        resource.prlimit(running.process.pid, resource.RLIMIT_NOFILE, before)
        with running.client() as again:
            assert again.open("run").attachment("note") == b"content"


def test_a_turn_is_no_longer_than_some_megabytes(run_server):
    running = run_server("--serialize-reads")
    push(running, range(40), 60_000)  # 29 MB
    with running.client() as client:
        assert [frame.number for frame in client.open("run").read(range(40))] == list(range(40))
        assert client.counters()["reads"] == 2
        assert client.counters()["places"] == 40


def test_places_of_many_frames_and_segments_are_granted_at_once(run_server):
    """Others may be asked for in between."""
    running = run_server()
    with Store(running.place).dataset("run", segment_bytes=1) as dataset:
        keep(dataset, range(100))  # a segment each
    with running.client() as client, running.client() as other:
        found = []
        numbers = [*range(99, -1, -1), -1, 5000]
        for frame in client.open("run").read(numbers):
            found.append(None if frame is None else frame.number)
            if frame is not None and frame.number % 7 == 0:
                assert client.holds(np.array([0, 5000])).tolist() == [True, False]
                assert [one.number for one in client.read([3, 2])] == [3, 2]
                next(client.read(range(50)))  # and is left
        assert found == [*range(99, -1, -1), None, None]
        before = other.counters()
        assert sum(frame is not None for frame in other.open("run").read(range(100))) == 100
        assert other.counters()["reads"] - before["reads"] == 4  # of 32 segments each
        assert other.counters()["places"] - before["places"] == 100


def test_a_server_at_which_many_dial_at_once_is_waited_for(run_server):
    running = run_server()
    running.process.send_signal(signal.SIGSTOP)
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(BlockingIOError):
            while True:  # until no more can wait to be taken
                raw = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK))
                raw.connect(running.path)
        later = threading.Timer(0.3, running.process.send_signal, (signal.SIGCONT,))
        later.start()
        with running.client() as client:
            assert client.counters()["pid"] == running.process.pid
        later.join()


def test_a_survey_is_right_within_a_second_of_any_change(run_server):
    """Also where frames go to segments that were there, or leave them, which no listing of the folder shows."""
    server = run_server(name="store")
    dataset = Store(server.place).dataset("run", b"")

    def held():
        time.sleep(1)
        (listed,) = list_datasets(None, str(server.place)).datasets
        return listed.held

    keep(dataset, range(3), native=True)
    with server.client().open("run", b"") as client:  # the server keeps the dataset open
        assert client.native and held() == 3
        keep(dataset, range(3, 8), native=True)
        assert len(dataset.segments()) == 1 and held() == 8
        dataset.drop(np.arange(4), native=True)
        assert held() == 4
