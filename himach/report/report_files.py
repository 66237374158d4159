"""The files of a report: `write_report()`, for the command line, for Python and for `himach.Result.report`."""

import hashlib
import os
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from himach.errors import UsageError
from himach.files import write_bytes
from himach.output.directory import make_folder
from himach.report.folder import RunFolder, read_folder
from himach.report.page import compose_methods, report_page
from himach.report.template import MARK, render

METHODS = ("methods.md", "methods.tex", "references.bib", "checklist.md")


def write_report(
    folders: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str] = "report.html",
    *,
    templates: str | os.PathLike[str] | None = None,
    title: str = "",
) -> list[Path]:
    """Write the report of what runs left in their folders (`out` of `himach.run`).

    It is one page of HTML that needs no network and no other file, below 2 MB: what does not fit is named. The same
    folders give the same bytes. Beside it lie ``methods.md``, ``methods.tex``, ``references.bib`` and
    ``checklist.md``, as ``himach cite`` writes them.

    Parameters
    ----------
    folders
        Folders of runs.
    out
        File of the page, which is replaced.
    templates
        Folder of templates of Jinja2 in place of himach's, some or all.
    title
        Title of the page, by default the names of the runs.

    Returns
    -------
    list of Path
        What was written, the page first.

    Warns
    -----
    UserWarning
        Of files beside the page that stay as they are: himach did not write them, or they were changed since.

    Raises
    ------
    UsageError
        If a folder is none of a run, is given twice, or there is none; if the page would replace a file of a run's, or
        one beside it; if a template is wrong.
    HimachError
        If a file cannot be written.
    """
    if isinstance(folders, str | os.PathLike) or not folders:
        raise UsageError("a report is of a list of folders that runs left: name one, at least")
    directory = None if templates is None else Path(templates)
    runs = [read_folder(folder) for folder in folders]
    page, texts = report_page(runs, directory, title), methods_files(runs, directory)
    target = Path(out).parent
    check_out(out, [*(path for run in runs for path in run.all_files.values()), *(target / name for name in texts)])
    write_bytes(out, page.encode())
    kept = [name for name in texts if not _is_as_written(target / name)]
    if kept:
        warnings.warn(
            f"{target} keeps {', '.join(kept)}: not of himach's making, or changed since; himach cite --out FOLDER "
            "writes them elsewhere",
            stacklevel=2,
        )
    return [Path(out), *write_methods(target, {name: text for name, text in texts.items() if name not in kept})]


def methods_files(folders: Sequence[RunFolder], templates: Path | None = None) -> dict[str, str]:
    """Return the texts of the methods files of runs, by name."""
    methods, references = compose_methods(folders, templates)
    values = {"runs": folders, "methods": methods, "references": references}
    return {name: render(name, templates, **values) for name in METHODS}


def write_methods(folder: Path, files: Mapping[str, str]) -> list[Path]:
    """Write texts into a folder, which is made if missing; return the paths."""
    for path in (folder / name for name in files):
        if not _is_as_written(path):
            raise UsageError(
                f"{path} is there, and himach did not write it, or it was changed since; name another folder by --out, "
                "or move it"
            )
    make_folder(folder)
    for name, text in files.items():
        write_bytes(folder / name, _signed(text))
    return [folder / name for name in files]


def check_out(out: str | os.PathLike[str], sources: Iterable[Path]) -> None:
    """Raise UsageError if `out` would replace one of these files."""
    target = os.path.realpath(out)
    if any(target == os.path.realpath(path) for path in sources):
        raise UsageError(f"{out} is a file that this is made of, or that lies beside it; name another one by --out")


def _signed(text: str) -> bytes:
    """Add a digest of the other lines to the mark in the first line of a text."""
    first, _, rest = text.partition("\n")
    digest = hashlib.sha256(rest.encode()).hexdigest()[:16]
    return f"{first.replace(MARK, f'{MARK}, {digest}')}\n{rest}".encode()


def _is_as_written(path: Path) -> bool:
    """Tell whether a file may be written: it is missing, or unchanged since himach wrote it."""
    try:
        content = path.read_bytes()
        marked = re.sub(f"{MARK}, [0-9a-f]+", MARK, content.decode(), count=1)
    except FileNotFoundError:
        return True
    except (OSError, UnicodeDecodeError):
        return False
    return MARK in marked and _signed(marked) == content
