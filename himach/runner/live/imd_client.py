"""An engine's frames on their way into this node's store: `ImdClient`, the side of the run.

The frames are received by a program of its own (`himach.runner.live.receiver`), which no analysis holds up. It is told
and tells lines of JSON.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from typing import Any

from himach.errors import HimachError, TrajectoryError, UsageError
from himach.opening.options import LiveOptions

__all__ = ["ImdClient", "ReceiverOptions", "ReceiverStatus", "need_imdclient"]

#: Seconds that the program may take to keep what it has, and to end.
END_SECONDS = 20.0


@dataclass(frozen=True)
class ReceiverOptions(LiveOptions):
    """What to receive, and where to keep it: what a live run is asked, of which `dataset` and `buffer` are known.

    Attributes
    ----------
    engine
        Its address (see `himach.io.push.address`).
    topology, keywords
        Of its atoms, for MDAnalysis.
    cache
        The store, as a job has it.
    """

    engine: str = ""
    topology: str = ""
    keywords: Mapping[str, Any] = field(default_factory=dict)
    cache: str = "auto"
    dataset: str = ""
    buffer: int = 0


@dataclass
class ReceiverStatus:
    """What has become of it so far.

    Attributes
    ----------
    frames
        One more than the number of the last frame that can be read.
    late
        Whether the analysis is behind by more than the buffer.
    left_out
        Frames that were not kept because of that.
    pauses, paused
        How often the engine was paused, and for how many seconds.
    over
        Why no more will come; "" as long as they may.
    error
        What failed, if something did; `usage` where it is for the user to mend, `begun` where frames had come.
    """

    frames: int = 0
    late: bool = False
    left_out: int = 0
    pauses: int = 0
    paused: float = 0.0
    over: str = ""
    error: str = ""
    usage: bool = False
    warnings: list[str] = field(default_factory=list)

    def line(self) -> str:
        """Return it as a line."""
        return json.dumps(asdict(self)) + "\n"


def need_imdclient() -> None:
    """Refuse to go on where imdclient is not installed."""
    if find_spec("imdclient") is None:
        raise UsageError("frames of a running engine need imdclient: pip install 'himach[live]'")


class ImdClient:
    """A program that receives an engine's frames; a context manager, which leaves no program behind.

    Parameters
    ----------
    order
        What it receives.
    """

    def __init__(self, order: ReceiverOptions) -> None:
        self._report = ReceiverStatus()
        # A session of its own keeps the terminal's Ctrl-C for this process. It ends when its input does.
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
        self._order = order

    def begin(self) -> None:
        """Have it connect to the engine, which waits until then."""
        self._tell(json.dumps(asdict(self._order)))

    def look(self) -> ReceiverStatus:
        """Return what has become of it so far.

        Raises
        ------
        UsageError, TrajectoryError
            If nothing came of it: the engine, the topology or the store cannot be used.
        """
        report = self._report
        if report.error and not report.frames:
            kind: type[HimachError] = UsageError if report.usage else TrajectoryError
            raise kind(report.error)
        return report

    def analysed(self, frames: int) -> None:
        """Say up to which frame the analysis has come."""
        self._tell(f"analysed {frames}")

    def stop(self) -> None:
        """Have it leave the engine and keep what has come; then the report is over."""
        self._tell("stop")

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):  # it has ended, as its last report says
            self._process.stdin.write(line + "\n")

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._report = ReceiverStatus(**json.loads(line))
        if not self._report.over:
            self._process.wait()
            died = f"what received the frames died (exit code {self._process.returncode})"
            self._report = ReceiverStatus(**{**asdict(self._report), "over": died, "error": died})

    def __enter__(self) -> ImdClient:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the program; what it has received is kept."""
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


def name_for(host: str, port: int) -> str:
    """Return a name for frames that the user gave none."""
    return f"live-{host}-{port}-{time.strftime('%Y%m%d-%H%M%S')}"
