"""``himach cache start``, ``stop`` and ``config``: this node's server, and what is needed to push frames to it."""

from __future__ import annotations

from typing import Any

import click

from himach.cli.command_group import Command
from himach.cli.options import PATH, cache_option, quota_option
from himach.cli.text import echo


@click.command(cls=Command)
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
    help="Servers of other nodes, one HOST or HOST:PORT a line; default: the nodes of this job.",
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


@click.command(cls=Command)
@click.option("--cflags", is_flag=True, help="What a C compiler needs to find bodhi.h.")
@click.option("--fortran", is_flag=True, help="The source of the Fortran module bodhi, to be compiled along.")
@click.option("--libs", is_flag=True, help="What the linker needs; behind your own files.")
def config(cflags: bool, fortran: bool, libs: bool) -> None:
    """Say how simulations in C or Fortran are built that push frames: cc $(himach cache config --cflags --libs)."""
    from himach.io.store import library

    words = []
    if cflags:
        words.append(f"-I{library.header().parent}")
    if fortran:
        words.append(str(library.fortran_module()))
    if libs:
        words += [str(library.library()), "-lpthread", "-ldl"]
    if not words:
        raise click.UsageError("say which: --cflags, --fortran, --libs")
    echo(" ".join(words))


@click.command(cls=Command)
@cache_option
def stop(cache: str | None) -> None:
    """Stop this node's server and wait for its end."""
    from himach.io.server import control

    echo("stopped" if control.stop(cache) else "there is no server to stop")
