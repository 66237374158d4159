"""`himach.run` from Python: a script, `__main__`, several ranks, what comes back."""

import inspect
import subprocess
import sys
import textwrap

import MDAnalysis as mda
import numpy as np
import pytest
from MDAnalysis.analysis import rms
from MDAnalysisTests.datafiles import DCD, PSF
from support.commands import run_python
from support.ranks import mpiexec

import himach
from himach.examples import load


class Radius(himach.Analysis):
    """Radius of gyration."""

    selection: str = "protein"

    def setup(self, universe):
        self.group = universe.select_atoms(self.selection)
        self.n_selected = len(self.group)

    def map(self, frame):
        yield "radius", self.group.radius_of_gyration()

    def reduce(self, key, series):
        return {"time_ps": series.times, "radius": np.array(series.values)}

    def finish(self, results):
        return {"radius": results["radius"]}

    def plot(self, outcome, axes):
        axes.plot(outcome["radius"]["time_ps"], outcome["radius"]["radius"], label=f"{self.n_selected} atoms")


class Rows(himach.Analysis):
    """A row of most frames."""

    what: str = ""

    def setup(self, universe):
        self.group = universe.select_atoms("name CA")

    def map(self, frame):
        if frame.number % 5 == 0:
            return himach.Row(rg=self.group.radius_of_gyration(), late=frame.number > 50)
        return {
            "": himach.Row(rg=self.group.radius_of_gyration(), state="odd") if frame.number % 2 else None,
            "two": [himach.Row(a=1), himach.Row(b=2)],
            "pair": ("a", 1),
            "yielded": [("a", 1)],
            "columns": himach.Pairs([1]),
            "number": 3,
        }[self.what]


class Combined(Rows):
    def combine(self, key, series):
        return sum(series.values)

    def reduce(self, key, series):
        return len(series)


class Both(himach.Analysis):
    """Rows, and pairs under the keys that rows have within the engine, of every kind."""

    finished: bool = True

    def map(self, frame):
        yield 0, frame.number
        yield himach.Pairs([0, 1, 2], [frame.time] * 3)
        if frame.number % 3:
            yield himach.Row(number=frame.number, odd="odd" if frame.number % 2 else None)
        yield himach.Pairs([0, 7])
        yield (-2,), frame.number

    def reduce(self, key, series):
        values = [] if series.values is None else list(series.values)
        return len(series), sum(value for value in values if value is not None)


class CalledRows(Both):
    name = "rows"


class BothFinished(Both):
    def finish(self, results):
        assert len(results) == 5
        return {"rows": results.rows, "sums": himach.Table({"of": list(map(str, results.values()))})}


class Arrays(himach.Analysis):
    """Arrays, yielded one by one."""

    def map(self, frame):
        yield "equal", frame.positions[:2]
        yield "uneven", frame.positions[: frame.number]
        yield "number", frame.time

    def reduce(self, key, series):
        return type(series.values).__name__, series.values is series.values, np.shape(series.values[0])


class Every(himach.Analysis):
    """Numbers and steps as map() and setup() saw them."""

    def map(self, frame):
        yield frame.number, (frame.step, frame.time, len(self.frames), self.dt)

    def reduce(self, key, series):
        return series.values[0]


def test_an_analysis_defined_in_a_test_runs_alone_and_on_two_ranks():
    universe = mda.Universe(PSF, DCD)
    expected = [universe.select_atoms("protein").radius_of_gyration() for _ in universe.trajectory]
    alone = himach.run(Radius(), DCD, PSF)
    np.testing.assert_array_equal(alone.outcome["radius"]["radius"], expected)
    several = himach.run(Radius, DCD, PSF, ranks=2)
    np.testing.assert_array_equal(several.outcome["radius"]["radius"], expected)
    assert several.record["ranks"] == 2
    assert "3341 atoms" in str(several.plot().axes[0].get_legend_handles_labels()[1])  # setup()'s state came back


def test_start_stop_and_step_are_mdanalysis_s():
    universe = mda.Universe(PSF, DCD)
    for start, stop, step in [(None, None, None), (10, 50, 7), (-5, None, None), (None, -90, None), (90, 1000, 3)]:
        frames = [ts.frame for ts in universe.trajectory[start:stop:step]]
        result = himach.run(Every(), DCD, PSF, start=start, stop=stop, step=step)
        assert list(result.outcome["key"]) == frames
        assert [value[0] for value in result.outcome["result"]] == list(range(len(frames)))
        assert result.outcome["result"][0][2] == len(frames)
        assert result.record["frames"] == len(frames)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": 2}, r"run\(\) has no argument 'n'; did you mean 'ranks'"),
        ({"n_jobs": 2}, r"run\(\) has no argument 'n_jobs'; did you mean 'ranks'"),
        ({"stepp": 2}, "no argument 'stepp'; did you mean 'step'"),
        ({"selectoin": "all"}, "no argument 'selectoin'; did you mean 'selection'"),
        ({"qqq": 1}, "no argument 'qqq'; there is .*ranks, reuse, selection, start"),
        ({"analysis": Radius(), "selection": "all"}, "'selection'; set it where the analysis is made"),
        ({"analysis": [Radius, Radius], "selection": "all"}, "'selection'; set it where the analysis is made"),
        ({"whole": True}, r"no argument 'whole'; it is one of transform=\[...\], such as himach.transformations.Whole"),
        ({"table": "nc"}, r"no argument 'table'; it is out=himach.Output\(DIR, tables=...\)"),
        ({"every": 9}, r"no argument 'every'; himach.follow\(\) analyses frames that still come"),
        ({"verbose": True}, "no argument 'verbose'; it is progress=..."),
        ({"trajectory": "imd://localhost:9"}, "is a running engine: 'himach follow'"),
        ({"start": "10ns"}, r"98 frames \(0 to 97\), 1 to 98 ps; asked for start 10ns"),
        ({"stop": "2x"}, "stop is '2x': it is a whole number"),
        ({"ranks": "2"}, "ranks is '2': it is a whole number of ranks"),
        ({"analysis": "rmsd", "selection": mda.Universe(PSF).atoms}, "is not a str; write its selection, such as"),
        ({"analysis": "rmds"}, "no analysis 'rmds'; did you mean 'rmsd'"),
        ({"analysis": rms.RMSD}, "an analysis of MDAnalysis: himach.mdanalysis.run"),
        ({"analysis": 3}, "Analysis"),
        ({"trajectory": "/nowhere/a.dcd"}, "/nowhere"),
        ({"trajectory": "/nowhere/a.dcd", "ranks": 2}, "/nowhere"),
        ({"ranks": 0}, "ranks"),
        ({"reuse": "sometimes"}, "reuse 'sometimes': there is 'auto'"),
        ({"max_time": "5x", "out": "out"}, "max_time: '5x' is no length of time"),
        ({"max_time": "55m"}, "max_time needs a place"),
        ({"max_time": "55m", "ranks": 2}, "max_time needs a place"),
    ],
)
def test_a_mistake_in_a_call_is_told_with_what_may_be_meant(options, message):
    with pytest.raises(himach.UsageError, match=message):
        himach.run(**{"analysis": Radius, "trajectory": DCD, "topology": PSF, **options})


def test_parameters_of_a_class_or_a_name_are_keywords():
    options = {"selection": "name CA", "fit": "backbone"}  # fit is a transformation, too
    by_instance = himach.run(himach.examples.load("rmsd")(**options), DCD, PSF, stop=3, progress=False)
    by_keyword = himach.run("rmsd", DCD, PSF, **options, stop=3, progress=False)
    assert by_keyword.record["analyses"][0]["parameters"] == by_instance.record["analyses"][0]["parameters"]
    np.testing.assert_array_equal(by_keyword.outcome["rmsd"]["rmsd"], by_instance.outcome["rmsd"]["rmsd"])


def test_editors_see_the_parameters_of_an_analysis():
    assert str(inspect.signature(Radius)) == "(*, selection: str = 'protein')"
    assert list(inspect.signature(load("rmsd")).parameters)[:3] == ["selection", "fit", "reference"]

    class Made(Radius):
        def __init__(self, atoms): ...

    assert str(inspect.signature(Made)) == "(atoms)"


def test_an_analysis_is_run_by_its_name():
    assert himach.run("rmsd", DCD, PSF, stop=np.int64(2))["rmsd"].rows == 2
    assert list(himach.run(["rmsd", Radius()], DCD, PSF, stop=2, ranks=2).outcome) == ["rmsd", "Radius"]


def test_groups_of_an_index_file_are_selected_by_name_and_count_as_the_map(tmp_path):
    index, pairs = tmp_path / "index.ndx", tmp_path / "pairs"

    def write(selection):
        with mda.selections.gromacs.SelectionWriter(index, mode="w") as writer:
            writer.write(mda.Universe(PSF).select_atoms(selection), name="C-alpha")

    options = {"index": index, "pairs": pairs, "cache": "off", "stop": 3}
    for selection in ("name CA", "name CB"):
        write(selection)
        by_group = himach.run(Radius(selection="group C-alpha"), DCD, PSF, **options, ranks=2)
        by_name = himach.run(Radius(selection=selection), DCD, PSF, stop=3, cache="off")
        np.testing.assert_array_equal(by_group.outcome["radius"]["radius"], by_name.outcome["radius"]["radius"])
    with pytest.raises(himach.HimachError, match="Failed to find group: Other"):
        himach.run("rmsd", DCD, PSF, index=index, selection="group Other", cache="off")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[ A ]\n1 2\n4000", "group A has atom 4000, and the topology has 3341 atoms"),
        ("1 2 3", "an index file has groups"),
        ("[ A ]\n1 x", "an index file has groups"),
        (None, "No such file or directory"),
    ],
)
def test_an_index_file_that_cannot_be_used_is_named(tmp_path, text, message):
    if text is not None:
        (tmp_path / "index.ndx").write_text(text)
    with pytest.raises(himach.UsageError, match=rf"index .*index\.ndx: {message}"):
        himach.run(Radius, DCD, PSF, index=tmp_path / "index.ndx", stop=1, cache="off")


@pytest.mark.parametrize("options", [{}, {"step": -3}, {"ranks": 2}])
def test_rows_become_a_table_by_frame(options):
    table = himach.run(Rows(), DCD, PSF, **options).outcome
    universe = mda.Universe(PSF, DCD)
    group, expected = universe.select_atoms("name CA"), []
    for number in sorted(range(98)[:: options.get("step")]):
        time, rg = universe.trajectory[number].time, group.radius_of_gyration()
        if number % 5 == 0:
            expected.append((time, rg, number > 50, None, number))
        elif number % 2:
            expected.append((time, rg, None, "odd", number))
    assert [*table][:2] == ["time_ps", "rg"] and [*table][-1] == "frame" and table.units == {"time_ps": "ps"}
    columns = [table[name] for name in ("time_ps", "rg", "late", "state", "frame")]
    assert list(zip(*columns, strict=True)) == expected


@pytest.mark.parametrize(
    ("analysis", "message"),
    [
        (Rows(what="two"), "it yielded a second himach.Row of one frame"),
        (Rows(what="yielded"), r"a pair, and there is no reduce\(\) that takes it: write one, or yield .*himach.Row"),
        (Rows(what="columns"), r"a pair, and there is no reduce\(\)"),
        (Rows(what="pair"), r"it returned a pair, .*: yield key, value\n.*test_run.py, line \d+, in map"),
        (Rows(what="number"), r"it returned an object of type int; .*\n.*test_run.py, line \d+, in map"),
        (Combined(), r"it yielded a himach.Row, and there is a combine\(\) or a `then`, which take pairs"),
    ],
)
def test_rows_and_pairs_are_not_mixed(analysis, message):
    with pytest.raises(himach.AnalysisError, match=message):
        himach.run(analysis, DCD, PSF, start=5 if isinstance(analysis, Combined) else 6)


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize("analysis", [Both(), BothFinished()])
def test_rows_beside_pairs_are_a_table_beside_results(tmp_path, analysis):
    outcomes = [
        himach.run(analysis, DCD, PSF).outcome,
        himach.run(analysis, DCD, PSF, ranks=2, pairs=tmp_path, step=2).outcome,
        himach.run(analysis, DCD, PSF, ranks=2, pairs=tmp_path).outcome,
    ]
    expected = [(n, "odd" if n % 2 else None, n) for n in range(98) if n % 3]
    for outcome in outcomes[::2]:
        columns = [list(outcome["rows"][name]) for name in ("number", "odd", "frame")]
        assert list(zip(*columns, strict=True)) == expected
    assert repr(outcomes[0]) == repr(outcomes[2]) and outcomes[1]["rows"].rows == 32
    assert list(outcomes[0]) == (["rows", "sums"] if isinstance(analysis, BothFinished) else ["Both", "rows"])


@pytest.mark.parametrize(
    ("cells", "message"),
    [({}, "name its columns"), ({"frame": 1}, "has 'frame' anyway"), ({"x": np.ones(3)}, r"'x' is an array \(3,\)")],
)
def test_a_row_has_cells_by_name(cells, message):
    with pytest.raises(himach.UsageError, match=message):
        himach.Row(**cells)
    assert himach.Row(x=np.array(2.5)).values == (2.5,)


def test_arrays_of_equal_shape_come_as_one_array():
    kinds = dict(zip(*himach.run(Arrays(), DCD, PSF, stop=3).outcome.values(), strict=True))
    assert kinds == {"equal": ("ndarray", True, (2, 3)), "number": ("list", True, ()), "uneven": ("list", True, (0, 3))}


def test_columns_that_are_not_equally_long_are_told():
    class Uneven(Radius):
        def finish(self, results):
            return {"rg": {"time_ps": [0.0, 1.0], "rg": [1.0]}, "even": {"a": [1], "b": [2]}, "names": {"of": "lipids"}}

    with pytest.warns(UserWarning) as output:
        result = himach.run(Uneven(), DCD, PSF, stop=2)
    (text,) = [str(warning.message) for warning in output]
    assert "'rg' of the outcome is no table" in text and "(time_ps: 2, rg: 1)" in text
    assert result["rg"]["rg"] == [1.0] and result.record["warnings"] == [text]


SCRIPT = """
import himach

class Count(himach.Analysis):
    def map(self, frame):
        yield "frames", 1
    def combine(self, key, series):
        return sum(series.values)
    def reduce(self, key, series):
        return series.values[0]

result = himach.run(Count(), {trajectory!r}, {topology!r}{more})
if result.outcome is not None:
    print("counted", dict(zip(result.outcome["key"], result.outcome["result"].tolist())), result.record["ranks"])
"""


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize(("more", "n", "expected"), [("", 1, 1), (", ranks=2", 1, 2), ("", 3, 3)])
def test_a_script_runs_its_own_class(tmp_path, more, n, expected):
    """Plainly, with ranks that it starts (the class is in __main__, with no guard), and under mpiexec."""
    script = tmp_path / "count.py"
    script.write_text(SCRIPT.format(trajectory=str(DCD), topology=str(PSF), more=more))
    done = mpiexec(n, [sys.executable, str(script)]) if n > 1 else run_python(script)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[0] == f"counted {{'frames': 98}} {expected}"


def test_an_error_in_map_has_its_cause_in_process_and_its_text_from_ranks():
    class Fails(himach.Analysis):
        def map(self, frame):
            raise ZeroDivisionError("oh")

        def reduce(self, key, series):
            return None

    with pytest.raises(himach.AnalysisError, match=r"Fails\.map\(\)") as caught:
        himach.run(Fails(), DCD, PSF)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    with pytest.raises(himach.AnalysisError, match=r"Fails\.map\(\).*ZeroDivisionError: oh"):
        himach.run(Fails(), DCD, PSF, ranks=2)


def test_importing_himach_starts_nothing():
    code = textwrap.dedent(
        """
        import sys, signal
        before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
        import himach, himach.cli.run, himach.runner.commands
        assert before == (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT))
        heavy = {"MDAnalysis", "mpi4py", "numpy", "matplotlib", "multiprocessing"} & set(sys.modules)
        print(sorted(heavy))
        """
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]", done.stdout


MANY_RUNS = """
from himach.runner.commands import on_ranks
for _ in range(3000):  # MPICH has 2048 communicators
    on_ranks(lambda world: world.node.barrier())
"""


@pytest.mark.nightly
def test_a_process_may_run_as_often_as_it_likes():
    mpiexec(2, [sys.executable, "-c", MANY_RUNS], code=0)


UNFORESEEN = """
from himach.runner.commands import on_ranks

def work(world):
    if world.comm.rank == 1:
        raise ZeroDivisionError("oh")
    world.comm.barrier()

on_ranks(work)
"""


def test_the_whole_traceback_of_an_error_that_one_rank_has_alone():
    done = mpiexec(2, [sys.executable, "-c", UNFORESEEN], environ={"HIMACH_DEBUG": "1"})
    assert done.returncode != 0
    assert "in work" in done.stderr and "himach: error: ZeroDivisionError: oh" in done.stderr, done.stderr


def test_results_of_an_analysis_that_is_called_rows_are_beside_its_rows():
    outcome, other = himach.run(CalledRows(), DCD, PSF).outcome, himach.run(Both(), DCD, PSF).outcome
    assert [(name, table.rows) for name, table in outcome.items()] == [("rows", 5), ("rows-2", 65)]
    assert repr([*outcome.values()]) == repr([*other.values()])
