"""Runs over trajectories by URL: the outcome of a local file, few bytes, and no secret in what they leave."""

import json
import shutil
import subprocess
import threading
from base64 import b64encode

import pytest
from MDAnalysisTests.datafiles import DCD, GRO, PSF, TRR, XTC, PRMncdf, TRJncdf
from support import needs
from support.cache_data import Emit, make
from support.commands import himach as command

import himach
from himach.benchmarks.parts.urls import served
from himach.errors import HimachError, UsageError
from himach.io.trajectories.urls import byte_file, mirror

SAMPLES = [(XTC, GRO), (TRR, GRO), (DCD, PSF), (TRJncdf, PRMncdf)]


def outcome(trajectory, topology, cache="off", **options):
    result = himach.run(Emit(), trajectory, topology, cache=cache, progress=False, **options)
    found = result.outcome["frames"]
    return {name: found[name].tolist() for name in found} if isinstance(found, dict) else found.tolist()


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize(("trajectory", "topology"), SAMPLES)
def test_a_run_by_url_gives_the_bits_of_the_local_file(web, tmp_path, trajectory, topology):
    urls = [web.url(shutil.copy(path, web.folder).rpartition("/")[2]) for path in (trajectory, topology)]
    expected = outcome(trajectory, topology)
    assert outcome(*urls, cache=str(tmp_path / "cache")) == expected
    assert all(web.sent[name] <= (web.folder / name).stat().st_size for name in web.sent)
    web.sent.clear()
    assert outcome(*urls, cache=str(tmp_path / "cache")) == expected
    assert not sum(web.sent.values())


def test_atoms_are_followed_by_reading_each_byte_once(web, tmp_path, monkeypatch):
    monkeypatch.setattr(mirror, "SMALL_BYTES", 0)
    topology, trajectory = make(web.folder, name="md.trr", n_frames=50)
    followed = [himach.transformations.NoJump()]
    expected = outcome(trajectory, topology, transform=followed)
    assert outcome(web.url(trajectory.name), topology, transform=followed) == expected
    assert web.sent[trajectory.name] <= trajectory.stat().st_size


def test_the_cache_lists_copies_of_files_elsewhere_and_evicts_them(web, tmp_path):
    topology, trajectory = make(web.folder, name="md.dcd")
    url, cache = web.url(trajectory.name), ["--cache", tmp_path / "cache"]
    words = ["run", "rmsd", "-p", "selection=all", "-t", url, "-s", topology]
    command(*words, *cache, TMPDIR=str(tmp_path), code=0)
    assert not [*tmp_path.glob("himach-remote-*")]
    listed = command("cache", "list", *cache).stdout.splitlines()
    assert any(line.startswith(f"copy of {url} ") for line in listed), listed
    status = json.loads(command("cache", "status", "--json", *cache).stdout)
    assert 0 < status["copies"] < status["used"] and status["datasets"] == 1
    command("cache", "verify", *cache, code=0)
    command("cache", "evict", url, *cache, code=0)
    assert command("cache", "list", *cache).stdout.startswith("no frames are cached")


@pytest.mark.parametrize("name", ["md.xyz", "md.h5md"])
def test_other_formats_are_fetched_as_a_whole(web, tmp_path, name):
    if name.endswith("h5md"):
        needs.module("h5py")
    topology, trajectory = make(web.folder, name=name, n_frames=5)
    assert outcome(web.url(trajectory.name), web.url(topology.name)) == outcome(trajectory, topology)


def test_few_frames_of_a_netcdf_file_take_few_bytes(web, tmp_path):
    topology, trajectory = make(web.folder, name="md.ncdf", n_frames=50, n_atoms=3000)
    assert outcome(web.url(trajectory.name), topology, step=20) == outcome(trajectory, topology, step=20)
    assert web.sent[trajectory.name] < trajectory.stat().st_size * 0.2


def test_passwords_and_signatures_stay_where_they_were_given(web, tmp_path):
    topology, trajectory = make(web.folder, name="md.dcd")
    web.password = "Basic " + b64encode(b"itsme:verysecretword").decode()
    urls = [f"{web.url(path.name, 'itsme:verysecretword@')}?X-Amz-Signature=s1gn3d" for path in (trajectory, topology)]
    rmsd, files = ["run", "rmsd", "-p", "selection=all"], ["-t", urls[0], "-s", urls[1]]
    words = ["--cache", tmp_path / "cache", "--out", tmp_path / "out"]
    done = command(*rmsd, *files, *words, TMPDIR=str(tmp_path), code=0)
    shown = command("info", urls[0], "-s", urls[1], "--cache", tmp_path / "cache", TMPDIR=str(tmp_path))
    table = tmp_path / "members.csv"
    table.write_text(f"name,trajectory,topology\na,{urls[0]},{urls[1]}\nb,{urls[0]},{urls[1]}\n")
    of_many = ["--ensemble", table, "--cache", "off", "--out", tmp_path / "many", "--pairs", tmp_path / "pairs"]
    many = command(*rmsd, *of_many, TMPDIR=str(tmp_path), code=0)
    table.unlink()
    written = ["--out", tmp_path / "written.xtc", "--record", tmp_path / "record.json", "--cache", "off"]
    anew = command("convert", urls[0], "-s", urls[1], *written, TMPDIR=str(tmp_path), code=0)
    web.password = "another"
    wrong = command(*rmsd, *files, "--cache", "off", TMPDIR=str(tmp_path))
    assert wrong.returncode != 0
    assert "may not be read: the server says 401" in wrong.stderr
    told = "".join([*(one.stdout + one.stderr for one in (done, shown, wrong, many, anew))])
    kept = subprocess.run(["grep", "-raE", "verysecretword|s1gn3d", tmp_path], capture_output=True, check=False)
    assert "verysecretword" not in told and "s1gn3d" not in told
    assert kept.stdout == b""


def test_a_signature_that_has_expired_is_renewed(web, tmp_path):
    topology, trajectory = make(web.folder)
    url, cache = web.url(trajectory.name), str(tmp_path / "cache")
    web.signature = "sig=first"
    expected = outcome(f"{url}?sig=first", topology, cache=cache)
    web.signature = "sig=second"
    with pytest.raises(UsageError, match="may not be read"):
        outcome(f"{url}?sig=first", topology)
    web.sent.clear()
    assert outcome(f"{url}?sig=second", topology, cache=cache) == expected
    assert not sum(web.sent.values())  # it is the same file


def test_a_redirect_is_followed_and_no_password_goes_elsewhere(web, tmp_path):
    topology, trajectory = make(web.folder, name="md.trr")
    with served(web.folder) as other:
        web.redirects["there.trr"] = other.url("md.trr")
        other.password = ""
        url = web.url("there.trr", "me:pass@")
        assert outcome(url, topology) == outcome(trajectory, topology)


def test_a_file_that_changes_in_mid_run_ends_the_run(web, tmp_path):
    topology, trajectory = make(web.folder, name="md.trr", n_frames=3000, n_atoms=300)
    changes, done = threading.Lock(), threading.Event()

    def change(number, place):
        if place[0] > 2 << 20 and changes.acquire(blocking=False):
            make(web.folder, name="md.trr", n_frames=3000, n_atoms=300, seed=9)
            done.set()
        return ""

    web.fault = change
    with pytest.raises(HimachError, match=r"md\.trr.* changed|md\.trr.*other content"):
        outcome(web.url(trajectory.name), topology, cache=str(tmp_path / "cache"), step=3)
    assert done.wait(60)
    web.fault = lambda number, place: ""
    byte_file._remote_files.clear()  # as when the last answer holds no more
    assert outcome(web.url(trajectory.name), topology, cache=str(tmp_path / "cache")) == outcome(trajectory, topology)


def test_what_is_not_there_is_named(web, tmp_path):
    topology, _ = make(web.folder)
    with pytest.raises(UsageError, match=r"trajectory http://127.0.0.1:\d+/none.xtc cannot be read: there is no such"):
        outcome(web.url("none.xtc"), topology)
    with pytest.raises(UsageError, match=r"md\.zarr is a Zarr directory: download it"):
        outcome(web.url("md.zarr"), topology)


def test_a_server_that_is_away_is_stood_in_for_by_the_cache(web, tmp_path):
    topology, trajectory = make(web.folder)
    url, cache = web.url(trajectory.name), str(tmp_path / "cache")
    expected = outcome(url, topology, cache=cache)
    web.fault = lambda number, place: "reset"
    assert outcome(url, topology, cache=cache) == expected


def test_what_does_not_fit_is_refused_by_name(web, tmp_path):
    topology, trajectory = make(web.folder)
    url = web.url(trajectory.name, "me:secret@")
    for words in (
        ["follow", "rmsd", "-t", url, "-s", topology],
        ["stage", url],
        ["split", url, tmp_path / "frames"],
        ["convert", trajectory, "-s", topology, "--out", "s3://bucket/out.xtc"],
    ):
        done = command(*words, TMPDIR=str(tmp_path), code=2)
        assert "is the URL of a file elsewhere" in done.stderr
        assert "secret" not in done.stderr
