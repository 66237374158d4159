"""``himach cache`` as a person meets it: what it prints, its exit codes, and what it does to a store."""

import json
import os

import pytest
from support.commands import himach
from support.shelves import fill, place_of, positions_of, spoil

from himach.io.store.store import Store
from himach.ranks.communicator import node_name


def cache(place, *words, code=0):
    return himach("cache", *words, "--cache", place, code=code)


def status_of(place, *words):
    return json.loads(cache(place, "status", "--json", *words).stdout)


@pytest.fixture
def place(tmp_path):
    """A store with two datasets, /made/up.xtc used last."""
    store = tmp_path / "store"
    old = fill(store, range(20), "old", segment_bytes=64_000)
    fill(store, range(20, 50), "old", native=True, segment_bytes=64_000)
    os.utime(old.path / "meta", (1000, 1000))
    old.attach("origin.json", b"{}")
    fill(store, range(1000), native=True)
    return store


def names(place) -> list[str]:
    store = Store(place, read_only=True)
    return sorted(store.open_directory(directory).name for directory in store.directories())


def test_list(place):
    done = cache(place, "list")
    head, first, second = done.stdout.splitlines()
    assert head.split() == ["dataset", "native", "alien", "size", "last", "used", "generation"]
    assert first.split()[:3] == ["/made/up.xtc", "1,000", "0"]
    assert second.split()[:3] == ["old", "30", "20"]
    assert second.split()[-1] == b"one".hex()
    assert (next(place.glob("*/meta")).parent.parent) == place
    assert cache(place, "list").stdout == done.stdout  # looking is no use


def test_looking_at_no_store_makes_none(tmp_path):
    for words, said in [
        (["list"], "no frames are cached"),
        (["verify"], "nothing to verify"),
        (["evict", "--all"], "nothing to evict"),
        (["status"], "there is no store yet"),
    ]:
        done = cache(tmp_path / "none", *words)
        assert said in done.stdout
    assert not (tmp_path / "none").exists()


def test_status(place):
    facts = status_of(place, "--quota", "2GB")
    assert facts["node"] == node_name()
    assert facts["place"] == str(place)
    assert facts["identity"] == Store(place).identity
    assert facts["quota"] == 2 * 10**9
    assert (facts["datasets"], facts["native"], facts["alien"]) == (2, 1030, 20)
    assert facts["used"] == sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
    assert facts["free"] > 0
    metrics = dict(line.rsplit(" ", 1) for line in cache(place, "status", "--prometheus").stdout.splitlines())
    assert metrics[f'himach_store_used_bytes{{node="{facts["node"]}"}}'] == str(facts["used"])
    assert metrics[f'himach_store_server_running{{node="{facts["node"]}"}}'] == "0"
    done = cache(place, "status", "--quota", "2GB")
    assert "quota        2.0 GB" in done.stdout
    assert "file system  " in done.stdout


def test_the_directory_may_name_the_node(tmp_path):
    fill(tmp_path / "n7", range(3))
    done = himach("cache", "list", "--cache", tmp_path / "{node}", HIMACH_NODE="n7")
    assert "/made/up.xtc" in done.stdout
    assert "/made/up.xtc" in himach("cache", "list", HIMACH_CACHE=str(tmp_path / "{node}"), HIMACH_NODE="n7").stdout


def test_verify_names_what_is_bad_and_drops_it(place):
    cache(place, "verify")
    dataset = Store(place).dataset("old", b"one")
    path, offset, _ = place_of(dataset, 33)
    spoil(path, offset + 1000)
    done = cache(place, "verify", code=1)
    assert f"old: frame 33, segment {path.name}: block 1 of 1 is damaged (checksum)" in done.stdout
    assert "1,049 frames are sound" in done.stdout
    assert done.stderr == ""
    done = cache(place, "verify", "--drop", code=1)
    assert "dropped 1 frames" in done.stdout
    done = cache(place, "verify")
    assert "1,049 frames are sound" in done.stdout


def test_evict_a_dataset(place):
    done = cache(place, "evict", "old")
    assert done.stdout.startswith("freed ")
    assert names(place) == ["/made/up.xtc"]
    assert len(list(place.iterdir())) == 2
    done = cache(place, "evict", "/made/upp.xtc", code=2)
    assert "did you mean '/made/up.xtc'?" in done.stderr


def test_evict_aliens_only(place):
    cache(place, "evict", "--aliens")
    dataset = Store(place, read_only=True).dataset("old", b"one", create=False)
    assert (len(dataset.native), len(dataset.alien)) == (30, 0)


def test_evict_to_a_size_takes_what_was_not_used_for_longest(place):
    cache(place, "evict", "--to", "6.4MB")
    assert names(place) == ["/made/up.xtc", "old"]
    old = Store(place, read_only=True).dataset("old", b"one", create=False)
    assert len(old.alien) < 20
    assert len(Store(place, read_only=True).dataset("/made/up.xtc", b"one", create=False).native) == 1000


def test_evict_to_a_size_spares_what_was_pushed_unless_it_is_named(place):
    cache(place, "evict", "--to", "0")
    assert len(Store(place, read_only=True).dataset("/made/up.xtc", b"one", create=False).native) == 1000
    cache(place, "evict", "--to", "0", "/made/up.xtc")
    assert not Store(place, read_only=True).dataset("/made/up.xtc", b"one", create=False).native


def test_evict_all(place):
    cache(place, "evict", "--all")
    assert [path.name for path in place.iterdir()] == ["identity"]


def test_what_is_held_is_named_and_stays(place):
    dataset = Store(place).dataset("old", b"one")
    reading = dataset.read(range(5))
    assert next(reading) is not None
    writing = Store(place).dataset("/made/up.xtc", b"one")
    writing.write(2000, 0.0, None, positions_of(0))
    writing.flush()
    done = cache(place, "evict", "--all", code=1)
    held = place_of(dataset, 0)[0]
    assert f"kept old: segment {held.stem} (" in done.stdout
    assert "kept /made/up.xtc: segment a-" in done.stdout
    assert held.exists()
    dataset.refresh()
    writing.refresh()
    assert 0 in dataset.alien
    assert list(writing.alien) == [2000]
    assert len(writing.native) == 0
    del reading
    writing.close()


def test_evict_asks_what(place):
    done = cache(place, "evict", code=2)
    assert "say what to evict" in done.stderr
    cache(place, "evict", "old", "--all", code=2)
    done = cache(place, "evict", "--to", "plenty", code=2)
    assert "'plenty' is no size" in done.stderr


def test_status_says_what_it_can(tmp_path, monkeypatch):
    """Whatever is wrong with a store, its status tells the rest."""
    place = tmp_path / "store"
    fill(place, range(5))
    whole = status_of(place)
    monkeypatch.setenv("HIMACH_QUOTA", "much")
    facts = status_of(place)
    assert "much" in facts.pop("note")
    assert facts["quota"] is None
    assert {**facts, "quota": 0, "free": 0} == {**whole, "quota": 0, "free": 0}
    assert "unknown" in cache(place, "status").stdout
    monkeypatch.delenv("HIMACH_QUOTA")

    identity = (place / "identity").read_bytes()
    for content in (identity[:4] + b"\x63\x00" + identity[6:], b"", bytes(64)):
        (place / "identity").write_bytes(content)
        assert status_of(place)["used"] > 0

    (place / "identity").write_bytes(identity)
    (meta,) = place.glob("*/meta")
    meta.write_bytes(b"nothing")
    facts = status_of(place)
    assert facts["datasets"] == 1
    assert meta.parent.name in facts["note"]

    for nowhere in (tmp_path / "file", tmp_path / "file" / "below"):
        (tmp_path / "file").touch()
        facts = status_of(nowhere)
        assert facts["place"] == str(nowhere)
        assert "Not a directory" in facts["note"]
