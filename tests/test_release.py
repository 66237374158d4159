"""What a release needs: versions, the paper, the registry's and archives' descriptions, recipes, workflows."""

import ast
import json
import os
import pwd
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from support import needs
from support.commands import himach, same_files
from support.ranks import clean_environment

from himach import examples
from himach.io.store.store import Store

ROOT = Path(__file__).parents[1]
RELEASE = ROOT / "release"


def text_of(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def yaml(text: str):
    return needs.module("yaml").safe_load(text)


PYPROJECT = tomllib.loads(text_of("pyproject.toml"))
PROJECT = PYPROJECT["project"]
EXTRAS = PROJECT["optional-dependencies"]
AUTHORS = [author["name"] for author in PROJECT["authors"]]
PYTHON = PROJECT["requires-python"].lstrip(">=")
(VERSION,) = re.findall(r"^  version: '(.*?)'", text_of("meson.build"), re.MULTILINE)


def test_it_is_that_of_the_newest_release_in_the_changelog():
    releases = re.findall(r"^## \[?(\d+\.\d+\.\d+)\b", text_of("CHANGELOG.md"), re.MULTILINE)
    assert releases[0] == VERSION
    assert releases == sorted(releases, key=lambda one: [int(part) for part in one.split(".")], reverse=True)


_, HEAD, BODY = text_of("paper/paper.md").split("---\n", 2)
BIBLIOGRAPHY = text_of("paper/paper.bib")
#: The page, and the table that is included in it.
BENCHMARKS = text_of("docs/benchmarks.md") + text_of("benchmarks/results/peers.md")
#: What JOSS requires, in its order.
SECTIONS = [
    "Summary",
    "Statement of need",
    "State of the field",
    "Software design",
    "Research impact statement",
    "AI usage disclosure",
    "Acknowledgements",
    "References",
]


def section(title: str) -> str:
    return re.split(r"^# ", BODY.partition(f"# {title}\n")[2], flags=re.MULTILINE)[0]


def test_the_paper_has_josss_sections_and_length():
    assert re.findall(r"^# (.+)$", BODY, re.MULTILINE) == SECTIONS
    assert [title for title in SECTIONS[:-1] if len(section(title).split()) < 20] == []
    assert 750 <= len(BODY.split()) <= 1750


def test_what_is_cited_is_listed_and_the_other_way_round():
    entries = dict(re.findall(r"^@\w+\{([\w:-]+),\n(.*?)^\}$", BIBLIOGRAPHY, re.MULTILINE | re.DOTALL))
    assert set(re.findall(r"@([\w:-]+)", BODY)) == entries.keys()
    for name, entry in entries.items():
        assert re.search(r"^  doi = \{10\.\d{4,}/[^\s{}]+\},$|^  url = \{https://", entry, re.MULTILINE), name
        assert re.search(r"^  (journal|booktitle) = \{", entry, re.MULTILINE), name


@pytest.mark.parametrize(
    ("figure", "unit"), re.findall(r"(\d+\.\d+)(?=(?: to [\d.]+)?( s\b| times| %))", section(SECTIONS[4]))
)
def test_figures_are_those_of_the_benchmarks(figure, unit):
    told = f"{float(figure) / 100:.3f}" if unit == " %" else figure  # shares are of one there
    assert re.search(rf"(?<![\d.]){re.escape(told)}(?!\d)", BENCHMARKS)


@pytest.fixture
def metadata():
    """What the registry of MDAnalysis's toolkits is told."""
    return yaml(text_of("release/mdakits/metadata.yaml"))


def test_metadata_are_true(metadata):
    assert metadata["project_name"] == metadata["import_name"] == PROJECT["name"]
    assert metadata["license"] == PROJECT["license"]
    assert metadata["python_requires"] == PROJECT["requires-python"]
    assert f"MDAnalysis{metadata['mdanalysis_requires']}" in PROJECT["dependencies"]
    (extra,) = re.findall(r"himach\[(\w+)\]", metadata["install"][0])
    assert extra in EXTRAS
    for name in re.findall(r"main/([\w.]+)", f"{metadata['authors']} {metadata['changelog']}"):
        assert (ROOT / name).is_file()
    assert metadata["run_tests"] == ["pytest --pyargs himach"]
    assert EXTRAS["check"][0] in metadata["test_dependencies"][0]


def test_the_citation_is_true():
    citation = yaml(text_of("CITATION.cff"))
    assert citation["title"] == PROJECT["name"]
    assert citation["license"] == PROJECT["license"]
    assert [author["name"] for author in citation["authors"]] == AUTHORS
    assert "version" not in citation  # meson.build alone has it


def test_archives_are_told_the_same():
    codemeta, zenodo = json.loads(text_of("codemeta.json")), json.loads(text_of(".zenodo.json"))
    assert codemeta["name"] == zenodo["title"] == PROJECT["name"]
    assert codemeta["license"].endswith("/" + PROJECT["license"])
    assert zenodo["license"] == PROJECT["license"]
    assert codemeta["description"] == zenodo["description"] == PROJECT["description"]
    assert codemeta["keywords"] == zenodo["keywords"] == PROJECT["keywords"]
    assert [author["name"] for author in codemeta["author"]] == AUTHORS
    assert [author["name"] for author in zenodo["creators"]] == AUTHORS
    assert f"Python {PROJECT['requires-python']}" in codemeta["softwareRequirements"]


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("citation-file-format", ["CITATION.cff"]),
        ("github-workflows", sorted((ROOT / ".github" / "workflows").glob("*.yml"))),
        ("dependabot", [".github/dependabot.yml"]),
        ("readthedocs", [".readthedocs.yaml"]),
        ("github-issue-forms", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))),
    ],
)
def test_what_services_read_is_in_form(schema, files):
    needs.module("check_jsonschema")
    assert files
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


SPACK = RELEASE / "spack" / "package.py"
(EASYBUILD,) = (RELEASE / "easybuild").glob("*.eb")
#: What EasyBuild has as one module.
BUNDLES = {"Python-bundle-PyPI": ["click", "cloudpickle", "jinja2"], "SciPy-bundle": ["numpy", "scipy"]}
RECIPES_SECTIONS = {"arguments", "post", "environment", "runscript", "test", "help"}


def least(requirements: list[str]) -> dict[str, str]:
    """Return the least version of each package, by the name of the package in small letters."""
    found = [re.fullmatch(r"([\w-]+)(?: ?>=([\d.]+))?", text) for text in requirements]
    assert all(found), requirements
    return {match[1].lower(): match[2] or "" for match in found}


RUN = least(PROJECT["dependencies"])
BUILD = least(PYPROJECT["build-system"]["requires"])


@pytest.fixture
def conda():
    return yaml(text_of("release/conda-forge/recipe.yaml"))


def easyconfig() -> dict[str, object]:
    """Return what an easyconfig assigns: it is Python that calls nothing."""
    told: dict[str, object] = {}
    exec(EASYBUILD.read_text(encoding="utf-8"), told)
    return told


def number(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def test_conda_forges_dependencies_are_ours(conda):
    asked = conda["requirements"]
    names = {"matplotlib-base": "matplotlib", "python-fastjsonschema": "fastjsonschema"}  # the former without Qt
    run = {names.get(name, name): version for name, version in least(asked["run"]).items()}
    assert run == {"python": "", **RUN}
    assert least(asked["host"]) == {"python": "", "pip": "", **BUILD}
    crossed = next(item["then"] for item in asked["build"] if isinstance(item, dict))
    assert {name: BUILD[name] for name in ("cython", "numpy")}.items() <= least(
        [name for name in crossed if "{" not in name]
    ).items()
    assert f'match(python, "<{PYTHON}")' in conda["build"]["skip"]
    (tests,) = (test["requirements"]["run"] for test in conda["tests"] if "script" in test)
    assert least(tests) == least(EXTRAS["check"])


def test_spacks_dependencies_are_ours():
    """Spack is no package of PyPI: what the file calls is read from its syntax."""
    calls = [node for node in ast.walk(ast.parse(SPACK.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
    asked = [call.args[0].value for call in calls if call.func.id == "depends_on"]
    found = {name.removeprefix("py-"): version for name, _, version in (text.partition("@") for text in asked)}
    assert found == {"c": "", "python": f"{PYTHON}:", **{name: f"{least}:" for name, least in {**BUILD, **RUN}.items()}}


def test_easybuilds_dependencies_are_ours():
    told = easyconfig()
    run = {name.lower(): version for name, version in told["dependencies"] if name not in BUNDLES}
    run |= {name: version for name, version, _ in told["exts_list"] if name != "himach"}
    bundled = [name for bundle, _ in told["dependencies"] for name in BUNDLES.get(bundle, [])]
    assert {*run, *bundled} == {"python", *RUN}
    build = {name.lower(): version for name, version in told["builddependencies"]}
    assert {*build, "numpy"} == set(BUILD)
    for name, version in {**run, **build}.items():
        asked = PYTHON if name == "python" else {**BUILD, **RUN}[name]
        assert number(version) >= number(asked), name


def test_apptainer_has_the_sections_and_extras_that_there_are():
    text = text_of("release/apptainer/himach.def")
    assert set(re.findall(r"^%(\w+)", text, re.MULTILINE)) == RECIPES_SECTIONS
    (extras,) = re.findall(r"^ +/opt/himach/bin/pip install .*'{{ himach }}\[([\w,]+)\]'$", text, re.MULTILINE)
    assert {*extras.split(",")} <= EXTRAS.keys()


def test_recipes_say_what_pyproject_says(conda):
    spack, told = SPACK.read_text(encoding="utf-8"), easyconfig()
    assert [conda["context"]["version"], told["version"]] == [VERSION, VERSION]
    assert EASYBUILD.name == f"himach-{VERSION}-{told['toolchain']['name']}-{told['toolchain']['version']}.eb"
    assert f'version("{VERSION}"' in spack
    assert f"/v{VERSION}/himach-{VERSION}.tar.gz" in spack
    assert conda["about"]["license"] == PROJECT["license"]
    assert f'license("{PROJECT["license"]}")' in spack
    assert conda["about"]["summary"] == PROJECT["description"]
    assert f'"""{PROJECT["description"]}."""' in spack
    assert told["description"].startswith(PROJECT["description"])


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
        himach("run", *words, *data, "--quiet", "--out", f"alone/{name}", cwd=ground, code=0)
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


def test_the_metadata_tell_all_that_goes_in_and_out():
    """Each input and output of the module is in its meta.yml, by name."""
    text, meta = (MODULE / "main.nf").read_text(), yaml((MODULE / "meta.yml").read_text())
    assert set(re.findall(r"emit: (\w+)", text)) == set(meta["output"])
    told = [name for one in meta["input"] for each in (one if isinstance(one, list) else [one]) for name in each]
    taken = text.partition("input:")[2].partition("output:")[0]
    assert re.findall(r"(?:val|path)[ (]+(\w+)", taken) == told
    wrapper = yaml((WRAPPER / "meta.yaml").read_text())
    code = (WRAPPER / "wrapper.py").read_text()
    names = [line.partition(":")[0] for part in ("input", "output", "params") for line in wrapper[part]]
    assert [name for name in names if f'"{name}"' not in code] == []


def test_stores_on_the_nodes_of_a_cluster(tmp_path, monkeypatch):
    """An administrator's script makes them, evicts those that are old, and spares what has no other copy."""
    user = pwd.getpwuid(os.getuid()).pw_name
    place = tmp_path / user
    monkeypatch.setenv("HIMACH_STORES", str(tmp_path))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")

    def node(*words):
        return subprocess.run([RELEASE / "cluster" / "himach-node", *words], capture_output=True, text=True, check=True)

    def written(pushed):
        node("prepare", user)
        dataset = Store(place).dataset("run7")
        dataset.write(0, 0.0, None, np.zeros((3, 3), np.float32), native=True)
        if not pushed:
            dataset.attach("origin.json", b"{}")
        dataset.close()

    written(pushed=False)
    node("evict", "--days", "14")
    assert [*place.rglob("*.seg")]
    for path in [place, *place.rglob("*")]:
        os.utime(path, (0, 0))
    node("evict", "--days", "14")
    assert not place.exists()
    written(pushed=True)
    assert "kept of" in node("drain").stdout
    assert [*place.rglob("*.seg")]
    node("evict", "--user", user, "--pushed")
    assert not place.exists()
