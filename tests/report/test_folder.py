"""The folder of a run, read again: what was written is what is read; a record of another shape is refused by name."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from jsonschema import Draft7Validator
from MDAnalysisTests.datafiles import DCD, PSF
from support.sample_runs import Plain, make_record

import himach
from himach.errors import UsageError
from himach.examples import load
from himach.output.formats import content
from himach.output.table import Column, Table
from himach.report.files import methods_files
from himach.report.folder import SCHEMA, read_folder, read_table
from himach.report.page import report_page
from himach.runner.options import RunOptions

PAGE = Path(__file__).parents[2] / "docs" / "run-json.md"


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> tuple[Path, himach.Result]:
    out = tmp_path_factory.mktemp("two") / "out"
    analyses = [load("rmsd")(), load("radius-of-gyration")()]
    return out, himach.run(analyses, DCD, PSF, stop=30, out=out)


def test_analyses_tables_and_figures_are_those_of_the_run(two):
    out, result = two
    folder = read_folder(out)
    rmsd, gyration = folder.analyses
    assert (rmsd.label, rmsd.tables, gyration.tables) == ("rmsd", ("rmsd/rmsd",), ("radius-of-gyration/rg",))
    assert rmsd.figures == ({".png": "rmsd/rmsd.png"},)
    assert rmsd.entry["parameters"]["selection"] == "protein and backbone"
    for name in folder.tables:
        table, was = folder.table(name), result[name]
        assert list(table) == list(was)
        for column in was:
            np.testing.assert_allclose(table[column], was[column], rtol=1e-6)
        assert (table.units, table.level, folder.uncertainty(name)["level"]) == (was.units, was.level, 0.95)


def test_files_that_are_gone_are_told_and_those_elsewhere_are_not_read(two, tmp_path):
    secret = tmp_path / "secret.csv"
    secret.write_text("a\n1\n")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "link.csv").symlink_to(secret)
    names = ["../secret.csv", str(secret), "link.csv", "rmsd/rmsd.csv"]
    record = json.loads((two[0] / "run.json").read_text())
    (tmp_path / "out" / "run.json").write_text(json.dumps({**record, "files": names}))
    folder = read_folder(tmp_path / "out")
    assert (folder.files, folder.missing) == ({}, tuple(names))


def record_text(**changes) -> str:
    record = json.loads(json.dumps(make_record(Plain())))
    return json.dumps({**record, **changes})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "no folder of a run: there is no run.json"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        (record_text(frames=math.nan), "not JSON"),
        ("[]", "it must be object"),
        ('{"himach": "0.1"}', r"it must contain \['analyses'"),
        (record_text(analyses=[{"name": 3, "parameters": {}}]), r"analyses\[0\].name must be string"),
        (record_text(analyses=[]), "analyses must contain at least 1"),
        (record_text(frames=10**400), "frames must be smaller"),
        (record_text(system={"atoms": 1}), r"system must contain \['box'"),
        (record_text(uncertainty={"rmsd": {"means": 3}}), r"uncertainty.rmsd must contain \['blocks'"),
        (record_text(files=["a", 7]), r"files\[1\] must be string"),
    ],
)
def test_a_record_of_another_shape_is_refused_by_what_is_wrong(tmp_path, text, message):
    if text is not None:
        (tmp_path / "run.json").write_text(text)
    with pytest.raises(UsageError, match=message):
        read_folder(tmp_path)


def test_nan_and_infinities_are_floats_again(tmp_path):
    mean = {"mean": 1, "low": None, "high": "Infinity", "n_eff": 2.5, "blocks": 0, "method": "none", "cut": False}
    mean |= {"start_ps": None, "halves": [1, None, 2]}
    entry = {"method": "", "level": 0.9, "blocks": 0, "n_eff": None, "means": {"x": mean}, "half_widths": {"x": None}}
    (tmp_path / "run.json").write_text(record_text(uncertainty={"t": entry}))
    entry = read_folder(tmp_path).uncertainty("t")
    mean = entry["means"]["x"]
    assert (mean["mean"], mean["high"], mean["start_ps"], mean["halves"]) == (1, math.inf, None, None)
    assert all(map(math.isnan, (mean["low"], entry["n_eff"], entry["half_widths"]["x"])))


def test_the_shape_is_a_schema_that_names_the_fields_of_records_and_of_the_page(two):
    schema = json.loads(SCHEMA.read_bytes())
    Draft7Validator.check_schema(schema)
    fields = set(schema["properties"])
    named = re.findall(r"^\| (`.+?) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert {name for cell in named for name in re.findall("`(.+?)`", cell)} == fields
    assert {*RunOptions(["traj.xtc"]).recorded()} <= fields


def fields_of(shape: dict, values: list, place: str = "") -> Iterator[tuple[str, bool, bool]]:
    """Give each field that a schema names, or that values of its shape have, and whether either has it."""
    shape = {**shape, **DEFINITIONS.get(shape.get("$ref", "").rpartition("/")[2], {})}
    values = [item for value in values for item in (value if isinstance(value, list) and "items" in shape else [value])]
    shape = shape.get("items", shape)
    shape = {**shape, **DEFINITIONS.get(shape.get("$ref", "").rpartition("/")[2], {})}
    values = [value for value in values if isinstance(value, dict)]
    names = {name: [value[name] for value in values if name in value] for value in values for name in value}
    if "properties" in shape:
        for name in {**shape["properties"], **names}:
            yield f"{place}{name}", name in shape["properties"], name in names
            if name not in ("then", "planning"):
                yield from fields_of(shape["properties"].get(name, {}), names.get(name, []), f"{place}{name}.")
    elif isinstance(shape.get("additionalProperties"), dict):
        yield from fields_of(shape["additionalProperties"], [each for name in names for each in names[name]], place)


DEFINITIONS = json.loads(SCHEMA.read_bytes())["definitions"]


def test_runs_write_the_fields_of_the_schema_and_no_others(two, tmp_path):
    class Later(himach.Analysis):
        def reduce(self, key, series):
            return len(series)

    class Local(Later):
        then = Later

        def map(self, frame):
            yield 0, 1

        def reduce(self, key, series):
            yield 0, 1

    himach.run(Local, DCD, PSF, stop=3, out=tmp_path / "local")
    members = [himach.Member(name, DCD, PSF, start=at, stop=at + 30) for at, name in enumerate("ab")]
    himach.run("rmsd", ensemble=members, out=tmp_path / "many", progress=False)
    records = [json.loads((out / "run.json").read_text()) for out in (two[0], tmp_path / "local", tmp_path / "many")]
    fields = list(fields_of(json.loads(SCHEMA.read_bytes()), records))
    assert {"ensemble.system.dt_ps", "uncertainty.means.halves", "analyses.unrepeatable"} <= {
        name for name, *_ in fields
    }
    wrong = {
        name: "not written" if there else "not in the schema" for name, there, written in fields if there != written
    }
    assert wrong == {"live": "not written"}  # only of frames that still come


@pytest.mark.nightly
def test_a_record_with_anything_in_any_place_is_reported_or_refused(two, tmp_path):
    """What any reader of the schema refuses is refused, and nothing that it takes is an error."""
    schema = Draft7Validator(json.loads(SCHEMA.read_bytes()))
    base = json.loads((two[0] / "run.json").read_text())
    member = {"name": "a", "trajectory": ["t"], "topology": None, "frames": 3, "fingerprint": "f", "error": None}
    base["ensemble"] = [{**member, "group": "x", "system": base["system"]} for _ in range(3)]
    keys = [key for key in base if key not in ("planning", "seconds", "bytes")]
    places = [place for key in keys for place in [(key,), *places_in(base[key], (key,))]]
    values = [None, 7, -1.5, "x", [], {}, [1], {"a": 1}, True, ["a", None], 1e300]
    for place, value, alone in itertools.product(places, values, [False, True]):
        record = json.loads(json.dumps(base))
        inside = record
        for step in place[:-1]:
            inside = inside[step]
        inside[place[-1]] = value
        if alone:
            record.pop("ensemble", None)
        (tmp_path / "run.json").write_text(json.dumps(record))
        refused = True
        with contextlib.suppress(UsageError):
            folder = read_folder(tmp_path)
            refused = False
        assert refused != schema.is_valid(record), (place, value)
        if not refused:
            assert methods_files([folder])["methods.tex"].isascii(), (place, value)
            report_page([folder])


def places_in(thing, place):
    """Give the places of all that is in a record."""
    for key, value in thing.items() if isinstance(thing, dict) else enumerate(thing) if isinstance(thing, list) else ():
        yield (*place, key)
        yield from places_in(value, (*place, key))


def test_a_table_reads_as_it_was_written(tmp_path):
    table = Table(
        {
            "time_ps": Column([0.1, 0.30000000000000004], "ps"),
            "d": Column([np.nan, -1e-300], "Å"),
            "n": [1, 2],
            "who": ['a,b\n"c"', None],
            "maybe": [None, 2.5],
            "flag": [True, False],
        }
    )
    (tmp_path / "t.csv").write_bytes(content(table, units=True))
    again = read_table(tmp_path / "t.csv", table.units)
    assert (list(again), again.units, again["n"].dtype) == (list(table), table.units, np.int64)
    np.testing.assert_array_equal(again["d"], table["d"])
    np.testing.assert_array_equal(again["maybe"], [np.nan, 2.5])
    assert (again["who"], again["flag"]) == (['a,b\n"c"', None], ["True", "False"])
    for columns in ({"a": [], "b": []}, {"a": [None]}):
        (tmp_path / "t.csv").write_bytes(content(Table(columns)))
        again = read_table(tmp_path / "t.csv", {})
        assert (list(again), again.rows) == (list(columns), len(columns["a"]))
    (tmp_path / "t.csv").write_text("a,b\n1\n")
    with pytest.raises(UsageError, match="row 2 has not as many cells"):
        read_table(tmp_path / "t.csv", {})
