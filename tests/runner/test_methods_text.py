"""Words of analyses for a paper: values in place of names, citations, what MDAnalysis asks to be cited by, captions."""

from __future__ import annotations

import json
from typing import ClassVar, Literal

import MDAnalysis.analysis.pca
import pytest
from MDAnalysis.analysis.bat import BAT
from MDAnalysis.analysis.dssp import DSSP
from MDAnalysis.analysis.hydrogenbonds.hbond_analysis import HydrogenBondAnalysis
from MDAnalysis.analysis.rdf import InterRDF
from MDAnalysis.analysis.rms import RMSD

import himach as package
from himach.adapted import adapted
from himach.examples import BUILTINS, load, sample
from himach.runner.outcome.methods_text import due_references, with_groups, with_intervals, words_of
from himach.runner.rank import stages
from himach.runner.scripts import describe_analysis

#: Values of parameters that have none.
NEEDED = {"ion-permeation": {"top": "name O", "bottom": "name OG1"}}


class Shell(package.Analysis):
    """Waters around ions, of 5 % more.

    What else there is to say.
    """

    methods: ClassVar[str] = "Waters within {cutoff} Å of {ions} [10.1000/a, 10.1000/b] were {how}; {{x}}, {many}, {no}"
    references: ClassVar[tuple[str, ...]] = ("10.1000/c",)

    ions: str = "name K"
    cutoff: float = 3.5
    how: Literal["counted", "listed"] = "counted"
    many: list[str] = ["name `A`", "b  c"]  # noqa: RUF012
    no: int | None = None

    def map(self, frame):
        yield 0, 1

    def reduce(self, key, series):
        return len(series)


def test_values_stand_in_place_of_names_and_citations_are_found():
    found = words_of([Shell(cutoff=0.1 + 0.2)])
    said = "Waters within 0.3 Å of `name K` [10.1000/a, 10.1000/b] were counted; {x}, `` name `A` ``, `b c`, none."
    assert found == {
        "methods": said,
        "references": ["10.1000/a", "10.1000/b"],
        "caption": "Waters around ions, of 5 % more.",
    }


def test_references_are_cited_where_the_text_cites_none_and_written_as_plain_dois():
    class Plain(Shell):
        """Counted."""

        methods = "It was counted."
        references = ("https://doi.org/10.1000/C", "doi: 10.1000/d", "A book")
        caption = "Waters within {cutoff} Å of {many}"

    found = words_of([Plain()])
    assert found["references"] == ["10.1000/C", "10.1000/d", "A book"]
    assert found["caption"] == "Waters within 3.5 Å of “name `A`”, “b c”."


def test_an_analysis_that_says_nothing_is_told_by_its_docstring_and_parameters():
    class Silent(Shell):
        """Waters."""

        methods = ""
        many: list[str] = []  # noqa: RUF012

    assert words_of([Silent()]) == {
        "methods": (
            "`Silent` (Waters) was computed with ions = `name K`; cutoff = 3.5; how = counted; many = none; no = none."
        ),
        "references": ["10.1000/c"],
        "caption": "Waters.",
    }


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("within {cutof}", "Shell: methods names {cutof}, which is no parameter; did you mean 'cutoff'?; braces"),
        ("within {cutoff:.2f}", "names {cutoff:.2f}, which is no parameter; braces"),
        ("within {cutoff!r}", "names {cutoff!r}, which"),
        ("within {}", "names {}, which is no parameter"),
        ("a set {1, 2", "Shell: methods: .*braces that are none of a parameter are written twice"),
        (7, "methods must be a text, not int"),
    ],
)
def test_a_text_that_cannot_be_filled_is_refused_before_the_run(text, told):
    class Wrong(Shell):
        methods = text
        name = "Shell"

    with pytest.raises(package.UsageError, match=told.replace("{", r"\{").replace("?", r"\?")):
        package.run(Wrong(), *sample("villin"), cache="off", progress=False)


def test_why_a_text_cannot_be_filled_is_said_once():
    class Wrong(Shell):
        methods = "within {nothing}"

    with pytest.raises(package.UsageError) as error:
        words_of([Wrong()])
    assert str(error.value).count("Wrong: methods") == str(error.value).count("written twice") == 1


def test_a_text_that_is_computed_and_fails_says_which_and_a_caption_is_checked_early():
    class Failing(Shell):
        @property
        def methods(self):
            return 1 / 0

    class Captioned(Shell):
        caption = "{nothing}"

    with pytest.raises(package.UsageError, match="Failing: methods raised ZeroDivisionError: division by zero"):
        words_of([Failing()])
    with pytest.raises(package.UsageError, match=r"Captioned: caption names \{nothing\}"):
        words_of([Captioned()])
    Shell.references, before = (7,), Shell.references
    with pytest.raises(package.UsageError, match="references must be texts, such as DOIs"):
        words_of([type("Numbers", (Shell,), {"methods": ""})()])
    Shell.references = before


@pytest.mark.parametrize("name", BUILTINS)
def test_every_built_in_says_its_methods_and_what_its_figure_shows(name):
    found = words_of(stages(load(name)(**NEEDED.get(name, {}))))
    assert found["methods"].endswith(".")
    assert "{" not in found["methods"] + found["caption"]
    assert f"`{name}`" not in found["methods"], "it is what is said of one that says nothing"
    assert type(load(name).__dict__["caption"]) is str
    listed = set(load(name).references)
    assert set(found["references"]) <= listed, "himach analyses lists all that may be cited"


def test_methods_follow_the_parameters():
    sasa = load("sasa")
    assert "10.1006/jmbi.1999.2829" in words_of([sasa(radii="protor")])["references"]
    assert "10.1021/j100785a001" not in words_of([sasa(radii="protor")])["references"]
    msd = load("msd")
    assert "10.1021/jp0477147" in words_of([msd(viscosity=0.7, temperature=300.0)])["references"]
    assert "10.1021/jp0477147" not in words_of([msd()])["references"]
    assert "without superposition" in words_of([load("rmsd")(fit="none")])["methods"]


def test_what_mdanalysis_asks_to_be_cited_by_is_found_without_duecredit():
    assert due_references(InterRDF) == []
    assert due_references(DSSP) == ["10.1002/bip.360221211"]
    assert due_references(BAT) == ["10.1002/jcc.26036"]
    assert due_references(HydrogenBondAnalysis) == ["10.1039/C9CP01532A"]
    # The superposition is compiled.
    assert due_references(RMSD) == ["10.1107/S0108767305015266", "10.1002/jcc.21439"]
    # PCA cites papers for methods that a run does not call.
    assert due_references(MDAnalysis.analysis.pca.PCA) == []

    class Mine(DSSP):
        """A class of a user."""

    assert due_references(Mine) == ["10.1002/bip.360221211"]
    found = words_of([adapted(DSSP)(atoms="protein")])
    assert found["references"] == ["10.1002/bip.360221211"]
    assert found["methods"].startswith("`MDAnalysis.analysis.dssp.dssp.DSSP` (Assign secondary structure")


def test_himach_analyses_lists_what_is_cited():
    assert describe_analysis(adapted(DSSP)).endswith("    https://doi.org/10.1002/bip.360221211")
    listed = describe_analysis(type("Own", (Shell,), {"references": ["doi:10.1000/x", "A book"]}))
    assert listed.endswith("    https://doi.org/10.1000/x\n    A book")


def test_captions_say_what_intervals_are():
    told = {"a": {"method": "Student's t over blocks", "level": 0.9, "blocks": 8}}
    entries = [words_of([Shell()])]
    (found,) = with_intervals(entries, ["Shell"], told)
    assert found["caption"] == (
        "Waters around ions, of 5 % more. Bands and bars are intervals of 90 % (Student's t over 8 blocks)."
    )
    told = {"Shell/a": {"method": "none: fewer than 8 independent values", "level": 0.9, "blocks": 0}}
    first, second = with_intervals(entries * 2, ["Shell", "Shell-2"], told)
    assert first["caption"].endswith("There are no intervals: fewer than 8 independent values.")
    assert second["caption"] == entries[0]["caption"]
    (joint,) = with_groups(entries, [[Shell()]], 0.95)
    assert joint["caption"].endswith("and their intervals of 95 %, by Student's t over members.")


def test_a_run_writes_them_into_its_record(tmp_path):
    trajectory, topology = sample("villin")
    package.run([Shell(), load("rmsd")()], trajectory, topology, out=tmp_path / "out", cache="off", progress=False)
    shell, rmsd = json.loads((tmp_path / "out" / "run.json").read_text())["analyses"]
    assert shell["references"] == ["10.1000/a", "10.1000/b"]
    assert rmsd["methods"].startswith("The root-mean-square deviation of `protein and backbone` from the first")
    assert "intervals" in rmsd["caption"]
    assert shell["caption"] == "Waters around ions, of 5 % more."
    ensemble = [package.Member(name, trajectory, topology) for name in "ab"]
    package.run(load("rmsd")(), ensemble=ensemble, out=tmp_path / "both", cache="off", progress=False)
    (entry,) = json.loads((tmp_path / "both" / "run.json").read_text())["analyses"]
    assert entry["caption"].count("interval") == 1
    assert "Student's t over members" in entry["caption"]
