"""The Zazen protocol: ranks agree on who reads which frame. Knows frame numbers, not molecules.

In reading order: `node_frames` (a store's frames as bitmaps, and `Share`, from which ranks take tasks), `protocol` (the
rules; `assign`), `rounds` (exchanges of node leaders), `claims` (a node's result of the rounds); below them `bitmaps`
(kernels over words).
"""

from himach.zazen.node_frames import NOTHING, Cached, InMemory, Share
from himach.zazen.protocol import assign

__all__ = ["NOTHING", "Cached", "InMemory", "Share", "assign"]
