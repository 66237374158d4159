"""`survey()`: asks a server and all its peers in parallel which datasets they hold, and names who does not answer."""

import os
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
ADDRESS = re.compile(r"(\[[^]/\s]+\]|[^:/\s]+)(?::(\d+))?")
SCHEME = "tcp://"  # of a server given in place of a store's directory


@dataclass(frozen=True)
class Server:
    """A server: HOST:PORT or the path of its local socket, and the key for it and its peers, if any."""

    text: str
    key: bytes = field(default=b"", repr=False)

    @classmethod
    def from_address(cls, address: str, key_file: str | os.PathLike[str] | None = None) -> "Server":
        """Return the server at HOST[:PORT], with the key of a file; None: the default file."""
        return cls(with_port(address), read_key(Path(key_file) if key_file is not None else default_key_file()))

    @classmethod
    def local(cls, store: str | os.PathLike[str] | None = None) -> "Server":
        """Return the server of a store on this machine."""
        return cls(os.fspath(socket_path(store).absolute()))

    @property
    def is_local(self) -> bool:
        """Whether the address is a socket on this machine."""
        return "/" in self.text

    def peer_at(self, address: str) -> "Server":
        """Return a peer, with the same key, or without one the key of the default file."""
        key = self.key or read_key(default_key_file())
        return replace(self, text=with_port(address), key=key)

    def dial(self, timeout: float) -> Client:
        """Connect to the server."""
        return Client(self.text, os.geteuid(), timeout, key=b"" if self.is_local else self.key)


def parse_address(address: str, default_port: int | None = None) -> tuple[str, int]:
    """Split ``HOST:PORT`` (``[v6]:PORT``), or ``HOST`` if there is a default port."""
    match = ADDRESS.fullmatch(address)
    port = default_port if match is None or match[2] is None else int(match[2])
    if match is None or port is None or port > 65535:
        raise UsageError(
            f"{address!r} is no address; it should be HOST:PORT, such as node1:{DEFAULT_PORT} or [::1]:{DEFAULT_PORT}"
        )
    return match[1], port


def with_port(address: str) -> str:
    """Return HOST:PORT, with the default port if none is given."""
    return "{}:{}".format(*parse_address(address, DEFAULT_PORT))


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
    nbytes: int
    last_used: int  # seconds since 1970
    n_native: int = 0
    n_alien: int = 0
    stamp: bytes = b""  # attached stamp of its origin; empty without one
    author: str = ""  # identity that the pushing simulation gave
    copies: int = 0  # of each frame, requested when it was staged; 0: not specified
    native: BitMap64 = field(default_factory=BitMap64)
    alien: BitMap64 = field(default_factory=BitMap64)
    incomplete: bool = False  # frames that form no runs, or a stamp too long for this message, have to be fetched
    oddity: str = ""  # why its frames cannot be listed and count as none; else empty


@dataclass
class Answer:
    """One server's answer: its address, node, store identity, and datasets."""

    server: Server
    node: str
    identity: str
    holdings: list[Holding] = field(default_factory=list)


@dataclass
class Survey:
    """The answers of servers, and why others did not answer, by address."""

    answers: list[Answer] = field(default_factory=list)
    silent: dict[str, str] = field(default_factory=dict)


def ask(server: Server, timeout: float = ANSWER_SECONDS) -> Answer:
    """Ask one server for everything that it holds."""
    with server.dial(timeout) as client:
        identity, node, _ = client.peers()
        known = [holding for holding in holdings(client) if _fetch_missing(server, holding, timeout)]
        return Answer(server, node or server.text, identity, known)


def survey(server: Server, seconds: float = ANSWER_SECONDS) -> Survey:
    """Ask a server and all its peers in parallel."""
    deadline = time.monotonic() + seconds
    with server.dial(seconds) as client:
        _, _, peers = client.peers()
    servers = {server.text: server}
    result = Survey()
    for address in peers:
        try:
            servers.setdefault(address, server.peer_at(address))
        except (StoreError, UsageError) as error:  # no key for it, or an invalid address
            result.silent[address] = str(error)
    answers: dict[str, Answer | str] = {}
    left = max(0.05, deadline - time.monotonic())
    threads = [threading.Thread(target=_ask_into, args=(answers, item, left), daemon=True) for item in servers.values()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    for address in servers:
        answer = answers.get(address, "no answer in time")
        if isinstance(answer, str):
            result.silent[address] = answer
        elif answer.identity not in {item.identity for item in result.answers}:  # else one server has two addresses
            result.answers.append(answer)
    result.answers.sort(key=lambda item: (item.node, item.server.text))
    return result


def _ask_into(answers: dict[str, Answer | str], server: Server, timeout: float) -> None:
    try:
        answers[server.text] = ask(server, timeout)
    except (StoreError, OSError, ValueError, MemoryError, OverflowError) as error:
        answers[server.text] = str(error)


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
        runs = [take(RUN.size * max(rows, 0)) for rows in (native, alien)]
        copies_text = texts[4].decode(errors="replace").strip()
        holding = Holding(
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
            incomplete=stamp == TOO_LONG or native < 0 or alien < 0,
        )
        try:
            holding.native, holding.alien = map(decode_runs, runs)
        except StoreError as error:
            holding.oddity = str(error)
        yield holding


def _fetch_missing(server: Server, item: Holding, timeout: float) -> bool:
    """Fetch what an incomplete description lacks; return False if the dataset was just deleted."""
    if not item.incomplete:
        return True
    try:
        with server.dial(timeout) as client:
            client.open(item.name, item.generation)
            item.native, item.alien = client.native, client.alien
            item.stamp = client.attachment("origin.json") or b""
    except StoreNotFoundError:
        return False
    except StoreError as error:
        item.oddity = str(error)
    return True


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

    def dataset(self, name: str, generation: bytes = b"", *, create: bool = False) -> CachedFrames:
        """Open one generation of a dataset over its own connection; it is never created."""
        return self._connect().open(name, generation)
