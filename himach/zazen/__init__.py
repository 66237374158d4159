"""The Zazen protocol: ranks agree who reads which frame. Knows frame numbers, no molecules.

In reading order: `cached` (what a node tells of its store), `protocol` (the rules; `assign`), `agreement` (by
bits or by patterns), `rounds` (what node leaders exchange), `share` (how ranks of a node take tasks); below
them `holdings`, `selection` and `roaring` (sets of frame numbers become bitmaps), `patterns`, `finder` and
`folding` (or patterns, and bits of classes), `positions` (what a share is made of) and `bitmaps` (kernels
over words).
"""

from himach.zazen.cached import NOTHING, Cached, InMemory
from himach.zazen.protocol import assign
from himach.zazen.share import Share

__all__ = ["NOTHING", "Cached", "InMemory", "Share", "assign"]
