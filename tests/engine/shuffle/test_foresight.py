"""What will not fit is said from the first frames, with the way out; what will fit is not."""

import warnings

import numpy as np
import pytest
from MDAnalysis.tests.datafiles import DCD, PSF

import himach

MEMORY = 1 << 20


class One(himach.Analysis):
    """A long series of one key."""

    keys: int = 1

    def map(self, frame):
        yield frame.number % self.keys, np.zeros(5000)

    def reduce(self, key, series):
        return len(series)


class Folded(One):
    """A sum, whatever the frames are."""

    def combine(self, key, series):
        return sum(series.values)


@pytest.mark.parametrize("options", [{}, {"step": -1}])
def test_a_key_that_will_be_too_large_is_told(options):
    obtained = (
        r"One: map\(\) yields some 3\d,\d+ bytes a frame for one key, 0.00\d+ GB in all frames, "
        r".*himach.Row a frame, .*combine\(\), .*finer"
    )
    with pytest.warns(UserWarning, match=obtained) as details:
        result = himach.run(One(), DCD, PSF, memory=MEMORY, **options)
    assert len([item for item in details if "bytes a frame" in str(item.message)]) == 1
    assert result.outcome.rows == 1


@pytest.mark.parametrize(
    ("analysis", "memory"), [(One(keys=98), MEMORY), (Folded(), MEMORY), (One(), 1 << 24)], ids=str
)
def test_what_fits_is_not(analysis, memory):
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.filterwarnings("ignore", module="MDAnalysis")
        himach.run(analysis, DCD, PSF, memory=memory)
