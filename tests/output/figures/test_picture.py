"""Figures are files of print: as broad as a column, text as text, the same bytes whenever, for all eyes."""

import subprocess
import sys
import xml.etree.ElementTree as ET
from itertools import combinations

import numpy as np
import pytest
from support.commands import clean_environment
from support.sample_runs import Drawn

from himach.errors import UsageError
from himach.output.figures.formats import FORMATS, figure_formats
from himach.output.figures.picture import encoded

DRAWING = """
import hashlib, sys
import numpy as np
from himach.output.figures.picture import canvas, encoded
from himach.output.figures.style import drawn_in_style

def picture():
    with drawn_in_style():
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
    for data in encoded(picture(), sys.argv[1:]):
        print(hashlib.sha256(data).hexdigest())
"""
# Machado, Oliveira and Fernandes, IEEE Trans. Vis. Comput. Graph. 15, 1291 (2009): severity 1, of linear RGB.
SEEN_BY = {
    "all cones": np.eye(3),
    "no long ones": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "no middle ones": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "no short ones": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}


def digests(formats, **environ):
    done = subprocess.run(
        [sys.executable, "-c", DRAWING, *formats],
        check=True, capture_output=True, text=True, env=clean_environment(**environ),
    )  # fmt: skip
    return done.stdout.split()


def test_equal_figures_are_equal_bytes_in_another_process_and_at_another_time():
    first = digests(FORMATS, PYTHONHASHSEED="1", SOURCE_DATE_EPOCH="1")
    assert len(set(first)) == 3
    assert first[::-1] == digests(FORMATS[::-1], PYTHONHASHSEED="2", SOURCE_DATE_EPOCH="1234567890")


@pytest.fixture(scope="module")
def files():
    from himach.output.figures.plots import drawn

    return dict(zip(FORMATS, drawn(("Drawn", Drawn(), {"x": np.arange(5.0)}), FORMATS), strict=True))


def test_a_figure_is_as_broad_as_a_column(files):
    root = ET.fromstring(files["svg"])
    assert root.get("width") == "234pt"  # 72 an inch
    assert b"/MediaBox [ 0 0 234 172.8 ]" in files["pdf"]
    assert int.from_bytes(files["png"][16:20], "big") == 975  # 300 dots an inch


def test_all_formats_have_one_layout():
    from himach.output.figures.plots import figure

    places = {}
    for kind in FORMATS:
        picture = figure([("Drawn", Drawn(), {"x": np.arange(5.0)})])
        encoded(picture, [kind])
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
    from himach.output.figures.plots import figure

    picture = figure([("Drawn", Drawn(), {"x": np.arange(5.0)})])
    picture.savefig(tmp_path / "one.svg")
    text = (tmp_path / "one.svg").read_bytes()
    assert b"dc:date" not in text
    assert b"<text" in text
    picture.savefig(tmp_path / "one.png")
    assert (tmp_path / "one.png").read_bytes() == files["png"]


def lab(colour):
    """Return CIE L*a*b* of linear RGB, white as of D65."""
    xyz = np.array(
        [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
    )
    t = np.clip(xyz @ colour / (xyz @ np.ones(3)), 0, None)
    x, y, z = np.where(t > 216 / 24389, np.cbrt(t), (24389 / 27 * t + 16) / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def least_difference(colours, matrix):
    """Return the least CIE76 difference of two of the colours, as who sees by that matrix sees them."""
    rgb = np.asarray(colours)
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    seen = [lab(np.clip(np.asarray(matrix) @ one, 0, 1)) for one in linear]
    return min(float(np.linalg.norm(a - b)) for a, b in combinations(seen, 2))


@pytest.mark.parametrize("eyes", SEEN_BY)
def test_colours_are_told_apart_by_all_eyes(eyes):
    import matplotlib
    from matplotlib.colors import to_rgb

    from himach.output.figures.style import drawn_in_style

    with drawn_in_style():
        colours = [to_rgb(one) for one in matplotlib.rcParams["axes.prop_cycle"].by_key()["color"]]
    assert len(colours) >= 6
    assert least_difference(colours, SEEN_BY[eyes]) > 10  # 2.3 is a just noticeable one
    usual = [to_rgb(one) for one in matplotlib.rcParamsDefault["axes.prop_cycle"].by_key()["color"]]
    if "no long" in eyes or "no middle" in eyes:
        assert least_difference(usual, SEEN_BY[eyes]) < 10


@pytest.mark.parametrize(
    ("asked", "found"), [("svg", "svg"), ("PDF, png", "pdf png"), (["png", "svg", "png"], "png svg")]
)
def test_formats_are_asked_for_by_name(asked, found):
    assert list(figure_formats(asked)) == found.split()


@pytest.mark.parametrize(
    ("asked", "word"), [("gif", "gif"), ("png,,svg", "no format"), ((), "no format"), ("svg pdf", "svg pdf")]
)
def test_a_format_that_plots_do_not_have_is_refused_by_name(asked, word):
    with pytest.raises(UsageError, match=rf"{word}.* plots are svg, pdf, png"):
        figure_formats(asked)
