"""What a server was sent and may answer: `Model`; over one connection, with random messages: `Connection`."""

import array
import os
import random
import socket
import struct
import time
from collections import deque

from support.messages import (
    ANSWER,
    ANSWER_HEAD,
    FETCH,
    FLUSH,
    FRAME,
    OPEN,
    READ,
    RUNS,
    STOP,
    crc32c,
    message,
    open_body,
    question,
)

DATASETS = (b"a", b"b", b"c")
NUMBERS_OF_FRAMES = 40
NOTE = bytes(i * 7 % 256 for i in range(300_000))  # attached to every dataset


class WrongError(Exception):
    """The server did what it may not do."""


def frame_body(number: int, variant: int) -> bytes:
    """A frame of a number and a content; each has its size."""
    n_atoms = 1 + number % 7 + 40 * variant
    values = struct.pack(f"<{3 * n_atoms}f", *(number + variant * 0.37 + i * 1.13 for i in range(3 * n_atoms)))
    return struct.pack("<QdIBBH6f", number, float(number), n_atoms, 1, 0, 0, *[0.0] * 6) + values


BODIES = {(number, variant): frame_body(number, variant) for number in range(NUMBERS_OF_FRAMES) for variant in range(3)}
FRAMES = {key: message(FRAME, body) for key, body in BODIES.items()}


class Model:
    """What was sent and acknowledged."""

    def __init__(self) -> None:
        self.sent: dict[bytes, set[tuple[int, int]]] = {name: set() for name in DATASETS}
        self.kept: dict[bytes, dict[int, int]] = {name: {} for name in DATASETS}  # number: variant
        counted = ("connections", "messages", "broken", "acknowledged", "refused", "evicted", "starts")
        self.counts = dict.fromkeys(counted, 0)

    def held(self, name: bytes, asked: dict[int, int]) -> dict[int, int]:
        """Return what was held when something was asked, and is."""
        now = self.kept[name]
        return {number: variant for number, variant in asked.items() if now.get(number) == variant}

    def acknowledge(self, name: bytes, number: int, variant: int) -> None:
        if self.kept[name].setdefault(number, variant) != variant:
            raise WrongError(f"frame {number} of {name!r} was acknowledged with two contents")
        self.counts["acknowledged"] += 1


class Connection:
    """A connection, what was sent over it, and what is expected of it."""

    def __init__(self, path: str, model: Model, rng: random.Random, crowded: bool = False) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.socket.setblocking(False)
        self.model, self.rng = model, rng
        self.inbox, self.outbox = b"", b""
        self.expected: deque[tuple[int, object]] = deque()
        self.unacknowledged: dict[int, deque[int]] = {}
        self.pushed: set[tuple[int, int]] = set()  # where one of them is refused, so are those behind it
        self.name: bytes | None = None
        self.pushes = False
        self.token = bytes(16)
        self.wronged = False  # it was told something wrong, or another has its token
        self.seated = not crowded  # else there may be no room for it, until it was answered
        self.broken = False  # which answer belongs to which question is not known any more
        self.descriptors: list[int] = []
        self.since = self.born = time.monotonic()
        model.counts["connections"] += 1

    @property
    def may_end(self) -> bool:
        """Whether the server may close it."""
        return self.wronged or not self.seated

    @property
    def waits(self) -> bool:
        """Whether it is still to be answered."""
        return bool(self.outbox or self.expected or any(self.unacknowledged.values()))

    def close(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors = []
        self.socket.close()

    # What is sent

    def ask(self, verb: int, sent: bytes, check: object = None) -> None:
        if not self.expected:
            self.since = time.monotonic()
        self.outbox += sent
        self.expected.append((verb, check))
        self.model.counts["messages"] += 1

    def open(self, token: bytes) -> None:
        self.name, self.token = self.rng.choice(DATASETS), token
        self.pushes = self.rng.random() < 0.7
        flags = (1 if self.pushes else 0) | (2 if self.rng.random() < 0.2 else 0)
        if not self.pushes:
            self.wronged = True  # the dataset need not be there
        self.ask(OPEN, message(OPEN, open_body(self.name, flags, token)))

    def push(self) -> None:
        for _ in range(self.rng.choice((1, 1, 3, 20))):
            number = self.rng.randrange(NUMBERS_OF_FRAMES)
            variant = 0 if self.rng.random() < 0.97 else self.rng.randrange(3)
            self.outbox += FRAMES[number, variant]
            self.model.sent[self.name].add((number, variant))
            self.pushed.add((number, variant))
            self.unacknowledged.setdefault(number, deque()).append(variant)
            self.model.counts["messages"] += 1
        if self.rng.random() < 0.5:
            self.outbox += message(FLUSH)

    def read(self) -> None:
        numbers = [self.rng.randrange(NUMBERS_OF_FRAMES) for _ in range(self.rng.choice((1, 5, 50)))]
        kept = dict(self.model.kept[self.name])

        def check(body: bytes) -> None:
            count = len(body) // 32
            if not 1 <= count <= len(numbers):
                raise WrongError(f"{count} places for {len(numbers)} frames")
            still = self.model.held(self.name, kept)
            for number, at in zip(numbers, struct.iter_unpack("<QQQiI", body), strict=False):
                _, offset, length, descriptor, _ = at
                if number in still and not 0 <= descriptor < len(self.descriptors):
                    raise WrongError(f"no place for frame {number} of {self.name!r}, which was acknowledged")
                record = os.pread(self.descriptors[descriptor], length, offset) if descriptor >= 0 else b""
                if descriptor >= 0 and len(record) != length:
                    raise WrongError(f"the place of frame {number} of {self.name!r} lies beyond its segment")
                if number in still and BODIES[number, still[number]][48:] not in record:
                    raise WrongError(f"frame {number} of {self.name!r} is another than was acknowledged")
            if self.rng.random() < 0.99:
                self.outbox += message(READ)

        self.ask(READ, message(READ, struct.pack(f"<{len(numbers)}Q", *numbers)), check)

    def fetch(self) -> None:
        first = self.rng.randrange(len(NOTE) + 10)

        def check(body: bytes) -> None:
            (size,) = struct.unpack_from("<Q", body)
            if size != 2**64 - 1 and (size != len(NOTE) or not NOTE[first:].startswith(body[16:])):
                raise WrongError("the attachment is another")

        self.ask(FETCH, question(FETCH, b"note", first), check)

    def runs(self) -> None:
        first, count = self.rng.randrange(NUMBERS_OF_FRAMES), self.rng.randrange(1, 64)
        sent, kept = self.model.sent[self.name], dict(self.model.kept[self.name])

        def check(body: bytes) -> None:
            runs = struct.iter_unpack("<3Q", body)
            held = {number for start, step, n in runs for number in range(start, start + step * n, step)}
            asked = {number for number in self.model.held(self.name, kept) if first <= number < first + count}
            if not asked <= held <= {number for number, _ in sent if first <= number < first + count}:
                raise WrongError(f"RUNS says {held} of {count} frames from {first} on, of which {asked} are kept")

        self.ask(RUNS, question(RUNS, first=first, last=first + count - 1), check)

    def break_off(self) -> bool:
        """Send something broken; returns whether to close at once."""
        self.wronged = self.broken = True
        self.model.counts["broken"] += 1
        verb = self.rng.choice([verb for verb in range(14) if verb != STOP])  # which would be no mistake
        whole = self.rng.choice(list(FRAMES.values()))
        noise = self.rng.randbytes(self.rng.choice((1, 16, 500)))
        self.outbox += self.rng.choice(
            (
                noise,
                message(verb, noise),
                message(verb, bytes(self.rng.choice((0, 8, 16, 24, 4096)))),
                message(FRAME, size=self.rng.choice((60, 1 << 20, 1 << 30, 2**32 - 1)), crc=0) + noise,
                whole[: self.rng.randrange(1, len(whole))],
                whole[:12] + self.rng.randbytes(4) + whole[16:],
                message(FRAME, BODIES[0, 0][:16] + self.rng.randbytes(8) + BODIES[0, 0][24:]),
                message(OPEN, struct.pack("<I", 1) + noise),
                b"",
            )
        )
        return self.rng.random() < 0.6

    # What comes and goes

    def pump(self) -> bool:
        """Send and receive what can be now; False when the server has closed."""
        try:
            if self.outbox:
                self.outbox = self.outbox[self.socket.send(self.outbox[: self.rng.choice((1, 7, 1 << 16))]) :]
        except BlockingIOError:
            pass
        except OSError:
            self.outbox = b""
        try:
            while True:
                ancillary = socket.CMSG_SPACE(32 * array.array("i").itemsize)
                data, messages, _, _ = self.socket.recvmsg(1 << 16, ancillary)
                self.take_descriptors(messages)
                if not data:
                    return False
                self.inbox += data
                self.take_messages()
        except BlockingIOError:
            return True
        except OSError:
            return False

    def take_descriptors(self, messages: list[tuple[int, int, bytes]]) -> None:
        for _, _, data in messages:
            found = array.array("i")
            found.frombytes(data[: len(data) - len(data) % found.itemsize])
            for descriptor in self.descriptors:
                os.close(descriptor)
            self.descriptors = list(found)

    def take_messages(self) -> None:
        while len(self.inbox) >= 16:
            _, _, verb, size, crc = struct.unpack_from("<4sHHII", self.inbox)
            if len(self.inbox) < 16 + size:
                return
            body, self.inbox = self.inbox[16 : 16 + size], self.inbox[16 + size :]
            if crc != crc32c(body) or verb != ANSWER:
                raise WrongError("a message of the server that is none")
            self.take(*ANSWER_HEAD.unpack_from(body), body[ANSWER_HEAD.size :])

    def take(self, status: int, verb: int, count: int, body: bytes) -> None:
        self.since = time.monotonic()
        if status < 0:
            if not self.may_end:
                raise WrongError(f"an error for nothing: {body!r}")
            self.expected.clear()
        elif verb == FRAME:
            for number, stored, _ in struct.iter_unpack("<QiI", body[: 16 * count]):
                self.take_ack(number, stored)
        elif not self.expected or self.expected[0][0] != verb:
            if not self.may_end:
                raise WrongError(f"an answer to {verb} where {list(self.expected)[:1]} was expected")
        else:
            self.seated = True
            _, check = self.expected.popleft()
            if check is not None and not self.broken:
                check(body)

    def take_ack(self, number: int, status: int) -> None:
        waiting = self.unacknowledged.get(number)
        if not waiting:
            if self.may_end:
                return
            raise WrongError(f"an acknowledgement of frame {number}, which does not wait for one")
        variant = waiting.popleft()
        if status >= 0:
            self.model.acknowledge(self.name, number, variant)
            return
        self.model.counts["refused"] += 1
        self.wronged = True
        others = {sent for sent, _ in self.model.sent[self.name] - self.pushed}
        if not others & {sent for sent, _ in self.pushed} and len(dict(self.pushed)) == len(self.pushed):
            raise WrongError(f"frame {number} was refused ({status}), though nobody sent another one")
