"""Names of datasets as paths: each has one of its own, at which a file system can have it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from himach.mount.names import dataset_path, datasets_by_path


def test_names_and_paths_stay_what_they_are():
    assert dataset_path("run7") == ("run7",)
    assert dataset_path("/data/my md.xtc") == ("data", "my md.xtc")
    assert dataset_path("/data/a.xtc and 2 more (0123)") == ("data", "a.xtc and 2 more (0123)")


def test_what_no_file_can_be_called():
    assert dataset_path("a//b/../.") == ("a", "%", "b", "%2E%2E", "%2E")
    assert dataset_path("50%") == ("50%25",)
    assert dataset_path("/data/trajectory.trr") == ("data", "%74rajectory.trr")
    assert dataset_path("topology.gro") == ("%74opology.gro",)


def test_long_parts_are_cut_and_stay_apart():
    (one,), (other,) = dataset_path("ü" * 200), dataset_path("ü" * 201)
    assert one != other
    assert len(one.encode()) <= 255
    assert one.startswith("ü" * 100)


def test_a_name_and_a_path_at_one_place():
    assert datasets_by_path(["/run7", "run7"]) == {("run7",): "run7", ("%2Frun7",): "/run7"}


@given(
    st.lists(
        st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=300),
        unique=True,
    )
)
def test_all_lie_somewhere_else(names):
    places = datasets_by_path(names)
    assert sorted(places.values()) == sorted(names)
    for path in places:
        for part in path:
            assert part not in ("", ".", "..")
            assert "/" not in part
            assert len(part.encode("utf-8", "surrogateescape")) <= 255


def test_what_cannot_be_told_to_the_kernel_has_another_name():
    strange, other = "run\ud800", "run\ud801"
    places = datasets_by_path([strange, other])
    assert sorted(places.values()) == sorted([strange, other])
    for path in places:
        assert all(part.encode("utf-8", "surrogateescape") for part in path)
