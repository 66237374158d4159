"""What the servers of several stores hold, all asked at once: `survey()`, by way of any one of them.

Each server knows its peers (`himach cache start --peers`), and none knows what they hold: they are all asked, within a
deadline, and those that did not answer are named.
"""

from __future__ import annotations

import os
import queue
import struct
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from pyroaring import BitMap64

from himach.errors import UsageError
from himach.io.server.address import Server
from himach.io.server.client import Client
from himach.io.store.bodhi import MAX_NUMBER
from himach.io.store.store import StoreError, StoreNotFoundError

__all__ = ["Answer", "Holding", "Survey", "ask", "survey"]

ANSWER_SECONDS = 1.0  # within which servers answer
HEAD = struct.Struct("<IIIIIiiIQQQQ")  # of a dataset; see describe() in server/contents/survey.c
DIRECTORY_BYTES = 33
ROW_BYTES = 24
MOST_FRAMES = 1 << 40  # in a run: more is not believed
TOO_LONG = (1 << 32) - 1  # bytes of a note: it is to be asked for by itself
MOST_APART = 1 << 24  # in a run whose frames are no neighbours: they are listed one by one


@dataclass
class Holding:
    """What one store has of one dataset.

    Attributes
    ----------
    name, generation
        Of the dataset.
    directory
        Of it in the store.
    stamp
        What is attached of its origin; empty if nothing is.
    author
        What the simulation that pushed it said of itself.
    copies
        How many copies of each frame were asked for when it was staged; 0: nobody said.
    n_native, n_alien, nbytes
        Frames and bytes in the store.
    last_used
        Seconds since 1970.
    native, alien
        The frames; None where they do not lie in few runs, and have to be asked for.
    long_stamp
        The stamp is too long for a message that tells of many datasets, and has to be asked for.
    oddity
        Why its frames cannot be told of, and count as none; empty if they can.
    """

    name: str
    generation: bytes
    directory: str
    stamp: bytes
    author: str
    copies: int
    n_native: int
    n_alien: int
    nbytes: int
    last_used: int
    native: BitMap64 | None
    alien: BitMap64 | None
    long_stamp: bool = False
    oddity: str = ""


@dataclass
class Answer:
    """What one server said: where it is, its node, its store's identity, its peers, and what the store holds."""

    server: Server
    node: str
    identity: str
    peers: tuple[str, ...]
    holdings: list[Holding] = field(default_factory=list)


@dataclass
class Survey:
    """What the servers said, and which did not answer, by address, and why."""

    answers: list[Answer] = field(default_factory=list)
    silent: dict[str, str] = field(default_factory=dict)


def ask(server: Server, timeout: float = ANSWER_SECONDS) -> Answer:
    """Ask one server for all that it has.

    Raises
    ------
    StoreError
        It does not answer in time, or refuses.
    """
    with server.dial(timeout) as client:
        identity, told = client.peers()
        node, *peers = told.decode(errors="replace").split("\n")
        answer = Answer(server, node or server.text, identity.hex(), tuple(filter(None, peers)))
        answer.holdings = [one for one in _holdings(client) if _complete(server, one, timeout)]
        return answer


def survey(server: Server, seconds: float = ANSWER_SECONDS) -> Survey:
    """Ask a server and all its peers, at the same time.

    Parameters
    ----------
    server
        One of them.
    seconds
        Within which all of it is done.

    Raises
    ------
    StoreError
        That one does not answer.
    """
    deadline = time.monotonic() + seconds
    answers: queue.SimpleQueue[tuple[str, Answer | str]] = queue.SimpleQueue()
    with server.dial(seconds) as client:
        peers = client.peers()[1].decode(errors="replace").split("\n")[1:]
    asked = {server.text: server}
    found = Survey()
    for address in filter(None, peers):
        try:
            asked.setdefault(address, server.at(address))
        except (StoreError, UsageError) as error:  # there is no key for it, or it is no address
            found.silent[address] = str(error)
    for one in asked.values():
        left = max(0.05, deadline - time.monotonic())
        threading.Thread(target=_ask_into, args=(answers, one, left), daemon=True).start()
    found.silent |= dict.fromkeys(asked, "no answer in time")
    for _ in asked:
        try:
            address, said = answers.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            break
        if isinstance(said, str):
            found.silent[address] = said
            continue
        del found.silent[address]
        if said.identity not in {one.identity for one in found.answers}:  # one server, by two of its addresses
            found.answers.append(said)
    found.answers.sort(key=lambda one: (one.node, one.server.text))
    return found


def _ask_into(answers: queue.SimpleQueue[tuple[str, Answer | str]], server: Server, timeout: float) -> None:
    try:
        answers.put((server.text, ask(server, timeout)))
    except (StoreError, OSError, ValueError, MemoryError, OverflowError) as error:
        answers.put((server.text, str(error)))


def _holdings(client: Client) -> Iterator[Holding]:
    """Give what a server says of its datasets, message by message."""
    after = b""
    while told := client.survey(after):
        found = list(parse(told))
        if not found or found[-1].directory.encode() <= after:
            raise StoreError("the server says of its datasets what is none")
        after = found[-1].directory.encode()
        yield from found


def parse(told: bytes) -> Iterator[Holding]:
    """Give the datasets that a message tells of.

    Raises
    ------
    StoreError
        They do not fit its length.
    """
    at = 0

    def take(n: int) -> bytes:
        nonlocal at
        if n > len(told) - at:
            raise StoreError("the server says of a dataset what does not fit its length")
        at += n
        return told[at - n : at]

    while at < len(told):
        head = HEAD.unpack(take(HEAD.size))
        name, generation, stamp, author, copies, native, alien, _, n_native, n_alien, nbytes, used = head
        directory = take(DIRECTORY_BYTES).decode(errors="replace")
        texts = [take(0 if size == TOO_LONG else size) for size in (name, generation, stamp, author, copies)]
        told_runs = [take(ROW_BYTES * rows) if rows >= 0 else None for rows in (native, alien)]
        oddity = ""
        frames: list[BitMap64 | None] = [BitMap64(), BitMap64()]
        try:
            frames = [None if runs is None else _frames(runs) for runs in told_runs]
        except StoreError as error:
            oddity = str(error)
        wanted = texts[4].decode(errors="replace").strip()
        yield Holding(
            name=texts[0].decode(errors="replace"),
            generation=texts[1],
            directory=directory,
            stamp=texts[2],
            author=texts[3].decode(errors="replace"),
            copies=int(wanted) if wanted.isdecimal() and len(wanted) < 5 else 0,
            n_native=n_native,
            n_alien=n_alien,
            nbytes=nbytes,
            last_used=used,
            native=frames[0],
            alien=frames[1],
            long_stamp=stamp == TOO_LONG,
            oddity=oddity,
        )


def _frames(rows: bytes) -> BitMap64:
    """Return the frames that runs of first, step and count are."""
    held = BitMap64()
    for first, step, count in np.frombuffer(rows, dtype="<i8").reshape(-1, 3).tolist():
        most = MOST_FRAMES if step == 1 else MOST_APART
        if first < 0 or step < 1 or not 0 < count <= most or first + step * (count - 1) > MAX_NUMBER:
            raise StoreError("the server says of frames what is no run of them")
        held |= frames_of(range(first, first + step * count, step))
    return held


def frames_of(run: range) -> BitMap64:
    """Return the frames of a range as a set."""
    return BitMap64(run) if run.step == 1 else BitMap64(np.arange(run.start, run.stop, run.step, dtype=np.uint64))


def _complete(server: Server, one: Holding, timeout: float) -> bool:
    """Ask for frames that lie in no runs, and a long stamp; False where the dataset has just gone."""
    if one.native is not None and one.alien is not None and not one.long_stamp:
        return True
    try:
        with server.dial(timeout) as client:
            client.open(one.name, one.generation)
            if one.native is None or one.alien is None:
                one.native, one.alien = client.native, client.alien
            if one.long_stamp:
                one.stamp = client.attachment("origin.json") or b""
    except StoreNotFoundError:
        return False
    except StoreError as error:
        one.native, one.alien, one.oddity = one.native or BitMap64(), one.alien or BitMap64(), str(error)
    return True


def in_job() -> Sequence[str]:
    """Return the nodes of the SLURM job that this process is in; none outside of one."""
    import subprocess

    nodes = os.environ.get("SLURM_JOB_NODELIST", "")
    if not nodes:
        return []
    try:
        told = subprocess.run(
            ["scontrol", "show", "hostnames", nodes], check=False, capture_output=True, text=True, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return told.stdout.split() if told.returncode == 0 else []


def told_peers(node: str, addresses: Iterable[str]) -> bytes:
    """Return what a server tells of itself and its peers."""
    return "\n".join([node, *dict.fromkeys(addresses)]).encode()
