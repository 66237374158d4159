"""The runs over very many frames, over few: complete, and told beside their bars."""

from __future__ import annotations

import MDAnalysis as mda
import numpy as np
import pytest

from himach.benchmarks.runs.billion import main, write_dcd


def test_the_file_is_one_that_mdanalysis_reads(tmp_path):
    write_dcd(tmp_path / "a.dcd", 2500)
    universe = mda.Universe.empty(1, trajectory=True)
    universe.load_new(str(tmp_path / "a.dcd"))
    assert len(universe.trajectory) == 2500
    assert [universe.trajectory[number].positions[0, 0] for number in (0, 7, 2499)] == [0, 7, 499]
    assert np.isclose(universe.trajectory.dt, 1.0)


@pytest.mark.nightly
@pytest.mark.parametrize("only", ["dcd", "computed", "many"])
def test_runs_are_complete(tmp_path, only, capfd):
    main(20_000, (only,), 2, 2, tmp_path)
    said = capfd.readouterr().out
    assert said.count("(bar:") == 3
    (complete,) = [line for line in said.splitlines() if "complete" in line]
    assert complete.split()[1] == "yes"
    assert list(tmp_path.iterdir()) == []
