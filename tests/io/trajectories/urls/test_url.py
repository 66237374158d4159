"""URLs in the place of paths, and what is shown of them."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from himach.errors import UsageError
from himach.io.trajectories.urls.names import (
    absolute,
    full_url,
    is_url,
    local_file_name,
    redact,
    refuse_urls,
    strip_scheme,
)

WORDS = st.text("abcXYZ019-._~", min_size=3, max_size=12)


@pytest.mark.parametrize("text", ["https://host/md.xtc", "s3://bucket/key.nc", "gs://b/k", "http://h:80/x?y=1"])
def test_a_path_that_has_lost_a_slash_is_the_same_url(text):
    assert is_url(text)
    assert is_url(Path(text))
    assert full_url(absolute(Path(text))) == text


@pytest.mark.parametrize("text", ["/md.xtc", "md.xtc", "imd://host:1", "himach://name", "tcp://h:1", "a/b:/c", "c:/x"])
def test_other_paths_are_none(text):
    assert not is_url(text)
    assert absolute(text) == os.path.abspath(text)


def test_urls_of_this_machine_and_of_datasets_are_paths_and_names(tmp_path):
    cases = {
        "file:///data/a%20b.xtc": "/data/a b.xtc", "file:/data/a.xtc": "/data/a.xtc", "himach://run7": "run7",
        "himach:///data/a.xtc": "/data/a.xtc", "file": "file", "s3://b/a.xtc": "s3://b/a.xtc",
    }  # fmt: skip
    assert {text: strip_scheme(text) for text in cases} == cases
    for text in ("file://other/a.xtc", "file:///", "himach://", "himach://run7?server=h:1"):
        with pytest.raises(UsageError, match=r"names no|--server h:1"):
            strip_scheme(text)


@given(WORDS, WORDS, WORDS, WORDS)
def test_a_name_has_no_secret(user, password, key, signature):
    secrets = (f"u1{user}", f"p2{password}", f"s3{signature}")
    text = f"https://{secrets[0]}:{secrets[1]}@host.example/md.xtc?X-Amz-{key}={secrets[2]}&versionId=7&my{key}={secrets[2]}"
    name = absolute(text)
    digest = hashlib.sha256(secrets[2].encode()).hexdigest()[:16]
    assert name == absolute(name) == f"https://host.example/md.xtc?versionId=7&my{key}=sha256:{digest}"
    assert full_url(name) == text
    told = redact(f"cannot get {text}: no")
    assert not any(secret in told for secret in secrets)


def test_urls_have_one_name_where_they_differ_in_credentials_alone():
    path = "https://host/s/T/download?path=/"
    names = {
        absolute(f"{path}&files={file}&token={token}&Expires={token}") for file in "ab" for token in ("xyz", "uvw")
    }
    assert names == {f"{path}&files=a", f"{path}&files=b"}
    assert absolute("https://host/get?key=a") != absolute("https://host/get?key=b")
    assert absolute("https://host/get?part=a") != absolute("https://host/get?part=b") != absolute("https://host/get?b")


def test_the_suffix_tells_the_format_whatever_the_query():
    assert local_file_name("https://host/a%20b/md.part0001.xtc?download=1") == "md.part0001.xtc"
    assert local_file_name("https://host/../..") == "file"
    assert "/" not in local_file_name("https://host/a%2F..%2Fb.pdb")


def test_a_refusal_names_the_url_and_no_secret():
    with pytest.raises(UsageError, match=r"^https://host/md.xtc is the URL .*: no$"):
        refuse_urls(["here.xtc", "https://me:word@host/md.xtc"], "no")
