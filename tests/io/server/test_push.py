"""Pushing: over loopback to several servers, one killed on the way; from MDAnalysis, OpenMM and C."""

import contextlib
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from support import commands, needs
from support.messages import ANSWER, ANSWER_HEAD, OPEN, message
from support.shelves import positions_of

import himach
from himach import ServerUnreachableError
from himach.errors import UsageError
from himach.io.store.quota import survey
from himach.io.store.store import Store, StoreFullError

NATIVE = Path(__file__).parents[3] / "native"


def frame_of(number, n_atoms=1000):
    return (np.arange(n_atoms * 3, dtype=np.float32) + number * 10).reshape(n_atoms, 3)


def natives(*places):
    """Frame numbers that each store holds natively, after checking their content."""
    found = []
    for place in places:
        dataset = Store(place).dataset("run")
        numbers = list(dataset.native)
        for number, frame in zip(numbers, dataset.read(numbers), strict=True):
            assert frame is not None
            np.testing.assert_array_equal(frame.positions, frame_of(number))
            assert frame.time == number
        found.append(numbers)
    return found


def push(writer, numbers, made=frame_of):
    for number in numbers:
        writer.push(made(number), time=number)


def test_round_robin(run_server, key):
    running = [run_server() for _ in range(3)]
    with himach.Writer("run", 1000, servers=[one.address for one in running], key=key, durable=True) as writer:
        push(writer, range(90))
        writer.flush()
        assert writer.facts() == {"acknowledged": 90, "in_flight": 0, "given_again": 0, "servers_up": 3}
    held = natives(*(one.place for one in running))
    assert sorted(number for numbers in held for number in numbers) == list(range(90))
    assert [len(numbers) for numbers in held] == [30, 30, 30]


off_grid = partial(positions_of, n_atoms=1000)  # what cannot be packed: 12 kB a thousand atoms


def test_a_push_beyond_the_quota_is_refused_with_both_numbers(run_server, key):
    running = run_server("--quota", "3MB")
    writer = himach.Writer("run", 1000, servers=[running.address], key=key, timeout=3, batch_bytes=200_000)
    numbers = r"holds 3\.0 MB of a quota of 3\.0 MB, and the disk has [\d.]+ .B free"
    with pytest.raises(StoreFullError, match=numbers):
        push(writer, range(1000), off_grid)
        writer.flush()
    acknowledged = writer.facts()["acknowledged"]
    assert acknowledged > 200
    assert 2_900_000 < survey(running.place).used <= 3_000_000
    held = Store(running.place).dataset("run").native
    assert len(held) >= acknowledged


def test_frames_for_which_a_server_has_no_room_go_to_another_once(run_server, key):
    running = [run_server("--quota", "3MB"), run_server()]
    servers = [one.address for one in running]
    with himach.Writer("run", 1000, servers=servers, key=key, timeout=10, batch_bytes=200_000) as writer:
        push(writer, range(1000), off_grid)
        writer.flush()
        assert writer.facts()["acknowledged"] == 1000
    assert survey(running[0].place).used <= 3_000_000
    full, other = (set(Store(one.place).dataset("run").native) for one in running)
    assert full | other == set(range(1000)) and not full & other
    assert len(full) > 200


def test_a_server_is_killed_while_frames_come(run_server, key):
    """Every acknowledged frame is there; twice only those that the dead server had and could not be asked about."""
    running = [run_server() for _ in range(3)]
    with himach.Writer(
        "run", 1000, servers=[one.address for one in running], key=key, timeout=5, batch_bytes=40_000
    ) as writer:
        push(writer, range(300))
        running[1].kill()
        push(writer, range(300, 600))
        writer.flush()
        assert writer.facts()["acknowledged"] == 600 and writer.facts()["servers_up"] == 2
    dead_before = natives(running[1].place)[0]
    held = natives(*(one.place for one in running))
    assert set().union(*held) == set(range(600))
    twice = sum(map(len, held)) - 600
    in_flight = 4 * 40_000 // 12_000 + 1  # frames of 1,000 atoms at most
    assert twice <= len(dead_before) and twice <= in_flight
    assert not set(held[0]) & set(held[2])


@contextlib.contextmanager
def forgetful():
    """A server that takes frames, and never acknowledges one nor says which it has."""
    header = struct.Struct("<4sHHII")
    opened = message(ANSWER, ANSWER_HEAD.pack(0, OPEN, 1) + bytes(64))

    def serve(raw):
        with raw, contextlib.suppress(OSError):
            while head := raw.recv(16, socket.MSG_WAITALL):
                _, _, verb, size, _ = header.unpack(head)
                raw.recv(size, socket.MSG_WAITALL)
                if verb == OPEN:
                    raw.sendall(opened)

    def accept():
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    with tempfile.TemporaryDirectory() as directory, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{directory}/socket")
        listener.listen()
        threading.Thread(target=accept, daemon=True).start()
        yield f"{directory}/socket"


def test_a_server_that_never_acknowledges():
    with forgetful() as path:
        writer = himach.Writer("run", 1000, servers=[path], timeout=1.5)
        push(writer, [0])
        start = time.monotonic()
        with pytest.raises(
            ServerUnreachableError, match=r"no server has acknowledged a frame|none of 1 servers answers"
        ):
            writer.flush()
        assert 1 < time.monotonic() - start < 10  # as long as it is told
        assert writer.facts()["in_flight"] == 1
        with pytest.raises(ServerUnreachableError):
            writer.close()


INTERRUPTED = """
    import signal
    import sys
    import numpy as np
    import himach

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it

    with himach.Writer("run", 1000, servers=[sys.argv[1]], timeout=60, batch_bytes=20_000) as writer:
        print("ready", flush=True)
        while True:
            writer.push(np.zeros((1000, 3)), time=0)
"""


def test_ctrl_c_ends_a_wait():
    with forgetful() as path:
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(INTERRUPTED), path],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stdout.readline() == "ready\n"
        time.sleep(1)  # it waits for acknowledgements now
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=10)
        assert process.returncode == -signal.SIGINT
        assert "KeyboardInterrupt" in said


def test_arguments(run_server):
    running = run_server()
    with pytest.raises(UsageError, match="lists of names"):
        himach.Writer("run", 1, servers="n1:7411")
    with pytest.raises(UsageError, match="at least one atom"):
        himach.Writer("run", 0, servers=[running.path])
    with himach.Writer("run", 5, servers=[running.path]) as writer, pytest.raises(ValueError, match=r"\(5, 3\)"):
        writer.push(np.zeros((4, 3)), time=0)
    most = 26_843_544  # of a message of 1 GiB
    with (
        himach.Writer("run", most + 1, servers=[running.path]) as large,
        pytest.raises(ValueError, match=f"{most} atoms"),
    ):
        large.push(np.zeros((most + 1, 3), np.float32), time=0)
    writer.close()
    with pytest.raises(ValueError, match="closed"):
        writer.push(np.zeros((5, 3)), time=0)


def test_from_mdanalysis(run_server):
    import MDAnalysis as mda
    from MDAnalysisTests.datafiles import DCD, PSF

    running = run_server()
    universe = mda.Universe(PSF, DCD)
    with himach.Writer("run", universe.atoms.n_atoms, servers=[running.path]) as writer:
        for _ in universe.trajectory[:5]:
            writer.write(universe)
        with pytest.raises(ValueError, match="shape"):
            writer.write(universe.select_atoms("protein and name CA"))
    with running.client() as client:
        for ts, frame in zip(universe.trajectory[:5], client.open("run").read(range(5)), strict=True):
            np.testing.assert_array_equal(frame.positions, universe.atoms.positions)
            assert frame.time == ts.time


def test_from_openmm(run_server):
    openmm = needs.module("openmm")
    from openmm import app, unit

    running = run_server()
    system = openmm.System()
    system.setDefaultPeriodicBoxVectors([3, 0, 0], [0, 3, 0], [0, 0, 3])
    force = openmm.NonbondedForce()
    force.setNonbondedMethod(openmm.NonbondedForce.CutoffPeriodic)
    topology = app.Topology()
    residue = topology.addResidue("AR", topology.addChain())
    for _ in range(10):
        system.addParticle(39.95)
        force.addParticle(0, 0.34, 0.99)
        topology.addAtom("AR", None, residue)
    system.addForce(force)
    integrator = openmm.LangevinMiddleIntegrator(300 * unit.kelvin, 1 / unit.picosecond, 0.002 * unit.picoseconds)
    simulation = app.Simulation(topology, system, integrator, openmm.Platform.getPlatformByName("Reference"))
    simulation.context.setPositions(np.array([(0.5 * i % 3, 0.7 * i % 3, 0.3 * i) for i in range(10)]))
    with himach.Writer("run", 10, servers=[running.path]) as writer:
        simulation.reporters.append(himach.OpenMMReporter(writer, 5, velocities=True, forces=True, periodic=False))
        simulation.step(20)
    state = simulation.context.getState(getPositions=True)
    with running.client() as client:
        frames = list(client.open("run").read(range(4)))
    np.testing.assert_allclose(frames[-1].positions, state.getPositions(asNumpy=True) / unit.angstrom, rtol=1e-5)
    np.testing.assert_allclose([frame.time for frame in frames], [0.01, 0.02, 0.03, 0.04])
    np.testing.assert_allclose(frames[0].box, [30, 30, 30, 90, 90, 90], rtol=1e-5)
    assert frames[0].velocities is not None and frames[0].forces is not None


def config(*options):
    """What `himach cache config` prints, as words."""
    return commands.himach("cache", "config", *options, code=0).stdout.split()


def test_from_c(run_server, key, tmp_path):
    program, source = tmp_path / "push", NATIVE / "examples" / "push.c"
    subprocess.run(
        [needs.program("cc"), "-O1", source, *config("--cflags", "--libs"), "-o", program],
        check=True, timeout=300, cwd=tmp_path,
    )  # fmt: skip
    running = [run_server(), run_server()]
    subprocess.run([program, key, "50", *(one.address for one in running)], check=True, timeout=120)
    held = [set(Store(one.place).dataset("c-example").native) for one in running]
    assert held[0] | held[1] == set(range(50)) and not held[0] & held[1]
    calls = [line for line in source.read_text().splitlines() if "bodhi_" in line]
    assert len(calls) < 25


def test_from_fortran(run_server, key, tmp_path):
    program, source = tmp_path / "push", NATIVE / "examples" / "push.f90"
    subprocess.run(
        [needs.program("gfortran"), "-Wall", "-Werror", *config("--fortran"), source, *config("--libs"), "-o", program],
        check=True, timeout=300, cwd=tmp_path,
    )  # fmt: skip
    running = run_server()
    subprocess.run([program, key, "20", running.address], check=True, timeout=120)
    dataset = Store(running.place).dataset("fortran-example")
    for number, frame in enumerate(dataset.read(range(20))):
        assert frame.time == number / 2 and frame.positions[0, 0] == number
        assert frame.box.tolist() == [50, 50, 50, 90, 90, 90]
        assert np.abs(frame.positions[1:]).max() <= number + 1
    running.kill()
    failed = subprocess.run(
        [program, key, "1", running.address], check=False, capture_output=True, text=True, timeout=120
    )
    assert failed.returncode != 0 and "no server listens there" in failed.stderr
    assert subprocess.run([program], check=False, capture_output=True).returncode == 2


def test_config_says_which():
    done = commands.himach("cache", "config", code=2)
    assert "--cflags" in done.stderr
