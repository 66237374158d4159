"""The Zazen protocol: ranks agree who reads which frame. Knows frame numbers, no molecules.

In reading order: `node_frames` (what a node tells of its store, as bitmaps), `protocol` (the rules; `assign`),
`rounds` (what node leaders exchange), `claims` (what a node has after them), `share` (how ranks of a node take
tasks); below them `positions` (what a share is made of) and `bitmaps` (kernels over words).
"""

from himach.zazen.node_frames import NOTHING, Cached, InMemory, Share
from himach.zazen.protocol import assign

__all__ = ["NOTHING", "Cached", "InMemory", "Share", "assign"]
