"""Frames that the tests of a server push to it."""

from __future__ import annotations

import numpy as np

import himach


def frame_of(number, n_atoms=100):
    return (np.arange(n_atoms * 3, dtype=np.float32) + number * 1000).reshape(n_atoms, 3)


def push(running, numbers, n_atoms=100, **options):
    with himach.Writer("run", n_atoms, servers=[running.path], **options) as writer:
        for number in numbers:
            writer.number = number
            writer.push(frame_of(number, n_atoms), time=number / 2, box=[9, 9, 9, 90, 90, 90])
