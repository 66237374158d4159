"""Long series are drawn as lines: no blot, no point lost."""

import numpy as np
import pytest
from support.sample_runs import Drawn

from himach.output.figures.legend import draw_legend
from himach.output.figures.picture import encoded
from himach.output.figures.plots import figure
from himach.output.figures.series import column_means, columns_of, draw_series


def axes():
    return figure([("", Drawn(), {"x": [1.0]})]).axes[0]


@pytest.mark.parametrize("step", [1, 7])
def test_columns_are_those_of_a_loop(step):
    rng = np.random.default_rng(1)
    x = np.cumsum(rng.integers(1, 1 + step, 1000)).astype(float)
    y = rng.normal(size=1000)
    y[100:150] = np.nan
    middle, mean, low, high = columns_of(x, y, 37)
    width = (x[-1] - x[0]) / 37
    for i in range(37):
        inside = (x >= x[0] + i * width - 1e-9) & ((x < x[0] + (i + 1) * width - 1e-9) | (i == 36))
        some = y[inside & np.isfinite(y)]
        assert middle[i] == pytest.approx(x[0] + (i + 0.5) * width)
        if len(some):
            assert (mean[i], low[i], high[i]) == pytest.approx((some.mean(), some.min(), some.max()))
        else:
            assert np.isnan([mean[i], low[i], high[i]]).all()


def test_a_long_series_is_a_line_and_a_band_of_bounded_size():
    drawn = {}
    for n in (10_000, 1_000_000):
        place = axes()
        y = np.random.default_rng(0).normal(size=n)
        line = draw_series(place, np.arange(n), y, "noise")
        (band,) = place.collections
        points = len(line.get_xdata()), len(band.get_paths()[0].vertices)
        assert max(points) < 1000
        assert band.get_paths()[0].vertices[:, 1].max() == y.max()
        assert band.get_paths()[0].vertices[:, 1].min() == y.min()
        drawn[n] = len(encoded(place.figure, ["svg"])[0])
        told = f"line: mean, band: range of {round(n / points[0]):,} frames"
        assert place.get_legend_handles_labels()[1] == ["noise", told]
    assert max(drawn.values()) < 100_000


def test_a_short_series_and_one_out_of_order_is_drawn_as_it_is():
    place = axes()
    assert len(draw_series(place, np.arange(300), np.arange(300)).get_xdata()) == 300
    x = np.r_[np.arange(5000), 0]
    assert len(draw_series(place, x, x).get_xdata()) == 5001
    assert not place.collections


def test_what_has_one_text_has_one_entry_in_a_legend():
    place = axes()
    for i in range(2):
        draw_series(place, np.arange(5000), np.arange(5000), f"line {i}", linewidth=1)
    place.axhline(1, label="mean")
    place.axhspan(0, 2, label="mean")
    draw_legend(place)
    told = [text.get_text() for text in place.get_legend().get_texts()]
    assert told == ["line 0", "line: mean, band: range of 21 frames", "line 1", "mean"]
    empty = axes()
    draw_legend(empty)
    assert empty.get_legend() is None


def test_means_of_long_columns_are_those_of_a_loop_and_short_ones_are_as_they_are():
    place, x = axes(), np.arange(10_000.0)
    middle, mean, least = column_means(place, x, 2 * x, x - 1, width=1)
    np.testing.assert_allclose(mean, 2 * least + 2)
    assert len(middle) == int(3.25 * 72)
    assert column_means(place, x[:100], x[:100])[1].tolist() == x[:100].tolist()
