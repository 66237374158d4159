"""A map() that does nothing: what a run costs that only reads."""

import himach


class Nothing(himach.Analysis):
    """Look at every frame and yield nothing."""

    def map(self, frame):
        """Yield nothing."""
        return ()

    def reduce(self, key, series):
        """Never called: there are no keys."""
