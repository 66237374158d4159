"""Members of an ensemble: from a table, a pattern, from Python; and ``himach info`` of what is cached, or away."""

import json
from pathlib import Path

import pytest
from MDAnalysisTests import datafiles as data
from support.cache_data import N_FRAMES, analyse, make, make_dump
from support.commands import himach as command
from support.io_samples import make as make_file

import himach
from himach import Member, UsageError
from himach.io.datasets.description import as_text, describe
from himach.io.datasets.member import read_members


@pytest.fixture
def table(tmp_path):
    """Return a function that writes a table and reads its members."""

    def read(text: str, topology=None) -> list[Member]:
        path = tmp_path / "ensemble.csv"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return read_members(path, topology)

    return read


@pytest.fixture
def sims(tmp_path, monkeypatch):
    """Folders r1, r2 and r10 in one for simulations, each with a trajectory and a topology."""
    monkeypatch.chdir(tmp_path)
    for name in ("r1", "r2", "r10"):
        folder = tmp_path / "sims" / name
        folder.mkdir(parents=True)
        for file in ("traj.xtc", "top.pdb"):
            (folder / file).touch()
    return tmp_path


def names(members: list[Member]) -> list[str]:
    return [member.name for member in members]


def test_all_columns(table, tmp_path):
    for file in ("a.xtc", "b.xtc", "top.pdb"):
        (tmp_path / file).touch()
    one, two = table(
        "name,trajectory,topology,group,start,stop,step,temperature,seed,note\n"
        "r1,a.xtc; b.xtc,top.pdb,wild type,10,-5,2,300,7,first\n"
        'r 2,"far.xtc",,,,,,310.5,8,\n'
    )
    assert one.trajectories == [tmp_path / "a.xtc", tmp_path / "b.xtc"]  # as seen from the table
    assert (one.name, Path(one.topology), one.group) == ("r1", tmp_path / "top.pdb", "wild type")
    assert one.choice == {"start": 10, "stop": -5, "step": 2}
    assert one.metadata == {"temperature": 300.0, "seed": 7, "note": "first"}
    assert (two.name, two.topology, two.group, two.choice) == ("r 2", None, None, {})
    assert two.trajectories == [Path("far.xtc")]  # not beside the table: it may be a dataset's name
    assert two.metadata == {"temperature": 310.5, "seed": 8, "note": None}
    assert type(two.metadata["seed"]) is int


def test_an_empty_cell_of_metadata_leaves_the_others_numbers(table):
    members = table("name,trajectory,temperature\na,a.xtc,300\nb,b.xtc,\nc,c.xtc,310\n")
    assert [member.metadata["temperature"] for member in members] == [300, None, 310]


@pytest.mark.parametrize(
    "text",
    [
        "\ufeffname,trajectory\r\na,a.xtc\r\nb,b.xtc\r\n",  # as spreadsheets write
        " name , trajectory \n a , a.xtc \n\n,\n b , b.xtc \n",
        "trajectory,name,,\na.xtc,a,,\nb.xtc,b,,\n",
        'name,trajectory\n"a","a.xtc;"\n"b",";b.xtc"\n',
        'name, trajectory\na, "a.xtc"\n"b", "b.xtc"\n',
    ],
)
def test_tables_as_people_write_them(table, text):
    members = table(text, "top.pdb")
    assert names(members) == ["a", "b"]
    assert [member.trajectories for member in members] == [[Path("a.xtc")], [Path("b.xtc")]]
    assert {member.topology for member in members} == {"top.pdb"}
    assert {len(member.metadata) for member in members} == {0}


def test_the_topology_of_the_run_is_that_of_members_without_one(table):
    members = table("name,trajectory,topology\na,a.xtc,own.pdb\nb,b.xtc,\n", "top.pdb")
    assert [member.topology for member in members] == ["own.pdb", "top.pdb"]
    kept = Member("a", "a.xtc", None, "g", start=3, metadata={"t": 1})
    (member,) = read_members([kept], "top.pdb")
    assert member == Member("a", "a.xtc", "top.pdb", "g", start=3, metadata={"t": 1})


def test_home_is_known(table, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "sims").mkdir()
    (tmp_path / "sims" / "a.xtc").touch()
    (member,) = table("name,trajectory,topology\na,~/sims/a.xtc,~/nowhere.pdb\n")
    assert member.trajectories == [tmp_path / "sims" / "a.xtc"]
    assert member.topology == str(tmp_path / "nowhere.pdb")
    (member,) = read_members("~/sims/*.xtc", "~/*.pdb")
    assert (member.name, member.topology) == ("a", str(tmp_path / "a.pdb"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no column 'name'"),
        ("name,trajectory\n", "ensemble.csv has no members; each is a row"),
        ("name,trajectories\na,a.xtc\n", "no column 'trajectory'; did you mean 'trajectories'?"),
        ("name;trajectory\na;a.xtc\n", "separated by ';'; write it with commas"),
        ("name\ttrajectory\na\ta.xtc\n", "separated by tabs; write it with commas"),
        ("name,trajectory,T,T\na,a.xtc,1,2\n", "two columns 'T'; give one of them another name"),
        ("name,trajectory\na,a.xtc,b.xtc\n", "line 2: there are more or fewer cells than columns"),
        ("name,trajectory,T\na,a.xtc,1\nb,b.xtc\n", "line 3: there are more or fewer cells than columns"),
        ("name,trajectory\n,a.xtc\n", "line 2: a member of an ensemble has a name"),
        ("name,trajectory\na, ;\n", "line 2: member a has no trajectory"),
        ("name,trajectory,start\na,a.xtc,1e3\n", "line 2: start is '1e3': it is a whole number"),
        ("name,trajectory,member\na,a.xtc,1\n", "line 2: member a: metadata cannot be called 'member'"),
        ("name,trajectory\na,a.xtc\na,b.xtc\n", "two members of the ensemble are called 'a'"),
        (b"name,trajectory\n\xff\xfe\n", "is no CSV file"),
    ],
)
def test_what_is_no_table_of_members_is_told(table, text, said):
    with pytest.raises(UsageError) as error:
        table(text)
    assert said in str(error.value)


def test_a_table_that_is_not_there(tmp_path):
    with pytest.raises(UsageError, match=r"none.csv cannot be read .*columns name and trajectory, or a pattern"):
        read_members(tmp_path / "none.csv")
    with pytest.raises(UsageError, match=r"cannot be read \(Is a directory\)"):
        read_members(tmp_path)


def test_a_member_a_match_in_the_order_of_counting(sims):
    members = read_members("sims/*/traj.xtc", "top.pdb")
    assert names(members) == ["r1", "r2", "r10"]
    assert [member.trajectories for member in members] == [[Path(f"sims/{name}/traj.xtc")] for name in names(members)]
    assert {member.topology for member in members} == {"top.pdb"}
    assert {member.topology for member in read_members("sims/*/traj.xtc")} == {None}
    assert names(read_members("sims/r?/traj.xtc")) == ["1", "2"]
    assert names(read_members("sims/r[!1]*/*.xtc")) == ["2-traj"]
    assert names(read_members(sims / "sims" / "*" / "traj.xtc")) == ["r1", "r2", "r10"]


def test_the_topology_has_the_same_stars(sims):
    members = read_members("sims/*/traj.xtc", "sims/*/top.pdb")
    assert [member.topology for member in members] == [f"sims/{name}/top.pdb" for name in ("r1", "r2", "r10")]
    (member,) = read_members("sims/r[2]/*.xtc", "sims/r*/*.pdb")
    assert member.topology == "sims/r2/traj.pdb"
    with pytest.raises(UsageError, match=r"\*\.pdb: it has another number of '\*' .*; give both as many, or one file"):
        read_members("sims/*/traj.xtc", "sims/*/*.pdb")


def test_what_only_looks_like_a_pattern(sims):
    (sims / "set[1].csv").write_text("name,trajectory\na,a.xtc\n")
    (sims / "top[1].pdb").touch()
    (member,) = read_members("set[1].csv", "top[1].pdb")
    assert (member.name, member.topology) == ("a", "top[1].pdb")
    assert {one.topology for one in read_members("sims/*/traj.xtc", "top[1].pdb")} == {"top[1].pdb"}


def test_stars_that_stand_for_nothing(sims):
    for name in ("traj.xtc", "traj2.xtc"):
        (sims / name).touch()
    assert names(read_members("traj*.xtc")) == ["2", "traj.xtc"]


def test_patterns_that_help_nobody(sims, table):
    with pytest.raises(UsageError, match=r"sims/\*/none.xtc: no file matches; the pattern is of trajectory files"):
        read_members("sims/*/none.xtc")
    with pytest.raises(UsageError, match=r"/top.pdb: a pattern goes with a pattern of an ensemble; .*column topology"):
        table("name,trajectory\na,a.xtc\n", "sims/*/top.pdb")


def test_members_of_python():
    assert Member("a", ["a.xtc", Path("b.xtc")]).trajectories == [Path("a.xtc"), Path("b.xtc")]
    given = [Member("b", "b.xtc"), Member("a", "a.xtc", stop=0)]
    assert read_members(given) == given
    assert given[1].choice == {"stop": 0}


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Member("", "a.xtc"), "has a name, a text; '' is none"),
        (lambda: Member(3, "a.xtc"), "has a name, a text; 3 is none"),
        (lambda: Member("a", []), "member a has no trajectory"),
        (lambda: Member("a", ""), "member a has no trajectory"),
        (lambda: Member("a", None), "member a: a trajectory is a file or a list of files, not None"),
        (lambda: Member("a", "a.xtc", group=300), "member a: a group is a text such as '300 K', not 300"),
        (lambda: Member("a", "a.xtc", metadata={"group": 1}), "metadata cannot be called 'group'"),
        (lambda: read_members([]), "the ensemble has no members"),
        (lambda: read_members([Member("a", "a"), "b"]), "an ensemble is of himach.Member, not of str"),
        (lambda: read_members(Member("a", "a.xtc")), "an ensemble is a list of himach.Member"),
        (lambda: read_members(3), "the path of a CSV file or a pattern, not int"),
        (lambda: read_members([Member("a", "a"), Member("a", "b")]), "two members of the ensemble are called 'a'"),
        (lambda: himach.run("rmsd", ensemble=Member("a", "a.xtc")), "an ensemble is a list of himach.Member"),
    ],
)
def test_what_is_no_member_is_told(make, said):
    with pytest.raises(UsageError) as error:
        make()
    assert said in str(error.value)


@pytest.fixture
def info(monkeypatch, place):
    """Describe with the store at `place` as the default one."""
    monkeypatch.setenv("HIMACH_CACHE", str(place))
    return describe


def test_what_is_cached_is_counted(tmp_path, place, info):
    topology, trajectory = make(tmp_path)
    assert "there is no store" in info(trajectory)["cached"]
    analyse(trajectory, topology, cache=place, stop=20)
    assert f"20 of {N_FRAMES} frames (0 native, 20 alien," in info(trajectory)["cached"]
    analyse(trajectory, topology, cache=place)
    assert f"all of {N_FRAMES} frames (0 native, {N_FRAMES} alien," in info(trajectory)["cached"]
    assert "nothing in" in info(trajectory, keywords={"dt": 5.0})["cached"]


@pytest.mark.parametrize("name", ["md.trr", "md.xtc", "md.xyz"])
def test_a_trajectory_that_is_away_is_described_as_it_was(tmp_path, place, info, name):
    topology, trajectory = make(tmp_path, name=name)
    analyse(trajectory, topology, cache=place)
    before = info(trajectory)
    for path in (topology, trajectory):
        path.rename(f"{path}.away")
    after = info(trajectory)
    assert after["origin"].startswith("away")
    assert after["topology"] == str(topology)  # the one that was used; before, there was none to name
    kept = set(before) - {"origin", "topology", "warnings"}
    assert {name: after[name] for name in kept} == {name: before[name] for name in kept}


def test_what_frames_alone_tell_is_unknown_where_they_are_not_cached(tmp_path, place, info):
    topology, trajectory = make_dump(tmp_path)
    analyse(trajectory, topology, cache=place, start=10, universe={"format": "LAMMPSDUMP"})
    trajectory.rename(f"{trajectory}.away")
    facts = info(trajectory, keywords={"format": "LAMMPSDUMP"})
    assert facts["frames"] == N_FRAMES
    assert facts["first_time"] is None
    assert "unknown to unknown ps" in as_text(facts)


def test_the_command_takes_a_store_and_the_name_of_a_dataset_there(tmp_path, place):
    topology, trajectory = make(tmp_path)
    analyse(trajectory, topology, cache=place)
    command("stage", trajectory, "--topology", topology, "--dataset", "mine", "--cache", place, "--quiet", code=0)
    trajectory.rename(f"{trajectory}.away")
    for name, kinds in ((trajectory, f"0 native, {N_FRAMES} alien"), ("mine", f"{N_FRAMES} native, 0 alien")):
        shown = command("info", name, "--cache", place, code=0).stdout
        assert f"all of {N_FRAMES} frames ({kinds}" in shown
        assert str(place) in shown
    assert f"there is no trajectory {trajectory}" in command("info", trajectory, code=2).stderr


def test_a_file_is_described(tmp_path):
    path = make_file(tmp_path / "a.trr", [0, 2, 4], velocities=True)
    plain = describe(path)
    assert plain["frames"] == 3
    assert plain["atoms"] == 40
    assert (plain["first_time"], plain["last_time"], plain["dt"]) == (0, 4, 2)
    assert plain["box"] == [50, 50, 50, 90, 90, 90]
    assert plain["velocities"]
    assert plain["topology"] is None
    assert plain["format"] == "TRR"
    json.dumps(plain)
    assert describe(data.PDB_multiframe)["topology"] == data.PDB_multiframe
    path.write_bytes(path.read_bytes()[:-1])
    assert "cut off" in describe(path)["warnings"][0]
    with pytest.raises(UsageError, match="has 40"):
        describe(path, data.GRO)
