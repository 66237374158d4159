"""`CheckpointWriter` writes what was mapped since the last commit, as one part per analysis.

A killed run thus loses what it mapped in less than a minute, or in 2 % of its time.
"""

import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import NoReturn

import numpy as np
from pyroaring import BitMap64

from himach.checkpoint.part import write_part
from himach.checkpoint.reuse import CheckpointRun
from himach.engine.mapping import Mapped, Mapper
from himach.errors import HimachError, TimeUpError
from himach.io.datasets.source import Source
from himach.ranks.collective import run_collectively
from himach.ranks.communicator import Communicator
from himach.ranks.launch.stop_requests import StopRequests
from himach.selection import numbers_at

#: Least seconds between commits, and their least distance as a fraction of the time so far.
EVERY = 30.0
PART = 0.02
#: The least time to the next commit, in multiples of the time that this one blocks the map loop.
WORTH = 50
#: Approximate bytes of pairs per commit, and the inverse of their largest fraction of a rank's memory: pairs stay in
#: memory until they are written.
MOST, SHARE = 128 << 20, 16
LEAST = 4 << 20
#: Inverse fraction of a rank's memory for pairs that were mapped before commits start; a run with less may read them.
WAITS = 4


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
        self._began = self._last = time.monotonic()  # start, and end of the last commit
        self._next = self._began + (after or every)
        self._started = not after
        self._usual = max(LEAST, min(MOST, memory // SHARE))
        self._most = max(LEAST, min(8 * MOST, memory // WAITS)) if after else self._usual
        self._writing = threading.Lock()
        self._created: set[int] = set()  # generations that this rank wrote to
        self.reason = ""  # why nothing more is stored; "" if it is

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
        for part in self._run.plan.loaded[index]:
            part.give(mapper, self._frames)
        return self._run.plan.skips[index]

    def due(self, nbytes: int) -> bool:
        """Return whether to store now what was mapped since the last commit."""
        if self._requested or nbytes > self._most or time.monotonic() >= self._next:
            self._started = True
            return True
        return False

    def keep(self, mapped: Sequence[Mapped]) -> None:
        """Write what was mapped; end this process if that is requested."""
        start = time.monotonic()
        now = self._requested
        if self._requests is not None:
            self._requests.commit = False
        chunks = [chunk for chunk in mapped if len(chunk)]
        if chunks:
            self._mapped += len(np.unique(np.concatenate([chunk.steps for chunk in chunks])))
        if self._started:  # else the map phase was short
            self._most = self._usual
            if chunks and not self.reason:
                self._source.confirm()
                self._write(mapped)
        self.exit_if_requested()
        cost, so_far = time.monotonic() - start, time.monotonic() - self._began
        if cost > 1 + start - self._last and not (now or self._run.request.lasting):
            self.reason = self.reason or "the disk is slower than the analysis"
        self._last = time.monotonic()
        pause = max(self._every, WORTH * cost * (not now), PART * so_far)
        self._next = time.monotonic() + (pause if self._every else 0.0)

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
        """End this process if that is requested."""
        if self._requests is not None and self._requests.ending:
            self.hurry()
            self._requests.exit_process()

    def hurry(self) -> None:
        """Wait until the commit under way, and all other output, is written; callable from any thread."""
        with self._writing:
            self._source.hurry()

    def end(self) -> None:
        """End the map phase (collective)."""
        self.exit_if_requested()
        mapped = self._comm.allreduce(self._mapped)
        if self._requests is not None:
            self._requests.handled = False
        if mapped < self._total:
            run_collectively(self._comm, partial(self._raise_time_up, mapped))

    def _raise_time_up(self, mapped: int) -> NoReturn:
        reused, directory = self._run.plan.reused, self._run.directory.path
        done = f"time is up after {mapped + reused} of {len(self._frames)} frames"
        if self.reason:
            raise TimeUpError(f"{done}, and not all of them are kept in {directory}: {self.reason}")
        raise TimeUpError(f"{done}; they are kept in {directory}, and the same command goes on from there")

    def _write(self, mapped: Sequence[Mapped]) -> None:
        try:
            with self._writing:
                for index, chunk in enumerate(mapped):
                    if len(chunk):
                        self._write_part(index, chunk)
        except Exception as error:  # the run goes on after any error
            message = error.strerror if isinstance(error, OSError) else str(error)
            self.reason = message or type(error).__name__

    def _write_part(self, index: int, chunk: Mapped) -> None:
        request, generation = self._run.request, self._run.generations[index]
        if index not in self._created:
            generation.write()
            self._created.add(index)
        generation.note(dict(request.files.digests))
        if not generation.private:
            raise HimachError(f"others can write in {generation.path}")
        table = chunk.table
        write_part(
            generation.path,
            [replace(block, at=block.at - np.uint32(chunk.first)) for block in chunk.blocks],
            replace(table, steps=numbers_at(request.frames, table.steps)),
            BitMap64(numbers_at(request.frames, chunk.steps).astype(np.uint64)),
            identity=generation.key,
            pairs=chunk.pairs,
            combined=request.combined[index],
            home=request.homes[index],
        )
