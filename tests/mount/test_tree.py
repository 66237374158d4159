"""What lies where in a mount, also while datasets cannot be reached; names of datasets as paths."""

import logging
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import himach
from himach.errors import TrajectoryError
from himach.io.store.store import Store
from himach.mount import tree as trees
from himach.mount.stores import Facts, StoreDatasets
from himach.mount.tree import File, Folder, Tree, TtlCache, dataset_path, datasets_by_path

from .mounts import until


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(trees, "TTL_SECONDS", 0.0)
    monkeypatch.setattr(trees, "TTL_SHARE", 0.0)


class Listed:
    """Datasets that may be away."""

    def __init__(self, *names):
        self.listed = {name: Facts(name, b"", 10, 100, True, False, True, 7, {".gro": 5}) for name in names}
        self.away = False

    def names(self):
        self.check()
        return list(self.listed)

    def facts(self, name):
        self.check()
        return self.listed.get(name)

    def check(self):
        if self.away:
            raise TrajectoryError("the server does not answer")


def test_folders_and_files():
    tree = Tree(Listed("run7", "/data/md.xtc", "/data"))
    assert sorted(tree.find(()).names) == ["data", "run7"]
    names = ("trajectory.trr", "trajectory.dcd", "trajectory.nc", "topology.gro")
    assert tree.find(("run7",)).names == names
    assert tree.find(("data",)).names == (*names, "md.xtc")
    assert isinstance(tree.find(("data", "md.xtc")), Folder)
    file = tree.find(("data", "md.xtc", "trajectory.trr"))
    assert isinstance(file, File)
    assert (file.size, file.changed) == (10 * (120 + 24 * 100), 7)
    assert tree.find(("run7", "topology.gro")).size == 5
    for nowhere in ("run8", "run7/trajectory.xtc", "run7/topology.gro/x", "data/trajectory", "md.xtc"):
        assert tree.find(tuple(nowhere.split("/"))) is None


def test_what_lies_beside_datasets_has_no_folder(tmp_path):
    with himach.Writer("sl", 10, cache=tmp_path, rank=0, launch="") as writer:
        writer.push_slice(0, np.arange(5), np.zeros((5, 3)), time=0)
    assert Store(tmp_path).names() == ["sl [slices]"]
    with Store(tmp_path).dataset("run7") as whole:
        whole.write(0, 0.0, None, np.zeros((10, 3), np.float32), native=True)
    tree = Tree(StoreDatasets(str(tmp_path)))
    until(lambda: tree.find(()).names == ("run7",), "only frames that are whole have a folder")
    assert tree.find(("sl [slices]",)) is None


def test_what_is_away_stays_as_it_was_and_is_told_once(caplog):
    datasets = Listed("run7")
    tree = Tree(datasets)
    before = tree.find(("run7", "trajectory.trr"))
    datasets.away = True
    with caplog.at_level(logging.WARNING, "himach.mount"):
        for _ in range(5):
            assert tree.find(()).names == ("run7",)
            assert tree.find(("run7", "trajectory.trr")) == before
    assert sorted(item.message for item in caplog.records) == [
        "run7 cannot be looked at: the server does not answer",
        "the datasets cannot be listed: the server does not answer",
    ]
    datasets.away = False
    datasets.listed = {}
    until(lambda: tree.find(("run7",)) is None, "it is gone")


def test_a_first_answer_is_waited_for_and_one_renews_it_while_others_get_the_old_one():
    waiting, go_on, answers = threading.Event(), threading.Event(), ["old", "new"]

    def ask():
        waiting.set()
        go_on.wait()
        return answers.pop(0)

    answer = TtlCache(ask, "none")
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(answer.get)
        assert waiting.wait(10)
        assert not first.done()
        go_on.set()
        assert first.result() == "old"
        go_on.clear()
        renewed = pool.submit(answer.get)
        until(answer._lock.locked, "the question is renewed")
        assert answer.get() == "old"
        go_on.set()
        assert renewed.result() == "new"


def test_a_dataset_that_cannot_be_opened_is_an_empty_folder(caplog):
    datasets = Listed("run7")
    datasets.facts = lambda name: (_ for _ in ()).throw(OSError("a bad disk"))
    tree = Tree(datasets)
    assert tree.find(("run7",)).names == ()
    assert "a bad disk" in caplog.text


def test_formats_that_cannot_hold_a_dataset_are_left_out():
    datasets = Listed()
    datasets.listed["many"] = Facts("many", b"", 1 << 40, 10, False, False, False, 7)
    assert Tree(datasets).find(("many",)).names == ()


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("run7", "run7"),
        ("/data/my md.xtc", "data/my md.xtc"),
        ("a//b/../.", "a/%/b/%2E%2E/%2E"),
        ("50%", "50%25"),
        ("/data/trajectory.trr", "data/%74rajectory.trr"),
        ("topology.gro", "%74opology.gro"),
    ],
)
def test_names_are_paths_and_what_no_file_can_be_called_is_escaped(name, path):
    assert "/".join(dataset_path(name)) == path


def test_long_parts_are_cut_and_stay_apart():
    (item,), (other,) = dataset_path("ü" * 200), dataset_path("ü" * 201)
    assert item != other
    assert len(item.encode()) <= 255
    assert item.startswith("ü" * 100)


def test_a_name_and_a_path_at_one_place():
    assert datasets_by_path(["/run7", "run7"]) == {("run7",): "run7", ("%2Frun7",): "/run7"}


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=300), unique=True))
def test_all_lie_somewhere_else(names):
    places = datasets_by_path(names)
    assert sorted(places.values()) == sorted(names)
    for path in places:
        for part in path:
            assert part not in ("", ".", "..")
            assert "/" not in part
            assert len(part.encode("utf-8", "surrogateescape")) <= 255
