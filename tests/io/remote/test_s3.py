"""Objects of S3: the bits of the local file, credentials as AWS's own tools find them, and errors by name."""

from __future__ import annotations

import pytest
from support import needs
from support.cache_data import make
from support.commands import himach as command

from himach.errors import UsageError

from .test_runs import outcome

BUCKET = "simulations"


@pytest.fixture
def bucket(tmp_path, monkeypatch):
    needs.module("s3fs")
    needs.module("moto")
    boto3 = needs.module("boto3")
    import s3fs
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    folder = tmp_path / "aws"
    folder.mkdir()
    (folder / "credentials").write_text("[lab]\naws_access_key_id = AKIDTESTING\naws_secret_access_key = hushhush\n")
    (folder / "config").write_text("[profile lab]\nregion = us-east-1\n")
    environ = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_SHARED_CREDENTIALS_FILE": str(folder / "credentials"),
        "AWS_CONFIG_FILE": str(folder / "config"),
        "AWS_PROFILE": "lab",
    }
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    client = boto3.client("s3")
    client.create_bucket(Bucket=BUCKET)
    yield client
    server.stop()


@pytest.mark.parametrize("name", ["md.xtc", "md.ncdf"])
def test_an_object_gives_the_bits_of_the_local_file(bucket, tmp_path, name):
    topology, trajectory = make(tmp_path, name=name)
    for path in (topology, trajectory):
        bucket.upload_file(str(path), BUCKET, f"run 1/{path.name}")
    urls = [f"s3://{BUCKET}/run 1/{path.name}" for path in (trajectory, topology)]
    expected = outcome(trajectory, topology)
    cache = str(tmp_path / "cache")
    assert outcome(*urls, cache=cache) == expected
    assert outcome(*urls, cache=cache) == expected
    bucket.delete_object(Bucket=BUCKET, Key=f"run 1/{name}")


def test_ranks_find_credentials_by_themselves(bucket, tmp_path):
    topology, trajectory = make(tmp_path)
    bucket.upload_file(str(trajectory), BUCKET, "md.trr")
    words = ["run", "rmsd", "-p", "selection=all", "-s", topology, "--cache", "off", "-n", "2"]
    done = command(*words, "-t", f"s3://{BUCKET}/md.trr", "--out", tmp_path / "out", TMPDIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    local = command(*words, "-t", trajectory, "--out", tmp_path / "local")
    assert local.returncode == 0, local.stderr
    assert (tmp_path / "out/rmsd.csv").read_bytes() == (tmp_path / "local/rmsd.csv").read_bytes()
    assert "hushhush" not in (tmp_path / "out/run.json").read_text() + done.stdout + done.stderr


def test_what_is_not_there_is_named(bucket, tmp_path):
    topology, _ = make(tmp_path)
    with pytest.raises(UsageError, match=r"trajectory s3://simulations/none.xtc cannot be read: there is no such file"):
        outcome(f"s3://{BUCKET}/none.xtc", topology)
    with pytest.raises(UsageError, match=r"s3://nobody/md.xtc cannot be read: there is no such file"):
        outcome("s3://nobody/md.xtc", topology)


def test_an_object_that_changes_is_named(bucket, tmp_path):
    from himach.io.remote.byte_file import brought, status_of

    key, url = {"Bucket": BUCKET, "Key": "md.xtc"}, f"s3://{BUCKET}/md.xtc"
    bucket.put_object(**key, Body=bytes(3_000_000))
    before = status_of(url)
    brought(url, [(0, 100)])
    bucket.put_object(**key, Body=b"x" * 3_000_000)
    with pytest.raises(OSError, match="it has changed since it was opened"):
        brought(url, [(2_000_000, 2_000_100)])
    assert before.size == 3_000_000
