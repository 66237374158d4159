"""Reception of an engine's frames into this node's store: `ImdClient` starts the receiving program."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib.util import find_spec
from typing import Any

from himach.errors import TrajectoryError, UsageError
from himach.io.datasets.member import Member
from himach.io.datasets.request import FramesRequest
from himach.io.push.address import EngineAddress
from himach.io.store.sizes import parse_size
from himach.output.names import lasting_name
from himach.runner.live.frame_sources import FramesSoFar
from himach.runner.options import LiveOptions

BUFFER = 2 * 10**9  # bytes of unanalysed frames above which an engine is paused
#: Time limit for the program to store its frames and end.
END_SECONDS = 20.0


@dataclass(frozen=True)
class ReceiverOptions(LiveOptions):
    """Options of the receiver: those of the live run, with `dataset` and `buffer` set, the source and the store."""

    engine: str = ""  # its address (see `himach.io.push.address`)
    topology: str = ""
    keywords: Mapping[str, Any] = field(default_factory=dict)
    cache: str = "auto"  # the store, as in a job
    dataset: str = ""
    buffer: int = 0

    @classmethod
    def for_engine(
        cls,
        engine: EngineAddress,
        request: FramesRequest,
        live: LiveOptions,
        member: Member | None = None,
        engines: int = 1,
    ) -> ReceiverOptions:
        """Return the options for an engine; several `engines`, of members, share a buffer."""
        dataset = live.dataset or f"live-{engine.host}-{engine.port}-{time.strftime('%Y%m%d-%H%M%S')}"
        size = parse_size(live.buffer) if isinstance(live.buffer, str) else live.buffer
        topology = request.topology if member is None else member.topology
        fields = {
            **vars(live),
            "dataset": dataset if member is None else f"{dataset}-{lasting_name(member.name)}",
            "buffer": (size or BUFFER) // engines,
        }
        return cls(**fields, engine=str(engine), topology=str(topology), keywords=request.keywords, cache=request.cache)


def need_imdclient() -> None:
    """Raise UsageError if imdclient is not installed."""
    if find_spec("imdclient") is None:
        raise UsageError("frames of a running engine need imdclient: pip install 'himach[live]'")


class ImdClient:
    """A program that receives an engine's frames."""

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
        self._send(json.dumps(asdict(self._options)))

    def poll(self) -> FramesSoFar:
        """Return the state of the frames so far; raise the error that came before the first of them."""
        so_far = self._so_far
        if so_far.missing:
            raise UsageError(so_far.missing)
        if not so_far.frames and "error" in so_far.details:
            raise TrajectoryError(so_far.over)
        return so_far

    def analysed(self, frames: int) -> None:
        """Tell the program how many frames are analysed."""
        self._send(f"analysed {frames}")

    def stop(self) -> None:
        """Make the program leave the engine and store its frames; then `over` is set."""
        self._send("stop")

    def _send(self, line: str) -> None:
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
