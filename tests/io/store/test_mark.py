"""Marking what a dataset holds of a selection, beside Python sets: any frames, dropped ones, other processes' ones."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from himach.io.store.bodhi import MAX_NUMBER
from himach.io.store.store import Store

ATOM = np.zeros((1, 3), dtype=np.float32)
FAR = MAX_NUMBER - 300

WRITER = """
    import sys
    import numpy as np
    from himach.io.store.store import Store
    place, who, n = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    dataset = Store(place).dataset("d", segment_bytes=65_536)
    for number in range(who, n, 3):
        dataset.write(number, 0.0, None, np.zeros((1, 3), np.float32), native=number % 2 == 0)
        if number % 5 == 0:
            dataset.flush()
    dataset.close()
"""


@pytest.fixture
def place():
    with tempfile.TemporaryDirectory(prefix="himach-mark-") as folder:
        yield Path(folder, "store")


@st.composite
def batches(draw, top=400):
    """Frames in the order in which they are written: runs, turns, single ones, all of them maybe far away."""
    first = draw(st.sampled_from([0, 0, FAR]))
    frames: list[int] = []
    for _ in range(draw(st.integers(0, 5))):
        low, high = sorted(draw(st.tuples(st.integers(0, 299), st.integers(0, 299))))
        frames += range(low, high, draw(st.sampled_from([1, 1, 2, 5, 64])))
    frames += draw(st.lists(st.integers(0, 299), max_size=12))
    return [first + frame for frame in frames[:top]]


@st.composite
def ranges(draw):
    start, stop = sorted(draw(st.tuples(st.integers(0, 299), st.integers(0, 299))))
    step = draw(st.sampled_from([1, 1, 2, 3, 7, 64, 100, 250]))
    first = draw(st.sampled_from([0, FAR]))
    return range(first + start, first + stop, step)[:: draw(st.sampled_from([1, -1]))]


def frames_of(words, frames):
    bits = np.unpackbits(words.view(np.uint8), bitorder="little")
    assert not bits[len(frames) :].any()
    return {frames[position] for position in np.flatnonzero(bits).tolist()}


def marked(dataset, frames):
    """Return the native and the alien frames that are marked; bits that are set already must stay."""
    words = np.zeros((2, -(-len(frames) // 64)), dtype=np.uint64)
    dataset.mark(frames, *words)
    others = ~words
    dataset.mark(frames, *others)
    assert (others == 2**64 - 1).all()
    return [frames_of(kind, frames) for kind in words]


def check(dataset, frames, native, alien):
    assert marked(dataset, frames) == [native & set(frames), alien & set(frames)]


def write(dataset, numbers, native):
    for number in numbers:
        dataset.write(number, 0.0, None, ATOM, native=native)
    dataset.flush()


@pytest.mark.nightly
@settings(max_examples=150)
@given(
    written=st.lists(st.tuples(batches(), st.booleans()), max_size=4),
    dropped=st.lists(st.tuples(batches(), st.booleans()), max_size=2),
    again=batches(),
    selections=st.lists(ranges(), min_size=1, max_size=6),
)
def test_marked_is_what_is_held(written, dropped, again, selections):
    with tempfile.TemporaryDirectory(prefix="himach-mark-") as folder:
        held: dict[bool, set[int]] = {True: set(), False: set()}
        dataset = Store(Path(folder, "store")).dataset("d", segment_bytes=8192)

        def keep(numbers, native):
            write(dataset, numbers, native)
            held[native] |= set(numbers) if native else set(numbers) - held[True]

        for numbers, native in written:
            keep(numbers, native)
        for numbers, native in dropped:
            dataset.drop(numbers, native=native)
            held[native] -= set(numbers)
        keep(again, False)  # copies that are dropped lie beside living ones
        assert (set(dataset.native), set(dataset.alien)) == (held[True], held[False])
        for frames in selections:
            check(dataset, frames, held[True], held[False])
        other = Store(Path(folder, "store")).dataset("d")  # another order in its table
        for frames in selections:
            check(other, frames, held[True], held[False])


def test_frames_that_came_out_of_order(place):
    """More than are waiting beside the table, in both of its parts."""
    dataset = Store(place).dataset("d")
    numbers = np.random.default_rng(7).permutation(np.arange(0, 30_000, 2)).tolist()
    for first in range(0, len(numbers), 5):
        write(dataset, numbers[first : first + 5], native=True)
    held = set(numbers)
    for frames in (range(30_000), range(29_999, -1, -1), range(1, 30_000, 3), range(64, 29_000, 63)):
        check(dataset, frames, held, set())


def test_selections_of_no_frames_and_beyond_all(place):
    dataset = Store(place).dataset("d")
    write(dataset, [0, 5, MAX_NUMBER], native=True)
    write(dataset, [6], native=False)
    check(dataset, range(0), set(), set())
    check(dataset, range(9, 5), set(), set())
    check(dataset, range(7, 1000), set(), set())
    check(dataset, range(MAX_NUMBER, MAX_NUMBER + 1), {MAX_NUMBER}, set())
    check(dataset, range(0, MAX_NUMBER + 1, MAX_NUMBER), {0, MAX_NUMBER}, set())
    check(dataset, range(MAX_NUMBER, -1, -MAX_NUMBER), {0, MAX_NUMBER}, set())


def test_negative_frames_are_refused(place):
    dataset = Store(place).dataset("d")
    words = np.zeros(1, dtype=np.uint64)
    for frames in (range(-1, 5), range(5, -2, -1), range(-5, 7, 3)):
        with pytest.raises(ValueError, match=f"first is {frames.start}, step {frames.step}, count {len(frames)}"):
            dataset.mark(frames, words, words)
    with pytest.raises(OverflowError):
        dataset.mark(range(2**63, 2**63 + 5), words, words)


def test_while_other_processes_write(place):
    """Frames only come; what is marked is there, and in the end everything is."""
    n = 30_000
    dataset = Store(place).dataset("d")
    frames = range(n - 1, -1, -1)
    before: list[set[int]] = [set(), set()]
    with contextlib.ExitStack() as stack:
        writers = [
            stack.enter_context(
                subprocess.Popen([sys.executable, "-c", textwrap.dedent(WRITER), str(place), str(who), str(n)])
            )
            for who in range(3)
        ]
        while any(writer.poll() is None for writer in writers):
            dataset.refresh()
            now = marked(dataset, frames)
            assert all(earlier <= later for earlier, later in zip(before, now, strict=True))
            before = now
    assert all(writer.returncode == 0 for writer in writers)
    dataset.refresh()
    check(dataset, frames, set(range(0, n, 2)), set(range(1, n, 2)))


def test_while_threads_of_this_process_write(place):
    dataset = Store(place).dataset("d")
    count = 20_000
    done = threading.Event()

    def work():
        try:
            for number in range(count - 1, -1, -1):  # every one goes before what is there
                write(dataset, [number], native=False)
        finally:
            done.set()

    thread = threading.Thread(target=work)
    thread.start()
    before = 0
    while not done.is_set():
        native, alien = np.zeros((2, -(-count // 64)), dtype=np.uint64)
        dataset.mark(range(count), native, alien)
        held = frames_of(alien, range(count))
        assert held == set(range(count - len(held), count))
        assert len(held) >= before
        before = len(held)
    thread.join()
    check(dataset, range(count), set(), set(range(count)))
