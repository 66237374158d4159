"""Reading through the server of a node's frame store: `find` returns a `Client` of it if there is one."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import cast

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from himach.frame import RawFrame
from himach.io.server import serving
from himach.io.server.serving import ServerRefusedError, ServerUnreachableError
from himach.io.store import bodhi
from himach.io.store.place import store_place
from himach.io.store.store import StoreError

__all__ = ["DIRECTORY", "Client", "Place", "find", "socket_path"]

DIRECTORY = "server"
GAP_BYTES = 64 << 10
REQUEST_BYTES = 4 << 20
HEAD_BYTES = 4096  # as much is read of a record to see where in it blocks lie


def socket_path(store: str | os.PathLike[str] | None = None) -> Path:
    """Return where the server of a store listens for clients of this machine."""
    return store_place(store) / DIRECTORY / "socket"


class Place:
    """Where one frame lies: a descriptor open for reading, `offset` and `length` of its record, segment and kind."""

    __slots__ = ("fd", "length", "native", "number", "offset", "segment")

    def __init__(self, number: int, fd: int, segment: int, offset: int, length: int, native: bool) -> None:
        self.number, self.fd, self.segment = number, fd, segment
        self.offset, self.length, self.native = offset, length, native


class Client:
    """A connection to the server of a store on this machine; made by `find`. One thread at a time."""

    def __init__(self, path: Path, owner: int, timeout: float) -> None:
        self.nbytes = 0  # of records read so far
        self._link = serving.LinkHandle(os.fsencode(path), owner, int(timeout * 1000))

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._link.close()

    def open(self, name: str, generation: bytes = b"") -> Client:
        """Open a dataset, once, before anything is asked of it; returns this client.

        Raises
        ------
        StoreNotFoundError
            It is not in the store.
        """
        self._link.open(name, generation)
        return self

    @property
    def identity(self) -> str:
        """Identity of the store (32 hex digits)."""
        return self._link.identity.hex()

    def bitmaps(self) -> tuple[BitMap64, BitMap64]:
        """Return the numbers of the frames that are held natively and as aliens."""
        return self._bitmap(bodhi.NATIVE), self._bitmap(bodhi.ALIEN)

    def _bitmap(self, kind: int) -> BitMap64:
        held = BitMap64()
        start = 0
        while True:
            numbers = self._link.numbers(kind, start)
            held |= BitMap64(numbers)
            if numbers.size < serving.NUMBERS_AT_ONCE:
                return held
            start = int(numbers[-1]) + 1

    def have(self, numbers: npt.ArrayLike) -> npt.NDArray[np.uint8]:
        """Return per frame 0 (not there), 1 (native) or 2 (alien)."""
        return self._link.have(numbers)

    @contextlib.contextmanager
    def places(self, numbers: npt.ArrayLike) -> Iterator[list[Place | None]]:
        """Say where frames lie, in the order of `numbers`, None for those that cannot be had.

        A context: within it the descriptors are open, and with ``--serialize-reads`` it is this client's turn to read.
        At most `serving.NUMBERS_AT_ONCE` frames, and those of 32 segments, are told of at once.
        """
        wanted = np.asarray(numbers, dtype=np.int64).reshape(-1)
        table, descriptors = self._link.places(wanted)
        try:
            yield [
                Place(int(number), descriptors[row["descriptor"]], int(row["segment"]), int(row["offset"]),
                      int(row["length"]), row["kind"] == bodhi.NATIVE)
                if 0 <= row["descriptor"] < len(descriptors) else None
                for number, row in zip(wanted, table, strict=True)
            ]  # fmt: skip
        finally:
            for fd in descriptors:
                os.close(fd)
            self._link.done()

    def read(
        self, numbers: npt.ArrayLike, atoms: npt.NDArray[np.int64] | None = None, fields: int = 0
    ) -> Iterator[RawFrame | None]:
        """Read frames, in the order of `numbers`; None for a miss. What is given out was checked.

        Neighbours in a segment are read together. The bytes do not pass through the server. `atoms` and `fields` as in
        `Dataset.read`: of records that are large enough for that to be worth it, only the blocks that are asked for are
        read.
        """
        wanted = np.asarray(numbers, dtype=np.int64).reshape(-1)
        at = 0
        step = 64
        while at < wanted.size:
            some = wanted[at : at + step]
            with self.places(some) as places:
                frames = self._read_places(places, atoms, fields)
                largest = max((place.length for place in places if place is not None), default=0)
            missing = next((i for i, place in enumerate(places) if place is None), None)
            if missing and self._link.have(some[missing : missing + 1])[0]:
                frames, some = frames[:missing], some[:missing]  # of more segments than a message takes
            at += some.size
            step = max(1, min(serving.NUMBERS_AT_ONCE, 4 * REQUEST_BYTES // max(largest, 1)))
            yield from frames

    def _read_places(
        self, places: list[Place | None], atoms: npt.NDArray[np.int64] | None, fields: int
    ) -> list[RawFrame | None]:
        frames: list[RawFrame | None] = [None] * len(places)
        order = sorted(
            (place.fd, place.offset, place.length, index) for index, place in enumerate(places) if place is not None
        )
        while order:
            fd, start, length, first = order[0]
            end, n = start + length, 1
            if length > 2 * GAP_BYTES and (atoms is not None or fields):
                frames[first] = self._read_part(cast(Place, places[first]), atoms, fields)
                order = order[1:]
                continue
            while (
                n < len(order) and order[n][0] == fd and order[n][1] <= end + GAP_BYTES and end - start < REQUEST_BYTES
            ):
                end = max(end, order[n][1] + order[n][2])
                n += 1
            data = _pread(fd, end - start, start)
            for _, offset, size, index in order[:n]:
                place = cast(Place, places[index])
                record = data[offset - start : offset - start + size]
                frames[index] = self._unpack(place, record, atoms, fields)
            order = order[n:]
        return frames

    def _read_part(self, place: Place, atoms: npt.NDArray[np.int64] | None, fields: int) -> RawFrame | None:
        """Read the blocks of one record that are asked for, with short gaps between them."""
        head = _pread(place.fd, HEAD_BYTES, place.offset)
        blocks = self._link.blocks(head, place.segment, place.offset, place.number, fields, atoms)
        if blocks is None:  # damaged, or of more blocks than usual
            return self._unpack(place, _pread(place.fd, place.length, place.offset), atoms, fields)
        record = memoryview(bytearray(place.length))
        pieces = _joined(blocks, place.length)
        for begin, end in pieces.tolist():
            if _fill(place.fd, record[begin:end], place.offset + begin) < end - begin:
                return None
        return self._unpack(place, record, atoms, fields, pieces)

    def _unpack(
        self,
        place: Place,
        record: memoryview,
        atoms: npt.NDArray[np.int64] | None,
        fields: int,
        pieces: npt.NDArray[np.uint64] | None = None,
    ) -> RawFrame | None:
        found = self._link.unpack(record, place.segment, place.offset, place.number, fields, atoms, pieces)
        if found is None:
            return None
        self.nbytes += place.length if pieces is None else int((pieces[:, 1] - pieces[:, 0]).sum())
        return RawFrame(place.number, found[0], found[2], found[1], found[3], found[4])

    def counters(self) -> dict[str, int]:
        """Return what the server has counted."""
        return self._link.counters()

    def stop(self) -> None:
        """Tell the server to end."""
        self._link.stop()


def _joined(blocks: npt.NDArray[np.uint64], length: int) -> npt.NDArray[np.uint64]:
    """Return blocks, uint64 (n, 2), first byte and last + 1, with those joined that nearly touch, within `length`."""
    blocks = np.minimum(blocks, np.uint64(length))
    last = np.flatnonzero(blocks[1:, 0] > blocks[:-1, 1] + np.uint64(GAP_BYTES))
    return np.stack([blocks[np.r_[0, last + 1], 0], blocks[np.r_[last, len(blocks) - 1], 1]], axis=1)


def _pread(fd: int, size: int, offset: int) -> memoryview:
    """Read what is there of `size` bytes; an error of the disk reads as nothing."""
    view = memoryview(bytearray(size))
    return view[: _fill(fd, view, offset)]


def _fill(fd: int, view: memoryview, offset: int) -> int:
    """Read into `view` and return how many bytes were there."""
    done = 0
    with contextlib.suppress(OSError):
        while done < len(view) and (got := os.preadv(fd, [view[done:]], offset + done)):
            done += got
    return done


def find(
    store: str | os.PathLike[str] | None = None, *, owner: int | None = None, timeout: float = 30.0
) -> Client | None:
    """Connect to the server of a store, if it has one.

    Parameters
    ----------
    store
        The store's directory; None for that of `store_place`.
    owner
        The user whose server it must be; None for this one. A server run by anybody else is refused.
    timeout
        Seconds for every wait.

    Returns
    -------
    Client or None
        None if no server listens there.

    Raises
    ------
    ServerRefusedError
        The store's directory or what listens there belongs to another user, or the server refuses this one.
    """
    place = store_place(store)
    wanted = os.geteuid() if owner is None else owner
    try:
        found = place.stat()
        inside = (place / DIRECTORY).lstat()
        (place / DIRECTORY / "socket").lstat()
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.EACCES:
            raise ServerRefusedError(f"{place}: this user may not enter it") from None
        raise StoreError(f"{place}: {error.strerror}") from None
    if found.st_uid != wanted or inside.st_uid != wanted or found.st_mode & stat.S_IWOTH:
        raise ServerRefusedError(f"{place} is not user {wanted}'s alone to write; its server is not asked")
    try:
        return Client(socket_path(place), wanted, timeout)
    except ServerUnreachableError:
        return None
