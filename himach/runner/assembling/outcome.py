"""What came of assembling: `Assembled`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["TOLD", "Assembled"]

#: Frames that are not whole of which it is told why.
TOLD = 8
#: Of so many it is kept.
MOST = 1 << 20


@dataclass
class Assembled:
    """What came of assembling, the same on every rank.

    Attributes
    ----------
    frames
        Put together now.
    waiting
        Of which some atoms are in no slice yet.
    absent
        Why others are not there: frame number and reason.
    nodes
        Frames put together now by each node.
    aside
        The first frame of which slices of an earlier launch are left aside, as a later one has begun there or before;
        None if none are.
    """

    frames: int = 0
    waiting: int = 0
    absent: dict[int, str] = field(default_factory=dict)
    nodes: dict[str, int] = field(default_factory=dict)
    aside: int | None = None

    def note(self, reasons: Mapping[int, str]) -> None:
        """Take note of why frames are not there, unless that is known."""
        for number, reason in reasons.items():
            if len(self.absent) < MOST:
                self.absent.setdefault(number, reason)

    def leave(self, first: int | None) -> None:
        """Take note that slices from a frame on are left aside; None: none are."""
        if first is not None:
            self.aside = first if self.aside is None else min(self.aside, first)

    def __str__(self) -> str:
        places = ", ".join(f"{count} on {node}" for node, count in self.nodes.items())
        text = f"{self.frames} frames assembled{f' ({places})' if places else ''}"
        if self.waiting:
            text += f"; of {self.waiting} some slices are missing"
        if self.aside is not None:
            text += f"; slices of an earlier launch are left aside from frame {self.aside} on, as a later one has begun"
        told = "".join(f"\n  frame {number}: {reason}" for number, reason in sorted(self.absent.items())[:TOLD])
        return text + (f"; not whole:{told}" if told else "")
