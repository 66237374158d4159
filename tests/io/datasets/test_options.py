"""What a run is asked, in one place: Python's keywords, the command line and the record say the same."""

import inspect
import json
import re
from dataclasses import fields
from pathlib import Path

import pytest

import himach
from himach.cli import run as commands
from himach.cli.stage import stage
from himach.errors import UsageError
from himach.runner.options import LiveOptions, RunOptions
from himach.staging.options import StageOptions

#: Options that `himach.Output` has, by their names there.
OF_OUTPUT = {"table": "tables", "figure": "figures", "units": "units", "features": "features", "force": "force"}
OPTIONS = [(cls, each) for cls in (RunOptions, LiveOptions) for each in fields(cls) if each.metadata]
NAMES = [each.name for _, each in OPTIONS]


@pytest.mark.parametrize(("cls", "each"), OPTIONS, ids=NAMES)
def test_python_has_each_option_with_the_same_default(cls, each):
    function = himach.run if cls is RunOptions else himach.follow
    function, name = (himach.Output, OF_OUTPUT[each.name]) if each.name in OF_OUTPUT else (function, each.name)
    assert inspect.signature(function).parameters[name].default == each.default
    assert re.search(rf"^(\w+, )*{name}(, \w+)*$", inspect.getdoc(function), re.MULTILINE)


@pytest.mark.parametrize(("cls", "each"), OPTIONS, ids=NAMES)
def test_the_command_line_has_each_option(cls, each):
    command = commands.run if cls is RunOptions else commands.follow
    option = next(item for item in command.params if item.name == each.name)
    assert option.help == each.metadata["help"]
    with command.make_context(command.name, ["rmsd", "-t", "a.xtc"]) as context:
        assert not context.params[each.name]  # so that another run's can be taken over


def test_staging_has_its_options():
    assert {each.name for each in fields(StageOptions) if each.metadata} <= {one.name for one in stage.params}


def test_a_record_holds_what_was_asked():
    asked = RunOptions([Path("a.xtc")], cache="here", start=3, stop=-1, memory="2MB", pairs=Path("kept"), reuse="never")
    record = json.loads(json.dumps(asked.recorded()))
    assert (record["memory"], record["step"]) == (2_000_000, None)
    assert record["pairs_directory"] == str(Path("kept").absolute())
    assert RunOptions([Path("a.xtc")], **RunOptions.from_record(record)) == asked


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        (RunOptions, {"reuse": "maybe"}, "reuse 'maybe': there is 'auto', 'always', 'never'"),
        (RunOptions, {"cache": ""}, "cache ''"),
        (RunOptions, {"step": 0}, "step must not be 0"),
        (RunOptions, {"start": True}, "start is True: it is a whole number"),
        (RunOptions, {"frames": "1,5", "stop": 3}, "frames cannot be given with stop"),
        (RunOptions, {"pairs": Path("a\0b")}, "it is a directory"),
        (StageOptions, {"placement": "here"}, "placement 'here'"),
        (StageOptions, {"copies": 0}, "--copies 0"),
    ],
)
def test_what_makes_no_sense_is_refused(kind, options, words):
    with pytest.raises(UsageError, match=words):
        kind([Path("a.xtc")], **options)
