"""Runs over ensembles: members as alone, for any ranks and order; failing, growing, killed and repeated."""

from __future__ import annotations

import json
import shutil
import signal
from contextlib import closing
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from runner.ensemble.simulations import MEMBERS, make_ensemble, members_in, write_table
from support.cache_data import stage_on_nodes
from support.commands import himach, processes_with, same_files, start_himach, wait_until
from support.ranks import run_under_mpiexec

import himach as package
from himach.examples import load
from himach.io.store.store import Store
from himach.locks import Lock
from himach.opening.options import Job
from himach.runner.ensemble import distribution

NAMES = [name for name, *_ in MEMBERS]
JOB = Job(["any.xtc"], cache="off", analyses=[load("rmsd")()])
FRAMES = sum(n_frames for _, _, _, n_frames, *_ in MEMBERS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ensemble")
    make_ensemble(folder)
    return folder


@pytest.fixture(scope="module")
def asked(folder):
    return [
        "rmsd",
        f"{folder}/analyses.py:Gyration",
        f"{folder}/analyses.py:Ends",
        "--ensemble",
        folder / "ensemble.csv",
    ]


@pytest.fixture(scope="module")
def whole(folder, asked, tmp_path_factory):
    """The outcome of one process."""
    out = tmp_path_factory.mktemp("whole") / "out"
    done = himach("run", *asked, "--cache", "off", "-o", out)
    assert done.returncode == 0, done.stderr
    return out


def record_in(out):
    return json.loads((out / "run.json").read_text())


def rows_of(table, name):
    where = [at for at, member in enumerate(table["member"]) if member == name]
    return {column: [table[column][at] for at in where] for column in table}


def same(one, other):
    return len(one) == len(other) and all(
        a == b or (isinstance(a, float) and np.isnan(a) and np.isnan(b)) for a, b in zip(one, other, strict=True)
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


@pytest.mark.parametrize("ranks", [2, 3])
def test_any_ranks_leave_the_same_bytes(folder, asked, whole, tmp_path, ranks):
    for cache in ("off", tmp_path / "store", tmp_path / "store"):
        done = himach("run", *asked, "--cache", cache, "-o", tmp_path / "out", "-n", ranks)
        assert done.returncode == 0, done.stderr
        same_files(whole, tmp_path / "out")
    record = record_in(tmp_path / "out")
    assert record["bytes"]["origin"] == 0 and record["frames"] == FRAMES and record["ranks"] == ranks
    assert [one["name"] for one in record["ensemble"]] == NAMES


@pytest.mark.parametrize("ranks", [2, 3])
def test_members_that_all_ranks_run_together_leave_the_same_bytes(folder, whole, tmp_path, ranks):
    (tmp_path / "ranks_ensemble.py").write_text(f"""
import himach
from himach.runner.ensemble import distribution

def test_together(monkeypatch):
    monkeypatch.setattr(distribution, "WORTH", 0)
    folder, out, found = {str(folder)!r}, {str(tmp_path / "out")!r}, []

    own = distribution.distribute

    def distribute(*given):
        found.append(own(*given))
        return found[0]

    monkeypatch.setattr(distribution, "distribute", distribute)
    analyses = ["rmsd", folder + "/analyses.py:Gyration", folder + "/analyses.py:Ends"]
    himach.run(analyses, ensemble=folder + "/ensemble.csv", cache="off", out=out)
    assert 0 < len(found[0].together) < 6
""")
    run_under_mpiexec(tmp_path / "ranks_ensemble.py", ranks)
    same_files(whole, tmp_path / "out")


def test_members_come_in_the_order_of_the_table(folder, asked, whole, tmp_path):
    order = [MEMBERS[at] for at in (3, 0, 5, 4, 2, 1)]
    table = write_table(folder / "other.csv", order)
    words = [*asked[:3], "--ensemble", table]
    assert himach("run", *words, "--cache", "off", "-o", tmp_path / "out", "-n", 2).returncode == 0
    lines = (tmp_path / "out" / "rmsd" / "rmsd.csv").read_text().splitlines()
    assert list(dict.fromkeys(line.partition(",")[0] for line in lines[1:])) == [name for name, *_ in order]
    then = (whole / "rmsd" / "rmsd.csv").read_text().splitlines()
    short = [line.split(",")[0:1] + line.split(",")[3:] for line in lines[1:]]
    assert sorted(short) == sorted(line.split(",")[0:1] + line.split(",")[3:] for line in then[1:])


def test_a_pattern_and_topologies_by_pattern(folder, tmp_path):
    for name, _, n_atoms, *_, kind in MEMBERS[:2]:
        place = tmp_path / "sims" / name
        place.mkdir(parents=True)
        shutil.copy(folder / f"{name}.{kind}", place / f"traj.{kind}")
        shutil.copy(folder / f"top{n_atoms}.pdb", place / "top.pdb")
    done = himach(
        "run",
        "rmsd",
        "--ensemble",
        "sims/*/traj.*",
        "-s",
        "sims/*/top.pdb",
        "--cache",
        "off",
        "-o",
        "out",
        cwd=tmp_path,
    )
    assert done.returncode == 2 and "another number of '*'" in done.stderr
    for place, kind in (("r1", "xtc"), ("r2", "trr")):
        (tmp_path / "sims" / place / f"traj.{kind}").rename(tmp_path / "sims" / place / "traj.trj")
    words = ("--universe", "format=XTC", "--universe", "topology_format=PDB")
    shutil.copy(tmp_path / "sims/r1/traj.trj", tmp_path / "sims/r2/traj.trj")
    done = himach(
        "run", "rmsd", "--ensemble", "sims/*/traj.trj", "-s", "sims/*/top.pdb", "--cache", "off", "-o", "out", *words,
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [one["name"] for one in record_in(tmp_path / "out")["ensemble"]] == ["r1", "r2"]


@pytest.mark.parametrize("ranks", [1, 2])
def test_features_of_each_member(folder, asked, whole, tmp_path, ranks):
    done = himach("run", *asked, "--cache", "off", "--features", "-o", tmp_path / "out", "-n", ranks)
    assert done.returncode == 0, done.stderr
    files = sorted(path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*.npz"))
    assert files == sorted(
        f"features/{table}/{name}.npz" for table in ("rmsd-rmsd", "Gyration-Gyration") for name in NAMES
    )
    assert set(files) < set(record_in(tmp_path / "out")["files"])
    result = package.run([f"{folder}/analyses.py:Gyration"], ensemble=members_in(folder), cache="off")
    for name in NAMES:
        found = np.load(tmp_path / "out" / "features" / "Gyration-Gyration" / f"{name}.npz")
        table = result.members[name]["Gyration"]
        assert found["X"].shape == (len(table["rg"]), 1) and np.array_equal(found["X"][:, 0], table["rg"])
        assert np.array_equal(found["time_ps"], table["time_ps"]) and found["columns"].tolist() == ["rg"]
    shutil.rmtree(tmp_path / "out" / "features" / "rmsd-rmsd")
    done = himach("run", *asked, "--cache", "off", "-o", tmp_path / "out", "-n", ranks)
    assert done.returncode == 0, done.stderr
    same_files(whole, tmp_path / "out")  # the features of the run before are gone


# -- failing, growing, ending ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_member_that_fails_is_named_and_the_others_finish(folder, tmp_path, ranks):
    table = tmp_path / "table.csv"
    lines = [f"{name},{folder}/{name}.{kind},{folder}/top{n}.pdb,{group}" for name, group, n, _, _, kind in MEMBERS]
    lines[1] = f"r2,{tmp_path}/none.trr,{folder}/top214.pdb,wild type"
    lines[3] = f"m1,{folder}/m1.xtc,{folder}/top500.pdb,mutant"
    table.write_text("\n".join(["name,trajectory,topology,group", *lines]))
    words = ["run", f"{folder}/analyses.py:Gyration", "--ensemble", table, "--pairs", tmp_path / "pairs"]
    done = himach(*words, "--cache", "off", "-o", tmp_path / "out", "-n", ranks)
    assert done.returncode == 1
    assert "member r2 failed" in done.stderr and "none.trr" in done.stderr
    assert "member m1 failed" in done.stderr and "500 atoms" in done.stderr
    record = record_in(tmp_path / "out")
    assert [bool(one["error"]) for one in record["ensemble"]] == [False, True, False, True, False, False]
    assert len(record["errors"]) == 2 and record["frames"] == FRAMES - 51
    text = (tmp_path / "out" / "Gyration.csv").read_text()
    assert "r10," in text and "r2," not in text
    lines[1] = f"r2,{folder}/r2.trr,{folder}/top214.pdb,wild type"
    lines[3] = f"m1,{folder}/m1.xtc,{folder}/top214.pdb,mutant"
    table.write_text("\n".join(["name,trajectory,topology,group", *lines]))
    done = himach(*words, "--cache", "off", "-o", tmp_path / "out", "-n", ranks)
    assert done.returncode == 0, done.stderr
    record = record_in(tmp_path / "out")
    assert record["reused"]["frames"] == FRAMES - 51 and record["frames"] == FRAMES
    alone = himach("run", *words[1:4], "--cache", "off", "-o", tmp_path / "alone")
    assert alone.returncode == 0
    same_files(tmp_path / "out", tmp_path / "alone")


def test_what_all_members_lack_is_told_once(folder, tmp_path):
    done = himach("run", "rmsd", "-p", "selection=name NOSUCH", "--ensemble", folder / "ensemble.csv", "-n", 2)
    assert done.returncode == 2
    assert done.stderr.count("NOSUCH") == 1 and "r1" in done.stderr and "Traceback" not in done.stderr


def test_a_selection_that_one_member_lacks_is_named_with_it(folder):
    with pytest.warns(UserWarning, match="member (r1|r2|m1) failed: rmsd: .*index 300"):
        result = package.run(
            package.examples.load("rmsd")(selection="index 300"), ensemble=members_in(folder), cache="off"
        )
    assert list(result.members) == ["r10", "m2", "m3"]


def test_a_new_member_and_a_longer_one_cost_only_themselves(folder, tmp_path):
    table = write_table(folder / "fewer.csv", MEMBERS[:5])
    words = ["run", f"{folder}/analyses.py:Gyration", "--cache", "off", "--pairs", tmp_path / "pairs"]
    shorter = [*words, "--ensemble", table, "--stop", 10, "-o", tmp_path / "out"]
    assert himach(*shorter).returncode == 0
    assert himach(*words, "--ensemble", folder / "ensemble.csv", "-o", tmp_path / "out", "-n", 2).returncode == 0
    record = record_in(tmp_path / "out")
    assert {one["name"]: one["reused"] for one in record["ensemble"]} == {**dict.fromkeys(NAMES, 10), "m3": 0}
    assert himach(*words[:4], "--ensemble", folder / "ensemble.csv", "-o", tmp_path / "anew").returncode == 0
    same_files(tmp_path / "out", tmp_path / "anew")


def kept_parts(place):
    return list((place / "pairs").rglob("*.pairs"))


def has_kept_more(run, place, before):
    return len(kept_parts(place)) > before or run.poll() is not None


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_killed_at_any_moment_it_goes_on(folder, tmp_path, ranks):
    words = ["run", f"{folder}/analyses.py:Gyration", "--ensemble", folder / "ensemble.csv", "--cache", "off"]
    assert himach(*words, "-o", tmp_path / "whole").returncode == 0
    slow = [*words, "-p", "pause=0.01", "--pairs", tmp_path / "pairs", "-o", tmp_path / "out", "-n", ranks]
    killed = 0
    for turn in range(5):
        begun = len(kept_parts(tmp_path))
        run = start_himach(*slow)
        assert wait_until(partial(has_kept_more, run, tmp_path, begun))
        killed += run.poll() is None
        run.send_signal(signal.SIGKILL if turn % 2 else signal.SIGTERM)
        run.communicate(timeout=60)
        if run.returncode == 0:
            break
    done = himach(*words, "-p", "pause=0.01", "--pairs", tmp_path / "pairs", "-o", tmp_path / "out", "-n", ranks)
    assert done.returncode == 0, done.stderr
    same_files(tmp_path / "whole", tmp_path / "out")
    assert not (tmp_path / "out" / ".himach").exists()
    assert killed >= 3 and record_in(tmp_path / "out")["reused"]["frames"] > 0


def test_time_that_is_up_loses_nothing(folder, tmp_path):
    words = ["run", f"{folder}/analyses.py:Gyration", "--ensemble", folder / "ensemble.csv", "--cache", "off"]
    slow = [*words, "-p", "pause=0.05", "-o", tmp_path / "out", "-n", 2]
    done = himach(*slow, "--max-time", 4)
    assert done.returncode == 75 and "6 members are done" in done.stderr
    assert himach(*slow).returncode == 0
    assert record_in(tmp_path / "out")["reused"]["frames"] > 20
    assert himach(*words, "-o", tmp_path / "whole").returncode == 0
    same_files(tmp_path / "whole", tmp_path / "out")
    assert not (tmp_path / "out" / ".himach").exists()


def test_again(folder, asked, whole, tmp_path):
    done = himach("run", "--again", whole, "-o", tmp_path / "out", "-n", 2)
    assert done.returncode == 0, done.stderr
    same_files(whole, tmp_path / "out")
    done = himach("run", "--again", whole, "-o", tmp_path / "one", "-t", folder / "r1.xtc", "-s", folder / "top214.pdb")
    assert done.returncode == 0, done.stderr
    assert "ensemble" not in record_in(tmp_path / "one")


def test_ranks_that_stay(folder, whole):
    with package.Ranks(2) as ranks:
        result = package.run("rmsd", ensemble=folder / "ensemble.csv", cache="off", ranks=ranks)
    assert list(result.members) == NAMES
    text = (whole / "rmsd" / "rmsd.csv").read_text()
    assert len(text.splitlines()) == len(result["rmsd"]["rmsd"]) + 1
    assert result.plot() is not None


def test_warnings_are_told_once_with_their_members(folder):
    with pytest.warns(UserWarning, match="r1, r2, r10, m1, m2 and 1 more: Nothing: map.. yielded nothing") as heard:

        class Nothing(package.Analysis):
            def map(self, frame):
                yield from ()

            def reduce(self, key, series):
                return 1

        package.run(Nothing(), ensemble=members_in(folder), cache="off", stop=4)
    assert sum("Nothing" in str(one.message) for one in heard) == 1


def test_what_makes_no_ensemble_is_refused(folder):
    with pytest.raises(package.UsageError, match="leave the other ones out"):
        package.run("rmsd", folder / "r1.xtc", ensemble=members_in(folder))
    with pytest.raises(package.UsageError, match="no trajectory"):
        package.run("rmsd")
    with pytest.raises(package.UsageError, match="two members of the ensemble are called 'r1'"):
        package.run("rmsd", ensemble=[*members_in(folder), *members_in(folder)[:1]])


def test_what_ensembles_cannot_is_refused_by_name(folder, asked, whole, tmp_path):
    for words, reason in (
        (["--follow"], "follow each file by a run of its own"),
        (["--features"], "name a directory for them"),
        (["-t", folder / "r1.xtc"], "leave the other ones out"),
    ):
        done = himach("run", *asked, *words)
        assert done.returncode == 2 and reason in done.stderr, words
    done = himach(
        "run", "rmsd", "-t", folder / "r1.xtc", "-s", folder / "top214.pdb", "--features", "-o", tmp_path / "out"
    )
    assert done.returncode == 2 and "of an ensemble" in done.stderr


def test_a_dry_run_tells_of_all_members(folder, asked, tmp_path):
    (tmp_path / "more.csv").write_text((folder / "ensemble.csv").read_text().replace("\nr10,r10.dcd", "\nr10,none.dcd"))
    for name in ("r1.xtc", "r2.trr", "m1.xtc", "m2.xtc", "m3.nc", "top214.pdb", "top500.pdb"):
        (tmp_path / name).symlink_to(folder / name)
    words = [*asked[:-1], tmp_path / "more.csv", "--cache", tmp_path / "store", "-n", 2, "-o", tmp_path / "out"]
    frames = FRAMES - 25
    for ran in (False, True):
        done = himach("run", *words, "--dry-run")
        assert done.returncode == 0, done.stderr
        told = dict(line.rsplit(None, 1) for line in done.stdout.splitlines() if len(line.split()) > 1)
        figures = {name.strip(): cell for name, cell in told.items()}
        assert (figures["members"], figures["of these would fail"], figures["frames"]) == ("6", "1", str(frames))
        assert figures["from the origin"] == ("0" if ran else str(frames)) and figures["atoms"] == "500"
        assert figures["in caches, alien"] == (str(frames) if ran else "0")
        assert "member r10 failed: " in done.stdout
        assert ("As a second run" in done.stdout) == ran
        if not ran:
            assert not (tmp_path / "out").exists() and "'himach plan DIR --frames 125" in done.stdout
            assert himach("run", *words, "--force").returncode == 1
    done = himach("run", *asked[:-1], folder / "r*.nothing", "--dry-run")
    assert done.returncode == 2 and "no file matches" in done.stderr
    done = himach("run", "rmsd", "-p", "selection=name XX", *asked[3:], "--dry-run")
    assert done.returncode == 2 and "member r1 failed" in done.stderr


def test_a_plan_of_an_ensemble(folder, asked, whole, tmp_path):
    out = tmp_path / "out"
    assert himach("run", *asked, "--cache", "off", "-n", 2, "-o", out).returncode == 0
    record = record_in(out)
    told = record["planning"]
    assert told["totals"]["frames"]["sum"] == FRAMES == sum(told["share_frames"]) and len(told["ranks"]["rank"]) == 2
    longest, seconds = max(told["ranks"]["busy"]), record["seconds"]["total"]
    assert 0 < longest < seconds
    for busy, read, compute, frames in zip(
        *(told["ranks"][n] for n in ("busy", "read", "compute", "frames")), strict=True
    ):
        assert (read + compute) * frames == pytest.approx(busy, rel=1e-3)
    plan = package.plan([out], nodes=[1, 3, 30], ranks_per_node=2)
    assert set(plan["times"]["run"]) == {"first", "second"}
    at = [i for i, run in enumerate(plan["times"]["run"]) if run == "first"]
    assert plan["times"]["total"][at[0]] == pytest.approx(seconds, rel=0.4)  # ranks of a busy machine differ
    done = himach("plan", out, "--nodes", "1,2", "--frames", 10 * FRAMES)
    assert done.returncode == 0 and "members are taken to be as long" in done.stdout
    result = package.run("rmsd", ensemble=members_in(folder), cache="off")
    with pytest.raises(package.UsageError, match="does not tell what its ranks did"):
        package.plan(result.members["r1"].record)


def test_info(folder, tmp_path):
    done = himach("info", "--ensemble", folder / "ensemble.csv", "--cache", tmp_path / "store")
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [line[0] for line in lines[1:]] == NAMES
    shown = dict(zip(lines[0], lines[-2], strict=False))
    assert shown["frames"] == "12" and shown["atoms"] == "500" and shown["dt_ps"] == "5.0" and shown["format"] == "XTC"
    (tmp_path / "bad.csv").write_text(
        f"name,trajectory,topology\na,none.xtc,top.pdb\nb,{folder}/r1.xtc,{folder}/top214.pdb\n"
    )
    done = himach("info", "--ensemble", tmp_path / "bad.csv", "--cache", tmp_path / "store")
    assert done.returncode == 1 and "member a: there is no trajectory none.xtc" in done.stderr and "31" in done.stdout


def test_nothing_of_it_stays(folder, asked, tmp_path, monkeypatch):
    monkeypatch.setenv("HIMACH_TEST_MARK", str(tmp_path))
    words = ["run", *asked, "-p", "Gyration.pause=0.02", "--cache", "off", "--pairs", tmp_path / "pairs"]
    run = start_himach(*words, "-o", tmp_path / "out", "-n", 3)
    assert wait_until(partial(has_kept_more, run, tmp_path, 0))  # members are being run
    run.send_signal(signal.SIGINT)
    _, said = run.communicate(timeout=60)
    assert run.returncode not in (0, 1) and "Traceback" not in said
    assert processes_with(str(tmp_path)) == []


def test_members_go_to_the_node_that_has_them(folder, asked, whole, tmp_path):
    """Three nodes, each with a store of its own; what the first run leaves where, the second one finds there."""
    seen = []
    for number in range(3):
        done = stage_on_nodes(tmp_path, ["a", "b", "c"], "run", *asked, "-o", tmp_path / f"out{number}")
        assert done.returncode == 0, done.stderr
        same_files(whole, tmp_path / f"out{number}")
        record = record_in(tmp_path / f"out{number}")
        assert record["nodes"] == 3
        seen.append(record["bytes"]["origin"])
    assert seen[0] > 0 and seen[1:] == [0, 0]
    stores = [{name for name in Store(tmp_path / node).names() if "/." not in name} for node in "abc"]
    assert all(stores) and sum(map(len, stores)) == len(set.union(*stores))  # no member is on two nodes


def test_members_are_read_where_they_are_cached(folder, tmp_path):
    table = write_table(folder / "two.csv", [MEMBERS[5], MEMBERS[2]])
    words = ["run", "rmsd", "-p", "selection=all", "--ensemble"]
    for node, members in (("c", table), ("a", folder / "ensemble.csv")):
        nodes = [node] if node == "c" else ["a", "b", "c"]
        done = stage_on_nodes(tmp_path, nodes, *words, members, "-o", tmp_path / "out", "--force")
        assert done.returncode == 0, done.stderr
    assert record_in(tmp_path / "out")["bytes"]["cache"] > 0
    stores = {node: {name.rpartition("/")[2] for name in Store(tmp_path / node).names()} for node in "abc"}
    assert {"m3.nc", "r10.dcd"} <= stores["c"]
    assert not {"m3.nc", "r10.dcd"} & (stores["a"] | stores["b"])


def test_members_of_one_trajectory_share_its_cache(folder, tmp_path):
    parts = [
        package.Member(f"part{at}", folder / "r1.xtc", folder / "top214.pdb", start=at, stop=at + 12)
        for at in range(0, 20, 4)
    ]
    expected = package.run("rmsd", ensemble=parts, cache="off")
    for _ in range(2):
        found = package.run("rmsd", ensemble=parts, cache=tmp_path / "store", ranks=3)
        assert same(found["rmsd"]["rmsd"].tolist(), expected["rmsd"]["rmsd"].tolist())
        assert found.record["frames"] == 12 * len(parts)
    assert found.record["bytes"]["origin"] == 0
    assert found.members["part8"]["rmsd"]["time_ps"].tolist() == [float(at) for at in range(8, 20)]


class Held(Lock):
    close = Lock.release


def test_kept_pairs_of_all_members_are_listed_and_evicted(folder, tmp_path):
    pairs = tmp_path / "pairs"
    words = ["run", "rmsd", f"{folder}/analyses.py:Gyration", "--cache", "off", "--pairs", pairs]
    words += ["--ensemble", folder / "ensemble.csv"]
    assert himach(*words).returncode == 0
    assert himach(*words, "-p", "rmsd.selection=name CA").returncode == 0
    done = himach("pairs", "list", pairs, "--json")
    kept = json.loads(done.stdout)["kept"]
    assert {(one["member"], one["analysis"], one["generation"]) for one in kept} == {
        (name, *of) for name in NAMES for of in (("rmsd", 1), ("rmsd", 2), ("Gyration", 1))
    }
    assert sum(one["frames"] for one in kept if one["analysis"] == "Gyration") == FRAMES
    lines = himach("pairs", "list", pairs, "--verify").stdout.splitlines()
    assert lines[0].split()[:2] == ["member", "analysis"] and len(lines) == 1 + len(kept)
    part = next((pairs / "m2" / "Gyration").rglob("*.pairs"))
    part.write_bytes(part.read_bytes()[:-9])
    done = himach("pairs", "list", pairs, "--verify")
    assert done.returncode == 1 and "member m2: Gyration, generation 1: bad: " in done.stdout
    told = himach("info", pairs).stdout
    assert f"frames     {FRAMES - 12} of {FRAMES}" in told and "bad        parts of m2" in told
    assert f"frames     {FRAMES} of {FRAMES}" in told and "parameter  selection = 'name CA'" in told
    assert [line.split()[0] for line in told.splitlines()[-len(kept) :]] == [line.split()[0] for line in lines[1:]]
    assert told.count("members    6") == 2
    with closing(Held(pairs / ".lock")):
        done = himach("pairs", "evict", pairs, "--older")
        assert done.returncode == 2 and "another run keeps its pairs there" in done.stderr
        assert "in use" in himach("info", pairs).stdout
    assert "generations: 6" in himach("pairs", "evict", pairs, "--older").stdout
    assert "generations: 6" in himach("pairs", "evict", pairs, "Gyration").stdout
    assert himach("pairs", "list", pairs / "r1").stdout.splitlines()[1].split()[:2] == ["rmsd", "2"]
    assert "generations: 6" in himach("pairs", "evict", pairs, "--all").stdout
    assert "no pairs are kept" in himach("pairs", "list", pairs).stdout and not any(pairs.iterdir())
    assert himach(*words).returncode == 0
    (pairs / "notes.txt").write_text("of somebody else")
    assert "no pairs are kept" in himach("pairs", "list", pairs).stdout


def test_a_map_that_keeps_something_is_found(folder):
    class Keeps(package.Analysis):
        def setup(self, universe):
            self.seen = []

        def map(self, frame):
            self.seen.append(frame.number)
            yield package.Row(seen=len(self.seen))

    with pytest.raises(package.AnalysisError, match=r"Keeps.map.* changes self.seen"):  # a fault of the analysis
        package.run(Keeps(), ensemble=members_in(folder), cache="off")


def test_a_map_that_keeps_something_is_found_behind_members_that_fail(folder):
    class Keeps(package.Analysis):
        def setup(self, universe):
            self.seen = []
            assert self.member == "m2"

        def map(self, frame):
            self.seen.append(frame.number)
            yield package.Row(seen=len(self.seen))

    with pytest.raises(package.AnalysisError, match=r"Keeps.map.* changes self.seen"):
        package.run(Keeps(), ensemble=members_in(folder), cache="off")


def test_two_runs_into_one_directory_of_pairs(folder, tmp_path):
    words = ["run", f"{folder}/analyses.py:Gyration", "--ensemble", folder / "ensemble.csv", "--cache", "off"]
    pairs = ["--pairs", tmp_path / "pairs"]
    first = start_himach(*words, *pairs, "-p", "pause=0.05", "-o", tmp_path / "out", "-n", 2)
    assert wait_until((tmp_path / "pairs" / ".lock").exists)
    second = himach(*words, *pairs, "-o", tmp_path / "other")
    assert second.returncode == 2 and "another run keeps its pairs there" in second.stderr
    assert first.wait(timeout=100) == 0
    first.communicate()
    assert not (tmp_path / "pairs" / ".lock").exists()
    assert himach(*words, *pairs, "-p", "pause=0.05", "-o", tmp_path / "other").returncode == 0
    same_files(tmp_path / "out", tmp_path / "other")
    assert record_in(tmp_path / "other")["reused"]["frames"] == FRAMES


def test_a_member_of_all_ranks_that_fails_while_one_is_busy(folder, tmp_path):
    """The rank that failed waits for the other, however long its frame takes; members that follow are run."""
    (tmp_path / "busy.py").write_text(
        "import os, time, himach\n"
        "class Busy(himach.Analysis):\n"
        "    def map(self, frame):\n"
        "        if self.member == 'm3' and not frame.number:\n"
        f"            while not os.path.exists({str(tmp_path / 'failed')!r}): time.sleep(0.01)\n"
        "            time.sleep(0.5)\n"  # far beyond the patience that is set below
        "        if self.member == 'm3' and frame.number > 25:\n"
        f"            open({str(tmp_path / 'failed')!r}, 'w').close()\n"
        "            raise ValueError('no')\n"
        "        yield himach.Row(number=frame.number)\n"
    )
    (tmp_path / "ranks_busy.py").write_text(f"""
import himach
from himach.parallel import collective
from himach.runner.ensemble import distribution

def test_busy(monkeypatch):
    monkeypatch.setattr(distribution, "WORTH", 0)
    monkeypatch.setattr(collective, "FAILURE_SECONDS", 0.05)
    folder = {str(folder)!r}
    result = himach.run({str(tmp_path / "busy.py")!r}, ensemble=folder + "/ensemble.csv", cache="off")
    assert len(result.record["errors"]) == 1 and "member m3 failed" in result.record["errors"][0]
    assert result.outcome is None or list(result.members) == {[name for name in NAMES if name != "m3"]!r}
""")
    run_under_mpiexec(tmp_path / "ranks_busy.py", 2)


def test_each_member_has_analyses_of_its_own(folder):
    class Counts(package.Analysis):
        def setup(self, universe):
            self.calls = getattr(self, "calls", 0) + 1

        def map(self, frame):
            yield package.Row(calls=self.calls)

    result = package.run(Counts(), ensemble=members_in(folder), cache="off", stop=2)
    assert set(result["Counts"]["calls"].tolist()) == {1}


@pytest.mark.parametrize("ranks", [None, 2])
def test_the_first_members_may_fail_in_their_maps(folder, tmp_path, ranks):
    script = tmp_path / "fails.py"
    script.write_text(
        "import threading, himach\n"
        "class Fails(himach.Analysis):\n"
        "    how: str = 'raises'\n"
        "    def map(self, frame):\n"
        "        if self.how == 'raises' and self.member != 'm2':\n"
        "            raise ValueError('no')\n"
        "        yield himach.Row(number=frame.number)\n"
        "    def finish(self, table):\n"
        "        return threading.Lock() if self.how == 'locks' and self.member != 'm2' else table\n"
    )
    with pytest.warns(UserWarning, match="member r1 failed"):
        result = package.run(f"{script}:Fails", ensemble=folder / "ensemble.csv", cache="off", ranks=ranks)
    assert list(result.members) == ["m2"]
    done = himach(
        "run",
        f"{script}:Fails",
        "-p",
        "how=locks",
        "--ensemble",
        folder / "ensemble.csv",
        "-n",
        2,
        "--memory",
        "1.5MiB",
    )
    assert done.returncode == 1 and "not 786432" not in done.stderr
    assert "member r1 failed: its outcome cannot be sent to the first rank" in done.stderr


def test_members_that_are_the_same_frames_are_told(folder):
    member = package.Member("r1", folder / "r1.xtc", folder / "top214.pdb")
    twins = [member, replace(member, name="again"), replace(member, name="part", stop=5)]
    with pytest.warns(UserWarning, match="^r1, again: these are the same frames, and count as 2 members"):
        package.run("rmsd", ensemble=twins, cache="off")


def test_again_tells_which_member_is_another(folder, tmp_path):
    place = tmp_path / "simulations"
    shutil.copytree(folder, place)
    words = ["--cache", "off", "-o", tmp_path / "out"]
    assert himach("run", "rmsd", "--ensemble", place / "ensemble.csv", *words).returncode == 0
    shutil.copy(folder / "r1.xtc", place / "m1.xtc")
    done = himach("run", "--again", tmp_path / "out", *words)
    assert done.returncode == 0 and "m1: the content is another than in the run that is repeated" in done.stderr
    assert done.stderr.count("another than") == 1


def test_the_pairs_of_a_member_are_a_matter_of_its_name(folder, tmp_path):
    one = package.Member("a/b", folder / "r1.xtc", folder / "top214.pdb")
    two = package.Member("a_b", folder / "r2.trr", folder / "top214.pdb")
    script, pairs = f"{folder}/analyses.py:Gyration", tmp_path / "pairs"
    package.run(script, ensemble=[one], cache="off", pairs=pairs)
    found = package.run(script, ensemble=[one, two], cache="off", pairs=pairs)
    assert {each["name"]: each["reused"] for each in found.record["ensemble"]} == {"a/b": 31, "a_b": 0}


def test_a_member_draws_and_tells_its_own(folder):
    found = package.run("rmsd", ensemble=members_in(folder), cache="off").members["m2"]
    assert found.record["frames"] == 12
    (axes,) = found.plot().axes
    assert [len(line.get_xdata()) for line in axes.lines] == [12]


def test_a_frame_directory_counts_by_its_files(folder, tmp_path):
    done = himach("split", folder / "r1.xtc", tmp_path / "frames", "-s", folder / "top214.pdb", "--frames-per-file", 5)
    assert done.returncode == 0, done.stderr
    whole, parts = (package.Member("r", path) for path in (folder / "r1.xtc", tmp_path / "frames"))
    sizes = distribution._sizes(JOB, [whole, parts, package.Member("staged", tmp_path / "none")])
    assert sizes[0] <= sizes[1] < 10 * sizes[0] and sizes[2] in (sum(sizes[:2]) / 2, *sizes[:2])


def test_a_member_counts_by_the_frames_that_are_chosen(folder, tmp_path, monkeypatch):
    path, topology = folder / "r1.xtc", folder / "top214.pdb"
    given = ({}, {"stop": 10}, {"step": 4}, {"start": 25, "step": 2}, {"start": 99})
    members = [package.Member(f"part{at}", path, topology, **choice) for at, choice in enumerate(given)]
    job, whole = replace(JOB, cache=str(tmp_path / "store")), path.stat().st_size
    unknown = [1, 1, 1 / 4, 1 / 2, 1]
    assert distribution._sizes(job, members) == pytest.approx([whole * part for part in unknown])
    package.run("rmsd", path, topology, cache=tmp_path / "store")
    known = [1, 10 / 31, 8 / 31, 3 / 31, 1]
    assert distribution._sizes(job, members) == pytest.approx([whole * part for part in known])
    general = replace(job, stop=10)
    assert distribution._sizes(general, members[:1]) == [whole]
    monkeypatch.setattr(distribution, "WORTH", 0)
    assert distribution._sizes(general, members[:1]) == pytest.approx([whole * 10 / 31])
