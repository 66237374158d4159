"""Messages between a server and its clients, made by hand; see native/net/wire.h."""

import contextlib
import hmac
import secrets
import socket
import struct

OPEN, FRAME, FLUSH, READ, TAKE, RUNS, FETCH, SURVEY, STATUS, ANSWER = range(1, 11)
ANSWER_HEAD = struct.Struct("<iHH")


def message(verb, body=b"", *, size=None):
    return b"BdhW" + struct.pack("<HHII", 9, verb, len(body) if size is None else size, 0) + body


def question(verb, name=b"", first=0, last=0, kind=0):
    return message(verb, struct.pack("<QQII", first, last, kind, 0) + name)


def open_body(name=b"run", flags=1):
    return struct.pack("<I", flags) + name + b"\0\0"


def dial(stack, path, *parts):
    """Connect to a socket until the stack is left, and send parts."""
    raw = stack.enter_context(socket.socket(socket.AF_UNIX))
    raw.connect(path)
    for part in parts:
        raw.sendall(part)
    return raw


def talk(path, *parts, wait=10.0, may_break=False):
    """Send parts and return what comes back until the server closes, or breaks the connection if it may."""
    answer = b""
    broken = (BrokenPipeError, ConnectionResetError) if may_break else ()
    with contextlib.ExitStack() as stack:
        raw = dial(stack, path)
        raw.settimeout(wait)
        with contextlib.suppress(*broken):
            for part in parts:
                raw.sendall(part)
        with contextlib.suppress(*broken):
            while more := raw.recv(65536):
                answer += more
    return answer


# --- Sessions with a server of another machine ---

HEADER, TAG = 16, 16
GREETING, PROOF, REPLY = 40, 64, 36
_P = (1 << 130) - 5


def poly1305(key: bytes, data: bytes) -> bytes:
    """RFC 8439, word for word."""
    r = int.from_bytes(key[:16], "little") & 0x0FFFFFFC0FFFFFFC0FFFFFFC0FFFFFFF
    total = 0
    for at in range(0, len(data), 16):
        total = (total + int.from_bytes(data[at : at + 16] + b"\x01", "little")) * r % _P
    return ((total + int.from_bytes(key[16:], "little")) % (1 << 128)).to_bytes(16, "little")


def tag(session: bytes, side: bytes, number: int, data: bytes) -> bytes:
    """What goes behind a message, the `number`th that its `side` (c or s) sends."""
    return poly1305(hmac.digest(session, side + struct.pack("<Q", number), "sha256"), data)


def receive(raw: socket.socket, size: int) -> bytes:
    """Receive so many bytes; fewer only at the end."""
    data = b""
    while len(data) < size and (more := raw.recv(size - len(data))):
        data += more
    return data


class Session:
    def __init__(self, raw: socket.socket, key: bytes) -> None:
        self.raw = raw
        challenge = receive(raw, GREETING)[8:]
        mine = secrets.token_bytes(32)
        raw.sendall(mine + hmac.digest(key, b"client" + challenge + mine, "sha256"))
        assert receive(raw, REPLY)[:4] == bytes(4)
        self.key = hmac.digest(key, b"session" + challenge + mine, "sha256")
        self.sent = self.received = 0

    def sealed(self, data: bytes) -> bytes:
        self.sent += 1
        return data + tag(self.key, b"c", self.sent - 1, data)

    def send(self, data: bytes) -> None:
        self.raw.sendall(self.sealed(data))

    def receive(self) -> tuple[int, bytes]:
        """Status of the next answer, which must be the server's next, and what it brings; 0 and nothing at the end."""
        header = receive(self.raw, HEADER)
        if len(header) < HEADER:
            return 0, b""
        size = struct.unpack_from("<I", header, 8)[0]
        body = receive(self.raw, size)
        assert receive(self.raw, TAG) == tag(self.key, b"s", self.received, header + body)
        self.received += 1
        return ANSWER_HEAD.unpack_from(body)[0], body[ANSWER_HEAD.size :]


def connect(address: str, key: bytes) -> Session:
    host, port = address.rsplit(":", 1)
    return Session(socket.create_connection((host, int(port)), timeout=10), key)
