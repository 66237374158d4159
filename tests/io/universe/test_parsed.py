"""Topologies as they are kept: they come back equal, damage is noticed, and nothing that another user can have written
is unpickled.
"""

import os
import sys
import warnings
from pathlib import Path
from typing import Any

import MDAnalysis as mda
import numpy as np
import pytest
from MDAnalysis.core.topology import Topology
from MDAnalysis.core.topologyattrs import Bonds
from MDAnalysis.core.universe import _topology_from_file_like
from MDAnalysisTests import datafiles as data
from support.cache_data import make

import himach
from himach.io.store.bodhi import crc32c
from himach.io.store.store import Store, StoreFullError
from himach.io.trajectories.origin import open_origin
from himach.io.universe import topology as loading
from himach.io.universe.topology import copy_topology, decode, encode, load_topology


def parsed(path: str, **keywords) -> Topology:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return mda.Universe(_topology_from_file_like(path, **keywords))._topology


def same(one: Topology, other: Topology) -> bool:
    """Tell whether two topologies have the same atoms, residues and attributes."""
    states = [
        {"AR": t.tt._AR, "RS": t.tt._RS, **{each.attrname: each.values for each in t.attrs if hasattr(each, "values")}}
        for t in (one, other)
    ]
    return states[0].keys() == states[1].keys() and all(
        np.array_equal(values, states[1][name]) for name, values in states[0].items()
    )


def test_a_copy_shares_nothing_that_changes():
    topology = parsed(data.PSF)
    universe = mda.Universe(copy_topology(topology), to_guess=())
    universe.atoms.names = "Q"
    universe.atoms.masses = 1
    universe.atoms[3].residue = universe.residues[9]
    universe.add_bonds([(0, 3000)])
    universe.add_TopologyAttr("tempfactors")
    assert same(topology, parsed(data.PSF))


def test_what_cannot_be_pickled_is_not_attached():
    assert encode(Topology(2, 1, 1, [Bonds([(0, 1)], types=[lambda: None])]), {}) is None


def test_damage_is_noticed():
    content = encode(parsed(data.PSF), {})
    for cut in (0, 3, 4, 10, len(content) // 2, len(content) - 1):
        with pytest.raises(ValueError):
            decode(content[:cut])
    for place in range(0, len(content), len(content) // 40):
        flipped = bytearray(content)
        flipped[place] ^= 0x10
        with pytest.raises(ValueError):
            decode(bytes(flipped))


def test_what_cannot_be_rebuilt_counts_as_damaged():
    for pickled in (b"", b"cthere.is.no.such.module\nclass\n."):
        with pytest.raises(ValueError):
            decode(crc32c(pickled).to_bytes(4, "little") + pickled)


# -- beside a dataset --------------------------------------------------------------------------------------------------


@pytest.fixture
def dataset(tmp_path):
    return Store(tmp_path / "store").dataset("/sim")


class Forgetful(dict):
    """What a process knows that has just begun."""

    def pop(self, *_: Any) -> None:
        return None


@pytest.fixture(autouse=True)
def new_processes(monkeypatch):
    """Let every topology be loaded as by a process of its own, which knows none."""
    monkeypatch.setattr(loading, "_parses", Forgetful())
    monkeypatch.setattr(loading, "MAX_CACHED", 1000)


@pytest.fixture
def parses(monkeypatch) -> list:
    """Return a list that fills with the topology files that are parsed."""
    found = []
    parse = loading.parse
    monkeypatch.setattr(loading, "parse", lambda path, *rest: found.append(path) or parse(path, *rest))
    return found


def test_an_attached_topology_is_not_parsed_again(dataset, parses, tmp_path):
    origin = open_origin([data.XTC], data.GRO)
    expected = load_topology(data.GRO, origin)
    parses.clear()
    first, second = (load_topology(data.GRO, origin, {}, dataset) for _ in range(2))
    assert parses == [data.GRO]
    assert same(first, expected)
    assert same(second, expected)
    copied = tmp_path / "copied.gro"
    content = Path(data.GRO).read_bytes()
    copied.write_bytes(content)
    assert same(load_topology(copied, origin, {}, dataset), expected)
    assert len(parses) == 1
    copied.write_bytes(content.replace(b"MET", b"ALA", 1))
    assert load_topology(copied, origin, {}, dataset).resnames.values[0] == "ALA"
    load_topology(data.GRO, origin, {"to_guess": ["masses"]}, dataset)
    assert len(parses) == 3
    load_topology(data.GRO, origin, {"to_guess": ["masses"], "vdwradii": {"X": 1.0}}, dataset, attach=False)
    load_topology(data.GRO, origin, {"to_guess": ["masses"], "vdwradii": {"X": 1.0}}, dataset)
    assert len(parses) == 5


@pytest.mark.parametrize(("module", "name"), [(mda, "__version__"), (np, "__version__"), (sys, "version")])
def test_another_version_parses_anew(dataset, parses, monkeypatch, module, name):
    origin = open_origin([data.DCD], data.PSF)
    load_topology(data.PSF, origin, {}, dataset)
    monkeypatch.setattr(module, name, "99.0")
    load_topology(data.PSF, origin, {}, dataset)
    assert len(parses) == 2


class Bomb:
    """Its pickle makes a file when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_what_another_user_can_have_written_is_never_unpickled(dataset, parses, monkeypatch, tmp_path):
    origin = open_origin([data.DCD], data.PSF)
    expected = load_topology(data.PSF, origin, {}, dataset)
    (file,) = dataset.path.glob("x-parsed-*")
    exploded = tmp_path / "exploded"
    bomb = encode(expected, {"warnings": [], "more": Bomb(exploded)})
    elsewhere = tmp_path / "elsewhere"

    def attempt(mode: int = 0o600) -> bool:
        """Load the topology; tell whether the bomb went off."""
        file.unlink(missing_ok=True)
        file.symlink_to(elsewhere) if elsewhere.exists() else file.write_bytes(bomb)
        file.chmod(mode)
        assert same(load_topology(data.PSF, origin, {}, dataset, attach=False), expected)
        return exploded.exists()

    for path in (dataset.path.parent, dataset.path):
        for bit in (0o020, 0o002):
            path.chmod(0o700 | bit)
            assert not attempt()
        path.chmod(0o700)
    for mode in (0o620, 0o602):
        assert not attempt(mode)
    elsewhere.write_bytes(bomb)
    assert not attempt()
    elsewhere.unlink()
    real = os.geteuid()
    with monkeypatch.context() as another:
        another.setattr(os, "geteuid", lambda: real + 1)
        assert not attempt()
    assert attempt()  # the user's own may run


def test_a_dataset_behind_a_link_is_no_place_of_ones_own(dataset):
    dataset.attach("mine", b"content")
    assert dataset.own_attachment("mine") == dataset.attachment("mine") == b"content"
    dataset.path.rename(dataset.path.with_name("moved"))
    dataset.path.symlink_to("moved")
    assert dataset.attachment("mine") == b"content"
    assert dataset.own_attachment("mine") is None
    assert dataset.own_attachment("other") is None


def test_what_a_file_alone_does_not_tell_is_parsed_anew(dataset, parses, tmp_path):
    topology, trajectory = make(tmp_path, 1)
    origin = open_origin([trajectory], topology)
    for _ in range(2):
        load_topology(topology, origin, {"to_guess": ["masses", "bonds"]}, dataset)
        load_topology(topology, origin, {"context": mda.guesser.default_guesser.DefaultGuesser(None)}, dataset)
    assert len(parses) == 4
    assert not list(dataset.path.glob("x-parsed-*"))


def test_a_damaged_or_refused_attachment_costs_a_parse(dataset, parses, monkeypatch):
    origin = open_origin([data.DCD], data.PSF)
    expected = load_topology(data.PSF, origin, {}, dataset)
    (file,) = dataset.path.glob("x-parsed-*")
    file.write_bytes(file.read_bytes()[:-100])
    assert same(load_topology(data.PSF, origin, {}, dataset), expected)
    assert same(load_topology(data.PSF, origin, {}, dataset), expected)
    assert len(parses) == 2
    file.unlink()

    def full(*_):
        raise StoreFullError("full")

    monkeypatch.setattr(type(dataset), "attach", full)
    assert same(load_topology(data.PSF, origin, {}, dataset), expected)


def test_datasets_of_one_topology_share_its_parse(dataset, parses, monkeypatch):
    monkeypatch.setattr(loading, "_parses", {})
    origin = open_origin([data.DCD], data.PSF)
    others = [dataset.store.dataset(f"/sim{number}") for number in range(3)]
    for _ in range(2):
        for one in (dataset, *others):
            assert load_topology(data.PSF, origin, {}, one).n_atoms == origin.n_atoms
        assert parses == [data.PSF]
        monkeypatch.setattr(loading, "_parses", {})  # another process


def test_few_are_attached(dataset):
    origin = open_origin([data.DCD], data.PSF)
    for radius in range(7):
        load_topology(data.PSF, origin, {"vdwradii": {"X": radius}}, dataset)
    assert len(list(dataset.path.glob("x-parsed-*"))) == loading.MAX_ATTACHED


def test_warnings_come_again(dataset, tmp_path):
    origin = open_origin([make(tmp_path, 2, "md.pdb")[1]])
    texts = []
    for kept in (None, dataset, dataset):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            load_topology(None, origin, {}, kept)
        texts.append([(w.category, str(w.message), w.lineno) for w in caught if w.category is UserWarning])
    assert texts[0] == texts[1] == texts[2] != []


def test_a_wrong_topology_is_refused_also_if_it_is_attached(dataset):
    load_topology(data.GRO, open_origin([data.XTC], data.GRO), {}, dataset)
    with pytest.raises(himach.UsageError, match="has 47681 atoms"):
        load_topology(data.GRO, open_origin([data.DCD], data.PSF), {}, dataset)
