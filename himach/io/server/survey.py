"""What the servers of several stores hold, all asked at once: `survey()`, by way of any one of them.

Each server knows its peers (`himach cache start --peers`), and none knows what they hold: they are all asked, within a
deadline, and those that did not answer are named.

Where servers of other machines listen: `Server`, by an address as people write it, and the key for it.

`ServedStore`: another user's store, which is reached through its server alone, and in which nothing is written.
"""

from __future__ import annotations

import os
import queue
import struct
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import parse_qsl, quote

import numpy as np
from pyroaring import BitMap64

from himach.errors import ServerUnreachableError, UsageError
from himach.io.server.admission import default_key_file, read_key
from himach.io.server.client import Client, find, socket_path
from himach.io.store.bodhi import MAX_NUMBER
from himach.io.store.cached_frames import CachedFrames
from himach.io.store.store import StoreError, StoreNotFoundError

DEFAULT_PORT = 7411
SCHEME = "tcp://"  # of a server that is given in place of a store's directory


@dataclass(frozen=True)
class Server:
    """A server: HOST:PORT, or the path of its socket on this machine; and the key for it and its peers, if any."""

    text: str
    key: bytes = field(default=b"", repr=False)

    @classmethod
    def from_address(cls, address: str, key_file: str | os.PathLike[str] | None = None) -> Server:
        """Return the server at HOST[:PORT], with the key of a file; None: the default one."""
        return cls(with_port(address), read_key(Path(key_file) if key_file is not None else default_key_file()))

    @classmethod
    def local(cls, store: str | os.PathLike[str] | None = None) -> Server:
        """Return the server of a store of this machine."""
        return cls(os.fspath(socket_path(store).absolute()))

    @property
    def is_local(self) -> bool:
        """Whether it is reached by a socket of this machine."""
        return "/" in self.text

    def peer_at(self, address: str) -> Server:
        """Return a peer of it, for which there is the same key; without one, that of the default file."""
        key = self.key or read_key(default_key_file())
        return replace(self, text=with_port(address), key=key)

    def dial(self, timeout: float) -> Client:
        """Connect to it."""
        return Client(self.text, os.geteuid(), timeout, key=b"" if self.is_local else self.key)


def with_port(address: str) -> str:
    """Return HOST:PORT, with the default port where none is given."""
    host, colon, port = address.rpartition(":")
    if not colon or (port.endswith("]") and address.startswith("[")):
        host, port = address, str(DEFAULT_PORT)
    if not host.strip("[]") or not port.isdecimal() or int(port) > 65535 or "/" in host or "\n" in address:
        raise UsageError(f"{address!r} is no address; it should be HOST or HOST:PORT, such as node1:{DEFAULT_PORT}")
    return f"{host}:{port}"


def format_choice(server: str, key_file: str | os.PathLike[str] | None = None) -> str:
    """Return what stands for a server where a store is chosen: ``tcp://HOST:PORT``, with its key's file."""
    key = "" if key_file is None else f"?key={quote(os.fspath(Path(key_file).absolute()))}"
    return f"{SCHEME}{with_port(server)}{key}"


def parse_choice(choice: str) -> Server | None:
    """Return the server that was chosen in place of a store; None: it is a directory."""
    if not choice.startswith(SCHEME):
        return None
    address, _, query = choice.removeprefix(SCHEME).partition("?")
    return Server.from_address(address, dict(parse_qsl(query)).get("key"))


def read_peers(path: Path) -> list[str]:
    """Return the addresses of a file of peers: HOST or HOST:PORT, one a line; what follows a # is left out."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"peers file {path}: {getattr(error, 'strerror', None) or error}") from None
    names: Sequence[str] = [line.partition("#")[0].strip() for line in lines]
    return [with_port(name) for name in names if name]


ANSWER_SECONDS = 1.0  # within which servers answer
HEAD = struct.Struct("<IIIIIiiIQQQQ")  # of a dataset; see describe() in server/contents/survey.c
DIRECTORY_BYTES = 33
ROW_BYTES = 24
MAX_RUN_FRAMES = 1 << 40  # in a run: more is not believed
TOO_LONG = (1 << 32) - 1  # bytes of a note: it is to be asked for by itself
MAX_SPACED_FRAMES = 1 << 24  # in a run whose frames are no neighbours: they are listed one by one


@dataclass
class Holding:
    """What one store has of one dataset."""

    name: str
    generation: bytes
    directory: str  # of it in the store
    stamp: bytes  # what is attached of its origin; empty if nothing is
    author: str  # what the simulation that pushed it said of itself
    copies: int  # how many copies of each frame were asked for when it was staged; 0: nobody said
    n_native: int
    n_alien: int
    nbytes: int
    last_used: int  # seconds since 1970
    native: BitMap64 | None
    alien: BitMap64 | None
    long_stamp: bool = False  # the stamp is too long for a message that tells of many datasets, and has to be asked for
    oddity: str = ""  # why its frames cannot be told of, and count as none; empty if they can


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
    """Ask one server for all that it has."""
    with server.dial(timeout) as client:
        identity, peer_bytes = client.peers()
        node, *peers = peer_bytes.decode(errors="replace").split("\n")
        answer = Answer(server, node or server.text, identity.hex(), tuple(filter(None, peers)))
        answer.holdings = [holding for holding in holdings(client) if _fetch_missing(server, holding, timeout)]
        return answer


def survey(server: Server, seconds: float = ANSWER_SECONDS) -> Survey:
    """Ask a server and all its peers, at the same time."""
    deadline = time.monotonic() + seconds
    answers: queue.SimpleQueue[tuple[str, Answer | str]] = queue.SimpleQueue()
    with server.dial(seconds) as client:
        peers = client.peers()[1].decode(errors="replace").split("\n")[1:]
    servers = {server.text: server}
    result = Survey()
    for address in filter(None, peers):
        try:
            servers.setdefault(address, server.peer_at(address))
        except (StoreError, UsageError) as error:  # there is no key for it, or it is no address
            result.silent[address] = str(error)
    for item in servers.values():
        left = max(0.05, deadline - time.monotonic())
        threading.Thread(target=_ask_into, args=(answers, item, left), daemon=True).start()
    result.silent |= dict.fromkeys(servers, "no answer in time")
    for _ in servers:
        try:
            address, answer = answers.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            break
        if isinstance(answer, str):
            result.silent[address] = answer
            continue
        del result.silent[address]
        if answer.identity not in {item.identity for item in result.answers}:  # one server, by two of its addresses
            result.answers.append(answer)
    result.answers.sort(key=lambda item: (item.node, item.server.text))
    return result


def _ask_into(answers: queue.SimpleQueue[tuple[str, Answer | str]], server: Server, timeout: float) -> None:
    try:
        answers.put((server.text, ask(server, timeout)))
    except (StoreError, OSError, ValueError, MemoryError, OverflowError) as error:
        answers.put((server.text, str(error)))


def holdings(client: Client, name: str = "") -> Iterator[Holding]:
    """Give what a server says of its datasets of a name, or of all, message by message."""
    after = b""
    while message := client.survey(after, name):
        parsed = list(parse(message))
        if not parsed or parsed[-1].directory.encode() <= after:
            raise StoreError("the server says of its datasets what is none")
        after = parsed[-1].directory.encode()
        yield from parsed


def parse(message: bytes) -> Iterator[Holding]:
    """Give the datasets that a message tells of."""
    offset = 0

    def take(n: int) -> bytes:
        nonlocal offset
        if n > len(message) - offset:
            raise StoreError("the server says of a dataset what does not fit its length")
        offset += n
        return message[offset - n : offset]

    while offset < len(message):
        head = HEAD.unpack(take(HEAD.size))
        name, generation, stamp, author, copies, native, alien, _, n_native, n_alien, nbytes, used = head
        directory = take(DIRECTORY_BYTES).decode(errors="replace")
        texts = [take(0 if size == TOO_LONG else size) for size in (name, generation, stamp, author, copies)]
        run_bytes = [take(ROW_BYTES * rows) if rows >= 0 else None for rows in (native, alien)]
        oddity = ""
        frames: list[BitMap64 | None] = [BitMap64(), BitMap64()]
        try:
            frames = [None if runs is None else _decode_frames(runs) for runs in run_bytes]
        except StoreError as error:
            oddity = str(error)
        copies_text = texts[4].decode(errors="replace").strip()
        yield Holding(
            name=texts[0].decode(errors="replace"),
            generation=texts[1],
            directory=directory,
            stamp=texts[2],
            author=texts[3].decode(errors="replace"),
            copies=int(copies_text) if copies_text.isdecimal() and len(copies_text) < 5 else 0,
            n_native=n_native,
            n_alien=n_alien,
            nbytes=nbytes,
            last_used=used,
            native=frames[0],
            alien=frames[1],
            long_stamp=stamp == TOO_LONG,
            oddity=oddity,
        )


def _decode_frames(rows: bytes) -> BitMap64:
    """Return the frames that runs of first, step and count are."""
    frames = BitMap64()
    for first, step, count in np.frombuffer(rows, dtype="<i8").reshape(-1, 3).tolist():
        max_count = MAX_RUN_FRAMES if step == 1 else MAX_SPACED_FRAMES
        if first < 0 or step < 1 or not 0 < count <= max_count or first + step * (count - 1) > MAX_NUMBER:
            raise StoreError("the server says of frames what is no run of them")
        frames |= frame_set(range(first, first + step * count, step))
    return frames


def frame_set(run: range) -> BitMap64:
    """Return the frames of a range as a set."""
    return BitMap64(run) if run.step == 1 else BitMap64(np.arange(run.start, run.stop, run.step, dtype=np.uint64))


def _fetch_missing(server: Server, item: Holding, timeout: float) -> bool:
    """Ask for frames that lie in no runs, and a long stamp; False where the dataset has just gone."""
    if item.native is not None and item.alien is not None and not item.long_stamp:
        return True
    try:
        with server.dial(timeout) as client:
            client.open(item.name, item.generation)
            if item.native is None or item.alien is None:
                item.native, item.alien = client.native, client.alien
            if item.long_stamp:
                item.stamp = client.attachment("origin.json") or b""
    except StoreNotFoundError:
        return False
    except StoreError as error:
        item.native, item.alien, item.oddity = item.native or BitMap64(), item.alien or BitMap64(), str(error)
    return True


def job_nodes() -> Sequence[str]:
    """Return the nodes of the SLURM job that this process is in; none outside of one."""
    import subprocess

    nodes = os.environ.get("SLURM_JOB_NODELIST", "")
    if not nodes:
        return []
    try:
        result = subprocess.run(
            ["scontrol", "show", "hostnames", nodes], check=False, capture_output=True, text=True, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return result.stdout.split() if result.returncode == 0 else []


def encode_peers(node: str, addresses: Iterable[str]) -> bytes:
    """Return what a server tells of itself and its peers."""
    return "\n".join([node, *dict.fromkeys(addresses)]).encode()


class ServedStore:
    """The store of a user whose server serves this one (``--allow-user``)."""

    def __init__(self, path: Path, owner: int) -> None:
        self.path = path
        self._owner = owner
        with self._connect() as client:
            client.counters()

    def _connect(self) -> Client:
        client = find(self.path, owner=self._owner)
        if client is None:
            raise ServerUnreachableError(f"{self.path} belongs to user {self._owner}, and no server serves it")
        return client

    def generations(self, name: str) -> list[bytes]:
        """Return the generations of a dataset that the store holds."""
        with self._connect() as client:
            return [holding.generation for holding in holdings(client, name) if holding.name == name]

    def dataset(
        self, name: str, generation: bytes = b"", *, create: bool = False, segment_bytes: int = 0
    ) -> CachedFrames:
        """Open one generation of a dataset, over a connection of its own; it is never created."""
        return self._connect().open(name, generation)
