"""``himach cache``: the frame store of this node.

``himach cache start``, ``stop`` and ``config``: this node's server, and what is needed to push frames to it.
"""

import json
from typing import TYPE_CHECKING, Any

import click

from himach.cli.command_group import CommandGroup
from himach.cli.shared import PATH, cache_option, columns, echo, format_facts, format_minute, quota_option, server_line
from himach.io.store.sizes import parse_size, show_size

if TYPE_CHECKING:
    from himach.io.datasets.listing import DatasetEntry
    from himach.io.store.store import Store

#: Facts of a store that are bytes.
SIZES = ("size", "free", "reserve", "quota", "used")


@click.group(cls=CommandGroup)
def cache() -> None:
    """Look after the frames that this node keeps on its local disk."""


@cache.command()
@click.option("--listen", metavar="HOST:PORT", help="Also serve other machines: push and read; port 0 chooses one.")
@click.option(
    "--key", "key_file", type=PATH, metavar="FILE",
    help="Their key; made if it is not there.  [default: ~/.config/himach/key]",
)  # fmt: skip
@click.option(
    "--allow-user", "allow_users", multiple=True, metavar="USER", help="Another user who may read; may be repeated."
)
@click.option(
    "--serialize-reads", is_flag=True, help="One read at a time, in the order of the disk: for rotating disks."
)
@quota_option
@click.option(
    "--peers", type=PATH, metavar="FILE",
    help="Servers of other nodes, one HOST or HOST:PORT a line.",
)  # fmt: skip
@click.option(
    "--connections", type=click.IntRange(1, 65536), default=4096, show_default=True, metavar="N",
    help="Clients at once; half of them of other machines and users.",
)  # fmt: skip
@click.option("--foreground", is_flag=True, help="Stay in this process until SIGTERM: for systemd and srun.")
@click.option("--ready", type=int, hidden=True)
@cache_option
def start(foreground: bool, ready: int | None, cache: str | None, **options: Any) -> None:
    """Start this node's server: for frames pushed from simulations, and for readers of other users.

    Runs on the node need none.
    """
    from himach.io.server import control

    if foreground:
        control.serve(cache, **options, ready=ready)
        return
    facts = control.start(cache, **options)
    for note in facts["notes"]:
        echo(note)
    echo(f"server {facts['pid']} of {facts['store']} listens at {facts['socket']}")
    if facts["listen"]:
        echo(f"for other machines at {facts['listen']}, with the key {facts['key']}")
    echo(f"its log is {facts['log']}")


@cache.command()
@click.option("--cflags", is_flag=True, help="What a C compiler needs to find bodhi.h.")
@click.option("--fortran", is_flag=True, help="The source of the Fortran module bodhi, to be compiled along.")
@click.option("--libs", is_flag=True, help="What the linker needs; behind your own files.")
def config(cflags: bool, fortran: bool, libs: bool) -> None:
    """Say how simulations in C or Fortran are built that push frames: cc $(himach cache config --cflags --libs)."""
    from importlib.resources import files
    from pathlib import Path

    # An editable installation keeps them in the build directory.
    header, module, library = (
        Path(str(files("himach").joinpath(name))) for name in ("include/bodhi.h", "include/bodhi.f90", "lib/libbodhi.a")
    )
    words = []
    if cflags:
        words.append(f"-I{header.parent}")
    if fortran:
        words.append(str(module))
    if libs:
        words += [str(library), "-lpthread", "-ldl"]
    if not words:
        raise click.UsageError("say which: --cflags, --fortran, --libs")
    echo(" ".join(words))


@cache.command()
@cache_option
def stop(cache: str | None) -> None:
    """Stop this node's server and wait for its end."""
    from himach.io.server import control

    echo("stopped" if control.stop(cache) else "there is no server to stop")


def _open_store(cache: str | None, absent: str, writing: bool = False) -> "Store | None":
    """Open this node's store; print the text `absent` if there is none."""
    from himach.io.datasets.listing import open_existing
    from himach.io.store.quota import store_place

    store = open_existing(cache, writing=writing)
    if store is None:
        echo(f"{absent}: there is no store at {store_place(cache)}")
    return store


@cache.command("list")
@cache_option
def list_(cache: str | None) -> None:
    """List the datasets: frames, bytes, last use."""
    from himach.io.datasets.listing import entries

    if (store := _open_store(cache, "no frames are cached")) is None:
        return
    listing = entries(store)
    if not listing:
        echo(f"no frames are cached at {store.path}")
        return
    rows: list[tuple[str, ...]] = [("dataset", "native", "alien", "size", "last used", "generation")]
    for item in listing:
        rows += map(_row, (item, *(subset for subset in item.subsets if subset.n_alien)))
    echo(columns(rows, left=frozenset([0, 4, 5])))
    for item in listing:
        if item.note:
            echo(f"{item.name}: {item.note}")


def _row(item: "DatasetEntry") -> tuple[str, ...]:
    size, used = show_size(item.nbytes), format_minute(item.last_used)
    name = f"copy of {item.name}" if item.is_copy else f"  {item.atoms:,} of its atoms" if item.atoms else item.name
    return name, f"{item.n_native:,}", f"{item.n_alien:,}", size, used, item.generation.hex()[:8]


@cache.command()
@cache_option
@click.option("--drop", is_flag=True, help="Drop the frames that are bad; they are then read from the origin again.")
def verify(cache: str | None, drop: bool) -> None:
    """Read everything again, check it, and name what is bad: exit code 1 if anything is."""
    from himach.io.store import verify as verifying

    if (store := _open_store(cache, "nothing to verify", writing=drop)) is None:
        return
    report = verifying.verify(store)
    for bad in report.bad:
        echo(str(bad))
    echo(f"{store.path}: {report.frames:,} frames are sound ({show_size(report.nbytes)}), {len(report.bad)} bad")
    if report.bad and drop:
        echo(f"dropped {verifying.drop(store, report.bad):,} frames")
    if report.bad:
        raise click.exceptions.Exit(1)


@cache.command()
@click.argument("dataset", required=False)
@click.option(
    "--aliens", is_flag=True, help="Only frames that were kept after a read, none that were staged or pushed."
)
@click.option("--to", metavar="SIZE", help="Only until the store holds SIZE; what was not used for longest goes first.")
@click.option("--all", "everything", is_flag=True, help="All datasets.")
@cache_option
def evict(dataset: str | None, aliens: bool, to: str | None, everything: bool, cache: str | None) -> None:
    """Delete cached frames, whole segments at a time.

    What a run reads or writes just now stays and is named; the exit code is then 1.
    """
    from himach.io.datasets.listing import evict_chosen

    if dataset is None and not (aliens or to or everything):
        raise click.UsageError("say what to evict: a DATASET ('himach cache list' shows them), --aliens, --to or --all")
    if dataset is not None and everything:
        raise click.UsageError(f"either the dataset {dataset} or --all")
    size = None if to is None else parse_size(to)
    if (store := _open_store(cache, "nothing to evict", writing=True)) is None:
        return
    freed = evict_chosen(store, dataset, aliens=aliens, to=size)
    echo(f"freed {show_size(freed.nbytes)} in whole segments: {freed.segments}")
    for line in freed.busy:
        echo(f"kept {line}")
    if freed.busy:
        raise click.exceptions.Exit(1)


@cache.command()
@cache_option
@quota_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object; sizes are in bytes.")
@click.option("--prometheus", is_flag=True, help="Print the numbers as metrics of Prometheus.")
def status(cache: str | None, quota: str | None, as_json: bool, prometheus: bool) -> None:
    """Say where the store of this node lies and what it holds."""
    from himach.io.datasets import listing
    from himach.io.server import control

    facts = {**listing.status(cache, quota), "server": control.status(cache)}
    if as_json:
        echo(json.dumps(facts, indent=2))
        return
    if prometheus:
        metrics = {**facts, **{f"server_{name}": value for name, value in facts["server"].items()}}
        numbers = {name: value for name, value in metrics.items() if isinstance(value, int | float)}
        names = {name: f"himach_store_{name}{'_bytes' * (name in SIZES)}" for name in numbers}
        echo("\n".join(f'{names[name]}{{node="{facts["node"]}"}} {value:.17g}' for name, value in numbers.items()))
        return
    if facts["identity"] is None and facts["datasets"] is not None:
        facts["identity"] = "none: there is no store yet"
    facts["server"] = server_line(facts["server"])
    echo(format_facts(facts))
