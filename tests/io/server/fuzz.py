"""A fuzzer of the running server that knows what it may answer.

``python tests/io/server/fuzz.py SERVER [SECONDS [SEED]]``: SERVER is ``native/served_fuzz`` of a build of the C tests
(``meson setup BUILD -Dnative_tests=true -Db_sanitize=address,undefined``, or ``thread``). Any number of seconds, hours
too; CI gives it half a minute a sanitizer. It sends random sequences of valid, half-valid and broken messages over many
connections (more than the server takes, now and then), breaks off at any byte, evicts datasets beside the server, ends
and kills it and starts it again on the same store, and compares every answer with a model of what was sent and
acknowledged. It ends with 1 and says what was wrong, with the seed.
"""

import fcntl
import os
import random
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from fuzz_model import DATASETS, NOTE, Connection, Model, WrongError
from support.messages import OPEN, message, open_body

MOST_CONNECTIONS = 24
FEW_CONNECTIONS = 12  # of some servers: who said nothing yet makes way for others
F_OFD_SETLK = 37  # of Linux
PATIENCE = 60.0  # seconds for an answer, under a sanitizer and beside other work


def _evict(segment: Path) -> bool:
    """Delete a segment and its index unless a writer or reader holds it; returns whether it was deleted."""
    with open(segment, "r+b") as opened:
        try:
            for byte in (0, 1):  # as in enum lock_byte of native/base/io.h
                lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
                fcntl.fcntl(opened, F_OFD_SETLK, lock)
        except OSError:
            return False
        segment.unlink()
        segment.with_suffix(".idx").unlink(missing_ok=True)
        return True


class Fuzzer:
    """The server, its connections, and what happens next."""

    def __init__(self, program: str, place: Path, seed: int) -> None:
        self.program, self.place = program, place
        self.rng = random.Random(seed)
        self.model = Model()
        self.connections: list[Connection] = []
        self.tokens = [self.rng.randbytes(16) for _ in range(4)]
        self.log = place / "log"
        self.start()

    def start(self) -> None:
        self.path = str(self.place / f"socket{self.model.counts['starts']}")
        self.model.counts["starts"] += 1
        self.turns = self.rng.random() < 0.4
        self.crowded = self.rng.random() < 0.4
        slots = str(FEW_CONNECTIONS if self.crowded else 512)
        command = [self.program, str(self.place / "store"), self.path, str(int(self.turns)), slots]
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(command, stderr=log)
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                with socket.socket(socket.AF_UNIX) as raw:
                    raw.connect(self.path)
                return
            except OSError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise WrongError("the server does not start") from None
                time.sleep(0.02)

    def stop(self, how: int) -> None:
        """End the server; what it sent before counts."""
        for connection in self.connections:
            connection.wronged = True
        self.process.send_signal(how)
        code = self.process.wait(2 * PATIENCE)
        for connection in self.connections:
            connection.pump()
            connection.close()
        self.connections = []
        if how == signal.SIGTERM and code != 0:
            raise WrongError(f"the server ended with {code}")

    def step(self) -> None:
        draw = self.rng.random()
        if draw < 0.0006:
            how = self.rng.choice((signal.SIGTERM, signal.SIGKILL))
            if how == signal.SIGTERM and self.turns:
                self.settle()
            self.stop(how)
            self.start()
        elif draw < 0.08 and len(self.connections) < MOST_CONNECTIONS:
            self.connections.append(Connection(self.path, self.model, self.rng, self.crowded))
        elif draw < 0.085:
            self.evict(self.rng.choice(DATASETS))
        elif self.connections:
            self.act(self.rng.choice(self.connections))
        self.attach()
        ready = {one.socket for one in self.connections if one.outbox}
        found, _, _ = select.select([one.socket for one in self.connections], [], [], 0)
        for connection in list(self.connections):
            if connection.socket in ready or connection.socket in found:
                self.pump(connection)

    def act(self, connection: Connection) -> None:
        draw = self.rng.random()
        if len(connection.outbox) > 1 << 16 or (connection.may_end and draw < 0.3):
            self.drop(connection)
        elif draw < 0.02:
            if connection.break_off():
                self.pump(connection)
                self.drop(connection)
        elif draw < 0.03:
            self.drop(connection)
        elif connection.name is None:
            token = self.rng.choice([*self.tokens, *[bytes(16)] * 8])
            for other in self.connections:
                if other is not connection and token != bytes(16) and other.token == token:
                    other.wronged = connection.wronged = True  # whichever comes first
            connection.open(token)
        elif len(connection.expected) < 5:
            anybodys = [connection.read, connection.fetch, connection.runs]
            pushers = [connection.push] * 5
            self.rng.choice(anybodys + (pushers if connection.pushes else []))()

    def attach(self) -> None:
        for directory in (self.place / "store").glob("????????????????-*"):
            if not (directory / "x-note").exists():
                written = self.place / "note"
                written.write_bytes(NOTE)
                written.chmod(0o600)
                written.rename(directory / "x-note")

    def evict(self, name: bytes) -> None:
        """Delete what a dataset has and nobody is at, as ``himach cache evict`` does beside a server.

        Only where no acknowledgement is on its way: which came first would not be known.
        """
        if any(one.name == name and (one.waits or one.broken) for one in self.connections):
            return
        for directory in (self.place / "store").glob("????????????????-*"):
            meta = directory / "meta"
            if meta.exists() and meta.read_bytes().endswith(name):
                self.model.kept[name].clear()
                self.model.counts["evicted"] += sum(map(_evict, directory.glob("*.seg")))

    def pump(self, connection: Connection) -> None:
        if connection in self.connections and not connection.pump():
            if not connection.may_end:
                age = f"{time.monotonic() - connection.born:.1f} s, {time.monotonic() - connection.since:.1f} s"
                doing = f"{connection.name!r}, {list(connection.expected)[:2]}, {connection.outbox[:40]!r}, {age}"
                raise WrongError(f"the server closed a connection that had done nothing wrong: {doing}")
            self.drop(connection)

    def drop(self, connection: Connection) -> None:
        if connection in self.connections:
            if connection.token in self.tokens and connection.waits:
                # What the server has not read yet may be an OPEN, which ends a later connection of this token.
                self.tokens[self.tokens.index(connection.token)] = self.rng.randbytes(16)
            self.connections.remove(connection)
            connection.close()

    def check(self) -> None:
        """Look for a server that died, or does not answer."""
        if self.process.poll() is not None:
            raise WrongError(f"the server ended by itself with {self.process.returncode}")
        for connection in self.connections:
            late = connection.expected and time.monotonic() - connection.since > PATIENCE
            if late and not connection.may_end and not connection.outbox:
                raise WrongError(f"no answer for {PATIENCE:.0f} s; expected: {connection.expected[0][0]}")

    def run(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        steps = 0
        while time.monotonic() < end:
            self.step()
            steps += 1
            if steps % 50 == 0:
                self.check()
        self.finish()

    def settle(self) -> None:
        """Wait until all that was asked is answered: who holds a turn without a word loses it after seconds."""
        deadline = time.monotonic() + PATIENCE
        waiting = self.connections
        while waiting and time.monotonic() < deadline:
            for connection in waiting:
                self.pump(connection)
            waiting = [one for one in self.connections if one.waits and not one.may_end]
            time.sleep(0.001)
            self.check()
        if waiting:
            one = waiting[0]
            pushed = [number for number, sent in one.unacknowledged.items() if sent]
            left = f"{list(one.expected)[:1]}, {pushed}, {one.outbox[:40]!r}"
            raise WrongError(f"no answer, though nobody asks more; left: {left}")

    def finish(self) -> None:
        """Have all answered, kill the server; then all that was acknowledged must be there, as it was sent."""
        self.settle()
        self.stop(signal.SIGKILL)
        self.start()
        while self.crowded:
            self.stop(signal.SIGTERM)
            self.start()
        for name in DATASETS:
            connection = Connection(self.path, self.model, self.rng)
            self.connections.append(connection)
            connection.name, connection.pushes = name, True
            connection.ask(OPEN, message(OPEN, open_body(name)))
            for _ in range(5):
                connection.read()
                connection.runs()
            deadline = time.monotonic() + PATIENCE
            while connection.expected and time.monotonic() < deadline:
                self.pump(connection)
                time.sleep(0.001)
            if connection.expected:
                raise WrongError("no answer at the end")
        self.stop(signal.SIGTERM)


def main() -> int:
    """Run the fuzzer as the command line says; see the top."""
    program, seconds = sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 30.0
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else random.SystemRandom().randrange(1 << 32)
    os.environ.setdefault("TSAN_OPTIONS", "halt_on_error=1:exitcode=66")
    os.environ.setdefault("ASAN_OPTIONS", "exitcode=66")
    os.environ.setdefault("UBSAN_OPTIONS", "halt_on_error=1:print_stacktrace=1")
    with tempfile.TemporaryDirectory(prefix="himach-fuzz-") as folder:
        fuzzer = Fuzzer(os.path.abspath(program), Path(folder), seed)
        try:
            fuzzer.run(seconds)
        except (WrongError, OSError) as wrong:  # nobody to connect to: it has ended
            fuzzer.process.kill()
            fuzzer.process.wait()
            sys.stderr.write(f"{fuzzer.log.read_text(errors='replace')[-8000:]}\nseed {seed}: {wrong}\n")
            return 1
        print(f"seed {seed}:", ", ".join(f"{count} {what}" for what, count in fuzzer.model.counts.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
