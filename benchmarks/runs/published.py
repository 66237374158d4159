"""What papers published, beside what the forms of `himach.planning` say of it: `points()`.

Each point tells what was taken from the paper, what was fitted to one of its numbers or is its formula over its own
figures and so predicts nothing, and what was predicted; or why the published setting does not determine the number.

Tu et al., "Accelerating Parallel Analysis of Scientific Simulation Data via Zazen", FAST 2010. Zhao et al., "Towards
Exploring Data-Intensive Scientific Applications at Extreme Scales through Systems and Simulations", IEEE Trans.
Parallel Distrib. Syst. 27, 1824 (2016): FusionSim.
"""

from dataclasses import dataclass

from himach.planning import closed_forms as forms

__all__ = ["Point", "points"]

#: The cluster of the Zazen paper: nodes, and what the disks of one give.
NODES = 100
DISKS = 22.5e9 / NODES
#: Its water residence: frames, bytes of a frame, seconds from caches and from NFS.
FRAMES, FRAME = 2.5e6, 430e3
CACHED, NFS = 316.0, 3446.0
#: What files of two sizes gave, and how many times what NFS did.
LARGE, SMALL = (1e9, 20e9, 75), (2e6, 8e9, 25)


@dataclass(frozen=True)
class Point:
    """A published number.

    Attributes
    ----------
    what, unit
        What it is of.
    published
        The number.
    found
        What the forms say: one number, or the range that they leave open.
    how
        ``predicted``; ``formula`` where it follows from other figures of the paper; ``fitted``; or ``open`` where the
        published setting does not determine it.
    reason
        From what it follows, what was fitted, or what could not be read of it.
    """

    what: str
    unit: str
    published: float
    found: tuple[float, float]
    how: str
    reason: str

    @property
    def error(self) -> float:
        """The predicted number's error, as a part of the published one."""
        return sum(self.found) / 2 / self.published - 1


def points() -> list[Point]:
    """Return all of them."""
    return [*_lost_nodes(), *_water(), *_files(), *_rounds(), *_fusion()]


def _lost_nodes() -> list[Point]:
    """Return the most that a run can take: what lost nodes held is read from NFS, at worst when all else is done."""
    published = {0.1: 2.09, 0.2: 3.18, 0.3: 4.27, 0.4: 5.36, 0.5: 6.45}
    return [
        Point(
            f"water residence, {part:.0%} of the nodes' caches lost, bound",
            "times",
            bound,
            (1 + part * NFS / CACHED,) * 2,
            "formula",
            "the paper's, from the two times of the next rows",
        )
        for part, bound in published.items()
    ]


def _water() -> list[Point]:
    """Return NFS's time at the rate of 2-MB files, which are nearest to frames; from caches, map() is part of it."""
    _, small, times = SMALL
    from_nfs = FRAMES * FRAME / (small / times)
    _, large, _ = LARGE
    reading = FRAMES * FRAME / large, FRAMES * FRAME / small
    return [
        Point("water residence from NFS", "s", NFS, (from_nfs, from_nfs), "formula",
              "NFS's rate for 2-MB files: 8 GB/s over the 25 times by which Zazen was faster"),
        Point("water residence from caches", "s", CACHED, reading, "open",
              "reading takes this long, at the rate of 1-GB to that of 2-MB files; what map() and reduce() take is not "
              "published"),
    ]  # fmt: skip


def _files() -> list[Point]:
    """Return what a file costs, its bytes and an overhead: two published rates for two unknowns."""
    large, small = (size / (rate / NODES) for size, rate, _ in (LARGE, SMALL))
    slope = (large - small) / (LARGE[0] - SMALL[0])
    overhead = large - slope * LARGE[0]
    told = f"fitted: {1 / slope / DISKS:.0%} of the disks' rate and {overhead * 1e3:.0f} ms a file, two numbers to two"
    return [
        Point(f"reads of {size / 1e6:.0f}-MB files on {NODES} nodes", "GB/s", rate / 1e9,
              (NODES * size / (overhead + slope * size) / 1e9,) * 2, "fitted", told)
        for size, rate, _ in (LARGE, SMALL)
    ]  # fmt: skip


def _rounds() -> list[Point]:
    """Return the rounds of 1e9 frames, by the two algorithms of which MPI libraries take one, at a gigabit a second."""
    network, latency, combine = 117.6e6, 5e-5, 1e9
    native, counts = forms.zazen_bytes(int(1e9))
    both = [
        sum(form(NODES, nbytes, latency, network, combine) for nbytes in (native, counts))
        for form in (forms.scattered_seconds, forms.doubling_seconds)
    ]
    return [
        Point("Zazen's rounds, 1e9 frames on 100 nodes", "s", 14.9, (both[0], both[1]), "open",
              "which algorithm their MPI took, and at which rate it combined bitmaps, is not published, as far as "
              "it could be read; the range is of both algorithms at 1 Gbit/s"),
    ]  # fmt: skip


def _fusion() -> list[Point]:
    """FusionSim's nodes have disks of their own: linear but for a share that the file system takes, fitted once."""
    alone, nodes, more = 174e6, 16_384, 2_097_152
    share = 2.5e12 / (alone * nodes)
    return [
        Point("FusionSim, 16,384 nodes", "TB/s", 2.5, (2.5, 2.5), "fitted",
              f"{share:.0%} of the disks' 174 MB/s a node; the disks alone would give {alone * nodes / 1e12:.2f}"),
        Point("FusionSim, 2 million nodes", "TB/s", 329.0, (share * alone * more / 1e12,) * 2, "predicted",
              "from the rate of 16,384 nodes, as nothing is shared"),
    ]  # fmt: skip
