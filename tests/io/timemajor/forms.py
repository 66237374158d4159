"""Datasets with time-major forms for these tests: made up frames, small chunks, and a reader that is plain."""

from __future__ import annotations

import itertools

import numpy as np

from himach.frame import POSITIONS, Needs, RawFrame
from himach.io.dataset.source import Source
from himach.io.store.store import Store
from himach.io.timemajor import tracks
from himach.io.timemajor.layout import FACTS, FORM, SUFFIX, ChunkLayout
from himach.io.timemajor.making import Maker, begin_form, unmade
from himach.locks import locked

N_ATOMS = 50
SPAN = 16
IDENTITIES = itertools.count(1)


class Frames:
    """Frames by number, as an origin gives them; all of them can be computed again."""

    present = True
    n_atoms = N_ATOMS

    def __init__(self, seed=0, grid=True, boxed=0.7):
        self.seed, self.grid, self.boxed = seed, grid, boxed
        self.asked = []

    def frame(self, number):
        random = np.random.default_rng([self.seed, number])
        positions = random.normal(size=(N_ATOMS, 3)).astype(np.float32) * np.float32(30)
        if self.grid:
            steps = np.rint(positions * 100).astype(np.int32)
            positions = (steps.astype(np.float32) * np.float32(0.001)) * np.float32(10)
        box = random.uniform(20, 90, 6).astype(np.float32) if random.random() < self.boxed else None
        return RawFrame(number, float(random.normal()) * 10 + number, positions, box)

    def read(self, numbers, needed=None):
        for number in np.asarray(numbers).tolist():
            self.asked.append(number)
            yield self.frame(number)

    def nbytes(self, numbers):
        return len(numbers) * 1000

    def close(self):
        pass


def fill(place, frames, natives, aliens=()):
    """Write frames to a store; return their dataset, as another process would open it."""
    dataset = Store(place).dataset("made up", b"1")
    for number in sorted([*natives, *aliens]):
        frame = frames.frame(number)
        dataset.write(number, frame.time, frame.box, frame.positions, native=number in natives)
    dataset.close()
    return Store(place).dataset("made up", b"1")


def lay_out(dataset, span=SPAN, block_atoms=8):
    """Begin a form of small chunks."""
    own = dataset.store.dataset(dataset.name + SUFFIX, dataset.generation)
    layout = ChunkLayout(N_ATOMS, span, block_atoms, identity=next(IDENTITIES))
    own.attach(FACTS, layout.encode())
    dataset.attach(FORM, str(layout.identity).encode())


def turn(dataset, memory=10_000):
    """Make what is not made of a form; return the chunks made."""
    dataset.refresh()
    with locked(dataset.path):
        form = begin_form(dataset, N_ATOMS)
        maker = Maker(dataset, form, memory)
        return [chunk for chunk in unmade(dataset, form) if maker.make(chunk)]


def bits(frame, atoms):
    """Return all that there is of some atoms of a frame, to compare."""
    box = None if frame.box is None else frame.box.tobytes()
    return frame.number, frame.time, box, frame.positions[np.asarray(atoms)].tobytes()


def read(frames, dataset, atoms, numbers, with_tracks=True):
    """Return what a run gets of some atoms of frames, and its source."""
    source = Source(frames, dataset, needs=Needs(np.asarray(atoms, dtype=np.int64), POSITIONS), tracks=with_tracks)
    return [bits(frame, atoms) for frame in source.read(np.asarray(numbers, dtype=np.int64))], source


def prefer_tracks(monkeypatch):
    """Have tracks chosen wherever they are there, however small the frames of a test."""
    monkeypatch.setattr(tracks, "bytes_of_frame", lambda *_: 1 << 40)
