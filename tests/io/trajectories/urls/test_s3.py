"""Objects of S3: the bits of the local file, credentials as AWS's own tools find them, and errors by name."""

import pytest
from support import needs
from support.cache_data import make
from support.commands import himach as command

from himach.errors import UsageError
from himach.io.trajectories.urls.byte_file import fetch, read_status
from himach.io.trajectories.urls.transport import RemoteError, open_transport

from .test_runs import outcome

BUCKET = "simulations"


@pytest.fixture
def bucket(tmp_path, monkeypatch):
    needs.module("moto")
    boto3 = needs.module("boto3")
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
    client = boto3.client("s3")
    client.create_bucket(Bucket=BUCKET)
    yield client
    server.stop()


@pytest.mark.nightly(but=1)
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


@pytest.mark.nightly
def test_ranks_find_credentials_by_themselves(bucket, tmp_path):
    topology, trajectory = make(tmp_path)
    bucket.upload_file(str(trajectory), BUCKET, "md.trr")
    words = ["run", "rmsd", "-p", "selection=all", "-s", topology, "--cache", "off", "-n", "2"]
    done = command(*words, "-t", f"s3://{BUCKET}/md.trr", "--out", tmp_path / "out", TMPDIR=str(tmp_path), code=0)
    command(*words, "-t", trajectory, "--out", tmp_path / "local", code=0)
    assert (tmp_path / "out/rmsd.csv").read_bytes() == (tmp_path / "local/rmsd.csv").read_bytes()
    assert "hushhush" not in (tmp_path / "out/run.json").read_text() + done.stdout + done.stderr


def test_an_object_that_changes_is_named(bucket, tmp_path):
    key, url = {"Bucket": BUCKET, "Key": "md.xtc"}, f"s3://{BUCKET}/md.xtc"
    bucket.put_object(**key, Body=bytes(3_000_000))
    before = read_status(url)
    fetch(url, [(0, 100)])
    bucket.put_object(**key, Body=b"x" * 3_000_000)
    with pytest.raises(OSError, match="it has changed since it was opened"):
        fetch(url, [(2_000_000, 2_000_100)])
    assert before.size == 3_000_000


def test_a_public_object_needs_no_credentials(bucket, tmp_path, monkeypatch):
    _, trajectory = make(tmp_path)
    bucket.upload_file(str(trajectory), BUCKET, "md.trr", ExtraArgs={"ACL": "public-read"})
    bucket.upload_file(str(trajectory), BUCKET, "secret.trr")
    for name in ("AWS_PROFILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    transport = open_transport(f"s3://{BUCKET}/md.trr")
    assert transport.read(10, 5_000, transport.state()) == trajectory.read_bytes()[10:5_000]
    with pytest.raises(RemoteError, match="it may not be read"):
        open_transport(f"s3://{BUCKET}/secret.trr").state()


def test_a_version_of_an_object_is_read(bucket):
    key = {"Bucket": BUCKET, "Key": "md.xtc"}
    bucket.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})
    versions = [bucket.put_object(**key, Body=body)["VersionId"] for body in (b"first", b"the second")]
    for version, expected in zip(versions, (b"first", b"the second"), strict=True):
        transport = open_transport(f"s3://{BUCKET}/md.xtc?versionId={version}")
        assert transport.read(0, len(expected), transport.state()) == expected


def test_a_service_that_does_not_answer_is_named(bucket, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(RemoteError, match="Could not connect"):
        open_transport(f"s3://{BUCKET}/md.xtc").state()


@pytest.mark.parametrize("name", ["s3://simulations", "s3://simulations/"])
def test_a_bucket_is_no_file(bucket, name):
    with pytest.raises(UsageError, match="is no file"):
        open_transport(name)


def test_settings_that_are_wrong_are_told(bucket, monkeypatch):
    monkeypatch.setenv("AWS_PROFILE", "nobody's")
    with pytest.raises(UsageError, match="nobody's"):
        open_transport(f"s3://{BUCKET}/md.xtc")
