"""Control of the server of this node's store: `start` in the background, `serve` in this process, `stop`, `status`."""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import pwd
import resource
import select
import signal
import socket
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, cast

from himach.errors import UsageError
from himach.io.server.admission import default_key_file, make_key, read_key
from himach.io.server.client import DIRECTORY, WHOLE_FILE, find, is_locked, set_modes
from himach.io.server.survey import encode_peers, parse_address, read_peers
from himach.io.store import bodhi
from himach.io.store.bodhi import ServerRefusedError
from himach.io.store.quota import chosen_quota, open_store, store_place
from himach.io.store.store import StoreBusyError, StoreError
from himach.ranks.communicator import node_name

SOCKET_BYTES = 107
SECONDS_TO_START = 60.0
SECONDS_TO_STOP = 60.0
CHECK_SECONDS = 1.0  # between checks that the store exists
BACKLOG = 128
MAX_CONNECTIONS = 4096
SPARE_DESCRIPTORS = 256  # besides those of connections
OPTIONS = {"key_file": "--key", "allow_users": "--allow-user"}  # of the command, if names differ


class _Lock:
    """The lock file of a store's server, with facts about it; locked while that server lives."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)

    def take(self) -> bool:
        try:
            fcntl.fcntl(self.fd, fcntl.F_OFD_SETLK, WHOLE_FILE)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def exists(self) -> bool:
        """Tell whether the file still has its name: the end of a job may remove a store under its server."""
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(self.fd))
        except OSError as error:
            return error.errno not in (errno.ENOENT, errno.ENOTDIR)

    def read(self) -> dict[str, Any]:
        """Return the facts of the current or last server; empty if the last one ended normally."""
        try:
            facts = json.loads(os.pread(self.fd, 1 << 16, 0) or b"{}")
        except ValueError:
            return {"pid": None}
        return cast(dict[str, Any], facts) if isinstance(facts, dict) else {"pid": None}

    def write(self, facts: dict[str, Any]) -> None:
        os.ftruncate(self.fd, 0)
        os.pwrite(self.fd, json.dumps(facts).encode() if facts else b"", 0)

    def close(self) -> None:
        os.close(self.fd)


def _make_directory(place: Path) -> Path:
    """Create the directory of the socket, closed to other users."""
    directory = place / DIRECTORY
    with contextlib.suppress(FileExistsError):
        directory.mkdir(mode=0o700)
    status = directory.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise ServerRefusedError(f"{directory} is no directory of user {os.geteuid()}; somebody else has put it there")
    return directory


def _listen_locally(path: Path, shared: bool) -> socket.socket:
    size = len(os.fsencode(path))
    if size > SOCKET_BYTES:
        raise UsageError(
            f"the socket's path {path} has {size} bytes; this system takes {SOCKET_BYTES}: "
            "set HIMACH_CACHE to a shorter directory"
        )
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    old_umask = os.umask(0o111 if shared else 0o077)
    try:
        listener.bind(os.fspath(path))
    finally:
        os.umask(old_umask)
    listener.listen(BACKLOG)
    return listener


def _listen_remotely(address: str) -> socket.socket:
    """Listen at a name's IPv4 address, or at an IPv6 address in brackets."""
    host, port = parse_address(address)
    is_v6 = host.startswith("[")
    family, dual = socket.AF_INET6 if is_v6 else socket.AF_INET, is_v6 and socket.has_dualstack_ipv6()
    try:
        name = (host.strip("[]"), port)
        listener = socket.create_server(name, family=family, backlog=BACKLOG, dualstack_ipv6=dual)
    except OSError as error:  # a host name may be unknown
        raise UsageError(f"cannot listen at {address}: {error.strerror or error}") from None
    listener.setblocking(False)
    return listener


def _user_id(user: str) -> int:
    if user.isdecimal():
        return int(user)
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        raise UsageError(f"there is no user {user!r} on this machine") from None


def serve(
    store: str | os.PathLike[str] | None = None,
    *,
    listen: str | None = None,
    key_file: Path | None = None,
    allow_users: Sequence[str] = (),
    quota: str | None = None,
    peers: Path | None = None,
    ready: int | None = None,
    **limits: int,
) -> None:
    """Serve a store in the main thread until SIGTERM or SIGINT; `limits`: its handle's, and ``connections``."""
    place = open_store(store).path.absolute()
    listen = f"127.0.0.1{listen}" if listen is not None and listen.startswith(":") else listen
    users = [_user_id(user) for user in allow_users]
    limits["quota"] = chosen_quota(place, quota)
    limits["max_connections"] = _raise_descriptor_limit(limits.pop("connections", MAX_CONNECTIONS))
    encoded = encode_peers(node_name(), read_peers(peers) if peers is not None else ())
    with contextlib.ExitStack() as stack:
        signals = stack.enter_context(_handle_signals())
        lock, notes = _lock_store(place, bool(users), stack)
        path = place / DIRECTORY / "socket"
        local = stack.enter_context(_listen_locally(path, bool(users)))
        facts: dict[str, Any] = {"pid": os.getpid(), "store": os.fspath(place), "socket": os.fspath(path)}
        facts |= {"listen": None, "started": time.time()}
        admission: dict[str, Any] = {}
        if listen is not None:
            key_path = key_file or default_key_file()
            make_key(key_path)
            key = read_key(key_path)
            remote = stack.enter_context(_listen_remotely(listen))
            host, port = remote.getsockname()[:2]
            facts |= {"listen": f"[{host}]:{port}" if ":" in host else f"{host}:{port}", "key": os.fspath(key_path)}
            admission = {"remote": remote.fileno(), "key": key}
        server = bodhi.ServerHandle(os.fsencode(place), local.fileno(), users, peers=encoded, **admission, **limits)
        stack.callback(server.close)
        lock.write(facts)
        stack.callback(lock.write, {})
        if ready is not None:
            os.write(ready, (json.dumps(facts | {"notes": notes}) + "\n").encode())
            os.close(ready)
        for note in (f"begins to serve {place}, listens at {facts['listen'] or 'no TCP port'}", *notes):
            _log(note)
        # A signal wakes the server through the descriptor that Python's C handler writes to.
        stack.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(server.wake, warn_on_full_buffer=False))
        while not signals and lock.exists():
            server.run()
        if not lock.exists():
            raise StoreError(f"{place} was removed, and its server ends")
        _log(f"ends, by {signals[-1]}")


def _raise_descriptor_limit(connections: int) -> int:
    """Raise the descriptor limit to its maximum; return how many connections it allows, at most `connections`."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return connections if hard == resource.RLIM_INFINITY else max(1, min(connections, hard - SPARE_DESCRIPTORS))


def _lock_store(place: Path, shared: bool, stack: contextlib.ExitStack) -> tuple[_Lock, list[str]]:
    """Lock the store until the stack unwinds; return the lock, and a note if the last server was killed."""
    directory = _make_directory(place)
    lock = _Lock(directory / "lock")
    stack.callback(lock.close)
    if not lock.take():
        raise StoreBusyError(f"{place} has a server already (pid {lock.read().get('pid')})")
    set_modes(directory, shared)
    stack.callback(_leave, lock, directory)
    last = lock.read()
    note = f"the last server (pid {last.get('pid')}) did not end by itself; its socket is replaced"
    return lock, [note] if last else []


def _leave(lock: _Lock, directory: Path) -> None:
    """Remove the socket and close the store to other users, unless the directory is another server's now."""
    if lock.exists():
        (directory / "socket").unlink(missing_ok=True)
        set_modes(directory, False)


@contextlib.contextmanager
def _handle_signals() -> Iterator[list[str]]:
    """Have SIGTERM and SIGINT only add their names to the yielded list; SIGALRM wakes the server now and then."""
    names: list[str] = []

    def note(number: int, frame: FrameType | None) -> None:
        if number != signal.SIGALRM:
            names.append(signal.Signals(number).name)

    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGALRM)
    old_handlers = {number: signal.signal(number, note) for number in numbers}
    signal.setitimer(signal.ITIMER_REAL, CHECK_SECONDS, CHECK_SECONDS)
    try:
        yield names
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in old_handlers.items():
            signal.signal(number, handler)


def _log(text: str) -> None:
    with contextlib.suppress(OSError):  # an error of the log's disk must not end the server
        os.write(2, f"{time.strftime('%Y-%m-%d %H:%M:%S')} server {os.getpid()} {text}\n".encode())


def log_path(place: Path) -> Path:
    """Return the log path of a background server: outside the store, which may be removed."""
    state = os.environ.get("XDG_STATE_HOME")
    name = f"server-{node_name()}-{hashlib.sha256(os.fsencode(place)).hexdigest()[:8]}.log"
    return (Path(state) if state else Path.home() / ".local" / "state") / "himach" / name


def start(store: str | os.PathLike[str] | None = None, **options: Any) -> dict[str, Any]:
    """Start a server in the background with the options of `serve`, and return once it answers."""
    place = open_store(store).path.absolute()
    running = _read_running(place)
    if running is not None:
        raise StoreBusyError(f"{place} has a server already (pid {running.get('pid')})")
    try:
        log = log_path(place)
        log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(_open_log(os.fspath(log), os.O_WRONLY | os.O_CREAT))
    except (OSError, RuntimeError):  # no home directory, or it is not writable
        log = _make_directory(place) / "log"
    command = [sys.executable, "-m", "himach", "cache", "start", "--foreground", "--cache", os.fspath(place)]
    for name, value in options.items():
        for item in value if isinstance(value, list | tuple) else [value]:
            if item is not None and item is not False:
                text = os.fspath(item.absolute()) if isinstance(item, Path) else str(item)
                command += [OPTIONS.get(name) or f"--{name.replace('_', '-')}", *([text] if item is not True else [])]
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as answer, open(log, "wb", opener=_open_log) as log_file:
        process = subprocess.Popen(
            [*command, "--ready", str(writer)],
            stdin=subprocess.DEVNULL,
            stdout=log_file,
            stderr=log_file,
            pass_fds=[writer],
            start_new_session=True,
            cwd="/",
        )
        os.close(writer)
        line = answer.readline() if select.select([answer], [], [], SECONDS_TO_START)[0] else b""
    if line:
        return {**json.loads(line), "log": os.fspath(log)}
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    code = process.wait()
    output = log.read_text(errors="replace").strip().removeprefix("himach: error: ")
    text = output or f"the server did not answer within {SECONDS_TO_START:.0f} s (exit code {code}); see {log}"
    raise UsageError(text) if code == 2 else StoreError(text)


def _open_log(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _read_running(place: Path) -> dict[str, Any] | None:
    """Return the facts in the lock file of a store's running server; None without a server."""
    try:
        lock = _Lock(place / DIRECTORY / "lock") if (place / DIRECTORY / "lock").exists() else None
    except OSError:
        return None
    if lock is None:
        return None
    with contextlib.closing(lock):
        return lock.read() if is_locked(lock.fd) else None


def stop(store: str | os.PathLike[str] | None = None, *, seconds: float = SECONDS_TO_STOP) -> bool:
    """Stop the server of a store and wait for its end; return False if there was none."""
    place = store_place(store)
    if _read_running(place) is None:
        return False
    is_told = False
    deadline = time.monotonic() + seconds
    while _read_running(place) is not None:
        if time.monotonic() > deadline:
            raise StoreBusyError(f"the server of {place} has not ended within {seconds:.0f} s")
        is_told = is_told or _terminate(place)
        time.sleep(0.02)
    return True


def _terminate(place: Path) -> bool:
    """Send SIGTERM to who listens at the socket of a store; return False if nobody does yet."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as client:
        client.setblocking(False)  # where many wait already to be taken up, this one would wait, too
        client.connect(os.fspath(place / DIRECTORY / "socket"))
        # The lock file's pid may be one of another container.
        pid, _, _ = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if pid > 0:
            os.kill(pid, signal.SIGTERM)
        return True
    return False


def status(store: str | os.PathLike[str] | None = None, *, timeout: float = 30.0) -> dict[str, Any]:
    """Return the state of a store's server, asked within `timeout` seconds, as values for JSON."""
    place = store_place(store)
    facts = _read_running(place)
    if facts is None:
        return {"running": False}
    try:
        client = find(place, timeout=timeout)
        if client is not None:
            with client:
                return {"running": True, "answers": True, **client.counters(), **facts}
    except StoreError as error:
        return {"running": True, "answers": False, "error": str(error), **facts}
    return {"running": True, "answers": False, **facts}
