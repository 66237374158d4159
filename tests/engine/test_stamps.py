"""What stamps take; that every bit of them comes back, `test_many_ranks` tells."""

import tracemalloc

import numpy as np
import pytest

from himach.engine.stamps import Stamps

TIMES = {
    "a line": lambda steps: 2.5 * steps + 10,
    "single precision": lambda steps: (steps * 0.02).astype(np.float32).astype(np.float64),
}


@pytest.mark.parametrize("times", TIMES)
def test_usual_frames_take_less_than_three_bytes_each(times):
    n, task = 100_000, 512
    stamps, box = Stamps(), np.array([30, 31, 32, 90, 90, 90], dtype=np.float32)
    tracemalloc.start()
    try:
        for start in range(0, 4 * n, 4 * task):
            steps = np.arange(start, start + task)
            for step, time in zip(steps.tolist(), TIMES[times](steps).tolist(), strict=True):
                stamps.add(step, time, box, None)
        stamps.seal()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < 3 * len(stamps)
