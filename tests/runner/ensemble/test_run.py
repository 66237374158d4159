"""Runs over ensembles: members as alone, for any ranks, nodes and order; repeated."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
from runner.ensemble.simulations import FRAMES, MEMBERS, NAMES, members_in, record_in
from support.cache_data import stage_on_nodes
from support.commands import himach, same_files
from support.ranks import run_under_mpiexec

import himach as package
from himach.io.store.store import Store


def rows_of(table, name):
    where = [at for at, member in enumerate(table["member"]) if member == name]
    return {column: [table[column][at] for at in where] for column in table}


def same(first, other):
    return len(first) == len(other) and all(
        a == b or (isinstance(a, float) and np.isnan(a) and np.isnan(b)) for a, b in zip(first, other, strict=True)
    )


def test_each_member_is_as_it_is_alone(folder):
    analyses = ["rmsd", f"{folder}/analyses.py:Gyration", f"{folder}/analyses.py:Ends"]
    members = members_in(folder)
    result = package.run(analyses, ensemble=members, cache="off")
    assert list(result.members) == NAMES and result.record["frames"] == FRAMES
    for member in members:
        alone = package.run(analyses, member.trajectory, member.topology, cache="off")
        for name in ("rmsd", "Gyration", "moved"):
            table = rows_of(result[name], member.name)
            own = result.members[member.name][name]
            assert set(table["group"]) == {member.group} and set(table["temperature"]) == {
                member.metadata["temperature"]
            }
            for column in alone[name]:
                if column != "whose":
                    assert same(table[column], list(alone[name][column])) and same(table[column], list(own[column]))
            assert list(own) == list(alone[name])
        at = result["frames"]["member"].index(member.name)
        assert result["frames"]["frames"][at] == alone["frames"]
        assert set(result.members[member.name]["Gyration"]["whose"]) == {member.name}
    assert list(result["rmsd"])[:3] == ["member", "group", "temperature"]
    assert result["rmsd"].units["rmsd"] == result["rmsd_groups"].units["mean"] == "Å"
    groups = result["rmsd_groups"]
    means = [np.mean(result.members[name]["rmsd"]["rmsd"]) for name in NAMES]
    assert groups["group"] == ["wild type", "mutant", "mutant - wild type"]
    assert np.allclose(
        groups["mean"], [np.mean(means[:3]), np.mean(means[3:]), np.mean(means[3:]) - np.mean(means[:3])]
    )
    frame = result.to_frame("rmsd_groups")
    assert list(frame["n"]) == [3, 3, 6]


@pytest.mark.nightly
def test_members_that_all_ranks_run_together_leave_the_same_bytes(folder, whole, tmp_path):
    (tmp_path / "ranks_ensemble.py").write_text(f"""
import himach
from himach.runner.ensemble import member_run

def test_together(monkeypatch):
    monkeypatch.setattr(member_run, "WORTH", 0)
    folder, out, found = {str(folder)!r}, {str(tmp_path / "out")!r}, []

    own = member_run.distribute

    def distribute(*given):
        found.append(own(*given))
        return found[0]

    monkeypatch.setattr(member_run, "distribute", distribute)
    analyses = ["rmsd", folder + "/analyses.py:Gyration", folder + "/analyses.py:Ends"]
    himach.run(analyses, ensemble=folder + "/ensemble.csv", cache="off", out=out)
    assert 0 < len(found[0][0]) < 6
""")
    run_under_mpiexec(tmp_path / "ranks_ensemble.py", 3)
    same_files(whole, tmp_path / "out")


def test_a_pattern_and_topologies_by_pattern(folder, tmp_path):
    for name, _, n_atoms, *_, kind in MEMBERS[:2]:
        place = tmp_path / "sims" / name
        place.mkdir(parents=True)
        shutil.copy(folder / f"{name}.{kind}", place / f"traj.{kind}")
        shutil.copy(folder / f"top{n_atoms}.pdb", place / "top.pdb")
    words = ["run", "rmsd", "-s", "sims/*/top.pdb", "--cache", "off", "-o", "out", "--ensemble"]
    done = himach(*words, "sims/*/traj.*", cwd=tmp_path)
    assert done.returncode == 2 and "another number of '*'" in done.stderr
    for place, kind in (("r1", "xtc"), ("r2", "trr")):
        (tmp_path / "sims" / place / f"traj.{kind}").rename(tmp_path / "sims" / place / "traj.trj")
    formats = ("--universe", "format=XTC", "--universe", "topology_format=PDB")
    shutil.copy(tmp_path / "sims/r1/traj.trj", tmp_path / "sims/r2/traj.trj")
    himach(*words, "sims/*/traj.trj", *formats, cwd=tmp_path, code=0)
    assert [item["name"] for item in record_in(tmp_path / "out")["ensemble"]] == ["r1", "r2"]


def test_features_of_each_member(folder, ensemble_words, whole, tmp_path):
    himach("run", *ensemble_words, "--cache", "off", "--features", "-o", tmp_path / "out", "-n", 3, code=0)
    files = sorted(path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*.npz"))
    assert files == sorted(
        f"features/{table}/{name}.npz" for table in ("rmsd-rmsd", "Gyration-Gyration") for name in NAMES
    )
    assert set(files) < set(record_in(tmp_path / "out")["files"])
    result = package.run([f"{folder}/analyses.py:Gyration"], ensemble=members_in(folder), cache="off")
    for name in NAMES:
        obtained = np.load(tmp_path / "out" / "features" / "Gyration-Gyration" / f"{name}.npz")
        table = result.members[name]["Gyration"]
        assert obtained["X"].shape == (len(table["rg"]), 1) and np.array_equal(obtained["X"][:, 0], table["rg"])
        assert np.array_equal(obtained["time_ps"], table["time_ps"]) and obtained["columns"].tolist() == ["rg"]
    shutil.rmtree(tmp_path / "out" / "features" / "rmsd-rmsd")
    himach("run", *ensemble_words, "--cache", "off", "-o", tmp_path / "out", "-n", 3, code=0)
    same_files(whole, tmp_path / "out")  # the features of the run before are gone


def test_again(folder, ensemble_words, whole, tmp_path):
    himach("run", "--rerun", whole, "-o", tmp_path / "out", "-n", 2, code=0)
    same_files(whole, tmp_path / "out")
    himach(
        "run", "--rerun", whole, "-o", tmp_path / "one", "-t", folder / "r1.xtc", "-s", folder / "top214.pdb", code=0
    )
    assert "ensemble" not in record_in(tmp_path / "one")


@pytest.mark.nightly
def test_warnings_are_told_once_with_their_members(folder):
    with pytest.warns(UserWarning, match="r1, r2, r10, m1, m2 and 1 more: Nothing: map.. yielded nothing") as heard:

        class Nothing(package.Analysis):
            def map(self, frame):
                yield from ()

            def reduce(self, key, series):
                return 1

        package.run(Nothing(), ensemble=members_in(folder), cache="off", stop=4)
    assert sum("Nothing" in str(item.message) for item in heard) == 1


@pytest.mark.nightly
def test_members_go_to_the_node_that_has_them(folder, ensemble_words, whole, tmp_path):
    """Three nodes, each with a store of its own; what the first run leaves where, the second one finds there."""
    observed = []
    for number in range(3):
        stage_on_nodes(tmp_path, ["a", "b", "c"], "run", *ensemble_words, "-o", tmp_path / f"out{number}", code=0)
        same_files(whole, tmp_path / f"out{number}")
        record = record_in(tmp_path / f"out{number}")
        assert record["nodes"] == 3
        observed.append(record["bytes"]["origin"])
    assert observed[0] > 0 and observed[1:] == [0, 0]
    stores = [{name for name in Store(tmp_path / node).names() if "/." not in name} for node in "abc"]
    assert all(stores) and sum(map(len, stores)) == len(set.union(*stores))  # no member is on two nodes


def test_members_of_one_trajectory_share_its_cache(folder, tmp_path):
    parts = [
        package.Member(f"part{at}", folder / "r1.xtc", folder / "top214.pdb", start=at, stop=at + 12)
        for at in range(0, 20, 4)
    ]
    expected = package.run("rmsd", ensemble=parts, cache="off")
    for _ in range(2):
        obtained = package.run("rmsd", ensemble=parts, cache=tmp_path / "store", ranks=3)
        assert same(obtained["rmsd"]["rmsd"].tolist(), expected["rmsd"]["rmsd"].tolist())
        assert obtained.record["frames"] == 12 * len(parts)
    assert obtained.record["bytes"]["origin"] == 0
    assert obtained.members["part8"]["rmsd"]["time_ps"].tolist() == [float(at) for at in range(8, 20)]


def test_each_member_has_analyses_of_its_own(folder):
    class Counts(package.Analysis):
        def setup(self, universe):
            self.calls = getattr(self, "calls", 0) + 1

        def map(self, frame):
            yield package.Row(calls=self.calls)

    result = package.run(Counts(), ensemble=members_in(folder), cache="off", stop=2)
    assert set(result["Counts"]["calls"].tolist()) == {1}


def test_members_that_are_the_same_frames_are_told(folder):
    member = package.Member("r1", folder / "r1.xtc", folder / "top214.pdb")
    twins = [member, replace(member, name="again"), replace(member, name="part", stop=5)]
    with pytest.warns(UserWarning, match="^r1, again: these are the same frames, and count as 2 members"):
        package.run("rmsd", ensemble=twins, cache="off")


def test_again_tells_which_member_is_another(folder, tmp_path):
    place = tmp_path / "simulations"
    shutil.copytree(folder, place)
    words = ["--cache", "off", "-o", tmp_path / "out"]
    himach("run", "rmsd", "--ensemble", place / "ensemble.csv", *words, code=0)
    shutil.copy(folder / "r1.xtc", place / "m1.xtc")
    done = himach("run", "--rerun", tmp_path / "out", *words)
    assert done.returncode == 0 and "m1: the content is another than in the run that is repeated" in done.stderr
    assert done.stderr.count("another than") == 1


def test_a_member_draws_and_tells_its_own(folder):
    obtained = package.run("rmsd", ensemble=members_in(folder), cache="off").members["m2"]
    assert obtained.record["frames"] == 12
    (axes,) = obtained.plot().axes
    assert [len(line.get_xdata()) for line in axes.lines] == [12]
