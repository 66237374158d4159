"""Lengths of time as people and SLURM write them."""

from __future__ import annotations

import pytest

from himach.errors import UsageError
from himach.parallel.duration import parse_duration, seconds_of


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("3300", 3300),
        ("0.5", 0.5),
        ("55m", 3300),
        ("1h30m", 5400),
        ("1h 30min", 5400),
        ("1.5h", 5400),
        ("2 days", 172800),
        ("1d2h3m4s", 93784),
        ("90s", 90),
        ("55:00", 3300),
        ("00:55:00", 3300),
        ("100:00:01", 360001),
        ("1-12", 129600),
        ("1-12:30", 131400),
        ("1-12:30:15", 131415),
        (" 55M ", 3300),
    ],
)
def test_a_length_of_time_is_read(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", " ", "m", "55x", "5months", "-5", "1h-3m", "30m1h", "1:2:3:4", "1e3", "inf", "nan"]
)
def test_what_is_none_is_refused_by_name(text):
    with pytest.raises(UsageError, match=r"max_time: .* is no length of time"):
        seconds_of(text, "max_time")


@pytest.mark.parametrize("value", [0, -1, "0", "0m", float("inf"), float("nan")])
def test_no_time_is_refused(value):
    with pytest.raises(UsageError, match="max_time must be longer than nothing"):
        seconds_of(value, "max_time")


def test_what_is_no_number_is_refused():
    with pytest.raises(UsageError, match="max_time is a number of seconds"):
        seconds_of(object(), "max_time")
