"""Ensembles whose members are running engines."""

from collections import Counter

import pytest
from runner.live.engines import MadeUpEngine, made_up, topology
from support.cache_data import Emit
from support.commands import himach, same_files

import himach as package
from himach.errors import TrajectoryError, UsageError
from himach.io.store.quota import open_store

SCRIPT = """
import himach


class Mean(himach.Analysis):
    def map(self, frame):
        yield "x", (frame.number, float(frame.positions[:, 0].mean()))

    def reduce(self, key, series):
        return {"frames": len(series), "mean": sum(value for _, value in series.values) / len(series)}
"""


@pytest.fixture
def top(tmp_path):
    return topology(tmp_path)


def members_of(engines, top, **more):
    return [package.Member(name, engine.address, top, **more) for name, engine in engines.items()]


def table_of(folder, *engines):
    path = folder / "members.csv"
    rows = [f"{name},{engine.address}" for name, engine in zip("ab", engines, strict=True)]
    path.write_text("\n".join(["name,trajectory", *rows, ""]))
    return path


def counts(outcome):
    return dict(Counter(list(outcome["frames"]["member"])))


@pytest.mark.nightly
@pytest.mark.parametrize("ranks", [None, 2])
def test_the_outcome_is_that_of_the_datasets_that_are_left(tmp_path, top, ranks):
    observed = []
    with MadeUpEngine(made_up(23), hold=12) as first, MadeUpEngine(made_up(31), hold=12) as other:

        def update(result):
            observed.append(counts(result.outcome))
            first.go.set()
            other.go.set()

        result = package.follow(
            Emit(), ensemble=members_of({"a": first, "b": other}, top), dataset="run7", every=10, ranks=ranks,
            out=tmp_path / "out", on_update=update, progress=False,
        )  # fmt: skip
    assert counts(result.outcome) == observed[-1] == {"a": 23, "b": 31}
    totals = [sum(update.values()) for update in observed]
    assert totals == sorted(set(totals))
    assert len(totals) > 1
    assert set(open_store().names()) >= {"run7-a", "run7-b"}
    there = [package.Member(name, f"run7-{name}", top) for name in "ab"]
    again = package.run(Emit(), ensemble=there, out=tmp_path / "again", progress=False)
    same_files(tmp_path / "out", tmp_path / "again")
    assert counts(again.outcome) == {"a": 23, "b": 31}


@pytest.mark.nightly
def test_by_a_table_beside_a_member_that_is_there(tmp_path, top, script):
    made_up(6).atoms.write(str(tmp_path / "there.trr"), frames="all")
    with MadeUpEngine(made_up(12)) as first, MadeUpEngine(made_up(15)) as other:
        table = tmp_path / "members.csv"
        rows = [f"a,{first.address},", f"b,{other.address},4", f"c,{tmp_path / 'there.trr'},"]
        table.write_text("\n".join(["name,trajectory,stop", *rows, ""]))
        done = himach("follow", script, "--ensemble", table, "--topology", top, "--out", tmp_path / "out", code=0)
    assert "kept as datasets live-127.0.0.1-" in done.stderr
    rows = (tmp_path / "out" / "Mean.csv").read_text().splitlines()[1:]
    assert [row.split(",")[:3] for row in rows] == [["a", "x", "12"], ["b", "x", "4"], ["c", "x", "6"]]


def test_outcomes_of_classes_of_the_script_stay_on_the_ranks(tmp_path, top, script):
    finish = "    def finish(self, results):\n        return {'x': himach.Table({'a': [1.0]}), 'own': type(self)()}\n"
    script.write_text(f"{SCRIPT}\n{finish}")
    with MadeUpEngine(made_up(5)) as first, MadeUpEngine(made_up(6)) as other:
        words = ["follow", script, "--ensemble", table_of(tmp_path, first, other), "--topology", top, "-n", 2]
        himach(*words, "--out", tmp_path / "out", code=0)
    assert (tmp_path / "out" / "x.csv").read_text().splitlines() == ["member,a", "a,1.0", "b,1.0"]


def test_stop_ends_all_engines(top):
    with MadeUpEngine(made_up(4000), rate=50) as first, MadeUpEngine(made_up(4000), rate=90) as other:
        result = package.follow(Emit(), ensemble=members_of({"a": first, "b": other}, top), stop=9, progress=False)
    assert counts(result.outcome) == {"a": 9, "b": 9}
    assert first.sent < 4000 > other.sent


def test_one_that_fails_is_named_and_the_rest_go_on(tmp_path, top, script):
    with MadeUpEngine(made_up(12)) as first, MadeUpEngine(made_up(9, 7)) as other:
        words = ["follow", script, "--ensemble", table_of(tmp_path, first, other), "--topology", top]
        done = himach(*words, "--out", tmp_path / "out")
    assert done.returncode == 1, done.stderr
    assert "member b" in done.stderr
    assert (tmp_path / "out" / "Mean.csv").read_text().splitlines()[1].startswith("a,x,12,")


def test_if_all_fail_it_is_an_error(top):
    with MadeUpEngine(made_up(3, 7)) as first, MadeUpEngine(made_up(3, 7)) as other, pytest.raises(TrajectoryError):
        package.follow(Emit(), ensemble=members_of({"a": first, "b": other}, top), progress=False)


@pytest.mark.parametrize(
    ("members", "options", "words"),
    [
        ([package.Member("a", ["imd://h:1", "b.xtc"], "t.gro")], {}, "member a: imd://h:1 is followed by no other"),
        ([package.Member("a", ["b.xtc", "imd://h:1"], "t.gro")], {}, "member a: imd://h:1 .* follows none"),
        ([package.Member("a", "imd://h:1")], {}, "member a: imd://h:1 tells positions alone"),
        ([package.Member("a", "imd://h:1", "t.gro")], {"cache": "off"}, "keeps its frames in this node's store"),
        ([package.Member("a", "imd://h:1", "t.gro")], {"until": "x.y<1", "every": 2}, "one simulation"),
        ([package.Member("a", "a.xtc", "t.gro")], {"every": 2}, "follow each file by a run of its own"),
    ],
)
def test_what_cannot_be_is_refused(members, options, words):
    with pytest.raises(UsageError, match=words):
        package.follow(Emit(), ensemble=members, progress=False, **options)


def test_only_runs_take_engines_as_members(tmp_path, top):
    table = tmp_path / "members.csv"
    table.write_text("name,trajectory\na,imd://localhost:1\n")
    done = himach("convert", "--out", tmp_path / "{member}.xtc", "--ensemble", table, "--topology", top, code=2)
    assert "running engine" in done.stderr
