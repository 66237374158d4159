"""Tables of an ensemble: columns, members joined, and what is foreseen of them."""

import numpy as np
import pytest
from runner.ensemble.simulations import FRAMES
from support import plain
from support.commands import himach
from support.sample_runs import BUILTIN_RUNS, builtin_tables

from himach import Column, Member, Table
from himach.examples import BUILTINS, load, sample
from himach.output.parts import parts
from himach.output.table import default_outcome
from himach.runner.ensemble.groups import Roles, column_roles
from himach.runner.ensemble.joint_outcome import join, own_columns
from himach.runner.estimates import add_estimates
from himach.uncertainty import mean

#: Of which no interval is told.
UNSURE = {"events", "filter", "flip_flops", "membership", "pairwise", "radii", "running", "surface", "z"}


@pytest.mark.nightly(but=6)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", BUILTINS)
def test_tables_of_built_ins(name):
    which, parameters = BUILTIN_RUNS[name]
    members = []
    for start in (0, 25, 60):
        outcome = plain.run(load(name)(**parameters), *sample(which), start=start, stop=start + 60)
        add_estimates([name], [outcome], 0.95, None)
        members.append({part: table for part, table in parts(outcome, name) if isinstance(table, Table)})
    roles = {table: column_roles([one[table] for one in members]) for table in members[0]}
    assert {table for table, obtained in roles.items() if obtained.values and not obtained.sure} <= UNSURE
    assert not roles.pop("z", Roles(True, [], [])).values  # of ions that each member numbers as it likes
    obtained = {table: (role.in_time, role.keys, role.values) for table, role in roles.items()}
    expected = {table: role for table, (_, role) in builtin_tables(name).items()}
    for tables in (obtained, expected):
        tables.pop("events", None)  # which may be one of each ion
    assert obtained == expected


@pytest.mark.filterwarnings("ignore")
def test_settings_of_a_grid_are_not_compared():
    outcome = plain.run(load("density")(grid=4.0), *sample("nanopore"), stop=10)
    assert column_roles([outcome["extent"]] * 3).values == []


def table(**columns):
    return Table(columns)


RNG = np.random.default_rng(1)
SITE = Column([1, 2], role="label")
R = Column([0.5, 1.5], role="x")


@pytest.mark.parametrize(
    ("tables", "keys", "values"),
    [
        ([table(x=[1.5]), table(x=[2.5])], [], ["x"]),
        ([table(n=[3]), table(n=[3])], [], ["n"]),
        ([table(stays=[3], mean=[1.5]), table(stays=[4], mean=[2.5])], [], ["stays", "mean"]),
        ([table(way=["up"], at=[1.5])] * 2, ["way"], ["at"]),
        ([table(rg=[1.0], verdict=["ok"]), table(rg=[2.0], verdict=["bad"])], [], ["rg"]),
        ([table(x=["a"]), table(x=["b"])], [], []),
        ([table(state=["open", "shut"], n=[1, 2], p=[0.1, 0.9])] * 2, ["state"], ["n", "p"]),
        ([table(chain=["A", "A"], resid=SITE, rmsf=[0.1, 0.2])] * 2, ["chain", "resid"], ["rmsf"]),
        ([table(r=R, n=[3, 4], g=[0.1, 0.2])] * 2, ["r"], ["n", "g"]),
        ([table(g=[0.1, 0.2], r=R, site=SITE)] * 2, ["r"], ["g"]),
        ([table(key=SITE, mean=[1.0, 2.0], low=[0.0, 1.0], high=[2.0, 3.0], n_eff=[9.0, 9.0])], ["key"], ["mean"]),
        ([table(key=SITE, x=[1.0, None]), table(key=SITE, x=[1.0, 2.0])], ["key"], ["x"]),
        ([table(key=SITE, x=[1.5, 2.0]), table(key=[], x=[])], ["key"], ["x"]),
        ([table(key=SITE, y=[1.0, 2.0]), table(key=SITE, x=[3.0, 4.0])], ["key"], ["y", "x"]),
        ([table(a=["x", "y"], b=["u", "v"])] * 2, [], []),
        ([table(a=[[1], [2]], x=[1.0, 2.0])] * 2, ["a"], ["x"]),
        ([default_outcome({1: 0.5, 2: 1.5})] * 2, ["key"], ["result"]),
        ([Table({})], [], []),
    ],
)
def test_tables_of_users(tables, keys, values):
    obtained = column_roles(tables)
    assert not obtained.in_time
    assert (obtained.keys, obtained.values) == (keys, values)


EVEN = [0.0, 0.2, 0.4000001, 0.6]


@pytest.mark.parametrize(
    ("columns", "values"),
    [
        ({"time_ps": EVEN, "rg": RNG.random(4), "bonds": [1, 2, 3, 4], "state": list("abcd")}, ["rg", "bonds"]),
        ({"time_ps": EVEN, "ion": Column([1, 2, 3, 4], role="label"), "way": list("uudd")}, []),
        ({"time_ps": EVEN, "n": [1, 2, 3, 4], "bound": [True, False] * 2, "frame": [0, 1, 5, 6]}, ["n", "bound"]),
        ({"time_ps": EVEN, "x": [1.0, None, 2.0, 3.0], "frame": [0, 1, 2, 3]}, ["x"]),
        ({"rg": RNG.random(4), "frame": [0, 1, 2, 3]}, ["rg"]),
        ({"time_ps": [], "n": []}, ["n"]),
    ],
)
def test_tables_in_time(columns, values):
    assert column_roles([Table(columns)] * 2) == Roles(True, [], values)


def test_what_has_a_mean_or_limits_goes_before_others():
    series = Table({"time_ps": EVEN, "x": RNG.random(4), "y": RNG.random(4)})
    series.means["y"] = mean(RNG.random(100))
    assert column_roles([Table({"time_ps": EVEN, "x": EVEN, "y": EVEN}), series]) == Roles(True, [], ["y"], True)
    curve = Table({"time_ps": EVEN, "p": EVEN, "p_low": EVEN, "p_high": EVEN, "q": EVEN})
    assert column_roles([curve]) == Roles(False, ["time_ps"], ["p"], True, ["time_ps"])


def members(n: int, groups=(None, None, None), metadata=({}, {}, {})) -> list[Member]:
    return [Member(f"r{i}", "traj.xtc", group=groups[i], metadata=metadata[i]) for i in range(n)]


def below(*tables, **options) -> Table:
    """Return the tables of members below one another, as the outcome has it."""
    return join("label", members(len(tables), **options), tables, None)["label"]


def same(cells, expected) -> bool:
    return type(cells) is type(expected) and repr(cells) == repr(expected) and len(cells) == len(expected)


def test_groups_and_metadata_stand_behind_it():
    metadata = ({"T": 300, "seed": 7}, {"T": 310}, {"note": "x"})
    tables = [Table({"x": [float(i)]}) for i in range(3)]
    table = below(*tables, groups=("wt", None, "mut"), metadata=metadata)
    assert list(table) == ["member", "group", "T", "seed", "note", "x"]
    assert table["group"] == ["wt", None, "mut"]
    assert (table["T"], table["seed"], table["note"]) == ([300, 310, None], [7, None, None], [None, None, "x"])
    numbers = below(*tables, metadata=({"T": 300}, {"T": 310.5}, {"T": 320}))
    assert same(numbers["T"], np.array([300, 310.5, 320]))
    assert own_columns(members(2)) == []


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (([1.5], [2.5, 3.5]), np.array([1.5, 2.5, 3.5])),
        (([1], [2, 3]), np.array([1, 2, 3])),
        (([1], [2.5]), np.array([1, 2.5])),
        (([1.5], None), np.array([1.5, np.nan])),
        (([1], None, [2.5]), np.array([1, np.nan, 2.5])),
        (([1], None), [1, None]),  # whole numbers stay whole
        (([True], [False]), np.array([True, False])),
        (([True], [2]), [True, 2]),
        (([True], None), [True, None]),
        ((["a"], ["b"]), ["a", "b"]),
        ((["a"], [1.5]), ["a", 1.5]),
        ((["a"], None), ["a", None]),
        (([], [544]), np.array([544])),  # no rows are of no type: the ion is 544, not 544.0
        (([], [True]), np.array([True])),
        (([], ["up"]), ["up"]),
        (([], None, ["up"]), [None, "up"]),
        (([], []), np.empty(0)),
        (([1.5, None], [2.5]), [1.5, None, 2.5]),
        (([2**62 + 1], [0.5]), [2**62 + 1, 0.5]),  # no float holds it
        (([1 + 2j], [1.0]), [1 + 2j, 1.0]),
    ],
)
def test_columns_of_other_types_or_that_are_not_there(cells, expected):
    tables = [
        Table({"of": np.zeros(1 if own is None else len(own)), **({} if own is None else {"x": own})}) for own in cells
    ]
    obtained = below(*tables)["x"]
    if isinstance(expected, list) and isinstance(obtained, np.ndarray):
        expected = np.array(expected)
    assert same(obtained, expected)


def test_a_table_has_columns_of_these_names_itself():
    own = {"member": Column([1.5], "Å"), "group": ["x"], "T": Column([3.5], "K"), "T_2": Column([4.5], "ns")}
    table = below(Table(own), Table(own), groups=("a", "b", None), metadata=({"T": 300}, {"T": 310}, {}))
    assert list(table) == ["member", "group", "member_T", "member_2", "group_2", "T", "T_2"]
    assert table["member"] == ["r0", "r1"]
    assert table["group_2"] == ["x", "x"]
    assert (list(table["member_T"]), list(table["T"]), list(table["T_2"])) == ([300, 310], [3.5, 3.5], [4.5, 4.5])
    assert table.units == {"member_2": "Å", "T": "K", "T_2": "ns"}
    assert list(below(Table({"group": ["x"]}))) == ["member", "group"]  # where members have none


def test_values_become_a_table():
    obtained = join("label", members(3), [{"n": 3, "d": 1.5}, {"n": 5, "d": np.float64(2.5)}, {"n": 7}], 0.95)
    assert list(obtained) == ["n", "n_groups", "d", "d_groups"]
    assert (obtained["n"]["member"], list(obtained["n"]["n"])) == (["r0", "r1", "r2"], [3, 5, 7])
    assert (obtained["d"]["member"], list(obtained["d"]["d"])) == (["r0", "r1"], [1.5, 2.5])
    assert (list(obtained["n_groups"]["mean"]), list(obtained["d_groups"]["mean"])) == ([5], [2])
    words = join("label", members(2), ["folded", "unfolded"], 0.95)
    assert list(words) == ["label"]
    assert words["label"]["label"] == ["folded", "unfolded"]


def test_arrays_and_other_things_are_each_members():
    grid, other = np.zeros((2, 2)), {"any": object()}
    outcomes = [{"grid": grid, "more": other, "t": Table({"x": [1.0]})}, {"grid": grid}]
    obtained = join("label", members(2), outcomes, 0.95)
    assert list(obtained) == ["grid-r0", "grid-r1", "more-r0", "t", "t_groups"]
    assert obtained["grid-r1"] is grid
    assert obtained["more-r0"] is other
    mixed = join("label", members(2), [{"x": 1.5}, {"x": np.zeros(3)}], 0.95)
    assert list(mixed) == ["x-r0", "x-r1"]


def test_beside_each_table_stands_that_of_groups():
    tables = [Table({"k": Column([1, 2], role="x"), "x": [float(i), 1.0]}) for i in range(3)]
    obtained = join("label", members(3, groups=("a", "b", "b")), tables, 0.9)
    assert list(obtained) == ["label", "label_groups"]
    assert obtained["label_groups"]["group"] == ["a"] * 2 + ["b"] * 2 + ["b - a"] * 2
    assert obtained["label_groups"].level == 0.9
    assert list(join("label", members(3), tables, None)) == ["label"]
    taken = join("label", members(2), [{"x": 1.0, "x_groups": 2.0}] * 2, 0.9)
    assert list(taken) == ["x", "x_groups_2", "x_groups", "x_groups_groups"]
    assert list(taken["x_groups"]["x_groups"]) == [2, 2]


@pytest.mark.nightly
def test_a_dry_run_tells_of_all_members(folder, ensemble_words, tmp_path):
    (tmp_path / "more.csv").write_text((folder / "ensemble.csv").read_text().replace("\nr10,r10.dcd", "\nr10,none.dcd"))
    for name in ("r1.xtc", "r2.trr", "m1.xtc", "m2.xtc", "m3.nc", "top214.pdb", "top500.pdb"):
        (tmp_path / name).symlink_to(folder / name)
    words = [*ensemble_words[:-1], tmp_path / "more.csv", "--cache", tmp_path / "store"]
    words += ["-n", 2, "-o", tmp_path / "out"]
    frames = FRAMES - 25
    for ran in (False, True):
        done = himach("run", *words, "--dry-run", code=0)
        details = dict(line.rsplit(None, 1) for line in done.stdout.splitlines() if len(line.split()) > 1)
        figures = {name.strip(): cell for name, cell in details.items()}
        assert (figures["members"], figures["of these would fail"], figures["frames"]) == ("6", "1", str(frames))
        assert figures["from the origin"] == ("0" if ran else str(frames)) and figures["atoms"] == "500"
        assert figures["in caches, alien"] == (str(frames) if ran else "0")
        assert "member r10 failed: " in done.stdout
        if not ran:
            assert not (tmp_path / "out").exists()
            himach("run", *words, "--force", code=1)
    done = himach("run", *ensemble_words[:-1], folder / "r*.nothing", "--dry-run")
    assert done.returncode == 2 and "no file matches" in done.stderr
    done = himach("run", "rmsd", "-p", "selection=name XX", *ensemble_words[3:], "--dry-run")
    assert done.returncode == 2 and "member r1 failed" in done.stderr
