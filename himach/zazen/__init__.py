"""The Zazen protocol: ranks agree who reads which frame. Knows frame numbers, no molecules.

In reading order: `node_frames` (what a node tells of its store, as bitmaps, and `Share`, of which its ranks take
tasks), `protocol` (the rules; `assign`), `rounds` (what node leaders exchange), `claims` (what a node has after them),
`anywhere` (which frames are on any node at all); below them `bitmaps` (kernels over words).
"""

from himach.zazen.node_frames import NOTHING, Cached, InMemory, Share
from himach.zazen.protocol import assign

__all__ = ["NOTHING", "Cached", "InMemory", "Share", "assign"]
