"""Pictures of ensembles: a line for each member, a band for each group, and points where there is no curve."""

import numpy as np
import pytest

from himach import Column, Member, Table
from himach.output.figures.picture import canvas, png
from himach.output.figures.plots import figure
from himach.runner.ensemble.joint_outcome import join
from himach.runner.ensemble.plot import EnsemblePlot
from himach.uncertainty import replicas


def members_of(groups, **metadata) -> list[Member]:
    return [Member(f"r{i}", "traj.xtc", group=group, metadata=metadata) for i, group in enumerate(groups)]


def drawn(members, outcomes, level=0.95):
    axes = canvas((4, 3)).subplots()
    EnsemblePlot(members, level).plot(join("x", members, outcomes, level), axes)
    axes.figure.canvas.draw()
    return axes


def lines(axes, least: int = 2) -> list[tuple[list[float], list[float]]]:
    """Return the lines of the axes that have so many places."""
    return [
        (line.get_xdata().tolist(), line.get_ydata().tolist())
        for line in axes.get_lines()
        if len(line.get_xdata()) >= least and line.get_linestyle() == "-"
    ]


def bands(axes) -> list[np.ndarray]:
    """Return the least and largest value of each band, by place."""
    result = []
    for band in axes.collections:
        x, y = band.get_paths()[0].vertices.T
        places = np.unique(x)
        result.append(np.array([[place, y[x == place].min(), y[x == place].max()] for place in places]))
    return result


def legend(axes) -> list[str]:
    return [] if axes.get_legend() is None else [text.get_text() for text in axes.get_legend().get_texts()]


def curves(n: int, length=20, seed: int = 1) -> list[Table]:
    random = np.random.default_rng(seed)
    return [
        Table({"r": Column(np.arange(size) / 2, "Å", role="x"), "g": Column(random.normal(size=size), "nm")})
        for size in (np.broadcast_to(length, n))
    ]


def series(n: int, length=20, begin=0, step=1.0) -> list[Table]:
    random = np.random.default_rng(2)
    sizes, begins, steps = (np.broadcast_to(each, n) for each in (length, begin, step))
    return [
        Table({"time_ps": Column(b + np.arange(size) * dt, "ps"), "rmsd": Column(random.normal(size=size), "Å")})
        for size, b, dt in zip(sizes, begins, steps, strict=True)
    ]


def test_a_line_a_member_and_a_band_a_group():
    tables = curves(7)
    axes = drawn(members_of(["wt"] * 3 + ["mut"] * 4), tables, 0.9)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("r / Å", "g / nm")
    assert legend(axes) == ["wt: mean of 3, 90 % interval", "mut: mean of 4, 90 % interval"]
    result = lines(axes)
    assert result[:7] == [(table["r"].tolist(), table["g"].tolist()) for table in tables]
    colours = [line.get_color() for line in axes.get_lines()]
    assert colours == ["C0"] * 3 + ["C1"] * 4 + ["C0", "C1"]
    for of, line, band in zip((tables[:3], tables[3:]), result[7:], bands(axes), strict=True):
        expected = replicas(np.array([table["g"] for table in of]), 0.9)
        np.testing.assert_allclose(line[1], expected.value)
        np.testing.assert_allclose(band, np.transpose([line[0], expected.low, expected.high]))


def test_few_members_without_groups_are_named():
    axes = drawn(members_of([None] * 3), series(3))
    assert legend(axes) == ["r0", "r1", "r2", "all: mean of 3, 95 % interval"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("time / ps", "rmsd / Å")
    assert [line.get_color() for line in axes.get_lines()] == ["C0", "C1", "C2", "black"]
    assert legend(drawn(members_of([None] * 9), series(9))) == ["all: mean of 9, 95 % interval"]


def test_names_stay_with_their_lines_where_a_member_gave_nothing():
    tables = series(3)
    axes = drawn(members_of([None] * 3), [None, *tables[1:]])
    named = {line.get_label(): line.get_ydata().tolist() for line in axes.get_lines()}
    assert named["r1"] == tables[1]["rmsd"].tolist()
    assert named["r2"] == tables[2]["rmsd"].tolist()
    assert legend(axes) == ["r1", "r2", "all: mean of 2, 95 % interval"]


def test_bands_are_where_all_members_of_the_group_are():
    tables = series(4, length=[10, 20, 15, 15], begin=[0, 0, 0, 100])
    tables[1]["rmsd"][4] = np.nan
    axes = drawn(members_of(["a", "a", "b", "b"]), tables)
    (band,) = bands(axes)
    assert band[:, 0].tolist() == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    assert legend(axes) == ["a: mean of 2, 95 % interval", "b: 2 members"]
    assert [len(x) for x, _ in lines(axes)[:4]] == [10, 20, 15, 15]
    (rounded,) = bands(drawn(members_of([None] * 2), series(2, step=[0.2, 0.2000001])))
    assert len(rounded) == 20


def test_a_band_of_two_does_not_flatten_the_lines():
    tables = [Table({"r": Column([0.0, 1.0, 2.0], role="x"), "g": [value, 0.5, 1 - value]}) for value in (0.0, 1.0)]
    axes = drawn(members_of(["a", "a"]), tables)
    assert bands(axes)[0][0, 2] > 6
    low, high = axes.get_ylim()
    assert -1 < low < 0
    assert 1 < high < 2


def test_members_of_no_group_are_grey():
    axes = drawn(members_of(["a", "a", None, "b"]), curves(4))
    colours = [line.get_color() for line in axes.get_lines() if len(line.get_xdata())]
    assert colours == ["grey", "C0", "C0", "C1", "C0"]
    assert legend(axes) == ["a: mean of 2, 95 % interval", "b: 1 member"]


def test_without_confidence_there_are_lines_alone():
    axes = drawn(members_of(["a", "a", "b"]), curves(3), None)
    assert bands(axes) == []
    assert len(lines(axes)) == 3
    axes = drawn(members_of(["a", "a", "b"]), [1.5, 2.5, 3.5], None)
    assert [line.get_ydata().tolist() for line in axes.get_lines()] == [[1.5], [2.5], [3.5]]


def test_single_values_are_points_with_bars():
    axes = drawn(members_of(["a", "a", "a", "b"]), [1.0, 2.0, 4.0, 3.0])
    points = [(line.get_xdata().tolist(), line.get_ydata().tolist()) for line in axes.get_lines()]
    assert [point for point in points if point[0] in ([0], [1])] == [
        ([0], [1.0]), ([0], [2.0]), ([0], [4.0]), ([1], [3.0]),
    ]  # fmt: skip
    expected = replicas([1.0, 2.0, 4.0])
    bar = axes.containers[0].lines[2][0].get_segments()[0]
    np.testing.assert_allclose(bar[:, 1], [expected.low, expected.high])
    assert [label.get_text() for label in axes.get_xticklabels()] == ["a", "b"]
    assert axes.get_ylabel() == "x"


def test_rows_of_texts_are_each_shown():
    states = ["open", "shut", "bound"]
    tables = [Table({"state": states, "p": [0.1 * i, 0.5, 0.4]}) for i in range(4)]
    axes = drawn(members_of("aabb"), tables)
    assert [label.get_text() for label in axes.get_xticklabels()] == states
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("state", "p")
    points = [line.get_ydata().tolist() for line in axes.get_lines() if line.get_marker() == "o"]
    assert points == [table["p"].tolist() for table in tables]
    first, last = axes.get_lines()[0].get_xdata(), [line for line in axes.get_lines() if line.get_marker() == "o"][-1]
    assert (first < last.get_xdata()).all()  # groups stand beside each other


@pytest.mark.parametrize(
    ("groups", "outcomes"),
    [
        ([None], series(1)),
        ([None], [1.5]),
        (["a"], curves(1)),
        (["a"] * 15 + ["b"] * 15, curves(30)),
        (["a"] * 15 + ["b"] * 15, series(30, length=range(5, 35))),
        (["a"] * 15 + ["b"] * 15, list(range(30))),
        ([None] * 3, [Table({"x": [1.0, 2.0, 3.0][:n]}) for n in (1, 2, 3)]),
        ([None] * 2, [Table({"name": ["a", "b"], "x": [np.nan, np.nan]})] * 2),
        ([None] * 2, [Table({"r": [1.0, 2.0], "x": [np.nan, np.nan]})] * 2),
        ([None] * 2, [Table({"r": [], "x": []})] * 2),
        ([None] * 2, [Table({"name": ["a"]})] * 2),
        ([None] * 2, [np.zeros((2, 2))] * 2),
        ([None] * 2, [Table({"r": [1.0, 2.0], "x": [1.0, None]}), Table({"r": [1.0], "y": [1.0]})]),
        ([None] * 2, [Table({"time_ps": [0.0, 0.0, 1.0], "x": [1.0, 2.0, 3.0]})] * 2),
        ([None] * 2, [Table({"k": ["a", None, 3], "x": [1.0, 2.0, 3.0]})] * 2),
    ],
)
def test_any_outcome_can_be_drawn_with_the_same_bytes(groups, outcomes):
    members = members_of(groups)
    twice = []
    for _ in range(2):
        outcome = join("x", members, outcomes, 0.95)
        twice.append(png(figure([("title", EnsemblePlot(members), outcome)])))
    assert twice[0] == twice[1]
    assert twice[0].startswith(b"\x89PNG")
