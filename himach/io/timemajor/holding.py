"""What a node holds of a dataset, frame by frame or as tracks: `NodeFrames`, as the protocol asks for it."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from himach.io.store.cached_frames import CachedFrames
from himach.io.store.store import Dataset
from himach.io.timemajor.form import ChunkPart, TimeMajorForm, form_for, open_form

__all__ = ["NodeFrames", "as_tracks", "frames_held", "frames_in_tracks", "holding", "is_alone"]

Words = npt.NDArray[np.uint64]
Frames = TypeVar("Frames", bound=CachedFrames | None)


class NodeFrames:
    """The frames of a dataset that a node can read for a run that asks for some atoms.

    Parameters
    ----------
    dataset
        Its frames.
    form
        Its time-major form, which has frames that are not there one by one.
    parts
        The atoms that are asked for; None for all.
    """

    def __init__(self, dataset: Dataset, form: TimeMajorForm, parts: list[ChunkPart] | None) -> None:
        self._dataset = dataset
        self._form = form
        self._parts = parts

    @property
    def identity(self) -> str | None:
        """What tells this store from every other."""
        return self._dataset.identity

    def mark(self, frames: range, native: Words, alien: Words) -> None:
        """Set the bits of those `frames` that are held, as `CachedFrames.mark`; tracks count as natives."""
        self._dataset.mark(frames, native, alien)
        if not frames:
            return
        for numbers in self._form.frames_in(min(frames[0], frames[-1]), max(frames[0], frames[-1]), self._parts):
            places = (numbers - frames.start) // frames.step
            chosen = places[places * frames.step + frames.start == numbers].astype(np.uint64)
            np.bitwise_or.at(native, chosen >> np.uint64(6), np.uint64(1) << (chosen & np.uint64(63)))

    def holds(self, numbers: npt.NDArray[np.int64], native: bool = False) -> npt.NDArray[np.bool_]:
        """Return which frames are held, or held natively, as `CachedFrames.holds`; tracks count as natives."""
        held = self._dataset.holds(numbers, native)
        if len(numbers):
            for some in self._form.frames_in(int(numbers.min()), int(numbers.max()), self._parts):
                held |= np.isin(numbers, some)
        return held


def holding(dataset: Frames, atoms: npt.NDArray[np.int64] | None) -> Frames | NodeFrames:
    """Return what a node holds of a dataset for a run that asks for these atoms, None for all.

    As long as nothing was dropped because it is there as tracks, a dataset's frames are all that it has.
    """
    form = form_for(dataset, atoms)
    if form is None or not form.is_alone:
        return dataset
    assert isinstance(dataset, Dataset)
    assert atoms is not None
    return NodeFrames(dataset, form, form.parts(atoms))


def as_tracks(dataset: Dataset) -> Dataset | NodeFrames:
    """Return the same of all atoms, as staging asks for it."""
    form = open_form(dataset)
    return dataset if form is None or not form.is_alone else NodeFrames(dataset, form, None)


def is_alone(dataset: Dataset) -> bool:
    """Tell whether frames of a dataset were dropped because they are in its time-major form."""
    form = open_form(dataset)
    return form is not None and form.is_alone


def frames_held(dataset: Dataset) -> BitMap64:
    """Return the frames that are held natively, one by one or with the tracks of all atoms."""
    form = open_form(dataset)
    return dataset.native if form is None or not form.is_alone else dataset.native | frames_in_tracks(form)


def frames_in_tracks(form: TimeMajorForm) -> BitMap64:
    """Return the frames of which the tracks of all atoms are there."""
    found, ends = BitMap64(), form.ends()
    for numbers in form.frames_in(*ends, None) if ends is not None else ():
        found |= BitMap64(numbers)
    return found
