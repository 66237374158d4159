"""What Zazen costs from stores on disk: opening, sets, rounds and share, beside the bare reductions of the same bytes.

Each rank is a node with a store of its own, in which lie about as many frames of one atom as are asked for; in:

- ``random``: every frame is native on a random node.
- ``runs``: neighbours are native on one node, a thousand frames excepted, which are native on the next one.

The stores are those that writers leave, segment by segment, each with its index and its sealed table, made in bulk:
records that hold one atom take 192 bytes, so that of 10⁸ frames they would fill a disk. So segments are as long as they
would be, but holes: opening a dataset looks at a segment's header and size, and no record is read before a task is
taken. The tables are the library's own, which it makes of the index (``sealing``); what was read of the index is then
given back to the disk, too, and is not read again.

Every repetition opens store and dataset anew, in processes that have opened them before (their pages are in memory).
"""

import ctypes
import os
import statistics
import struct
import tempfile
import time
from pathlib import Path

import click
import numpy as np
import numpy.typing as npt

from himach.io.store.bodhi import crc32c
from himach.io.store.store import Store
from himach.ranks.communicator import World
from himach.zazen import assign

from ..harness.options import RANKS, beside, count, repeats
from ..harness.ranks import on_ranks
from . import zazen
from .zazen import EXCEPTIONS, bare_seconds

__all__ = ["main", "measure"]

Numbers = npt.NDArray[np.int64]

BAR = 3.0
CACHES = {"random": "at random", "runs": "in runs"}
SEGMENT = 256 << 20  # bytes, as writers make them
HEADER, RECORD, HEAD, ENTRY = 64, 192, 128, 32  # bytes: of a file, of a record of one atom and its head, of the index
NAME = "himach bench zazen"
KEEP_SIZE, PUNCH_HOLE = 1, 2


@click.option("--frames", type=count, help="Frames of the made-up dataset [default: 1e9]; in each store [1e8].")
@click.option("--stores", is_flag=True, help="From stores on disk, one for each rank, opened anew each time.")
@RANKS
@repeats(7)
@beside("zazen")
def main(frames: int | None, stores: bool, ranks: int, repeats: int) -> None:
    """Time the protocol's rounds and decisions beside bare Allreduces of the same bytes."""
    if stores:
        measure_stores(frames or 10**8, ranks, repeats)
    else:
        zazen.main(frames or 10**9, ranks, repeats)


def measure_stores(frames: int, nodes: int, repeats: int) -> None:
    """Measure both cases on as many nodes of this machine, each with about `frames` in its store; print the table."""
    print(f"Zazen from stores on disk, {frames:.3g} frames on each of {nodes} nodes (medians; seconds)")
    print(f"{'':12}{'Allreduces':>10}{'opening':>9}{'sets':>8}{'rounds':>8}{'all':>8}{'ratio':>7}{'bar':>7}", end="")
    print(f"{'in memory':>12}{'in files':>10}{'made in':>9}")
    for cache, cached in CACHES.items():
        found = on_ranks(nodes, measure, frames * nodes, repeats, cache, apart=True)
        print(
            f"{cached:12}{found['bare']:10.4f}{found['opening']:9.4f}{found['sets']:8.4f}{found['rounds']:8.4f}"
            f"{found['all']:8.4f}{found['ratio']:7.2f}{BAR:7.1f}"
            f"{found['memory'] / 1e3:9.0f} kB{found['table']:6.2f} B{found['made']:8.0f}s"
        )


def measure(world: World, frames: int, repeats: int, cache: str) -> dict[str, float]:
    """Return medians in seconds, measured on the ranks of `world`, each a node (collective).

    ``bare``: the two reductions of whole bitmaps. ``all``: from no store open until tasks can be taken, on the node
    that takes longest, of which ``opening``, ``sets`` and ``rounds`` are parts; ``ratio``, to ``bare``. ``memory``:
    bytes in which a process has where all frames of its node lie; ``table``: bytes a frame of the files that say it.
    """
    with tempfile.TemporaryDirectory(prefix="himach-zazen-") as name:
        place = Path(name, "store")
        start = time.perf_counter()
        table = make_store(place, _held(world, frames, cache))
        made = time.perf_counter() - start
        world.comm.barrier()
        rows = [_once(world, place, frames) for _ in range(repeats)]
    medians = {key: statistics.median(row[key] for row in rows) for key in rows[0]}
    return {**medians, "made": made, "table": table}


def _once(world: World, place: Path, frames: int) -> dict[str, float]:
    world.comm.barrier()
    start = time.perf_counter()
    store = Store(place)
    dataset = store.dataset(NAME)
    opened = time.perf_counter()
    share = assign(world, dataset, range(frames))
    done = time.perf_counter()
    memory = dataset.facts()["memory"]
    taken = world.comm.allgather({**share.seconds, "opening": opened - start, "all": done - start, "memory": memory})
    assert sum(share.counts.values()) == frames
    assert share.counts["residue"] == 0
    slowest = {key: max(one[key] for one in taken) for key in ("opening", "sets", "rounds", "all", "memory")}
    bare = bare_seconds(world, frames)  # at once, because other work on the machine slows both
    return {**slowest, "bare": bare, "ratio": slowest["all"] / bare}


def _held(world: World, frames: int, cache: str) -> Numbers:
    """Return the frames that this node holds natively, ascending."""
    nodes, node = len(world.nodes), world.node_index
    draw = np.random.default_rng(0)  # the same on every node
    if cache == "random":
        return np.flatnonzero(draw.integers(0, nodes, frames, dtype=np.uint8) == node)
    bounds = [frames * i // nodes for i in range(nodes + 1)]
    excepted = np.unique(draw.integers(0, frames, EXCEPTIONS))
    held = np.zeros(frames, dtype=bool)
    held[bounds[node] : bounds[node + 1]] = True
    held[excepted] = (np.searchsorted(bounds, excepted, side="right") % nodes) == node
    return np.flatnonzero(held)


def make_store(place: Path, numbers: Numbers) -> float:
    """Make a store that holds these frames natively, records excepted; return the bytes of its tables, a frame."""
    folder = Store(place).dataset(NAME).path
    some = (SEGMENT - HEADER) // RECORD
    for i in range(0, len(numbers), some):
        _make_segment(folder, i // some + 1, numbers[i : i + some])
        # A segment at a time, so that no more than one index is on the disk, and in memory.
        Store(place).dataset(NAME).seal(1)
        _punch(folder / f"n-{i // some + 1:016x}.idx")
    return sum(table.stat().st_size for table in folder.glob("*.tab")) / max(1, len(numbers))


def _make_segment(folder: Path, segment: int, numbers: Numbers) -> None:
    key = (segment, *(int(part, 16) for part in folder.name.split("-")))
    stem = folder / f"n-{segment:016x}"
    with open(stem.with_suffix(".idx"), "wb") as index:
        index.write(_header(b"BdhX", key))
        index.write(_entries(segment, numbers).tobytes())
    with open(stem.with_suffix(".seg"), "wb") as file:
        file.write(_header(b"BdhS", key))
        file.truncate(HEADER + RECORD * len(numbers))


def _header(magic: bytes, key: tuple[int, ...]) -> bytes:
    """Return the header of a segment of natives or of its index (docs/formats.md)."""
    start, rest = struct.pack("<4sHHI", magic, 1, 0, HEADER), struct.pack("<QQQ", *key).ljust(HEADER - 16, b"\0")
    return start + struct.pack("<I", crc32c(rest, crc32c(bytes(4), crc32c(start)))) + rest


def _entries(segment: int, numbers: Numbers) -> npt.NDArray[np.uint8]:
    """Return the index of records that lie one after the other, uint8 (n, ENTRY)."""
    entries = np.zeros((len(numbers), ENTRY), dtype=np.uint8)
    words = entries.view("<u8")
    words[:, 0] = numbers
    words[:, 1] = HEADER + RECORD * np.arange(len(numbers), dtype=np.uint64)
    words[:, 2] = RECORD
    entries[:, 24], entries[:, 25], entries[:, 26] = 1, 1, HEAD // 64
    entries.view("<u4")[:, 7] = _checksums(segment, entries)
    return entries


def _checksums(segment: int, entries: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
    """Return the checksums of all entries, of which only number and offset differ: those of each byte together."""
    before = crc32c(struct.pack("<Q", segment))
    plain = bytes(16) + entries[0, 16:28].tobytes()
    base = crc32c(plain, before)
    sums = np.full(len(entries), base, dtype=np.uint32)
    for at in (0, 1, 2, 3, 4, 8, 9, 10, 11):
        of_byte = [crc32c(plain[:at] + bytes([byte]) + plain[at + 1 :], before) ^ base for byte in range(256)]
        sums ^= np.array(of_byte, dtype=np.uint32)[entries[:, at]]
    return sums


def _punch(index: Path) -> None:
    """Give the bytes of a file back to the disk, but for its header's; it stays as long as it was."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(index, "r+b") as file:
        size = os.fstat(file.fileno()).st_size - 4096
        where = [ctypes.c_int(file.fileno()), ctypes.c_int(KEEP_SIZE | PUNCH_HOLE), ctypes.c_long(4096)]
        if size > 0 and libc.fallocate(*where, ctypes.c_long(size)) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), os.fspath(index))
