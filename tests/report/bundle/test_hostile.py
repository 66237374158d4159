"""Bundles that are damaged or made to do harm: each is refused by what is wrong, before anything of it is run."""

import hashlib
import json
import shutil
import stat
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from MDAnalysisTests.datafiles import DCD, PSF

import himach
from himach.errors import HimachError, UsageError
from himach.examples import load
from himach.report.bundle.archive import METADATA, DamagedError, Payload, extract, write_archive
from himach.report.bundle.crate import collect_contents, metadata
from himach.report.bundle.data import Inputs
from himach.report.bundle.verify import verify
from himach.report.folder import read_folder

Members = list[tuple[zipfile.ZipInfo, bytes]]
TABLE = "runs/out/rmsd.csv"


@pytest.fixture(scope="module")
def good(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("good")
    himach.run(load("rmsd")(selection="name CA"), DCD, PSF, stop=3, out=folder / "out", cache="off")
    contents = collect_contents([read_folder(folder / "out")])
    write_archive(folder / "good.zip", {**contents.members, METADATA: Payload.from_source(metadata(contents))})
    return folder / "good.zip"


@pytest.fixture
def temporary(tmp_path, monkeypatch) -> Path:
    """The folder in which bundles are extracted, deep enough that names can lead out of it."""
    import tempfile

    folder = tmp_path / "a" / "b" / "c"
    folder.mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def changed(good: Path, to: Path, change: Callable[[Members], None]) -> Path:
    """Write a bundle whose members are others."""
    with zipfile.ZipFile(good) as file:
        members = [(info, file.read(info)) for info in file.infolist()]
    change(members)
    with zipfile.ZipFile(to, "w", zipfile.ZIP_DEFLATED) as file:
        for info, content in members:
            file.writestr(info, content)
    return to


def refused(bundle: Path, temporary: Path) -> str:
    """Return why a bundle is refused; nothing of it may be left anywhere."""
    before = sorted(bundle.parent.rglob("*"))
    lines: list[str] = []
    with pytest.raises(HimachError) as error:
        verify(bundle, Inputs([Path(str(DCD))], [Path(str(PSF))]), cache="off", log=lines.append)
    assert lines == []
    assert list(temporary.iterdir()) == []
    assert sorted(bundle.parent.rglob("*")) == before
    assert isinstance(error.value, DamagedError | UsageError)
    return str(error.value)


def named(name: str, mode: int = 0) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo("x")
    info.filename = name
    info.external_attr = mode << 16
    return info


def add(name: str, mode: int = 0, is_named: bool = True) -> Callable[[Members], None]:
    """Return what adds a member of that name, which the metadata name, too."""
    content = b"/etc/passwd"

    def change(members: Members) -> None:
        if is_named:
            digest = hashlib.sha256(content).hexdigest()
            describe(members, {"@id": name, "@type": "File", "sha256": digest})
        members.append((named(name, mode), content))

    return change


def describe(members: Members, *entities: dict) -> None:
    """Add entities to the metadata."""
    crate = json.loads(members[_at(members, METADATA)][1])
    crate["@graph"] = list({entity["@id"]: entity for entity in [*crate["@graph"], *entities]}.values())
    _put(members, METADATA, json.dumps(crate).encode())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (add("../evil"), "'../evil' is not there"),
        (add("/tmp/himach-evil"), "'/tmp/himach-evil' is not there"),
        (add("files/../../../evil"), "'files/../../../evil' is not there"),
        (add("./evil"), "'./evil' is not there"),
        (add("files//evil"), "'files//evil' is not there"),
        (add("files/folder/"), "'files/folder/' is not there"),
        (add("runs/out/rmsd.csv/x"), "'runs/out/rmsd.csv/x': "),
        (add("files/1/sitecustomize.py", is_named=False), f"{METADATA} does not name 'files/1/sitecustomize.py'"),
        (lambda members: members.pop(_at(members, TABLE)), f"{TABLE!r} is not there"),
        (
            lambda members: _put(members, TABLE, b"time_ps,rmsd\n0,0\n"),
            f"{TABLE!r}: its content is not what was bundled",
        ),
        (lambda members: members.append((named(TABLE), b"other")), f"{TABLE!r}: its content is not what was bundled"),
        (lambda members: _put(members, METADATA, b"{}"), "describes no RO-Crate"),
        (lambda members: _put(members, METADATA, b'{"@graph": [[]]}'), "describes no RO-Crate"),
        (
            lambda members: _put(members, METADATA, b'{"@graph": [{"@type": "File", "@id": [], "sha256": ""}]}'),
            "describes no RO-Crate",
        ),
        (lambda members: _put(members, METADATA, b"[" * 100_000), "describes no RO-Crate"),
        (lambda members: members.pop(_at(members, METADATA)), f"there is no {METADATA} in it"),
    ],
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_members_that_are_not_as_they_should_be(good, temporary, change, words):
    assert words in refused(changed(good, temporary.parent / "b.zip", change), temporary)
    assert not Path("/tmp/himach-evil").exists()


def test_what_is_no_file_is_extracted_as_one(good, tmp_path):
    """Links and pipes are files with that content, wherever they would lead."""
    for number, kind in enumerate((stat.S_IFLNK | 0o777, stat.S_IFIFO | 0o666)):
        bundle = changed(good, tmp_path / "b.zip", add("files/link", kind))
        (folder := tmp_path / str(number)).mkdir()
        assert "files/link" in extract(bundle, folder)
        assert stat.S_ISREG((folder / "files" / "link").lstat().st_mode)


def _at(members: Members, name: str) -> int:
    return next(i for i, (info, _) in enumerate(members) if info.filename == name)


def _put(members: Members, name: str, content: bytes) -> None:
    at = _at(members, name)
    members[at] = (members[at][0], content)


def patched(good: Path, to: Path, name: str, field: int, value: bytes) -> Path:
    """Write a bundle with other bytes in what the list of a zip says of a member."""
    content = bytearray(good.read_bytes())
    at = content.rindex(name.encode()) - 46  # the fixed part of an entry, whose name follows
    assert content[at : at + 4] == b"PK\1\2"
    content[at + field : at + field + len(value)] = value
    to.write_bytes(content)
    return to


def test_sizes_and_flags_that_lie(good, temporary):
    to = temporary.parent / "b.zip"
    assert "larger than any bundle's" in refused(patched(good, to, METADATA, 24, struct.pack("<I", 1 << 27)), temporary)
    encrypted = patched(good, to, TABLE, 8, struct.pack("<H", 1))
    assert "is encrypted" in refused(encrypted, temporary)
    with zipfile.ZipFile(good) as file:
        size = file.getinfo(TABLE).file_size
    assert "is damaged" in refused(patched(good, to, TABLE, 24, struct.pack("<I", size - 1)), temporary)


def test_more_than_the_disk_has_room_for(good, temporary):
    """A thousand files of 4 GB each, by what they say."""
    names = [f"files/{i}" for i in range(999)]
    to = changed(good, temporary.parent / "b.zip", lambda members: members.extend((named(name), b"") for name in names))
    content = to.read_bytes()
    assert shutil.disk_usage(temporary).free < 999 * 0xFFFFFFF0, "a disk of 4 TB"
    for name in names:  # the size is 22 bytes before the name in the list
        at = content.rindex(name.encode() + b"PK")
        content = content[: at - 22] + struct.pack("<I", 0xFFFFFFF0) + content[at - 18 :]
    to.write_bytes(content)
    assert "has room for" in refused(to, temporary)


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9, 0.999])
def test_a_bundle_that_is_cut(good, temporary, part):
    content = good.read_bytes()
    bundle = temporary.parent / "b.zip"
    bundle.write_bytes(content[: int(len(content) * part)])
    assert "it begins as a zip and does not end as one" in refused(bundle, temporary)


@pytest.mark.parametrize(
    ("content", "words"), [(None, "cannot be read"), (b"", "is no bundle"), (b"text", "is no bundle")]
)
def test_what_is_no_bundle(temporary, content, words):
    bundle = temporary.parent / "b.zip"
    if content is not None:
        bundle.write_bytes(content)
    assert words in refused(bundle, temporary)


def test_a_record_that_names_a_script_of_this_machine(good, temporary, tmp_path):
    """A record can name any path: only scripts in the bundle are run."""
    trap = tmp_path / "trap.py"
    trap.write_text(f"open({str(tmp_path / 'sprung')!r}, 'w')\n")

    def change(members: Members) -> None:
        record = json.loads(members[_at(members, "runs/out/run.json")][1])
        record["analyses"][0]["source"] = f"{trap}:Trap"
        record |= {"directory": "../../..", "code_folders": ["../../../..", str(tmp_path)]}
        content = json.dumps(record).encode()
        _put(members, "runs/out/run.json", content)
        digest = hashlib.sha256(content).hexdigest()
        describe(members, {"@id": "runs/out/run.json", "@type": "File", "sha256": digest})

    before = sorted(temporary.parent.parent.rglob("*"))
    bundle = changed(good, temporary.parent / "b.zip", change)
    lines: list[str] = []
    assert not verify(bundle, Inputs([Path(str(DCD))], [Path(str(PSF))]), cache="off", log=lines.append)
    assert [line for line in lines if f"the bundle lacks {trap}" in line]
    assert not (tmp_path / "sprung").exists()
    assert set(temporary.parent.parent.rglob("*")) == {*before, bundle}
