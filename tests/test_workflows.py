"""himach in workflows, in `release/`: the wrapper for Snakemake by Snakemake, the module for Nextflow in its parts."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import needs
from support.commands import himach, same_files
from support.ranks import clean_environment

from himach import examples

RELEASE = Path(__file__).parents[1] / "release"
WRAPPER = RELEASE / "snakemake-wrappers" / "bio" / "himach" / "run"
MODULE = RELEASE / "nf-core" / "modules" / "himach" / "run"

ANALYSIS = """
import himach

class Own(himach.Analysis):
    def map(self, frame):
        yield "atoms", len(frame.positions)
    def reduce(self, key, series):
        return sum(series.values)
"""


@pytest.fixture
def ground(tmp_path):
    """A folder with a simulation and an analysis."""
    for path in examples.sample("villin"):
        shutil.copy(path, tmp_path / f"villin{path.suffix}")
    (tmp_path / "analysis.py").write_text(ANALYSIS)
    return tmp_path


def environment() -> dict[str, str]:
    """Return one in which `himach` and `mpiexec` are those of this Python."""
    return clean_environment(PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}")


SAME = {
    "rmsd": ["rmsd", "-p", "selection=protein and name CA", "--step", "2"],
    "own": ["analysis.py"],
    "gyration": ["radius-of-gyration", "-p", "selection=protein"],
}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_snakemake_has_it_run(ground):
    """Of the rules that the wrapper shows, each leaves what the command leaves."""
    snakemake = os.environ.get("HIMACH_SNAKEMAKE") or needs.program("snakemake", of="Snakemake")
    rules = (WRAPPER / "test" / "Snakefile").read_text()
    (ground / "Snakefile").write_text(rules.replace('"master/bio/himach/run"', f'"file://{WRAPPER}"'))
    done = subprocess.run(
        [snakemake, "--cores", "2", *(f"results/villin/{name}" for name in SAME)],
        cwd=ground,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for name, words in SAME.items():
        data = ["-t", "villin.xtc", "-s", "villin.pdb"]
        assert himach("run", *words, *data, "--quiet", "--out", f"alone/{name}", cwd=ground).returncode == 0
        (ground / "results" / "villin" / name / ".snakemake_timestamp").unlink()
        same_files(ground / "alone" / name, ground / "results" / "villin" / name)
        assert (ground / "logs" / f"villin_{name}.log").exists()
    assert '"ranks": 2' in (ground / "results/villin/rmsd/run.json").read_text()
    assert '"ranks": 2' in (ground / "results/villin/gyration/run.json").read_text()
    assert '"ranks": 1' in (ground / "results/villin/own/run.json").read_text()


def bash(block: str, **values: str) -> str:
    """Return a block of the module's as Nextflow writes it, with values in place of variables."""
    text = (MODULE / "main.nf").read_text()
    (found,) = re.findall(rf'{block}:\n.*?"""\n(.*?)"""', text, re.DOTALL)
    filled = re.sub(r"\$\{([^}]*)\}", lambda name: values[name[1]], found).replace("\\\\", "\\")
    assert "$" not in filled
    return filled


@pytest.mark.slow
def test_the_command_of_the_nextflow_module_runs(ground):
    """Nextflow needs Java and a download of its own: what is run here is what it would write into its script."""
    names = {"script ?: analysis": "rmsd", "trajectories": "--trajectory villin.xtc", "prefix": "villin"}
    command = bash("script", **names, structure="--topology villin.pdb", ranks="-n 2", args="--step 5")
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", command], cwd=ground, env=environment(), check=False)
    assert done.returncode == 0
    assert (ground / "villin" / "run.json").exists()
    assert [*(ground / "villin").glob("*.csv")] and [*(ground / "villin").glob("*.png")]
    stub = bash("stub", prefix="stub", analysis="rmsd")
    subprocess.run(["bash", "-euo", "pipefail", "-c", stub], cwd=ground, env=environment(), check=True)
    assert (ground / "stub" / "run.json").exists()


def test_the_version_is_what_the_nextflow_module_asks_for():
    (asked,) = re.findall(r'eval\("(himach --version .*?)"\)', (MODULE / "main.nf").read_text())
    done = subprocess.run(["bash", "-c", asked], env=environment(), capture_output=True, text=True, check=True)
    assert re.fullmatch(r"\d+\.\d+\.\d+.*\n", done.stdout)


def test_the_metadata_tell_all_that_goes_in_and_out():
    """Each input and output of the module is in its meta.yml, by name."""
    yaml = needs.module("yaml")
    text, meta = (MODULE / "main.nf").read_text(), yaml.safe_load((MODULE / "meta.yml").read_text())
    assert set(re.findall(r"emit: (\w+)", text)) == set(meta["output"])
    told = [name for one in meta["input"] for each in (one if isinstance(one, list) else [one]) for name in each]
    taken = text.partition("input:")[2].partition("output:")[0]
    assert re.findall(r"(?:val|path)[ (]+(\w+)", taken) == told
    wrapper = yaml.safe_load((WRAPPER / "meta.yaml").read_text())
    code = (WRAPPER / "wrapper.py").read_text()
    names = [line.partition(":")[0] for part in ("input", "output", "params") for line in wrapper[part]]
    assert [name for name in names if f'"{name}"' not in code] == []
