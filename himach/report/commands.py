"""``himach report``, ``cite``, ``bundle`` and ``verify``: functions that `himach.cli` makes into commands."""

from pathlib import Path

import click

from himach.errors import printable_lines

PATH = click.Path(path_type=Path)


@click.argument("folders", nargs=-1, required=True, type=PATH, metavar="DIR...")
@click.option(
    "--out", "-o", type=PATH, default=Path("report.html"), show_default=True, metavar="FILE", help="File of the report."
)
@click.option("--template", type=PATH, metavar="FOLDER", help="Templates of Jinja2 in place of himach's, some or all.")
@click.option("--title", default="", metavar="TEXT", help="Title of the page.  [default: the names of the runs]")
def report(folders: tuple[Path, ...], out: Path, template: Path | None, title: str) -> None:
    """Write one HTML file of what runs left in their folders (--out): results, what speaks for them, where from.

    It needs no network and no other file, and stays below 2 MB. The same folders give the same bytes.
    Beside it methods, references and a checklist are written, as himach cite does.
    """
    from himach.ranks.quiet import quiet_ranks
    from himach.report.report_files import write_report

    with quiet_ranks(0, command=True):
        for path in write_report(folders, out, templates=template, title=title):
            click.echo(printable_lines(f"written to {path}"))


@click.argument("folders", nargs=-1, required=True, type=PATH, metavar="DIR...")
@click.option(
    "--out", "-o", type=PATH, metavar="FOLDER",
    help="Write methods.md, methods.tex, references.bib and checklist.md there.",
)  # fmt: skip
def cite(folders: tuple[Path, ...], out: Path | None) -> None:
    """Tell what a paper says of the runs in these folders (--out): their methods, and the references."""
    from himach.report.folder import read_folder
    from himach.report.page import compose_methods
    from himach.report.report_files import methods_files, write_methods
    from himach.report.template import render

    runs = [read_folder(folder) for folder in folders]
    if out is None:
        methods, references = compose_methods(runs)
        click.echo(render("methods.txt", methods=methods, references=references), nl=False)
        return
    written = write_methods(out, methods_files(runs))
    click.echo(printable_lines(f"written to {out}: {', '.join(path.name for path in written)}"))


@click.argument("folders", nargs=-1, required=True, type=PATH, metavar="DIR...")
@click.option("--out", "-o", type=PATH, required=True, metavar="FILE.zip", help="File of the bundle.")
@click.option("--title", default="", metavar="TEXT", help="What the bundle is called.  [default: by its analyses]")
@click.option("--author", default="", metavar="NAME", help="Who made the runs.")
@click.option("--license", default="", metavar="URL", help="License of what is in it: its address, or words.")
def bundle(folders: tuple[Path, ...], out: Path, title: str, author: str, license: str) -> None:  # noqa: A002
    """Pack what runs left, and the code that made it, into one file that others can run again.

    In it are tables, figures, records, scripts with what they import, and files that parameters name, described as a
    Process Run Crate. Trajectories and topologies are not: it tells what they are by their content.
    """
    from himach.report.bundle.archive import METADATA, Payload, write_archive
    from himach.report.bundle.crate import collect_contents, metadata
    from himach.report.folder import read_folder
    from himach.report.report_files import check_out

    contents = collect_contents([read_folder(folder) for folder in folders])
    check_out(out, [member.source for member in contents.members.values() if isinstance(member.source, Path)])
    members = {**contents.members, METADATA: Payload.from_source(metadata(contents, title, license, author))}
    write_archive(out, members)
    click.echo(printable_lines(f"{len(members)} files are in {out}"))
    for path in contents.unrecorded:
        click.echo(
            printable_lines(f"{path} is in it as it is now: the run did not tell of it, as it was not imported yet"),
            err=True,
        )


@click.argument("bundle", type=PATH, metavar="FILE.zip")
@click.option(
    "--trajectory", "-t", "trajectories", multiple=True, type=PATH, metavar="PATH",
    help="Trajectory that a run of the bundle read; of several runs all, in any order.",
)  # fmt: skip
@click.option(
    "--topology", "-s", "topologies", multiple=True, type=PATH, metavar="PATH", help="Topology; of several runs all."
)
@click.option("--ensemble", metavar="CSV|PATTERN", help="Simulations of an ensemble, with the names of its members.")
@click.option("--run", "names", multiple=True, metavar="NAME", help="Verify this run alone, of several in the bundle.")
@click.option("-n", "ranks", type=click.IntRange(min=1), metavar="RANKS", help="Start so many ranks on this machine.")
@click.option("--cache", default="auto", metavar="auto|off|DIR", help="As of himach run.  [default: auto]")
def verify(
    bundle: Path,
    trajectories: tuple[Path, ...],
    topologies: tuple[Path, ...],
    ensemble: str | None,
    names: tuple[str, ...],
    ranks: int | None,
    cache: str,
) -> int:
    """Run what is in a bundle again, and tell of each table and figure whether it is the same, byte by byte.

    THIS RUNS THE CODE IN THE BUNDLE, with your rights, as if you had written it: look at it first. Without
    --trajectory and --ensemble nothing is run: checksums are checked, and the code is listed.

    The exit code is 0 if all is equal, and 1 if anything is not.
    """
    from himach.report.bundle.data import Inputs
    from himach.report.bundle.verify import verify as verify_bundle

    equal = verify_bundle(bundle, Inputs(trajectories, topologies, ensemble), names, ranks, cache, click.echo)
    return 0 if equal else 1
