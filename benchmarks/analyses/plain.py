"""Built-ins without what intervals need: g(r) by one sum over all frames, mean squared displacements without blocks."""

import numpy as np
from MDAnalysis.lib.mdamath import box_volume

import himach
from himach.examples.common import width
from himach.examples.liquids.msd import Msd
from himach.examples.liquids.rdf import COUNTS, FINE, WIDTH, Rdf
from himach.uncertainty import block_row


class PlainRdf(Rdf):
    """g(r) by one sum over all frames, which has no band."""

    def map(self, frame):
        """Yield the pairs of a frame by distance, its volume and its least width."""
        volume = float(box_volume(frame.box))
        yield himach.Pairs([WIDTH], [width(frame.box, volume)])
        yield himach.Pairs([COUNTS], [np.append(self.count(frame), [int(volume), int(volume % 1 * FINE)])])

    def reduce(self, key, series):
        """Return the sums, or the least width."""
        return np.min(series.values) if key == WIDTH else np.sum(series.values, axis=0)

    def finish(self, results):
        """Return the table."""
        return super().finish({**results, COUNTS: block_row(0, results[COUNTS])[np.newaxis]})


class PlainMsd(Msd):
    """Mean squared displacement without blocks of windows."""

    def setup(self, universe):
        """Prepare as usual, for no blocks."""
        super().setup(universe)
        self.n_blocks = 0
