"""The rules of the protocol over sets, for all nodes at once: slow and obvious.

`apply_rules()` says which frames the rules leave no choice about, and `check()` what the protocol chose for the rest.
"""

from collections import Counter
from dataclasses import dataclass, field
from fractions import Fraction

from hypothesis import strategies as st

FRAMES = 300


@st.composite
def selections(draw):
    start, stop, step = draw(st.integers(0, FRAMES)), draw(st.integers(0, FRAMES)), draw(st.integers(1, 7))
    return range(min(start, stop), max(start, stop), step)[:: draw(st.sampled_from([1, -1]))]


def take_all(share):
    tasks = []
    while (task := share.take()) is not None:
        tasks.append(task)
    return tasks


@dataclass
class Store:
    native: set[int] = field(default_factory=set)
    alien: set[int] = field(default_factory=set)
    identity: str | None = None


@dataclass
class Ruling:
    """What the rules say of a selection."""

    native: dict[int, list[int]]  # frame -> nodes that may read it by rule 1; one of them does
    alien: dict[int, list[int]]  # the same of rule 2
    contested: dict[int, list[int]]  # frame -> nodes that hold an alien copy of it, where there are several
    nowhere: set[int]  # frames that no node holds
    limit: list[int]  # as many frames a node reads of what it holds, while the origin can be reached


def apply_rules(stores: list[Store], ranks: list[int], frames: range, origin: bool) -> Ruling:
    """Apply the rules; stores[i] is node i's, which has ranks[i] ranks."""
    limit = [-(-2 * len(frames) * n // sum(ranks)) for n in ranks]
    natives, aliens = [], []
    for i, store in enumerate(stores):
        twin = store.identity is not None and any(store.identity == other.identity for other in stores[:i])
        mine = [] if twin else [frame for frame in frames if frame in store.native]
        natives.append(set(mine[: limit[i]] if origin else mine))
        aliens.append(set() if twin else store.alien & set(frames))
    ruling = Ruling({}, {}, {}, set(), limit)
    for frame in frames:
        native = [i for i, cached in enumerate(natives) if frame in cached]
        alien = [i for i, cached in enumerate(aliens) if frame in cached]
        if native:
            ruling.native[frame] = native
        elif len(alien) == 1:
            ruling.alien[frame] = alien
        elif alien:
            ruling.contested[frame] = alien
        else:
            ruling.nowhere.add(frame)
    return ruling


def check(
    ruling: Ruling, frames: range, shares: list[list[int]], counts: dict[str, int], ranks: list[int], origin: bool
) -> None:
    """Check who reads what: shares[i] are the frames that node i reads."""
    reads = Counter(frame for share in shares for frame in share)
    assert reads == Counter(frames), "every frame once"
    reader = {frame: i for i, share in enumerate(shares) for frame in share}
    assert all(reader[frame] in holders for frame, holders in ruling.native.items())
    given_up = {frame for frame, holders in ruling.alien.items() if reader[frame] not in holders}
    handed_on = {frame for frame, holders in ruling.contested.items() if reader[frame] not in holders}
    cached = {**ruling.native, **ruling.alien, **ruling.contested}
    from_cache = [sum(1 for frame in share if i in cached.get(frame, ())) for i, share in enumerate(shares)]
    # Natives of several nodes count for each of them until it is decided who reads them.
    several = any(len(holders) > 1 for holders in ruling.native.values())
    counted = [several * sum(i in holders for holders in cached.values()) for i in range(len(shares))]
    if origin:
        assert all(n <= limit for n, limit in zip(from_cache, ruling.limit, strict=True)) or not frames
        if given_up | handed_on:
            loads = [max(len(share), count) for share, count in zip(shares, counted, strict=True)]
            assert any(load >= limit for load, limit in zip(loads, ruling.limit, strict=True))
    else:
        assert not given_up | handed_on
    assert sum(counts.values()) == len(frames)
    assert counts["native"] == len(ruling.native)
    # A frame that its one holder gave up is residue, and may still come back to it with its part of the residue.
    assert counts["alien"] <= len(ruling.alien) - len(given_up)
    if not origin or max(from_cache + counted, default=0) < min(ruling.limit, default=0):
        assert counts["alien"] == len(ruling.alien)
    # The residue went to the emptiest: nobody who got some is more than a frame above the level of anyone else.
    free = {frame for frame in frames if reader[frame] not in cached.get(frame, ())}
    levels = [Fraction(len(share), n) for share, n in zip(shares, ranks, strict=True)]
    for i, share in enumerate(shares):
        if free & set(share):
            assert all(
                Fraction(len(share) - 1, ranks[i]) <= level + Fraction(1, n)
                for level, n in zip(levels, ranks, strict=True)
            )
