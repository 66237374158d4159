"""The record of a run, run.json: `Record`, the type of it and of its parts; `read_record()` reads and checks it.

docs/run-json.md describes the fields.
"""

import functools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from himach.analysis import Analysis
from himach.errors import UsageError
from himach.output.claim import RECORD
from himach.parameters import recorded

SCHEMA = Path(__file__).parents[1] / "report" / "data" / "run-schema.json"
Record: TypeAlias = dict[str, Any]


def analysis_record(analysis: Analysis) -> Record:
    """Return the record of an analysis and its later stages."""
    settings = {name: recorded(value) for name, value in analysis.settings().items()}
    entry = Record(name=analysis.label(), parameters=settings)
    following = analysis.next_stage()
    if following is not None:
        entry["then"] = analysis_record(following)
    return entry


def read_record(path: str | os.PathLike[str]) -> Record:
    """Read the record of a run from its file or folder; raises UsageError if it is missing or not as `SCHEMA` says."""
    from fastjsonschema import JsonSchemaValueException

    file = Path(path, RECORD) if os.path.isdir(path) else Path(path)
    try:
        record: Record = json.loads(file.read_bytes(), parse_constant=int)  # NaN, which is no JSON, raises ValueError
        _validator()(record)
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(f"there is no record {file}; a run leaves one in its output directory") from None
    except OSError as error:
        raise UsageError(f"the record {file} cannot be read ({error.strerror})") from None
    except JsonSchemaValueException as error:
        message = error.message.removeprefix("data.").replace("data must", "it must")
        raise UsageError(f"{file} is no record of a run of himach's: {message}") from None
    except (ValueError, RecursionError):
        raise UsageError(f"{file} is no record of a run: it is not JSON") from None
    return record


@functools.cache
def _validator() -> Callable[[Any], Any]:
    """Return a function that raises JsonSchemaValueException for a record that does not match the schema."""
    from fastjsonschema import compile  # noqa: A004

    validate: Callable[[Any], Any] = compile(json.loads(SCHEMA.read_bytes()), use_default=False)
    return validate
