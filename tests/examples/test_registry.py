"""The built-in analyses: their names, parameters, tables and plots; the plain runner that tells what they mean."""

import matplotlib.pyplot as plt
import pytest
from support import plain
from support.sample_runs import BUILTIN_RUNS, builtin_tables

import himach
from himach.examples import BUILTINS, SAMPLES, load, sample

#: What axes without a unit are called.
AXES = {"residue", "index of atom", "number of the carbon in its chain"}


@pytest.mark.parametrize("name", BUILTINS)
def test_tables_and_plot(name):
    which, parameters = BUILTIN_RUNS[name]
    analysis = load(name)(**parameters)
    outcome = plain.run(analysis, *sample(which), stop=120)
    for table, (columns, _) in builtin_tables(name).items():
        assert list(outcome[table]) == columns
    result = [part for part in outcome.values() if isinstance(part, dict)]  # beside texts and arrays
    for table in result:
        assert len({len(column) for column in table.values()}) == 1
    for of_table in result:  # as of a trajectory that is thousands of times as long
        for column in {"time_ps", "tau_ps", "entered_ps", "left_ps", "from_ps", "to_ps"} & of_table.keys():
            of_table[column] = 10_000 * of_table[column]
    figure, axes = plt.subplots()
    while (following := analysis.next_stage()) is not None:
        analysis = following
    analysis.plot(outcome, axes)
    placed = [item for item in figure.axes if item.get_visible() and item.get_label() != "<colorbar>"]
    for panel in [item for item in placed if item.xaxis.get_visible()]:  # of two that share it, the first
        label = panel.get_xlabel()
        assert label in AXES or label.endswith((" / Å", " / ns", " / cm⁻¹"))
        assert panel.get_ylabel()
    figure.canvas.draw()
    plt.close(figure)


def test_samples_are_small():
    assert sum(path.stat().st_size for name in SAMPLES for path in sample(name)) < 5e6


def test_an_unknown_sample():
    with pytest.raises(himach.UsageError, match="there is no sample 'villain'; did you mean 'villin'"):
        sample("villain")
