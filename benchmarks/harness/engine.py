"""Engines whose frames are analysed live: LAMMPS, and a made-up one.

``python -m himach.benchmarks.harness.engine FRAMES ATOMS RATE`` is the made-up one, with the server of imdclient's own
tests: it prints its port, sends frames at the rate, and prints as JSON when it sent the first one and how long all
took. ``... receive PORT ATOMS`` is a client that only receives.
"""

import json
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

__all__ = ["ATOM_STYLE", "Lammps"]

ATOM_STYLE = "atom_style=id type x y z"
ARGON = """
units real
atom_style atomic
lattice fcc 5.26
region box block 0 10 0 10 0 10
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
run {steps}
"""


class Lammps:
    """LAMMPS with 4,000 atoms of argon, which waits for a client and sends a frame every so many steps.

    Parameters
    ----------
    folder
        Where it works, and leaves its topology, ``argon.data``.
    steps, each
        Steps that it does; between two frames.
    """

    atoms = 4000

    def __init__(self, folder: Path, steps: int, each: int) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.topology = folder / "argon.data"
        self.topology.unlink(missing_ok=True)
        self._log = folder / "log.lammps"
        (folder / "in.argon").write_text(ARGON.format(port=self.port, each=each, steps=steps))
        words = [str(Path(sys.executable).with_name("lmp")), "-in", "in.argon", "-log", str(self._log)]
        self._process = subprocess.Popen(words, cwd=folder, stdout=subprocess.DEVNULL)
        while not self.topology.exists() and self._process.poll() is None:
            time.sleep(0.05)

    @property
    def address(self) -> str:
        """What a run calls it."""
        return f"imd://127.0.0.1:{self.port}?units=real"

    def end(self) -> tuple[float, float]:
        """Wait for its end; return the seconds that its steps took, by the clock and of a processor."""
        self._process.wait()
        text = self._log.read_text()
        found = re.search(r"Loop time of (\S+) on", text)
        share = re.search(r"(\S+)% CPU use", text)
        assert found is not None
        assert share is not None
        return float(found[1]), float(found[1]) * float(share[1]) / 100


def serve(frames: int, atoms: int, rate: float) -> None:
    """Be an engine that sends made-up frames at a rate."""
    import MDAnalysis as mda
    from imdclient.IMDProtocol import IMDHeader, IMDHeaderType, IMDSessionInfo
    from imdclient.tests.server import InThreadIMDServer

    universe = mda.Universe.empty(atoms, trajectory=True)
    some = np.random.default_rng(1).uniform(0, 80, (10, atoms, 3)).astype(np.float32)
    universe.load_new(some, dimensions=np.array([80, 80, 80, 90, 90, 90], dtype=np.float32), dt=1.0)
    server = InThreadIMDServer(universe.trajectory)
    told = dict.fromkeys(("wrapped_coords", "energies", "velocities", "forces"), False)
    server.set_imdsessioninfo(IMDSessionInfo(3, "<", time=True, box=True, positions=True, **told))
    paused = threading.Event()

    def hear() -> None:
        while len(head := server.conn.recv(8, socket.MSG_WAITALL)) == 8:
            (paused.set if IMDHeader(head).type is IMDHeaderType.IMD_PAUSE else paused.clear)()

    with socket.create_server(("127.0.0.1", 0)) as listen:
        print(listen.getsockname()[1], flush=True)
        server.conn, _ = listen.accept()
    server._send_handshakeV3()
    server.expect_packet(IMDHeaderType.IMD_GO)
    threading.Thread(target=hear, daemon=True).start()
    first, began = time.time(), time.monotonic()
    for number in range(frames):
        time.sleep(max(0.0, began + number / rate - time.monotonic()))
        while paused.is_set():
            time.sleep(0.001)
        server.send_frame(number % len(some))
    print(json.dumps({"first": first, "seconds": time.monotonic() - began}), flush=True)
    server.conn.shutdown(socket.SHUT_WR)
    time.sleep(1)


def receive(port: int, atoms: int) -> None:
    """Be a client that only receives."""
    from imdclient.IMDClient import IMDClient

    client = IMDClient("127.0.0.1", port, atoms)
    try:
        while True:
            client.get_imdframe()
    except EOFError:
        pass


def main(words: Sequence[str]) -> None:
    """Be what the words say."""
    if words[0] == "receive":
        receive(int(words[1]), int(words[2]))
    else:
        serve(int(words[0]), int(words[1]), float(words[2]))


if __name__ == "__main__":
    main(sys.argv[1:])
