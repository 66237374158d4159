"""`Client`: reads frames through the server of a node's store; `find` connects to it if there is one."""

import errno
import fcntl
import os
import stat
import struct
from pathlib import Path

import numpy.typing as npt
from pyroaring import BitMap64

from himach.errors import ServerUnreachableError
from himach.io.frame_source import WHOLE, ReadOptions
from himach.io.store import bodhi
from himach.io.store.bodhi import ServerRefusedError
from himach.io.store.cached_frames import CachedFrames, Reading
from himach.io.store.quota import store_place
from himach.io.store.store import StoreError

DIRECTORY = "server"
WHOLE_FILE = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
MAX_ATTACHMENT_BYTES = 4 << 30  # the times of 500 million frames
MAX_CHANGES = 8  # of an attachment while it is fetched
MAX_RUN_FRAMES = 1 << 40  # in a run; a larger count is refused
MAX_SPACED_FRAMES = 1 << 28  # in a run with a step above 1, whose frames take memory each
RUN = struct.Struct("<3q")
LONG_RUN = 64  # frames; a longer run is added by itself


def socket_path(store: str | os.PathLike[str] | None = None) -> Path:
    """Return the path of the socket for clients on this machine."""
    return store_place(store) / DIRECTORY / "socket"


class Client(bodhi.LinkHandle, CachedFrames):
    """A connection to a store's server, for one thread at a time; frames are read as from a `Dataset`.

    On this machine the server only tells where they are and protects their segments; from another one it sends bytes.
    """

    def __init__(self, address: Path | str, owner: int, timeout: float, *, key: bytes = b"") -> None:
        super().__init__(os.fsencode(address), owner, int(timeout * 1000), key)
        self.name, self.generation = "", b""

    def open(self, name: str, generation: bytes = b"") -> "Client":
        """Open a dataset once, before any query; return this client."""
        self.open_dataset(name, generation)
        self.name, self.generation = name, generation
        return self

    def read(self, numbers: npt.ArrayLike, options: ReadOptions = WHOLE) -> Reading:
        """Read frames, in the order of `numbers`, ahead of the caller and without the GIL; see `CachedFrames.read`."""
        return Reading(self.open_reader(numbers, options))

    def attachment(self, name: str) -> bytes | None:
        """Return the attachment of this name, or None; see `Dataset.attach`."""
        content = bytearray()  # grows in place
        version = b""
        changes = 0
        while (part := self.attachment_part(name, len(content))) is not None:
            if part[0] > MAX_ATTACHMENT_BYTES:  # another user's server is not trusted
                raise StoreError(f"the server's attachment {name} has {part[0]} bytes, more than himach attaches")
            if content and part[1] != version:  # replaced in the meantime
                content.clear()
                changes += 1
                if changes > MAX_CHANGES:
                    raise StoreError(f"the server's attachment {name} changes again and again while it is fetched")
                continue
            version = part[1]
            content += part[2]
            if len(content) >= part[0]:
                return bytes(content)
            if not part[2]:  # became shorter in the meantime
                break
        return None

    def frames(self, native: bool, low: int = 0, stop: int = bodhi.MAX_NUMBER + 1) -> BitMap64:
        """Return the numbers n of one kind with low <= n < stop."""
        present = BitMap64()
        following = max(low, 0)
        while following < stop:
            low = following
            runs = self.runs(bodhi.NATIVE if native else bodhi.ALIEN, low, stop - 1)
            present |= decode_runs(runs)
            following = present.max() + 1 if len(runs) == bodhi.RUNS_AT_ONCE * RUN.size else stop
            if following <= low:
                raise StoreError(f"the server says that frame {following} is behind frame {low}")
        return present


def decode_runs(rows: bytes) -> BitMap64:
    """Return the frames of runs given by first, step and count."""
    frames = BitMap64()
    short: list[int] = []
    for first, step, count in RUN.iter_unpack(rows):
        most = MAX_RUN_FRAMES if step == 1 else MAX_SPACED_FRAMES
        if first < 0 or step < 1 or not 0 < count <= most or first + step * (count - 1) > bodhi.MAX_NUMBER:
            raise StoreError("the server says of frames what is no run of them")
        run = range(first, first + step * count, step)
        if count > LONG_RUN:
            frames |= BitMap64(run)
        else:
            short += run
    return frames | BitMap64(short)


def is_locked(fd: int) -> bool:
    """Tell whether another process has locked an open file; the query takes no lock."""
    return bool(struct.unpack_from("h", fcntl.fcntl(fd, fcntl.F_OFD_GETLK, WHOLE_FILE))[0] != fcntl.F_UNLCK)


def set_modes(directory: Path, shared: bool) -> None:
    """Let other users traverse to the socket, and see nothing else, only if some of them are served."""
    for path in (directory, directory.parent):
        mode = stat.S_IMODE(path.stat().st_mode)
        new_mode = mode | 0o011 if shared else mode & 0o700
        if mode != new_mode:
            path.chmod(new_mode)


def find(
    store: str | os.PathLike[str] | None = None, *, owner: int | None = None, timeout: float = 30.0
) -> Client | None:
    """Connect to the server of a store, if it has one."""
    place = store_place(store)
    owner_id = os.geteuid() if owner is None else owner
    try:
        store_status = place.stat()
        directory_status = (place / DIRECTORY).lstat()
        (place / DIRECTORY / "socket").lstat()
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.EACCES:
            raise ServerRefusedError(f"{place}: this user may not enter it") from None
        raise StoreError(f"{place}: {error.strerror}") from None
    if store_status.st_uid != owner_id or directory_status.st_uid != owner_id or store_status.st_mode & stat.S_IWOTH:
        raise ServerRefusedError(f"{place} is not user {owner_id}'s alone to write; its server is not asked")
    try:
        return Client(socket_path(place), owner_id, timeout)
    except ServerUnreachableError:
        return None
