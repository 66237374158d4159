"""What a run is asked: Python, the command line and the record say the same; frames by number and by time."""

import inspect
import json
import re
from dataclasses import fields
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from support.io_samples import copied

import himach
from himach.cli import run as commands
from himach.cli.trajectory import stage
from himach.errors import UsageError
from himach.io.datasets.request import TIME_UNITS, FramesRequest, parse_bound, slice_of_times
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
        (RunOptions, {"confidence": "95"}, "between 0 and 1, such as 0.95, or 'off'"),
        (RunOptions, {"confidence": True}, "between 0 and 1"),
        (RunOptions, {"confidence": "high"}, "between 0 and 1"),
        (RunOptions, {"equilibration": "late"}, "a time in ps, such as 500, or 'auto'"),
        (RunOptions, {"equilibration": np.inf}, "a time in ps"),
        (StageOptions, {"placement": "here"}, "placement 'here'"),
        (StageOptions, {"copies": 0}, "--copies 0"),
    ],
)
def test_what_makes_no_sense_is_refused(kind, options, words):
    with pytest.raises(UsageError, match=words):
        kind([Path("a.xtc")], **options)


EVEN = np.float32(0.1) * np.arange(1, 2001, dtype=np.float32)  # ps, from 0.1 to 200


def select(times, *bounds):
    numbers = range(*slice_of_times(*bounds, len(times), lambda n: times[n].astype(np.float64)).indices(len(times)))
    return np.array(numbers, dtype=int)


@pytest.mark.parametrize("unit", TIME_UNITS)
@pytest.mark.parametrize(
    ("start", "stop"), [(None, None), (0, 20), (0.1, 0.1), (19.9, 20.05), (150, None), (500, None)]
)
def test_bounds_are_half_open_in_any_unit(unit, start, stop):
    texts = [None if time is None else f"{time / TIME_UNITS[unit]:.12g} {unit}" for time in (start, stop)]
    decimals = np.round(EVEN.astype(np.float64), 3)
    mask = (decimals >= (start or 0)) & (decimals < (np.inf if stop is None else stop))
    np.testing.assert_array_equal(select(EVEN, *texts, None), np.flatnonzero(mask))


@pytest.mark.parametrize("every", [0.1, 0.5, 25])
def test_a_step_is_a_multiple_of_the_time_between_frames(every):
    np.testing.assert_array_equal(select(EVEN, 3, None, f"{every}ps"), np.arange(3, len(EVEN), round(every / 0.1)))


def test_frames_at_uneven_times_are_bounded_but_have_no_step():
    times = np.array([0.0, 1.0, 5.0, 6.0, 40.0], np.float32)
    assert select(times, "1ps", "40ps", 2).tolist() == [1, 3]
    with pytest.raises(UsageError, match="step 1ps: frames come at uneven times; give a number of frames"):
        select(times, None, None, "1ps")
    with pytest.raises(UsageError, match=r"step 0\.15ps: frames are 0\.1 ps apart; give a multiple of that"):
        select(EVEN, None, None, "0.15ps")


@pytest.mark.parametrize("value", ["10", " 7 ", -3, np.int64(4), None, "1.5 ns", "2e3fs", "-1ps"])
def test_numbers_and_times_are_bounds(value):
    is_time = isinstance(value, str) and value.strip()[-1] == "s"
    assert parse_bound(value, "start") == (value.strip() if is_time else value and int(value))


@pytest.mark.parametrize("value", ["ten", "1.5", "10 parsecs", "ns", "", True, 1.5, "1ns2"])
def test_other_bounds_are_refused_by_name(value):
    with pytest.raises(UsageError, match=r"start is .*: it is a whole number of frames, or a time such as"):
        parse_bound(value, "start")


def test_a_run_by_time_is_that_by_number_also_without_its_files(tmp_path):
    topology, trajectory = copied("XTC", tmp_path)  # a frame every 100 ps
    analyse = partial(himach.run, "radius-of-gyration", trajectory, topology, cache=str(tmp_path / "store"))
    by_number = analyse(start=2, stop=7, step=2)
    for away in (False, True):
        if away:
            trajectory.unlink()
        by_time = analyse(start="0.2ns", stop="700 ps", step="200ps")
        assert (by_time.record["start"], by_time.record["frames"]) == ("0.2ns", 3)
        for name, column in by_number.outcome.items():
            np.testing.assert_array_equal(np.stack(column), np.stack(by_time.outcome[name]))


def test_times_are_refused_where_frames_still_come():
    with pytest.raises(UsageError, match="stop is a time: frames that still come are chosen by their numbers"):
        himach.follow("rmsd", "md.xtc", "top.gro", stop="10ns")
    with pytest.raises(UsageError, match="the frame at 1ns is not known"):
        FramesRequest(["md.xtc"], start="1ns").select(10)
