"""Figures are files of print: style, formats, bytes, colours, and long series as lines."""

import subprocess
import sys
import xml.etree.ElementTree as ET

import matplotlib
import numpy as np
import pytest
from support.commands import clean_environment
from support.sample_runs import Drawn

from himach.errors import UsageError
from himach.output.figures.picture import canvas, encode_figure, style_context
from himach.output.figures.plots import figure, render_plot
from himach.output.figures.time_series import bin_columns, column_means, draw_legend, draw_series
from himach.output.file_names import FIGURES, figure_formats

DRAWING = """
import hashlib, sys
import numpy as np
from himach.output.figures.picture import canvas, encode_figure
from himach.output.figures.picture import style_context

def picture():
    with style_context():
        made = canvas()
        axes = made.subplots()
        x = np.linspace(0, 10, 50)
        axes.plot(x, np.sin(x), label="sin µ(Å²)")
        axes.fill_between(x, np.sin(x) - 0.1, np.sin(x) + 0.1, alpha=0.3)
        made.colorbar(axes.pcolormesh(np.eye(3), rasterized=True), label="share")
        axes.set(xlabel="time / ps", ylabel="$S_{CH}$", title="A title")
        axes.legend()
    return made

if __name__ == "__main__":
    for data in encode_figure(picture(), sys.argv[1:]):
        print(hashlib.sha256(data).hexdigest())
"""
# Okabe and Ito's colours, which all eyes tell apart (Wong, Nat. Methods 8, 441 (2011)), in himach's order.
COLOURS = "#0072B2 #D55E00 #009E73 #CC79A7 #E69F00 #56B4E9 #000000"


def digests(formats, **environ):
    words, environ = [sys.executable, "-c", DRAWING, *formats], clean_environment(**environ)
    return subprocess.run(words, check=True, capture_output=True, text=True, env=environ).stdout.split()


def test_equal_figures_are_equal_bytes_in_another_process_and_at_another_time():
    first = digests(FIGURES, PYTHONHASHSEED="1", SOURCE_DATE_EPOCH="1")
    assert len(set(first)) == 3
    assert first[::-1] == digests(FIGURES[::-1], PYTHONHASHSEED="2", SOURCE_DATE_EPOCH="1234567890")


@pytest.fixture(scope="module")
def files():
    return dict(zip(FIGURES, render_plot(("Drawn", Drawn(), {"x": np.arange(5.0)}), FIGURES), strict=True))


def test_a_figure_is_as_broad_as_a_column(files):
    root = ET.fromstring(files["svg"])
    assert root.get("width") == "234pt"  # 72 an inch
    assert b"/MediaBox [ 0 0 234 172.8 ]" in files["pdf"]
    assert int.from_bytes(files["png"][16:20], "big") == 975  # 300 dots an inch


def test_all_formats_have_one_layout():
    places = {}
    for kind in FIGURES:
        picture = figure([("Drawn", Drawn(), {"x": np.arange(5.0)})])
        encode_figure(picture, [kind])
        places[kind] = picture.axes[0].get_position().bounds
    assert places["svg"] == places["pdf"] == places["png"]


def test_text_is_text(files):
    words = {element.text for element in ET.fromstring(files["svg"]).iter("{http://www.w3.org/2000/svg}text")}
    assert {"Drawn", "time (ps)", "0.0", "4.0"} <= words
    assert b"/Subtype /CIDFontType2" in files["pdf"] or b"/FontFile2" in files["pdf"]  # TrueType, not shapes (Type 3)
    assert b"/Type3" not in files["pdf"]


def test_nothing_tells_when_or_by_what_a_figure_was_made(files):
    for kind, data in files.items():
        for word in (b"Date", b"dc:date", b"Creator", b"Producer", b"matplotlib.org", b"Software"):
            assert word not in data, (kind, word)


def test_a_figure_that_is_saved_by_hand_is_the_same_file(tmp_path, files):
    picture = figure([("Drawn", Drawn(), {"x": np.arange(5.0)})])
    picture.savefig(tmp_path / "one.svg")
    text = (tmp_path / "one.svg").read_bytes()
    assert b"dc:date" not in text
    assert b"<text" in text
    picture.savefig(tmp_path / "one.png")
    assert (tmp_path / "one.png").read_bytes() == files["png"]


def test_colours_are_told_apart_by_all_eyes():
    with style_context():
        colours = matplotlib.rcParams["axes.prop_cycle"].by_key()["color"]
    assert colours == COLOURS.split()


@pytest.mark.parametrize(
    ("requested", "formats"), [("svg", "svg"), ("PDF, png", "pdf png"), (["png", "svg", "png"], "png svg")]
)
def test_formats_are_asked_for_by_name(requested, formats):
    assert list(figure_formats(requested)) == formats.split()


@pytest.mark.parametrize(
    ("requested", "word"), [("gif", "gif"), ("png,,svg", "no format"), ((), "no format"), ("svg pdf", "svg pdf")]
)
def test_a_format_that_plots_do_not_have_is_refused_by_name(requested, word):
    with pytest.raises(UsageError, match=rf"{word}.* plots are svg, pdf, png"):
        figure_formats(requested)


def axes():
    return figure([("", Drawn(), {"x": [1.0]})]).axes[0]


@pytest.mark.parametrize("step", [1, 7])
def test_columns_are_those_of_a_loop(step):
    rng = np.random.default_rng(1)
    x = np.cumsum(rng.integers(1, 1 + step, 1000)).astype(float)
    y = rng.normal(size=1000)
    y[100:150] = np.nan
    middle, mean, low, high = bin_columns(x, y, 37)
    width = (x[-1] - x[0]) / 37
    for i in range(37):
        inside = (x >= x[0] + i * width - 1e-9) & ((x < x[0] + (i + 1) * width - 1e-9) | (i == 36))
        values = y[inside & np.isfinite(y)]
        assert middle[i] == pytest.approx(x[0] + (i + 0.5) * width)
        if len(values):
            assert (mean[i], low[i], high[i]) == pytest.approx((values.mean(), values.min(), values.max()))
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
        drawn[n] = len(encode_figure(place.figure, ["svg"])[0])
        label = f"line: mean, band: range of {round(n / points[0]):,} frames"
        assert place.get_legend_handles_labels()[1] == ["noise", label]
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
    texts = [text.get_text() for text in place.get_legend().get_texts()]
    assert texts == ["line 0", "line: mean, band: range of 21 frames", "line 1", "mean"]
    empty = axes()
    draw_legend(empty)
    assert empty.get_legend() is None


def test_means_of_long_columns_are_those_of_a_loop_and_short_ones_are_as_they_are():
    place, x = axes(), np.arange(10_000.0)
    middle, mean, least = column_means(place, x, 2 * x, x - 1, width=1)
    np.testing.assert_allclose(mean, 2 * least + 2)
    assert len(middle) == int(3.25 * 72)
    assert column_means(place, x[:100], x[:100])[1].tolist() == x[:100].tolist()


ORDERS = {
    "himach first": "import himach, sys; assert 'matplotlib' not in sys.modules; import matplotlib.pyplot as plt",
    "Matplotlib first": "import matplotlib, himach; import matplotlib.pyplot as plt",
    "pyplot first": "import matplotlib.pyplot as plt; import himach",
}
USE = """
import sys
plt.style.use("himach")
assert plt.rcParams["figure.figsize"] == [3.25, 2.4], plt.rcParams["figure.figsize"]
assert plt.rcParams["svg.fonttype"] == "none"
assert "himach" in plt.style.available
assert not [one for one in sys.meta_path if type(one).__module__ == "himach"] or "pyplot" in ORDER
"""


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize("order", ORDERS)
def test_a_users_matplotlib_knows_the_style(order):
    code = f"ORDER = {order!r}\n{ORDERS[order]}\n{USE}"
    words = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(words, check=False, capture_output=True, text=True, env=clean_environment())
    assert done.returncode == 0, done.stderr


def test_what_a_user_has_set_is_as_he_set_it():
    with matplotlib.rc_context({"font.size": 13.0, "figure.figsize": (5.0, 4.0)}):
        with style_context():
            assert matplotlib.rcParams["font.size"] == 13
            assert matplotlib.rcParams["axes.titlesize"] == 8
        assert list(canvas().get_size_inches()) == [5, 4]
        assert matplotlib.rcParams["svg.fonttype"] == "path"
    assert list(canvas().get_size_inches()) == [3.25, 2.4]


class Panels(Drawn):
    def plot(self, outcome, axes):
        axes.set_visible(False)
        grid = axes.get_subplotspec().subgridspec(3, 1, height_ratios=[1, 1, 2])
        for i in range(3):
            axes.figure.add_subplot(grid[i]).plot([1, 2])


class Below(Drawn):
    texts: int = 1

    def plot(self, outcome, axes):
        for i in range(self.texts):
            axes.plot([0, 1], label=str(i))
        draw_legend(axes, below=True)


def test_a_plot_with_panels_is_as_high_as_these_need():
    width, height = figure([("Panels", Panels(), None)]).get_size_inches()
    assert width == 3.25
    assert height == pytest.approx(2.4 * 0.72 * 4)
    both = figure([("Panels", Panels(), None), ("Drawn", Drawn(), {"x": [1.0, 2.0]})])
    assert both.get_size_inches()[1] == pytest.approx(height + 2.4)
    both.draw_without_rendering()
    hidden, single, *three = both.axes
    assert [axes.get_title() for axes in both.axes] == ["", "Drawn", "Panels", "", ""]
    assert not hidden.get_visible()
    assert sum(axes.get_position().height for axes in three) > 1.8 * single.get_position().height


def test_a_legend_below_makes_a_plot_higher_by_its_lines():
    heights = [figure([("", Below(texts=texts), None)]).get_size_inches()[1] for texts in (1, 3)]
    assert heights == pytest.approx([2.4 + 10 / 72, 2.4 + 30 / 72])
