"""Roles of columns: of the tables of all built-ins, over members, and of tables as users make them."""

from __future__ import annotations

import numpy as np
import pytest
from support import plain

from himach import Column, Table
from himach.examples import BUILTINS, load, sample
from himach.output.parts import parts
from himach.runner.ensemble.columns import Roles, roles_of
from himach.runner.outcome.estimates import add_estimates
from himach.uncertainty import mean

CHANNEL = {"top": "index 110 246 382 518", "bottom": "index 59 195 331 467", "radius": 2.5}
RUNS = {
    "water-residence": ("nanopore", {"solute": "name K"}),
    "ion-permeation": ("kcsa", CHANNEL),
    "rmsd": ("villin", {}),
    "rdf": ("nanopore", {"a": "name K"}),
    "msd": ("nanopore", {"selection": "name K"}),
    "hydrogen-bonds": ("villin", {}),
    "clusters": ("villin", {"cutoff": 0.9}),
    "contacts": ("villin", {}),
    "density": ("nanopore", {}),
    "dielectric": ("water", {"charges": ["name OW = -0.8476", "name HW1 HW2 = 0.4238"]}),
    "geometry": ("villin", {"distances": ["ends=resid 1; resid 35"], "dihedrals": ["phi:resid 1:2"]}),
    "lipid-order": ("membrane", {"leaflets": "z"}),
    "membrane": ("membrane", {}),
    "pca": ("villin", {"components": 3}),
    "radius-of-gyration": ("villin", {}),
    "rmsf": ("villin", {}),
    "sasa": ("villin", {"by": "residue", "points": 100}),
    "secondary-structure": ("villin", {}),
    "velocity-autocorrelation": ("argon", {"selection": "all", "tau_max": 60}),
}
STATES = ["H", "B", "E", "G", "I", "T", "S", "P", "coil"]
CURVES = {"stays": (["time_ps"], ["lasting"]), "residence": ([], ["mean_ps"])}
#: Keys and values of what is in no order of time.
EXPECTED = {
    "water-residence": {"survival": (["tau_ps"], ["survival"]), **CURVES},
    "ion-permeation": {"counts": (["direction"], ["events", "rate_per_ns"]), "filter": ([], ["bottom", "top"])},
    "rmsd": {},
    "rdf": {"rdf": (["r"], ["g"]), "coordination": (["r"], ["n"])},
    "msd": {"msd": (["tau_ps"], ["msd"]), "diffusion": (["from_ps", "to_ps"], ["d_cm2_s"])},
    "hydrogen-bonds": {
        "lifetime": (["tau_ps"], ["survival"]),
        "occupancy": (["donor", "acceptor"], ["occupancy"]),
        **CURVES,
    },
    "clusters": {"clusters": (["cluster"], ["size"])},
    "contacts": {"frequency": (["a", "b"], ["frequency"]), "lifetimes": (["a", "b"], ["stays", "mean_ps"])},
    "density": {"profile": (["position"], ["density"])},
    "dielectric": {"dielectric": ([], ["epsilon"])},
    "geometry": {},
    "lipid-order": {
        "order": (["lipid", "carbon", "hydrogen"], ["s_ch"]),
        "by_leaflet": (["lipid", "carbon", "hydrogen", "leaflet"], ["s_ch"]),
        "carbons": (["lipid", "chain", "number", "carbon"], ["s_ch"]),
    },
    "membrane": {"flip_flops": ([], [])},
    "pca": {"variance": (["component"], ["variance"]), "surface": ([], [])},
    "radius-of-gyration": {},
    "rmsf": {"rmsf": (["atom"], ["rmsf", "bfactor"])},
    "sasa": {"by": (["residue"], ["sasa"]), "radii": ([], [])},
    "secondary-structure": {"residues": (["residue"], STATES)},
    "velocity-autocorrelation": {
        "vacf": (["tau_ps"], ["c"]),
        "spectrum": (["wavenumber"], ["density"]),
        "diffusion": (["to_ps"], ["d_cm2_s"]),
    },
}
IN_TIME = {
    "rmsd": {"rmsd": ["rmsd"]},
    "hydrogen-bonds": {"counts": ["bonds"]},
    "clusters": {"membership": []},
    "contacts": {"counts": ["contacts"]},
    "dielectric": {"running": []},
    "geometry": {"geometry": ["ends"]},
    "membrane": {"area": ["lower", "upper", "DLPE", "DLPC"], "thickness": ["thickness"]},
    "pca": {"projections": []},
    "radius-of-gyration": {"rg": ["rg", "asphericity", "acylindricity", "anisotropy"]},
    "sasa": {"sasa": ["sasa"]},
    "secondary-structure": {"content": STATES},
}
#: Whose figures intervals alone tell from what a row is of: a number behind another one, or two axes.
NOT_FOUND = {"clusters", "surface"}
#: Of which no interval is told.
UNSURE = {"events", "filter", "flip_flops", "membership", "radii", "running", "surface", "z"}


@pytest.fixture(scope="module")
def outcomes():
    """Return a function for the tables of each of three members, by the name of the analysis."""
    found = {}

    def of(name, level):
        if (name, level) not in found:
            which, parameters = RUNS[name]
            members = []
            for start in (0, 25, 60):
                outcome = plain.run(load(name)(**parameters), *sample(which), start=start, stop=start + 60)
                add_estimates([name], [outcome], level, None)
                members.append({part: table for part, table in parts(outcome, name) if isinstance(table, Table)})
            found[name, level] = members
        return found[name, level]

    return of


@pytest.mark.nightly(but=6)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", BUILTINS)
def test_tables_of_built_ins(outcomes, name):
    members = outcomes(name, 0.95)
    roles = {table: roles_of([one[table] for one in members]) for table in members[0]}
    in_time = {table: found.values for table, found in roles.items() if found.in_time and table != "z"}
    assert "z" not in roles or not roles["z"].values  # of ions that each member numbers as it likes
    assert in_time == IN_TIME.get(name, {})
    by_rows = {table: (found.keys, found.values) for table, found in roles.items() if not found.in_time}
    by_rows.pop("events", None)  # which may be one of each ion
    assert by_rows == EXPECTED[name]
    assert {table for table, found in roles.items() if not found.sure} <= UNSURE


@pytest.mark.filterwarnings("ignore")
def test_settings_of_a_grid_are_not_compared():
    outcome = plain.run(load("density")(grid=4.0), *sample("nanopore"), stop=10)
    assert roles_of([outcome["extent"]] * 3).values == []


def test_times_of_events_are_not_compared_where_there_is_one_of_each():
    times = {"entered_ps": Column([2.0, 9.0], "ps", compared=False), "left_ps": [4.0, 11.0]}
    table = Table({"ion": np.array([544, 545]), "direction": ["in", "out"], **times})
    assert roles_of([table, table]).values == ["left_ps"]
    again = Table({**Table(times), "more": [1.0, 2.0]})
    assert not again.uncompared and Table(Table(times)).uncompared == {"entered_ps"}


@pytest.mark.nightly(but=6)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", BUILTINS)
def test_without_confidence_all_can_be_drawn(outcomes, name):
    sure, plain_ones = outcomes(name, 0.95), outcomes(name, None)
    for table in sure[0]:
        found = roles_of([one[table] for one in plain_ones])
        asked = roles_of([one[table] for one in sure])
        assert not found.sure
        assert set(asked.values) <= set(found.values) or table in NOT_FOUND


def table(**columns):
    return Table(columns)


RNG = np.random.default_rng(1)
GRID = {"state": ["open", "shut"]}


@pytest.mark.parametrize(
    ("tables", "keys", "values"),
    [
        ([table(x=[1.5]), table(x=[2.5])], [], ["x"]),
        ([table(n=[3]), table(n=[4])], [], ["n"]),
        ([table(n=[3]), table(n=[3])], [], ["n"]),
        ([table(key=[0], result=[1.5]), table(key=[0], result=[1.5])], ["key"], ["result"]),
        ([table(stays=[3], mean=[1.5]), table(stays=[4], mean=[2.5])], [], ["stays", "mean"]),
        ([table(ion=[3], way=["up"], at=[1.5]), table(ion=[4], way=["up"], at=[2.5])], ["way"], ["at"]),
        ([table(rg=[1.0], verdict=["ok"]), table(rg=[2.0], verdict=["bad"])], [], ["rg"]),
        ([table(x=["a"]), table(x=["b"])], [], []),
        ([table(x=[1.0, 2.0]), table(x=[1.0])], [], ["x"]),
        ([table(**GRID, p=[0.1, 0.9])] * 2, ["state"], ["p"]),
        ([table(**GRID, n=[1, 2], p=[0.1, 0.9]), table(**GRID, n=[2, 2], p=[0.2, 0.8])], ["state"], ["n", "p"]),
        ([table(**GRID, n=[1, 2])] * 2, ["state"], ["n"]),
        ([table(chain=["A", "A"], resid=[1, 2], rmsf=[0.1, 0.2])] * 2, ["chain", "resid"], ["rmsf"]),
        ([table(r=[0.5, 1.5], n=[3, 4], g=[0.1, 0.2])] * 2, ["r"], ["n", "g"]),
        ([table(donor=[1, 2], acceptor=[5, 5], p=[0.1, 0.2])] * 2, ["donor", "acceptor"], ["p"]),
        ([table(bin=[0, 1], n=[4, 5])] * 2, ["bin"], ["n"]),
        ([table(ion=[1, 1], way=["up", "up"], at=[0.1, 0.2])] * 2, ["ion", "way"], []),  # a list
        ([table(key=[1, 2], mean=[1.0, 2.0], low=[0.0, 1.0], high=[2.0, 3.0], n_eff=[9.0, 9.0])], ["key"], ["mean"]),
        ([table(key=[1, 2], x=[1.0, None]), table(key=[1, 2], x=[1.0, 2.0])], ["key"], ["x"]),
        (
            [table(resid=[1, 2], n=[3, 4], x=[0.1, 0.2]), table(resid=[1, 2], n=[5, 6], x=[0.1, 0.3])],
            ["resid"],
            ["n", "x"],
        ),
        ([table(key=[1, 2], x=[1, 2]), table(key=[1, 2], x=[1.5, 2.0])], ["key"], ["x"]),
        ([table(key=[1, 2], x=[1.5, 2.0]), table(key=[], x=[])], ["key"], ["x"]),
        ([table(key=[1, 2], y=[1.0, 2.0]), table(key=[1, 2], x=[3.0, 4.0])], ["key"], ["y", "x"]),
        ([table(a=["x", "y"], b=["u", "v"])] * 2, [], []),
        ([table(a=[[1], [2]], x=[1.0, 2.0])] * 2, ["a"], ["x"]),
        ([table(a=[np.nan, np.nan], x=[1.0, 2.0])] * 2, ["a"], []),
        ([Table({})], [], []),
    ],
)
def test_tables_of_users(tables, keys, values):
    found = roles_of(tables)
    assert not found.in_time
    assert found.values == values
    if values:
        assert found.keys == keys


EVEN, UNEVEN = [0.0, 0.2, 0.4000001, 0.6], [0.0, 0.2, 0.9, 1.0]


@pytest.mark.parametrize(
    ("columns", "values"),
    [
        ({"time_ps": EVEN, "bonds": [1, 2, 3, 4]}, ["bonds"]),
        ({"time_ps": EVEN, "rg": RNG.random(4), "bonds": [1, 2, 3, 4], "state": list("abcd")}, ["rg", "bonds"]),
        ({"time_ps": UNEVEN, "ion": [1, 2, 3, 4], "way": list("uudd")}, []),  # a list of events
        ({"time_ps": UNEVEN, "ion": [1, 2, 3, 4], "took": RNG.random(4)}, ["took"]),
        ({"time_ps": UNEVEN, "n": [1, 2, 3, 4], "bound": [True, False] * 2, "frame": [0, 1, 5, 6]}, ["n", "bound"]),
        ({"time_ps": EVEN, "x": [1.0, None, 2.0, 3.0], "frame": [0, 1, 2, 3]}, ["x"]),
        ({"rg": RNG.random(4), "frame": [0, 1, 2, 3]}, ["rg"]),
        ({"time_ps": [], "n": []}, []),
    ],
)
def test_tables_in_time(columns, values):
    assert roles_of([Table(columns)] * 2) == Roles(True, [], values)


def test_what_has_a_mean_or_limits_goes_before_others():
    series = Table({"time_ps": EVEN, "x": RNG.random(4), "y": RNG.random(4)})
    series.means["y"] = mean(RNG.random(100))
    assert roles_of([Table({"time_ps": EVEN, "x": EVEN, "y": EVEN}), series]) == Roles(True, [], ["y"], True)
    curve = Table({"time_ps": EVEN, "p": EVEN, "p_low": EVEN, "p_high": EVEN, "q": EVEN})
    assert roles_of([curve]) == Roles(False, ["time_ps"], ["p"], True)


def test_members_without_rows_say_nothing():
    full = Table({"ion": [1, 2], "x": Column([1.0, 2.0], "Å")})
    assert roles_of([Table({"ion": [], "x": []}), full]) == Roles(False, ["ion"], ["x"])


def test_places_that_files_round_are_the_same():
    found = [table(to_ps=[to], d=[d], d_low=[0.0], d_high=[9.0]) for to, d in ((0.2, 1.0), (0.2000001, 2.0))]
    assert roles_of(found).keys == ["to_ps"]
    assert roles_of([*found, table(to_ps=[0.4], d=[3.0], d_low=[0.0], d_high=[9.0])]).keys == []
