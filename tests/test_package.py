"""The sdist and the wheel that is built from it: complete, of one version, accepted by auditwheel, installed, and run.

They run from a folder of their own, in an environment that has no compiler, and so do the tests that they bring.
"""

import os
import platform
import re
import stat
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest
from support import needs
from support.ranks import clean_environment

from himach.errors import HimachError
from himach.files import whole_file
from himach.locks import locked

ROOT = Path(__file__).parents[1]

pytestmark = [
    pytest.mark.fresh,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not (ROOT / ".git").exists(), reason="an sdist is made of what git holds"),
]


def command(*words: object, cwd: Path, code: int = 0, **environ: str) -> str:
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env=clean_environment(**environ),
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=400,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


class Built(NamedTuple):
    """What was built of a clone."""

    clone: Path
    sdist: Path
    wheel: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Built:
    folder = tmp_path_factory.mktemp("package")
    command("git", "clone", "-q", ROOT, folder / "clone", cwd=folder)
    # CI has built both, to install the wheel.
    dist = Path(os.environ.get("HIMACH_DIST", folder / "dist"))
    if not dist.exists():
        command(sys.executable, "-m", "build", "--outdir", dist, folder / "clone", cwd=folder)
    (sdist,) = dist.glob("*.tar.gz")
    (wheel,) = dist.glob("*.whl")
    return Built(folder / "clone", sdist, wheel)


@pytest.fixture(scope="module")
def repaired(built) -> Path:
    """Return the wheel as it is published, with a tag of manylinux."""
    needs.module("auditwheel")
    out = built.clone.parent / "repaired"
    command(sys.executable, "-m", "auditwheel", "repair", "-w", out, built.wheel, cwd=out.parent)
    (wheel,) = out.glob("*.whl")
    return wheel


class Environment(NamedTuple):
    """A virtual environment in which the wheel is installed."""

    folder: Path
    inside: Path

    def run(self, *words: object, code: int = 0) -> str:
        """Run Python, where no program is found but those of the environment: no compiler."""
        beside = os.pathsep.join([str(self.folder / "venv" / "bin"), str(Path(sys.executable).parent)])
        python = self.folder / "venv" / "bin" / "python"
        return command(python, "-P", *words, cwd=self.folder, code=code, PATH=beside, HOME=str(self.folder / "home"))


@pytest.fixture(scope="module")
def environment(repaired, tmp_path_factory) -> Environment:
    folder = tmp_path_factory.mktemp("environment")
    command(sys.executable, "-m", "venv", "--without-pip", folder / "venv", cwd=folder)
    python = folder / "venv" / "bin" / "python"
    inside = Path(command(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip())
    command(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", inside, repaired, cwd=folder)
    # The dependencies are those of this environment, and of those it builds on, behind what was installed just now.
    dependencies = [entry for entry in sys.path if Path(entry).name.endswith("-packages")]
    (inside / "dependencies.pth").write_text("\n".join(dependencies) + "\n")
    for library in Path(sys.prefix, "lib").glob("*mpi*"):  # of the package mpich, which lies beside Python
        (folder / "venv" / "lib" / library.name).symlink_to(library)
    (folder / "home").mkdir()
    return Environment(folder, inside)


def test_sdist_wheel_and_command_are_of_one_version(built, environment):
    (version,) = re.findall(r"^  version: '(.*?)'", (built.clone / "meson.build").read_text(), re.MULTILINE)
    assert built.sdist.stat().st_size < 10e6
    assert built.sdist.name == f"himach-{version}.tar.gz"
    assert built.wheel.name.startswith(f"himach-{version}-")
    assert environment.run("-m", "himach", "--version").strip().endswith(f" {version}")


@pytest.mark.skipif(platform.machine() != "x86_64", reason="of this machine's own kind alone")
def test_auditwheel_accepts_the_wheel(built, repaired):
    """Of which manylinux it is depends on the C library of the machine; in cibuildwheel's containers it is 2_28."""
    shown = command(sys.executable, "-m", "auditwheel", "show", built.wheel, cwd=built.clone)
    tag = re.search(r'"(manylinux_2_\d+_x86_64)"', shown)
    assert tag is not None, shown
    assert tag[1] in repaired.name
    with zipfile.ZipFile(repaired) as content:
        assert not any("himach.libs/" in name for name in content.namelist())  # it brings no library of others


def test_the_wheel_runs_without_a_compiler(environment):
    folder, inside = environment
    environment.run("-c", "import shutil; assert not any(map(shutil.which, ['cc', 'gcc', 'clang', 'ld']))")
    found = environment.run("-c", "import himach.io.store.bodhi; print(himach.__file__)").strip()
    assert found.startswith(str(inside))
    sample = environment.run("-c", "from himach.examples import sample; print(*sample('kcsa'), sep='\\n')").split()
    assert sample[0].startswith(str(inside))
    shown = environment.run(
        *("-m", "himach", "run", "ion-permeation", "--trajectory", sample[0], "--topology", sample[1]),
        *("-p", "top=resid 66 and name O", "-p", "bottom=resid 63 and name OG1", "-p", "radius=2.5", "--out", "out"),
    )
    assert "direction" in shown
    assert (folder / "out" / "ion-permeation.png").stat().st_size > 5000


@pytest.mark.nightly
def test_the_tests_that_it_brings_pass_and_find_what_is_broken(environment):
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--pyargs")
    assert re.search(r"^\d\d passed", environment.run(*words, "himach"), re.MULTILINE)
    broken = environment.inside / "himach" / "examples" / "structure" / "rmsd.py"
    whole = broken.read_text(encoding="utf-8")
    line = "min(kernels.rmsd(positions, target, weights) for target in targets)"
    broken.write_text(whole.replace(line, f"{line} * 1.01"), encoding="utf-8")
    assert broken.read_text(encoding="utf-8") != whole
    try:
        told = environment.run(*words, "himach.tests.test_builtins", code=1)
    finally:
        broken.write_text(whole, encoding="utf-8")
    assert "FAILED" in told
    assert "test_rmsd" in told
    assert " 1 failed" in f" {told.splitlines()[-1]}"


def test_a_file_has_its_name_when_all_is_written(tmp_path):
    path = tmp_path / "some"
    path.write_bytes(b"before")
    with whole_file(path, mode=0o600, sync=True) as file:
        file.write(b"after")
        file.flush()
        assert path.read_bytes() == b"before"
    assert path.read_bytes() == b"after"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["some"]


@pytest.mark.parametrize("there", [False, True])
def test_of_what_fails_nothing_is_left(tmp_path, there):
    path = tmp_path / "some"
    if there:
        path.write_bytes(b"before")

    def write():
        with whole_file(path) as file:
            file.write(b"half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write()
    assert [one.read_bytes() for one in tmp_path.iterdir()] == [b"before"] * there


def test_a_file_that_is_there_stays_where_that_is_asked(tmp_path):
    path = tmp_path / "some"
    path.write_bytes(b"before")
    with pytest.raises(FileExistsError), whole_file(path, replace=False) as file:
        file.write(b"after")
    assert [one.read_bytes() for one in tmp_path.iterdir()] == [b"before"]


def test_who_does_not_let_go_of_a_lock_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("himach.locks.PATIENCE", 0.05)
    with locked(tmp_path):  # by another descriptor, as of another process
        refused = pytest.raises(
            HimachError, match=f"locked for 0.05 s by process {os.getpid()}: let it go on, or end it"
        )
        with refused, locked(tmp_path):
            pass
    with locked(tmp_path):
        pass
