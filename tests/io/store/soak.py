"""Kills writers and readers of one store at random moments: nothing acknowledged may be lost, nothing wrong.

``python tests/io/store/soak.py --rounds 300 [--seconds N]``: each round starts three writers and a reader, kills them
with SIGKILL after a random time, and then reads every frame. A writer notes the frames that were acknowledged to it
in a file of its own.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from himach.io.frame_source import ReadOptions
from himach.io.store.store import Store

WRITERS = 3
FRAMES = 400


def positions(number: int) -> np.ndarray:
    n_atoms = 30_000 if number % 50 == 0 else 1 + number % 97  # written through, or gathered
    return np.full((n_atoms, 3), number, dtype=np.float32) + np.arange(n_atoms, dtype=np.float32)[:, None]


def check(frame, number: int) -> None:
    if frame.number != number or frame.time != number or not np.array_equal(frame.positions, positions(number)):
        raise AssertionError(f"frame {number} has wrong bytes")


def write(place: Path, who: int, seed: int) -> None:
    rng = random.Random(seed)
    dataset = Store(place).dataset("/soak", segment_bytes=1 << 20)
    with open(place.with_name(f"acknowledged-{who}"), "ab", buffering=0) as note:
        while True:
            batch = [rng.randrange(FRAMES) * WRITERS + who for _ in range(rng.randrange(1, 20))]
            dropped = [number for number in batch if number % 11 == 0]
            for number in batch:
                dataset.write(number, float(number), None, positions(number), native=who == 0)
            dataset.flush(durable=rng.random() < 0.1)
            note.write(b"".join(b"%d\n" % number for number in batch))
            if dropped and rng.random() < 0.2:
                dataset.drop(dropped, native=who == 0)
            if rng.random() < 0.1:
                dataset.close()


def read(place: Path, seed: int) -> None:
    rng = random.Random(seed)
    dataset = Store(place).dataset("/soak")
    while True:
        dataset.refresh()
        numbers = [rng.randrange(FRAMES * WRITERS) for _ in range(100)]
        for number, frame in zip(
            numbers, dataset.read(numbers, ReadOptions(direct=rng.choice(["on", "off"]))), strict=True
        ):
            if frame is not None:
                check(frame, number)


def start(function, *arguments) -> int:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            function(*arguments)
        except BaseException as error:
            print(f"{function.__name__}{arguments}: {error!r}", file=sys.stderr, flush=True)
        finally:
            os._exit(status)
    return child


def verify(place: Path) -> int:
    """Every acknowledged frame is there (unless it may have been dropped), and all that is there is right."""
    dataset = Store(place).dataset("/soak")
    found = set()
    for number, frame in zip(range(FRAMES * WRITERS), dataset.read(np.arange(FRAMES * WRITERS)), strict=True):
        if frame is not None:
            check(frame, number)
            found.add(number)
    listed = set(dataset.native) | set(dataset.alien)
    if listed != found:
        raise AssertionError(f"listed but not served: {sorted(listed - found)}")
    for who in range(WRITERS):
        note = place.with_name(f"acknowledged-{who}")
        lines = note.read_bytes().split(b"\n")[:-1] if note.exists() else []
        lost = {number for number in map(int, lines) if number % 11} - found
        if lost:
            raise AssertionError(f"writer {who} lost acknowledged frames {sorted(lost)}")
    return len(found)


def soak(rounds: int, seconds: float, seed: int) -> dict[str, int]:
    directory = Path(tempfile.mkdtemp(prefix="himach-soak-"))
    rng = random.Random(seed)
    end = time.monotonic() + seconds
    kills = done = frames = 0
    try:
        while done < rounds and time.monotonic() < end:
            place = directory / "store"
            if done % 20 == 0:
                shutil.rmtree(directory)
                directory.mkdir()
            children = [start(write, place, who, rng.random()) for who in range(WRITERS)]
            children.append(start(read, place, rng.random()))
            time.sleep(rng.uniform(0.005, 0.25))
            for child in rng.sample(children, len(children)):
                os.kill(child, signal.SIGKILL)
                _, status = os.waitpid(child, 0)
                if not os.WIFSIGNALED(status):
                    raise AssertionError("a writer or reader ended by itself")
                kills += 1
                time.sleep(rng.choice([0, 0, 0.01]))
            frames = verify(place)
            done += 1
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return {"rounds": done, "kills": kills, "frames in the last round": frames}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    print(f"seed {options.seed}: {soak(options.rounds, options.seconds, options.seed)}")


if __name__ == "__main__":
    main()
