"""The Zazen protocol: ranks agree who reads which frame. Knows frame numbers, no molecules."""

from himach.zazen.cached import NOTHING, Cached, InMemory
from himach.zazen.protocol import assign
from himach.zazen.share import Share

__all__ = ["NOTHING", "Cached", "InMemory", "Share", "assign"]
