"""Recipes of package managers, in `release/`: in form, and with the dependencies of pyproject.toml, and no others."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest
from support import needs

ROOT = Path(__file__).parents[1]
RELEASE = ROOT / "release"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
VERSION = re.search(r"version: '([\d.]+)'", (ROOT / "meson.build").read_text(encoding="utf-8")).group(1)
SPACK = RELEASE / "spack" / "package.py"
(EASYBUILD,) = (RELEASE / "easybuild").glob("*.eb")
#: What EasyBuild has as one module.
BUNDLES = {"Python-bundle-PyPI": ["click", "cloudpickle"], "SciPy-bundle": ["numpy", "scipy"]}
SECTIONS = {"arguments", "post", "environment", "runscript", "test", "help"}


def least(requirements: list[str]) -> dict[str, str]:
    """Return the least version of each package, by the name of the package in small letters."""
    found = [re.fullmatch(r"([\w-]+)(?: ?>=([\d.]+))?", text) for text in requirements]
    assert all(found), requirements
    return {match[1].lower(): match[2] or "" for match in found}


RUN = least(PROJECT["dependencies"])
BUILD = least(PYPROJECT["build-system"]["requires"])


@pytest.fixture
def conda():
    text = (RELEASE / "conda-forge" / "recipe.yaml").read_text(encoding="utf-8")
    return needs.module("yaml").safe_load(text)


def easyconfig() -> dict[str, object]:
    """Return what an easyconfig assigns: it is Python that calls nothing."""
    told: dict[str, object] = {}
    exec(EASYBUILD.read_text(encoding="utf-8"), told)
    return told


def number(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def test_conda_forges_dependencies_are_ours(conda):
    asked = conda["requirements"]
    names = {"matplotlib-base": "matplotlib"}  # without Qt
    run = {names.get(name, name): version for name, version in least(asked["run"]).items()}
    assert run == {"python": "", **RUN}
    assert least(asked["host"]) == {"python": "", "pip": "", **BUILD}
    crossed = next(item["then"] for item in asked["build"] if isinstance(item, dict))
    assert {name: BUILD[name] for name in ("cython", "numpy")}.items() <= least(
        [name for name in crossed if "{" not in name]
    ).items()
    assert f'match(python, "<{PROJECT["requires-python"].lstrip(">=")}")' in conda["build"]["skip"]
    (tests,) = (test["requirements"]["run"] for test in conda["tests"] if "script" in test)
    assert least(tests) == least(PROJECT["optional-dependencies"]["check"])


@pytest.mark.parametrize("target", ["linux-64", "linux-aarch64"])
def test_conda_forges_recipe_is_rendered(target):
    """By the parser and the templates of rattler-build; packages are not looked up, which needs its channel."""
    build = needs.module("rattler_build")
    recipe = build.Stage0Recipe.from_file(str(RELEASE / "conda-forge" / "recipe.yaml"))
    variants = build.VariantConfig({"python": ["3.11.*", "3.14.*"], "c_compiler": ["gcc"], "c_stdlib": ["sysroot"]})
    platform = build.PlatformConfig(target_platform=target, build_platform="linux-64")
    rendered = recipe.render(variants, build.RenderConfig(platform=platform))
    assert [str(each.recipe.package.version) for each in rendered] == [VERSION, VERSION]
    for each in rendered:
        assert f"gcc_{target}" in str(each.recipe.to_dict()["requirements"]["build"])


def test_spacks_dependencies_are_ours():
    """Spack is no package of PyPI: what the file calls is read from its syntax."""
    calls = [node for node in ast.walk(ast.parse(SPACK.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
    asked = [call.args[0].value for call in calls if call.func.id == "depends_on"]
    found = {name.removeprefix("py-"): version for name, _, version in (text.partition("@") for text in asked)}
    python = PROJECT["requires-python"].lstrip(">=")
    assert found == {"c": "", "python": f"{python}:", **{name: f"{least}:" for name, least in {**BUILD, **RUN}.items()}}


def test_easybuilds_dependencies_are_ours():
    told = easyconfig()
    run = {name.lower(): version for name, version in told["dependencies"] if name not in BUNDLES}
    run |= {name: version for name, version, _ in told["exts_list"] if name != "himach"}
    bundled = [name for bundle, _ in told["dependencies"] for name in BUNDLES.get(bundle, [])]
    assert {*run, *bundled} == {"python", *RUN}
    build = {name.lower(): version for name, version in told["builddependencies"]}
    assert {*build, "numpy"} == set(BUILD)
    for name, version in {**run, **build}.items():
        asked = PROJECT["requires-python"].lstrip(">=") if name == "python" else {**BUILD, **RUN}[name]
        assert number(version) >= number(asked), name


def test_apptainer_has_the_sections_and_extras_that_there_are():
    text = (RELEASE / "apptainer" / "himach.def").read_text(encoding="utf-8")
    assert set(re.findall(r"^%(\w+)", text, re.MULTILINE)) == SECTIONS
    (extras,) = re.findall(r"^ +/opt/himach/bin/pip install .*'{{ himach }}\[([\w,]+)\]'$", text, re.MULTILINE)
    assert {*extras.split(",")} <= PROJECT["optional-dependencies"].keys()


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


@pytest.mark.parametrize(
    "path", ["snakemake-wrappers/bio/himach/run/environment.yaml", "nf-core/modules/himach/run/environment.yml"]
)
def test_workflows_ask_for_this_version(path):
    assert re.findall(r"himach ?=([\d.]+)", (RELEASE / path).read_text(encoding="utf-8")) == [VERSION]
