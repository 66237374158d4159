"""`survey()`: asks a server and all its peers in parallel which datasets they hold, and names who does not answer."""

from __future__ import annotations

import os
import queue
import re
import struct
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import parse_qsl, quote

from pyroaring import BitMap64

from himach.errors import ServerUnreachableError, UsageError
from himach.io.server.admission import default_key_file, read_key
from himach.io.server.client import RUN, Client, decode_runs, find, socket_path
from himach.io.store.cached_frames import CachedFrames
from himach.io.store.store import StoreError, StoreNotFoundError

DEFAULT_PORT = 7411
SCHEME = "tcp://"  # of a server given in place of a store's directory


@dataclass(frozen=True)
class Server:
    """A server: HOST:PORT or the path of its local socket, and the key for it and its peers, if any."""

    text: str
    key: bytes = field(default=b"", repr=False)

    @classmethod
    def from_address(cls, address: str, key_file: str | os.PathLike[str] | None = None) -> Server:
        """Return the server at HOST[:PORT], with the key of a file; None: the default file."""
        return cls(with_port(address), read_key(Path(key_file) if key_file is not None else default_key_file()))

    @classmethod
    def local(cls, store: str | os.PathLike[str] | None = None) -> Server:
        """Return the server of a store on this machine."""
        return cls(os.fspath(socket_path(store).absolute()))

    @property
    def is_local(self) -> bool:
        """Whether the address is a socket on this machine."""
        return "/" in self.text

    def peer_at(self, address: str) -> Server:
        """Return a peer, with the same key, or without one the key of the default file."""
        key = self.key or read_key(default_key_file())
        return replace(self, text=with_port(address), key=key)

    def dial(self, timeout: float) -> Client:
        """Connect to the server."""
        return Client(self.text, os.geteuid(), timeout, key=b"" if self.is_local else self.key)


def with_port(address: str) -> str:
    """Return HOST:PORT, with the default port if none is given."""
    host, colon, port = address.rpartition(":")
    if not colon or (port.endswith("]") and address.startswith("[")):
        host, port = address, str(DEFAULT_PORT)
    if not host.strip("[]") or not port.isdecimal() or int(port) > 65535 or "/" in host or "\n" in address:
        raise UsageError(f"{address!r} is no address; it should be HOST or HOST:PORT, such as node1:{DEFAULT_PORT}")
    return f"{host}:{port}"


def format_choice(server: str, key_file: str | os.PathLike[str] | None = None) -> str:
    """Return the text that chooses a server in place of a store: ``tcp://HOST:PORT``, with its key file."""
    key = "" if key_file is None else f"?key={quote(os.fspath(Path(key_file).absolute()))}"
    return f"{SCHEME}{with_port(server)}{key}"


def parse_choice(choice: str) -> Server | None:
    """Return the server chosen in place of a store; None if the choice is a directory."""
    if not choice.startswith(SCHEME):
        return None
    address, _, query = choice.removeprefix(SCHEME).partition("?")
    return Server.from_address(address, dict(parse_qsl(query)).get("key"))


def read_peers(path: Path) -> list[str]:
    """Return the addresses in a peers file: HOST or HOST:PORT, one per line; # starts a comment."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"peers file {path}: {getattr(error, 'strerror', None) or error}") from None
    names: Sequence[str] = [line.partition("#")[0].strip() for line in lines]
    return [with_port(name) for name in names if name]


ANSWER_SECONDS = 1.0  # time limit for answers of servers
HEAD = struct.Struct("<IIIIIiiIQQQQ")  # of a dataset; see describe() in server/contents.c
DIRECTORY_BYTES = 33
DIRECTORY = re.compile("[0-9a-f]{16}-[0-9a-f]{16}")
TOO_LONG = (1 << 32) - 1  # size of a text that has to be fetched by itself


@dataclass
class Holding:
    """One store's part of a dataset."""

    name: str
    generation: bytes
    directory: str  # subdirectory in the store
    stamp: bytes  # attached stamp of its origin; empty without one
    author: str  # identity that the pushing simulation gave
    copies: int  # of each frame, requested when it was staged; 0: not specified
    n_native: int
    n_alien: int
    nbytes: int
    last_used: int  # seconds since 1970
    native: BitMap64 | None
    alien: BitMap64 | None
    long_stamp: bool = False  # the stamp is too long for a message on many datasets and has to be fetched
    oddity: str = ""  # why its frames cannot be listed and count as none; else empty


@dataclass
class Answer:
    """One server's answer: its address, node, store identity, peers, and datasets."""

    server: Server
    node: str
    identity: str
    peers: tuple[str, ...]
    holdings: list[Holding] = field(default_factory=list)


@dataclass
class Survey:
    """The answers of servers, and why others did not answer, by address."""

    answers: list[Answer] = field(default_factory=list)
    silent: dict[str, str] = field(default_factory=dict)


def ask(server: Server, timeout: float = ANSWER_SECONDS) -> Answer:
    """Ask one server for everything that it holds."""
    with server.dial(timeout) as client:
        identity, peer_bytes = client.peers()
        node, *peers = peer_bytes.decode(errors="replace").split("\n")
        answer = Answer(server, node or server.text, identity.hex(), tuple(filter(None, peers)))
        answer.holdings = [holding for holding in holdings(client) if _fetch_missing(server, holding, timeout)]
        return answer


def survey(server: Server, seconds: float = ANSWER_SECONDS) -> Survey:
    """Ask a server and all its peers in parallel."""
    deadline = time.monotonic() + seconds
    answers: queue.SimpleQueue[tuple[str, Answer | str]] = queue.SimpleQueue()
    with server.dial(seconds) as client:
        peers = client.peers()[1].decode(errors="replace").split("\n")[1:]
    servers = {server.text: server}
    result = Survey()
    for address in filter(None, peers):
        try:
            servers.setdefault(address, server.peer_at(address))
        except (StoreError, UsageError) as error:  # no key for it, or an invalid address
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
        if answer.identity not in {item.identity for item in result.answers}:  # else one server has two addresses
            result.answers.append(answer)
    result.answers.sort(key=lambda item: (item.node, item.server.text))
    return result


def _ask_into(answers: queue.SimpleQueue[tuple[str, Answer | str]], server: Server, timeout: float) -> None:
    try:
        answers.put((server.text, ask(server, timeout)))
    except (StoreError, OSError, ValueError, MemoryError, OverflowError) as error:
        answers.put((server.text, str(error)))


def holdings(client: Client, name: str = "") -> Iterator[Holding]:
    """Yield a server's datasets of a name, or all of them, message by message."""
    after = ""
    while message := client.survey(after, name):
        parsed = list(parse(message))
        if not parsed or parsed[-1].directory <= after or not DIRECTORY.fullmatch(parsed[-1].directory):
            raise StoreError("the server says of its datasets what is none")
        after = parsed[-1].directory
        yield from parsed


def parse(message: bytes) -> Iterator[Holding]:
    """Yield the datasets in a message."""
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
        run_bytes = [take(RUN.size * rows) if rows >= 0 else None for rows in (native, alien)]
        oddity = ""
        frames: list[BitMap64 | None] = [BitMap64(), BitMap64()]
        try:
            frames = [None if runs is None else decode_runs(runs) for runs in run_bytes]
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


def _fetch_missing(server: Server, item: Holding, timeout: float) -> bool:
    """Fetch frames that form no runs, and a long stamp; return False if the dataset was just deleted."""
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
    """Return the nodes of this process's SLURM job; empty outside a job."""
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
    """Encode a server's node name and the addresses of its peers."""
    return "\n".join([node, *dict.fromkeys(addresses)]).encode()


class ServedStore:
    """Another user's store, whose server serves this user (``--allow-user``)."""

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
        """Open one generation of a dataset over its own connection; it is never created."""
        return self._connect().open(name, generation)
