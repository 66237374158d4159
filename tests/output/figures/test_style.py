"""The style ``himach``: found by name where himach is imported, and given way to the user's own."""

import subprocess
import sys

import matplotlib
import pytest
from support.commands import clean_environment
from support.sample_runs import Drawn

from himach.output.figures.legend import draw_legend
from himach.output.figures.picture import canvas
from himach.output.figures.plots import figure
from himach.output.figures.style import drawn_in_style

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
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        check=False,
        capture_output=True,
        text=True,
        env=clean_environment(),
    )
    assert done.returncode == 0, done.stderr


def test_what_a_user_has_set_is_as_he_set_it():
    with matplotlib.rc_context({"font.size": 13.0, "figure.figsize": (5.0, 4.0)}):
        with drawn_in_style():
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
    hidden, one, *three = both.axes
    assert [axes.get_title() for axes in both.axes] == ["", "Drawn", "Panels", "", ""]
    assert not hidden.get_visible()
    assert sum(axes.get_position().height for axes in three) > 1.8 * one.get_position().height


def test_a_legend_below_makes_a_plot_higher_by_its_lines():
    heights = [figure([("", Below(texts=texts), None)]).get_size_inches()[1] for texts in (1, 3)]
    assert heights == pytest.approx([2.4 + 10 / 72, 2.4 + 30 / 72])
