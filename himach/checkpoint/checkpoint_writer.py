"""`CheckpointWriter`: a thread writes what was mapped since the last commit, as one part per analysis.

A killed run thus loses what it mapped in less than a minute, or in 2 % of its time.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NoReturn

import numpy as np
from pyroaring import BitMap64

from himach.checkpoint.directory import Place
from himach.checkpoint.objects import NotPlainError
from himach.checkpoint.part import BadPartError, open_part, write_part
from himach.checkpoint.reuse import CheckpointRun
from himach.engine.mapping import Mapped, Mapper
from himach.engine.pairs.block import SHARDS, reshard
from himach.errors import HimachError, TimeUpError, UsageError
from himach.io.datasets.source import Source
from himach.ranks.collective import run_collectively
from himach.ranks.communicator import Communicator
from himach.ranks.launch.stop_requests import StopRequests
from himach.selection import Selected, numbers_at

#: Least seconds between commits, and their least distance as a fraction of the time so far.
EVERY = 30.0
PART = 0.02
#: The least time to the next commit, in multiples of the time that this one blocks the map loop.
WORTH = 50
#: Approximate bytes of pairs per commit, and the inverse of their largest fraction of a rank's memory: pairs stay in
#: memory until they are written.
MOST, SHARE = 128 << 20, 16
LEAST = 4 << 20
#: Inverse fraction of a rank's memory for pairs that were mapped before commits start.
WAITS = 4
#: Most commits queued for the disk; if the queue is full, the run waits this many seconds if the user asked to keep.
WAITING = 4
PATIENCE = 60.0


class CheckpointWriter:
    """Stores what this rank maps (see `himach.engine.mapping.Keeper`)."""

    def __init__(
        self, run: CheckpointRun, comm: Communicator, total: int, source: Source, memory: int, after: float = 0.0
    ) -> None:
        self._run = run
        self._comm = comm
        self._frames = run.request.frames
        self._total = total
        self._mapped = 0
        self._source = source
        self._requests: StopRequests | None = None
        self._every = every = run.request.every
        self._began = time.monotonic()
        self._next = self._began + (after or every)
        self._started = not after
        self._usual = max(LEAST, min(MOST, memory // SHARE))
        self._most = max(LEAST, memory // WAITS) if after else self._usual
        self._mappers: list[Mapper] = []
        self._writer = _Writer(run.places, run.request.frames, run.request.files.digests, 0.0 if after else PATIENCE)
        # If values must be plain, check that at the first frame.
        self._checks_plain = run.request.lasting and not all(place.pickles for place in run.places)

    @property
    def reason(self) -> str:
        """Why nothing more is stored; "" if it is."""
        return self._writer.failed

    @property
    def going_on(self) -> bool:
        """Whether to map the remaining frames."""
        return self._requests is None or not self._requests.time_up

    @property
    def _requested(self) -> bool:
        requests = self._requests
        return requests is not None and (requests.commit or requests.ending or requests.time_up)

    def restore(self, index: int, mapper: Mapper) -> Collection[int]:
        """Pass kept pairs to a mapper; return the steps that it has and another analysis lacks."""
        self._mappers.append(mapper)
        for part in self._run.plan.loaded[index]:
            part.give(mapper, self._frames)
        return self._run.plan.skips[index]

    def due(self, nbytes: int) -> bool:
        """Return whether to store now what was mapped since the last commit."""
        if self._requested or self._checks_plain or nbytes > self._most or time.monotonic() >= self._next:
            self._started = True
            return True
        return False

    def keep(self, mapped: Sequence[Mapped]) -> None:
        """Queue what was mapped for the writer thread; wait for it if a stop or commit is requested."""
        start = time.monotonic()
        now, checks_plain, self._checks_plain = self._requested, self._checks_plain, False
        if self._requests is not None:
            self._requests.commit = False
        chunks = [chunk for chunk in mapped if len(chunk)]
        if chunks:
            self._mapped += len(np.unique(np.concatenate([chunk.steps for chunk in chunks])))
        if self._started:  # else the map phase was short
            self._most = self._usual
            if chunks and not self._writer.failed:
                self._source.confirm()
                self._writer.put(mapped)
        if now or checks_plain:
            self._writer.wait()
        if isinstance(self._writer.error, NotPlainError) and checks_plain:
            where = self._run.directory.path
            raise UsageError(f"pairs {where}: {self._writer.error}, or let nobody else write there: chmod go-w {where}")
        self.exit_if_requested()
        cost, so_far = time.monotonic() - start, time.monotonic() - self._began
        pause = max(self._every, WORTH * cost * (not now), PART * so_far)
        self._next = time.monotonic() + (pause if self._every else 0.0)

    def relieve(self) -> None:
        """Make mappers refer to written parts instead of holding their pairs in memory."""
        while self._writer.written:
            index, chunk, path = self._writer.written.popleft()
            place = self._run.places[index]
            with suppress(BadPartError):
                part = open_part(path, trusted=place.pickles, identity=place.generation.key, check=False)
                self._mappers[index].runs.exchange(chunk.blocks, part.on_disk(chunk.first))

    @contextmanager
    def saving_on_stop(self, requests: StopRequests) -> Iterator[None]:
        """Handle stop requests, once all ranks do, until the end of the map phase (collective)."""
        self._requests = requests
        requests.handled = True
        try:
            with self._run.request.files.watching():
                # SIGTERM kills a rank that is not here yet, and with it all others, whatever they have mapped.
                self._comm.barrier()
                yield
        finally:
            requests.handled = False

    def exit_if_requested(self) -> None:
        """End this process if that is requested, after all that was passed to `keep` is written."""
        if self._requests is not None and self._requests.ending:
            self.hurry()
            self._requests.exit_process()

    def hurry(self) -> None:
        """Wait until all that was passed to `keep`, and all other output, is written; callable from any thread."""
        self._writer.wait()
        self._source.hurry()

    def end(self) -> None:
        """End the map phase (collective)."""
        self.exit_if_requested()
        self._writer.forget()
        mapped = self._comm.allreduce(self._mapped)
        if self._requests is not None:
            self._requests.handled = False
        if mapped < self._total:
            run_collectively(self._comm, self._writer.close)
            run_collectively(self._comm, partial(self._raise_time_up, mapped))

    def close(self, succeeded: bool) -> None:
        """Wait until all is written; if the run `succeeded` and its pairs are temporary, write no more."""
        self._writer.close(drop=succeeded and not self._run.request.lasting)

    def _raise_time_up(self, mapped: int) -> NoReturn:
        reused, directory = self._run.plan.reused, self._run.directory.path
        done = f"time is up after {mapped + reused} of {len(self._frames)} frames"
        if self.reason:
            raise TimeUpError(f"{done}, and not all of them are kept in {directory}: {self.reason}")
        raise TimeUpError(f"{done}; they are kept in {directory}, and the same command goes on from there")


class _Writer:
    """Writes parts one by one in a thread."""

    def __init__(self, places: Sequence[Place], frames: Selected, files: Mapping[str, str], patience: float) -> None:
        self.error: Exception | None = None
        self.written: deque[tuple[int, Mapped, Path]] = deque()  # analysis, its mapper's output, its part
        self._remembers = True
        self._drops = False
        self._places = places
        self._frames = frames
        self._files = files
        self._patience = patience
        self._created: set[int] = set()
        self._queue: queue.Queue[Sequence[Mapped] | None] = queue.Queue(WAITING)
        self._thread: threading.Thread | None = None

    @property
    def failed(self) -> str:
        """Why nothing more is stored; "" if it is."""
        error = self.error
        if error is None:
            return ""
        message = error.strerror if isinstance(error, OSError) else str(error)
        return message or type(error).__name__

    def put(self, mapped: Sequence[Mapped]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="himach-keeper", daemon=True)
            self._thread.start()
        try:
            self._queue.put(mapped, timeout=self._patience or None, block=self._patience > 0)
        except queue.Full:
            self.error = HimachError("the disk is slower than the analysis")

    def wait(self) -> None:
        """Wait until the queue is written."""
        if self._thread is not None:
            self._queue.join()

    def forget(self) -> None:
        """Drop references to what is written."""
        self._remembers = False
        self.written.clear()

    def close(self, drop: bool = False) -> None:
        self._drops = drop
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None

    def _work(self) -> None:
        while True:
            mapped = self._queue.get()
            try:
                if mapped is None:
                    return
                if self.error is None and not self._drops:
                    self._write(mapped)
            except Exception as error:  # the run goes on after any error
                self.error = error
            finally:
                del mapped
                self._queue.task_done()

    def _write(self, mapped: Sequence[Mapped]) -> None:
        for index, (place, chunk) in enumerate(zip(self._places, mapped, strict=True)):
            if not len(chunk):
                continue
            if index not in self._created:
                place.generation.write()
                self._created.add(index)
            place.generation.note(dict(self._files))
            table = chunk.table
            path = write_part(
                place.generation.path,
                [reshard(replace(block, at=block.at - np.uint32(chunk.first)), SHARDS) for block in chunk.blocks],
                replace(table, steps=numbers_at(self._frames, table.steps)),
                BitMap64(numbers_at(self._frames, chunk.steps).astype(np.uint64)),
                place.pickles,
                identity=place.generation.key,
                pairs=chunk.pairs,
                combined=place.combined,
                home=place.home,
            )
            self.written.append((index, chunk, path))
            if not self._remembers:
                self.written.clear()
