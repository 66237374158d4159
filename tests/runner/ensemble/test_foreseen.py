"""What is told of an ensemble before it is run: of its members, of a run, of how long it takes."""

from __future__ import annotations

import pytest
from runner.ensemble.simulations import FRAMES, NAMES, members_in, record_in
from support.commands import himach

import himach as package


@pytest.mark.nightly
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


@pytest.mark.nightly
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
