"""The sum of all coordinates of each frame: an analysis that reads every atom."""

import himach


class Sums(himach.Analysis):
    """Add up a frame's coordinates."""

    def map(self, frame):
        """Yield the frame's sum."""
        yield frame.number, float(frame.positions.sum())

    def reduce(self, key, series):
        """Return it."""
        return series.values[0]

    def finish(self, results):
        """Return the table of sums."""
        return {"sums": {"frame": list(results), "sum": list(results.values())}}
