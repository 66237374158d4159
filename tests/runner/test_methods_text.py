"""Words of analyses for a paper; parameters from a command line; what a record says of the system."""

import json
from collections import Counter
from copy import copy
from typing import ClassVar, Literal

import MDAnalysis
import MDAnalysis.analysis.pca
import numpy as np
import pytest
from MDAnalysis.analysis.bat import BAT
from MDAnalysis.analysis.dssp import DSSP
from MDAnalysis.analysis.hydrogenbonds.hbond_analysis import HydrogenBondAnalysis
from MDAnalysis.analysis.rdf import InterRDF
from MDAnalysis.analysis.rms import RMSD
from MDAnalysisTests.datafiles import DCD, GRO, PSF, XTC, LAMMPSdata2, LAMMPSdcd2

import himach
import himach as package
from himach.adapted import adapted
from himach.examples import BUILTINS, load, sample
from himach.runner.methods_text import describe_methods, due_references, with_groups, with_intervals
from himach.runner.options import stages
from himach.runner.run_record import MOST_KINDS, residue_kinds
from himach.runner.scripts import describe_analysis, set_parameters

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
    result = describe_methods([Shell(cutoff=0.1 + 0.2)])
    output = "Waters within 0.3 Å of `name K` [10.1000/a, 10.1000/b] were counted; {x}, `` name `A` ``, `b c`, none."
    assert result == {
        "methods": output,
        "references": ["10.1000/a", "10.1000/b"],
        "caption": "Waters around ions, of 5 % more.",
    }


def test_references_are_cited_where_the_text_cites_none_and_written_as_plain_dois():
    class Plain(Shell):
        """Counted."""

        methods = "It was counted."
        references = ("https://doi.org/10.1000/C", "doi: 10.1000/d", "A book")
        caption = "Waters within {cutoff} Å of {many}"

    result = describe_methods([Plain()])
    assert result["references"] == ["10.1000/C", "10.1000/d", "A book"]
    assert result["caption"] == "Waters within 3.5 Å of “name `A`”, “b c”."


def test_an_analysis_that_says_nothing_is_told_by_its_docstring_and_parameters():
    class Silent(Shell):
        """Waters."""

        methods = ""
        many: list[str] = []  # noqa: RUF012

    assert describe_methods([Silent()]) == {
        "methods": (
            "`Silent` (Waters) was computed with ions = `name K`; cutoff = 3.5; how = counted; many = none; no = none."
        ),
        "references": ["10.1000/c"],
        "caption": "Waters.",
    }


@pytest.mark.parametrize(
    ("text", "details"),
    [
        ("within {cutof}", "Shell: methods names {cutof}, which is no parameter; did you mean 'cutoff'?; braces"),
        ("within {cutoff:.2f}", "names {cutoff:.2f}, which is no parameter; did you mean 'cutoff'?; braces"),
        ("within {cutoff!r}", "names {cutoff!r}, which"),
        ("within {}", "names {}, which is no parameter"),
        (
            "a set {1, 2",
            "methods names {, which is no parameter; braces that are none of a parameter are written twice",
        ),
        (7, "methods must be a text, not int"),
    ],
)
def test_a_text_that_cannot_be_filled_is_refused_before_the_run(text, details):
    class Wrong(Shell):
        methods = text
        name = "Shell"

    with pytest.raises(package.UsageError, match=details.replace("{", r"\{").replace("?", r"\?")):
        package.run(Wrong(), *sample("villin"), cache="off", progress=False)


@pytest.mark.parametrize("name", BUILTINS)
def test_every_built_in_says_its_methods_and_what_its_figure_shows(name):
    result = describe_methods(stages(load(name)(**NEEDED.get(name, {}))))
    assert result["methods"].endswith(".")
    assert "{" not in result["methods"] + result["caption"]
    assert f"`{name}`" not in result["methods"], "it is what is said of one that says nothing"
    assert type(load(name).__dict__["caption"]) is str
    listed = set(load(name).references)
    assert set(result["references"]) <= listed, "himach analyses lists all that may be cited"


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
    result = describe_methods([adapted(DSSP)(atoms="protein")])
    assert result["references"] == ["10.1002/bip.360221211"]
    assert result["methods"].startswith("`MDAnalysis.analysis.dssp.dssp.DSSP` (Assign secondary structure")


def test_himach_analyses_lists_what_is_cited():
    assert describe_analysis(adapted(DSSP)).endswith("    https://doi.org/10.1002/bip.360221211")
    listed = describe_analysis(type("Own", (Shell,), {"references": ["doi:10.1000/x", "A book"]}))
    assert listed.endswith("    https://doi.org/10.1000/x\n    A book")


def test_captions_say_what_intervals_are():
    details = {"a": {"method": "Student's t over blocks", "level": 0.9, "blocks": 8}}
    entries = [describe_methods([Shell()])]
    (result,) = with_intervals(entries, ["Shell"], details)
    assert result["caption"] == (
        "Waters around ions, of 5 % more. Bands and bars are intervals of 90 % (Student's t over 8 blocks)."
    )
    details = {"Shell/a": {"method": "none: fewer than 8 independent values", "level": 0.9, "blocks": 0}}
    first, second = with_intervals(entries * 2, ["Shell", "Shell-2"], details)
    assert first["caption"].endswith("There are no intervals: fewer than 8 independent values.")
    assert second["caption"] == entries[0]["caption"]
    (joint,) = with_groups(entries, 0.95)
    assert joint["caption"].endswith("and their intervals of 95 %, by Student's t over members.")


def test_a_run_writes_them_into_its_record(tmp_path):
    trajectory, topology = sample("villin")
    package.run([Shell(), load("rmsd")()], trajectory, topology, out=tmp_path / "out", cache="off", progress=False)
    shell, rmsd = json.loads((tmp_path / "out" / "run.json").read_text())["analyses"]
    assert shell["references"] == ["10.1000/a", "10.1000/b"]
    assert rmsd["methods"].startswith("The root-mean-square deviation of `protein and backbone` from the first")
    assert "intervals" in rmsd["caption"]
    assert shell["caption"] == "Waters around ions, of 5 % more."


class Mean(himach.Analysis):
    """Mean of what is long enough.

    Parameters
    ----------
    longest
        Longest stay in ps.
    """

    longest: float = 10.0
    digits: int = 2

    def reduce(self, key, series):
        return None


class Stays(himach.Analysis):
    """Every stay."""

    cutoff: float = 3.5
    digits: int = 1
    then = Mean

    def map(self, frame):
        yield 1, 1

    def reduce(self, key, series):
        yield key, 1


class WithInstance(Stays):
    then = Mean(longest=3)


class Needs(Mean):
    needed: int


class WithNeeds(Stays):
    then = Needs


class Comes(Stays):
    """Comes back to itself."""


Comes.then = Comes


class Taken(Mean):
    """Has no value of its own for what it shares with the stage before it."""

    cutoff: float
    digits: int = 9


class Gives(Stays):
    then = Taken


@pytest.mark.parametrize(
    ("classes", "assignments", "settings"),
    [
        ([Stays], ["cutoff=3.2", "longest=5", "digits=7"], [[(3.2, 7), (5.0, 2)]]),  # of the first stage that has it
        ([Stays], ["Mean.digits=7"], [[(3.5, 1), (10.0, 7)]]),
        ([WithInstance], ["Mean.digits=7"], [[(3.5, 1), (3.0, 7)]]),
        ([WithInstance], ["Mean.longest=8"], [[(3.5, 1), (8.0, 2)]]),
        ([WithInstance], [], [[(3.5, 1), (3.0, 2)]]),  # it stays as it was written
        ([WithNeeds], ["needed=3"], [[(3.5, 1), (10.0, 2, 3)]]),
        ([Gives], ["cutoff=3.2"], [[(3.2, 1), (10.0, 9, 3.2)]]),
        ([Gives], ["cutoff=3.2", "Taken.cutoff=7", "Taken.longest=8"], [[(3.2, 1), (8.0, 9, 7.0)]]),
        ([Stays, Stays], ["Stays.cutoff=1", "Stays-2.cutoff=2"], [[(cutoff, 1), (10.0, 2)] for cutoff in (1.0, 2.0)]),
    ],
)
def test_parameters_of_stages(classes, assignments, settings):
    made = set_parameters(classes, assignments)
    assert [[tuple(stage.settings().values()) for stage in stages(analysis)] for analysis in made] == settings
    assert made[0].next_stage() is made[0].next_stage()
    assert (WithInstance.then.longest, Stays.then, Gives.then) == (3, Mean, Taken)


def test_a_file_sets_parameters_that_the_command_line_overrides(tmp_path):
    file = tmp_path / "lab.toml"
    file.write_text("cutoff = 3.2\nlongest = 5\n[Mean]\ndigits = 7\n")
    (made,) = set_parameters([Stays], ["cutoff=4", f"@{file}"])
    assert made.settings() == {"cutoff": 4.0, "digits": 1}
    assert made.next_stage().settings() == {"longest": 5.0, "digits": 7}
    for text, message in (
        ("cutof = 1", "no parameter 'cutof'"),
        ("cutoff = far", "lab.toml: the file is not TOML"),
    ):
        file.write_text(text)
        with pytest.raises(himach.UsageError, match=message):
            set_parameters([Stays], [f"@{file}"])


def test_a_stage_takes_what_it_has_no_value_for_from_the_one_before():
    assert Gives(cutoff=4, digits=5).next_stage().settings() == {"longest": 10, "digits": 9, "cutoff": 4}
    assert "    cutoff   float, that of Gives" in describe_analysis(Gives).splitlines()


def test_stages_that_come_back_are_refused():
    with pytest.raises(himach.UsageError, match="its stages come back to Comes; a chain must end"):
        stages(Comes())


@pytest.mark.parametrize(
    ("classes", "assignment", "message"),
    [
        ([Stays], "cutof=3", "Stays has no parameter 'cutof'; did you mean 'cutoff'"),
        ([Stays], "Mean.cutoff=3", "Mean has no parameter 'cutoff'"),
        ([Stays], "Meen.longest=3", "no analysis 'Meen' in this run; did you mean 'Mean'"),
        ([Stays], "longest=far", "Mean: parameter longest: 'far' is not a float"),
        ([Stays], "cutoff=nan", "Stays: parameter cutoff: nan is no number"),
        ([Mean, Stays], "cutoff=3", "whose parameter it is: -p 'Stays.cutoff=3'$"),
        ([Mean, Stays], "digits=3", "-p 'Mean.digits=3' or -p 'Stays.digits=3'$"),
        ([Mean, Stays], "cutof=3", "no analysis of this run has a parameter 'cutof'; did you mean 'cutoff'"),
        ([Stays], "cutoff", "NAME=VALUE"),
        ([WithNeeds], "cutoff=3", "Needs needs a value for its parameter 'needed'"),
    ],
)
def test_what_does_not_fit_is_named(classes, assignment, message):
    with pytest.raises(himach.UsageError, match=message):
        set_parameters(classes, [assignment])


class Times(himach.Analysis):
    """The time of each frame."""

    def map(self, frame):
        yield himach.Row(step=frame.step)


@pytest.mark.parametrize(
    ("trajectory", "topology", "slices"),
    [(XTC, GRO, {}), (XTC, GRO, {"start": 7, "stop": 1, "step": -2}), (DCD, PSF, {"stop": 1})],
)
def test_the_system_is_that_of_mdanalysis(trajectory, topology, slices):
    universe = MDAnalysis.Universe(topology, trajectory)
    requested = slice(slices.get("start"), slices.get("stop"), slices.get("step"))
    selected = [(ts.time, copy(ts.dimensions)) for ts in universe.trajectory[requested]]
    system = himach.run(Times(), trajectory, topology, **slices, cache="off").record["system"]
    assert system["atoms"] == universe.atoms.n_atoms
    np.testing.assert_allclose(system["time_ps"], [selected[0][0], selected[-1][0]])
    box = selected[0][1]
    assert system["box"] is None if box is None else np.allclose(system["box"], box)
    for kind, selection in (("protein", "protein"), ("water", "water"), ("nucleic acid", "nucleic")):
        assert system["residues"].get(kind, 0) == universe.select_atoms(selection).residues.n_residues
    rest = universe.select_atoms("not (protein or water or nucleic)").residues.resnames
    named = {kind: n for kind, n in system["residues"].items() if kind not in ("protein", "water", "nucleic acid")}
    assert named == Counter(rest.tolist())
    assert list(system["residues"].values()) == sorted(system["residues"].values(), reverse=True)


def test_a_topology_without_names_of_residues():
    record = himach.run(Times(), LAMMPSdcd2, LAMMPSdata2, stop=2, cache="off").record
    assert record["system"]["residues"] == {}


def test_many_kinds_are_counted_together():
    names = [f"L{i:03}" for i in range(60)]
    universe = MDAnalysis.Universe.empty(60, 60, atom_resindex=range(60), residue_segindex=[0] * 60)
    universe.add_TopologyAttr("resnames", names)
    kinds = residue_kinds(universe._topology)
    assert len(kinds) == MOST_KINDS
    assert kinds["other"] == 60 - MOST_KINDS + 1
    assert sum(kinds.values()) == 60


def test_an_ensemble_says_it_of_each_member():
    members = [himach.Member("a", XTC, GRO, stop=2), himach.Member("b", DCD, PSF, start=3, stop=5)]
    record = himach.run(Times(), ensemble=members, cache="off").record
    assert [one["system"]["atoms"] for one in record["ensemble"]] == [47681, 3341]
    assert "system" not in record
    assert record["faulty"] == {"damaged": 0, "missing": 0}
    assert record["units"]["Times"]["time_ps"] == "ps"
