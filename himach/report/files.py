"""The files of a report: `write_report()`, for the command line, for Python and for `himach.Result.report`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from himach.errors import UsageError
from himach.files import write_bytes
from himach.report.methods import check_place, methods_files, write_files
from himach.report.page.document import report_page
from himach.report.run_folder import check_out, read_folder

__all__ = ["write_report"]


def write_report(folders: Sequence[str | os.PathLike[str]], out: str | os.PathLike[str] = "report.html") -> list[Path]:
    """Write the report of what runs left in their folders (`out` of `himach.run`).

    It is one page of HTML that needs no network and no other file, below 2 MB: what does not fit is named. The same
    folders give the same bytes. Beside it lie ``methods.md``, ``methods.tex``, ``references.bib`` and
    ``checklist.md``, as ``himach cite`` writes them.

    Parameters
    ----------
    folders
        Folders of runs.
    out
        File of the page; one that is there is replaced.

    Returns
    -------
    list of Path
        What was written, the page first.

    Raises
    ------
    UsageError
        If a folder is none of a run, is given twice, or there is none; if another file has the place of one of these,
        or the page would take the place of one of a run's.
    HimachError
        If a file cannot be written.
    """
    if isinstance(folders, str | os.PathLike) or not folders:
        raise UsageError("a report is of a list of folders that runs left: name one, at least")
    runs = [read_folder(folder) for folder in folders]
    page, others = report_page(runs), methods_files(runs)
    check_out(out, [path for run in runs for path in run.all_files.values()])
    if Path(out).name in others:
        raise UsageError(f"{out} has the name of a file that lies beside the page; name another one by --out")
    check_place(Path(out).parent, others)
    write_bytes(out, page.encode())
    return [Path(out), *write_files(Path(out).parent, others)]
