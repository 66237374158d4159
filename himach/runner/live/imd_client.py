"""Engines that a live run follows: `EngineFeed` starts a receiving program for each, an `ImdClient`, and polls them."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from himach.errors import HimachError, TrajectoryError, UsageError
from himach.io.datasets.member import Member, read_members
from himach.io.datasets.request import FramesRequest
from himach.io.push.address import EngineAddress
from himach.io.store.sizes import parse_size
from himach.output.names import lasting_name
from himach.runner.live.frame_sources import Feed, FramesSoFar
from himach.runner.options import LiveOptions

BUFFER = 2 * 10**9  # bytes of unanalysed frames above which an engine is paused
#: Time limit for the program to store its frames and end.
END_SECONDS = 20.0


def find_engines(request: FramesRequest) -> dict[str, tuple[EngineAddress, FramesRequest | Member]]:
    """Return the engines of the members of an ensemble by name; of a run without an ensemble by the name "".

    Raises
    ------
    UsageError
        If an engine lacks a topology, or stands beside other trajectories.
    """
    sources: dict[str, FramesRequest | Member] = {"": request}
    if request.ensemble is not None:
        sources = {member.name: member for member in read_members(request.ensemble, request.topology)}
    engines = {}
    for name, source in sources.items():
        engine = next(filter(None, map(EngineAddress.parse, source.trajectories)), None)
        if engine is None:
            continue
        engines[name] = engine, source
        label, topology = (f"member {name}: ", "") if name else ("", " (--topology)")
        if len(source.trajectories) > 1:
            raise UsageError(f"{label}{engine} is followed by no other trajectory, and follows none")
        if source.topology is None:
            raise UsageError(f"{label}{engine} tells positions alone: name a topology file, too{topology}")
    return engines


@dataclass(frozen=True)
class ReceiverOptions(LiveOptions):
    """Options of the receiver: those of the live run, with `dataset` and `buffer` set, the source and the store."""

    engine: str = ""  # its address (see `himach.io.push.address`)
    topology: str = ""
    keywords: Mapping[str, Any] = field(default_factory=dict)
    cache: str = "auto"  # the store, as in a job
    dataset: str = ""
    buffer: int = 0


class ImdClient:
    """A program that receives an engine's frames into this node's store."""

    def __init__(self, options: ReceiverOptions) -> None:
        self._so_far = FramesSoFar()
        # In its own session the program does not get the terminal's Ctrl-C. It ends when its input does.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "himach.runner.live.receiver"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, name="himach-reception", daemon=True)
        self._reader.start()
        self._options = options

    def start(self) -> None:
        """Connect the program to the engine, which waits until then."""
        self.send(json.dumps(asdict(self._options)))

    def poll(self) -> FramesSoFar:
        """Return the state of the frames so far; raise the error that came before the first of them."""
        so_far = self._so_far
        if so_far.missing:
            raise UsageError(so_far.missing)
        if not so_far.frames and "error" in so_far.details:
            raise TrajectoryError(so_far.over)
        return so_far

    def send(self, line: str) -> None:
        """Send a command: ``analysed N`` of N frames, or ``stop`` to leave the engine and store its frames."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):  # it has ended, as its last report says
            self._process.stdin.write(line + "\n")

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._so_far = FramesSoFar(**json.loads(line))
        if not self._so_far.over:
            self._process.wait()
            message = f"what received the frames died (exit code {self._process.returncode})"
            self._so_far = replace(self._so_far, over=message, details={**self._so_far.details, "error": message})

    def close(self) -> None:
        """End the program; received frames are kept."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(END_SECONDS)
        except BaseException as error:
            self._process.kill()
            self._process.wait()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
        self._reader.join()


class EngineFeed(Feed):
    """The engine of a run, or those among the members of its ensemble."""

    def __init__(self, request: FramesRequest, live: LiveOptions) -> None:
        engines = find_engines(request)
        size = parse_size(live.buffer) if isinstance(live.buffer, str) else live.buffer
        self._clients: dict[str, ImdClient] = {}
        self._errors: dict[str, HimachError] = {}
        self._counts: Mapping[str, int] = {}  # frames at the last poll
        for name, (engine, source) in engines.items():
            dataset = live.dataset or f"live-{engine.host}-{engine.port}-{time.strftime('%Y%m%d-%H%M%S')}"
            fields = {
                **vars(live),
                "dataset": f"{dataset}-{lasting_name(name)}" if name else dataset,
                "buffer": (size or BUFFER) // len(engines),
                "engine": str(engine),
                "topology": str(source.topology),
            }
            options = ReceiverOptions(**fields, keywords=request.keywords, cache=request.cache)
            self._clients[name] = ImdClient(options)

    def start(self) -> None:
        """Connect all programs to their engines."""
        for client in self._clients.values():
            client.start()

    def poll(self) -> FramesSoFar:
        """Return the state of the frames in total and by member; raise an error if all engines failed."""
        states = {}
        for name, client in self._clients.items():
            try:
                states[name] = client.poll()
            except HimachError as error:  # it concerns only this member
                self._errors[name] = error
                states[name] = FramesSoFar(over=str(error), details={"error": str(error)})
        if len(self._errors) == len(self._clients):
            raise next(iter(self._errors.values()))
        self._counts = {name: state.frames for name, state in states.items()}
        if "" in states:
            return states[""]
        reasons = [state.over for state in states.values()]
        return FramesSoFar(
            sum(self._counts.values()),
            any(state.late for state in states.values()),
            "; ".join(dict.fromkeys(reasons)) if all(reasons) else "",
            details={"members": {name: state.details for name, state in states.items()}},
            members=self._counts,
        )

    def analysed(self, frames: int) -> None:
        """Tell each program that its frames before `frames`, of members those of the last poll, are analysed."""
        for name, client in self._clients.items():
            client.send(f"analysed {self._counts.get(name, 0) if name else frames}")

    def stop(self) -> None:
        """Make the programs leave the engines and store their frames; then `over` is set."""
        for client in self._clients.values():
            client.send("stop")

    def close(self) -> None:
        """End the programs; received frames are kept."""
        for client in self._clients.values():
            client.close()
