import subprocess
import sys

import matplotlib.pyplot as plt
import MDAnalysis
import pytest
from support import plain

import himach
from himach.examples import BUILTINS, SAMPLES, load, sample

PORE = {"top": "resname GRA and prop z > 26", "bottom": "resname GRA and prop z < 20"}
STAYS = {"stays": ["time_ps", "lasting"], "residence": ["stays", "ended", "mean_ps"]}
OCCUPANCY = {"occupancy": ["donor", "acceptor", "occupancy"]}
RUNS = {
    "water-residence": ("nanopore", {"solute": "name K"}, {"survival": ["tau_ps", "survival"], **STAYS}),
    "ion-permeation": (
        "nanopore",
        PORE,
        {"events": ["ion", "direction", "entered_ps", "left_ps"], "counts": ["direction", "events", "rate_per_ns"]},
    ),
    "rmsd": ("villin", {}, {"rmsd": ["time_ps", "rmsd"]}),
    "rdf": ("nanopore", {"a": "name K"}, {"rdf": ["r", "g"]}),
    "msd": (
        "nanopore",
        {"selection": "name K"},
        {"msd": ["tau_ps", "msd"], "diffusion": ["from_ps", "to_ps", "d_cm2_s"]},
    ),
    "hydrogen-bonds": (
        "villin",
        {},
        {"lifetime": ["tau_ps", "survival"], "counts": ["time_ps", "bonds"], **STAYS, **OCCUPANCY},
    ),
}


@pytest.mark.parametrize("name", BUILTINS)
def test_tables_and_plot(name):
    which, parameters, tables = RUNS[name]
    analysis = load(name)(**parameters)
    outcome = plain.run(analysis, *sample(which), stop=120)
    for table, columns in tables.items():
        assert list(outcome[table]) == columns
    for table in outcome.values():
        assert len({len(column) for column in table.values()}) == 1
    for of_table in outcome.values():  # as of a trajectory that is thousands of times as long
        for column in {"time_ps", "tau_ps", "entered_ps", "left_ps", "from_ps", "to_ps"} & of_table.keys():
            of_table[column] = 10_000 * of_table[column]
    figure, axes = plt.subplots()
    analysis.plot(outcome, axes)
    for panel in axes.child_axes or [axes]:
        assert panel.get_xlabel() == "distance r / Å" or panel.get_xlabel().endswith(" / ns")
        assert panel.get_ylabel()
    figure.canvas.draw()
    plt.close(figure)


@pytest.mark.parametrize("name", BUILTINS)
def test_every_parameter_is_documented(name):
    analysis = load(name)
    assert analysis.label() == name
    assert issubclass(analysis, himach.Analysis)
    assert analysis.__doc__
    for parameter in analysis.parameters().values():
        assert parameter.doc, parameter.name


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_can_be_read(name):
    trajectory, topology = sample(name)
    universe = MDAnalysis.Universe(topology, trajectory)
    assert len(universe.trajectory) > 100


def test_samples_are_small():
    assert sum(path.stat().st_size for name in SAMPLES for path in sample(name)) < 5e6


def test_registry_imports_no_mdanalysis():
    code = "import sys, himach.examples; sys.exit('MDAnalysis' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_unknown_names():
    with pytest.raises(himach.UsageError, match="did you mean 'rmsd'"):
        load("rmds")
    with pytest.raises(himach.UsageError, match="there is no sample 'villain'; did you mean 'villin'"):
        sample("villain")
