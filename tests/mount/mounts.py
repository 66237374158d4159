"""Mounts of the tests: `himach mount` as a process of its own, and datasets to show."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from support import needs
from support.commands import wait_until
from support.ranks import clean_environment

from himach.errors import TrajectoryError
from himach.frame import RawFrame
from himach.io.trajectories.layouts import FileLayout

PATIENCE = 120.0  # seconds; the machine may be busy


def sample_frames(
    n_frames: int, n_atoms: int, *, velocities: bool = False, forces: bool = False, box: bool = True, first: float = 0.0
) -> list[RawFrame]:
    """Frames of random content, every 2 ps, in boxes that are not alike."""
    random = np.random.default_rng(n_frames * n_atoms)

    def vectors(size: float) -> np.ndarray:
        return random.normal(0, size, (n_atoms, 3)).astype(np.float32)

    return [
        RawFrame(
            number,
            first + 2.0 * number,
            vectors(50),
            np.array([60 + number, 61, 62, 80, 85, 95 + number], np.float32) if box else None,
            vectors(1) if velocities else None,
            vectors(300) if forces else None,
        )
        for number in range(n_frames)
    ]


def whole(layout: FileLayout, frames: list[RawFrame]) -> bytes:
    """All bytes of a file."""
    between = frames[1].time - frames[0].time if len(frames) > 1 else 0.0
    into = np.zeros(layout.frame_bytes * len(frames), np.uint8)
    for place, frame in enumerate(frames):
        layout.put(frame, into, place * layout.frame_bytes)
    content = layout.head(frames[0].time, between) + into.tobytes()
    assert len(content) == layout.size
    return content


class ListedFrames:
    """Frames of a list; some of them may be missing, or nobody may get on."""

    def __init__(self, frames: list[RawFrame]) -> None:
        self.frames = frames
        self.missing = set()
        self.opened = self.closed = self.begun = self.read_so_far = 0
        self.away = False
        self.go_on = threading.Event()
        self.go_on.set()

    def open(self, facts: object = None):
        if self.away:
            raise TrajectoryError("it is away")
        self.opened += 1
        return self

    def stamps(self):
        return self.frames[0].time, 2.0

    def frame(self, number):
        self.begun += 1
        self.go_on.wait()
        if number in self.missing:
            raise TrajectoryError(f"frame {number} is missing")
        self.read_so_far += 1
        return self.frames[number]

    def close(self):
        self.closed += 1


class Mounted:
    """A mounted folder and the process that serves it; `log` is what that has said so far."""

    def __init__(self, path: Path, process: subprocess.Popen[str]) -> None:
        self.path = path
        self.process = process
        self.log: list[str] = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self.process.stderr:
            with self._changed:
                self.log.append(line)
                self._changed.notify_all()
        with self._changed:
            self.log.append("")
            self._changed.notify_all()

    def says(self, text: str) -> bool:
        """Wait until it has said this; False if it ended before."""
        with self._changed:
            self._changed.wait_for(lambda: self.log[-1:] == [""] or any(text in item for item in self.log), PATIENCE)
            return any(text in item for item in self.log)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal; return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)


@contextlib.contextmanager
def mounted(path: Path, *words: object, command: tuple[str, ...] = ("-m", "himach", "mount")) -> Iterator[Mounted]:
    """``himach mount``, or another program that mounts."""
    needs.fuse()
    process = subprocess.Popen(
        [sys.executable, "-P", *command, str(path), *map(str, words)], stderr=subprocess.PIPE, text=True,
        env=clean_environment(), stdin=subprocess.DEVNULL,
    )  # fmt: skip
    folder = Mounted(path, process)
    try:
        if not folder.says("is mounted"):
            message = "".join(folder.log)
            if "cannot be mounted" in message:
                needs.skip("the right to mount a FUSE file system")
            raise AssertionError(message)
        yield folder
    finally:
        process.kill()
        process.wait(PATIENCE)
        subprocess.run(["umount", "--lazy", str(path)], check=False, capture_output=True)


def is_mount(path: Path) -> bool:
    with open("/proc/self/mounts", encoding="utf-8") as mounts:
        return any(line.split()[1] == os.fspath(path) for line in mounts)


def until(condition, what: str) -> None:
    """Wait until a condition holds."""
    assert wait_until(condition, PATIENCE), f"never: {what}"
