"""What a run is asked, in one place: Python's keywords, the command line and the record say the same."""

from __future__ import annotations

import inspect
import json
from dataclasses import fields
from pathlib import Path

import pytest

import himach
from himach.cli.run import run as command
from himach.cli.stage import stage
from himach.errors import UsageError
from himach.opening.options import LiveOptions, RunOptions
from himach.staging.options import StageOptions

ASKED = [each for cls in (RunOptions, LiveOptions) for each in fields(cls) if each.metadata]


@pytest.mark.parametrize("each", ASKED, ids=lambda each: each.name)
def test_python_has_each_option_with_the_same_default(each):
    assert inspect.signature(himach.run).parameters[each.name].default == each.default
    assert f"\n{each.name}\n" in inspect.getdoc(himach.run) or each.name in ("start", "stop", "step")


@pytest.mark.parametrize("each", ASKED, ids=lambda each: each.name)
def test_the_command_line_has_each_option(each):
    option = next(one for one in command.params if one.name == each.name)
    assert option.help == each.metadata["help"]
    with command.make_context("run", ["rmsd", "-t", "a.xtc"]) as context:
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
    ("options", "words"),
    [
        ({"reuse": "maybe"}, "reuse 'maybe': there is 'auto', 'always', 'never'"),
        ({"cache": ""}, "cache ''"),
        ({"step": 0}, "step must not be 0"),
        ({"start": True}, "start is True: it is a whole number"),
        ({"frames": "1,5", "stop": 3}, "frames cannot be given with stop"),
        ({"pairs": Path("a\0b")}, "it is a directory"),
    ],
)
def test_what_makes_no_sense_is_refused(options, words):
    with pytest.raises(UsageError, match=words):
        RunOptions([Path("a.xtc")], **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [({"placement": "here"}, "placement 'here'"), ({"layout": "atom"}, "layout 'atom'"), ({"copies": 0}, "--copies 0")],
)
def test_staging_refuses_what_makes_no_sense(options, words):
    with pytest.raises(UsageError, match=words):
        StageOptions([Path("a.xtc")], **options)
