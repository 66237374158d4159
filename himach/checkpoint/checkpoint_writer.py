"""Keeping pairs while a run goes on: `CheckpointWriter`, which the map loop of a rank asks after each frame.

Every so often, all that was mapped since the last time goes to a thread, which writes it as one part for each analysis.
So a run that is killed loses what it mapped in less than a minute, or in 2 % of its time.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from himach.checkpoint.parts.columns import BadPartError
from himach.checkpoint.parts.part import open_part, write_part
from himach.checkpoint.parts.plain import NotPlainError
from himach.engine.mapping import Mapped, Mapper
from himach.engine.pairs.block import SHARDS, reshard
from himach.errors import HimachError, TimeUpError, UsageError
from himach.parallel.collective import run_collectively
from himach.parallel.communicator import Communicator
from himach.selection import Selected, numbers_at

if TYPE_CHECKING:
    from himach.checkpoint.directory import Place
    from himach.checkpoint.reuse import CheckpointRun
    from himach.launch.stop_requests import StopRequests

#: Seconds between commits, at least, and the part of the time so far that they may lie apart.
EVERY = 30.0
PART = 0.02
#: A commit is worth this many times what it holds up the map loop.
WORTH = 50
#: Bytes of pairs that are kept at once, about, and the part of a rank's memory that they are at most: they wait there,
#: until they are written and may be left on the disk.
MOST, SHARE = 128 << 20, 16
LEAST = 4 << 20
#: The part of a rank's memory that pairs may take which wait for the beginning of keeping.
WAITS = 4
#: Commits that may wait for the disk; where one more would, the run waits so many seconds, if keeping was asked for.
WAITING = 4
PATIENCE = 60.0


class CheckpointWriter:
    """Keeps what this rank maps (see `himach.engine.mapping.Keeper`)."""

    def __init__(
        self,
        run: CheckpointRun,
        comm: Communicator,
        total: int,
        confirm: Callable[[], object],
        hurry: Callable[[], object],
        memory: int,
        after: float = 0.0,
        every: float = EVERY,
    ) -> None:
        self._run = run
        self._comm = comm
        self._frames = run.frames
        self._total = total
        self._mapped = 0
        self._confirm = confirm
        self._hurry = hurry
        self._requests: StopRequests | None = None
        self._every = every
        self._began = time.monotonic()
        self._next = self._began + (after or every)
        self._started = not after
        self._usual = max(LEAST, min(MOST, memory // SHARE))
        self._most = max(LEAST, memory // WAITS) if after else self._usual
        self._mappers: list[Mapper] = []
        self._writer = _Writer(run.places, run.frames, run.files.digests, 0.0 if after else PATIENCE)
        # Where values must be plain, that they are is seen at the first frame.
        self._checks_plain = run.lasting and not all(place.pickles for place in run.places)

    @property
    def reason(self) -> str:
        """Why keeping has ended; "" if it has not."""
        return self._writer.failed

    @property
    def going_on(self) -> bool:
        """Whether the frames that are left are to be mapped."""
        return self._requests is None or not self._requests.time_up

    @property
    def _requested(self) -> bool:
        requests = self._requests
        return requests is not None and (requests.commit or requests.ending or requests.time_up)

    def restore(self, index: int, mapper: Mapper) -> Collection[int]:
        """Give a mapper what was kept; return the steps that it has and another has not."""
        self._mappers.append(mapper)
        loaded = self._run.plan.loaded[index]
        for part in loaded.parts:
            part.give(mapper, self._frames)
        return loaded.skip

    def due(self, nbytes: int) -> bool:
        """Tell whether what was mapped since the last time is to be kept now."""
        if self._requested or self._checks_plain or nbytes > self._most or time.monotonic() >= self._next:
            self._started = True
            return True
        return False

    def keep(self, mapped: Sequence[Mapped]) -> None:
        """Keep what was mapped; in this thread only where the process is about to end."""
        start = time.monotonic()
        now, checks_plain, self._checks_plain = self._requested, self._checks_plain, False
        if self._requests is not None:
            self._requests.commit = False
        chunks = [chunk for chunk in mapped if len(chunk)]
        self._mapped += len(chunks[0]) if len(chunks) == 1 else len(_all_steps(chunks))
        if self._started:  # else the phase was short
            self._most = self._usual
            if chunks and not self._writer.failed:
                self._confirm()
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
        """Have mappers refer to what is written, in place of holding it in memory."""
        while self._writer.written:
            index, chunk, path = self._writer.written.popleft()
            place = self._run.places[index]
            with suppress(BadPartError):
                part = open_part(path, identity=place.generation.key, pickles=place.pickles, load=False, check=False)
                self._mappers[index].runs.exchange(chunk.blocks, part.on_disk(chunk.first))

    @contextmanager
    def saving_on_stop(self, requests: StopRequests) -> Iterator[None]:
        """Heed what is asked, from when all ranks do to the end of the map phase (collective)."""
        self._requests = requests
        requests.handled = True
        try:
            with self._run.files.watching():
                # SIGTERM ends a rank that has not come here at once, and with it all others, whatever they have mapped.
                self._comm.barrier()
                yield
        finally:
            requests.handled = False

    def exit_if_requested(self) -> None:
        """End this process if that is asked, once all that was given to `keep` is written."""
        if self._requests is not None and self._requests.ending:
            self.hurry()
            self._requests.exit_process()

    def hurry(self) -> None:
        """Have written what was given to `keep`, and all else that is to be written; from any thread."""
        self._writer.wait()
        self._hurry()

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
        """Wait until all is written; where the run `succeeded` and its pairs do not stay, write no more."""
        self._writer.close(drop=succeeded and not self._run.lasting)

    def _raise_time_up(self, mapped: int) -> NoReturn:
        reused, directory = self._run.plan.reused, self._run.directory.path
        done = f"time is up after {mapped + reused} of {len(self._frames)} frames"
        if self.reason:
            raise TimeUpError(f"{done}, and not all of them are kept in {directory}: {self.reason}")
        raise TimeUpError(f"{done}; they are kept in {directory}, and the same command goes on from there")


class _Writer:
    """Writes parts in a thread, one after another."""

    def __init__(self, places: Sequence[Place], frames: Selected, files: Mapping[str, str], patience: float) -> None:
        self.error: Exception | None = None
        self.written: deque[tuple[int, Mapped, Path]] = deque()  # what each analysis's mapper made, and its part
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
        """Why nothing more is kept."""
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
        """Wait until what was put is written."""
        if self._thread is not None:
            self._queue.join()

    def forget(self) -> None:
        """Hold nothing any more that is written."""
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
            except Exception as error:  # whatever it is, the run goes on
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
                table,
                numbers_at(self._frames, table.steps),
                BitMap64(numbers_at(self._frames, chunk.steps).astype(np.uint64)),
                identity=place.generation.key,
                pairs=chunk.pairs,
                combined=place.combined,
                pickles=place.pickles,
                home=place.home,
            )
            self.written.append((index, chunk, path))
            if not self._remembers:
                self.written.clear()


def _all_steps(mapped: Sequence[Mapped]) -> npt.NDArray[np.int64]:
    """Return the frames of any analysis, each once."""
    return np.unique(np.concatenate([np.empty(0, np.int64), *(chunk.steps for chunk in mapped)]))
