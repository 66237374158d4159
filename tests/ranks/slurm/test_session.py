"""What a job and the process that submitted it say to each other, and what nobody else can say to them."""

import contextlib
import os
import queue
import secrets
import socket
import threading
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from himach.errors import RankError, TimeUpError, UsageError
from himach.io.server.admission_listener import AdmissionListener
from himach.io.store.bodhi import StoreSystemError
from himach.ranks.slurm.job import JobState, SlurmJob, split_options
from himach.ranks.slurm.session import HEAD, MessageKind, Session, exactly, join

KEY = secrets.token_hex(32).encode()
MESSAGES = st.lists(st.tuples(st.sampled_from(MessageKind), st.binary(max_size=3000)), max_size=5)


@contextlib.contextmanager
def pair():
    """Give the two sides of a session."""
    one, other = connected()
    sides = [Session(one, KEY, joined=True), Session(other, KEY, joined=False)]
    try:
        yield sides
    finally:
        for side in sides:
            side.close()


def connected() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        return one, listener.accept()[0]


@contextlib.contextmanager
def listening(key=KEY, failures=()):
    """Give the port at which a process that has submitted a job listens, and those that it has let in."""
    admitted: queue.Queue[Session] = queue.Queue()

    errors = iter(failures)

    def admit(descriptor, session):
        for error in errors:
            os.close(descriptor)
            raise error
        admitted.put(Session(socket.socket(fileno=descriptor), session, joined=False))

    listener = AdmissionListener(socket.create_server(("127.0.0.1", 0)), key, admit)
    port = listener._listener.getsockname()[1]
    listener.start()
    try:
        yield port, admitted
    finally:
        listener.close()


def test_a_connection_that_cannot_be_handed_over_keeps_no_other_out():
    with listening(failures=[StoreSystemError("admitting a connection")]) as (port, admitted):
        for _ in range(2):
            join("127.0.0.1", port, KEY, 10)
        assert admitted.get(timeout=10)


@given(MESSAGES, MESSAGES)
def test_messages_come_as_they_were_sent(mine, theirs):
    with pair() as (job, submitter):
        for kind, body in mine:
            job.send(kind, body)
        for kind, body in theirs:
            submitter.send(kind, body)
        assert [submitter.receive() for _ in mine] == mine
        assert [job.receive() for _ in theirs] == theirs


def test_a_job_joins_and_says_more_than_a_socket_holds():
    body = secrets.token_bytes(5 << 20)
    with listening() as (port, admitted):
        job = join("127.0.0.1", port, KEY, 10)
        submitter = admitted.get(timeout=10)
        thread = threading.Thread(target=job.send, args=(MessageKind.RESULT, body))
        thread.start()
        assert submitter.receive() == (MessageKind.RESULT, body)
        thread.join()
        job.close()
        assert submitter.receive() is None
        submitter.close()


def test_nobody_joins_without_the_key():
    with listening() as (port, admitted):
        with pytest.raises(RankError, match="is not the process that submitted this job"):
            join("127.0.0.1", port, b"another key, long enough", 10)
        assert admitted.empty()


def test_a_job_does_not_work_for_somebody_else():
    """Who has not the key cannot pose as the process that submitted it, nor learn to from what the job says."""
    for reply in (b"BdhAuth2" + bytes(32), b"HTTP/1.1 400 Bad Request" + bytes(32)):
        with socket.create_server(("127.0.0.1", 0)) as listener:

            def pose(listener=listener, reply=reply):
                with listener.accept()[0] as raw, contextlib.suppress(OSError):
                    raw.sendall(reply)
                    raw.recv(64)
                    raw.sendall(bytes(36))

            threading.Thread(target=pose, daemon=True).start()
            with pytest.raises(RankError, match="is not the process"):
                join("127.0.0.1", listener.getsockname()[1], KEY, 10)


def said(*messages: tuple[MessageKind, bytes], joined: bool = True) -> list[bytes]:
    """Return the bytes of each message of a side."""
    one, other = connected()
    side = Session(one, KEY, joined)
    found = []
    with one, other:
        for kind, body in messages:
            side.send(kind, body)
            found.append(exactly(other, HEAD.size + len(body) + 64))
    return found


def heard(*content: bytes) -> list[tuple[MessageKind, bytes]]:
    """Return what the process that submitted the job takes of these bytes."""
    one, other = connected()
    side = Session(other, KEY, joined=False)
    one.sendall(b"".join(content))
    one.close()
    taken = []
    while (message := side.receive()) is not None:
        taken.append(message)
    side.close()
    return taken


FIRST, SECOND = (MessageKind.RESULT, b"first"), (MessageKind.ERROR, b"second")


@given(st.integers(0), st.integers(1, 255))
def test_a_changed_byte_is_noticed(place, change):
    first, second = said(FIRST, SECOND)
    place %= len(first)
    changed = bytearray(first)
    changed[place] ^= change
    assert heard(changed, second) == []
    assert heard(first, second) == [FIRST, SECOND]


def test_messages_are_those_of_this_side_now():
    first, second = said(FIRST, SECOND)
    assert heard(first, first) == [FIRST]
    assert heard(second, first) == []
    assert heard(*said(FIRST, joined=False)) == []
    assert heard(first[:-1]) == []


def test_a_length_that_nobody_vouches_for_takes_no_memory():
    tracemalloc.start()
    assert heard(HEAD.pack(MessageKind.RESULT, 1 << 40) + bytes(32) + b"x" * 1000) == []
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()


def test_options_of_srun_are_told_apart():
    assert split_options(["-N4", "--mpi=pmix", "-n64"]) == (["-N4", "-n64"], ["--mpi=pmix"])
    with pytest.raises(UsageError, match="written with its value"):
        split_options(["--mpi", "pmix"])


def test_how_a_job_ended_is_told():
    job = SlurmJob("7")
    assert isinstance(job.end_error(JobState("TIMEOUT")), TimeUpError)
    assert isinstance(job.end_error(JobState("COMPLETING", "TimeLimit")), TimeUpError)
    assert str(job.end_error(JobState("NODE_FAIL"))) == "job 7 is over: NODE_FAIL"
    assert "the connection to job 7 is lost" in str(job.end_error(JobState("RUNNING")))
    assert "knows it no more" in str(job.end_error(JobState("")))
