"""Several processes on one store at once; writers killed at random moments (soak.py for longer)."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import numpy as np
import pytest

from himach.io.store.store import Store

SOAK = Path(__file__).with_name("soak.py")

WRITER = """
    import sys
    import numpy as np
    from himach.io.store.store import Store
    place, who, n = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    dataset = Store(place).dataset("/s", segment_bytes=200_000)
    print("ready", flush=True)
    sys.stdin.read(1)
    for number in range(who, n, 4):
        dataset.write(number, number, None, np.full((500, 3), number, np.float32), native=who % 2 == 0)
        if number % 17 == 0:
            dataset.flush()
    dataset.close()
"""


def test_writers_and_a_reader_at_once():
    with tempfile.TemporaryDirectory(prefix="himach-store-") as directory:
        n = 1200
        writers = [
            subprocess.Popen(
                [sys.executable, "-c", textwrap.dedent(WRITER), directory, str(who), str(n)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for who in range(4)
        ]
        for writer in writers:
            assert writer.stdout.readline() == "ready\n"
        for writer in writers:
            writer.stdin.write("x")
            writer.stdin.flush()
        dataset = Store(directory).dataset("/s")
        seen = 0
        while any(writer.poll() is None for writer in writers):
            dataset.refresh()
            numbers = np.array(sorted(set(dataset.native) | set(dataset.alien)), dtype=np.int64)
            assert numbers.size >= seen
            seen = numbers.size
            for number, frame in zip(numbers.tolist(), dataset.read(numbers), strict=True):
                assert frame is not None and frame.number == number and (frame.positions == number).all()
        for writer in writers:
            assert writer.wait() == 0
            writer.stdin.close()
            writer.stdout.close()
        dataset.refresh()
        assert set(dataset.native) == set(range(0, n, 2))
        assert set(dataset.alien) == set(range(1, n, 2))


@pytest.mark.nightly
@pytest.mark.slow
def test_killed_writers_lose_nothing_acknowledged():
    done = subprocess.run(
        [sys.executable, str(SOAK), "--rounds", "25", "--seed", "7"],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rounds': 25" in done.stdout
