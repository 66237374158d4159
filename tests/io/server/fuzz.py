"""A fuzzer of the running server: whatever hostile clients send, an honest one keeps its frames and reads them.

``python tests/io/server/fuzz.py SERVER [SECONDS [SEED]]``: SERVER is ``native/served_fuzz`` of a build of the C tests
(``meson setup BUILD -Dnative_tests=true -Db_sanitize=address,undefined``, or ``thread``). Hostile clients send valid,
half-valid and broken messages over many connections (more than the server takes, now and then) and break off at any
byte, while datasets are evicted beside the server, and it is ended, killed and started again on the same store.
"""

import contextlib
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))
from support.cache_data import frame_of
from support.messages import FETCH, FLUSH, FRAME, OPEN, READ, RUNS, STATUS, SURVEY, message, open_body, question

import himach
from himach.io.server.client import Client
from himach.io.store.store import Store, StoreBusyError, StoreError

DATASETS = ("a", "b", "c")
NUMBERS = 40
NOTE = bytes(i * 7 % 256 for i in range(300_000))  # attached to every dataset
MOST_CONNECTIONS = 24
FEW_CONNECTIONS = 12  # of some servers
PATIENCE = 60.0  # seconds for an answer, under a sanitizer and beside other work


def frame_message(number: int, variant: int) -> bytes:
    """A frame of a number and a content; each has its size."""
    n_atoms = 1 + number % 7 + 40 * variant
    values = struct.pack(f"<{3 * n_atoms}f", *(number + variant * 0.37 + i * 1.13 for i in range(3 * n_atoms)))
    return message(FRAME, struct.pack("<QdIBBH6f", number, float(number), n_atoms, 1, 0, 0, *[0.0] * 6) + values)


FRAMES = [frame_message(number, variant) for number in range(NUMBERS) for variant in (*[0] * 30, 1, 2)]


class Hostile:
    """A connection, and what it has still to send."""

    def __init__(self, path: str, rng: random.Random) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.socket.setblocking(False)
        self.rng = rng
        self.outbox = b""
        if rng.random() < 0.9:
            flags = (rng.random() < 0.7) | 2 * (rng.random() < 0.2)
            self.outbox = message(OPEN, open_body(rng.choice(DATASETS).encode(), flags))

    def speak(self) -> None:
        rng = self.rng
        draw = rng.random()
        if draw < 0.02:
            self.outbox += self.broken()
        elif draw < 0.5:
            self.outbox += b"".join(rng.choices(FRAMES, k=rng.choice((1, 1, 3, 20))))
            self.outbox += message(FLUSH) * rng.randrange(2)
        else:
            numbers = rng.choices(range(NUMBERS), k=rng.choice((0, 1, 5, 50)))
            first = rng.randrange(len(NOTE) + 10)
            self.outbox += rng.choice(
                (
                    message(READ, struct.pack(f"<{len(numbers)}Q", *numbers)),
                    question(FETCH, b"note", first),
                    question(RUNS, first=first % NUMBERS, last=first),
                    message(SURVEY),
                    message(STATUS),
                )
            )

    def broken(self) -> bytes:
        rng = self.rng
        verb = rng.randrange(13)
        whole, noise = rng.choice(FRAMES), rng.randbytes(rng.choice((1, 16, 500)))
        return rng.choice(
            (
                noise,
                message(verb, noise),
                message(verb, bytes(rng.choice((0, 8, 16, 24, 4096)))),
                message(FRAME, size=rng.choice((60, 1 << 20, 1 << 30, 2**32 - 1))) + noise,
                whole[: rng.randrange(1, len(whole))],
                whole[:12] + rng.randbytes(4) + whole[16:],
                message(FRAME, whole[16:32] + rng.randbytes(8) + whole[40:]),
                message(OPEN, struct.pack("<I", 1) + noise),
            )
        )

    def pump(self) -> bool:
        """Send and receive what can be now; False when the server has closed."""
        try:
            if self.outbox:
                self.outbox = self.outbox[self.socket.send(self.outbox[: self.rng.choice((1, 7, 1 << 16))]) :]
            while self.socket.recv(1 << 16):
                pass
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False


class Fuzzer:
    def __init__(self, program: str, place: Path, seed: int) -> None:
        self.program, self.place, self.log = program, place, place / "log"
        self.rng = random.Random(seed)
        self.hostile: list[Hostile] = []
        self.pushed = self.starts = self.messages = 0
        for name in DATASETS:
            with Store(place / "store").dataset(name, b"") as dataset:
                dataset.attach("note", NOTE)
        self.start()

    def start(self) -> None:
        self.path = str(self.place / f"socket{self.starts}")
        self.starts += 1
        self.crowded = self.rng.random() < 0.4
        slots = str(FEW_CONNECTIONS if self.crowded else 512)
        command = [self.program, str(self.place / "store"), self.path, str(self.rng.randrange(2)), slots]
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(command, stderr=log)
        deadline = time.monotonic() + PATIENCE
        with socket.socket(socket.AF_UNIX) as probe:  # its file is there a moment before it listens
            while probe.connect_ex(self.path) and self.process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.02)

    def stop(self, how: int) -> None:
        self.drop_all()
        self.process.send_signal(how)
        if self.process.wait(2 * PATIENCE) != (0 if how == signal.SIGTERM else -how):
            raise AssertionError(f"the server ended with {self.process.returncode}")

    def drop_all(self) -> None:
        for connection in self.hostile:
            connection.socket.close()
        self.hostile = []

    def step(self) -> None:
        draw = self.rng.random()
        if draw < 0.0006:
            self.stop(self.rng.choice((signal.SIGTERM, signal.SIGKILL)))
            self.start()
        elif draw < 0.001:
            self.serve_honest()
        elif draw < 0.005:
            self.evict(self.rng.choice(DATASETS))
        elif draw < 0.08 and len(self.hostile) < MOST_CONNECTIONS:
            self.hostile.append(Hostile(self.path, self.rng))
        elif self.hostile:
            connection = self.rng.choice(self.hostile)
            if draw > 0.99 or len(connection.outbox) > 1 << 16:
                connection.socket.close()
                self.hostile.remove(connection)
            else:
                connection.speak()
                self.messages += 1
        for connection in self.hostile[:]:
            if not connection.pump():
                connection.socket.close()
                self.hostile.remove(connection)

    def evict(self, name: str) -> None:
        """Delete what a dataset has and nobody is at, as ``himach cache evict`` does beside a server."""
        dataset = Store(self.place / "store").dataset(name, b"")
        for segment in dataset.segments():
            with contextlib.suppress(StoreBusyError):
                dataset.evict(segment["id"])

    def serve_honest(self) -> None:
        """Push some frames, and read all that were pushed so far; both must go well beside all that is hostile."""
        if self.crowded:
            self.drop_all()
            self.wait_until_alone()
        with himach.Writer("honest", 100, servers=[self.path], first=self.pushed, timeout=PATIENCE) as writer:
            for number in range(self.pushed, self.pushed + 20):
                writer.push(frame_of(number), time=number)
        self.pushed += 20
        with Client(self.path, os.geteuid(), PATIENCE) as client:
            for number, frame in enumerate(client.open("honest").read(range(self.pushed))):
                if frame is None or not np.array_equal(frame.positions, frame_of(number)):
                    raise AssertionError(f"frame {number} was acknowledged, and is another one or away")

    def wait_until_alone(self) -> None:
        """Wait until the server has closed all other connections; before, it may have no place for this one."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            with contextlib.suppress(StoreError), Client(self.path, os.geteuid(), PATIENCE) as client:
                if client.counters()["connections"] == 1:
                    return
        raise AssertionError("the server keeps connections that their clients have closed")

    def run(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.step()
            if self.process.poll() is not None:
                raise AssertionError(f"the server ended by itself with {self.process.returncode}")
        self.stop(signal.SIGKILL)
        self.start()
        self.serve_honest()
        self.stop(signal.SIGTERM)


def main() -> int:
    program, seconds = sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 30.0
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else random.SystemRandom().randrange(1 << 32)
    os.environ.setdefault("TSAN_OPTIONS", "halt_on_error=1:exitcode=66")
    os.environ.setdefault("ASAN_OPTIONS", "exitcode=66")
    os.environ.setdefault("UBSAN_OPTIONS", "halt_on_error=1:print_stacktrace=1")
    with tempfile.TemporaryDirectory(prefix="himach-fuzz-") as folder:
        fuzzer = Fuzzer(os.path.abspath(program), Path(folder), seed)
        try:
            fuzzer.run(seconds)
        except (AssertionError, himach.HimachError, OSError) as wrong:  # nobody to connect to: it has ended
            fuzzer.process.kill()
            fuzzer.process.wait()
            sys.stderr.write(f"{fuzzer.log.read_text(errors='replace')[-8000:]}\nseed {seed}: {wrong}\n")
            return 1
        print(f"seed {seed}: {fuzzer.messages} messages, {fuzzer.starts} starts, {fuzzer.pushed} frames kept")
    return 0


if __name__ == "__main__":
    sys.exit(main())
