"""Results: what they hold, how they show themselves."""

import io
import tracemalloc
from html.parser import HTMLParser

import numpy as np
import pytest
from matplotlib.figure import Figure
from support.sample_runs import Drawn, Failing, Plain, make_record

import himach
from himach.result import Result, print_outcome

OUTCOME = {"survival": {"tau_ps": [0.0, 10.0], "survival": [1.0, 0.5]}, "x": np.arange(6.0).reshape(2, 3), "k": 0.25}


class Balanced(HTMLParser):
    """Fails where tags do not match."""

    def __init__(self, page):
        super().__init__()
        self.open = []
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        if tag not in ("img", "meta"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_one_outcome_or_one_by_label():
    assert Result([Plain()], [5], make_record(Plain())).outcome == 5
    assert Result([Plain()], [5], make_record(Plain()), several=True).outcome == {"Plain": 5}
    both = Result([Plain(), Drawn(), Plain()], [5, 6, 7], make_record(Plain()))
    assert list(both.outcome.items()) == [("Plain", 5), ("Drawn", 6), ("Plain-2", 7)]


def test_a_result_prints_its_tables_and_sums_up_the_run():
    result = Result([Plain()], [OUTCOME], make_record(Plain()))
    assert str(result).splitlines() == [
        "survival",
        "  tau_ps  survival",
        "  ------  --------",
        "     0.0       1.0",
        "    10.0       0.5",
        "  [2 rows]",
        "",
        "x: array (2, 3) float64, from 0 to 5",
        "k: 0.25",
        "",
        "10 frames on 1 rank in 1.5 s (map: 1 s, 10 frames/s)",
    ]


def test_several_analyses_stand_under_their_labels():
    text = str(Result([Plain(), Drawn(), Plain()], [5, OUTCOME, None], make_record(Plain())))
    assert text.startswith("Plain: 5\n\nDrawn\n=====\n\nsurvival\n")
    assert "\n\nPlain-2: no outcome\n\n" in text


def test_other_ranks_have_no_outcome(tmp_path):
    result = Result([Drawn()], None, make_record(Drawn()))
    assert result.outcome is None
    assert repr(result) == str(result) == "Result(Drawn: the outcome is on rank 0)"
    assert result.write(tmp_path / "out") == []
    assert not (tmp_path / "out").exists()
    with pytest.raises(himach.UsageError, match="rank 0"):
        result.plot()


def test_a_notebook_shows_the_tables_although_the_plot_fails():
    page = Result([Failing(), Plain()], [OUTCOME, "<b>"], make_record(Failing()))._repr_html_()
    Balanced(page)
    assert "<b>survival</b>" in page
    assert "plot() of Failing failed: KeyError" in page
    assert "&lt;b&gt;" in page


def test_plots_are_figures_that_show_themselves():
    figure = Result([Drawn(), Plain(), Drawn()], [OUTCOME] * 3, make_record(Drawn())).plot()
    assert isinstance(figure, Figure)
    assert [axes.get_title() for axes in figure.axes] == ["Drawn", "Drawn-2"]
    data, metadata = figure._repr_png_()
    assert data.startswith(b"\x89PNG")
    assert metadata == {"width": 488}  # not the 975 that there are for print


def test_plots_go_where_they_are_asked_to():
    figure = Figure()
    axes = figure.subplots(1, 2)
    assert Result([Drawn()], [OUTCOME], make_record(Drawn())).plot(axes[0]) is figure
    assert axes[0].get_xlabel() == "time (ps)"
    both = Result([Drawn(), Drawn()], [OUTCOME] * 2, make_record(Drawn()))
    assert both.plot(axes) is figure
    with pytest.raises(himach.UsageError, match="2 plots need as many axes, there are 1"):
        both.plot(axes[0])
    with pytest.raises(himach.UsageError, match=r"Plain has no plot\(\), and no table of numbers"):
        Result([Plain()], [{"k": 0.25}], make_record(Plain())).plot()


def test_without_a_plot_the_first_table_is_drawn_with_its_units():
    one = himach.Table({"tau_ps": himach.Column([0.0, 1.0], "ps"), "msd": himach.Column([0.0, 2.0], "Å²")})
    (axes,) = Result([Plain()], [{"x": 5, "msd": one}], make_record(Plain())).plot().axes
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_title()) == ("tau_ps / ps", "msd / Å²", "Plain")
    np.testing.assert_array_equal(axes.lines[0].get_xydata(), [[0, 0], [1, 2]])
    two = {"t": {"t": [0, 1], "a": himach.Column([1, 2], "Å"), "b": himach.Column([3, 4], "Å"), "c": ["x", "y"]}}
    (axes,) = Result([Plain()], [two], make_record(Plain())).plot().axes
    assert axes.get_ylabel() == "Å"
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["a", "b"]


def test_a_result_is_indexed_by_name():
    result = Result([Plain()], [OUTCOME], make_record(Plain()))
    assert list(result) == result.keys() == ["survival", "x", "k"]
    assert "survival" in result
    assert "Plain" not in result
    assert isinstance(result["survival"], himach.Table)
    assert result["survival"]["survival"].tolist() == [1.0, 0.5]
    assert result["x"].shape == (2, 3)
    assert result["k"] == 0.25
    with pytest.raises(KeyError, match="there is no 'rmsd' in this result; there is survival, x, k"):
        result["rmsd"]


def test_the_index_gives_the_same_kind_of_thing_for_several_analyses():
    both = Result([Plain(), Drawn()], [5, OUTCOME], make_record(Plain()))
    assert list(both) == ["Plain/Plain", "Drawn/survival", "Drawn/x", "Drawn/k"]
    assert both["survival"]["tau_ps"].tolist() == both["Drawn/survival"]["tau_ps"].tolist() == [0, 10]
    assert isinstance(both["survival"], himach.Table)
    assert both.to_frame().equals(both.to_frame("survival"))
    assert both["Plain"] == 5
    assert "Drawn" not in both
    twice = Result([Drawn(), Drawn()], [OUTCOME, OUTCOME], make_record(Plain()))
    assert twice["Drawn-2/survival"].rows == 2
    assert "survival" not in twice
    with pytest.raises(KeyError, match="there is no one 'survival' in this result; there are Drawn/survival, Drawn-2"):
        twice["survival"]
    assert Result([Plain()], [5], make_record(Plain()), several=True)["Plain"] == 5
    assert Result([Drawn()], None, make_record(Drawn())).keys() == []


def test_members_are_made_when_they_are_asked_for():
    """Of very many the memory is that of what they gave."""
    names = [f"r{number}" for number in range(1000)]
    errors = {**dict.fromkeys(names), "failed": "member failed failed: why"}
    told = [{"name": name, "error": error} for name, error in errors.items()]
    record = {**make_record(Plain()), "planning": {}, "ensemble": told}
    outcomes = {name: ([{"at": name}], {"frames": 7}) for name in names}
    tracemalloc.start()
    members = Result([Plain()], [{}], record, members=outcomes).members
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1e6
    assert [*members] == names and len(members) == 1000
    assert members["r7"]["at"] == "r7" and members["r7"].record["frames"] == 7
    assert members["r7"] is members["r7"] and "planning" not in members["r7"].record
    for name, why in (("failed", "member failed failed: why"), ("r1001", "no member is called 'r1001'")):
        with pytest.raises(KeyError, match=why):
            members[name]


def test_a_result_is_shown_on_one_line():
    assert repr(Result([Plain()], [OUTCOME], make_record(Plain()))) == (
        "Result(survival (2 rows of tau_ps, survival), x (array (2, 3)), k (float); 10 frames)"
    )
    many = {f"part{i}": i for i in range(1000)}
    several = repr(Result([Plain(), Drawn()], [many, None], make_record(Plain())))
    assert several.startswith("Result(Plain, Drawn: Plain/part0 (int), ")
    assert several.endswith("and 996 more; 10 frames)")
    assert repr(Result([Plain()], [None], make_record(Plain()))) == "Result(no outcome; 10 frames)"


def test_tables_become_frames():
    result = Result([Plain()], [OUTCOME], make_record(Plain()))
    assert result.to_frame()["survival"].tolist() == [1.0, 0.5]
    assert result.to_frame("survival").equals(result.to_frame())
    two = Result([Plain(), Drawn()], [OUTCOME, OUTCOME], make_record(Plain()))
    assert two.to_frame("Drawn/survival").shape == (2, 2)
    for name in (None, "survival"):
        with pytest.raises(himach.UsageError, match="'Plain/survival', 'Drawn/survival'"):
            two.to_frame(name)


def test_a_result_is_saved(tmp_path):
    result = Result([Plain(), Drawn()], [OUTCOME, OUTCOME], make_record(Plain()))
    assert result.save(tmp_path / "x.npz") == [tmp_path / "x.npz"]
    with np.load(tmp_path / "x.npz") as found:
        assert found["Drawn/survival/tau_ps"].tolist() == [0.0, 10.0]
    with pytest.raises(himach.UsageError, match="one table"):
        result.save(tmp_path / "x.csv")
    for use in (lambda other: other.save(tmp_path / "y.npz"), lambda other: other.to_frame(), lambda other: other["x"]):
        with pytest.raises(himach.UsageError, match="rank 0"):
            use(Result([Drawn()], None, make_record(Drawn())))


def test_plotting_leaves_pyplot_alone():
    import matplotlib.pyplot as plt

    Result([Drawn()], [OUTCOME], make_record(Drawn())).plot()
    assert plt.get_fignums() == []


def test_a_terminal_without_unicode_gets_escapes():
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    print_outcome(Result([Plain()], [{"r": himach.Table({"Å": ["é"]})}], make_record(Plain())), stream)
    assert b"\\xc5" in raw.getvalue()
    assert b"\\xe9" in raw.getvalue()


def test_outcomes_of_many_parts_are_shortened():
    result = Result([Plain()], [{f"part{i}": i for i in range(1000)}], make_record(Plain()))
    assert "part39: 39\n... and 960 more\n" in str(result)
    assert "part40" not in result._repr_html_()


def test_errors_and_cached_frames_are_summed_up():
    record = make_record(Plain())
    record["errors"] = ["frame 5 was damaged"]
    record["assignment"] = {"native": 3, "alien": 1, "residue": 6}
    record["seconds"]["whole"] = 3725
    record["nodes"], record["ranks"] = 2, 8
    lines = str(Result([Plain()], [1], record)).splitlines()
    assert lines[-2:] == [
        "10 frames on 8 ranks of 2 nodes in 1 h 02 min (map: 1 s, 10 frames/s), 4 of them cached",
        "error: frame 5 was damaged",
    ]


@pytest.mark.parametrize(
    ("frames", "reused", "reason", "pairs", "line"),
    [
        (10000, 0, "", "/p", None),
        (10000, 9900, "", "/p", "9,900 of 10,000 frames were mapped before (pairs in /p), 100 now"),
        (10000, 10000, "", "/p", "all 10,000 frames were mapped before (pairs in /p)"),
        (1, 1, "", "/p", "the frame was mapped before (pairs in /p)"),
        (9, 4, "", None, "4 of 9 frames were mapped before (by a run that did not end), 5 now"),
        (9, 0, "map() was changed", "/p", "all 9 frames were mapped again: map() was changed"),
        (9, 9, "used although x", "/p", "all 9 frames were mapped before (pairs in /p; used although x)"),
    ],
)
def test_frames_that_were_mapped_before_have_a_line(frames, reused, reason, pairs, line):
    record = make_record(Plain())
    record.update(frames=frames, reused={"frames": reused, "reason": reason}, pairs_directory=pairs)
    result = Result([Plain()], [5], record)
    assert str(result).splitlines()[3:] == ([] if line is None else [line])
    if line is not None:
        assert f"<br>{line}</div>" in result._repr_html_()


def test_a_notebook_is_told_what_a_figure_shows_and_how_sure_a_table_is():
    record = make_record(Drawn())
    record["analyses"][0]["caption"] = "How far <atoms> go."
    record["uncertainty"] = {
        "t": {
            "method": "", "level": 0.95, "blocks": 4, "n_eff": 41.0, "start_ps": 120.0, "replicas": None,
            "half_widths": {},
            "means": {"d": {
                "mean": 2.31, "low": 2.28, "high": 2.34, "n_eff": 41.0, "blocks": 5, "method": "", "start_ps": 120.0,
                "cut": False, "halves": [0.01, -0.1, 0.12],
            }},
        }
    }  # fmt: skip
    outcome = {"t": himach.Table({"d": himach.Column([2.3, 2.32], "Å")}), "x": [1, 2]}
    page = Result([Drawn()], [outcome], record)._repr_html_()
    Balanced(page)
    line = "mean of d / Å: 2.31 [2.28, 2.34] (95 %, 5 blocks, N_eff 41), equilibrated from 120 ps"
    line += "; first and second half agree"
    places = [
        page.index(text) for text in ("<table>", "<figure", '<img alt="Plot of Drawn"', f"<p>{line}</p>", "10 frames")
    ]
    assert places == sorted(places)
    assert "<figcaption>How far &lt;atoms&gt; go.</figcaption>" in page
    assert page.count('<th scope="col"') == 1
    both = Result([Drawn(), Plain()], [outcome, 3], {**record, "uncertainty": {"Drawn/t": record["uncertainty"]["t"]}})
    assert f"<p>{line}</p>" in both._repr_html_()
    assert both.text().endswith(line)
