"""What reduce_many() gets, and how many pairs may come together."""

import numpy as np
import pytest

import himach
from himach.engine.merging import merge, parts
from himach.errors import AnalysisError

from ..twin import made_up, run_engine

FRAMES = range(12)


class Several(himach.Analysis):
    """Pairs of two keys, the second of which is in frames without a box alone; where `mixed`, of several layouts."""

    mixed: bool = False

    def map(self, frame):
        yield himach.Pairs([1] if frame.box is not None else [1, 2], np.ones(1 if frame.box is not None else 2))
        if self.mixed:
            yield himach.Pairs([1], np.ones(1, dtype=np.float32))

    def reduce_many(self, keys, series):
        for place in range(len(keys)):
            item, last = series[place], series[place - len(keys)]
            assert item.frames.tolist() == last.frames.tolist()
            yield len(item), series.boxes is None, item.boxes is None
        for place in (len(keys), -len(keys) - 1):
            with pytest.raises(IndexError):
                series[place]


@pytest.mark.parametrize("span", [1, 1 << 16])
def test_boxes_do_not_depend_on_which_keys_come_together(span, monkeypatch):
    monkeypatch.setattr(merge, "MAX_PAIRS_AT_A_TIME", span)
    (results,) = run_engine(None, [[Several()]], FRAMES, made_up(FRAMES, "some")).results
    assert dict(results) == {1: (12, False, False), 2: (8, False, True)}


@pytest.mark.parametrize("mixed", [False, True])
def test_more_pairs_than_rows_can_be_numbered_are_refused(mixed, monkeypatch):
    monkeypatch.setattr(parts, "MAX_PAIRS", 10)
    with pytest.raises(AnalysisError, match=r"have \d\d pairs, and at most 10 .* under more keys"):
        run_engine(None, [[Several(mixed=mixed)]], FRAMES, made_up(FRAMES))
