"""The sdist and the wheel that is built from it: complete, installed, and run from a folder of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.ranks import clean_environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[1]


def command(*words: object, cwd: Path, **environ: str) -> str:
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
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="an sdist is made of what git holds")
def test_sdist_and_wheel_install_and_run(tmp_path):
    clone = tmp_path / "clone"
    command("git", "clone", "-q", ROOT, clone, cwd=tmp_path)
    command(sys.executable, "-m", "build", "--outdir", tmp_path / "dist", clone, cwd=tmp_path)
    (sdist,) = (tmp_path / "dist").glob("*.tar.gz")
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    assert sdist.stat().st_size < 10e6
    command(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv", cwd=tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    inside = command(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip()
    command(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", inside, wheel, cwd=tmp_path)
    # The dependencies are those of this environment, and of those it builds on, behind what was installed just now.
    dependencies = [entry for entry in sys.path if Path(entry).name.endswith("-packages")]
    Path(inside, "dependencies.pth").write_text("\n".join(dependencies) + "\n")
    found = command(python, "-P", "-c", "import himach.io.store.bodhi; print(himach.__file__)", cwd=tmp_path).strip()
    assert found.startswith(inside)
    home = tmp_path / "home"
    home.mkdir()
    sample = command(
        python, "-P", "-c", "from himach.examples import sample; print(*sample('villin'), sep='\\n')", cwd=tmp_path
    ).split()
    assert sample[0].startswith(inside)
    shown = command(
        *(python, "-P", "-m", "himach", "run", "rmsd", "--trajectory", sample[0], "--topology", sample[1]),
        *("--out", tmp_path / "out"),
        cwd=tmp_path,
        HOME=str(home),
    )
    assert "time_ps" in shown
    assert (tmp_path / "out" / "rmsd.png").stat().st_size > 5000
