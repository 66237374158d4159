"""Engines that speak IMDv3: a made-up one in a thread, whose streams can be odd, and LAMMPS."""

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import MDAnalysis as mda
import numpy as np
from support import needs
from support.ranks import clean_environment

N_ATOMS = 20


def made_up(n_frames: int, n_atoms: int = N_ATOMS, *, velocities: bool = True, triclinic: bool = True) -> mda.Universe:
    random = np.random.default_rng(5)
    box = [30, 31, 32, 70, 80, 95] if triclinic else [30, 31, 32, 90, 90, 90]
    universe = mda.Universe.empty(n_atoms, trajectory=True, velocities=velocities)
    universe.load_new(
        random.uniform(0, 30, (n_frames, n_atoms, 3)).astype(np.float32),
        dimensions=np.tile(np.array(box, dtype=np.float32), (n_frames, 1)),
        velocities=random.normal(0, 1, (n_frames, n_atoms, 3)).astype(np.float32) if velocities else None,
        dt=0.5,
    )
    return universe


def topology(folder: Path, n_atoms: int = N_ATOMS) -> Path:
    path = folder / f"top-{n_atoms}.gro"
    line = "    1RES      C    1   0.000   0.000   0.000\n"
    path.write_text(f"\n{n_atoms}\n" + n_atoms * line + "1 1 1\n")
    return path


class MadeUpEngine:
    """An engine in a thread, which sends the frames of a universe to one client; a context manager.

    It sends `rate` frames a second (None: as many as go), waits for `go` after `hold` frames, and is gone after `cut`
    bytes of one more frame (None: it ends well). Its session has `session` besides time, box, positions and velocities.
    """

    def __init__(self, universe, *, rate=None, cut=None, hold=None, **session) -> None:
        server = needs.module("imdclient.tests.server")
        protocol = needs.module("imdclient.IMDProtocol")
        self._universe, self._rate, self._cut, self._hold = universe, rate, cut, hold
        self.go = threading.Event()
        self.sent = 0
        self.asked: list[str] = []
        details = {
            "version": 3, "endianness": "<", "wrapped_coords": False, "energies": False, "time": True, "box": True,
            "positions": True, "velocities": universe.trajectory.ts.has_velocities, "forces": False,
        } | session  # fmt: skip
        self._server = server.InThreadIMDServer(universe.trajectory)
        self._server.set_imdsessioninfo(protocol.IMDSessionInfo(**details))
        self._protocol = protocol
        self._listen = socket.create_server(("127.0.0.1", 0))
        self.port = self._listen.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)

    @property
    def address(self) -> str:
        """What a run calls it."""
        return f"imd://127.0.0.1:{self.port}"

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *error) -> None:
        self.go.set()
        with contextlib.suppress(OSError):
            self._listen.shutdown(socket.SHUT_RDWR)  # close() alone wakes nobody who accepts
        self._listen.close()
        with contextlib.suppress(OSError, AttributeError):
            self._server.conn.shutdown(socket.SHUT_RDWR)
        self._thread.join(20)

    def _serve(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            conn, _ = self._listen.accept()
            self._server.conn = conn
            conn.settimeout(60)
            if self._server.imdsinfo.version == 2:
                self._server._send_handshakeV2()
            else:
                self._server._send_handshakeV3()
            self._server.expect_packet(self._protocol.IMDHeaderType.IMD_GO)
            hearing = threading.Thread(target=self._hear, args=(conn,), daemon=True)
            hearing.start()
            self._send(conn)
            conn.shutdown(socket.SHUT_WR)
            if self._cut is None:
                if self._hold is not None:
                    self.go.wait(20)
                hearing.join(20)  # imdclient gives frames up that it has not read when it asks a closed socket to pause
            conn.close()

    def _send(self, conn) -> None:
        began = time.monotonic()
        for number in range(self._universe.trajectory.n_frames):
            if number == self._hold:
                self.go.wait()
            if self._rate:
                time.sleep(max(0.0, began + number / self._rate - time.monotonic()))
            while "IMD_PAUSE" in self.asked[-1:]:
                time.sleep(0.01)
            self._server.send_frame(number)
            self.sent = number + 1
        if self._cut is not None:
            conn.sendall(
                self._protocol.create_header_bytes(self._protocol.IMDHeaderType.IMD_TIME, 1) + bytes(self._cut)
            )

    def _hear(self, conn) -> None:
        with contextlib.suppress(OSError):
            while len(head := conn.recv(8, socket.MSG_WAITALL)) == 8:
                self.asked.append(self._protocol.IMDHeader(head).type.name)
                if self.asked[-1] == "IMD_DISCONNECT":  # engines let go then
                    conn.shutdown(socket.SHUT_RDWR)


ARGON = """
units real
atom_style atomic
boundary p p p
lattice fcc 5.26
region box block 0 {cells} 0 {cells} 0 {cells}
create_box 1 box
create_atoms 1 box
mass 1 39.948
pair_style lj/cut 8.5
pair_coeff 1 1 0.238 3.405
velocity all create 90 87287
timestep 2.0
fix 1 all nve
write_data argon.data
fix 2 all imd {port} trate {each} version 3 unwrap off nowait off
thermo 1000
run {steps}
"""
#: What reads the topology that it writes, and the units that it sends.
ATOM_STYLE = ["--universe", "atom_style=id type x y z"]
UNITS = "?units=real"


@contextlib.contextmanager
def lammps(
    folder: Path, *, ranks: int = 1, cells: int = 4, each: int = 10, steps: int = 300
) -> Iterator[tuple[int, subprocess.Popen]]:
    """Run LAMMPS, which waits for a client and sends a frame every so many steps; give port and process."""
    needs.module("lammps")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (folder / "in.argon").write_text(ARGON.format(cells=cells, port=port, each=each, steps=steps))
    beside = Path(sys.executable).parent
    words = [str(beside / "lmp"), "-in", "in.argon", "-log", "log.lammps"]
    if ranks > 1:
        words = [str(beside / "mpiexec"), "-n", str(ranks), *words]
    process = subprocess.Popen(
        words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=clean_environment(OMP_NUM_THREADS="1"), stdin=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        end = time.monotonic() + 60
        while not (folder / "argon.data").exists() and process.poll() is None and time.monotonic() < end:
            time.sleep(0.05)
        yield port, process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.communicate()
